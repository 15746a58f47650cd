"""The bench itself: a model, its task, the examples, and the circuit supposed so far."""

import math
import weakref
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from circuits import Circuit, Head, HeadPath, Scorer
from circuits import discover as discover_circuit
from circuits.draw.layout import role_order
from circuits.draw.svg import draw_circuit
from circuits.hooks.points import is_causal
from circuits.notation import circuit_diff, circuit_text
from circuits.scores.scorer import Progress, is_unlearned
from retrieval_interp.notebook.display import register_displays
from retrieval_interp.notebook.history import Step, Suppositions
from retrieval_interp.storage.circuit_file import read_circuit
from retrieval_interp.storage.files import check_writable, write_whole
from retrieval_interp.views.page import View
from retrieval_interp.views.render import render, unescaped
from retrieval_interp.views.score_text import counted, describe
from tasks import InputError, Task


class Bench:
    """A model on the bench, and the circuit supposed so far: changed, measured, drawn, kept.

    Attributes:
        model: the hooked model, left unchanged by everything here.
        task: what it is asked.
        name: what it is called.
        training: its training record, or nothing.
        batch: the examples that every number is measured on, from the `test` split.
        tolerance: the loss that a working circuit stays below.
        seed: of the examples.
        watchers: what is shown of the workbench; each is told to `refresh` after a change.
    """

    def __init__(
        self,
        model: Any,
        task: Task,
        name: str,
        training: dict[str, Any],
        examples: int,
        seed: int,
        tolerance: float,
        progress: Progress,
    ):
        for what, value, least, most in (
            ("examples", examples, 2, 1_000_000),
            ("seed", seed, 0, 2**63 - 1),
        ):
            if type(value) is not int or not least <= value <= most:
                raise InputError(f"{what}: expected {least} to {most}, found {value!r:.40}")
        if type(tolerance) not in (int, float) or not 0 < tolerance < math.inf:
            raise InputError(f"tolerance: expected a number above 0, found {tolerance!r:.40}")
        self.model, self.task, self.name, self.training = model, task, name, training
        self.tolerance, self.seed, self.progress = tolerance, seed, progress
        device = next(model.parameters()).device
        self.batch = task.sample(examples, seed, device, split="test")
        self.order = role_order(self.batch)
        self._supposed = Suppositions(model, task, self.batch)
        register_displays()
        self.watchers: weakref.WeakSet[Any] = weakref.WeakSet()

    # What is there

    @property
    def circuit(self) -> Circuit:
        """The circuit supposed so far; drawn when displayed."""
        register_displays()
        return self._supposed.last.circuit

    @property
    def scorer(self) -> Scorer:
        """Measures losses on the batch."""
        return self._supposed.scorer

    @property
    def heads(self) -> list[Head]:
        """All heads of the model."""
        return self._supposed.heads

    @property
    def intact_attention(self) -> Float[Tensor, "layer head dest src"]:
        """Mean attention by role of the intact model, on the CPU."""
        return self._supposed.intact_attention

    @property
    def loss(self) -> float:
        """The loss with the circuit so far in place."""
        return self._supposed.last.loss

    @property
    def intact_loss(self) -> float:
        """The loss of the model as it is."""
        return self._supposed.steps[0].loss

    @property
    def undoable(self) -> bool:
        """Whether there is a change to take back."""
        return len(self._supposed.steps) > 1

    def loss_with(self, *lines: str | Circuit) -> float:
        """The loss if some lines were supposed, too, or with another circuit; nothing changes."""
        self._supposed.check_unchanged()
        return self.scorer.loss(self._supposed.with_lines(lines))

    def __repr__(self) -> str:
        return (
            f"{self.name}: {describe(self.model, self.task)}\n{self._state()}\n"
            f"{circuit_text(self.circuit, self.model.cfg.n_layers)}"
        )

    def _repr_html_(self) -> str:
        return View(self.name, self.card(), "")._repr_html_()

    def card(self, missing: str = "", roles: str = "") -> str:
        """The bench as HTML.

        Args:
            missing: what cannot be shown, to stand above.
            roles: heat maps of the roles, to stand below.
        """
        return render(
            "bench.html",
            name=self.name,
            description=describe(self.model, self.task),
            state=self._state(),
            drawing=unescaped(self.drawing()),
            missing=missing,
            roles=unescaped(roles),
        )

    def _state(self) -> str:
        _, loss, se = self._supposed.last
        if not self.circuit.mechanisms:
            return f"nothing supposed yet; intact {self.task.loss_name} {loss:.4f} +- {se:.4f}"
        below = "below" if loss < self.tolerance else "not below"
        return (
            f"{self.task.loss_name} {loss:.4f} +- {se:.4f} with {len(self.circuit.mechanisms)} of "
            f"{counted(len(self.heads), 'head')} replaced, {below} {self.tolerance:g}"
        )

    def drawing(self) -> str:
        """The circuit so far as SVG."""
        return draw_circuit(self.circuit, self.model.cfg.n_layers, self.order, task=self.task)

    # Supposing

    def suppose(self, *lines: str | Circuit) -> View:
        """Change what some heads do, and measure the result.

        The loss is that of the model with the whole circuit so far in place, the mean over the
        workbench's examples and everything asked:

            loss(C) ± s / √n,  with s the sample standard deviation of the n examples' losses

        Args:
            lines: one line per head, or a whole circuit. `L3.H0 uniform` (or identity, role-mean,
                original) replaces a head; `L1.H0 one-hot s0<-s2 s4<-s6` gives it exactly these
                paths; `L1.H0 s0<-s2` adds a path to those it has. If the path's role already has a
                source, the two share its attention.

        Returns:
            A view of what changed; its `data` is the loss.

        Raises:
            InputError: a line is malformed, or its head, role or path does not exist; nothing
                changes then.

        Examples:
            >>> import retrieval_interp as ri
            >>> bench = ri.open("small", examples=64)
            >>> print(f"{bench.suppose('L2.H0 one-hot s0<-s2 s4<-s6').data:.3f}")
            0.026
            >>> bench.suppose("L3.H0 uniform")
            L3.H0: original -> uniform
            MSE 0.0337 +- 0.0082 with 2 of 5 heads replaced, below 0.05 (was 0.0256)
        """
        return self._change(self._supposed.with_lines(lines))

    def remove(self, path: str | HeadPath) -> View:
        """Take a path out of the circuit, as `L1.H0 s0<-s2`; a head's last leaves it original.

        Raises:
            InputError: the circuit has no such path.
        """
        return self._change(self._supposed.without(path))

    def undo(self) -> View:
        """Go back to the circuit before the last change.

        Raises:
            InputError: there is nothing to undo.
        """
        return self._changed_from(self._supposed.undo())

    def discover(self, progress: Progress | None = None) -> View:
        """Find a circuit, on examples of another split, and take it as the one so far.

        Args:
            progress: instead of the workbench's own.

        Returns:
            A view of it; its `data` is the loss.
        """
        found = discover_circuit(
            self.model,
            self.task,
            self.tolerance,
            len(self.batch),
            self.seed,
            progress=progress or self.progress,
        )
        said = (
            f"No circuit to find: the model has not learned the task. Its {self.task.loss_name} of "
            f"{self.intact_loss:.4f} is not clearly below the plateau."
        )
        return self._change(found, said if is_unlearned(self.intact_loss, self.task) else "")

    def _change(self, circuit: Circuit, said: str = "") -> View:
        return self._changed_from(self._supposed.take(circuit), said)

    def _changed_from(self, before: Step, said: str = "") -> View:
        for watcher in list(self.watchers):
            watcher.refresh()
        changes = circuit_diff(before.circuit, self.circuit) or ["nothing changed"]
        state = f"{self._state()} (was {before.loss:.4f})"
        html = render(
            "changed.html",
            said=said,
            changes=changes,
            state=state,
            drawing=unescaped(self.drawing()),
        )
        lines = [*([said] if said else []), *changes, state]
        return View("What was supposed", html, "\n".join(lines), self.loss)

    # Files

    def save(self, path: str | Path) -> Path:
        """Write the circuit as JSON, which `ablate --circuit` and `load` read.

        Raises:
            InputError: the file cannot be written.
        """
        path = Path(path)
        check_writable(path)
        write_whole(path, self.circuit.to_json())
        return path

    def load(self, path: str | Path) -> View:
        """Take the circuit of a file as the one so far.

        Raises:
            InputError: not a circuit file, or not for this model.
        """
        sizes = self.model.cfg.n_layers, self.model.cfg.n_heads
        causal = is_causal(self.model)
        trained = f"{self.name} is asked"
        return self._change(read_circuit(Path(path), self.task, *sizes, trained, causal))
