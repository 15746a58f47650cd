"""What a search kept, measured on examples that decided nothing, as data and in words.

For each level: what its units recover, what everything but them recovers, and what random sets of
as many units do. For each unit of the last level: what is lost without it, without its attention
and without its values alone; what makes what it brings; and which later units attend elsewhere
without it, because of their queries or their keys, or bring something else. For the intact model:
which of these paths it needs, in one head or in one of several.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from retrieval_interp.circuits.attention import attention_by_role
from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.counterfactual.kinds import MOVER, head_name, is_so_on_text
from retrieval_interp.circuits.counterfactual.mechanism import Patch
from retrieval_interp.circuits.counterfactual.origin import Origin, origins
from retrieval_interp.circuits.counterfactual.question import PromptQuestion
from retrieval_interp.circuits.counterfactual.search import (
    KeepSearch,
    Recovery,
    Share,
)
from retrieval_interp.circuits.counterfactual.units import (
    LEVELS,
    LOGITS,
    Estimates,
    MetricTask,
    Unit,
    halving,
)
from retrieval_interp.circuits.discovery.judge import OutOfTime
from retrieval_interp.circuits.discovery.needed import minimal_sets
from retrieval_interp.circuits.losses import (
    HookRuns,
    Measured,
    Progress,
    no_progress,
    standard_error,
)
from retrieval_interp.circuits.means import mean_attention
from retrieval_interp.circuits.paths import Head, HeadPath, RolePath
from retrieval_interp.circuits.scores.enabling import Enabled, Sight
from retrieval_interp.tasks import Batch, Task
from retrieval_interp.tasks.shown import counted, listed

LEVEL_HEADER = ("", "kept", "recovered", "all but these")
PATCHED = {  # what heads do where nothing is kept
    "z": "write what they write on the counterfactual",
    "pattern": "attend as on the counterfactual",
    "v": "read values of the counterfactual",
}
_SMALL = 0.5  # a smaller part of the metric that hangs on what was changed is said first
_LITTLE = 0.01  # share of what is lost by which a unit has to matter to be told of
_NAMED_UNITS = 3  # that are named in the summary
_CLOSELY = 16  # units at most that are looked at closely: where or what, what they enable, needed
SHOWN = 8  # units that are described
_LESS = 0.05  # of attention, by which a head has to look less at a place for it to be said
_MOSTLY = 0.8  # share that the MLPs which are named make of what all MLPs do
Needed = tuple[HeadPath, ...]  # a role path in heads of which any one suffices, but not none
_QUICK = 16  # examples on which it is seen what the intact model needs
_TOGETHER = 8  # heads in which a path may be needed: those in which it is estimated to bring most
_SETS = 3  # steps to such sets of heads
_SEEN = 8  # examples on which it is seen who enables whom
_NAMED = 1 / 3  # of what a head or row brings, what the path that stands for it brings at least
_CUT = 0.02  # of what is lost: what a path that is cut is estimated to bring at least, or else ...
_MOVED = 0.05  # ... by how much its attention differs from the counterfactual's
_REDRAWN = 200  # sets of prompts, drawn again with replacement, to see how stable a ranking is


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

    `without` and the two after it are what the circuit recovers when this unit takes all that it
    writes from the counterfactual prompt, only its attention, or only its values. The last two are
    None where only attention is replaced, and, as `enables` is empty, of all but the 16 units that
    matter most.
    """

    unit: Unit
    path: HeadPath | None  # its path, or the one of its head or row that brings most
    kind: str  # what a head with that path is commonly called, or nothing
    attention: float  # along that path, in the intact model
    other: float  # the same on the counterfactual prompts
    where: float  # of what it is estimated to bring to the metric, by where it looks ...
    what: float  # ... and by what it brings
    estimate_se: float  # standard error of the sum of both over prompts
    stability: float  # share of redrawn sets of prompts whose ranking has it among as many units
    without: Share
    attention_gone: Share | None
    values_gone: Share | None
    origin: Origin | None  # what makes what it brings by its values
    enables: tuple[Enabled, ...]  # later units' paths that lose attention or values without it


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
    question: PromptQuestion | None = None  # what the answer of a single prompt hangs on

    def enabled_by(self, head: str | Head) -> list[tuple[UnitScore, Enabled]]:
        """Which units a head's attention depends on, those that change it most first."""
        wanted = Head.parse(head) if isinstance(head, str) else Head(*head)
        pairs = [(unit, later) for unit in self.units for later in unit.enables]
        pairs = [(unit, later) for unit, later in pairs if later.path.head == wanted]
        return sorted(pairs, key=lambda pair: pair[1].when_cut - pair[1].attention)

    @property
    def finding(self) -> list[str]:
        """What was found, in a few lines."""
        lines = self._small() if self.question is None else self._small() + self.question.sentences
        lines.append(self._gap())
        if not self.levels:
            return [*lines, f"Nothing was found: {self.unfinished}."]
        lines += [self._recovered(), self._others()]
        if self.unfinished:
            lines.append(f"{self.unfinished[0].upper()}{self.unfinished[1:]}.")
        if len(self.batch) == 1:
            tokens = self.task.position_labels(self.other, 0)
            lines.append(f"The counterfactual is: {' '.join(tokens)}.")
        if self.on_the_same:
            lines.append("It was found and measured on the same prompt.")
        return lines

    def _small(self) -> list[str]:
        """That little hangs on what was changed, if it is so."""
        intact, nothing = self.intact.loss, self.nothing.loss
        if self.metric != LOGITS or not intact > 0 or intact - nothing >= _SMALL * intact:
            return []
        part = max(0.0, (intact - nothing) / intact)
        return [f"Only {part:.0%} of the {self.metric} hangs on what was changed."]

    def _gap(self) -> str:
        """What hangs on what was changed."""
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
        """What the units of the last level recover, and those that matter most."""
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

    def _others(self) -> str:
        """What all others recover, and random sets."""
        text = f"All but these recover {_percent(self.levels[-1].complement.share)}"
        if self.control:
            best = f"the best of {len(self.control)} random sets of as many recovers"
            text += f"; {best} {max(0.0, self.control[-1]):.0%}"
        return f"{text}."

    @property
    def first_units(self) -> list[UnitScore]:
        """The units of which at least a hundredth hangs, those that matter most first."""
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
        """What a unit does, in words."""
        unit, path, labels = score.unit, score.path, self.task.role_labels
        subject = unit.text(self.task.role_names)
        if path is None and unit.dest is not None:
            subject = f"{unit.head}: {labels[unit.dest]} looks at places without a name"
        if path is not None:
            dest, src = labels[path.path.dest], labels[path.path.src]
            less = score.attention < score.other - _LESS and abs(score.where) > abs(score.what)
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
            sentences.append(self._made(score.origin, path))
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
        """Whether a unit matters by where it looks or by what it brings, by two runs."""
        assert score.attention_gone is not None and score.values_gone is not None
        whole = self.levels[-1].kept.share
        looks, brings = (whole - gone.share for gone in (score.attention_gone, score.values_gone))
        by = (
            "by both"
            if min(looks, brings) > 0.25 * max(looks, brings)
            else ("by where it looks" if looks > brings else "by what it brings")
        )
        return (
            f"It matters {by}: with the counterfactual's attention "
            f"{_percent(score.attention_gone.share)}, with its values "
            f"{_percent(score.values_gone.share)}."
        )

    def _made(self, origin: Origin, path: HeadPath | None) -> str:
        """What makes what a path brings."""
        place = "" if path is None else f" at {self.task.role_labels[path.path.src]}"
        mlps, layers, named = sum(origin.mlp), range(len(origin.mlp)), list[int]()
        for layer in sorted(layers, key=lambda layer: -origin.mlp[layer]):
            if sum(origin.mlp[n] for n in named) >= _MOSTLY * mlps:
                break
            named.append(layer)
        parts = {
            "the token itself": origin.embedding,
            "attention": sum(origin.attention),
            f"the MLPs, mostly of {listed([f'layer {n}' for n in sorted(named[:4])], 'and')}": mlps,
        }
        most = {name: made for name, made in parts.items() if made > 0.1 * abs(origin.total)}
        shares = [f"{name} ({made / origin.total:.0%})" for name, made in most.items()]
        if not shares or origin.total <= 0:
            return ""
        return f"What it brings is made{place} by {listed(shares, 'and')}."

    @property
    def level_rows(self) -> list[tuple[str, str, str, str]]:
        """For each level how many units are kept, and what they and all others recover."""
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
    model: Any,
    task: MetricTask,
    search: KeepSearch,
    batch: Batch,
    other: Batch,
    controls: int = 20,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Explanation:
    """Measure what a search that has ended found, on other examples with a counterfactual.

    `other` are their counterfactual prompts, `controls` random sets of units are tried beside.
    """
    decided = search.measured[0].batch
    decided_on = sum(len(recovery.batch) for recovery in search.measured)
    runs = sum(recovery.runs for recovery in search.measured)
    search.measured.clear()  # what they hold takes memory
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
    control, scores, needed = list[float](), dict[Unit, UnitScore](), list[Needed]()
    missing = [search.missing] if search.missing else []
    assert batch.counterfactual is not None
    layers = [attention_by_role(layer.pattern, batch.roles)[0] for layer in batch.counterfactual]
    attention_here, attention_there = mean_attention(model, batch).cpu(), torch.stack(layers).cpu()
    asked = search.counterfactual
    same_others = asked is None or torch.equal(asked.inputs, other.inputs)
    try:
        recovery.deadline = search.deadline
        for score in _unit_scores(
            search, recovery, units, decided, attention_here, attention_there, progress
        ):
            scores[score.unit] = score
        random_sets = _random_sets(search, recovery.heads, units, controls, seed)
        quick = recovery.early or recovery
        quick.deadline = search.deadline
        for sample in progress(random_sets, "random sets"):
            control.append(quick.kept(sample).share)
        drawn = (decided, batch) if units else ()
        few = [Recovery(model, task, part[:_QUICK], search.patch) for part in drawn]
        for quick in few:
            quick.deadline = search.deadline
            quick.metric(quick.empty, stay=True)
        closely = _most_telling(scores.values())
        paths = dict.fromkeys(score.path.path for score in closely if score.path is not None)
        for path in progress(list(paths), "cutting paths in all heads"):
            needed += _needed(search, few, path, attention_here - attention_there)
    except (OutOfTime, KeyboardInterrupt):
        tried = f"{len(scores)} of {len(units)} units were left out"
        missing.append(f"when it was stopped, {tried}, and {len(control)} random sets tried")
    return Explanation(
        task=task.task,
        batch=batch,
        other=other,
        on_the_same=same_others and torch.equal(decided.inputs, batch.inputs),
        patch=search.patch,
        metric=task.measures,
        keep=search.keep,
        intact=Measured.of(recovery.intact),
        nothing=Measured.of(recovery.nothing),
        corrupted=Measured.of(_on_counterfactual(model, task, batch, other)),
        levels=levels,
        control=tuple(sorted(control)),
        units=tuple(scores.values()),
        needed=tuple(needed),
        circuit=recovery.keeping(units),
        decided_on=decided_on,
        runs=runs + recovery.runs,
        unfinished="; ".join(missing),
    )


def _on_counterfactual(model: Any, task: MetricTask, batch: Batch, other: Batch) -> Tensor:
    """The metric on the counterfactual prompts, of the answers of the prompts."""
    asked = Batch(other.inputs, batch.targets, batch.roles, other.attention_mask)
    runs = HookRuns(model, asked, task.answer_roles)
    outputs = runs.base(Circuit({}, batch.roles.shape[-1])).outputs
    return task.metric(outputs.float(), asked)


def _random_sets(
    search: KeepSearch, heads: Sequence[Head], units: Sequence[Unit], count: int, seed: int
) -> Iterator[list[Unit]]:
    """Sets of as many heads, rows and paths."""
    draw, counts = random.Random(seed), Counter(unit.level for unit in units)
    for _ in range(count if units else 0):
        chosen = list[Unit]()
        for length, level in enumerate(LEVELS):
            places = [sorted({path[:length] for path in allowed}) for allowed in search.paths]
            every = [Unit(head, *place) for head in heads for place in places[head.layer]]
            chosen += draw.sample(every, min(counts[level], len(every)))
        yield chosen


def _needed(
    search: KeepSearch, few: Sequence[Recovery], path: RolePath, change: Tensor
) -> Iterator[tuple[HeadPath, ...]]:
    """Smallest sets of heads of whose paths the intact model needs one.

    Found on examples that decide, and returned if they are so on the others too.
    """
    assert search.estimates is not None
    estimates, deciding, keep = search.estimates, few[0], search.keep
    heads = [head for head in deciding.heads if path in search.paths[head.layer]]
    # A sharp head that looks elsewhere has no slope.
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
        fewer = [[kept for kept in needed if kept != unit] for unit in needed if needed[1:]]
        if all(
            recovery.needs(needed, keep) is True
            and all(recovery.needs(subset, keep) is False for subset in fewer)
            for recovery in few
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
    if not units:
        return
    task, batch, estimates = search.task.task, recovery.batch, search.estimates
    assert estimates is not None
    paths = {unit: _main_path(unit, estimates, search.paths[unit.head.layer]) for unit in units}
    later = [path for path in dict.fromkeys(paths.values()) if path is not None]
    made = _origins(search, decided, later, estimates)
    stable = stability(estimates, units)
    scores = list[UnitScore]()
    for unit in progress(units, "leaving out one by one"):
        path = paths[unit]
        where, what = estimates.each(unit).mean(1).tolist()
        score = UnitScore(
            unit=unit,
            path=path and HeadPath(path.head, path.path.named(task.role_names)),
            kind="" if path is None else _kind(path, search, batch, attention_here),
            attention=float(attention_here[path.head][path.path]) if path else float("nan"),
            other=float(attention_there[path.head][path.path]) if path else float("nan"),
            where=where,
            what=what,
            estimate_se=standard_error(estimates.each(unit).sum(0)),
            stability=stable[unit],
            without=recovery.kept([kept for kept in units if kept != unit]),
            attention_gone=None,
            values_gone=None,
            origin=None if path is None else made.get(path),
            enables=(),
        )
        scores.append(score)
        yield score
    sight = Sight(search.model, batch[:_SEEN], recovery.keeping(units), task.answer_roles)
    for score in progress(_most_telling(scores), "where or what, and for whom"):
        others = [kept for kept in units if kept != score.unit]
        yield replace(
            score,
            attention_gone=_halved(recovery, units, score.unit, "pattern"),
            values_gone=_halved(recovery, units, score.unit, "v"),
            enables=tuple(sight.enabled(recovery.keeping(others), later)),
        )


def _most_telling(scores: Iterable[UnitScore]) -> list[UnitScore]:
    """The units without which least is recovered."""
    return sorted(scores, key=lambda score: score.without.share)[:_CLOSELY]


def _kind(path: HeadPath, search: KeepSearch, batch: Batch, attention: Tensor) -> str:
    """What its head is called, if it looks there more than elsewhere, and does so on text too."""
    task, row = search.task.task, attention[path.head][path.path.dest]
    kind = head_name(path.path, task, batch)
    tokenizer = getattr(task, "tokenizer", None)
    if kind == MOVER and int(row.argmax()) != path.path.src:
        return ""
    if tokenizer is not None and not is_so_on_text(kind, path.head, search.model, tokenizer):
        return ""
    return kind


def _halved(recovery: Recovery, units: Sequence[Unit], unit: Unit, patch: Patch) -> Share | None:
    """What is recovered where a unit takes only its attention, or values, from the others."""
    if recovery.patch != "z":
        return None
    circuit = halving(recovery.empty, recovery.heads, units, unit, patch)
    return recovery.share(recovery.metric(circuit))


def _origins(
    search: KeepSearch, decided: Batch, paths: Sequence[HeadPath], estimates: Estimates
) -> dict[HeadPath, Origin]:
    """What makes what paths bring, on the examples of the estimates."""
    few = decided[: estimates.heads.shape[1]]
    if search.patch != "z" or search.counterfactual is None:
        return {}
    return origins(search.model, few, search.counterfactual[: len(few)], paths, estimates.slopes)


def stability(estimates: Estimates, units: Sequence[Unit]) -> dict[Unit, float]:
    """How often each unit is among as many with the largest estimates, over redrawn prompts."""
    draw, n_examples = random.Random(0), estimates.heads.shape[1]
    times, counts = Counter[Unit](), Counter(unit.level for unit in units)
    for _ in range(_REDRAWN):
        prompts = draw.choices(range(n_examples), k=n_examples)
        for level, count in counts.items():
            times.update(estimates.units(level, prompts)[:count])
    return {unit: times[unit] / _REDRAWN for unit in units}


def _main_path(unit: Unit, estimates: Estimates, allowed: Sequence[RolePath]) -> HeadPath | None:
    """Its own path, or the one of its head or row that brings most, if that is much of it."""
    if unit.dest is not None and unit.src is not None:
        return HeadPath(unit.head, RolePath(unit.dest, unit.src))
    paths = [path for path in allowed if unit.dest in (None, path.dest)]
    brings = {path: abs(estimates.of(Unit(unit.head, *path))) for path in paths}
    best = max(paths, key=brings.__getitem__, default=None)
    if best is None or brings[best] < _NAMED * abs(estimates.of(unit)):
        return None
    return HeadPath(unit.head, best)
