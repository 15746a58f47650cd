"""Whether circuits hold the loss, decided by exact losses; and what to try first, estimated."""

from collections.abc import Sequence
from typing import Any

from circuits.attribution.estimates import attribute
from circuits.circuit import Circuit
from circuits.runs.losses import mean_loss, standard_error
from circuits.runs.role_runs import RoleRuns
from circuits.scores.scorer import Scorer
from circuits.scores.tolerance import tolerance_of, uninformed_loss
from tasks import Batch, InputError, Task

_SCOUTED = 64  # examples of quick looks and estimates
_FEW = 8  # so many trials are compared by exact losses, more by estimates
_FEW_FAST = 64  # the same where a run is fast, as all attention is fixed and sparse


class Judge:
    """Decides which circuits hold on one set of examples, and remembers."""

    def __init__(self, model: Any, task: Task, batch: Batch, tolerance: float | None):
        self.all = Scorer(model, task, batch)
        self.intact_loss = mean_loss(self.all.base_losses)
        self.uninformed_loss = uninformed_loss(self.all)
        if tolerance is None:
            tolerance = tolerance_of(task, self.intact_loss, self.uninformed_loss)
        self.tolerance = min(tolerance, self.uninformed_loss)
        self.scout = Scorer(model, task, batch[:_SCOUTED])
        self.known: dict[Circuit, bool] = {}
        self._scouted: dict[Circuit, tuple[float, float]] = {}
        self._exact: dict[Circuit, float] = {}
        self._estimable = True

    def holds(self, circuit: Circuit) -> bool:
        """Whether the loss stays two standard errors below the tolerance.

        Circuits that are far off on the first examples are not run on all.
        """
        if circuit not in self.known:
            loss, error = self._look(circuit)
            self.known[circuit] = loss - 4 * error <= self.tolerance and self._look_closely(circuit)
        return self.known[circuit]

    def exceeds(self, circuit: Circuit) -> bool:
        """Whether the loss exceeds the tolerance, on all examples where the first do not tell."""
        loss, error = self._look(circuit)
        if abs(loss - self.tolerance) <= 4 * error:
            loss = self.exact_loss(circuit)
        return loss > self.tolerance

    def may_hold(self, circuit: Circuit) -> bool:
        """Whether it is not known that the circuit does not hold."""
        return self.known.get(circuit, True)

    def loss(self, circuit: Circuit) -> float:
        """The loss on the first examples."""
        return self._look(circuit)[0]

    def exact_loss(self, circuit: Circuit) -> float:
        """The loss on all examples."""
        if circuit not in self._exact:
            self._exact[circuit] = self.all.loss(circuit)
        return self._exact[circuit]

    def go_on_from(self, circuit: Circuit) -> float:
        """Make a circuit the base of the runs to come, which differ little; returns its loss."""
        if self.known.get(circuit):
            self.all.rebase(circuit)
        return self.scout.rebase(circuit)

    def effects(self, circuit: Circuit, trials: Sequence[Circuit]) -> list[float]:
        """What trials do to the loss of a circuit: estimated if they are many, else exactly."""
        few = _FEW_FAST if self._runs_fast(circuit) else _FEW
        effects = self._estimates(circuit, trials) if len(trials) > few else None
        if effects is None:
            loss = self.loss(circuit)
            effects = [self.loss(trial) - loss for trial in trials]
        return effects

    def _look(self, circuit: Circuit) -> tuple[float, float]:
        """The loss on the first examples, and its standard error."""
        if circuit not in self._scouted:
            losses = self.scout.losses(circuit)
            self._scouted[circuit] = mean_loss(losses), standard_error(losses.mean(dim=1))
        return self._scouted[circuit]

    def _look_closely(self, circuit: Circuit) -> bool:
        losses = self.all.losses(circuit)
        self._exact[circuit] = mean_loss(losses)
        return self._exact[circuit] + 2 * standard_error(losses.mean(dim=1)) < self.tolerance

    def _runs_fast(self, circuit: Circuit) -> bool:
        cfg = self.scout.model.cfg
        heads = [(layer, head) for layer in range(cfg.n_layers) for head in range(cfg.n_heads)]
        slow = ("original", "cut", "uniform")
        return isinstance(self.scout.runs, RoleRuns) and all(
            circuit[head].kind not in slow for head in heads
        )

    def _estimates(self, circuit: Circuit, trials: Sequence[Circuit]) -> list[float] | None:
        """Estimated effects, or None if the loss has no gradient, or not a finite one."""
        if not self._estimable:
            return None
        try:
            scout = self.scout
            attribution = attribute(scout.model, scout.task, scout.batch, circuit)
        except InputError:
            self._estimable = False
            return None
        return attribution.effects(trials)
