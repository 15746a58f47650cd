"""Searching for a circuit (paper, appendix E, automated).

Its seven steps are in docs/guide/discovery.md: 1. list candidates (`space`); 2. to 6. starts,
simplify, rearrange, start again, two changes at once (`steps`, which decide by a `judge`); 7. what
the intact model needs, also where any of several heads would do. Unlike the paper, a head is judged
with all other replacements in place.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, TypeVar

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.discovery.judge import Judge, OutOfTime
from retrieval_interp.circuits.discovery.space import Space, rule_candidates
from retrieval_interp.circuits.discovery.steps import Doing, Result, Steps
from retrieval_interp.circuits.hooks import is_causal
from retrieval_interp.circuits.mechanisms import Cut
from retrieval_interp.circuits.paths import Head, HeadPath
from retrieval_interp.circuits.runs.fits import draw_batch
from retrieval_interp.circuits.runs.means import mean_attention
from retrieval_interp.circuits.scores.control import allowed_attention, allowed_paths
from retrieval_interp.circuits.scores.scorer import Progress, all_but_one, heads_of, no_progress
from retrieval_interp.tasks import InputError, Task

Item = TypeVar("Item")
STRATEGIES: dict[str, Callable[[Steps, int], Doing[Circuit]]] = {"greedy": Steps.search}
_WEAKEST = 0.05  # paths with less mean attention are not cut in the intact model
_CANCELLED = (
    "the search was cancelled; a simpler circuit may exist, and what the intact model needs was "
    "not looked for"
)


@dataclass(frozen=True)
class SearchOptions:
    """How to search for a circuit.

    Attributes:
        tolerance: the loss that the circuit has to stay below; by default the task's (0.05 in the
            paper), or else the loss at which 95% of what the model has learned is kept.
        examples: number of examples that decide.
        seed: of these examples.
        restarts: number of starting circuits, at least 1; there are at most 8.
        shared: whether several sources may share a role's attention; otherwise paths are one-hot
            only, as in the paper.
        time: seconds that it may take, by default until there is a local optimum. After two thirds
            of it the best circuit so far is taken; the rest is for what the intact model needs.
        heads: heads that may be replaced, by default all; the others stay as they are.
        strategy: one of `STRATEGIES`, what to do with the steps and the number of restarts.
    """

    tolerance: float | None = None
    examples: int = 512
    seed: int = 0
    restarts: int = 2
    shared: bool = True
    time: float | None = None
    heads: Sequence[Head] | None = None
    strategy: str = "greedy"
    fewest: str = "paths"

    def __post_init__(self) -> None:
        if self.restarts < 1:
            raise InputError(f"restarts: expected at least 1, found {self.restarts}")
        if self.time is not None and not self.time > 0:
            raise InputError(f"time: expected more than 0 seconds, found {self.time:g}")
        if self.strategy not in STRATEGIES:
            expected = ", ".join(STRATEGIES)
            raise InputError(f"strategy: expected one of {expected}, found {self.strategy!r:.40}")


DEFAULTS = SearchOptions()


@dataclass(frozen=True)
class SearchState:
    """Where a search is."""

    doing: str
    scored: int  # circuits whose exact loss was measured, on some or all examples
    best: Circuit  # so far; empty before the first that holds
    cost: int | None = None  # of the best circuit
    loss: float | None = None  # of the best circuit, on the examples that decide

    def __str__(self) -> str:
        found = self.loss is not None
        best = f"best cost {self.cost}, loss {self.loss:.4f}" if found else "none holds yet"
        return f"{self.doing}; {self.scored} scored; {best}"


def discover(
    model: Any,
    task: Task,
    tolerance: float | None = None,
    examples: int | None = None,
    *,
    options: SearchOptions = DEFAULTS,
    progress: Progress = no_progress,
    **choices: Any,
) -> Circuit:
    """Search for the simplest circuit that keeps the loss below the tolerance.

    With loss(C) the mean loss with circuit C in place and se(C) its standard error, it minimizes
    the sum of the costs of all heads (`Mechanism.cost`) over the circuits that hold:

        loss(C) + 2 se(C) < tolerance

    Where no tolerance is stated, se(C) is the standard error of loss(C) - intact, example by
    example. The search is greedy, from several starts, so a cheaper circuit may exist.

    Args:
        model: a hooked model that reads the task's batches; left unchanged.
        task: draws the examples, from its `discovery` split, and gives the loss.
        tolerance, examples: in place of those of `options`.
        options: how to search.
        progress: wraps the search, as `(search, text)`, and passes its `SearchState`s on. If it
            ends before the search does, the best circuit so far is taken, as after Ctrl-C.
        choices: fields of `SearchOptions` in place of those of `options`, such as `restarts=1`.

    Returns:
        A circuit that names every replaced head; empty for a model that has not learned the task,
        and where no head can be replaced. If the search was cut short, its `unfinished` says why
        and what is missing.

    Raises:
        KeyboardInterrupt: the search was cancelled before any circuit held.
    """
    given = {"tolerance": tolerance, "examples": examples, **choices}
    given = {name: value for name, value in given.items() if value is not None}
    search = Search(model, task, replace(options, **given))
    with suppress(KeyboardInterrupt):
        for _ in progress(search, "searching"):
            pass
    found = search.circuit
    if search.missing == [_CANCELLED] and not found.mechanisms:
        raise KeyboardInterrupt("cancelled before any circuit held")
    return found


class Search:
    """A search, which goes on while it is iterated over and can be left at any time.

    `best` is the best circuit so far that is known to hold; `missing` says what was not done.
    """

    def __init__(self, model: Any, task: Task, options: SearchOptions = DEFAULTS):
        start, device = monotonic(), next(model.parameters()).device
        limit = math.inf if options.time is None else options.time
        self._deadlines = start + limit * 2 / 3, start + limit
        self._strategy, self._restarts = options.strategy, options.restarts
        batch = draw_batch(task, options.examples, options.seed, device, "discovery")
        every = heads_of(model)
        heads = every if options.heads is None else sorted(set(options.heads))
        if not heads or not set(heads) <= set(every):
            expected = f"one or more of {every[0]} to {every[-1]}"
            found = ", ".join(str(head) for head in heads if head not in every) or "none"
            raise InputError(f"heads: expected {expected}, found {found}")
        self.judge = Judge(model, task, batch, options.tolerance)
        attention = allowed_attention(mean_attention(model, batch).cpu(), batch, is_causal(model))
        rules = rule_candidates(model, batch, heads)
        self.space = Space(
            self.judge.empty, attention, heads, rules, options.shared, options.fewest
        )
        self.steps, self.best, self._ranked = Steps(self.judge, self.space), self.judge.empty, 0
        self._found: Circuit | None = None
        self._last = SearchState("", 0, self.best)
        self.needed: list[tuple[HeadPath, ...]] = []  # sets of paths, any one of which is needed
        self.missing = [_CANCELLED]

    def __iter__(self) -> Iterator[SearchState]:
        if not self.judge.learned:
            self._found, self.missing = self.judge.empty, []
            return
        searching = STRATEGIES[self._strategy](self.steps, self._restarts)
        found = yield from self._until(self._deadlines[0], searching)
        late = "the search was stopped by its time limit; a simpler circuit may exist"
        before = [late] if found is None else []
        self._found = self.best if found is None else found
        unknown = "before all paths were cut; the intact model may need more"
        self.missing = [*before, f"cancelled {unknown}"]
        done = yield from self._until(self._deadlines[1], self.cut_paths())
        self.missing = before if done else [*before, f"stopped by its time limit {unknown}"]

    @property
    def circuit(self) -> Circuit:
        """What was found so far, with the paths that the intact model needs and it does not."""
        circuit = self.best if self._found is None else self._found
        single = {paths[0] for paths in self.needed if len(paths) == 1}
        return replace(
            circuit,
            enabling=tuple(sorted(single - set(circuit.paths()))),
            redundant=tuple(sorted(paths for paths in self.needed if len(paths) > 1)),
            unfinished="; ".join(self.missing),
        )

    def cut_paths(self) -> Doing[bool]:
        """What the intact model needs (`needed_paths`), which is added to `needed`.

        Where two heads do the same, cutting either one changes nothing. So a role path is cut in
        all heads at once, and where the model minds, the smallest sets of heads are looked for.
        """
        empty, attention, heads = self.judge.empty, self.space.attention, self.space.heads
        if not self.judge.keeps(empty):
            return True  # no cut can be blamed
        near = self.judge.around(empty)
        paths = allowed_paths(near.batch, is_causal(near.model))
        present = [HeadPath(h, p) for p in paths for h in heads if attention[h][p] >= _WEAKEST]
        yield "ordering paths"
        changes = self.judge.changes(empty)
        effects = [changes.change(head, Cut((path,))).effect for head, path in present]
        by_effect = [path for _, path in sorted(zip(effects, present), reverse=True)]
        each = list(dict.fromkeys(path.path for path in by_effect))
        for number, same in enumerate(each):
            yield f"cutting paths, {number + 1} of {len(each)}"
            heads_of_it = [path for path in by_effect if path.path == same]
            for needed in minimal_sets(heads_of_it, lambda lost: near.exceeds(empty.cut(*lost))):
                others = all_but_one(needed) if len(needed) > 1 else []
                if all(near.keeps(empty.cut(*left)) for left in others):
                    self.needed.append(tuple(sorted(needed)))
        return True

    def _until(
        self, deadline: float, doing: Doing[Result]
    ) -> Generator[SearchState, None, Result | None]:
        """Do it and tell of it; None if it is not done in time."""
        while monotonic() <= deadline:
            self.judge.deadline = deadline
            try:
                what = next(doing)
            except StopIteration as end:
                result: Result = end.value
                return result
            except OutOfTime:
                return None
            finally:
                self.judge.deadline = math.inf
            yield self._state(what)
        return None

    def _state(self, doing: str) -> SearchState:
        if held := self.judge.holding[self._ranked :]:
            self._ranked += len(held)
            self.best = min([self.best, *held], key=self.steps.rank)
            if self.best.mechanisms:
                loss = float(self.judge.losses(self.best).mean())
                self._last = SearchState("", 0, self.best, self.space.cost(self.best), loss)
        return replace(self._last, doing=doing, scored=self.judge.scored)


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

    each by two standard errors. So of a set of several paths any one suffices; where that is not
    clear, no set is returned. Sets are disjoint, and those that seem to matter most come first.
    Paths with less than 0.05 of mean attention are never cut.

    Returns:
        The sets, each sorted; none for a model that has not learned the task or that is not two
        standard errors below the tolerance by itself. Arguments are those of `discover`.
    """
    search = Search(model, task, SearchOptions(tolerance=tolerance, examples=examples, seed=seed))
    if search.judge.learned:
        for _ in progress(search.cut_paths(), "cutting paths"):
            pass
    return search.needed


def minimal_sets(
    items: Sequence[Item], breaks: Callable[[Sequence[Item]], bool]
) -> list[tuple[Item, ...]]:
    """Disjoint sets that break something, but no longer if any one item is left out.

    All items outside these sets, together, break nothing. Items that come first are tried first.

    >>> minimal_sets("abcde", lambda lost: "b" in lost or {"a", "d"} <= set(lost))
    [('b',), ('a', 'd')]
    """
    found: list[tuple[Item, ...]] = []
    rest = list(items)
    while rest and (breaks(rest[:1]) or breaks(rest)):
        size = 1
        while size < len(rest) and not breaks(rest[:size]):
            size *= 2
        sizes = range(size // 2 + 1, min(size, len(rest)))
        least = size // 2 + 1 + bisect_left(sizes, True, key=lambda size: breaks(rest[:size]))
        chosen = rest[:least]
        before: list[Item] = []
        while before != chosen:
            before = chosen
            for item in reversed(before):
                fewer = [other for other in chosen if other != item]
                chosen = fewer if fewer and breaks(fewer) else chosen
        found.append(tuple(chosen))
        rest = [item for item in rest if item not in chosen]
    return found
