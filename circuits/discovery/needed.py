"""Find the paths that the intact model needs, in one or several heads."""

import warnings
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

from retrieval_interp.circuits.discovery.judge import Judge
from retrieval_interp.circuits.fits import sample_batch
from retrieval_interp.circuits.hooks import HookedModel, heads_of
from retrieval_interp.circuits.losses import Progress, all_but_one, no_progress
from retrieval_interp.circuits.mechanisms import Cut
from retrieval_interp.circuits.paths import Head, HeadPath, RolePath, named
from retrieval_interp.tasks import InputWarning, Task
from retrieval_interp.tasks.structured import check_sampling

Item = TypeVar("Item", bound=Hashable)
Paths = tuple[HeadPath, ...]
_LEAST_ATTENTION = 0.05  # paths with less mean attention are not cut


def needed_paths(
    model: HookedModel,
    task: Task,
    tolerance: float | None = None,
    examples: int = 512,
    seed: int = 0,
    progress: Progress = no_progress,
) -> list[Paths]:
    """Find the paths that a model needs, in one head or in one of several.

    With loss(S) the loss of the intact model with the paths S cut live, each set S that is
    returned has one role path, in one or more heads, and

        loss(S) > tolerance,  but  loss(S without p) < tolerance  for every path p in S

    each by two standard errors; unclear sets are not returned. So the model needs one path of every
    set; any one suffices if no other set overlaps. If any two of three heads suffice, every pair of
    them is a set. Paths with less mean attention than 0.05 are never cut. Arguments are those of
    `discover`.

    Returns:
        The sets, each a sorted tuple; none for a model that has not learned the task or that is
        not two standard errors below the tolerance by itself.
    """
    check_sampling(examples, seed, tolerance)
    device = next(model.parameters()).device
    judge = Judge(model, task, sample_batch(task, examples, seed, device, "discovery"), tolerance)
    if not judge.learned:
        warnings.warn(judge.unlearned_text, InputWarning, stacklevel=2)
        return []
    sets: list[Paths] = []
    for _ in progress(cut_paths(judge, heads_of(model), sets), "cutting paths"):
        pass
    return [named(paths, task.role_names) for paths in sets]


def cut_paths(judge: Judge, heads: Sequence[Head], sets: list[Paths]) -> Iterator[str]:
    """Add the sets of paths that the intact model needs to `sets`; yield what is done.

    Where two heads do the same, cutting it in either of them changes little. So each role path is
    cut in all heads at once; if the model needs it in some, all minimal sets of heads are found.
    """
    empty = judge.empty
    if not judge.holds_here(empty):
        return  # no cut can be blamed
    is_strong = judge.attention >= _LEAST_ATTENTION
    strong = {head: is_strong[head].nonzero().tolist() for head in heads}
    present = [HeadPath(head, RolePath(*path)) for head in heads for path in strong[head]]
    yield "ordering paths"
    estimates = judge.estimates_around(empty)
    effects = [estimates.change(head, Cut((path,))).effect for head, path in present]
    by_effect = [path for _, path in sorted(zip(effects, present), reverse=True)]
    role_paths = list(dict.fromkeys(path.path for path in by_effect))
    for number, role_path in enumerate(role_paths, 1):
        yield f"cutting paths, {number} of {len(role_paths)}"
        alike = [path for path in by_effect if path.path == role_path]
        for needed in minimal_sets(alike, lambda cut: judge.exceeds(empty.cut(*cut), empty)):
            fewer = all_but_one(needed) if len(needed) > 1 else []
            if all(judge.holds_here(empty.cut(*cut), empty) for cut in fewer):
                sets.append(tuple(sorted(needed)))


def minimal_sets(
    items: Sequence[Item], breaks: Callable[[Sequence[Item]], bool], max_nodes: int = 64
) -> list[tuple[Item, ...]]:
    """Find all minimal sets of items whose removal breaks something.

    A first set is found among all items; then, for each of its items, others among the items that
    remain if that one is kept, and so on (Reiter's hitting-set tree).

    Args:
        items: the items, those whose removal should do most harm first.
        breaks: whether removing some items breaks it; removing more must not repair it.
        max_nodes: nodes of the tree that are visited; of very many sets some are not found.

    >>> minimal_sets("abcde", lambda lost: "b" in lost or len({"a", "d", "e"} & set(lost)) > 1)
    [('b',), ('a', 'd'), ('a', 'e'), ('d', 'e')]
    """
    sets: list[tuple[Item, ...]] = []
    waiting, seen = [frozenset[Item]()], set[frozenset[Item]]()  # items that are kept
    while waiting and len(seen) < max_nodes:
        kept = waiting.pop(0)
        if kept in seen:
            continue
        seen.add(kept)
        minimal = next((earlier for earlier in sets if kept.isdisjoint(earlier)), ())
        if not minimal:
            minimal = _minimal_set([item for item in items if item not in kept], breaks)
            sets += [minimal] if minimal else []
        waiting += [kept | {item} for item in minimal]
    return sets


def _minimal_set(
    items: Sequence[Item], breaks: Callable[[Sequence[Item]], bool]
) -> tuple[Item, ...]:
    """Find a minimal set of items whose removal breaks something; or ().

    The shortest prefix that breaks it, by doubling and bisection, without what is not needed.
    """
    if not items or not (breaks(items) or breaks(items[:1])):
        return ()
    size = 1
    while size < len(items) and not breaks(items[:size]):
        size *= 2
    sizes = range(size // 2 + 1, min(size, len(items)))
    n_enough = size // 2 + 1 + bisect_left(sizes, True, key=lambda size: breaks(items[:size]))
    chosen = items[:n_enough]
    before: Sequence[Item] = []
    while before != chosen:
        before = chosen
        for item in reversed(before):
            fewer = [kept for kept in chosen if kept != item]
            chosen = fewer if fewer and breaks(fewer) else chosen
    return tuple(chosen)
