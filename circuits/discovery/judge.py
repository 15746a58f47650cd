"""Whether circuits hold the loss, decided by exact losses; and what to try first, estimated.

The examples are looked at in parts, 16, 48, 128 and then all others, and a circuit that is far off
after some of them is not run on the rest.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.attribution import attribute
from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.runs.means import standard_error
from retrieval_interp.circuits.scores.scorer import Scorer
from retrieval_interp.circuits.scores.tolerance import Bar, has_learned, uninformed_loss
from retrieval_interp.tasks import Batch, InputError, Task

_LOOKS = (16, 64, 192)  # examples after which a circuit may be given up
_ESTIMATED = 32  # examples of estimates
_FEW = 8  # so many trials are compared by exact losses, more by estimates
_FEW_FAST = 64  # the same where only what changes is run
_LOOKED_AFTER = 64  # estimates after which a search may end


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
        intact = self._losses_of(self.empty, len(self.parts))
        self.uninformed = uninformed_loss(model, task, batch, self._all)
        self.bar = Bar(task, intact, self.uninformed.loss, tolerance)

    @property
    def learned(self) -> bool:
        """Whether the intact model does better than one that knows nothing, by two errors."""
        intact = self._all(self.empty)
        high = float(intact.mean()) + 2 * standard_error(intact)
        return has_learned(self.task, high, self.uninformed.loss)

    def holds(self, circuit: Circuit) -> bool:
        """Whether the loss stays two standard errors below the tolerance (`Bar`).

        Circuits that are far off on the first examples are not run on all.
        """
        if circuit not in self.known:
            self.known[circuit] = self.keeps(circuit)
            if self.known[circuit]:
                self.holding.append(circuit)
        return self.known[circuit]

    def keeps(self, circuit: Circuit) -> bool:
        """As `holds`, of a circuit that is no candidate."""
        return self._is_close(circuit) and self.bar.keeps(self._all(circuit))

    def exceeds(self, circuit: Circuit) -> bool:
        """Whether the loss exceeds the tolerance by two standard errors.

        That it does may be clear on the first examples. That it does not is decided on all, as rare
        large losses may be missing among the first.
        """
        return not self._is_close(circuit) or self.bar.breaks(self._all(circuit))

    @property
    def scored(self) -> int:
        """Number of circuits whose loss was measured, on some or all examples."""
        return len(self._losses)

    def may_hold(self, circuit: Circuit) -> bool:
        """Whether it is not known that the circuit does not hold."""
        return self.known.get(circuit, True)

    def loss(self, circuit: Circuit) -> float:
        """The loss on the first 64 examples."""
        return float(self._losses_of(circuit, 2).mean())

    def exact_loss(self, circuit: Circuit) -> float:
        """The loss on all examples."""
        return float(self._all(circuit).mean())

    def go_on_from(self, circuit: Circuit) -> None:
        """Make a circuit the base of the runs to come, which differ little."""
        whole = len(self._losses.get(circuit, [])) == len(self.parts)
        for part in self.parts if whole else self.parts[:2]:
            part.rebase(circuit)

    def effects(self, circuit: Circuit, trials: Sequence[Circuit]) -> list[float]:
        """What trials do to the loss of a circuit, by which they are ordered.

        Estimated if they are many, else exact, on the first 16 examples.
        """
        few = _FEW_FAST if self.parts[0].runs.compute_changes_only else _FEW
        effects = self._estimates(circuit, trials) if len(trials) > few else None
        if effects is None:
            first, *rest = (self._losses_of(each, 1).mean() for each in (circuit, *trials))
            effects = [float(loss - first) for loss in rest]
        return effects

    def _losses_of(self, circuit: Circuit, parts: int) -> Float[Tensor, " few"]:
        """Each example's loss, on the first parts of the examples."""
        seen = self._losses.setdefault(circuit, [])
        for part in self.parts[len(seen) : parts]:
            self.before_look()
            seen.append(part.losses(circuit).mean(dim=1))
        return torch.cat(seen[:parts])

    def _all(self, circuit: Circuit) -> Float[Tensor, " batch"]:
        return self._losses_of(circuit, len(self.parts))

    def _is_close(self, circuit: Circuit) -> bool:
        """Whether the first examples leave it open that the circuit holds."""
        looks = (self._losses_of(circuit, parts) for parts in range(1, len(self.parts)))
        return all(self.bar.above(losses, -4.0) <= 0 for losses in looks)

    def _estimates(self, circuit: Circuit, trials: Sequence[Circuit]) -> list[float] | None:
        """Estimated effects, or None if the loss has no gradient, or not a finite one."""
        if not self._estimable:
            return None
        self.before_look()
        try:
            attribution = attribute(self.model, self.task, self.batch[:_ESTIMATED], circuit)
        except InputError:
            self._estimable = False
            return None
        effects: list[float] = []
        for start in range(0, len(trials), _LOOKED_AFTER):
            self.before_look()
            effects += attribution.effects(trials[start : start + _LOOKED_AFTER])
        return effects
