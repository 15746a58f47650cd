"""Whether circuits hold the loss, decided by exact losses; and what to try first, estimated.

The examples are looked at in parts, 16, 48, 128 and then all others, and a circuit that is far off
after some of them is not run on the rest.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuits.attribution.estimates import attribute
from circuits.circuit import Circuit
from circuits.runs.hook_runs import HookRuns
from circuits.runs.losses import standard_error
from circuits.scores.scorer import Scorer
from circuits.scores.tolerance import tolerance_of, uninformed_loss
from tasks import Batch, InputError, Task

_LOOKS = (16, 64, 192)  # examples after which a circuit may be given up
_ESTIMATED = 32  # examples of estimates
_FEW = 8  # so many trials are compared by exact losses, more by estimates
_FEW_FAST = 64  # the same where only what changes is run


class Judge:
    """Decides which circuits hold on one set of examples, and remembers."""

    def __init__(self, model: Any, task: Task, batch: Batch, tolerance: float | None):
        self.model, self.task, self.batch = model, task, batch
        ends = [*(count for count in _LOOKS if count < len(batch)), len(batch)]
        self.parts = [Scorer(model, task, batch[start:end]) for start, end in zip([0, *ends], ends)]
        self.known: dict[Circuit, bool] = {}
        self.holding: list[Circuit] = []  # those that are known to hold, as they were found
        self.before_look: Callable[[], None] = lambda: None  # may raise to end a search
        self._losses: dict[Circuit, list[Float[Tensor, " batch"]]] = {}
        self._estimable = True
        self.empty = self.parts[0].empty_circuit
        self.intact_loss = self.exact_loss(self.empty)
        self.uninformed_loss = uninformed_loss(model, task, self.exact_loss)
        if tolerance is None:
            tolerance = tolerance_of(task, self.intact_loss, self.uninformed_loss)
        self.tolerance = min(tolerance, self.uninformed_loss)

    def holds(self, circuit: Circuit) -> bool:
        """Whether the loss stays two standard errors below the tolerance.

        Circuits that are far off on the first examples are not run on all.
        """
        if circuit not in self.known:
            self.known[circuit] = self._is_close(circuit) and self._holds_on_all(circuit)
            if self.known[circuit]:
                self.holding.append(circuit)
        return self.known[circuit]

    def exceeds(self, circuit: Circuit) -> bool:
        """Whether the loss exceeds the tolerance, on all examples where the first do not tell.

        That it does not is never told from the first 16: rare large losses may be missing there.
        """
        for parts in range(1, len(self.parts) + 1):
            loss, error = self._look(circuit, parts)
            if loss - 4 * error > self.tolerance or (
                loss + 4 * error < self.tolerance and parts > 1
            ):
                break
        return loss > self.tolerance

    @property
    def scored(self) -> int:
        """Number of circuits whose loss was measured, on some or all examples."""
        return len(self._losses)

    def may_hold(self, circuit: Circuit) -> bool:
        """Whether it is not known that the circuit does not hold."""
        return self.known.get(circuit, True)

    def loss(self, circuit: Circuit) -> float:
        """The loss on the first 64 examples."""
        return self._look(circuit, 2)[0]

    def exact_loss(self, circuit: Circuit) -> float:
        """The loss on all examples."""
        return self._look(circuit, len(self.parts))[0]

    def go_on_from(self, circuit: Circuit) -> None:
        """Make a circuit the base of the runs to come, which differ little."""
        whole = len(self._losses.get(circuit, [])) == len(self.parts)
        for part in self.parts if whole else self.parts[:2]:
            part.rebase(circuit)

    def effects(self, circuit: Circuit, trials: Sequence[Circuit]) -> list[float]:
        """What trials do to the loss of a circuit, by which they are ordered.

        Estimated if they are many, else exact, on the first 16 examples.
        """
        few = _FEW if isinstance(self.parts[0].runs, HookRuns) else _FEW_FAST
        effects = self._estimates(circuit, trials) if len(trials) > few else None
        if effects is None:
            loss = self._look(circuit, 1)[0]
            effects = [self._look(trial, 1)[0] - loss for trial in trials]
        return effects

    def _look(self, circuit: Circuit, parts: int) -> tuple[float, float]:
        """The loss on the first parts of the examples, and its standard error."""
        seen = self._losses.setdefault(circuit, [])
        for part in self.parts[len(seen) : parts]:
            self.before_look()
            seen.append(part.losses(circuit).mean(dim=1))
        losses = torch.cat(seen[:parts])
        return float(losses.mean()), standard_error(losses)

    def _is_close(self, circuit: Circuit) -> bool:
        """Whether the first examples leave it open that the circuit holds."""
        looks = (self._look(circuit, parts) for parts in range(1, len(self.parts)))
        return all(loss - 4 * error <= self.tolerance for loss, error in looks)

    def _holds_on_all(self, circuit: Circuit) -> bool:
        loss, error = self._look(circuit, len(self.parts))
        return loss + 2 * error < self.tolerance

    def _estimates(self, circuit: Circuit, trials: Sequence[Circuit]) -> list[float] | None:
        """Estimated effects, or None if the loss has no gradient, or not a finite one."""
        if not self._estimable:
            return None
        try:
            attribution = attribute(self.model, self.task, self.batch[:_ESTIMATED], circuit)
        except InputError:
            self._estimable = False
            return None
        return attribution.effects(trials)
