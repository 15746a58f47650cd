"""Search for the simplest circuit below a tolerance (appendix E, automated).

1. List the mechanisms that each head may take, and their costs (`space`).
2. A strategy tries circuits. Exact losses on two sets of examples decide which of them hold
   (`judge`). The default one, `simplify`, is a local search: around a circuit it tries simpler ones
   that are predicted to hold (`space`), and goes on from the first that does hold.
3. List the paths that the intact model needs (`needed`).

Unlike the paper, it judges a head with all other replacements in place.
"""

import math
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import monotonic
from typing import Any, Literal, NamedTuple

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.deadline import Deadline
from retrieval_interp.circuits.discovery.judge import Judge
from retrieval_interp.circuits.discovery.needed import cut_paths
from retrieval_interp.circuits.discovery.space import (
    EFFORT,
    Effort,
    Neighbourhood,
    Predicted,
    Space,
    rule_candidates,
)
from retrieval_interp.circuits.fits import sample_batch
from retrieval_interp.circuits.hooks import HookedModel, heads_of
from retrieval_interp.circuits.losses import Progress, no_progress
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM, Mechanism
from retrieval_interp.circuits.paths import Head, HeadPath
from retrieval_interp.tasks import Batch, InputError, InputWarning, Task
from retrieval_interp.tasks.structured import check_sampling, from_data

_CONFIRMING = 1_000_003  # added to the seed, for the examples that confirm what holds
_IDLE = IDENTITY, UNIFORM
_SAME_LOSS = 1e-4  # measured losses that differ by less count as equal
Ending = Literal["not begun", "cancelled", "stopped by its time limit", "done"]
Strategy = Callable[["Search"], Iterator[str]]
"""Tries circuits with `Search.holds`, and yields what it is doing, in words."""


@dataclass(frozen=True)
class SearchOptions:
    """How to search for a circuit.

    Attributes:
        tolerance: the loss that the circuit has to stay below; by default the task's (0.05 in the
            paper), or else the loss at which 95% of what the model has learned is kept.
        examples: number of examples that decide; as many others have to agree.
        seed: of these examples.
        shared: whether several sources may share a role's attention, and rules and measured
            patterns are allowed. If not, the search follows the paper: idle heads are uniform or
            identity, all others one-hot maps, in which a role without a source attends nowhere.
        time: seconds that it may take; by default it searches until a local optimum. After two
            thirds of this time it takes the best circuit so far; the rest is for what the intact
            model needs.
        heads: those that may be replaced (also `["L0.H0"]`), by default all; the others stay as
            they are.
        fewest: what counts first: a lower cost of `paths`, or fewer useful `heads`, those that are
            neither uniform nor identity.
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


@dataclass(frozen=True)
class SearchState:
    """The progress of a search."""

    doing: str
    scored: int  # circuits whose loss was measured, on some or all examples
    best: Circuit  # so far; empty before the first that holds
    cost: int | None = None  # of the best circuit
    loss: float | None = None  # of the best circuit, on the examples that decide

    def __str__(self) -> str:
        held = self.loss is not None
        best = f"best cost {self.cost}, loss {self.loss:.4f}" if held else "none holds yet"
        return f"{self.doing}; {self.scored} scored; {best}"


def discover(
    model: HookedModel,
    task: Task,
    *,
    strategy: Strategy | None = None,
    progress: Progress = no_progress,
    **options: Any,
) -> Circuit:
    """Search for the simplest circuit that keeps the loss below the tolerance.

    With loss(C) the mean loss with circuit C in place and se(C) its standard error, it minimizes
    the sum of the costs of all heads (docs/guide/discovery.md) over the circuits that hold:

        loss(C) + 2 se(C) < tolerance

    on the examples that decide and on as many others. If no tolerance is stated, se(C) is the
    standard error of loss(C) - intact, example by example. The search is greedy, so a cheaper
    circuit may exist.

    Args:
        model: a hooked model that reads the task's batches; left unchanged.
        task: draws the examples, from its `discovery` split, and gives the loss.
        strategy: which circuits to try, as a function of a `Search`; by default `simplify`.
        progress: wraps the search, as `(search, text)`, and passes its `SearchState`s on. If it
            ends before the search does, the best circuit so far is taken, as after Ctrl-C.
        options: fields of `SearchOptions`, such as `tolerance=0.1` or `shared=False`.

    Returns:
        A circuit that names every replaced head; empty if the model has not learned the task, or no
        head can be replaced. If the search was cut short, its `unfinished` says why and what is
        missing.

    Raises:
        KeyboardInterrupt: the search was cancelled before any circuit held.
    """
    stated = {name: value for name, value in options.items() if name != "heads"}
    from_data(SearchOptions, stated, "discover")
    search = Search(model, task, SearchOptions(**options), strategy)
    circuit = search.run(progress)
    if not search.missing and not search.judge.learned:
        warnings.warn(search.judge.unlearned_text, InputWarning, stacklevel=2)
    return circuit


class Search:
    """A search, which runs while it is iterated over and can be stopped at any time.

    It offers a strategy the circuits to try (`starts`, `neighbours_of`), their cost (`cost`,
    `complexity`), their loss (`loss`, `limit`), and whether they hold (`holds`, `holding`, `best`).

    Attributes:
        heads: the heads that may be replaced.
        needed: sets of paths; the intact model needs one path of each set (`needed_paths`).
    """

    yields_states = True  # texts to show while it goes on (`progress_bar`)

    def __init__(
        self,
        model: HookedModel,
        task: Task,
        options: SearchOptions = SearchOptions(),
        strategy: Strategy | None = None,
    ):
        start, seconds = monotonic(), math.inf if options.time is None else options.time
        self._deadlines, self.deadline = (start + seconds * 2 / 3, start + seconds), Deadline()
        self.model, self.task, self.options = model, task, options
        self.strategy = strategy or simplify
        self.batch = self._drawn(options.seed)
        every = heads_of(model)
        named = options.heads.split() if isinstance(options.heads, str) else options.heads
        self.heads = every if named is None else sorted({Head.parse(str(head)) for head in named})
        if not self.heads or not set(self.heads) <= set(every):
            expected = f"one or more of {every[0]} to {every[-1]}"
            unknown = ", ".join(str(head) for head in self.heads if head not in every) or "none"
            raise InputError(f"heads: expected {expected}, found {unknown}")
        self.needed: list[tuple[HeadPath, ...]] = []
        self._judge: Judge | None = None  # made while the search goes on, as it takes time
        self._best, self._ranked = Circuit.empty(task), 0
        self._search_ended: Ending = "cancelled"
        self._cuts_ended: Ending = "not begun"

    def _drawn(self, seed: int) -> Batch:
        device = next(self.model.parameters()).device
        return sample_batch(self.task, self.options.examples, seed, device, "discovery")

    @property
    def judge(self) -> Judge:
        """Measures losses on the examples that decide, and on as many others to confirm."""
        if self._judge is None:
            model, task, tolerance, confirming = self.model, self.task, self.options.tolerance, None
            if not task.fixed:
                fresh = self._drawn(self.options.seed + _CONFIRMING)
                confirming = Judge(model, task, fresh, tolerance, deadline=self.deadline)
            self._judge = Judge(model, task, self.batch, tolerance, confirming, self.deadline)
        return self._judge

    @cached_property
    def space(self) -> Space:
        """The circuits that may be tried, and their costs."""
        judge, heads, options = self.judge, self.heads, self.options
        rules = rule_candidates(self.model, self.batch, heads)
        return Space(judge.empty, judge.attention, heads, rules, options.shared, options.fewest)

    # What a strategy needs

    @property
    def starts(self) -> list[Circuit]:
        """Circuits that treat all heads alike, by their attention."""
        return self.space.starts

    def neighbours_of(self, circuit: Circuit, head: Head) -> list[Mechanism]:
        """Return mechanisms one change away: another candidate, a path more or less."""
        choice = self.space.choice(head, circuit[head])
        return [option.mechanism for option in self.space.neighbours(choice)]

    def cost(self, circuit: Circuit) -> int:
        """Return the cost of a circuit: the sum over all heads that may be replaced."""
        return self.space.cost(circuit)

    def useful(self, circuit: Circuit) -> list[Head]:
        """Return replaceable heads whose mechanism costs something, unlike uniform and identity."""
        return self.space.useful(circuit)

    def complexity(self, circuit: Circuit) -> int:
        """Return a number, lower for simpler circuits: by cost, heads, and `fewest`."""
        return self.space.complexity(circuit)

    @property
    def limit(self) -> float:
        """The loss that a circuit has to stay below."""
        return self.judge.limit.loss

    def loss(
        self, circuit: Circuit, near: Circuit | None = None, examples: int | None = 64
    ) -> float:
        """Return the exact loss on the first 16, 64 or 192 examples, or on all (None).

        With `near`, a circuit from which it differs little, only what differs is computed if the
        model allows it.
        """
        return self.judge.loss(circuit, near, examples)

    def holds(self, circuit: Circuit, near: Circuit | None = None) -> bool:
        """Whether the loss is two standard errors below the limit, on both sets of examples.

        The search returns the best circuit that was passed to this method and holds.
        """
        return self.judge.holds(circuit, near)

    @property
    def holding(self) -> list[Circuit]:
        """The circuits that hold, in the order in which they were tried."""
        return self.judge.holding

    @property
    def best(self) -> Circuit:
        """The best circuit so far that holds, which may measure; empty before there is one."""
        if new := self._judge.holding[self._ranked :] if self._judge else []:
            self._ranked += len(new)
            held = [self._best, *new] if self._best.mechanisms else new
            self._best = min(held, key=self.rank)
        return self._best

    def rank(self, circuit: Circuit) -> tuple[bool, float, int, float]:
        """Return a sort key: what holds, the simplest first, then others by loss."""
        holds = self.judge.holds(circuit)
        loss = self.judge.loss(circuit, examples=None) if holds else self.judge.loss(circuit)
        return not holds, 0.0 if holds else loss, self.complexity(circuit), loss

    # The search itself

    def __iter__(self) -> Iterator[SearchState]:
        deadline, model = self.deadline, self.model
        for doing in deadline.steps_until(self._deadlines[0], self._try_circuits(), model):
            yield self._state(doing)
        self._search_ended = "stopped by its time limit" if deadline.passed else "done"
        if self._judge is None or not self._judge.learned:
            return  # measuring the model has taken all the time, or it has learned nothing
        self._cuts_ended = "cancelled"
        cuts = cut_paths(self.judge, self.heads, self.needed)
        for doing in deadline.steps_until(self._deadlines[1], cuts, model):
            yield self._state(doing)
        self._cuts_ended = "stopped by its time limit" if deadline.passed else "done"

    def _try_circuits(self) -> Iterator[str]:
        if self.judge.learned:
            steps = self.strategy(self)
            if not isinstance(steps, Iterable):
                found = type(steps).__name__
                raise InputError(f"strategy: expected one that yields what it does, found {found}")
            yield from steps

    def _state(self, doing: str) -> SearchState:
        scored, best = len(self.judge.scored), self.best
        if not best.mechanisms:
            return SearchState(doing, scored, best)
        loss = self.judge.loss(best, examples=None)
        return SearchState(doing, scored, best, self.cost(best), loss)

    @property
    def missing(self) -> list[str]:
        """What the search left undone, and why, in words."""
        missing = []
        if self._search_ended != "done":
            held = bool(self.best.mechanisms)
            outcome = "a simpler circuit may exist" if held else "no circuit was found"
            missing.append(f"the search was {self._search_ended}; {outcome}")
            if self._cuts_ended == "not begun":
                missing[0] += ", and what the intact model needs was not looked for"
        if self._cuts_ended not in ("done", "not begun"):
            unknown = "before all paths were cut; the intact model may need more"
            missing.append(f"{self._cuts_ended} {unknown}")
        return missing

    def run(self, progress: Progress = no_progress) -> Circuit:
        """Iterate over the search to its end, or until it is interrupted; see `discover`."""
        with suppress(KeyboardInterrupt):
            for _ in progress(self, "searching"):
                pass
        if self._search_ended == "cancelled" and not self.best.mechanisms:
            raise KeyboardInterrupt("cancelled before any circuit held")
        return self.circuit

    @property
    def circuit(self) -> Circuit:
        """The best circuit so far, with further paths that the model needs."""
        single = {paths[0] for paths in self.needed if len(paths) == 1}
        return replace(
            self.best,
            enabling=tuple(sorted(single - set(self.best.paths()))),
            redundant=tuple(sorted(paths for paths in self.needed if len(paths) > 1)),
            unfinished="; ".join(self.missing),
        )

    def front(self) -> list[Circuit]:
        """Return the Pareto front of what holds, from fewest heads to lowest cost."""
        front: list[Circuit] = []
        for circuit in sorted(self.holding, key=self.space.aiming("heads").complexity):
            if not front or self.cost(circuit) < self.cost(front[-1]):
                front.append(circuit)
        return front

    def front_text(self) -> str:
        """Return the front in one line; empty if it is the best circuit alone."""
        if not self.best.mechanisms or (front := self.front()) == [self.best]:
            return ""
        losses = [self.judge.loss(circuit, examples=None) for circuit in front]
        texts = [
            f"{len(self.useful(circuit))} heads at cost {self.cost(circuit)} ({loss:.4f})"
            for circuit, loss in zip(front, losses)
        ]
        return f"fewest heads or lowest cost: {', '.join(texts)}"


class PlannedSearch(NamedTuple):
    """A local search to do: for circuits near one that are simpler, as the aim counts."""

    aim: Space  # `Space.aiming`
    centre: Circuit
    steps_not_holding: int = 0  # that led here, each to a circuit that loses less


def simplify(search: Search, effort: Effort = EFFORT) -> Iterator[str]:
    """The default strategy: find simpler circuits that hold near one, and go on there.

    It starts at the best circuit that treats all heads alike; if no circuit that holds is reached
    from there, at the intact model. The circuit with fewest paths also has few heads, so a search
    for fewest heads goes on from that one. A work list has the local searches to do next:

    1. In a local search around a circuit, `candidates` are tried by exact losses, the simplest
       first.
    2. If one holds, the list starts again: search around it with both aims (fewest paths, fewest
       heads), and around the best so far. If none holds, nor the centre itself, search around the
       one that loses least, if it loses less than the centre.
    3. When the list is empty, search around circuits that lack one head or path of the best one: to
       do without it may take many changes, which are predicted better from there.
    """
    paths, heads = search.space.aiming("paths"), search.space.aiming("heads")
    searched = set[tuple[str, int, Circuit]]()
    fewest_paths = _Simplification(search, paths, heads, effort, searched)
    fewest_heads = _Simplification(search, heads, paths, effort, searched)
    yield "starting"
    yield from fewest_paths.run(min(search.starts, key=search.rank))
    if not search.holding:
        yield from fewest_paths.run(search.space.empty)
    if search.options.fewest == "heads" and search.holding:
        yield from fewest_heads.run(min(search.holding, key=search.complexity))


@dataclass
class _Simplification:
    """Simplifies circuits by two aims, the first of which decides what is best (`simplify`)."""

    search: Search
    main_aim: Space
    other_aim: Space
    effort: Effort
    searched: set[tuple[str, int, Circuit]]  # with which aim, below which complexity, around what
    work: list[PlannedSearch] = field(default_factory=list)  # what to do next
    is_taken_apart: bool = False  # whether parts of the simplest circuit were taken away

    def run(self, start: Circuit) -> Iterator[str]:
        """Simplify one circuit until no local search finds a simpler one that holds."""
        self._begin_at(start)
        while self.work:
            yield from self._search_around(self.work.pop(0))
            simplest = self._simplest_or(start)
            if not self.work and not self.is_taken_apart and self.search.holds(simplest):
                yield from self._take_apart(simplest)

    def _simplest_or(self, circuit: Circuit) -> Circuit:
        """Return the simplest circuit that holds, or this one before there is any."""
        return min(self.search.holding, key=self.main_aim.complexity, default=circuit)

    def _begin_at(self, circuit: Circuit) -> None:
        """Start the work list again, with a circuit and the simplest so far."""
        self.work = [
            PlannedSearch(self.main_aim, circuit),
            PlannedSearch(self.other_aim, circuit),
            PlannedSearch(self.main_aim, self._simplest_or(circuit)),
        ]
        self.is_taken_apart = False

    def _search_around(self, planned: PlannedSearch) -> Iterator[str]:
        """Try candidates around a circuit, and add to the work list what follows from them."""
        aim, centre, steps = planned
        holding, centre_holds = self.search.holding, self.search.holds(centre)
        below = min(map(aim.complexity, holding), default=sys.maxsize)
        if (aim.fewest, below, centre) in self.searched:
            return
        self.searched.add((aim.fewest, below, centre))
        yield f"looking for fewer {aim.fewest}"
        largest = sys.maxsize
        if aim is self.other_aim and holding:
            largest = self.main_aim.size(min(map(self.main_aim.complexity, holding)))
        nearby = Neighbourhood(aim, centre, self.search.judge, self.effort)
        trials = candidates(nearby, below, largest)
        if not trials:
            return
        trial = yield from self._first_that_holds(trials, centre)
        if self.search.holds(trial):
            self._begin_at(trial)
            return
        most = 2 if holding else self.effort.steps_not_holding
        may_go_on = not centre_holds and steps + 1 < most
        if may_go_on and self._loss(centre) - self._loss(trial) > 10 * _SAME_LOSS:
            self.work.insert(0, PlannedSearch(aim, trial, steps + 1))

    def _first_that_holds(
        self, trials: Sequence[Circuit], centre: Circuit
    ) -> Generator[str, None, Circuit]:
        """Return the first circuit that holds, or else the one that loses least (`settle_idle`)."""
        for number, trial in enumerate(trials, 1):
            yield f"trying circuits, {number} of {len(trials)}"
            if self.search.holds(trial, centre):
                return trial
        return settle_idle(self.search, min(trials, key=self._loss))

    def _take_apart(self, circuit: Circuit) -> Iterator[str]:
        """Search next around the circuits that lack a part of one and lose least."""
        self.is_taken_apart = True
        lacking = list[Circuit]()
        for lesser in lacking_a_part(self.search, circuit):
            yield "taking parts away from the best circuit"
            lacking.append(lesser)
        lacking.sort(key=self._loss)
        self.work = [
            PlannedSearch(self.main_aim, lesser) for lesser in lacking[: self.effort.lacking]
        ]

    def _loss(self, circuit: Circuit) -> float:
        return self.search.loss(circuit, examples=16)


def candidates(nearby: Neighbourhood, below: int, largest: int) -> list[Circuit]:
    """Choose circuits to try in a local search, the simplest first.

    They are of three kinds: those all, half, a quarter, ... of the way along a chain of best single
    changes, those predicted to hold, and those with the lowest predicted losses.

    Args:
        nearby: the circuits near the centre, with predicted losses.
        below: the complexity of the simplest circuit that holds; theirs has to be lower.
        largest: cost and number of useful heads together, at most.
    """
    judge, effort, aim = nearby.judge, nearby.effort, nearby.space
    centre_holds, limit = judge.holds(nearby.circuit), judge.limit.loss

    def is_simpler(predicted: Predicted) -> bool:
        return predicted.complexity < below and aim.size(predicted.complexity) <= largest

    around = filter(is_simpler, nearby.around(below if judge.holding else 0))
    untried = [p for p in around if nearby.circuit_of(p) not in judge.decided]
    greedy = nearby.greedy_changes(limit, down=centre_holds)
    ends = [len(greedy) >> halved for halved in range(len(greedy).bit_length())]
    holding = [predicted for predicted in untried if predicted.loss < limit]
    holding.sort(key=lambda predicted: predicted.complexity)
    others = effort.others if centre_holds else effort.others_far
    chosen = [greedy[end - 1] for end in ends if is_simpler(greedy[end - 1])]
    chosen += [*holding[: effort.predicted_to_hold], *untried[:others]]
    chosen.sort(key=lambda predicted: (predicted.complexity, predicted.loss))
    return list(dict.fromkeys(map(nearby.circuit_of, chosen)))


def settle_idle(search: Search, circuit: Circuit) -> Circuit:
    """Set each idle head to uniform or identity, whichever loses less.

    If runs are not cheap (`Judge.runs_are_cheap`), return the circuit unchanged.
    """
    if not search.judge.runs_are_cheap:
        return circuit
    idle = [head for head in search.heads if circuit[head] in _IDLE]
    base, todo = circuit, list(idle)
    while todo:
        head = todo.pop(0)
        exchanged = circuit.replace(head, UNIFORM if circuit[head] == IDENTITY else IDENTITY)
        loss, new_loss = (search.loss(trial, base, examples=16) for trial in (circuit, exchanged))
        if loss - new_loss > _SAME_LOSS:
            circuit, todo = exchanged, [idle_head for idle_head in idle if idle_head != head]
    return circuit


def lacking_a_part(search: Search, best: Circuit) -> Iterator[Circuit]:
    """Yield the best circuit with a useful head made idle, or a path removed.

    An idle head is uniform or identity, whichever loses less.
    """
    for head in search.useful(best):
        without = [best.replace(head, idle) for idle in _IDLE]
        yield min(without, key=lambda circuit: search.loss(circuit, best, examples=16))
    yield from (best.without(path) for path in best.paths() if len(best[path.head].paths) > 1)
