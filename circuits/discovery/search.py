"""Searching for a circuit (paper, appendix E, automated).

Its steps are in docs/guide/discovery.md: 1. list candidates (`space`); 2. to 4. look around
ever simpler circuits (`steps`), trying what is predicted to do (`nearby`) by exact losses on
two sets of examples (`judge`); 5. list what the intact model needs (`needed`). Unlike the paper, a
head is judged with all other replacements in place.
"""

import math
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from time import monotonic
from typing import Any

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.discovery.judge import Deadline, Judge, OutOfTime
from retrieval_interp.circuits.discovery.needed import cut_paths
from retrieval_interp.circuits.discovery.space import Space, rule_candidates
from retrieval_interp.circuits.discovery.steps import Doing, Result, Steps
from retrieval_interp.circuits.fits import draw_batch
from retrieval_interp.circuits.hooks import heads_of
from retrieval_interp.circuits.losses import Progress, no_progress
from retrieval_interp.circuits.paths import Head, HeadPath
from retrieval_interp.tasks import Batch, InputError, InputWarning, Task
from retrieval_interp.tasks.structured import check_sampling

_OTHER = 1_000_003  # added to the seed of the examples that confirm


@dataclass(frozen=True)
class SearchOptions:
    """How to search for a circuit.

    Attributes:
        tolerance: the loss that the circuit has to stay below; by default the task's (0.05 in the
            paper), or else the loss at which 95% of what the model has learned is kept.
        examples: number of examples that decide; as many others have to agree.
        seed: of these examples.
        shared: whether several sources may share a role's attention, and rules and measured
            patterns are allowed. Otherwise the paper's rules hold: idle heads are uniform or
            identity, the others one-hot maps, in which a role without a source attends nowhere.
        time: seconds that it may take, by default until there is a local optimum. After two thirds
            of it the best circuit so far is taken; the rest is for what the intact model needs.
        heads: those that may be replaced (also `["L0.H0"]`), by default all; others stay.
        fewest: what counts first, the cost of `paths` or the number of useful `heads`, which are
            those that are neither uniform nor identity.
    """

    tolerance: float | None = None
    examples: int = 512
    seed: int = 0
    shared: bool = True
    time: float | None = None
    heads: Sequence[Head | str] | str | None = None
    fewest: str = "paths"

    def __post_init__(self) -> None:
        check_sampling(self.examples, self.seed, self.tolerance)
        if self.time is not None and not self.time > 0:
            raise InputError(f"time: expected more than 0 seconds, found {self.time:g}")
        if self.fewest not in ("paths", "heads"):
            raise InputError(f"fewest: expected paths or heads, found {self.fewest!r:.40}")


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

    on the examples that decide and on as many others. Where no tolerance is stated, se(C) is the
    standard error of loss(C) - intact, example by example. The search is greedy, so a cheaper
    circuit may exist.

    Args:
        model: a hooked model that reads the task's batches; left unchanged.
        task: draws the examples, from its `discovery` split, and gives the loss.
        tolerance: in place of that of `options`.
        examples: in place of that of `options`.
        options: how to search.
        progress: wraps the search, as `(search, text)`, and passes its `SearchState`s on. If it
            ends before the search does, the best circuit so far is taken, as after Ctrl-C.
        choices: fields of `SearchOptions` in place of those of `options`, such as `shared=False`.

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
    circuit = search.run(progress)
    if not search.missing and not search.judge.learned:
        warnings.warn(search.judge.unlearned_text, InputWarning, stacklevel=2)
    return circuit


class Search:
    """A search, which goes on while it is iterated over and can be left at any time.

    `best` is the best circuit so far that is known to hold; `missing` says what was not done.
    """

    def __init__(self, model: Any, task: Task, options: SearchOptions = DEFAULTS):
        start, limit = monotonic(), math.inf if options.time is None else options.time
        self._deadlines, self.deadline = (start + limit * 2 / 3, start + limit), Deadline()
        self.model, self.task, self.options = model, task, options
        self.batch = self._drawn(options.seed)
        every = heads_of(model)
        some = options.heads.split() if isinstance(options.heads, str) else options.heads
        heads = every if some is None else sorted({Head.parse(str(head)) for head in some})
        if not heads or not set(heads) <= set(every):
            expected = f"one or more of {every[0]} to {every[-1]}"
            found = ", ".join(str(head) for head in heads if head not in every) or "none"
            raise InputError(f"heads: expected {expected}, found {found}")
        self._heads = heads
        self.best, self._ranked = Circuit.empty(task), 0
        self._last = SearchState("", 0, self.best)
        self.needed: list[tuple[HeadPath, ...]] = []  # sets of paths, any one of which is needed
        self._search_ended = "cancelled"  # or why it ended before it was done, or nothing
        self._cuts_ended: str | None = None  # the same of cutting paths; None before that

    def _drawn(self, seed: int) -> Batch:
        device = next(self.model.parameters()).device
        return draw_batch(self.task, self.options.examples, seed, device, "discovery")

    @cached_property
    def judge(self) -> Judge:
        """What decides, on the examples and on as many others."""
        model, task, tolerance, other = self.model, self.task, self.options.tolerance, None
        if not task.fixed:
            others = self._drawn(self.options.seed + _OTHER)
            other = Judge(model, task, others, tolerance, deadline=self.deadline)
        return Judge(model, task, self.batch, tolerance, other, self.deadline)

    @cached_property
    def space(self) -> Space:
        """What may be made of the heads."""
        judge, heads = self.judge, self._heads
        rules = rule_candidates(self.model, self.batch, heads)
        how = self.options.shared, self.options.fewest
        return Space(judge.empty, judge.attention, heads, rules, *how)

    @cached_property
    def steps(self) -> Steps:
        """The steps from circuit to circuit."""
        return Steps(self.judge, self.space)

    def __iter__(self) -> Iterator[SearchState]:
        late = "stopped by its time limit"
        done = yield from self._until(self._deadlines[0], self._simplify())
        self._search_ended = "" if done else late
        if "steps" not in vars(self):
            return  # the model has learned nothing, or measuring it has taken all the time
        self._cuts_ended = "cancelled"
        doing = cut_paths(self.judge, self.space.heads, self.needed)
        done = yield from self._until(self._deadlines[1], doing)
        self._cuts_ended = "" if done else late

    def _simplify(self) -> Doing[bool]:
        if self.judge.learned:
            yield from self.steps.search()
        return True

    @property
    def missing(self) -> list[str]:
        """What was not done, and why."""
        said = []
        if self._search_ended:
            some = bool(self.best.mechanisms)
            known = "a simpler circuit may exist" if some else "no circuit was found"
            said.append(f"the search was {self._search_ended}; {known}")
            if self._cuts_ended is None:
                said[0] += ", and what the intact model needs was not looked for"
        if self._cuts_ended:
            unknown = "before all paths were cut; the intact model may need more"
            said.append(f"{self._cuts_ended} {unknown}")
        return said

    def run(self, progress: Progress = no_progress) -> Circuit:
        """Search to the end, or until it is interrupted; see `discover`."""
        with suppress(KeyboardInterrupt):
            for _ in progress(self, "searching"):
                pass
        if self._search_ended == "cancelled" and not self.best.mechanisms:
            raise KeyboardInterrupt("cancelled before any circuit held")
        return self.circuit

    @property
    def circuit(self) -> Circuit:
        """What was found so far, with the paths that the intact model needs and it does not."""
        single = {paths[0] for paths in self.needed if len(paths) == 1}
        return replace(
            self.best,
            enabling=tuple(sorted(single - set(self.best.paths()))),
            redundant=tuple(sorted(paths for paths in self.needed if len(paths) > 1)),
            unfinished="; ".join(self.missing),
        )

    def front(self) -> list[Circuit]:
        """Of the circuits that hold, those with fewest heads or lowest cost."""
        found: list[Circuit] = []
        space = self.space.aiming("heads")
        for circuit in sorted(self.judge.holding, key=space.simplicity):
            if not found or space.cost(circuit) < space.cost(found[-1]):
                found.append(circuit)
        return found

    def front_text(self) -> str:
        """The front in one line; empty if it is the circuit that was found, and no other."""
        if not self.best.mechanisms:
            return ""
        front, space = self.front(), self.space.aiming("heads")
        each = [(*space.simplicity(one), float(self.judge.losses(one).mean())) for one in front]
        said = ", ".join(f"{heads} heads at cost {cost} ({loss:.4f})" for heads, cost, loss in each)
        return "" if front == [self.best] else f"fewest heads or lowest cost: {said}"

    def _until(
        self, deadline: float, doing: Doing[Result]
    ) -> Generator[SearchState, None, Result | None]:
        """Do it and tell of it; None if it is not done in time."""
        while monotonic() <= deadline:
            self.deadline.at = deadline
            try:
                with self.deadline.of_passes(self.model):
                    what = next(doing)
            except StopIteration as end:
                result: Result = end.value
                return result
            except OutOfTime:
                return None
            finally:
                self.deadline.at = math.inf
            yield self._state(what)
        return None

    def _state(self, doing: str) -> SearchState:
        if held := self.judge.holding[self._ranked :]:
            self._ranked += len(held)
            self.best = min([self.best, *held], key=self.steps.rank)
            if self.best.mechanisms:
                loss = float(self.judge.losses(self.best).mean())
                self._last = SearchState("", 0, self.best, self.space.cost(self.best), loss)
        return replace(self._last, doing=doing, scored=len(self.judge.scored))
