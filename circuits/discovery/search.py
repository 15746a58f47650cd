"""Searching for a circuit (paper, appendix E, automated), as docs/guide/discovery.md tells it.

1. List what each head may become (`space`).
2. A strategy, by default `simplify`, tries circuits: it looks around ever simpler ones, at what is
   predicted to hold (`nearby`). Exact losses on two sets of examples decide (`judge`).
3. List what the intact model needs (`needed`).

Unlike the paper, a head is judged with all other replacements in place.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from time import monotonic
from typing import Any

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.discovery.judge import Deadline, Judge
from retrieval_interp.circuits.discovery.needed import cut_paths
from retrieval_interp.circuits.discovery.simplify import simplify
from retrieval_interp.circuits.discovery.space import Space, rule_candidates
from retrieval_interp.circuits.mechanisms import Mechanism
from retrieval_interp.circuits.paths import Head, HeadPath
from retrieval_interp.circuits.runs.fits import draw_batch
from retrieval_interp.circuits.scores.scorer import Progress, heads_of, no_progress
from retrieval_interp.tasks import Batch, InputError, InputWarning, Task
from retrieval_interp.tasks.structured import check_sampling

_CONFIRMING = 1_000_003  # added to the seed of the examples that confirm
_LATE = "stopped by its time limit"
Strategy = Callable[["Search"], Iterator[str]]
"""Tries circuits with `Search.holds`; between them it yields what it does, in words."""


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


@dataclass(frozen=True)
class SearchState:
    """Where a search is."""

    doing: str
    scored: int  # circuits whose exact loss was measured, on some or all examples
    best: Circuit  # so far; empty before the first that holds
    cost: int | None = None  # of the best circuit
    loss: float | None = None  # of the best circuit, on the examples that decide

    def __str__(self) -> str:
        held = self.loss is not None
        best = f"best cost {self.cost}, loss {self.loss:.4f}" if held else "none holds yet"
        return f"{self.doing}; {self.scored} scored; {best}"


def discover(
    model: Any,
    task: Task,
    *,
    strategy: Strategy = simplify,
    progress: Progress = no_progress,
    **options: Any,
) -> Circuit:
    """Search for the simplest circuit that keeps the loss below the tolerance.

    With loss(C) the mean loss with circuit C in place and se(C) its standard error, it minimizes
    the sum of the costs of all heads (docs/guide/discovery.md) over the circuits that hold:

        loss(C) + 2 se(C) < tolerance

    on the examples that decide and on as many others. Where no tolerance is stated, se(C) is the
    standard error of loss(C) - intact, example by example. The search is greedy, so a cheaper
    circuit may exist.

    Args:
        model: a hooked model that reads the task's batches; left unchanged.
        task: draws the examples, from its `discovery` split, and gives the loss.
        strategy: which circuits to try, as a function of a `Search`.
        progress: wraps the search, as `(search, text)`, and passes its `SearchState`s on. If it
            ends before the search does, the best circuit so far is taken, as after Ctrl-C.
        options: fields of `SearchOptions`, such as `tolerance=0.1` or `shared=False`.

    Returns:
        A circuit that names every replaced head; empty for a model that has not learned the task,
        and where no head can be replaced. If the search was cut short, its `unfinished` says why
        and what is missing.

    Raises:
        KeyboardInterrupt: the search was cancelled before any circuit held.
    """
    search = Search(model, task, SearchOptions(**options), strategy)
    circuit = search.run(progress)
    if not search.missing and not search.judge.learned:
        warnings.warn(search.judge.unlearned_text, InputWarning, stacklevel=2)
    return circuit


class Search:
    """A search, which goes on while it is iterated over and can be left at any time.

    To a strategy it offers what heads may become (`starts`, `options`), what circuits cost (`cost`,
    `key`), what they lose (`loss`, `limit`), and whether they hold (`holds`, `best`).

    Attributes:
        heads: those that may be replaced.
        needed: sets of paths of the intact model, of each of which it needs one.
    """

    def __init__(
        self,
        model: Any,
        task: Task,
        options: SearchOptions = SearchOptions(),
        strategy: Strategy = simplify,
    ):
        start, limit = monotonic(), math.inf if options.time is None else options.time
        self._deadlines, self.deadline = (start + limit * 2 / 3, start + limit), Deadline()
        self.model, self.task, self.options, self.strategy = model, task, options, strategy
        self.batch = self._drawn(options.seed)
        every = heads_of(model)
        named = options.heads.split() if isinstance(options.heads, str) else options.heads
        self.heads = every if named is None else sorted({Head.parse(str(head)) for head in named})
        if not self.heads or not set(self.heads) <= set(every):
            expected = f"one or more of {every[0]} to {every[-1]}"
            unknown = ", ".join(str(head) for head in self.heads if head not in every) or "none"
            raise InputError(f"heads: expected {expected}, found {unknown}")
        self.needed: list[tuple[HeadPath, ...]] = []
        self._best, self._ranked = Circuit.empty(task), 0
        self._search_ended = "cancelled"  # or why it ended before it was done, or nothing
        self._cuts_ended: str | None = None  # the same of cutting paths; None before that

    def _drawn(self, seed: int) -> Batch:
        device = next(self.model.parameters()).device
        return draw_batch(self.task, self.options.examples, seed, device, "discovery")

    @cached_property
    def judge(self) -> Judge:
        """What measures and decides, on the examples and on as many others."""
        model, task, tolerance, other = self.model, self.task, self.options.tolerance, None
        if not task.fixed:
            others = self._drawn(self.options.seed + _CONFIRMING)
            other = Judge(model, task, others, tolerance, deadline=self.deadline)
        return Judge(model, task, self.batch, tolerance, other, self.deadline)

    @cached_property
    def space(self) -> Space:
        """What may be made of the heads, and what is simple."""
        judge, options = self.judge, self.options
        rules = rule_candidates(self.model, self.batch, self.heads)
        attention, heads = judge.attention, self.heads
        return Space(judge.empty, attention, heads, rules, options.shared, options.fewest)

    # What a strategy needs

    @property
    def starts(self) -> list[Circuit]:
        """Circuits that treat all heads alike, by their attention."""
        return self.space.starts

    def options_of(self, circuit: Circuit, head: Head) -> list[Mechanism]:
        """What one change makes of a head: another candidate, or one path more or less."""
        return [part.mechanism for part in self.space.options(self.space.part(head, circuit[head]))]

    def cost(self, circuit: Circuit) -> int:
        """The cost of all heads that may be replaced."""
        return self.space.cost(circuit)

    def useful(self, circuit: Circuit) -> list[Head]:
        """The heads that may be replaced and are neither uniform nor identity."""
        return self.space.useful(circuit)

    def key(self, circuit: Circuit) -> int:
        """Lower for simpler circuits: by cost, then by useful heads, or as `fewest` says."""
        return self.space.key(circuit)

    @property
    def limit(self) -> float:
        """The loss that a circuit has to stay below."""
        return self.judge.bar.loss

    def loss(self, circuit: Circuit, near: Circuit | None = None) -> float:
        """The exact loss on the first 64 examples.

        If the circuit differs little from one `near` it, that may take only the runs of what
        differs.
        """
        return self.judge.loss(circuit, near=near)

    def holds(self, circuit: Circuit, near: Circuit | None = None) -> bool:
        """Whether the loss is two standard errors below the limit, on both sets of examples.

        The best circuit of which this was asked is what the search returns.
        """
        return self.judge.holds(circuit, near)

    @property
    def best(self) -> Circuit:
        """The best circuit so far that holds; empty before there is one."""
        if new := self.judge.holding[self._ranked :] if "judge" in vars(self) else []:
            self._ranked += len(new)
            self._best = min([self._best, *new], key=self.rank)
        return self._best

    def rank(self, circuit: Circuit) -> tuple[bool, float, int, float]:
        """Sort key, lower is better: what holds, the simplest first, then the others by loss."""
        holds = self.judge.holds(circuit)
        loss = float(self.judge.losses(circuit).mean()) if holds else self.judge.loss(circuit)
        return not holds, 0.0 if holds else loss, self.key(circuit), loss

    # The search itself

    def __iter__(self) -> Iterator[SearchState]:
        deadline, model = self.deadline, self.model
        for doing in deadline.steps_until(self._deadlines[0], self._try_circuits(), model):
            yield self._state(doing)
        self._search_ended = _LATE if deadline.passed else ""
        if "space" not in vars(self):
            return  # the model has learned nothing, or measuring it has taken all the time
        self._cuts_ended = "cancelled"
        cuts = cut_paths(self.judge, self.heads, self.needed)
        for doing in deadline.steps_until(self._deadlines[1], cuts, model):
            yield self._state(doing)
        self._cuts_ended = _LATE if deadline.passed else ""

    def _try_circuits(self) -> Iterator[str]:
        if self.judge.learned:
            yield from self.strategy(self)

    def _state(self, doing: str) -> SearchState:
        scored, best = len(self.judge.scored), self.best
        if not best.mechanisms:
            return SearchState(doing, scored, best)
        loss = float(self.judge.losses(best).mean())
        return SearchState(doing, scored, best, self.cost(best), loss)

    @property
    def missing(self) -> list[str]:
        """What was not done, and why."""
        missing = []
        if self._search_ended:
            held = bool(self.best.mechanisms)
            known = "a simpler circuit may exist" if held else "no circuit was found"
            missing.append(f"the search was {self._search_ended}; {known}")
            if self._cuts_ended is None:
                missing[0] += ", and what the intact model needs was not looked for"
        if self._cuts_ended:
            unknown = "before all paths were cut; the intact model may need more"
            missing.append(f"{self._cuts_ended} {unknown}")
        return missing

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
        """The circuits that hold and have fewest heads, lowest cost, or are best in between."""
        front: list[Circuit] = []
        for circuit in sorted(self.judge.holding, key=self.space.aiming("heads").key):
            if not front or self.cost(circuit) < self.cost(front[-1]):
                front.append(circuit)
        return front

    def front_text(self) -> str:
        """The front in one line; empty if it is the circuit that was found, and no other."""
        if not self.best.mechanisms or (front := self.front()) == [self.best]:
            return ""
        losses = [float(self.judge.losses(circuit).mean()) for circuit in front]
        texts = [
            f"{len(self.useful(circuit))} heads at cost {self.cost(circuit)} ({loss:.4f})"
            for circuit, loss in zip(front, losses)
        ]
        return f"fewest heads or lowest cost: {', '.join(texts)}"
