"""What a search kept, measured on examples that decided nothing.

For each level: what its units recover, what everything but them recovers, and what random sets of
as many units do. For each unit of the last level: what is lost without it, without its attention
and without its values alone; what makes what it brings; and which later units attend elsewhere
without it, because of their queries or their keys, or bring something else. For the intact model:
which of these paths it needs, in one head or in one of several.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from retrieval_interp.circuits.attention import attention_by_role
from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.counterfactual.explanation import Explanation, LevelScore, UnitScore
from retrieval_interp.circuits.counterfactual.mechanism import Patch
from retrieval_interp.circuits.counterfactual.origin import Origin, origins
from retrieval_interp.circuits.counterfactual.search import (
    KeepSearch,
    OutOfTime,
    Recovery,
    Share,
)
from retrieval_interp.circuits.counterfactual.units import (
    LEVELS,
    Estimates,
    MetricTask,
    Unit,
    halving,
)
from retrieval_interp.circuits.discovery.needed import minimal_sets
from retrieval_interp.circuits.draw.layout import path_kind
from retrieval_interp.circuits.paths import Head, HeadPath, RolePath
from retrieval_interp.circuits.runs.means import mean_attention, standard_error
from retrieval_interp.circuits.runs.runs import HookRuns
from retrieval_interp.circuits.scores.enabling import Sight
from retrieval_interp.circuits.scores.scorer import Measured, Progress, no_progress
from retrieval_interp.tasks import Batch, Task

_QUICK = 16  # examples on which it is seen what the intact model needs
_TOGETHER = 8  # heads in which a path may be needed: those in which it is estimated to bring most
_SETS = 3  # steps to such sets of heads
_SEEN = 8  # examples on which it is seen who enables whom
_NAMED = 1 / 3  # of what a head or row brings, what the path that stands for it brings at least
_CUT = 0.02  # of what is lost: what a path that is cut is estimated to bring at least, or else ...
_MOVED = 0.05  # ... by how much its attention differs from the counterfactual's
_REDRAWN = 200  # sets of prompts, drawn again with replacement, to see how stable a ranking is


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
    control, scores, needed = list[float](), list[UnitScore](), list[tuple[HeadPath, ...]]()
    missing = [search.missing] if search.missing else []
    assert batch.counterfactual is not None
    layers = [attention_by_role(layer.pattern, batch.roles)[0] for layer in batch.counterfactual]
    own, there = mean_attention(model, batch).cpu(), torch.stack(layers).cpu()
    try:
        recovery.deadline = search.deadline
        for score in _unit_scores(search, recovery, units, decided, own, there, progress):
            scores.append(score)
        both = (decided, batch) if units else ()
        few = [Recovery(model, task, part[:_QUICK], search.patch) for part in both]
        for quick in few:
            quick.deadline = search.deadline
        sets = _random_sets(search, recovery.heads, units, controls, seed)
        for sample in progress(sets, "random sets"):
            control.append((recovery.early or recovery).kept(sample).share)
        for quick in few:
            quick.metric(quick.empty, stay=True)
        paths = dict.fromkeys(score.path.path for score in scores if score.path is not None)
        for path in progress(list(paths), "cutting paths in all heads"):
            needed += _needed(search, few, path, own - there)
    except (OutOfTime, KeyboardInterrupt):
        left = f"{len(scores)} of {len(units)} units were left out"
        missing.append(f"when it was stopped, {left}, and {len(control)} random sets tried")
    return Explanation(
        task=task.task,
        batch=batch,
        other=other,
        on_the_same=torch.equal(decided.inputs, batch.inputs),
        patch=search.patch,
        metric=task.measures,
        keep=search.keep,
        intact=Measured.of(recovery.intact),
        nothing=Measured.of(recovery.nothing),
        corrupted=Measured.of(_on_counterfactual(model, task, batch, other)),
        levels=levels,
        control=tuple(sorted(control)),
        units=tuple(scores),
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
    every = [Unit(head, *path) for head in heads]
    # A sharp head that looks elsewhere has no slope.
    units = [
        unit
        for unit in every
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
            and all(recovery.needs(some, keep) is False for some in fewer)
            for recovery in few
        ):
            yield tuple(sorted(HeadPath(unit.head, path) for unit in needed))


def _unit_scores(
    search: KeepSearch,
    recovery: Recovery,
    units: Sequence[Unit],
    decided: Batch,
    own: Tensor,
    there: Tensor,
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
    sight = Sight(search.model, batch[:_SEEN], recovery.keeping(units), task.answer_roles)
    for unit in progress(units, "leaving out one by one"):
        path, rest = paths[unit], [kept for kept in units if kept != unit]
        where, what = estimates.each(unit).mean(1).tolist()
        yield UnitScore(
            unit=unit,
            path=path,
            kind=head_name(path.path, task, batch) if path else "",
            attention=float(own[path.head][path.path]) if path else float("nan"),
            other=float(there[path.head][path.path]) if path else float("nan"),
            where=where,
            what=what,
            estimate_se=standard_error(estimates.each(unit).sum(0)),
            stability=stable[unit],
            without=recovery.kept(rest),
            attention_gone=_halved(recovery, units, unit, "pattern"),
            values_gone=_halved(recovery, units, unit, "v"),
            origin=None if path is None else made.get(path),
            enables=tuple(sight.enabled(recovery.keeping(rest), later)),
        )


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


def head_name(path: RolePath, task: Task, batch: Batch) -> str:
    """What a head with this path is commonly called, or nothing."""
    kind, at = path_kind(path, batch), batch.roles[:, 0, path.src]
    if (
        kind == "previous-token head"
        and len(batch.roles[:, :, list(path)].flatten(0, 1).unique(dim=0)) == 1
    ):
        kind = ""  # in one layout any two neighbours stand so
    answers = path.dest in task.answer_roles  # only from there is an answer moved
    if kind or not answers or batch.tokens is None or not hasattr(task, "tokenizer"):
        return kind
    there = batch.tokens.gather(1, at.clamp(min=0)[:, None])[:, 0]
    answer = batch.targets.flatten(1)[:, 0]  # the tokens of texts' answers, the correct one first
    return "mover head" if bool(((at < 0) | (there == answer)).all()) else ""
