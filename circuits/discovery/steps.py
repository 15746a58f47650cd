"""The steps of a search: make a circuit richer, simplify it, rearrange it.

Which of many changes to try first is estimated; every decision is made by an exact loss.
"""

import itertools
from collections.abc import Sequence

from retrieval_interp.circuits.circuit import Circuit, Head
from retrieval_interp.circuits.discovery.changes import Add, Change, Drop, Replace, compatible
from retrieval_interp.circuits.discovery.cost import cost
from retrieval_interp.circuits.discovery.judge import Judge
from retrieval_interp.circuits.discovery.space import Space
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM

_FEW = 8  # richer heads that are compared by exact losses
_MOST = 24  # so many additions, and so many changes beside them, are combined by threes
_REARRANGED = 48  # so many combinations are tried
_PAIRED = 64  # so many cheaper changes are tried two at once
_SINGLY = 4  # so many heads are made richer one by one, then twice as many at each step


class Steps:
    """Steps from one circuit to a better one.

    Attributes:
        doing: what is being tried.
    """

    def __init__(self, judge: Judge, space: Space):
        self.judge, self.space, self.doing = judge, space, "starting"

    def enrich(self, circuit: Circuit) -> Circuit:
        """Make heads richer, the one that gains most first, until the circuit holds.

        After four single heads, twice as many at each step.
        """
        self.doing = "richer heads"
        for step in itertools.count():
            if self.judge.holds(circuit):
                break
            changes = [
                Replace(head, richer)
                for head in self.space.heads
                for richer in self.space.richer(head)
                if cost(richer, circuit.n_roles) > cost(circuit[head], circuit.n_roles)
            ]
            if step < _SINGLY:
                better = self._best(circuit, [self.space.changed(circuit, c) for c in changes])
            else:
                many = self._first(changes, circuit, 2 ** (step - _SINGLY + 1))
                better = self._best(circuit, [self.space.changed(circuit, *many)])
            if better is None:
                break
            circuit = better
        return circuit

    def refine(self, circuit: Circuit) -> Circuit:
        """Simplify and rearrange a circuit until neither makes it better."""
        circuit = self._lowest_loss(self._simplify(circuit))
        while self.judge.holds(circuit):
            vague = self.space.vague(circuit)
            better = self._rearranged(circuit) or self._fewer_heads(circuit, vague)
            if better is None:
                break
            circuit = self._lowest_loss(self._simplify(better))
        return circuit

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
        self.doing = "simpler heads"
        self.judge.go_on_from(circuit)
        changes = self._in_order(circuit, self.space.cheaper(circuit))
        idle = dict[Head, Change]()
        for change in changes:
            if isinstance(change, Replace) and change.mechanism in (IDENTITY, UNIFORM):
                idle.setdefault(change.head, change)
        circuit = self._together(circuit, list(idle.values()))
        for change in changes:
            trial = self.space.changed(circuit, change)
            cheaper = self.space.cost(trial) < self.space.cost(circuit)
            if cheaper and self.judge.holds(trial):
                circuit = self._cheapest(trial, change.head)
                self.judge.go_on_from(circuit)
        return circuit

    def _cheapest(self, circuit: Circuit, head: Head) -> Circuit:
        """Give a head its cheapest candidate that holds."""
        trials = (circuit.replace(head, candidate) for candidate in self.space.candidates[head])
        return next((trial for trial in trials if self.judge.holds(trial)), circuit)

    def _fewer_paths(self, circuit: Circuit) -> Circuit:
        self.doing = "fewer paths"
        self.judge.go_on_from(circuit)
        changes = self._in_order(circuit, [Drop(path) for path in circuit.paths()])
        circuit = self._together(circuit, changes)
        for change in changes:
            trial = self.space.changed(circuit, change)
            if trial != circuit and self.judge.holds(trial):
                circuit = trial
                self.judge.go_on_from(circuit)
        return circuit

    def _together(self, circuit: Circuit, changes: Sequence[Change]) -> Circuit:
        """Make the first changes at once, as many as take half of what the loss may rise."""
        loss = self.judge.loss(circuit)
        limit = loss + max(0.0, self.judge.bar.loss - loss) / 2
        while len(changes) > 1:
            trial = self.space.changed(circuit, *changes)
            if self.judge.loss(trial) <= limit and self.judge.holds(trial):
                self.judge.go_on_from(trial)
                return trial
            changes = changes[: len(changes) // 2]
        return circuit

    def _rearranged(self, circuit: Circuit) -> Circuit | None:
        """A better circuit with a path more and one or two things less, if one is found.

        Only those with the lowest estimates are tried.
        """
        self.doing = "other paths"
        self.judge.go_on_from(circuit)
        vague = self.space.vague(circuit)
        replaced: list[Change] = [
            change
            for change in self.space.cheaper(circuit)
            if change.mechanism == IDENTITY or change.head in vague
        ]
        less = self._first([*map(Drop, circuit.paths()), *replaced], circuit, _MOST)
        more = [Add(path) for path in self.space.absent(circuit)]
        ones, twos = itertools.combinations(less, 1), itertools.combinations(less, 2)
        combined = [
            *itertools.product(more, ones),
            *itertools.product(self._first(more, circuit, _MOST), twos),
        ]
        own = self.space.simplicity(circuit)
        trials = dict[Circuit, None]()
        for add, fewer in combined:
            if compatible([*fewer, add]):
                trial = self.space.changed(circuit, *fewer, add)
                if self.space.simplicity(trial) < own and self.judge.may_hold(trial):
                    trials[trial] = None
        effects = self.judge.effects(circuit, list(trials))
        for _, trial in sorted(zip(effects, trials), key=lambda pair: pair[0])[:_REARRANGED]:
            if self.judge.holds(trial):
                return trial
        return None

    def without_a_head(self, circuit: Circuit) -> Circuit | None:
        """A better circuit that does without one of the useful heads, if one is found."""
        idle = [Replace(head, IDENTITY) for head in self.space.useful(circuit)]
        heads = [change.head for change in self._first(idle, circuit, _MOST)]
        return self._fewer_heads(circuit, heads)

    def _fewer_heads(self, circuit: Circuit, heads: Sequence[Head]) -> Circuit | None:
        """A better circuit that does without a head, or gives it paths instead of a role-mean."""
        own = self.space.simplicity(circuit)
        vague = self.space.vague(circuit)
        for number, head in enumerate(heads):
            self.doing = f"without head {number + 1} of {len(heads)}"
            for change in self.space.cheaper(circuit, [head]):
                if head in vague or change.mechanism == IDENTITY:
                    found = self._repaired(self.space.changed(circuit, change), head, own)
                    if found is not None and self.space.simplicity(found) < own:
                        return found
        return None

    def _repaired(self, circuit: Circuit, lost: Head, most: tuple[int, int]) -> Circuit | None:
        """Make what helps most, paths or another idle mechanism, until the circuit holds.

        The head that is done without gets no path.

        Returns:
            The simplified circuit, or None if it would be no better than `most`.
        """
        left_idle = [] if cost(circuit[lost], circuit.n_roles) else [lost]
        while not self.judge.holds(circuit):
            paths = [path for path in self.space.absent(circuit) if path.head not in left_idle]
            richer = [self.space.changed(circuit, Add(path)) for path in paths]
            idle = self.space.other_idle(circuit)
            better = self._best(circuit, idle) or self._best(circuit, richer)
            if better is None or self.space.simplicity(better) > most:
                return None
            circuit = better
        return self._simplify(circuit)

    def one_or_two_less(self, circuit: Circuit) -> Circuit | None:
        """A circuit that holds after one or two changes that make it cheaper, if there is one.

        Of more than 64 changes, the pairs of those that do least to the loss are tried.
        """
        if not self.judge.holds(circuit):
            return None
        self.doing = "two changes at once"
        self.judge.go_on_from(circuit)
        changes: list[Change] = [*map(Drop, circuit.paths()), *self.space.cheaper(circuit)]
        pairs = itertools.combinations(self._first(changes, circuit, _PAIRED), 2)
        for tried in itertools.chain(itertools.combinations(changes, 1), pairs):
            if compatible(tried):
                trial = self.space.changed(circuit, *tried)
                if self.judge.holds(trial):
                    return trial
        return None

    def _lowest_loss(self, circuit: Circuit) -> Circuit:
        """Of identity and uniform, give each idle head the one with the lower loss."""
        self.judge.go_on_from(circuit)
        for head in self.space.heads:
            for other in self.space.other_idle(circuit, [head]):
                better = self.judge.loss(other) < self.judge.loss(circuit)
                if better and self.judge.holds(other):
                    circuit = other
                    self.judge.go_on_from(circuit)
        return circuit

    def _in_order(self, circuit: Circuit, changes: Sequence[Change]) -> list[Change]:
        """Changes that may hold, those first that cost least loss for what they save."""
        trials = {change: self.space.changed(circuit, change) for change in changes}
        trials = {change: t for change, t in trials.items() if self.judge.may_hold(t)}
        own = self.space.cost(circuit)
        effects = self.judge.effects(circuit, list(trials.values()))
        price = {
            change: effect / max(1, own - self.space.cost(trial))
            for (change, trial), effect in zip(trials.items(), effects)
        }
        return sorted(price, key=price.__getitem__)

    def _first(self, changes: Sequence[Change], circuit: Circuit, most: int) -> list[Change]:
        """Of many changes, those that do best."""
        if len(changes) <= most:
            return list(changes)
        effects = self.judge.effects(circuit, [self.space.changed(circuit, c) for c in changes])
        best = sorted(range(len(changes)), key=effects.__getitem__)[:most]
        return [changes[place] for place in sorted(best)]

    def _best(self, circuit: Circuit, trials: Sequence[Circuit]) -> Circuit | None:
        """The trial with the lowest loss, of those that promise most; None if it is no lower."""
        self.judge.go_on_from(circuit)
        effects = self.judge.effects(circuit, trials)
        promising = sorted(range(len(trials)), key=effects.__getitem__)[:_FEW]
        best = min((trials[place] for place in promising), key=self.judge.loss, default=circuit)
        return best if self.judge.loss(best) < self.judge.loss(circuit) else None

    def rank(self, circuit: Circuit) -> tuple[bool, tuple[int, int], float]:
        """Sort key, lower is better: holds, then cost and heads, then loss."""
        holds = self.judge.holds(circuit)
        return not holds, self.space.simplicity(circuit), self.judge.exact_loss(circuit)

    def promise(self, circuit: Circuit) -> tuple[bool, float, tuple[int, int]]:
        """Sort key of starts: those that hold, cheapest first, then the others by loss."""
        holds, loss = self.judge.holds(circuit), self.judge.loss(circuit)
        return not holds, (0.0 if holds else loss), self.space.simplicity(circuit)
