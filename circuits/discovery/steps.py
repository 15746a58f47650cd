"""The steps of the greedy search: make a circuit richer, simplify it, rearrange it.

They yield what is done, so that a search can be watched, and left, at any time. Which of many
changes to try first is estimated; every decision is made by an exact loss.
"""

import itertools
from collections.abc import Generator, Sequence
from operator import itemgetter
from typing import TypeVar

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.discovery.judge import Judge
from retrieval_interp.circuits.discovery.space import Change, Space, compatible, drops
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM
from retrieval_interp.circuits.paths import Head

Result = TypeVar("Result")
Doing = Generator[str, None, Result]  # yields what is done and returns what comes of it

_SINGLY = 4  # heads made richer one by one; then twice as many at each step
_PROMISING = 8  # trials with the best estimates, compared by exact losses
_COMBINED = 24  # additions, and other changes, that are combined by threes
_REARRANGED = 48  # of these combinations, how many are tried
_PAIRED = 64  # cheaper changes that are tried two at once
_effect = itemgetter(0)


def named(name: str, doing: Doing[Result]) -> Doing[Result]:
    """Put a name before what is done."""
    while True:
        try:
            what = next(doing)
        except StopIteration as end:
            result: Result = end.value
            return result
        yield f"{name}: {what}" if what else name


class Steps:
    """Steps from one circuit to a better one, and the greedy search that takes them."""

    def __init__(self, judge: Judge, space: Space):
        self.judge, self.space = judge, space

    def search(self, restarts: int) -> Doing[Circuit]:
        """Steps 2 to 6 of a search (docs/guide/discovery.md); what is found is a local optimum."""
        yield "starting"
        best = self.space.empty
        starts = sorted(self.space.whole_circuits(), key=self.promise)[:restarts]
        for number, start in enumerate(starts):
            name = f"start {number + 1} of {len(starts)}"
            found = yield from named(name, self.from_start(start))
            if self.judge.holds(found):
                best = min(best, found, key=self.rank)
        if best == self.space.empty:  # no start held: replace heads one by one
            best = yield from named("from the intact model", self.refine(best))
        while self.judge.holds(best):
            better = yield from named("at the end", self.one_less(best))
            if better is None:
                break
            best = yield from named("at the end", self.refine(better))
        return best

    def from_start(self, circuit: Circuit) -> Doing[Circuit]:
        """Make heads richer, the one that gains most first, until it holds; then refine it."""
        step = 0
        while not self.judge.holds(circuit):
            changes = self.space.richer(circuit)
            trials = [self.space.changed(circuit, change) for change in changes]
            if step >= _SINGLY:
                many = yield from self._first(changes, circuit, 2 ** (step - _SINGLY + 1))
                trials = [self.space.changed(circuit, *many)]
            better = yield from named("richer heads", self._best(circuit, trials))
            if better is None:
                break
            circuit, step = better, step + 1
        return (yield from self.refine(circuit))

    def refine(self, circuit: Circuit) -> Doing[Circuit]:
        """Simplify and rearrange a circuit until neither makes it better."""
        better: Circuit | None = circuit
        while better is not None:
            circuit = yield from self._simplify(better)
            circuit = yield from named("idle heads", self._lowest_loss(circuit))
            if not self.judge.holds(circuit):
                break
            better = yield from named("other paths", self._rearranged(circuit))
            if better is None:
                better = yield from self._fewer_heads(circuit, self.space.vague(circuit))
        return circuit

    def one_less(self, circuit: Circuit) -> Doing[Circuit | None]:
        """A better circuit without one of the useful heads, or after one or two changes."""
        idle = [Change(head, IDENTITY) for head in self.space.useful(circuit)]
        first = yield from self._first(idle, circuit, _COMBINED)
        better = yield from self._fewer_heads(circuit, [change.head for change in first])
        if better is None:
            better = yield from named("two changes at once", self.one_or_two_less(circuit))
        return better

    def _simplify(self, circuit: Circuit) -> Doing[Circuit]:
        """Make heads cheaper and leave out paths until nothing can go."""
        before = None
        while circuit != before and self.judge.holds(circuit):
            before = circuit
            circuit = yield from named("simpler heads", self._cheaper_heads(circuit))
            circuit = yield from named("fewer paths", self._fewer_paths(circuit))
        return circuit

    def _cheaper_heads(self, circuit: Circuit) -> Doing[Circuit]:
        changes = yield from self._in_order(circuit, self.space.cheaper(circuit))
        idle = dict[Head, Change]()
        for change in changes:
            if change.mechanism in (IDENTITY, UNIFORM):
                idle.setdefault(change.head, change)
        circuit = yield from self._together(circuit, list(idle.values()))
        for change in changes:
            yield ""
            trial, near = self.space.changed(circuit, change), self.judge.around(circuit)
            if self.space.cost(trial) < self.space.cost(circuit) and near.holds(trial):
                candidates = self.space.candidates[change.head]
                cheapest = (trial.replace(change.head, candidate) for candidate in candidates)
                circuit = next((each for each in cheapest if near.holds(each)), trial)
        return circuit

    def _fewer_paths(self, circuit: Circuit) -> Doing[Circuit]:
        changes = yield from self._in_order(circuit, drops(circuit))
        circuit = yield from self._together(circuit, changes)
        for change in changes:
            yield ""
            trial = self.space.changed(circuit, change)
            if trial != circuit and self.judge.around(circuit).holds(trial):
                circuit = trial
        return circuit

    def _together(self, circuit: Circuit, changes: Sequence[Change]) -> Doing[Circuit]:
        """Make the first changes at once, as many as take half of what the loss may rise."""
        near = self.judge.around(circuit)
        loss = near.loss(circuit)
        limit = loss + max(0.0, near.bar.loss - loss) / 2
        while len(changes) > 1:
            yield ""
            trial = self.space.changed(circuit, *changes)
            if near.loss(trial) <= limit and near.holds(trial):
                return trial
            changes = changes[: len(changes) // 2]
        return circuit

    def _rearranged(self, circuit: Circuit) -> Doing[Circuit | None]:
        """A better circuit with a path more and one or two things less, if one is found."""
        vague = self.space.vague(circuit)
        cheaper = self.space.cheaper(circuit)
        replaced = [c for c in cheaper if c.mechanism == IDENTITY or c.head in vague]
        less = yield from self._first([*drops(circuit), *replaced], circuit, _COMBINED)
        more = self.space.absent(circuit)
        some = yield from self._first(more, circuit, _COMBINED)
        combined = [
            *itertools.product(more, itertools.combinations(less, 1)),
            *itertools.product(some, itertools.combinations(less, 2)),
        ]
        own, trials = self.space.simplicity(circuit), dict[Circuit, None]()
        for add, fewer in combined:
            if compatible([*fewer, add]):
                trial = self.space.changed(circuit, *fewer, add)
                if self.space.simplicity(trial) < own and self.judge.known.get(trial, True):
                    trials[trial] = None
        effects = yield from self.judge.effects(circuit, list(trials))
        near = self.judge.around(circuit)
        for _, trial in sorted(zip(effects, trials), key=_effect)[:_REARRANGED]:
            yield ""
            if near.holds(trial):
                return trial
        return None

    def _fewer_heads(self, circuit: Circuit, heads: Sequence[Head]) -> Doing[Circuit | None]:
        """A better circuit that does without a head, or gives it paths instead of a role-mean."""
        own, vague = self.space.simplicity(circuit), self.space.vague(circuit)
        for number, head in enumerate(heads):
            name = f"without head {number + 1} of {len(heads)}"
            for change in self.space.cheaper(circuit, [head]):
                if head in vague or change.mechanism == IDENTITY:
                    trial = self.space.changed(circuit, change)
                    found = yield from named(name, self._repaired(trial, head, own))
                    if found is not None and self.space.simplicity(found) < own:
                        return found
        return None

    def _repaired(
        self, circuit: Circuit, lost: Head, most: tuple[int, int]
    ) -> Doing[Circuit | None]:
        """Make what helps most, paths or another idle mechanism, until the circuit holds.

        The head that is done without gets no path. None if it would be no better than `most`.
        """
        left_idle = lost not in self.space.useful(circuit)
        while not self.judge.holds(circuit):
            better = yield from self._best(circuit, self.space.other_idle(circuit))
            if better is None:
                paths = self.space.absent(circuit)
                added = [path for path in paths if not (left_idle and path.head == lost)]
                trials = [self.space.changed(circuit, path) for path in added]
                better = yield from self._best(circuit, trials)
            if better is None or self.space.simplicity(better) > most:
                return None
            circuit = better
        return (yield from self._simplify(circuit))

    def one_or_two_less(self, circuit: Circuit) -> Doing[Circuit | None]:
        """A circuit that holds after one or two changes that make it cheaper, if there is one."""
        if not self.judge.holds(circuit):
            return None
        changes = [*drops(circuit), *self.space.cheaper(circuit)]
        first = yield from self._first(changes, circuit, _PAIRED)
        near = self.judge.around(circuit)
        ones, pairs = itertools.combinations(changes, 1), itertools.combinations(first, 2)
        for tried in itertools.chain(ones, pairs):
            if compatible(tried):
                yield ""
                trial = self.space.changed(circuit, *tried)
                if near.holds(trial):
                    return trial
        return None

    def _lowest_loss(self, circuit: Circuit) -> Doing[Circuit]:
        """Give each idle head whichever of identity and uniform has the lower loss."""
        for head in self.space.heads:
            for other in self.space.other_idle(circuit, [head]):
                yield ""
                near = self.judge.around(circuit)
                if near.loss(other) < near.loss(circuit) and near.holds(other):
                    circuit = other
        return circuit

    def _in_order(self, circuit: Circuit, changes: Sequence[Change]) -> Doing[list[Change]]:
        """Changes that may hold, those first that cost least loss for what they save."""
        trials = {change: self.space.changed(circuit, change) for change in changes}
        trials = {change: t for change, t in trials.items() if self.judge.known.get(t, True)}
        effects = yield from self.judge.effects(circuit, list(trials.values()))
        own = self.space.cost(circuit)
        price = {
            change: effect / max(1, own - self.space.cost(trial))
            for (change, trial), effect in zip(trials.items(), effects)
        }
        return sorted(price, key=price.__getitem__)

    def _first(self, changes: Sequence[Change], circuit: Circuit, most: int) -> Doing[list[Change]]:
        """Of many changes, those that do best."""
        if len(changes) <= most:
            return list(changes)
        trials = [self.space.changed(circuit, change) for change in changes]
        effects = yield from self.judge.effects(circuit, trials)
        best = sorted(range(len(changes)), key=effects.__getitem__)[:most]
        return [changes[place] for place in sorted(best)]

    def _best(self, circuit: Circuit, trials: Sequence[Circuit]) -> Doing[Circuit | None]:
        """The trial with the lowest loss, of those that promise most; None if it is no lower."""
        effects = yield from self.judge.effects(circuit, trials)
        near, in_order = self.judge.around(circuit), sorted(zip(effects, trials), key=_effect)
        best = min((trial for _, trial in in_order[:_PROMISING]), key=near.loss, default=circuit)
        return best if near.loss(best) < near.loss(circuit) else None

    def rank(self, circuit: Circuit) -> tuple[bool, tuple[int, int], float]:
        """Sort key, lower is better: holds, then cost and heads, then loss."""
        loss = float(self.judge.losses(circuit).mean())
        return not self.judge.holds(circuit), self.space.simplicity(circuit), loss

    def promise(self, circuit: Circuit) -> tuple[bool, float, tuple[int, int]]:
        """Sort key of starts: those that hold, cheapest first, then the others by loss."""
        holds, loss = self.judge.holds(circuit), self.judge.loss(circuit)
        return not holds, (0.0 if holds else loss), self.space.simplicity(circuit)
