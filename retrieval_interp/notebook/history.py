"""The circuits supposed of a model, one after another, each with its loss; with undo."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from circuits import Circuit, Head, HeadPath, Scorer, mean_attention
from circuits.attention import check_paths
from circuits.circuit import ORIGINAL, tidy
from circuits.discovery.candidates import role_mean
from circuits.hooks.points import is_causal
from circuits.notation import suppose
from circuits.scores.scorer import standard_error
from tasks import Batch, InputError, Task


class Step(NamedTuple):
    """A supposed circuit, its loss and the standard error of the loss."""

    circuit: Circuit
    loss: float
    se: float


class Suppositions:
    """The circuits supposed of one model, each measured on one batch.

    Attributes:
        model: the hooked model.
        batch: the examples that losses are measured on.
        scorer: measures losses; keeps what the next, similar circuit can reuse.
        steps: from the intact model to the current circuit.
    """

    def __init__(self, model: Any, task: Task, batch: Batch):
        self.model, self.batch = model, batch
        self.scorer = Scorer(model, task, batch)
        self.steps = [self._measured(self.scorer.empty_circuit)]
        self._model_as_opened = self._fingerprint()

    @property
    def last(self) -> Step:
        """The current circuit."""
        return self.steps[-1]

    @property
    def heads(self) -> list[Head]:
        """All heads of the model."""
        cfg = self.model.cfg
        return [Head(layer, head) for layer in range(cfg.n_layers) for head in range(cfg.n_heads)]

    @cached_property
    def intact_attention(self) -> Float[Tensor, "layer head dest src"]:
        """Mean attention by role of the intact model, on the CPU."""
        return mean_attention(self.model, self.batch).cpu()

    def with_lines(self, lines: Sequence[str | Circuit]) -> Circuit:
        """The current circuit changed by some lines, not yet taken.

        Raises:
            InputError: not a line, or a head, role or path that does not exist.
        """
        circuit = self.last.circuit
        for line in lines:
            if not isinstance(line, (str, Circuit)):
                raise InputError(f"expected lines such as L1.H0 s0<-s2, found {line!r:.60}")
            circuit = line if isinstance(line, Circuit) else self._with_line(circuit, line)
        return circuit

    def without(self, path: str | HeadPath) -> Circuit:
        """The current circuit without one path; a head without paths becomes original.

        Raises:
            InputError: the circuit has no such path.
        """
        paths = {str(other): other for other in self.last.circuit.paths()}
        key = " ".join(str(path).split())
        if key not in paths:
            known = ", ".join(paths) or "none"
            raise InputError(f"expected a path of the circuit ({known}), found {key!r:.60}")
        head = paths[key].head
        smaller = self.last.circuit.without(paths[key])
        kept = tidy(smaller[head]) if smaller[head].paths else ORIGINAL
        return smaller.replace(head, kept)

    def take(self, circuit: Circuit) -> Step:
        """Make a circuit the current one, and return the step before.

        Raises:
            InputError: it does not fit; then nothing changes.
        """
        self.check_unchanged()
        before = self.last
        if circuit != before.circuit:
            self.steps.append(self._measured(circuit))
        return before

    def undo(self) -> Step:
        """Go one step back, and return the step undone.

        Raises:
            InputError: there is none.
        """
        if len(self.steps) == 1:
            raise InputError("undo: expected a change to take back, found none")
        undone = self.steps[-1]
        self.scorer.rebase(self.steps[-2].circuit)
        self.steps.pop()
        return undone

    def check_unchanged(self) -> None:
        """Refuse to measure a model that has changed since it was opened.

        Raises:
            InputError: a weight was written to, or a hook was added or removed.
        """
        if self._fingerprint() != self._model_as_opened:
            raise InputError(
                "expected the model as it was opened, found other weights or hooks; open it again"
            )

    def _fingerprint(self) -> tuple[Any, ...]:
        points = getattr(self.model, "hook_dict", {}).values()
        hooked = tuple(id(point) for point in points if point.has_hooks())
        return hooked, tuple(weight._version for weight in self.model.parameters())

    def _measured(self, circuit: Circuit) -> Step:
        loss = self.scorer.rebase(circuit)
        return Step(circuit, loss, standard_error(self.scorer.base_losses.mean(dim=1)))

    def _with_line(self, circuit: Circuit, line: str) -> Circuit:
        words = line.split()
        if words[1:] == ["role-mean"]:  # the only mechanism that has to be measured
            head = self._checked(Head.parse(words[0]))
            return circuit.replace(head, role_mean(self.intact_attention[head]))
        supposed = suppose(circuit, line)
        head = self._checked(Head.parse(words[0]))
        check_paths(supposed[head].paths, self.batch.roles, is_causal(self.model), f"{head}: ")
        return supposed

    def _checked(self, head: Head) -> Head:
        cfg = self.model.cfg
        if not (head.layer < cfg.n_layers and head.head < cfg.n_heads):
            raise InputError(
                f"expected a head from {self.heads[0]} to {self.heads[-1]}, found {head}"
            )
        return head
