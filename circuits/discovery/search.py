"""Searching for a circuit (paper, appendix E, automated).

1. List candidates. Measure each head's mean attention by role; its candidates are identity,
   uniform, one-hot and shared with the role paths above several thresholds, role-mean, and
   original; and if inputs are tokens, rules by position and token (`circuits.rules`).
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

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, Literal

from circuits.circuit import (
    IDENTITY,
    ORIGINAL,
    UNIFORM,
    Circuit,
    Head,
    HeadPath,
    Mechanism,
    RolePath,
)
from circuits.discovery.candidates import propose, role_mean, rule_candidates
from circuits.discovery.changes import Add, Change, Drop, Replace, changed, compatible
from circuits.discovery.cost import circuit_cost, cost
from circuits.discovery.judge import Judge
from circuits.discovery.redundancy import needed_sets
from circuits.discovery.watch import (
    CANCELLED,
    OUT_OF_TIME,
    SearchEnded,
    SearchState,
    SearchStopped,
    Watch,
    ctrl_c,
)
from circuits.hooks.points import is_causal
from circuits.runs.fits import draw_batch
from circuits.runs.mean_attention import mean_attention
from circuits.scores.control import allowed_attention
from circuits.scores.tolerance import has_learned
from tasks import Batch, InputError, Task

_THRESHOLDS: tuple[tuple[Literal["one-hot", "shared"], float], ...] = (
    ("one-hot", 0.5),
    ("one-hot", 0.3),
    ("one-hot", 0.1),
    ("shared", 0.4),
    ("shared", 0.25),
    ("shared", 0.15),
)
_FEW = 8  # richer heads that are compared by exact losses
_WEAK = 0.1  # paths with at least this mean attention come back where a head is left out
_ADDED = 0.1  # paths with at least this mean attention may be added
_MOST = 24  # so many additions, and so many changes beside them, are combined by threes
_REARRANGED = 48  # so many combinations are tried
_PAIRED = 64  # so many cheaper changes are tried two at once
_SINGLY = 4  # so many heads are made richer one by one, then twice as many at each step


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
        time: seconds to search, by default until there is a local optimum. After two thirds of
            it the best circuit so far is taken; the rest is for what the intact model needs.
        heads: heads that may be replaced, by default all; the others stay as they are.
        watch: told where the search is after every exact score. If it returns True, the search
            ends with the best circuit so far, as it does after Ctrl-C (in the main thread).

    Returns:
        A circuit that names every replaced head; empty for a model that has not learned the task.
        It is a proposal: score it on other examples with `score_circuit`. If the search was cut
        short, its `unfinished` says why and what is missing, and so does a `SearchStopped` warning.

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
    device = next(model.parameters()).device
    batch = draw_batch(task, examples, seed, device, "discovery")
    search = Search(model, task, batch, tolerance, shared, heads)
    if not search.learned:
        return search.empty
    limit, start = time or math.inf, monotonic()
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
        self.model, self.batch, self.shared = model, batch, shared
        self.judge = Judge(model, task, batch, tolerance)
        self.learned = has_learned(task, self.judge.intact_loss, self.judge.uninformed_loss)
        self.empty = self.judge.empty
        attention = mean_attention(model, batch).cpu()
        self.attention = allowed_attention(attention, batch, is_causal(model))
        n_layers, n_heads = self.attention.shape[:2]
        every = [Head(layer, head) for layer in range(n_layers) for head in range(n_heads)]
        self.heads = every if heads is None else [head for head in every if head in heads]
        if not self.heads or (heads is not None and len(self.heads) < len(set(heads))):
            wrong = [str(head) for head in heads or () if head not in every]
            raise InputError(
                f"heads: expected some of {every[0]} to {every[-1]}, found {', '.join(wrong)}"
                if wrong
                else "heads: expected at least one, found none"
            )
        self._start, self._doing = "", "starting"
        self._so_far, self._ranked = self.empty, 0
        self.rules = rule_candidates(model, batch, self.heads)
        self.candidates = {head: self._candidates(head) for head in self.heads}

    def run(self, restarts: int) -> Circuit:
        """The best circuit found from the best starts."""
        best = self.empty
        starts, tried = self._starts(lambda: best), set[Circuit]()
        for number in range(restarts):
            self._start = f"start {number + 1} of {restarts}: "
            start = next((start for start in starts if start not in {best, *tried}), None)
            if start is not None:
                tried.add(start)
                best = min(best, self._refine(self._enrich(start)), key=self._rank)
        if best == self.empty:  # no start held: replace heads one by one
            self._start = "from the intact model: "
            best = self._refine(self.empty)
        self._start = "at the end: "
        while self.judge.holds(best):
            idle = [Replace(head, IDENTITY) for head in self._useful(best)]
            heads = [change.head for change in self._first(idle, best, _MOST)]
            better = self._fewer_heads(best, heads)
            better = better or self._one_or_two_less(best)
            if better is None:
                break
            best = self._refine(better)
        return best

    def best_so_far(self) -> Circuit:
        """The best circuit that is known to hold; the empty one if none is."""
        found = self.judge.holding[self._ranked :]
        self._ranked += len(found)
        if found:
            self._so_far = min([self._so_far, *found], key=self._rank)
        return self._so_far

    def state(self) -> SearchState:
        """What is being tried, and the best circuit so far."""
        best, scored = self.best_so_far(), self.judge.scored
        if not best.mechanisms:
            return SearchState(self._start + self._doing, scored)
        cost, loss = circuit_cost(best, self.heads), self.judge.exact_loss(best)
        return SearchState(self._start + self._doing, scored, cost, loss)

    def with_needed(self, circuit: Circuit) -> Circuit:
        """The circuit, naming the paths that the intact model needs and the circuit does not."""
        sets = list[tuple[HeadPath, ...]]()
        try:
            for paths in needed_sets(self.judge, self.attention, self.heads, self._counting):
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
            self._doing = f"{what}, {number + 1} of {len(items)}"
            yield item

    # What is better

    def _simplicity(self, circuit: Circuit) -> tuple[int, int]:
        """Cost, and number of heads with paths or without a mechanism."""
        return circuit_cost(circuit, self.heads), len(self._useful(circuit))

    def _useful(self, circuit: Circuit) -> list[Head]:
        return [head for head in self.heads if cost(circuit[head], circuit.n_roles)]

    def _rank(self, circuit: Circuit) -> tuple[bool, tuple[int, int], float]:
        """Sort key, lower is better: holds, then cost and heads, then loss."""
        holds = self.judge.holds(circuit)
        return not holds, self._simplicity(circuit), self.judge.exact_loss(circuit)

    def _promise(self, circuit: Circuit) -> tuple[bool, float, tuple[int, int]]:
        """Sort key of starts: those that hold, cheapest first, then the others by loss."""
        holds, loss = self.judge.holds(circuit), self.judge.loss(circuit)
        return not holds, (0.0 if holds else loss), self._simplicity(circuit)

    # Changes

    def _candidates(self, head: Head) -> list[Mechanism]:
        """Mechanisms of a head, cheapest first; identity before uniform, which runs slower."""
        attention = self.attention[head]
        proposals = [propose(attention, kind, threshold) for kind, threshold in _THRESHOLDS]
        found = [
            IDENTITY, UNIFORM, *self.rules[head], *proposals, role_mean(attention), ORIGINAL,
        ]  # fmt: skip
        distinct = [m for m in dict.fromkeys(found) if self.shared or m.kind != "shared"]
        return sorted(distinct, key=lambda mechanism: cost(mechanism, len(attention)))

    def _richer(self, head: Head) -> list[Mechanism]:
        """Mechanisms of a head that are not simple, the simplest first."""
        means = [rule for rule in self.rules[head] if rule.mean is not None]
        return [role_mean(self.attention[head]), *means, ORIGINAL]

    def _starts(self, best: Callable[[], Circuit]) -> Iterator[Circuit]:
        """Two whole circuits, variations of the best circuit so far, then other whole circuits."""
        whole = sorted(self._whole_circuits(), key=self._promise)
        yield from whole[:2]
        for mechanism in (UNIFORM, IDENTITY):
            idle = [head for head in self.heads if best()[head] in (UNIFORM, IDENTITY)]
            yield self._with(best(), dict.fromkeys(idle, mechanism))
        for lost in self._useful(best()):
            weak = {
                head: propose(self.attention[head], mechanism.kind, _WEAK)
                for head, mechanism in best().mechanisms.items()
                if mechanism.kind in ("one-hot", "shared")
            }
            yield self._with(best(), {**weak, lost: IDENTITY})
        yield from whole[2:]

    def _with(self, circuit: Circuit, mechanisms: Mapping[Head, Mechanism]) -> Circuit:
        return replace(circuit, mechanisms={**circuit.mechanisms, **mechanisms})

    def _whole_circuits(self) -> list[Circuit]:
        empty = self.empty
        mechanisms = [
            *(
                {h: propose(self.attention[h], kind, threshold) for h in self.heads}
                for kind, threshold in _THRESHOLDS
                if self.shared or kind == "one-hot"
            ),
            {head: role_mean(self.attention[head]) for head in self.heads},
        ]
        circuits = [replace(empty, mechanisms=each) for each in mechanisms]
        return [c for place, c in enumerate(circuits) if c not in circuits[:place]]

    def _changed(self, circuit: Circuit, *changes: Change) -> Circuit:
        return changed(circuit, changes, self.shared)

    def _cheaper(self, circuit: Circuit, heads: Sequence[Head]) -> list[Replace]:
        """Every candidate of some heads that costs less than what the head has."""
        return [
            Replace(head, candidate)
            for head in heads
            for candidate in self.candidates[head]
            if cost(candidate, circuit.n_roles) < cost(circuit[head], circuit.n_roles)
        ]

    def _in_order(self, circuit: Circuit, changes: Sequence[Change]) -> list[Change]:
        """Changes that may hold, those first that cost least loss for what they save."""
        trials = {change: self._changed(circuit, change) for change in changes}
        trials = {change: t for change, t in trials.items() if self.judge.may_hold(t)}
        own = circuit_cost(circuit, self.heads)
        effects = self.judge.effects(circuit, list(trials.values()))
        price = {
            change: effect / max(1, own - circuit_cost(trial, self.heads))
            for (change, trial), effect in zip(trials.items(), effects)
        }
        return sorted(price, key=price.__getitem__)

    # Steps

    def _enrich(self, circuit: Circuit) -> Circuit:
        """Make heads richer, the one that gains most first, until the circuit holds.

        After four single heads, twice as many at each step.
        """
        self._doing = "richer heads"
        for step in itertools.count():
            if self.judge.holds(circuit):
                break
            changes = [
                Replace(head, richer)
                for head in self.heads
                for richer in self._richer(head)
                if cost(richer, circuit.n_roles) > cost(circuit[head], circuit.n_roles)
            ]
            if step < _SINGLY:
                better = self._best(circuit, [self._changed(circuit, c) for c in changes])
            else:
                many = self._first(changes, circuit, 2 ** (step - _SINGLY + 1))
                better = self._best(circuit, [self._changed(circuit, *many)])
            if better is None:
                break
            circuit = better
        return circuit

    def _refine(self, circuit: Circuit) -> Circuit:
        """Simplify and rearrange a circuit until neither makes it better."""
        circuit = self._lowest_loss(self._simplify(circuit))
        while self.judge.holds(circuit):
            better = self._rearranged(circuit) or self._fewer_heads(circuit, self._vague(circuit))
            if better is None:
                break
            circuit = self._lowest_loss(self._simplify(better))
        return circuit

    def _best(self, circuit: Circuit, trials: Sequence[Circuit]) -> Circuit | None:
        """The trial with the lowest loss, of those that promise most; None if it is no lower."""
        self.judge.go_on_from(circuit)
        effects = self.judge.effects(circuit, trials)
        promising = sorted(range(len(trials)), key=effects.__getitem__)[:_FEW]
        best = min((trials[place] for place in promising), key=self.judge.loss, default=circuit)
        return best if self.judge.loss(best) < self.judge.loss(circuit) else None

    def _simplify(self, circuit: Circuit) -> Circuit:
        """Make heads cheaper and leave out paths until nothing can go."""
        if not self.judge.holds(circuit):
            return circuit
        while True:
            before = circuit
            circuit = self._cheaper_heads(circuit)
            circuit = self._fewer_paths(circuit)
            if circuit == before:
                return circuit

    def _cheaper_heads(self, circuit: Circuit) -> Circuit:
        self._doing = "simpler heads"
        self.judge.go_on_from(circuit)
        changes = self._in_order(circuit, self._cheaper(circuit, self.heads))
        idle = dict[Head, Change]()
        for change in changes:
            if isinstance(change, Replace) and change.mechanism in (IDENTITY, UNIFORM):
                idle.setdefault(change.head, change)
        circuit = self._together(circuit, list(idle.values()))
        for change in changes:
            trial = self._changed(circuit, change)
            cheaper = circuit_cost(trial, self.heads) < circuit_cost(circuit, self.heads)
            if cheaper and self.judge.holds(trial):
                circuit = self._cheapest(trial, change.head)
                self.judge.go_on_from(circuit)
        return circuit

    def _cheapest(self, circuit: Circuit, head: Head) -> Circuit:
        """Give a head its cheapest candidate that holds."""
        trials = (circuit.replace(head, candidate) for candidate in self.candidates[head])
        return next((trial for trial in trials if self.judge.holds(trial)), circuit)

    def _fewer_paths(self, circuit: Circuit) -> Circuit:
        self._doing = "fewer paths"
        self.judge.go_on_from(circuit)
        changes = self._in_order(circuit, [Drop(path) for path in circuit.paths()])
        circuit = self._together(circuit, changes)
        for change in changes:
            trial = self._changed(circuit, change)
            if trial != circuit and self.judge.holds(trial):
                circuit = trial
                self.judge.go_on_from(circuit)
        return circuit

    def _together(self, circuit: Circuit, changes: Sequence[Change]) -> Circuit:
        """Make the first changes at once, as many as take half of what the loss may rise."""
        loss = self.judge.loss(circuit)
        limit = loss + max(0.0, self.judge.tolerance - loss) / 2
        while len(changes) > 1:
            trial = self._changed(circuit, *changes)
            if self.judge.loss(trial) <= limit and self.judge.holds(trial):
                self.judge.go_on_from(trial)
                return trial
            changes = changes[: len(changes) // 2]
        return circuit

    def _rearranged(self, circuit: Circuit) -> Circuit | None:
        """A better circuit with a path more and one or two things less, if one is found.

        Only those with the lowest estimates are tried.
        """
        self._doing = "other paths"
        self.judge.go_on_from(circuit)
        vague = self._vague(circuit)
        replaced: list[Change] = [
            change
            for change in self._cheaper(circuit, self.heads)
            if change.mechanism == IDENTITY or change.head in vague
        ]
        less = self._first([*map(Drop, circuit.paths()), *replaced], circuit, _MOST)
        more = [Add(path) for path in self._absent(circuit)]
        ones, twos = itertools.combinations(less, 1), itertools.combinations(less, 2)
        combined = [
            *itertools.product(more, ones),
            *itertools.product(self._first(more, circuit, _MOST), twos),
        ]
        own = self._simplicity(circuit)
        trials = dict[Circuit, None]()
        for add, fewer in combined:
            if compatible([*fewer, add]):
                trial = self._changed(circuit, *fewer, add)
                if self._simplicity(trial) < own and self.judge.may_hold(trial):
                    trials[trial] = None
        effects = self.judge.effects(circuit, list(trials))
        for _, trial in sorted(zip(effects, trials), key=lambda pair: pair[0])[:_REARRANGED]:
            if self.judge.holds(trial):
                return trial
        return None

    def _first(self, changes: Sequence[Change], circuit: Circuit, most: int) -> list[Change]:
        """Of many changes, those that do best."""
        if len(changes) <= most:
            return list(changes)
        effects = self.judge.effects(circuit, [self._changed(circuit, c) for c in changes])
        best = sorted(range(len(changes)), key=effects.__getitem__)[:most]
        return [changes[place] for place in sorted(best)]

    def _absent(self, circuit: Circuit) -> list[HeadPath]:
        """Paths with some attention that the circuit lacks."""
        vague = self._vague(circuit)
        return [
            HeadPath(head, path)
            for head in self.heads
            if head not in vague
            for dest, src in (self.attention[head] >= _ADDED).nonzero().tolist()
            if (path := RolePath(dest, src)) not in circuit[head].paths
        ]

    def _fewer_heads(self, circuit: Circuit, heads: Sequence[Head]) -> Circuit | None:
        """A better circuit that does without a head, or gives it paths instead of a role-mean."""
        own = self._simplicity(circuit)
        vague = self._vague(circuit)
        for number, head in enumerate(heads):
            self._doing = f"without head {number + 1} of {len(heads)}"
            for change in self._cheaper(circuit, [head]):
                if head in vague or change.mechanism == IDENTITY:
                    found = self._repaired(self._changed(circuit, change), head, own)
                    if found is not None and self._simplicity(found) < own:
                        return found
        return None

    def _vague(self, circuit: Circuit) -> list[Head]:
        """Heads that have neither paths nor an idle mechanism."""
        kinds = ("role-mean", "mean", "original")
        return [head for head in self.heads if circuit[head].kind in kinds]

    def _repaired(self, circuit: Circuit, lost: Head, most: tuple[int, int]) -> Circuit | None:
        """Make what helps most, paths or another idle mechanism, until the circuit holds.

        The head that is done without gets no path.

        Returns:
            The simplified circuit, or None if it would be no better than `most`.
        """
        left_idle = [] if cost(circuit[lost], circuit.n_roles) else [lost]
        while not self.judge.holds(circuit):
            paths = [path for path in self._absent(circuit) if path.head not in left_idle]
            richer = [self._changed(circuit, Add(path)) for path in paths]
            better = self._best(circuit, self._other_idle(circuit)) or self._best(circuit, richer)
            if better is None or self._simplicity(better) > most:
                return None
            circuit = better
        return self._simplify(circuit)

    def _one_or_two_less(self, circuit: Circuit) -> Circuit | None:
        """A circuit that holds after one or two changes that make it cheaper, if there is one.

        Of more than 64 changes, the pairs of those that do least to the loss are tried.
        """
        if not self.judge.holds(circuit):
            return None
        self._doing = "two changes at once"
        self.judge.go_on_from(circuit)
        changes: list[Change] = [*map(Drop, circuit.paths()), *self._cheaper(circuit, self.heads)]
        pairs = itertools.combinations(self._first(changes, circuit, _PAIRED), 2)
        for tried in itertools.chain(itertools.combinations(changes, 1), pairs):
            if compatible(tried):
                trial = self._changed(circuit, *tried)
                if self.judge.holds(trial):
                    return trial
        return None

    def _lowest_loss(self, circuit: Circuit) -> Circuit:
        """Of identity and uniform, give each idle head the one with the lower loss."""
        self.judge.go_on_from(circuit)
        for head in self.heads:
            for other in self._other_idle(circuit, [head]):
                better = self.judge.loss(other) < self.judge.loss(circuit)
                if better and self.judge.holds(other):
                    circuit = other
                    self.judge.go_on_from(circuit)
        return circuit

    def _other_idle(self, circuit: Circuit, heads: Sequence[Head] | None = None) -> list[Circuit]:
        """The circuit with uniform in place of identity, or the reverse, one head at a time."""
        other = {IDENTITY: UNIFORM, UNIFORM: IDENTITY}
        return [
            circuit.replace(head, other[circuit[head]])
            for head in heads or self.heads
            if circuit[head] in other
        ]
