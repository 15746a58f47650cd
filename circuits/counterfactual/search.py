"""Which heads, rows and paths have to be kept, all others being the counterfactual's.

1. Measure the metric with everything kept and with nothing kept; stop where they are alike.
2. Estimate what every unit brings (`units`).
3. Heads: the shortest beginning of the ranking that keeps the asked share, doubled until it does on
   all prompts and then halved; then take away what is not needed, the least first, several at once
   while that works. Exact runs decide every step.
4. Prompts that decided nothing confirm it, or as many units are put back as keep the share there
   too. Otherwise it would be luck, after so many trials.
5. Where more than all is recovered, as what is not kept works against it, a few of those units are
   kept, too.
6. The same with rows, and then with paths: those of the units before and the best of others. A row
   that is lost with all its paths kept, as it attends to positions without a role, stays a row.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.counterfactual.mechanism import Patch
from retrieval_interp.circuits.counterfactual.units import (
    LEVELS,
    PROBABILITY,
    Estimates,
    MetricTask,
    Unit,
    estimate_units,
    keeping,
    losing,
    prompts_at_once,
)
from retrieval_interp.circuits.discovery.judge import OutOfTime
from retrieval_interp.circuits.hooks import has_hooks, heads_of
from retrieval_interp.circuits.losses import Scorer, standard_error
from retrieval_interp.circuits.tolerance import uninformed_loss
from retrieval_interp.tasks import Batch, InputError

_FEW = 16  # examples of estimates
_SEARCHING = 0.6  # part of the time; the rest is for measuring what was found
_COARSE = 8  # the bisection ends where this part of its length is left
_LEAST = 0.1  # part of what the model knows that the counterfactual has to take away
_LITTLE = 0.01  # share that it may cost to narrow some units
_MOST = 0.95  # of what the parts of a unit are estimated to bring; the rest is left out
_OTHERS = 24  # units of others that are tried
_EARLY = 8  # examples that may refuse a set before all are run, by three standard errors
_AGAINST = 8  # units that work against the metric and are kept at most where ...
_EXCESS = 1.1  # ... more than this share is recovered


class Share(NamedTuple):
    """A share of what the counterfactual takes away, and its standard error over examples."""

    share: float
    se: float


class Recovery:
    """How much of the metric circuits recover, on one set of examples.

    recovered(C) = (M(C) - M(nothing kept)) / (M(intact) - M(nothing kept))
    """

    def __init__(self, model: Any, task: MetricTask, batch: Batch, patch: Patch = "z"):
        self.model, self.batch, self.patch, self.deadline = model, batch, patch, math.inf
        self.scorer, self.heads = Scorer(model, task, batch), heads_of(model)
        self.empty, self.runs = self.scorer.empty_circuit, 0
        self.intact = -self.scorer.base_losses[:, 0]
        self.nothing = self.metric(self.keeping(()))
        self.gap = float((self.intact - self.nothing).mean())
        early = len(batch) >= 2 * _EARLY and not has_hooks(model)
        self.early = Recovery(model, task, batch[:_EARLY], patch) if early else None

    def check_gap(self) -> None:
        """Check that the counterfactual takes away a part of what the model knows.

        That is the loss of knowing nothing minus its own, or else the metric of the intact model;
        of a log probability a nat.
        """
        task, intact, nothing = self.scorer.task, self.intact, self.nothing
        knows, rule = abs(float(intact.mean())), "a tenth of what the model knows"
        if isinstance(task, MetricTask) and task.measures == PROBABILITY:
            knows, rule = 1.0, "a tenth of a nat"
        elif isinstance(task, MetricTask) and task.is_loss:
            blind = uninformed_loss(self.model, task.task, self.batch, self.scorer.each)
            knows = blind.loss + float(intact.mean())
        errors, part = 2 * standard_error(intact - nothing), _LEAST * knows
        if self.gap > max(errors, part):
            return
        least, advice = part, "use another counterfactual"
        if errors > part:
            least, rule = errors, "two standard errors of the fall"
            advice = "use more prompts or another counterfactual"
        raise InputError(
            f"why: expected a metric that falls by more than {least:.3g}, {rule}, where no head "
            f"keeps what it does on the prompt, found {float(intact.mean()):.4g} in the intact "
            f"model and {float(nothing.mean()):.4g}; there is nothing to recover, {advice}"
        )

    def metric(self, circuit: Circuit, stay: bool = False) -> Float[Tensor, " batch"]:
        """The metric of every example; if runs stay here, the next ones compute what differs."""
        if monotonic() > self.deadline:
            raise OutOfTime
        self.runs += 1
        if not stay:
            return -self.scorer.losses(circuit)[:, 0]
        self.scorer.rebase(circuit)
        return -self.scorer.base_losses[:, 0]

    def keeping(self, units: Sequence[Unit]) -> Circuit:
        """The circuit that keeps these units."""
        return keeping(self.empty, self.heads, units, self.patch)

    def kept(self, units: Sequence[Unit], stay: bool = False) -> Share:
        """What is recovered by keeping these units."""
        return self.share(self.metric(self.keeping(units), stay))

    def without(self, units: Sequence[Unit]) -> Share:
        """What is recovered by keeping everything but these units."""
        return self.share(self.metric(losing(self.empty, units, self.patch)))

    def share(self, metric: Float[Tensor, " batch"]) -> Share:
        """The metric as a share of the gap."""
        share = float((metric - self.nothing).mean()) / self.gap
        residual = (metric - self.nothing) - share * (self.intact - self.nothing)
        return Share(share, standard_error(residual) / self.gap)

    def holds(self, units: Sequence[Unit], keep: float) -> bool:
        """Whether these units keep the asked share, by a standard error; then runs stay there."""
        if self.early is not None:
            few = self.early.kept(units)
            if few.share + 3 * few.se < keep:
                return False
        before = self.scorer.kept, self.scorer.base_losses
        share = self.kept(units, stay=True)
        if share.share - share.se >= keep:
            if self.early is not None:
                self.early.kept(units, stay=True)
            return True
        self.scorer.kept, self.scorer.base_losses = before
        return False

    def needs(self, units: Sequence[Unit], keep: float) -> bool | None:
        """Whether the model without these units falls below the share; None if that is not clear.

        By three standard errors on the first examples, or else two on all.
        """
        share = Share(keep, math.inf)
        if self.early is not None:
            share = self.early.without(units)
        if abs(share.share - keep) < 3 * share.se:
            share = self.without(units)
            if abs(share.share - keep) < 2 * share.se:
                return None
        return share.share < keep


class KeepSearch:
    """A search for what has to be kept; goes on while it is iterated over.

    The examples of `batch` decide, those of `fresh` confirm; both have a counterfactual. Three
    fifths of the `time` are for the search; `deadline` is when all of it is over. `levels` has the
    units of each level that was found; `missing` says what is not, and why. `counterfactual` has
    the prompts themselves, for what is said of the result.
    """

    yields_states = True  # texts to show while it goes on (`progress_bar`)

    def __init__(
        self,
        model: Any,
        task: MetricTask,
        batch: Batch,
        fresh: Batch | None = None,
        keep: float = 0.9,
        upto: str = "paths",
        time: float | None = None,
        patch: Patch = "z",
        counterfactual: Batch | None = None,
    ):
        if not 0 < keep < 1:
            raise InputError(f"keep: expected a share above 0 and below 1, found {keep:g}")
        if upto not in LEVELS:
            raise InputError(f"upto: expected one of {', '.join(LEVELS)}, found {upto!r:.40}")
        limit, start = math.inf if time is None else time, monotonic()
        self._until, self.deadline = start + _SEARCHING * limit, start + limit
        self.model, self.task, self.keep, self.upto, self.patch = model, task, keep, upto, patch
        self.counterfactual = counterfactual
        drawn = [batch] if fresh is None else [batch, fresh]
        self.measured = [Recovery(model, task, examples, patch) for examples in drawn]
        self.measured[0].check_gap()
        self.paths = [where.paths for where in self.measured[0].scorer.where]  # by layer
        self.levels: dict[str, tuple[Unit, ...]] = {}
        self.estimates: Estimates | None = None
        self.missing = "the search was cancelled"
        self._held: list[tuple[Unit, ...]] = []  # what held at this level, ever less
        self._refused = set[frozenset[Unit]]()  # sets that did not hold

    def __iter__(self) -> Iterator[str]:
        for recovery in self.measured:
            recovery.deadline = self._until
        try:
            few = self.measured[0].batch[:_FEW]
            size = prompts_at_once(self.model, few)
            chunks = "" if size == len(few) else f", {size} prompts at a time"
            yield f"estimating heads, rows and paths{chunks}"
            asked = self.model, self.task, few, self.patch
            self.estimates = estimate_units(*asked, until=self._until)
            for name in LEVELS[: LEVELS.index(self.upto) + 1]:
                self._held = []
                yield from self._search(name, self.estimates)
                self.levels[name] = self._balanced(name, self._confirmed(), self.estimates)
            self.missing = ""
        except OutOfTime:
            self.missing = "the time limit was reached; fewer units may do"
            if self._held:
                self.levels[name] = self._held[-1]
        finally:
            for recovery in self.measured:
                recovery.deadline = math.inf

    def _search(self, level: str, estimates: Estimates) -> Iterator[str]:
        """Find as few units as hold."""
        *_, before = tuple(estimates.units("heads")), *self.levels.values()
        order, low = list(before), 0  # of `low` units is known that they do not hold
        if not self.levels:
            low = yield from self._doubled(order)
        else:
            parts = yield from self._narrowed(before, level, estimates)
            whole = {unit for unit in parts if unit.level != level}
            others = [
                unit
                for unit in estimates.units(level)
                if (unit.src is None or unit[1:] in self.paths[unit.head.layer])
                and unit not in parts
                and not whole & {Unit(unit.head), Unit(unit.head, unit.dest)}
            ]
            parts.sort(key=estimates.of, reverse=True)
            order = parts if self._holds(parts) else [*parts, *others[:_OTHERS]]
            if not self._held and not self._holds(order):
                self._held.append(before)
        order = list(self._held[-1])
        high = len(order)
        while high - low > max(1, high // _COARSE):
            middle = (low + high) // 2
            yield f"{level}: {middle}"
            low, high = (low, middle) if self._holds(order[:middle]) else (middle, high)

        def holds_without(removed: Sequence[Unit]) -> bool:
            return self._holds([unit for unit in self._held[-1] if unit not in removed])

        before = ()
        while before != self._held[-1]:  # what was needed may not be when others are gone
            before = self._held[-1]
            for _ in in_groups(list(reversed(before)), holds_without):
                yield f"{level}: {len(self._held[-1])}"

    def _doubled(self, order: Sequence[Unit]) -> Generator[str, None, int]:
        """Hold a beginning of the order, on all prompts; return a length that does not hold."""
        low = 0
        while 2 * low < len(order):
            size = max(1, 2 * low)
            yield f"heads: {size}"
            if self._holds(order[:size]):
                if self.measured[-1].kept(order[:size]).share >= self.keep:
                    return low
                self._held.clear()
            low = size
        self._held.append(tuple(order))
        return low

    def _holds(self, units: Sequence[Unit]) -> bool:
        """Whether units hold on the examples that decide; no set is tried twice."""
        if not units or frozenset(units) in self._refused:
            return False
        holds = self.measured[0].holds(units, self.keep)
        if holds:
            self._held.append(tuple(units))
        else:
            self._refused.add(frozenset(units))
        return holds

    def _balanced(
        self, level: str, units: tuple[Unit, ...], estimates: Estimates
    ) -> tuple[Unit, ...]:
        """The units with the fewest that work against them, where they recover more than all."""
        recovery = self.measured[0]
        against = [unit for unit in estimates.against(level) if unit not in units][:_AGAINST]
        if not units or recovery.kept(units).share <= _EXCESS:
            return units
        for count in range(1, len(against) + 1):
            if self.keep <= recovery.kept((*units, *against[:count])).share <= _EXCESS:
                return (*units, *against[:count])
        return units

    def _narrowed(
        self, units: Sequence[Unit], level: str, estimates: Estimates
    ) -> Generator[str, None, list[Unit]]:
        """Heads as their rows, or rows as their paths, where that holds or costs little."""
        parts = {unit: [unit] for unit in units}
        recovery = self.measured[0].early or self.measured[0]
        share = recovery.kept(units, stay=True).share

        def whole(changed: Mapping[Unit, list[Unit]]) -> list[Unit]:
            return [part for parts_of_it in {**parts, **changed}.values() for part in parts_of_it]

        def can_be(narrowed: Sequence[Unit], most: float = _MOST) -> bool:
            nonlocal share
            changed = {unit: self._parts(unit, estimates, most) for unit in narrowed}
            recovered = recovery.kept(whole(changed))
            if recovered.share - recovered.se < self.keep and recovered.share < share - _LITTLE:
                return len(narrowed) == 1 and most < 1 and can_be(narrowed, 1.0)
            parts.update(changed)
            share = recovered.share
            return True

        for _ in in_groups(units, can_be):
            yield f"{level}: narrowing"
        return whole({})

    def _parts(self, unit: Unit, estimates: Estimates, most: float) -> list[Unit]:
        """The rows of a head, or the paths of a row, that are estimated to bring most of it."""
        length = len(LEVELS[: LEVELS.index(unit.level) + 1])
        allowed = self.paths[unit.head.layer]
        places = {path[:length] for path in allowed if unit.dest in (None, path.dest)}
        parts = [Unit(unit.head, *place) for place in sorted(places)]
        parts.sort(key=lambda part: -abs(estimates.of(part)))
        sizes = [abs(estimates.of(part)) for part in parts]
        enough = (n for n in range(len(parts)) if sum(sizes[:n]) >= most * sum(sizes))
        return parts[: next(enough, len(parts)) if most < 1 else len(parts)]

    def _confirmed(self) -> tuple[Unit, ...]:
        """The fewest that held and keep the share on other prompts, or what all keep there."""
        held, fresh = self._held, self.measured[-1]
        if len(self.measured) == 1 or len(held) == 1 or fresh.kept(held[-1]).share >= self.keep:
            return held[-1]
        least = min(self.keep, fresh.kept(held[0]).share)

        def fails(units: Sequence[Unit]) -> bool:
            return fresh.kept(units).share < least

        first = bisect_left(held, True, lo=1, hi=len(held) - 1, key=fails)
        fewer = held[first]
        put_back = [unit for unit in held[first - 1] if unit not in fewer]
        count = bisect_left(
            range(len(put_back)), True, key=lambda n: not fails((*fewer, *put_back[:n]))
        )
        return (*fewer, *put_back[:count])


def in_groups(items: Sequence[Unit], accepts: Callable[[list[Unit]], bool]) -> Iterator[list[Unit]]:
    """Offer items, more at once while they are accepted and fewer where they are not."""
    remaining, size = list(items), 2
    while remaining:
        offered = remaining[:size]
        yield offered
        if accepts(offered):
            remaining, size = remaining[len(offered) :], 2 * size
        elif len(offered) > 1:
            size = len(offered) // 2
        else:
            remaining = remaining[1:]
