"""A workbench for circuit discovery in notebooks: look, suppose, score, discover, draw, save.

>>> import retrieval_interp as ri
>>> bench = ri.open("small")
>>> bench.suppose("L2.H0 s0<-s2")

Every method returns something that a notebook shows well and that reads well in a terminal; nothing
is printed. The state is a `Circuit` and the ones before it.
"""

import math
import textwrap
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from circuits import Circuit, CircuitScore, Head, HeadPath, Scorer, mean_attention, score_circuit
from circuits import discover as discover_circuit
from circuits.draw.layout import role_order
from circuits.draw.svg import draw_circuit
from circuits.hooks.ablated import ablated
from circuits.hooks.points import is_causal
from circuits.notation import circuit_diff, circuit_text
from circuits.scores.scorer import Progress, is_unlearned
from retrieval_interp.cli.command import progress_bar
from retrieval_interp.notebook.history import Step, Suppositions
from retrieval_interp.storage.circuit_file import read_circuit
from retrieval_interp.storage.files import check_writable, write_whole
from retrieval_interp.views.attention import attention_view
from retrieval_interp.views.page import View
from retrieval_interp.views.role_maps import role_maps
from retrieval_interp.views.score_text import counted, describe, scale, score_table, verdict
from tasks import InputError, Task


def open(
    what: Any,
    task: Task | None = None,
    *,
    examples: int = 512,
    seed: int = 0,
    tolerance: float | None = None,
    device: str = "auto",
    progress: Progress = progress_bar,
) -> "Workbench":
    """Open a trained model on a workbench.

    Args:
        what: a shipped name (`small`), a checkpoint file, a run folder, a loaded `Checkpoint`, or
            any hooked model, which then needs its task.
        task: what the model is asked; known for checkpoints.
        examples: how many examples every number is measured on.
        seed: which ones.
        tolerance: the loss that a working circuit stays below; by default the task's.
        device: `auto`, `cpu` or `cuda`, for checkpoints; a model stays where it is.
        progress: wraps an iterable to show a bar, as `(items, text)`.

    Raises:
        InputError: no such checkpoint, a model without a task, or a number out of range.
    """
    name, training = type(what).__name__, {}
    if not hasattr(what, "run_with_hooks"):
        # Checkpoints are HookedTransformers, which TransformerLens 4 lacks; bridges need none.
        from retrieval_interp.storage.checkpoint import Checkpoint, load_checkpoint
        from retrieval_interp.training.device import choose_device

        if isinstance(what, (str, Path)):
            if len(str(what)) > 4000:
                raise InputError(f"expected the name of a checkpoint, found {str(what)!r:.40}...")
            what = load_checkpoint(str(what), choose_device(device))
        if isinstance(what, Checkpoint):
            if task is not None:
                raise InputError("task: expected none for a checkpoint, which has its own")
            name, task, training, what = what.name, what.task, what.training, what.model
    if task is None:
        raise InputError(
            f"expected a task with a model that is no checkpoint ({name}): ri.open(model, task)"
        )
    if not isinstance(task, Task):
        raise InputError(f"expected a task, an instance of ri.Task, found {task!r:.60}")
    if not hasattr(what, "run_with_hooks") or not hasattr(what, "cfg"):
        raise InputError(
            f"expected a hooked model (HookedTransformer, TransformerBridge), found {name}"
        )
    if tolerance is None:
        tolerance = task.tolerance
    return Workbench(what, task, name, training, examples, seed, tolerance, progress)


class Workbench:
    """A model on the workbench, and the circuit supposed so far.

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
        self._score: CircuitScore | None = None
        self.watchers: weakref.WeakSet[Any] = weakref.WeakSet()

    # What is there

    @property
    def circuit(self) -> Circuit:
        """The circuit supposed so far; drawn when displayed."""
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
        return View(
            self.name,
            f"<p><b>{escape(self.name)}</b>: {escape(describe(self.model, self.task))}</p>"
            f"<p>{escape(self._state())}</p>{self._drawing()}",
            "",
        )._repr_html_()

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
        layers = self.model.cfg.n_layers
        return draw_circuit(self.circuit, layers, self.order, task=self.task)

    def _drawing(self) -> str:
        return f'<div class="scroll">{self.drawing()}</div>'

    # Looking

    def attention(
        self,
        layer: int | None = None,
        examples: int | Sequence[int] = (0, 1, 2, 3),
        with_circuit: bool = False,
    ) -> View:
        """Attention on some examples: circuitsvis, with roles as tokens.

        Args:
            layer: which layer; default all.
            examples: which examples of the batch to choose from.
            with_circuit: show it with the circuit in place; default the intact model's.

        Returns:
            A view whose `data` is the attention, [example head dest src].

        Raises:
            InputError: no such layer or example.
        """
        return attention_view(
            self.model,
            self.task,
            self.batch,
            list(examples) if isinstance(examples, Iterable) else [examples],
            None if layer is None else [layer],
            self.circuit if with_circuit else None,
        )

    def roles(self, layer: int | None = None, with_circuit: bool = False) -> View:
        """Mean attention by dest and source role, a heat map a head; the circuit's paths framed.

        Args:
            layer: which layer; default all.
            with_circuit: show it with the circuit in place; default the intact model's.

        Returns:
            A view whose `data` is the attention, [layer head dest src].

        Raises:
            InputError: no such layer.
        """
        n_layers = self.model.cfg.n_layers
        if layer is not None and (type(layer) is not int or not 0 <= layer < n_layers):
            raise InputError(f"layer: expected 0 to {n_layers - 1}, found {layer!r:.40}")
        attention, caption = self.intact_attention, ""
        if with_circuit:
            with ablated(self.model, self.circuit, self.batch):
                attention = mean_attention(self.model, self.batch).cpu()
            caption = " with the circuit in place"
        paths = [*self.circuit.paths(), *self.circuit.enabling]
        if layer is not None:
            attention = attention[layer : layer + 1]
        return role_maps(attention, self.task, self.order, paths, caption, layer or 0)

    # Supposing

    def suppose(self, *lines: str | Circuit) -> View:
        """Suppose what some heads do, and measure it.

        Args:
            lines: `L3.H0 uniform` (or identity, role-mean, original) replaces a head;
                `L1.H0 one-hot s0<-s2 s4<-s6` gives it these paths; `L1.H0 s0<-s2` adds a path to
                those that it has, and where its role has another source, they share. Or a whole
                circuit.

        Returns:
            A view of what changed; its `data` is the loss.

        Raises:
            InputError: not of that form, or a head, role or path that is not there; then nothing
                has changed.
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

    def _change(self, circuit: Circuit) -> View:
        return self._changed_from(self._supposed.take(circuit))

    def _changed_from(self, before: Step) -> View:
        for watcher in list(self.watchers):
            watcher.refresh()
        changes = circuit_diff(before.circuit, self.circuit) or ["nothing changed"]
        line = f"{self._state()} (was {before.loss:.4f})"
        html = "".join(f"<div><code>{escape(change)}</code></div>" for change in changes)
        return View(
            "What was supposed",
            f"{html}<p>{escape(line)}</p>{self._drawing()}",
            "\n".join([*changes, line]),
            self.loss,
        )

    # Scoring and finding

    def score(self) -> View:
        """What the circuit so far is worth: every head, every path twice, a control.

        Returns:
            A view whose `data` is the `CircuitScore`. With nothing supposed it scores the intact
            model, and says so.
        """
        from retrieval_interp.views.report import drawing_html, tables_html, verdict_html

        score = self._scored()
        said = textwrap.fill(verdict(score, self.task), 100)
        note = ""
        if not self.circuit.mechanisms:
            note = "Nothing is supposed yet: these are the intact model's numbers."
        html = (
            (f"<p>{note}</p>" if note else verdict_html(score, self.task))
            + (drawing_html(score, self.model, self.task, self.batch) if not note else "")
            + tables_html(score, self.task)
            + f'<p class="soft">{escape(scale(self.task))}; {score.examples} examples, seed '
            f"{self.seed}.</p>"
        )
        text = "\n".join(
            [note] * bool(note) + [score_table(score, self.task)] + [said] * (not note)
        )
        return View(f"Circuit of {self.name}", html, text, score)

    def _scored(self) -> CircuitScore:
        self._supposed.check_unchanged()
        asked = (self.circuit, self.tolerance)
        if self._score is None or (self._score.circuit, self._score.tolerance) != asked:
            self._score = score_circuit(
                self.model,
                self.task,
                self.circuit,
                self.batch,
                self.tolerance,
                progress=self.progress,
            )
        return self._score

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
        view = self._change(found)
        if is_unlearned(self.intact_loss, self.task):
            said = (
                f"No circuit to find: the model has not learned the task. Its {self.task.loss_name}"
                f" of {self.intact_loss:.4f} is not clearly below the plateau."
            )
            return replace(view, html=f"<p>{escape(said)}</p>{view.html}", text=f"{said}\n{view}")
        return view

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

    def report(self, path: str | Path) -> Path:
        """Score the circuit and write the report of `ablate`: one HTML page, no network.

        Raises:
            InputError: the file cannot be written.
        """
        from retrieval_interp.views.report import render_report

        path = Path(path)
        check_writable(path)
        page = render_report(
            self._scored(),
            self.model,
            self.task,
            name=self.name,
            seed=self.seed,
            command=(
                f"ri.open({self.name!r}, examples={len(self.batch)}, seed={self.seed}, "
                f"tolerance={self.tolerance:g}).report({str(path)!r})"
            ),
            training=self.training,
        )
        write_whole(path, page)
        return path

    def explore(self) -> Any:
        """The explorer: a widget to click circuits together.

        Returns:
            The widget, whose circuit is this workbench's; without anywidget a static view that
            says so.
        """
        try:
            from retrieval_interp.notebook.explorer import Explorer
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in ("anywidget", "ipywidgets", "traitlets"):
                raise
            word = (
                "the explorer needs anywidget, which is not installed: pip install "
                "'retrieval-interp[notebook]'; until then suppose() and undo() do the same"
            )
            return View(
                f"Circuit of {self.name}",
                f"<p><b>{escape(word)}</b></p>{self._repr_html_()}{self.roles().html}",
                f"{word}\n{self!r}\n{self.roles().text}",
            )
        return Explorer(self)
