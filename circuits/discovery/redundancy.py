"""Which paths the intact model needs, also where any of several heads would do.

Where two heads do the same, cutting either one changes nothing, and both look idle. So a role path
is cut in all heads at once, and where the model minds, the smallest sets of heads are looked for
that it cannot lose together. Which heads to try first is estimated; what is returned is proven by
exact cuts.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.discovery.judge import Judge
from retrieval_interp.circuits.discovery.steps import Doing, named
from retrieval_interp.circuits.hooks import is_causal
from retrieval_interp.circuits.paths import Head, HeadPath
from retrieval_interp.circuits.runs.fits import draw_batch
from retrieval_interp.circuits.runs.means import mean_attention
from retrieval_interp.circuits.scores.control import allowed_paths
from retrieval_interp.circuits.scores.scorer import Progress, all_but_one, heads_of, no_progress
from retrieval_interp.tasks import Task

Item = TypeVar("Item")
_WEAKEST = 0.05  # paths with less mean attention are not cut


def needed_paths(
    model: Any,
    task: Task,
    tolerance: float | None = None,
    examples: int = 512,
    seed: int = 0,
    progress: Progress = no_progress,
) -> list[tuple[HeadPath, ...]]:
    """Find the paths that a model needs, by themselves or as one of several heads.

    With loss(S) the loss of the intact model with the paths S cut live, each set S that is
    returned has one role path, in one or more heads, and

        loss(S) > tolerance,  but  loss(S without p) < tolerance  for every path p in S

    each by two standard errors (`circuits.scores.tolerance.Bar`). So of a set of several paths any
    one suffices; where that is not clear, no set is returned. Sets are disjoint; where smallest
    sets overlap, those whose heads matter more are returned. Role paths that seem to matter most
    come first. Paths with less than 0.05 of mean attention are never cut.

    Arguments are those of `discover`.

    Returns:
        The sets, each sorted; none for a model that has not learned the task or that is not two
        standard errors below the tolerance by itself.
    """
    device = next(model.parameters()).device
    batch = draw_batch(task, examples, seed, device, "discovery")
    judge = Judge(model, task, batch, tolerance)
    if not judge.learned:
        return []
    attention, every = mean_attention(model, batch).cpu(), heads_of(model)
    found: list[tuple[HeadPath, ...]] = []
    for _ in progress(needed_sets(judge, attention, every, found), "cutting paths"):
        pass
    return found


def needed_sets(
    judge: Judge,
    attention: Float[Tensor, "layer head dest src"],
    heads: Sequence[Head],
    found: list[tuple[HeadPath, ...]],
) -> Doing[bool]:
    """`needed_paths` of some heads, on the examples of a judge; they are added to `found`."""
    if not judge.keeps(judge.empty):
        return True  # no cut can be blamed
    near, empty = judge.around(judge.empty), judge.empty
    paths = allowed_paths(judge.batch, is_causal(judge.model))
    present = [HeadPath(h, path) for path in paths for h in heads if attention[h][path] >= _WEAKEST]
    trials = [empty.cut(path) for path in present]
    effects = yield from named("ordering paths", near.effects(empty, trials))
    by_effect = [path for _, path in sorted(zip(effects, present), reverse=True)]
    each = list(dict.fromkeys(path.path for path in by_effect))
    for number, same in enumerate(each):
        yield f"cutting paths, {number + 1} of {len(each)}"
        heads_of_it = [path for path in by_effect if path.path == same]
        for needed in minimal_sets(heads_of_it, lambda lost: near.exceeds(empty.cut(*lost))):
            others = all_but_one(needed) if len(needed) > 1 else []
            if all(near.keeps(empty.cut(*left)) for left in others):
                found.append(tuple(sorted(needed)))
    return True


def minimal_sets(
    items: Sequence[Item], breaks: Callable[[Sequence[Item]], bool]
) -> list[tuple[Item, ...]]:
    """Disjoint sets that break something, but no longer if any one item is left out.

    All items outside these sets, together, break nothing. Items that come first are tried first.
    Takes about log2 n tests for a set among n items, and one or more for each of its own.

    >>> minimal_sets("abcde", lambda lost: "b" in lost or {"a", "d"} <= set(lost))
    [('b',), ('a', 'd')]
    """
    found: list[tuple[Item, ...]] = []
    rest = list(items)
    while rest and (breaks(rest[:1]) or breaks(rest)):
        chosen = rest[: _shortest(rest, breaks)]
        before: list[Item] = []
        while before != chosen:
            before = chosen
            for item in reversed(before):
                fewer = [other for other in chosen if other != item]
                chosen = fewer if fewer and breaks(fewer) else chosen
        found.append(tuple(chosen))
        rest = [item for item in rest if item not in chosen]
    return found


def _shortest(items: Sequence[Item], breaks: Callable[[Sequence[Item]], bool]) -> int:
    """How many of the first items break it, doubling and then bisecting; all of them do."""
    low, high = 0, 1
    while high < len(items) and not breaks(items[:high]):
        low, high = high, 2 * high
    high = min(high, len(items))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if breaks(items[:middle]) else (middle, high)
    return high
