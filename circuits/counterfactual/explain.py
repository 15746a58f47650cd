"""What a search kept, measured on examples that decided nothing.

For each level: what its units recover, what everything but them recovers, and what random sets of
as many units do. For each unit of the last level: what is lost without it, and which later units
attend elsewhere then, because of their queries or of their keys. For the intact model: which of
these paths it needs, in one head or in one of several.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from retrieval_interp.circuits.attention import attention_along, attention_by_role
from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.counterfactual.explanation import (
    Explanation,
    LevelScore,
    Needed,
    UnitScore,
)
from retrieval_interp.circuits.counterfactual.search import (
    KeepSearch,
    OutOfTime,
    Recovery,
    Share,
)
from retrieval_interp.circuits.counterfactual.units import MetricTask, Unit, keeping
from retrieval_interp.circuits.discovery.needed import minimal_sets
from retrieval_interp.circuits.draw.layout import path_kind
from retrieval_interp.circuits.hooks import Hooked, ablated, is_causal, pattern_hook_name
from retrieval_interp.circuits.paths import HeadPath, RolePath
from retrieval_interp.circuits.runs.means import mean_attention
from retrieval_interp.circuits.scores.control import allowed_paths
from retrieval_interp.circuits.scores.enabling import Enabled
from retrieval_interp.circuits.scores.scorer import Measured, Progress, no_progress
from retrieval_interp.tasks import Batch, Task

_QUICK = 16  # examples of random sets
_SEEN = 8  # examples on which it is seen who enables whom
_DROP = 0.1  # least attention that a later path has to lose
_TELLING = 0.02  # least rise in attention along the path that stands for a head or row
_CUT = 0.05  # least difference in attention of paths that are cut
Seen = dict[str, dict[int, Tensor]]  # queries, keys, own and used patterns by layer


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
    recovery = Recovery(model, task, batch)
    levels = tuple(
        LevelScore(
            level.name, level.units, recovery.kept(level.units), recovery.without(level.units)
        )
        for level in search.levels
    )
    units = search.levels[-1].units if search.levels else ()
    control, scores, needed = list[float](), list[UnitScore](), list[Needed]()
    missing = [search.missing] if search.missing else []
    few = Recovery(model, task, batch[:_QUICK])
    few.deadline = recovery.deadline = search.deadline
    means = mean_attention(model, batch).cpu(), _counterfactual_means(batch)
    try:
        for score in _unit_scores(search, recovery, units, *means, progress):
            scores.append(score)
        for each in progress(_random_sets(few, search, controls, seed), "random sets"):
            control.append(few.kept(each).share)
        paths = dict.fromkeys(score.path.path for score in scores if score.path is not None)
        for path in progress(list(paths), "cutting paths in all heads"):
            needed += _needed(search, few, path, means[0] - means[1])
    except OutOfTime:
        left = f"{len(scores)} of {len(units)} {search.levels[-1].name} were left out"
        missing.append(f"when the time was over, {left}, and {len(control)} random sets tried")
    return Explanation(
        task.task,
        batch,
        other,
        search.keep,
        Measured.of(recovery.intact),
        Measured.of(recovery.nothing),
        levels,
        tuple(sorted(control)),
        tuple(scores),
        tuple(needed),
        keeping(recovery.empty, recovery.heads, units),
        len(search.recovery.batch),
        search.recovery.runs + recovery.runs,
        "; ".join(missing),
    )


def _counterfactual_means(batch: Batch) -> Tensor:
    layers = batch.counterfactual.unbind(1) if batch.counterfactual is not None else ()
    return torch.stack([attention_by_role(each, batch.roles)[0] for each in layers]).cpu()


def _random_sets(
    recovery: Recovery, search: KeepSearch, count: int, seed: int
) -> Iterator[list[Unit]]:
    """Sets of as many units as the last level has."""
    if not search.levels:
        return
    level, draw = search.levels[-1], random.Random(seed)
    paths, heads = allowed_paths(recovery.batch, is_causal(recovery.model)), recovery.heads
    every = {
        "heads": [Unit(head) for head in heads],
        "rows": [Unit(head, dest) for head in heads for dest in {p.dest for p in paths}],
        "paths": [Unit(head, *path) for head in heads for path in paths],
    }[level.name]
    for _ in range(count):
        yield draw.sample(every, min(len(level.units), len(every)))


def _needed(
    search: KeepSearch, telling: Recovery, path: RolePath, change: Tensor
) -> Iterator[Needed]:
    """Smallest sets of heads of whose paths the intact model needs one.

    Found on examples that decide, and returned if they are so on the others too.
    """
    estimates, keep = search.estimates, search.keep
    heads = [head for head in telling.heads if abs(float(change[head][path])) >= _CUT]
    units = [Unit(head, *path) for head in heads]
    if estimates is not None:
        units.sort(key=estimates.of, reverse=True)
    deciding = Recovery(search.model, search.task, search.recovery.batch[:_QUICK])
    deciding.deadline = telling.deadline
    for recovery in (deciding, telling):
        recovery.around(None)
    for needed in minimal_sets(units, lambda lost: deciding.needs(lost, keep) is True):
        fewer = [[other for other in needed if other != unit] for unit in needed if needed[1:]]
        if all(
            recovery.needs(needed, keep) is True
            and all(recovery.needs(some, keep) is False for some in fewer)
            for recovery in (deciding, telling)
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
    model, batch, estimates = search.model, recovery.batch, search.estimates
    paths = {unit: _main_path(unit, own - other, batch, is_causal(model)) for unit in units}
    recovery.around(units)
    few = batch[:_SEEN]
    whole = keeping(recovery.empty, recovery.heads, units)
    with_all = _seen(model, whole, few)
    for unit in progress(units, "leaving out one by one"):
        rest = [each for each in units if each != unit]
        path = paths[unit]
        later = [paths[each] for each in units if each.head.layer > unit.head.layer]
        later_paths = list(dict.fromkeys(each for each in later if each is not None))
        enables: tuple[Enabled, ...] = ()
        if later_paths:
            circuit = keeping(recovery.empty, recovery.heads, rest)
            enables = tuple(_enabled(model, few, whole, circuit, with_all, later_paths))
        yield UnitScore(
            unit,
            path,
            head_name(path.path, search.task.task, batch) if path else "",
            float(own[path.head][path.path]) if path else float("nan"),
            float(other[path.head][path.path]) if path else float("nan"),
            estimates.of(unit) if estimates else float("nan"),
            recovery.kept(rest) if rest else Share(0.0, 0.0),
            enables,
        )


def _main_path(unit: Unit, change: Tensor, batch: Batch, causal: bool) -> HeadPath | None:
    """Its own path, or that of its head or row along which attention rises most, if it does."""
    if unit.dest is not None and unit.src is not None:
        return HeadPath(unit.head, RolePath(unit.dest, unit.src))
    paths = [p for p in allowed_paths(batch, causal) if unit.dest in (None, p.dest)]
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


def _enabled(
    model: Any,
    batch: Batch,
    whole: Circuit,
    circuit: Circuit,
    with_all: Seen,
    later: Sequence[HeadPath],
) -> Iterator[Enabled]:
    """Later paths that lose attention when a circuit is one unit short of another."""
    without = _seen(model, circuit, batch)

    def along(seen: Seen, path: HeadPath) -> float:
        pattern = seen["pattern"][path.head.layer][:, path.head.head]
        return float(attention_along(pattern, path.path, batch.roles)[0])

    lost = [p for p in later if along(with_all, p) - along(without, p) >= _DROP]
    if not lost:
        return
    sides = [
        _seen(model, whole, batch, {name: without[name]}, with_all["used"]) for name in ("q", "k")
    ]
    for path in sorted(lost, key=lambda p: along(without, p) - along(with_all, p)):
        both = along(with_all, path), along(without, path)
        yield Enabled(path, *both, *(along(side, path) for side in sides))


def _seen(
    model: Any,
    circuit: Circuit,
    batch: Batch,
    put: Mapping[str, Mapping[int, Tensor]] | None = None,
    used: Mapping[int, Tensor] | None = None,
) -> Seen:
    """Queries, keys and patterns in a run of a circuit.

    With other queries or keys `put` in, and the patterns `used` in spite of them, so that nothing
    else changes: what each head attends to by these queries and keys alone.
    """
    seen: Seen = {"q": {}, "k": {}, "pattern": {}, "used": {}}

    def note(name: str) -> Callable[..., None]:
        def hold(x: Tensor, hook: Any) -> None:
            seen[name][hook.layer()] = x.detach()

        return hold

    def set_to(values: Mapping[int, Tensor]) -> Callable[..., Tensor]:
        return lambda x, hook: values[hook.layer()]

    layers = range(model.cfg.n_layers)

    def hooks(name: str, function: Callable[..., Any]) -> list[tuple[str, Callable[..., Any]]]:
        names = [pattern_hook_name(layer) for layer in layers]
        return [(each.replace("hook_pattern", f"hook_{name}"), function) for each in names]

    before = [hook for name, of in (put or {}).items() for hook in hooks(name, set_to(of))]
    before += [hook for name in ("q", "k", "pattern") for hook in hooks(name, note(name))]
    with torch.no_grad(), ExitStack() as stack:
        stack.enter_context(model.hooks(fwd_hooks=before))
        if used is None:
            stack.enter_context(ablated(model, circuit, batch))
        else:
            stack.enter_context(model.hooks(fwd_hooks=hooks("pattern", set_to(used))))
        stack.enter_context(model.hooks(fwd_hooks=hooks("pattern", note("used"))))
        Hooked(model).run(batch)
    return seen
