"""Search for the fewest heads, rows and paths to keep while all others are patched.

A set of units *holds* if it recovers the requested share of the metric on the examples that decide,
while everything else is patched from the counterfactual prompt. Exact runs decide every step:

1. Measure the metric with everything kept and with nothing kept; stop if they hardly differ.
2. Estimate what every unit contributes, which gives a ranking (`units`).
3. Heads: find the shortest prefix of the ranking that holds, by doubling and then bisection. Then
   remove what is not needed, the smallest estimates first, several at once while that works.
4. Confirm it on fresh examples, on which units are put back until it holds there too: after so many
   trials a set may hold by luck.
5. If more than all is recovered, as some patched units work against it, keep a few of those, too.
6. The same with rows, then with paths: the parts of the units before, and the best of others. A row
   that recovers less with all its paths kept, as it attends to positions without a role, stays one.
"""

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from time import monotonic
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.counterfactual.units import (
    LEVELS,
    PROBABILITY,
    Contributions,
    MetricTask,
    Unit,
    estimate_units,
    keep_units,
    patch_units,
    prompts_at_once,
)
from retrieval_interp.circuits.deadline import Deadline, OutOfTime
from retrieval_interp.circuits.hooks import HookedModel, has_hooks, heads_of
from retrieval_interp.circuits.losses import Scorer, standard_error
from retrieval_interp.circuits.patched_heads import Patch
from retrieval_interp.circuits.tolerance import measure_uninformed
from retrieval_interp.tasks import Batch, InputError

_ESTIMATE_EXAMPLES = 16  # examples of the estimates
_SEARCH_SHARE = 0.6  # share of the time for the search; the rest is for measuring the result
_COARSENESS = 8  # the bisection ends when its range is this many times shorter than the prefix
_LEAST_GAP = 0.1  # share of what the model knows that patching everything has to take away
_SPLIT_LOSS = 0.01  # recovered share that may be lost when units are split into their parts
_MAIN_PARTS = 0.95  # of the sum of estimates over a unit's parts; parts beyond it are left out
_MOST_OTHERS = 24  # units at most that are tried besides the parts of those found before
_EARLY_EXAMPLES = 8  # examples that may reject a set before all are run, by three standard errors
_EXCESS = 1.1  # share from which on units with negative estimates are kept as well
_MOST_OPPONENTS = 8  # such units at most


class Share(NamedTuple):
    """A share of what the counterfactual takes away, and its standard error over examples."""

    share: float
    se: float


class Recovery:
    """Measures the share of a metric M that circuits recover, on one set of examples.

    recovered(C) = (M(C) - M(nothing kept)) / gap,  gap = M(intact) - M(nothing kept)
    """

    def __init__(self, model: HookedModel, task: MetricTask, batch: Batch, patch: Patch = "z"):
        self.model, self.batch, self.patch, self.deadline = model, batch, patch, Deadline()
        self.scorer, self.heads = Scorer(model, task, batch), heads_of(model)
        self.empty, self.runs = self.scorer.empty_circuit, 0
        self.intact = -self.scorer.base_losses[:, 0]
        self.none_kept = self.metric(self.keeping(()))
        self.gap = float((self.intact - self.none_kept).mean())
        early = len(batch) >= 2 * _EARLY_EXAMPLES and not has_hooks(model)
        self.early = Recovery(model, task, batch[:_EARLY_EXAMPLES], patch) if early else None

    def check_gap(self) -> None:
        """Check that patching everything takes away a tenth of what the model knows.

        What it knows is the intact metric; for a log probability one nat; for a loss, the loss of a
        model that knows nothing minus its own. Two standard errors of the gap, if they are more.
        """
        task, intact, none_kept = self.scorer.task, self.intact, self.none_kept
        knows, criterion = abs(float(intact.mean())), "a tenth of what the model knows"
        if isinstance(task, MetricTask) and task.metric_name == PROBABILITY:
            knows, criterion = 1.0, "a tenth of a nat"
        elif isinstance(task, MetricTask) and task.is_loss:
            scorer = self.scorer
            blind = measure_uninformed(self.model, task.task, self.batch, scorer.losses_by_example)
            knows = blind.loss + float(intact.mean())
        errors, part = 2 * standard_error(intact - none_kept), _LEAST_GAP * knows
        if self.gap > max(errors, part):
            return
        least_fall, advice = part, "use another counterfactual"
        if errors > part:
            least_fall, criterion = errors, "two standard errors of the fall"
            advice = "use more prompts or another counterfactual"
        raise InputError(
            f"expected a metric that falls by more than {least_fall:.3g}, {criterion}, where "
            f"no head keeps what it does on the prompt, found {float(intact.mean()):.4g} in the "
            f"intact model and {float(none_kept.mean()):.4g}; there is nothing to recover, {advice}"
        )

    def metric(self, circuit: Circuit, as_base: bool = False) -> Float[Tensor, " batch"]:
        """Return each example's metric; with `as_base` it is the base of later runs."""
        self.count_run()
        return -self.scorer.losses(circuit, as_base)[:, 0]

    def count_run(self) -> None:
        """Count one more run; raise OutOfTime after the deadline."""
        self.deadline.check()
        self.runs += 1

    def keeping(self, units: Sequence[Unit]) -> Circuit:
        """Return the circuit that keeps these units."""
        return keep_units(self.empty, self.heads, units, self.patch)

    def kept(self, units: Sequence[Unit], as_base: bool = False) -> Share:
        """Return what is recovered by keeping these units alone."""
        return self.share(self.metric(self.keeping(units), as_base))

    def without(self, units: Sequence[Unit]) -> Share:
        """Return what is recovered by keeping everything but these units."""
        return self.share(self.metric(patch_units(self.empty, units, self.patch)))

    def share(self, metric: Float[Tensor, " batch"]) -> Share:
        """Return the metric as a share of the gap, with its standard error."""
        share = float((metric - self.none_kept).mean()) / self.gap
        residual = (metric - self.none_kept) - share * (self.intact - self.none_kept)
        return Share(share, standard_error(residual) / self.gap)

    def holds(self, units: Sequence[Unit], keep: float) -> bool:
        """Whether units recover `keep`, by a standard error; then later runs start from them."""
        if self.early is not None:
            few = self.early.kept(units)
            if few.share + 3 * few.se < keep:
                return False

        def recover_enough(losses: Float[Tensor, "batch 1"]) -> bool:
            share = self.share(-losses[:, 0])
            return share.share - share.se >= keep

        self.count_run()
        holds = self.scorer.rebase_if(self.keeping(units), recover_enough)
        if holds and self.early is not None:
            self.early.kept(units, as_base=True)
        return holds

    def needs(self, units: Sequence[Unit], keep: float) -> bool | None:
        """Whether all but these units recover less than `keep`; None if not clear.

        Clear is a difference of three standard errors on the first 8 examples, or of two on all.
        """
        share = Share(keep, math.inf)
        if self.early is not None:
            share = self.early.without(units)
        if abs(share.share - keep) < 3 * share.se:
            share = self.without(units)
            if abs(share.share - keep) < 2 * share.se:
                return None
        return share.share < keep


def check_goal(keep: float, upto: str) -> None:
    """Refuse a share that cannot be recovered, and an unknown last level."""
    if not 0 < keep < 1:
        raise InputError(f"keep: expected a share above 0 and below 1, found {keep:g}")
    if upto not in LEVELS:
        raise InputError(f"upto: expected one of {', '.join(LEVELS)}, found {upto!r:.40}")


class KeepSearch:
    """A search for the units that have to be kept; it runs while it is iterated over.

    The examples of `batch` decide, those of `confirming` confirm; both have a counterfactual, and
    `counterfactual` has the prompts themselves, for `explain`. Three fifths of the `time`, in
    seconds, are for the search, the rest for `explain`, until `deadline`. `levels` has the units
    found, by level; `missing` says why the search ended early, if it did.
    """

    yields_states = True  # texts to show while it goes on (`progress_bar`)
    estimates: Contributions  # of all units, before the search

    def __init__(
        self,
        model: HookedModel,
        task: MetricTask,
        batch: Batch,
        confirming: Batch | None = None,
        keep: float = 0.9,
        upto: str = "paths",
        time: float | None = None,
        patch: Patch = "z",
        counterfactual: Batch | None = None,
    ):
        check_goal(keep, upto)
        seconds, start = math.inf if time is None else time, monotonic()
        self._searching = Deadline(start + _SEARCH_SHARE * seconds)
        self.deadline = Deadline(start + seconds)
        self.model, self.task, self.keep, self.upto, self.patch = model, task, keep, upto, patch
        self.counterfactual = counterfactual
        self.deciding, self.confirming = Recovery(model, task, batch, patch), None
        if confirming is not None:
            self.confirming = Recovery(model, task, confirming, patch)
        self.deciding.check_gap()
        self.paths = [layer.paths for layer in self.deciding.scorer.positions]  # by layer
        self.levels: dict[str, tuple[Unit, ...]] = {}
        self.missing = "the search was cancelled"
        self._held: list[tuple[Unit, ...]] = []  # sets that held at this level, ever smaller ones
        self._refused = set[frozenset[Unit]]()  # sets that did not hold

    @property
    def recoveries(self) -> list[Recovery]:
        """What measures on the examples that decide, and on those that confirm."""
        return [self.deciding] if self.confirming is None else [self.deciding, self.confirming]

    def free_runs(self) -> None:
        """Free the memory of runs; what was found stays, but the search cannot go on."""
        del self.deciding, self.confirming

    def __iter__(self) -> Iterator[str]:
        for recovery in self.recoveries:
            recovery.deadline = self._searching
        try:
            few = self.deciding.batch[:_ESTIMATE_EXAMPLES]
            size = prompts_at_once(self.model, few)
            chunks = "" if size == len(few) else f", {size} prompts at a time"
            yield f"estimating heads, rows and paths{chunks}"
            estimated = self.model, self.task, few, self.patch
            self.estimates = estimate_units(*estimated, deadline=self._searching)
            for name in LEVELS[: LEVELS.index(self.upto) + 1]:
                self._held, low = [], 0  # so many of the first units are known not to hold
                if self.levels:
                    yield from self._refine([*self.levels.values()][-1], name)
                else:
                    low = yield from self._double_prefix(self.estimates.units(name))
                yield from self._shorten(name, low)
                units = self._held[-1]
                if self.confirming is not None:
                    units = smallest_confirmed(self._held, self._recovered, self.keep)
                self.levels[name] = self._with_opponents(name, units)
            self.missing = ""
        except OutOfTime:
            self.missing = "the time limit was reached; fewer units may do"
            if self._held:
                self.levels[name] = self._held[-1]

    def _refine(self, coarser: tuple[Unit, ...], level: str) -> Iterator[str]:
        """Find units of a level that hold, within coarser ones if these suffice."""
        parts = yield from self._narrow(coarser, level)
        whole = {unit for unit in parts if unit.level != level}
        others = [
            unit
            for unit in self.estimates.units(level)
            if (unit.src is None or unit[1:] in self.paths[unit.head.layer])
            and unit not in parts
            and not whole & {Unit(unit.head), Unit(unit.head, unit.dest)}
        ]
        parts.sort(key=self.estimates.of, reverse=True)
        order = parts if self._holds(parts) else [*parts, *others[:_MOST_OTHERS]]
        if not self._held and not self._holds(order):
            self._held.append(coarser)

    def _shorten(self, level: str, low: int) -> Iterator[str]:
        """Take away what is not needed, first from the end by bisection, then anywhere."""
        order = list(self._held[-1])
        high = len(order)
        while high - low > max(1, high // _COARSENESS):
            middle = (low + high) // 2
            yield f"{level}: {middle}"
            low, high = (low, middle) if self._holds(order[:middle]) else (middle, high)

        def holds_without(removed: Sequence[Unit]) -> bool:
            return self._holds([unit for unit in self._held[-1] if unit not in removed])

        last_round: tuple[Unit, ...] = ()
        while last_round != self._held[-1]:  # a unit may be dispensable only once others are gone
            last_round = self._held[-1]
            for _ in in_groups(list(reversed(last_round)), holds_without):
                yield f"{level}: {len(self._held[-1])}"

    def _double_prefix(self, order: Sequence[Unit]) -> Generator[str, None, int]:
        """Double a prefix until it holds on all examples; return one that does not."""
        low = 0
        while 2 * low < len(order):
            size = max(1, 2 * low)
            yield f"heads: {size}"
            if self._holds(order[:size]):
                if self._recovered(order[:size]) >= self.keep:
                    return low
                self._held.clear()
            low = size
        self._held.append(tuple(order))
        return low

    def _holds(self, units: Sequence[Unit]) -> bool:
        """Whether units hold on the deciding examples; what failed is not run again."""
        if not units or frozenset(units) in self._refused:
            return False
        holds = self.deciding.holds(units, self.keep)
        if holds:
            self._held.append(tuple(units))
        else:
            self._refused.add(frozenset(units))
        return holds

    def _recovered(self, units: Sequence[Unit]) -> float:
        """Return what units recover on the examples that confirm, if there are any."""
        return (self.confirming or self.deciding).kept(units).share

    def _with_opponents(self, level: str, units: tuple[Unit, ...]) -> tuple[Unit, ...]:
        """If more than 1.1 is recovered, add few units with negative estimates."""
        recovery = self.deciding
        against = [unit for unit in self.estimates.against(level) if unit not in units]
        against = against[:_MOST_OPPONENTS]
        if not units or recovery.kept(units).share <= _EXCESS:
            return units
        for count in range(1, len(against) + 1):
            if self.keep <= recovery.kept((*units, *against[:count])).share <= _EXCESS:
                return (*units, *against[:count])
        return units

    def _narrow(self, units: Sequence[Unit], level: str) -> Generator[str, None, list[Unit]]:
        """Split heads into rows, or rows into paths, where the share hardly falls."""
        parts = {unit: [unit] for unit in units}
        recovery = self.deciding.early or self.deciding
        share = recovery.kept(units, as_base=True).share

        def all_parts(changed: Mapping[Unit, list[Unit]]) -> list[Unit]:
            return list(itertools.chain(*{**parts, **changed}.values()))

        def can_be(narrowed: Sequence[Unit], part: float = _MAIN_PARTS) -> bool:
            nonlocal share
            changed = {unit: self._main_parts(unit, part) for unit in narrowed}
            recovered = recovery.kept(all_parts(changed))
            if recovered.share - recovered.se < self.keep and recovered.share < share - _SPLIT_LOSS:
                return len(narrowed) == 1 and part < 1 and can_be(narrowed, 1.0)
            parts.update(changed)
            share = recovered.share
            return True

        for _ in in_groups(units, can_be):
            yield f"{level}: narrowing"
        return all_parts({})

    def _main_parts(self, unit: Unit, part: float) -> list[Unit]:
        """Return a head's rows, or a row's paths, with this part of all estimates."""
        length = len(LEVELS[: LEVELS.index(unit.level) + 1])
        allowed = self.paths[unit.head.layer]
        places = {path[:length] for path in allowed if unit.dest in (None, path.dest)}
        parts = [Unit(unit.head, *place) for place in sorted(places)]
        parts.sort(key=lambda part: -abs(self.estimates.of(part)))
        sizes = [abs(self.estimates.of(part)) for part in parts]
        enough = (n for n in range(len(parts)) if sum(sizes[:n]) >= part * sum(sizes))
        return parts[: next(enough, len(parts)) if part < 1 else len(parts)]


def smallest_confirmed(
    held: Sequence[tuple[Unit, ...]], recovered: Callable[[Sequence[Unit]], float], keep: float
) -> tuple[Unit, ...]:
    """Return the smallest set that recovers `keep` on other examples, too.

    `held` has ever smaller sets. If the last one fails, units of the one before are put back.
    """
    if len(held) == 1 or recovered(held[-1]) >= keep:
        return held[-1]
    wanted = min(keep, recovered(held[0]))

    def fails(units: Sequence[Unit]) -> bool:
        return recovered(units) < wanted

    first = bisect_left(held, True, lo=1, hi=len(held) - 1, key=fails)
    fewer = held[first]
    put_back = [unit for unit in held[first - 1] if unit not in fewer]
    count = bisect_left(
        range(len(put_back)), True, key=lambda n: not fails((*fewer, *put_back[:n]))
    )
    return (*fewer, *put_back[:count])


def in_groups(items: Sequence[Unit], accepts: Callable[[list[Unit]], bool]) -> Iterator[list[Unit]]:
    """Offer groups of items; double them when one is accepted, else halve them."""
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
