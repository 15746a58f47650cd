"""Searching for a circuit (paper, appendix E, automated).

1. List candidates. Measure each head's mean attention by role; its candidates are identity,
   uniform, one-hot and shared with the role paths above several thresholds, role-mean, and
   original; and if inputs are tokens, rules by position and token (`circuits.rules`) that have a
   quarter of its attention, or half of that of one role, and its mean by position.
2. Start from whole circuits: every head one-hot or shared above one threshold, or every head
   role-mean. While a start does not hold the loss, raise the head that gains most to role-mean, its
   mean by position, or back to its original attention.
3. Simplify. Give heads cheaper candidates that still hold the loss, then leave out paths in the
   same way; repeat until neither changes anything. What costs least loss for what it saves goes
   first, several at once where that takes at most half of what the loss may still rise.
4. Rearrange. Add a path, make one or two other changes at once, and go on from there if that holds
   and is better.
5. Repeat from several starts and keep the best circuit: two whole circuits, then the best one so
   far with all idle heads uniform, with all of them identity, and without each of its useful heads,
   the weak paths of the others added. If no start holds, begin from the intact model, which leaves
   some heads as they are.
6. Try every two cheaper changes at once.
7. Cut paths in the intact model (`circuits.discovery.redundancy`). Those that the model cannot do
   without but the circuit can are listed as enabling, and where any one of several heads suffices,
   that is noted.

Of two circuits that hold, the better one has the lower cost (`circuits.discovery.cost`), or else
fewer heads with paths, or else the lower loss. A circuit holds if its loss stays two standard
errors below the tolerance on the examples that decide.

Which of many changes to try first is estimated (`circuits.attribution`); every decision is made by
an exact loss. What is found is a local optimum: no head can get a cheaper candidate and no path can
be left out, and no two of these changes can be made at once, without losing the tolerance. (With
more than 64 such changes, the pairs of the 64 that do least to the loss are tried.)

Unlike the paper, the search judges a head with all other replacements in place, not alone in the
intact model: in a model with soft attention a head can look indispensable alone and yet not be
missed once the other heads are sharp, and the reverse.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

from retrieval_interp.circuits.circuit import Circuit, Head, HeadPath
from retrieval_interp.circuits.discovery.candidates import rule_candidates
from retrieval_interp.circuits.discovery.judge import Judge
from retrieval_interp.circuits.discovery.redundancy import needed_sets
from retrieval_interp.circuits.discovery.space import Space
from retrieval_interp.circuits.discovery.steps import Steps
from retrieval_interp.circuits.discovery.watch import (
    CANCELLED,
    OUT_OF_TIME,
    SearchEnded,
    SearchState,
    SearchStopped,
    Watch,
    ctrl_c,
)
from retrieval_interp.circuits.hooks.points import is_causal
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM
from retrieval_interp.circuits.runs.fits import draw_batch
from retrieval_interp.circuits.runs.mean_attention import mean_attention
from retrieval_interp.circuits.scores.control import allowed_attention
from retrieval_interp.tasks import Batch, InputError, Task


def discover(
    model: Any,
    task: Task,
    tolerance: float | None = None,
    examples: int = 512,
    seed: int = 0,
    restarts: int = 4,
    shared: bool = True,
    time: float | None = None,
    heads: Sequence[Head] | None = None,
    watch: Watch | None = None,
) -> Circuit:
    """Search for the simplest circuit that keeps the loss below the tolerance.

    With loss(C) the mean loss with circuit C in place and se(C) its standard error, it minimizes

        cost(C) = Σ over heads h of cost(C[h])    (circuits.discovery.cost)

    over the circuits that hold:

        loss(C) + 2 se(C) < tolerance

    Where no tolerance is stated, it is set by the intact model on the same examples, and se(C) is
    the standard error of what the circuit costs, loss(C) - intact, example by example.

    The search is greedy, from several starts, so a cheaper circuit may exist.

    Args:
        model: a hooked model that reads the task's batches; left unchanged.
        task: draws the examples, from its `discovery` split, and gives the loss.
        tolerance: the loss that the circuit has to stay below; by default the task's (0.05 in the
            paper), or else the loss at which 95% of what the model has learned is kept
            (`circuits.scores.tolerance`). No circuit is found that is worse than knowing nothing.
        examples: number of examples that decide.
        seed: of these examples.
        restarts: number of starting circuits, at least 1. With more than 4, the search also starts
            from the best circuit without each of its useful heads.
        shared: whether several sources may share a role's attention; otherwise paths are one-hot
            only, as in the paper.
        time: seconds that it may take, by default until there is a local optimum. After two thirds
            of it the best circuit so far is taken; the rest is for what the intact model needs.
        heads: heads that may be replaced, by default all; the others stay as they are.
        watch: told where the search is after every exact score. If it returns True, the search
            ends with the best circuit so far, as it does after Ctrl-C (in the main thread).

    Returns:
        A circuit that names every replaced head; empty for a model that has not learned the task,
        and where no head can be replaced. It is a proposal: score it on other examples with
        `score_circuit`. If the search was cut short, its `unfinished` says why and what is missing,
        and so does a `SearchStopped` warning.

    Raises:
        InputError: the model does not fit the task or has no such head, or restarts is below 1 or
            time not above 0.
        KeyboardInterrupt: the search was cancelled before any circuit held.

    Examples:
        Takes about half a minute. `~` marks paths that only enable.

        >>> import retrieval_interp as ri
        >>> small = ri.load_checkpoint("small")
        >>> ri.discover(small.model, small.task, examples=128, restarts=1)
        L0.H0 shared s4<-s3 s4<-s4 s6<-s5
        L1.H0 identity
        L2.H0 one-hot s0<-s2 s4<-s6
        L3.H0 identity
        L4.H0 one-hot s0<-s4
        L0.H0 ~s0<-s0
        L0.H0 ~s2<-s1
        L0.H0 ~s2<-s2
        L0.H0 ~s6<-s6
    """
    if restarts < 1:
        raise InputError(f"restarts: expected at least 1, found {restarts}")
    if time is not None and not time > 0:
        raise InputError(f"time: expected more than 0 seconds, found {time:g}")
    limit, start = time or math.inf, monotonic()
    device = next(model.parameters()).device
    batch = draw_batch(task, examples, seed, device, "discovery")
    search = Search(model, task, batch, tolerance, shared, heads)
    if not search.learned:
        return search.empty
    with ctrl_c() as pressed:

        def look(deadline: float) -> None:
            if pressed() or (watch is not None and watch(search.state())):
                raise SearchEnded(CANCELLED, True)
            if monotonic() > deadline:
                raise SearchEnded(OUT_OF_TIME, False)

        search.judge.before_look = partial(look, start + limit * 2 / 3)
        try:
            circuit = search.run(restarts)
        except SearchEnded as end:
            circuit = search.best_so_far()
            unfinished = f"the search was {end.why}; a simpler circuit may exist"
            if end.cancelled:
                if not circuit.mechanisms:
                    raise KeyboardInterrupt("cancelled before any circuit held") from None
                unfinished += ", and what the intact model needs was not looked for"
                return _marked(circuit, unfinished)
            circuit = _marked(circuit, unfinished)
        search.judge.before_look = partial(look, start + limit)
        return search.with_needed(circuit)


def _marked(circuit: Circuit, unfinished: str) -> Circuit:
    """The circuit marked as unfinished, with a warning."""
    warnings.warn(unfinished, SearchStopped, stacklevel=3)
    both = f"{circuit.unfinished}; {unfinished}" if circuit.unfinished else unfinished
    return replace(circuit, unfinished=both)


class Search:
    """The search on one model and one set of examples."""

    def __init__(
        self,
        model: Any,
        task: Task,
        batch: Batch,
        tolerance: float | None,
        shared: bool = True,
        heads: Sequence[Head] | None = None,
    ):
        self.judge = Judge(model, task, batch, tolerance)
        self.learned = self.judge.learned
        self.empty = self.judge.empty
        attention = mean_attention(model, batch).cpu()
        attention = allowed_attention(attention, batch, is_causal(model))
        chosen = _chosen(heads, *attention.shape[:2])
        rules = rule_candidates(model, batch, chosen)
        self.space = Space(self.empty, attention, chosen, rules, shared)
        self.steps = Steps(self.judge, self.space)
        self._start, self._so_far, self._ranked = "", self.empty, 0

    def run(self, restarts: int) -> Circuit:
        """The best circuit found from the best starts."""
        best = self.empty
        starts, tried = self._starts(lambda: best), set[Circuit]()
        for number in range(restarts):
            self._start = f"start {number + 1} of {restarts}: "
            start = next((start for start in starts if start not in {best, *tried}), None)
            if start is None:
                break
            tried.add(start)
            found = self.steps.refine(self.steps.enrich(start))
            if self.judge.holds(found):
                best = min(best, found, key=self.steps.rank)
        if best == self.empty:  # no start held: replace heads one by one
            self._start = "from the intact model: "
            best = self.steps.refine(self.empty)
        self._start = "at the end: "
        while self.judge.holds(best):
            better = self.steps.without_a_head(best) or self.steps.one_or_two_less(best)
            if better is None:
                break
            best = self.steps.refine(better)
        return best

    def best_so_far(self) -> Circuit:
        """The best circuit that is known to hold; the empty one if none is."""
        found = self.judge.holding[self._ranked :]
        self._ranked += len(found)
        if found:
            self._so_far = min([self._so_far, *found], key=self.steps.rank)
        return self._so_far

    def state(self) -> SearchState:
        """What is being tried, and the best circuit so far."""
        best, scored = self.best_so_far(), self.judge.scored
        if not best.mechanisms:
            return SearchState(self._start + self.steps.doing, scored)
        cost, loss = self.space.cost(best), self.judge.exact_loss(best)
        return SearchState(self._start + self.steps.doing, scored, cost, loss)

    def with_needed(self, circuit: Circuit) -> Circuit:
        """The circuit, naming the paths that the intact model needs and the circuit does not."""
        sets = list[tuple[HeadPath, ...]]()
        try:
            attention, heads = self.space.attention, self.space.heads
            for paths in needed_sets(self.judge, attention, heads, self._counting):
                sets.append(paths)
        except SearchEnded as end:
            circuit = _marked(
                circuit, f"{end.why} before all paths were cut; the intact model may need more"
            )
        alone = {paths[0] for paths in sets if len(paths) == 1}
        redundant = sorted(paths for paths in sets if len(paths) > 1)
        enabling = sorted(alone - set(circuit.paths()))
        return replace(circuit, enabling=tuple(enabling), redundant=tuple(redundant))

    def _counting(self, items: Iterable[Any], what: str) -> Iterator[Any]:
        """Items one by one, each told as what is being done."""
        items = list(items)
        self._start = ""
        for number, item in enumerate(items):
            self.steps.doing = f"{what}, {number + 1} of {len(items)}"
            yield item

    def _starts(self, best: Callable[[], Circuit]) -> Iterator[Circuit]:
        """Two whole circuits, variations of the best circuit so far, then other whole circuits."""
        whole = sorted(self.space.whole_circuits(), key=self.steps.promise)
        yield from whole[:2]
        for mechanism in (UNIFORM, IDENTITY):
            yield self.space.all_idle(best(), mechanism)
        for lost in self.space.useful(best()):
            yield self.space.without(best(), lost)
        yield from whole[2:]


def _chosen(heads: Sequence[Head] | None, n_layers: int, n_heads: int) -> list[Head]:
    """The heads of a model that may be replaced, in order."""
    every = [Head(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    if heads is None:
        return every
    wrong = [str(head) for head in heads if head not in every]
    if wrong or not heads:
        found = ", ".join(wrong) or "none"
        raise InputError(f"heads: expected one or more of {every[0]} to {every[-1]}, found {found}")
    return [head for head in every if head in heads]
