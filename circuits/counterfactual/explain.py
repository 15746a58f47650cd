"""What a search kept, measured on examples that decided nothing.

For each level: what its units recover, what everything but them recovers, and what random sets of
as many units do. For each unit of the last level: what is lost without it, and which later units
attend elsewhere then, because of their queries or of their keys. For the intact model: which of
these paths it needs, in one head or in one of several.
"""

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from retrieval_interp.circuits.attention import attention_by_role
from retrieval_interp.circuits.counterfactual.explanation import Explanation, LevelScore, UnitScore
from retrieval_interp.circuits.counterfactual.search import KeepSearch, OutOfTime, Recovery
from retrieval_interp.circuits.counterfactual.units import LEVELS, MetricTask, Unit, keeping
from retrieval_interp.circuits.discovery.needed import minimal_sets
from retrieval_interp.circuits.draw.layout import path_kind
from retrieval_interp.circuits.paths import Head, HeadPath, RolePath
from retrieval_interp.circuits.runs.means import mean_attention
from retrieval_interp.circuits.scores.enabling import Sight
from retrieval_interp.circuits.scores.scorer import Measured, Progress, no_progress
from retrieval_interp.tasks import Batch, Task

_QUICK = 16  # examples of random sets, and of what the intact model needs
_SEEN = 8  # examples on which it is seen who enables whom
_TELLING = 0.02  # least rise in attention along the path that stands for a head or row
_CUT = 0.05  # least difference in attention of paths that are cut


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
    decided_on = sum(len(each.batch) for each in search.measured)
    runs = sum(each.runs for each in search.measured)
    search.measured.clear()  # what they hold takes memory
    recovery = Recovery(model, task, batch)
    levels = tuple(
        LevelScore(name, units, recovery.kept(units, stay=True), recovery.without(units))
        for name, units in search.levels.items()
    )
    units = levels[-1].units if levels else ()
    control, scores, needed = list[float](), list[UnitScore](), list[tuple[HeadPath, ...]]()
    missing = [search.missing] if search.missing else []
    assert batch.counterfactual is not None
    layers = [attention_by_role(each, batch.roles)[0] for each in batch.counterfactual.unbind(1)]
    own, there = mean_attention(model, batch).cpu(), torch.stack(layers).cpu()
    try:
        recovery.deadline = search.deadline
        for score in _unit_scores(search, recovery, units, own, there, progress):
            scores.append(score)
        both = (decided, batch) if units else ()
        few = [Recovery(model, task, each[:_QUICK]) for each in both]
        for each in few:
            each.deadline = search.deadline
        sets = _random_sets(search, recovery.heads, units, controls, seed)
        for sample in progress(sets, "random sets"):
            control.append(few[1].kept(sample).share)
        for each in few:
            each.metric(each.empty, stay=True)
        paths = dict.fromkeys(score.path.path for score in scores if score.path is not None)
        for path in progress(list(paths), "cutting paths in all heads"):
            needed += _needed(search, few, path, own - there)
    except (OutOfTime, KeyboardInterrupt):
        left = f"{len(scores)} of {len(units)} {levels[-1].name} were left out"
        missing.append(f"when it was stopped, {left}, and {len(control)} random sets tried")
    asked = task.task, batch, other, task.measures, search.keep
    intact, nothing = Measured.of(recovery.intact), Measured.of(recovery.nothing)
    circuit = keeping(recovery.empty, recovery.heads, units)
    found = levels, tuple(sorted(control)), tuple(scores), tuple(needed), circuit
    runs += recovery.runs
    on_the_same = torch.equal(decided.inputs, batch.inputs)
    done = decided_on, on_the_same, runs, "; ".join(missing)
    return Explanation(*asked, intact, nothing, *found, *done)


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
    deciding, keep = few[0], search.keep
    heads = [head for head in deciding.heads if path in search.paths[head.layer]]
    heads = [head for head in heads if abs(float(change[head][path])) >= _CUT]
    units = sorted((Unit(head, *path) for head in heads), key=search.estimates.of, reverse=True)
    if not units or deciding.needs(units, keep) is not True:
        return
    for needed in minimal_sets(units, lambda lost: deciding.needs(lost, keep) is True, most=16):
        fewer = [[other for other in needed if other != unit] for unit in needed if needed[1:]]
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
    own: Tensor,
    other: Tensor,
    progress: Progress,
) -> Iterator[UnitScore]:
    if not units:
        return
    task, batch, estimates = search.task.task, recovery.batch, search.estimates
    assert estimates is not None
    paths = {unit: _main_path(unit, own - other, search.paths[unit.head.layer]) for unit in units}
    whole = keeping(recovery.empty, recovery.heads, units)
    sight = Sight(search.model, batch[:_SEEN], whole, task.answer_roles)
    later = [path for path in dict.fromkeys(paths.values()) if path is not None]
    for unit in progress(units, "leaving out one by one"):
        rest, path = [each for each in units if each != unit], paths[unit]
        kind = head_name(path.path, task, batch) if path else ""
        here, there = (float(x[path.head][path.path]) if path else math.nan for x in (own, other))
        without, circuit = recovery.kept(rest), keeping(recovery.empty, recovery.heads, rest)
        enables = tuple(sight.enabled(circuit, later))
        yield UnitScore(unit, path, kind, here, there, estimates.of(unit), without, enables)


def _main_path(unit: Unit, change: Tensor, allowed: Sequence[RolePath]) -> HeadPath | None:
    """Its own path, or that of its head or row along which attention rises most, if it does."""
    if unit.dest is not None and unit.src is not None:
        return HeadPath(unit.head, RolePath(unit.dest, unit.src))
    paths = [path for path in allowed if unit.dest in (None, path.dest)]
    best = max(paths, key=lambda path: float(change[unit.head][path]), default=None)
    if best is None or float(change[unit.head][best]) < _TELLING:
        return None
    return HeadPath(unit.head, best)


def head_name(path: RolePath, task: Task, batch: Batch) -> str:
    """What a head with this path is commonly called, or nothing."""
    found, at = path_kind(path, batch), batch.roles[:, 0, path.src]
    if found or batch.tokens is None or not hasattr(task, "tokenizer"):
        return found
    there = batch.tokens.gather(1, at.clamp(min=0)[:, None])[:, 0]
    answers = batch.targets.flatten(1)[:, 0]  # the tokens of texts' answers, the correct one first
    return "mover head" if bool(((at < 0) | (there == answers)).all()) else ""
