"""The result of `why`: units measured on held-out examples, as data and in words.

`explain` measures, for each level (heads, rows, paths), what its units recover, what everything but
them recovers, and random sets of as many units. For each unit of the last level: what is recovered
without it, without its attention or its values alone; where its values come from (`origin`); and
which later units change without it (`scores.enabling`). For the intact model: which of these paths
it needs, in one head or in one of several. `Explanation` puts these numbers in sentences.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.counterfactual.keep_search import KeepSearch, Recovery, Share
from retrieval_interp.circuits.counterfactual.origin import Origin, origins
from retrieval_interp.circuits.counterfactual.question import PromptQuestion
from retrieval_interp.circuits.counterfactual.units import (
    LEVELS,
    LOGITS,
    Estimates,
    MetricTask,
    Unit,
    halving,
)
from retrieval_interp.circuits.deadline import OutOfTime
from retrieval_interp.circuits.discovery.needed import minimal_sets
from retrieval_interp.circuits.head_kinds import MOVER, head_name, is_so_on_text
from retrieval_interp.circuits.hook_runs import HookRuns
from retrieval_interp.circuits.hooks import HookedModel
from retrieval_interp.circuits.losses import Measured, Progress, no_progress, standard_error
from retrieval_interp.circuits.means import mean_attention
from retrieval_interp.circuits.patched_heads import Patch
from retrieval_interp.circuits.paths import Head, HeadPath, RolePath, attention_by_role
from retrieval_interp.circuits.scores.enabling import AttentionComparison, Enabled
from retrieval_interp.tasks import Batch, Task
from retrieval_interp.tasks.messages import counted, listed

LEVEL_HEADER = ("", "kept", "recovered", "all but these")
PATCHED = {  # what heads do where nothing is kept
    "z": "write what they write on the counterfactual",
    "pattern": "attend as on the counterfactual",
    "v": "read values of the counterfactual",
}
_WEAK = 0.5  # if patching takes a smaller share of the logit difference, that is said first
_LITTLE = 0.01  # units without which the recovered share changes less are not described
_NAMED_UNITS = 3  # units that the summary names
_CLOSELY = 16  # units at most that are run without attention, without values, and for `enables`
SHOWN = 8  # units that are described
_LESS = 0.05  # a head attends "less" if its attention is lower than the counterfactual's by this
_MOSTLY = 0.8  # MLPs are named until they make this share of what all MLPs contribute
Needed = tuple[HeadPath, ...]  # one path in several heads; the model needs it in any one of them
_QUICK = 16  # examples that tell what the intact model needs
_TOGETHER = 8  # heads in which a path may be needed: those with its largest estimates
_SETS = 3  # steps at most of the search for such sets (`minimal_sets`)
_SEEN = 8  # examples that tell which units enable which
_CUT = 0.02  # a path may be needed if its estimate is at least this share of the gap, or if ...
_MOVED = 0.05  # ... its attention differs by this from that on the counterfactual


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

    `without`, `attention_gone` and `values_gone` are what the circuit recovers when all that this
    unit writes is patched from the counterfactual prompt, or only its attention, or only its
    values. The last two are None, and `enables` is empty, except for the 16 units that matter most;
    they are also None if whole paths are not what is patched (`patch` other than `z`).
    """

    unit: Unit
    path: HeadPath | None  # its path, or of a head or row the one that contributes most of it
    kind: str  # what a head with that path is commonly called, or nothing
    attention: float  # along that path, in the intact model
    other: float  # the same on the counterfactual prompts
    where: float  # estimated contribution to the metric by its attention (where it looks) ...
    what: float  # ... and by its values (what it brings); the two add up
    estimate_se: float  # standard error of their sum over prompts
    stability: float  # share of bootstrap samples in which it is among the top units (`Estimates`)
    without: Share
    attention_gone: Share | None
    values_gone: Share | None
    origin: Origin | None  # where its contribution by values comes from
    enables: tuple[Enabled, ...]  # later units' paths that lose attention or values without it

    @property
    def looks_less(self) -> bool:
        """Whether its head attends less there than on the counterfactual prompts."""
        return self.attention < self.other - _LESS


@dataclass(frozen=True, repr=False)
class Explanation:
    """Which heads, rows and paths an answer comes from."""

    task: Task
    batch: Batch  # on which everything was measured
    other: Batch  # the counterfactual prompts
    patch: Patch  # what was taken from the counterfactual prompts
    metric: str  # logit difference, log probability, the task's loss (then minus it), or "metric"
    keep: float  # the share that was asked for
    intact: Measured  # the metric
    nothing: Measured  # the metric where nothing is kept
    corrupted: Measured  # the metric on the counterfactual prompts themselves
    levels: tuple[LevelScore, ...]
    control: tuple[float, ...]  # what random sets of as many units of the last level recover
    units: tuple[UnitScore, ...]
    needed: tuple[Needed, ...]  # in the intact model
    circuit: Circuit  # of the last level
    decided_on: int  # examples
    on_the_same: bool  # whether it was found and measured on the same examples
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
    def finding(self) -> list[str]:
        """Sum up the result in a few sentences."""
        asked = [] if self.question is None else self.question.sentences
        lines = [*self._weak_effect(), *asked, self._metric_drop()]
        if not self.levels:
            return [*lines, f"Nothing was found: {self.unfinished}."]
        lines += [self._recovered(), self._complement()]
        if self.unfinished:
            lines.append(f"{self.unfinished[0].upper()}{self.unfinished[1:]}.")
        if len(self.batch) == 1:
            tokens = self.task.position_labels(self.other, 0)
            lines.append(f"The counterfactual is: {' '.join(tokens)}.")
        if self.on_the_same:
            lines.append("It was found and measured on the same prompt.")
        return lines

    def _weak_effect(self) -> list[str]:
        """Say so if patching takes away less than half of the logit difference."""
        intact, nothing = self.intact.loss, self.nothing.loss
        if self.metric != LOGITS or not intact > 0 or intact - nothing >= _WEAK * intact:
            return []
        part = max(0.0, (intact - nothing) / intact)
        return [f"Only {part:.0%} of the {self.metric} depends on what was changed."]

    def _metric_drop(self) -> str:
        """Say how far the metric falls when all heads are patched."""
        examples = counted(len(self.batch), "example" if self.question is None else "other change")
        sign = -1 if self.metric == self.task.loss_name else 1
        intact, nothing, corrupted = (m.loss for m in (self.intact, self.nothing, self.corrupted))
        text = (
            f"The {self.metric} is {sign * intact:.2f} on {examples}, and {sign * nothing:.2f} "
            f"where all heads {PATCHED[self.patch]}."
        )
        if intact < 0 and self.metric == LOGITS:
            text += " The model prefers a wrong answer."
        if nothing >= intact:
            return f"{text} So nothing is lost on these examples, and the shares mean nothing."
        changed, by_heads = intact - corrupted, intact - nothing
        if self.patch == "z" and changed > 0 and by_heads < 0.9 * changed:
            text += (
                f" On the counterfactual prompts themselves it is {sign * corrupted:.2f}: "
                f"{1 - by_heads / changed:.0%} of the change is made by the tokens and MLPs where "
                "the prompts differ, not by heads."
            )
        return text

    def _recovered(self) -> str:
        """Say what the last level's units recover, and which matter most."""
        last = self.levels[-1]
        subject = counted(len({unit.head for unit in last.units}), "head")
        if last.name != "heads":
            levels = Counter(unit.level for unit in last.units)
            counts = [counted(levels[name], name[:-1]) for name in reversed(LEVELS) if levels[name]]
            subject = f"{listed(counts, 'and')} of {subject}"
        text = f"{last.kept.share:.0%} of what is lost is recovered by {subject}"
        if last.kept.share - 2 * last.kept.se > 1:
            text += ", more than all: some of what is not kept works against it"
        if last.kept.share + 2 * last.kept.se < self.keep:
            text += f". That is less than the {self.keep:.0%} asked for: it does not hold here"
        first = [
            f"{score.unit.text(self.task.role_names)} (without it {_percent(score.without.share)})"
            for score in self.first_units[:_NAMED_UNITS]
        ]
        return f"{text}{': most by ' if first else ''}{listed(first, 'and')}."

    def _complement(self) -> str:
        """Say what everything else recovers, and the best of the random sets."""
        text = f"All but these recover {_percent(self.levels[-1].complement.share)}"
        if self.control:
            best = f"the best of {len(self.control)} random sets of as many recovers"
            text += f"; {best} {max(0.0, self.control[-1]):.0%}"
        return f"{text}."

    @property
    def first_units(self) -> list[UnitScore]:
        """The units that change the recovered share by 0.01, most important first."""
        if not self.levels:
            return []
        kept = self.levels[-1].kept.share
        matter = [score for score in self.units if abs(kept - score.without.share) >= _LITTLE]
        return sorted(matter, key=lambda score: score.without.share)

    @property
    def needs(self) -> list[str]:
        """The paths that the whole model needs, each in one head or in one of several."""
        return [
            f"{'one of ' if paths[1:] else ''}{listed([str(path.head) for path in paths], 'or')} "
            f"{paths[0].path.text(self.task)}"
            for paths in self.needed
        ]

    def sentence(self, score: UnitScore) -> str:
        """Say in words what a unit does."""
        unit, path, labels = score.unit, score.path, self.task.role_labels
        subject = unit.text(self.task.role_names)
        if path is None and unit.dest is not None:
            subject = f"{unit.head}: {labels[unit.dest]} looks at places without a name"
        if path is not None:
            dest, src = labels[path.path.dest], labels[path.path.src]
            less = score.looks_less and abs(score.where) > abs(score.what)
            subject = f"{unit.head}: {dest} looks {'less ' * less}at {src}"
            if score.kind and not less:
                subject += f" ({score.kind})"
            subject += f", {score.attention:.2f}; {score.other:.2f} on the counterfactual"
        if unit.level != self.levels[-1].name:
            subject += f", a whole {unit.level[:-1]}"
        sentences = [f"{subject}. Without it {_percent(score.without.share)} is recovered."]
        if score.attention_gone is not None and score.values_gone is not None:
            sentences.append(self._where_or_what(score))
        if score.origin is not None and abs(score.what) > abs(score.where):
            sentences.append(self._origin_text(score.origin, path))
        if score.enables:
            paths = [enabled.path for enabled in score.enables]
            alike = Counter((path.head, path.path.src) for path in paths)
            several = {path for path in paths if alike[path.head, path.path.src] > 1}
            later = ", ".join(
                f"{path.head} {f'from {labels[path.path.dest]} ' * (path in several)}"
                f"to {labels[path.path.src]} ({enabled.text})"
                for path, enabled in zip(paths, score.enables)
            )
            sentences.append(f"It enables {later}.")
        return " ".join(sentences)

    def _where_or_what(self, score: UnitScore) -> str:
        """Say whether a unit matters by attention or values, from a run without each."""
        assert score.attention_gone is not None and score.values_gone is not None
        kept = self.levels[-1].kept.share
        by_attention = kept - score.attention_gone.share
        by_values = kept - score.values_gone.share
        by = "by where it looks" if by_attention > by_values else "by what it brings"
        if min(by_attention, by_values) > 0.25 * max(by_attention, by_values):
            by = "by both"
        return (
            f"It matters {by}: with the counterfactual's attention "
            f"{_percent(score.attention_gone.share)}, with its values "
            f"{_percent(score.values_gone.share)}."
        )

    def _origin_text(self, origin: Origin, path: HeadPath | None) -> str:
        """Say where a path's values come from: the token, attention, MLPs by layer."""
        place = "" if path is None else f" at {self.task.role_labels[path.path.src]}"
        mlps, layers, named = sum(origin.mlp), range(len(origin.mlp)), list[int]()
        for layer in sorted(layers, key=lambda layer: -origin.mlp[layer]):
            if sum(origin.mlp[n] for n in named) >= _MOSTLY * mlps:
                break
            named.append(layer)
        sources = {
            "the token itself": origin.embedding,
            "attention": sum(origin.attention),
            f"the MLPs, mostly of {listed([f'layer {n}' for n in sorted(named[:4])], 'and')}": mlps,
        }
        large = {name: x for name, x in sources.items() if x > 0.1 * abs(origin.total)}
        shares = [f"{name} ({added / origin.total:.0%})" for name, added in large.items()]
        if not shares or origin.total <= 0:
            return ""
        return f"What it brings is made{place} by {listed(shares, 'and')}."

    @property
    def level_rows(self) -> list[tuple[str, str, str, str]]:
        """For each level: units kept, and what they and all others recover."""
        return [
            (
                level.name,
                f"{len(level.units)}",
                f"{level.kept.share:.0%}" + (f" +- {level.kept.se:.0%}" if level.kept.se else ""),
                _percent(level.complement.share),
            )
            for level in self.levels
        ]

    def __repr__(self) -> str:
        lines = list(self.finding)
        if self.levels:
            rows = [LEVEL_HEADER, *self.level_rows]
            lines += ["", *(f"{a:6} {b:>5} {c:>13} {d:>14}" for a, b, c, d in rows), ""]
        lines += map(self.sentence, self.first_units[:SHOWN])
        if others := len(self.units) - len(self.first_units[:SHOWN]):
            lines.append(f"{counted(others, 'more unit')} that matter{'s' * (others == 1)} less.")
        if self.needs:
            lines.append(f"For {self.keep:.0%} the whole model needs {listed(self.needs, 'and')}.")
        return "\n".join(lines)


def _percent(share: float) -> str:
    return f"{round(share, 2) + 0.0:.0%}"  # never -0%


def explain(
    model: HookedModel,
    task: MetricTask,
    search: KeepSearch,
    batch: Batch,
    counterfactuals: Batch,
    controls: int = 20,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Explanation:
    """Measure the units of a search that has ended, on other examples and `counterfactuals`.

    `controls` random sets of as many units are measured for comparison.
    """
    decided = search.measured[0].batch
    decided_on = sum(len(recovery.batch) for recovery in search.measured)
    runs = sum(recovery.runs for recovery in search.measured)
    search.measured.clear()  # their runs take memory
    recovery = Recovery(model, task, batch, search.patch)
    levels = tuple(
        LevelScore(
            name=name,
            units=units,
            kept=recovery.kept(units, stay=True),
            complement=recovery.without(units),
        )
        for name, units in search.levels.items()
    )
    units = levels[-1].units if levels else ()
    measured, missing = _MeasuredUnits(), [search.missing] if search.missing else []
    try:
        _measure_units(search, recovery, units, decided, controls, seed, measured, progress)
    except (OutOfTime, KeyboardInterrupt):
        kind = levels[-1].name if levels else "units"
        missing.append(
            f"when it was stopped, {len(measured.scores)} of the {len(units)} {kind} that were "
            "found had been tested (what comes back without this one), and, for comparison, "
            f"{len(measured.control)} of {controls} random sets of as many"
        )
    searched = search.counterfactual
    same_prompts = searched is None or torch.equal(searched.inputs, counterfactuals.inputs)
    return Explanation(
        task=task.task,
        batch=batch,
        other=counterfactuals,
        on_the_same=same_prompts and torch.equal(decided.inputs, batch.inputs),
        patch=search.patch,
        metric=task.measures,
        keep=search.keep,
        intact=Measured.of(recovery.intact),
        nothing=Measured.of(recovery.nothing),
        corrupted=Measured.of(_on_counterfactual(model, task, batch, counterfactuals)),
        levels=levels,
        control=tuple(sorted(measured.control)),
        units=tuple(measured.scores.values()),
        needed=tuple(measured.needed),
        circuit=recovery.keeping(units),
        decided_on=decided_on,
        runs=runs + recovery.runs,
        unfinished="; ".join(missing),
    )


@dataclass
class _MeasuredUnits:
    """What is measured of the last level's units, as far as the time allows."""

    scores: dict[Unit, UnitScore] = field(default_factory=dict)
    control: list[float] = field(default_factory=list)  # what random sets recover
    needed: list[Needed] = field(default_factory=list)


def _measure_units(
    search: KeepSearch,
    recovery: Recovery,
    units: Sequence[Unit],
    decided: Batch,
    controls: int,
    seed: int,
    measured: _MeasuredUnits,
    progress: Progress,
) -> None:
    """Score units, measure random sets, and find what the intact model needs; fills `measured`.

    Raises OutOfTime after the search's deadline. `decided` has the examples of the search.
    """
    batch = recovery.batch
    attention_here = mean_attention(search.model, batch).cpu()
    attention_there = _attention_on_counterfactual(batch)
    recovery.deadline = search.deadline
    for score in _unit_scores(
        search, recovery, units, decided, attention_here, attention_there, progress
    ):
        measured.scores[score.unit] = score
    quick = recovery.early or recovery
    quick.deadline = search.deadline
    random_sets = _random_sets(search, recovery.heads, units, controls, seed)
    for sample in progress(random_sets, "random sets"):
        measured.control.append(quick.kept(sample).share)
    important = _most_important(measured.scores.values())
    paths = dict.fromkeys(score.path.path for score in important if score.path is not None)
    recoveries = _quick_recoveries(search, (decided, batch) if units else ())
    for path in progress(list(paths), "cutting paths in all heads"):
        measured.needed += _needed(search, recoveries, path, attention_here - attention_there)


def _attention_on_counterfactual(batch: Batch) -> Tensor:
    """Return the mean attention by role on the counterfactual prompts, as `mean_attention`."""
    assert batch.counterfactual is not None
    layers = [attention_by_role(layer.pattern, batch.roles)[0] for layer in batch.counterfactual]
    return torch.stack(layers).cpu()


def _quick_recoveries(search: KeepSearch, batches: Sequence[Batch]) -> list[Recovery]:
    """Measure on the first examples of batches, with runs that stay at the intact model."""
    recoveries = []
    for batch in batches:
        recovery = Recovery(search.model, search.task, batch[:_QUICK], search.patch)
        recovery.deadline = search.deadline
        recovery.metric(recovery.empty, stay=True)
        recoveries.append(recovery)
    return recoveries


def _on_counterfactual(model: HookedModel, task: MetricTask, batch: Batch, other: Batch) -> Tensor:
    """Return the metric of the prompts' answers on the counterfactual prompts."""
    prompts = Batch(other.inputs, batch.targets, batch.roles, other.attention_mask)
    runs = HookRuns(model, prompts, task.answer_roles)
    outputs = runs.base(Circuit({}, batch.roles.shape[-1])).outputs
    return task.metric(outputs.float(), prompts)


def _random_sets(
    search: KeepSearch, heads: Sequence[Head], units: Sequence[Unit], count: int, seed: int
) -> Iterator[list[Unit]]:
    """Draw random sets of as many heads, rows and paths as `units` has."""
    draw, counts = random.Random(seed), Counter(unit.level for unit in units)
    for _ in range(count if units else 0):
        chosen = list[Unit]()
        for length, level in enumerate(LEVELS):
            places = [sorted({path[:length] for path in allowed}) for allowed in search.paths]
            every = [Unit(head, *place) for head in heads for place in places[head.layer]]
            chosen += draw.sample(every, min(counts[level], len(every)))
        yield chosen


def _needed(
    search: KeepSearch, recoveries: Sequence[Recovery], path: RolePath, change: Tensor
) -> Iterator[tuple[HeadPath, ...]]:
    """Find the smallest sets of heads in one of which the intact model needs this path.

    The first of `recoveries` decides, the others confirm. `change` is that of mean attention.
    """
    assert search.estimates is not None
    estimates, deciding, keep = search.estimates, recoveries[0], search.keep
    heads = [head for head in deciding.heads if path in search.paths[head.layer]]
    # Where attention is saturated, the gradient by it vanishes: so its change counts as well.
    units = [
        unit
        for unit in (Unit(head, *path) for head in heads)
        if abs(estimates.of(unit)) >= _CUT * deciding.gap
        or abs(float(change[unit.head][path])) >= _MOVED
    ]
    units = sorted(units, key=estimates.of, reverse=True)[:_TOGETHER]
    if not units or deciding.needs(units, keep) is not True:
        return
    for needed in minimal_sets(units, lambda lost: deciding.needs(lost, keep) is True, _SETS):
        subsets = [[kept for kept in needed if kept != unit] for unit in needed if needed[1:]]
        if all(
            recovery.needs(needed, keep) is True
            and all(recovery.needs(subset, keep) is False for subset in subsets)
            for recovery in recoveries
        ):
            yield tuple(sorted(HeadPath(unit.head, path) for unit in needed))


def _unit_scores(
    search: KeepSearch,
    recovery: Recovery,
    units: Sequence[Unit],
    decided: Batch,
    attention_here: Tensor,
    attention_there: Tensor,
    progress: Progress,
) -> Iterator[UnitScore]:
    """Score every unit; then the most important ones again, more closely."""
    if not units:
        return
    task, batch, estimates = search.task.task, recovery.batch, search.estimates
    assert estimates is not None
    paths = {unit: estimates.main_path(unit, search.paths[unit.head.layer]) for unit in units}
    named_paths = [path for path in dict.fromkeys(paths.values()) if path is not None]
    origin_of = _origins(search, decided, named_paths, estimates)
    stability = estimates.stability(units)
    scores = list[UnitScore]()
    for unit in progress(units, "leaving out one by one"):
        path = paths[unit]
        by_attention, by_values = estimates.by_example(unit).mean(1).tolist()
        score = UnitScore(
            unit=unit,
            path=path and HeadPath(path.head, path.path.named(task.role_names)),
            kind="" if path is None else _common_name(path, search, batch, attention_here),
            attention=float(attention_here[path.head][path.path]) if path else float("nan"),
            other=float(attention_there[path.head][path.path]) if path else float("nan"),
            where=by_attention,
            what=by_values,
            estimate_se=standard_error(estimates.by_example(unit).sum(0)),
            stability=stability[unit],
            without=recovery.kept([kept for kept in units if kept != unit]),
            attention_gone=None,
            values_gone=None,
            origin=None if path is None else origin_of.get(path),
            enables=(),
        )
        scores.append(score)
        yield score
    keeping = recovery.keeping(units)
    comparison = AttentionComparison(search.model, batch[:_SEEN], keeping, task.answer_roles)
    for score in progress(_most_important(scores), "where or what, and for whom"):
        remaining = [kept for kept in units if kept != score.unit]
        yield replace(
            score,
            attention_gone=_halved(recovery, units, score.unit, "pattern"),
            values_gone=_halved(recovery, units, score.unit, "v"),
            enables=tuple(comparison.enabled(recovery.keeping(remaining), named_paths)),
        )


def _most_important(scores: Iterable[UnitScore]) -> list[UnitScore]:
    """Return the 16 units without which least is recovered."""
    return sorted(scores, key=lambda score: score.without.share)[:_CLOSELY]


def _common_name(path: HeadPath, search: KeepSearch, batch: Batch, attention: Tensor) -> str:
    """Name a path's head (induction head, ...) if it attends so on text, too."""
    task, row = search.task.task, attention[path.head][path.path.dest]
    kind = head_name(path.path, task, batch)
    tokenizer = getattr(task, "tokenizer", None)
    if kind == MOVER and int(row.argmax()) != path.path.src:
        return ""
    if tokenizer is not None and not is_so_on_text(kind, path.head, search.model, tokenizer):
        return ""
    return kind


def _halved(recovery: Recovery, units: Sequence[Unit], unit: Unit, patch: Patch) -> Share | None:
    """Return what units recover if one of them has its attention or values patched."""
    if recovery.patch != "z":
        return None
    circuit = halving(recovery.empty, recovery.heads, units, unit, patch)
    return recovery.share(recovery.metric(circuit))


def _origins(
    search: KeepSearch, decided: Batch, paths: Sequence[HeadPath], estimates: Estimates
) -> dict[HeadPath, Origin]:
    """Find where the values of paths come from, on the examples of the estimates."""
    few = decided[: estimates.heads.shape[1]]
    if search.patch != "z" or search.counterfactual is None:
        return {}
    return origins(search.model, few, search.counterfactual[: len(few)], paths, estimates.slopes)
