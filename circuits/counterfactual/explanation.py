"""The result of `why`: units measured on held-out examples.

`explain` measures, for each level (heads, rows, paths), what its units recover, what everything but
them recovers, and random sets of as many units. For each unit of the last level: what is recovered
without it, without its attention or its values alone; where its values come from (`origin`); and
which later units change without it (`scores.enabling`). For the intact model: which of these paths
it needs, in one head or in one of several. `views.why_text` puts these numbers in sentences.
"""

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.counterfactual.keep_search import KeepSearch, Recovery, Share
from retrieval_interp.circuits.counterfactual.origin import Origin, origins
from retrieval_interp.circuits.counterfactual.question import PromptQuestion
from retrieval_interp.circuits.counterfactual.units import LEVELS, MetricTask, Unit, patching_part
from retrieval_interp.circuits.deadline import OutOfTime
from retrieval_interp.circuits.discovery.needed import minimal_sets
from retrieval_interp.circuits.head_kinds import MOVER, head_name, holds_on_text
from retrieval_interp.circuits.hooks import HookedModel
from retrieval_interp.circuits.losses import (
    HookRuns,
    Measured,
    Progress,
    no_progress,
    standard_error,
)
from retrieval_interp.circuits.means import mean_attention
from retrieval_interp.circuits.patched_heads import Patch
from retrieval_interp.circuits.paths import Head, HeadPath, RolePath, attention_by_role
from retrieval_interp.circuits.scores.enabling import AttentionComparison, Enabled
from retrieval_interp.tasks import Batch, Task
from retrieval_interp.tasks.messages import shown

_LEAST_CHANGE = 0.01  # units that change the recovered share less are not described
_UNITS_SEEN_CLOSELY = 16  # run without attention, without values, and for `enables`
_LESS = 0.05  # a head attends "less" if its attention is lower than the counterfactual's by this
Needed = tuple[HeadPath, ...]  # one path in several heads; the model needs it in any one of them
_NEEDED_EXAMPLES = 16  # that tell what the intact model needs
_HEADS_PER_NEEDED_PATH = 8  # in which it may be needed: those with its largest estimates
_HITTING_SET_STEPS = 3  # at most, of the search for such sets (`minimal_sets`)
_ENABLING_EXAMPLES = 8  # that tell which units enable which
_LEAST_ESTIMATE = 0.02  # a path may be needed if its estimate is this share of the gap, or if ...
_LEAST_MOVE = 0.05  # ... its attention differs by this from that on the counterfactual


@dataclass(frozen=True)
class LevelScore:
    """A level's circuit on other examples."""

    name: str
    units: tuple[Unit, ...]
    kept: Share  # what its units recover
    complement: Share  # what all but them recover


@dataclass(frozen=True)
class UnitScore:
    """A unit of the last level.

    `without`, `without_attention` and `without_values` are what the circuit recovers when all that
    this unit writes is patched from the counterfactual prompt, or only its attention, or only its
    values. The last two are None, and `enables` is empty, except for the 16 units that matter most;
    they are also None if whole paths are not what is patched (`patch` other than `z`).
    """

    unit: Unit
    path: HeadPath | None  # its path, or of a head or row the one that contributes most of it
    kind: str  # what a head with that path is commonly called, or nothing
    attention: float  # along that path, in the intact model
    counterfactual_attention: float  # the same on the counterfactual prompts
    by_attention: float  # estimated contribution to the metric by where it looks ...
    by_values: float  # ... and by what it brings; the two add up
    estimate_se: float  # standard error of their sum over prompts
    stability: float  # share of bootstrap samples in which it is among the top units
    without: Share
    without_attention: Share | None
    without_values: Share | None
    origin: Origin | None  # where its contribution by values comes from
    enables: tuple[Enabled, ...]  # later units' paths that lose attention or values without it

    @property
    def looks_less(self) -> bool:
        """Whether its head attends less there than on the counterfactual prompts."""
        return self.attention < self.counterfactual_attention - _LESS


@dataclass(frozen=True, repr=False)
class Explanation:
    """Which heads, rows and paths an answer comes from."""

    task: Task
    batch: Batch  # on which everything was measured
    counterfactual: Batch  # the counterfactual prompts
    patch: Patch  # what was taken from the counterfactual prompts
    metric_name: str  # logit difference, log probability, minus the task's loss, or "metric"
    keep: float  # the share that was asked for
    intact: Measured  # the metric
    none_kept: Measured  # the metric where nothing is kept
    corrupted: Measured  # the metric on the counterfactual prompts themselves
    levels: tuple[LevelScore, ...]
    control: tuple[float, ...]  # what random sets of as many units of the last level recover
    units: tuple[UnitScore, ...]
    needed: tuple[Needed, ...]  # in the intact model
    circuit: Circuit  # of the last level
    decided_on: int  # examples
    on_the_same_examples: bool  # whether it was found and measured on the same examples
    runs: int  # of all prompts; those of 8 or 16 come on top
    unfinished: str  # why the search ended early, or found no more levels
    question: PromptQuestion | None = None  # of a single prompt: which word its answer depends on

    def enabled_by(self, head: str | Head) -> list[tuple[UnitScore, Enabled]]:
        """Return the units that change a head's attention, the largest change first."""
        wanted = Head.parse(head) if isinstance(head, str) else Head(*head)
        pairs = [(unit, later) for unit in self.units for later in unit.enables]
        pairs = [(unit, later) for unit, later in pairs if later.path.head == wanted]
        return sorted(pairs, key=lambda pair: pair[1].when_cut - pair[1].attention)

    @property
    def important_units(self) -> list[UnitScore]:
        """The units that change the recovered share by at least 0.01, most important first."""
        if not self.levels:
            return []
        kept = self.levels[-1].kept.share
        matter = [score for score in self.units if abs(kept - score.without.share) >= _LEAST_CHANGE]
        return sorted(matter, key=lambda score: score.without.share)

    def __repr__(self) -> str:
        return shown(self)


def explain(
    search: KeepSearch,
    batch: Batch,
    counterfactual: Batch,
    *,
    controls: int = 20,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Explanation:
    """Measure the units of a search that has ended, on other examples and their `counterfactual`.

    Frees the runs of the search. `controls` random sets of as many units are measured for
    comparison.
    """
    decided, task = search.deciding.batch, search.task
    decided_on = sum(len(recovery.batch) for recovery in search.recoveries)
    runs = sum(recovery.runs for recovery in search.recoveries)
    search.free_runs()
    recovery = Recovery(search.model, task, batch, search.patch)
    levels = tuple(
        LevelScore(
            name=name,
            units=units,
            kept=recovery.kept(units, as_base=True),
            complement=recovery.without(units),
        )
        for name, units in search.levels.items()
    )
    units = levels[-1].units if levels else ()
    recovery.deadline = search.deadline
    measurer = UnitMeasurer(search, recovery, units, decided, progress)
    missing = [search.missing] if search.missing else []
    try:
        measurer.score_units()
        measurer.measure_random_sets(controls, seed)
        measurer.find_needed()
    except (OutOfTime, KeyboardInterrupt):
        kind = levels[-1].name if levels else "units"
        missing.append(
            f"when it was stopped, {len(measurer.scores)} of the {len(units)} {kind} that were "
            "found had been tested (what comes back without this one), and, for comparison, "
            f"{len(measurer.control)} of {controls} random sets of as many"
        )
    searched = search.counterfactual
    same_prompts = searched is None or torch.equal(searched.inputs, counterfactual.inputs)
    return Explanation(
        task=task.task,
        batch=batch,
        counterfactual=counterfactual,
        on_the_same_examples=same_prompts and torch.equal(decided.inputs, batch.inputs),
        patch=search.patch,
        metric_name=task.metric_name,
        keep=search.keep,
        intact=Measured.of(recovery.intact),
        none_kept=Measured.of(recovery.none_kept),
        corrupted=Measured.of(_on_counterfactual(search.model, task, batch, counterfactual)),
        levels=levels,
        control=tuple(sorted(measurer.control)),
        units=tuple(measurer.scores.values()),
        needed=tuple(measurer.needed),
        circuit=recovery.keeping(units),
        decided_on=decided_on,
        runs=runs + recovery.runs,
        unfinished="; ".join(missing),
    )


def _on_counterfactual(
    model: HookedModel, task: MetricTask, batch: Batch, counterfactual: Batch
) -> Tensor:
    """Return the metric of the prompts' answers on the counterfactual prompts."""
    prompts = replace(counterfactual, targets=batch.targets, roles=batch.roles)
    runs = HookRuns(model, prompts, task.scored_roles)
    outputs = runs.base(Circuit({}, batch.roles.shape[-1])).outputs
    return task.metric(outputs.float(), prompts)


@dataclass
class UnitMeasurer:
    """Measures the units of a search's last level, as far as the time allows.

    Every step raises OutOfTime after the search's deadline, and keeps what it has measured.
    """

    search: KeepSearch
    recovery: Recovery
    units: Sequence[Unit]
    decided: Batch  # the examples of the search
    progress: Progress
    scores: dict[Unit, UnitScore] = field(default_factory=dict)
    control: list[float] = field(default_factory=list)  # what random sets recover
    needed: list[Needed] = field(default_factory=list)

    @cached_property
    def attention(self) -> tuple[Tensor, Tensor]:
        """The mean attention by role, of the intact model, and on the counterfactual prompts."""
        batch = self.recovery.batch
        layers = batch.counterfactual_activations or ()
        there = [attention_by_role(layer.pattern, batch.roles)[0] for layer in layers]
        return mean_attention(self.search.model, batch).cpu(), torch.stack(there).cpu()

    def score_units(self) -> None:
        """Score every unit; then the most important ones again, more closely."""
        search, recovery, units = self.search, self.recovery, self.units
        if not units:
            return
        estimates, (here, there) = search.estimates, self.attention
        names, paths = search.task.task.role_names, dict[Unit, HeadPath | None]()
        for unit in units:
            path = estimates.main_path(unit, search.paths[unit.head.layer])
            paths[unit] = None if path is None else HeadPath(path.head, path.path.named(names))
        main_paths = [path for path in dict.fromkeys(paths.values()) if path is not None]
        origin_of, stability = self._origins(main_paths), estimates.stability(units)
        for unit in self.progress(units, "leaving out one by one"):
            path, by_example = paths[unit], estimates.by_example(unit)
            by_attention, by_values = by_example.mean(1).tolist()
            self.scores[unit] = UnitScore(
                unit=unit,
                path=path,
                kind="" if path is None else self._common_name(path),
                attention=float(here[path.head][path.path]) if path else math.nan,
                counterfactual_attention=float(there[path.head][path.path]) if path else math.nan,
                by_attention=by_attention,
                by_values=by_values,
                estimate_se=standard_error(by_example.sum(0)),
                stability=stability[unit],
                without=recovery.kept([kept for kept in units if kept != unit]),
                without_attention=None,
                without_values=None,
                origin=None if path is None else origin_of.get(path),
                enables=(),
            )
        few = recovery.batch[:_ENABLING_EXAMPLES]
        keeping, roles = recovery.keeping(units), search.task.scored_roles
        comparison = AttentionComparison(search.model, few, keeping, roles)
        for score in self.progress(self._most_important(), "where or what, and for whom"):
            remaining = [kept for kept in units if kept != score.unit]
            self.scores[score.unit] = replace(
                score,
                without_attention=self._with_part_patched(score.unit, "pattern"),
                without_values=self._with_part_patched(score.unit, "v"),
                enables=tuple(comparison.enabled(recovery.keeping(remaining), main_paths)),
            )

    def measure_random_sets(self, count: int, seed: int) -> None:
        """Measure what random sets of as many heads, rows and paths recover."""
        recovery = self.recovery.early or self.recovery
        recovery.deadline = self.search.deadline
        draw, counts = random.Random(seed), Counter(unit.level for unit in self.units)
        for _ in self.progress(range(count if self.units else 0), "random sets"):
            chosen = list[Unit]()
            for length, level in enumerate(LEVELS):
                places = [sorted({path[:length] for path in paths}) for paths in self.search.paths]
                heads = self.recovery.heads
                every = [Unit(head, *place) for head in heads for place in places[head.layer]]
                chosen += draw.sample(every, min(counts[level], len(every)))
            self.control.append(recovery.kept(chosen).share)

    def find_needed(self) -> None:
        """Find in which heads the intact model needs the paths of the most important units.

        The first examples of the search decide, those measured here confirm.
        """
        important = self._most_important()
        paths = dict.fromkeys(score.path.path for score in important if score.path is not None)
        recoveries = []
        for batch in (self.decided, self.recovery.batch) if self.units else ():
            few = batch[:_NEEDED_EXAMPLES]
            recovery = Recovery(self.search.model, self.search.task, few, self.search.patch)
            recovery.deadline = self.search.deadline
            recovery.metric(recovery.empty, as_base=True)  # later runs start at the intact model
            recoveries.append(recovery)
        for path in self.progress(list(paths), "cutting paths in all heads"):
            self.needed += self._needed(path, recoveries)

    def _most_important(self) -> list[UnitScore]:
        """Return the 16 units without which least is recovered."""
        scores = self.scores.values()
        return sorted(scores, key=lambda score: score.without.share)[:_UNITS_SEEN_CLOSELY]

    def _origins(self, paths: Sequence[HeadPath]) -> dict[HeadPath, Origin]:
        """Find where the values of paths come from, on the examples of the estimates."""
        search, slopes = self.search, self.search.estimates.slopes
        few = self.decided[: slopes.shape[1]]
        if search.patch != "z" or search.counterfactual is None:
            return {}
        counterfactual = search.counterfactual[: len(few)]
        return origins(search.model, few, counterfactual, paths, slopes)

    def _common_name(self, path: HeadPath) -> str:
        """Name a path's head (induction head, ...) if it attends so on text, too."""
        model, task = self.search.model, self.search.task.task
        kind = head_name(path.path, task, self.recovery.batch)
        attention, tokenizer = self.attention[0][path.head], getattr(task, "tokenizer", None)
        if kind == MOVER and int(attention[path.path.dest].argmax()) != path.path.src:
            return ""
        on_text = tokenizer is None or holds_on_text(kind, path.head, model, tokenizer)
        return kind if on_text else ""

    def _with_part_patched(self, unit: Unit, patch: Patch) -> Share | None:
        """Return what units recover if one of them has its attention or values patched."""
        recovery = self.recovery
        if recovery.patch != "z":
            return None
        circuit = patching_part(recovery.empty, recovery.heads, self.units, unit, patch)
        return recovery.share(recovery.metric(circuit))

    def _needed(self, path: RolePath, recoveries: Sequence[Recovery]) -> Iterator[Needed]:
        """Find the smallest sets of heads in one of which the intact model needs this path.

        The first of `recoveries` decides, the others confirm.
        """
        estimates, deciding, keep = self.search.estimates, recoveries[0], self.search.keep
        change = self.attention[0] - self.attention[1]
        heads = [head for head in deciding.heads if path in self.search.paths[head.layer]]
        # Where attention is saturated, the gradient by it vanishes: so its change counts as well.
        units = [
            unit
            for unit in (Unit(head, *path) for head in heads)
            if abs(estimates.of(unit)) >= _LEAST_ESTIMATE * deciding.gap
            or abs(float(change[unit.head][path])) >= _LEAST_MOVE
        ]
        units = sorted(units, key=estimates.of, reverse=True)[:_HEADS_PER_NEEDED_PATH]
        if not units or deciding.needs(units, keep) is not True:
            return
        needed_sets = minimal_sets(
            units, lambda lost: deciding.needs(lost, keep) is True, _HITTING_SET_STEPS
        )
        for needed in needed_sets:
            subsets = [[kept for kept in needed if kept != unit] for unit in needed if needed[1:]]
            if all(
                recovery.needs(needed, keep) is True
                and all(recovery.needs(subset, keep) is False for subset in subsets)
                for recovery in recoveries
            ):
                yield tuple(sorted(HeadPath(unit.head, path) for unit in needed))
