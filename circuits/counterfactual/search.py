"""Which heads, rows and paths have to keep their own attention.

1. Measure the metric with everything kept and with nothing kept; stop where they are alike.
2. Estimate what every unit brings (`units`).
3. Heads: a beginning of the ranking that keeps the asked share, by bisection; then take away what
   is not needed, the least first, several at once while that works. Exact runs decide every step.
4. The same with rows, those of the kept heads first; then with paths, those of the kept rows first.
"""

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.counterfactual.units import (
    LEVELS,
    Estimates,
    MetricTask,
    Unit,
    estimate_units,
    keeping,
    losing,
)
from retrieval_interp.circuits.hooks import is_causal
from retrieval_interp.circuits.runs.means import standard_error
from retrieval_interp.circuits.scores.control import allowed_paths
from retrieval_interp.circuits.scores.scorer import Scorer, heads_of, uninformed_loss
from retrieval_interp.tasks import Batch, InputError

_FEW = 48  # examples of estimates
_SEARCHING = 0.6  # part of the time; the rest is for measuring what was found
_COARSE = 8  # the bisection ends where this part of its length is left
_LEAST = 0.1  # part of what the model knows that the counterfactual has to take away
_WIDER = 4  # a level is given up if it needs so many times the units of the one before ...
_LEAST_TRIED = 24  # ... and more than so many ...
_MANY = 100  # ... or so many of those within them


class Share(NamedTuple):
    """A share of what the counterfactual takes away, and its standard error over examples."""

    share: float
    se: float


class OutOfTime(Exception):
    """The time of a search is over."""


class Recovery:
    """How much of the metric circuits recover, on one set of examples.

    recovered(C) = (M(C) - M(nothing kept)) / (M(intact) - M(nothing kept))
    """

    def __init__(self, model: Any, task: MetricTask, batch: Batch):
        self.model, self.batch, self.deadline = model, batch, math.inf
        self.scorer, self.heads = Scorer(model, task, batch), heads_of(model)
        self.empty, self.runs = self.scorer.empty_circuit, 0
        self.intact = -self.scorer.base_losses[:, 0]
        self.nothing = self.metric(keeping(self.empty, self.heads, ()))
        self.gap = float((self.intact - self.nothing).mean())

    def check_gap(self) -> None:
        """Check that the counterfactual takes away a part of what the model knows.

        That is the loss of knowing nothing minus its own, or else the metric of the intact model.
        """
        task, intact, nothing = self.scorer.task, self.intact, self.nothing
        knows = abs(float(intact.mean()))
        if isinstance(task, MetricTask) and task.is_loss:
            blind = uninformed_loss(self.model, task.task, self.batch, self.scorer.each)
            knows = blind.loss + float(intact.mean())
        least = max(2 * standard_error(intact - nothing), _LEAST * knows)
        if not self.gap > least:
            raise InputError(
                f"expected a metric that falls by more than {least:.3g} where attention is the "
                f"counterfactual's, found {float(intact.mean()):.4g} in the intact model and "
                f"{float(nothing.mean()):.4g}; there is nothing to recover, use another "
                "counterfactual"
            )

    def metric(self, circuit: Circuit) -> Float[Tensor, " batch"]:
        """The metric of every example."""
        if monotonic() > self.deadline:
            raise OutOfTime
        self.runs += 1
        return -self.scorer.losses(circuit)[:, 0]

    def around(self, units: Sequence[Unit] | None) -> None:
        """Run only what differs from these units being kept (None: all), from now on."""
        kept = self.empty if units is None else keeping(self.empty, self.heads, units)
        self.scorer.rebase(kept)

    def kept(self, units: Sequence[Unit]) -> Share:
        """What is recovered by keeping these units."""
        return self.share(self.metric(keeping(self.empty, self.heads, units)))

    def without(self, units: Sequence[Unit]) -> Share:
        """What is recovered by keeping everything but these units."""
        return self.share(self.metric(losing(self.empty, units)))

    def share(self, metric: Float[Tensor, " batch"]) -> Share:
        """The metric as a share of the gap."""
        share = float((metric - self.nothing).mean()) / self.gap
        residual = (metric - self.nothing) - share * (self.intact - self.nothing)
        return Share(share, standard_error(residual) / self.gap)

    def holds(self, units: Sequence[Unit], keep: float) -> bool:
        """Whether these units keep the asked share, by two standard errors."""
        return self._side(keeping(self.empty, self.heads, units), keep) > 0

    def needs(self, units: Sequence[Unit], keep: float) -> bool | None:
        """Whether the model without these units falls below the share; None if that is not clear.

        Both by two standard errors.
        """
        side = self._side(losing(self.empty, units), keep)
        return None if side == 0 else side < 0

    def _side(self, circuit: Circuit, keep: float) -> int:
        """On which side of the share a circuit is, 1 or -1, or 0 within two standard errors."""
        excess = (self.metric(circuit) - self.nothing) - keep * (self.intact - self.nothing)
        mean, margin = float(excess.mean()), 2 * standard_error(excess)
        return (mean >= margin) - (mean <= -margin)


@dataclass(frozen=True)
class Level:
    """What a search found at one level: `heads`, `rows` or `paths`."""

    name: str
    units: tuple[Unit, ...]  # the most important by estimate first


class KeepSearch:
    """A search for what has to keep its own attention; goes on while it is iterated over.

    Each level that was found is in `levels`; `missing` says what is not, and why.

    Args:
        model: a hooked model; left unchanged.
        task: gives the metric.
        batch: the examples that decide, with a counterfactual.
        keep: the share of the metric that has to be recovered.
        upto: the last level.
        time: seconds, of which three fifths are for the search; `deadline` is when all are over.
    """

    def __init__(
        self,
        model: Any,
        task: MetricTask,
        batch: Batch,
        keep: float = 0.9,
        upto: str = "paths",
        time: float | None = None,
    ):
        if not 0 < keep < 1:
            raise InputError(f"keep: expected a share above 0 and below 1, found {keep:g}")
        if upto not in LEVELS:
            raise InputError(f"upto: expected one of {', '.join(LEVELS)}, found {upto!r:.40}")
        limit, start = math.inf if time is None else time, monotonic()
        self._until, self.deadline = start + _SEARCHING * limit, start + limit
        self.model, self.task, self.keep, self.upto = model, task, keep, upto
        self.recovery = Recovery(model, task, batch)
        self.recovery.check_gap()
        self.levels: list[Level] = []
        self.estimates: Estimates | None = None
        self.missing = "the search was cancelled"
        self._best: tuple[Unit, ...] = ()

    def __iter__(self) -> Iterator[str]:
        self.recovery.deadline = self._until
        try:
            yield "estimating heads, rows and paths"
            self.estimates = estimate_units(self.model, self.task, self.recovery.batch[:_FEW])
            for level in LEVELS[: LEVELS.index(self.upto) + 1]:
                self._best = ()
                units = yield from self._level(level, self.estimates)
                if units is None:
                    break
                self.levels.append(Level(level, units))
            else:
                self.missing = ""
        except OutOfTime:
            self.missing = "the time limit was reached; fewer units may do"
            if self._best:
                self.levels.append(Level(level, self._best))
        finally:
            self.recovery.deadline = math.inf

    def _level(
        self, level: str, estimates: Estimates
    ) -> Generator[str, None, tuple[Unit, ...] | None]:
        starts = self._starts(level, estimates)
        yield f"{level}: as few as do"
        order = next((units for units in starts if self.recovery.holds(units, self.keep)), None)
        if order is None:
            most = max(map(len, starts))
            self.missing = f"no {most} {level} keep {self.keep:.0%} of what is lost"
            return None
        low, high = 0, len(order)  # low does not hold, high does; what is too many goes below
        while high - low > max(1, high // _COARSE):
            middle = (low + high) // 2
            yield f"{level}: {middle}"
            holds = self.recovery.holds(order[:middle], self.keep)
            low, high = (low, middle) if holds else (middle, high)
        self._best = tuple(order[:high])
        self.recovery.around(self._best)
        left, size = list(reversed(self._best)), 2
        while left and len(self._best) > 1:
            yield f"{level}: {len(self._best)}"
            without = left[: min(size, len(self._best) - 1)]
            fewer = tuple(unit for unit in self._best if unit not in without)
            if self.recovery.holds(fewer, self.keep):
                left, size, self._best = left[len(without) :], 2 * size, fewer
                self.recovery.around(fewer)
            elif len(without) > 1:
                size = len(without) // 2
            else:
                left = left[1:]
        return self._best

    def _starts(self, level: str, estimates: Estimates) -> list[list[Unit]]:
        """Units to begin with, best estimates first; another list where one does not hold.

        Those of the level before that bring something; others that do as well; all of the level
        before, as a saturated model has no slopes.
        """
        if not self.levels:
            return [estimates.units(level)]
        before = self.levels[-1].units
        units = estimates.units(level, before)
        if level == "paths":
            allowed = set(allowed_paths(self.recovery.batch, is_causal(self.model)))
            units = [unit for unit in units if unit[1:] in allowed]
        within = {unit[: LEVELS.index(level)] for unit in before}
        inside = [unit for unit in units if unit[: LEVELS.index(level)] in within]
        good = [unit for unit in inside if estimates.of(unit) > 0]
        more = [unit for unit in units if estimates.of(unit) > 0]
        wider = list(dict.fromkeys([*good, *more]))[: max(_WIDER * len(before), _LEAST_TRIED)]
        return [units for units in (good, wider, inside[:_MANY]) if units]
