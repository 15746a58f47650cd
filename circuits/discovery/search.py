"""Searching for a circuit (paper, appendix E, automated).

Its seven steps are in docs/guide/discovery.md: 1. list candidates (`space`); 2. to 6. starts,
simplify, rearrange, start again, two changes at once (`steps`, which decide by a `judge`); 7. what
the intact model needs (`redundancy`). Unlike the paper, a head is judged with all other
replacements in place.
"""

import math
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.discovery.judge import Judge, OutOfTime
from retrieval_interp.circuits.discovery.options import DEFAULTS, SearchOptions
from retrieval_interp.circuits.discovery.redundancy import needed_sets
from retrieval_interp.circuits.discovery.space import Space, rule_candidates
from retrieval_interp.circuits.discovery.steps import Doing, Result, Steps, greedy
from retrieval_interp.circuits.hooks import is_causal
from retrieval_interp.circuits.paths import HeadPath
from retrieval_interp.circuits.runs.fits import draw_batch
from retrieval_interp.circuits.runs.means import mean_attention
from retrieval_interp.circuits.scores.control import allowed_attention
from retrieval_interp.circuits.scores.scorer import Progress, heads_of, no_progress
from retrieval_interp.tasks import InputError, Task

# Steps 2 to 6: yields what is done, and returns the best circuit that holds, or the empty one.
STRATEGIES: dict[str, Callable[[Judge, Space], Doing[Circuit]]] = {"greedy": greedy}
_CANCELLED = (
    "the search was cancelled; a simpler circuit may exist, and what the intact model needs was "
    "not looked for"
)


class SearchStopped(UserWarning):
    """A search ended before it was complete."""


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

        cost(C) = Σ over heads h of cost(C[h])

    over the circuits that hold:

        loss(C) + 2 se(C) < tolerance

    (costs are those of `Mechanism.cost`). Where no tolerance is stated, se(C) is the standard error
    of loss(C) - intact, example by example. The search is greedy, from several starts, so a cheaper
    circuit may exist.

    Args:
        model: a hooked model that reads the task's batches; left unchanged.
        task: draws the examples, from its `discovery` split, and gives the loss.
        tolerance: the loss that the circuit has to stay below; by default as `options` has it.
        examples: number of examples that decide; likewise.
        options: how to search.
        progress: wraps the search, as `(search, text)`, and passes its `SearchState`s on. If it
            ends before the search does, the best circuit so far is taken, as after Ctrl-C.
        choices: fields of `SearchOptions` in place of those of `options`, such as `restarts=1`,
            `time=60.0`, `shared=False`, `seed=1` or `heads=[...]`.

    Returns:
        A circuit that names every replaced head; empty for a model that has not learned the task,
        and where no head can be replaced. It is a proposal: score it on other examples with
        `score_circuit`. If the search was cut short, its `unfinished` says why and what is missing,
        and so does a `SearchStopped` warning.

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
    for missing in search.missing:
        warnings.warn(missing, SearchStopped, stacklevel=2)
    return found


class Search:
    """A search, which goes on while it is iterated over and can be left at any time.

    Then `circuit` is what was found, and `missing` says what is missing and why. `best` is the best
    circuit so far that is known to hold.
    """

    def __init__(self, model: Any, task: Task, options: SearchOptions = DEFAULTS):
        start, device = monotonic(), next(model.parameters()).device
        limit = math.inf if options.time is None else options.time
        self._deadlines = start + limit * 2 / 3, start + limit
        if options.strategy not in STRATEGIES:
            expected = " or ".join(STRATEGIES)
            raise InputError(f"strategy: expected {expected}, found {options.strategy!r:.40}")
        batch = draw_batch(task, options.examples, options.seed, device, "discovery")
        every = heads_of(model)
        heads = [head for head in every if options.heads is None or head in options.heads]
        wrong = ", ".join(str(head) for head in options.heads or () if head not in every)
        if wrong or not heads:
            expected = f"one or more of {every[0]} to {every[-1]}"
            raise InputError(f"heads: expected {expected}, found {wrong or 'none'}")
        # 1. Candidates.
        self.judge = Judge(model, task, batch, options)
        attention = allowed_attention(mean_attention(model, batch).cpu(), batch, is_causal(model))
        rules = rule_candidates(model, batch, heads, options)
        self.space = Space(self.judge.empty, attention, heads, rules, options)
        self.best, self._ranked = self.judge.empty, 0
        self._numbers: tuple[int, float] | tuple[()] = ()
        self._found: Circuit | None = None
        self._needed: list[tuple[HeadPath, ...]] = []
        self.missing = [_CANCELLED]

    def __iter__(self) -> Iterator[SearchState]:
        if not self.judge.learned:
            self._found, self.missing = self.judge.empty, []
            return
        # 2. to 6. Starts, simplifying, rearranging, from several starts, two changes at once.
        strategy = STRATEGIES[self.judge.options.strategy](self.judge, self.space)
        found = yield from self._until(self._deadlines[0], strategy)
        late = "the search was stopped by its time limit; a simpler circuit may exist"
        before = [late] if found is None else []
        self._found = self.best if found is None else found
        # 7. What the intact model needs.
        unknown = "before all paths were cut; the intact model may need more"
        self.missing = [*before, f"cancelled {unknown}"]
        space = self.space
        needed = needed_sets(self.judge, space.attention, space.heads, self._needed)
        done = yield from self._until(self._deadlines[1], needed)
        self.missing = before if done else [*before, f"stopped by its time limit {unknown}"]

    @property
    def circuit(self) -> Circuit:
        """What was found so far, with the paths that the intact model needs and it does not."""
        circuit = self.best if self._found is None else self._found
        single = {paths[0] for paths in self._needed if len(paths) == 1}
        return replace(
            circuit,
            enabling=tuple(sorted(single - set(circuit.paths()))),
            redundant=tuple(sorted(paths for paths in self._needed if len(paths) > 1)),
            unfinished="; ".join(self.missing),
        )

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
        held = self.judge.holding[self._ranked :]
        if held:
            self._ranked += len(held)
            self.best = min([self.best, *held], key=Steps(self.judge, self.space).rank)
            if self.best.mechanisms:
                self._numbers = self.space.cost(self.best), self.judge.exact_loss(self.best)
        return SearchState(doing, self.judge.scored, self.best, *self._numbers)
