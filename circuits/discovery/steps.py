"""The search: look around a circuit, try what should be simpler, go on from what holds.

Where no look at the best circuit helps, a head or a path is taken away from it and made up for.

It yields what is done, so that a search can be watched, and left, at any time. What to try is
predicted (`nearby`); every decision is made by exact losses (`judge`).
"""

import sys
from collections.abc import Generator
from functools import partial
from operator import ne
from typing import TypeVar

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.discovery.judge import Judge
from retrieval_interp.circuits.discovery.nearby import Near, Nearby
from retrieval_interp.circuits.discovery.space import Space
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM

Result = TypeVar("Result")
Doing = Generator[str, None, Result]  # yields what is done and returns what comes of it

_PROMISING = 8  # circuits of a look that should hold, and as many others, that are tried ...
_AROUND_BEST = 64  # ... or so many others, where the circuit itself holds
_IDLE = IDENTITY, UNIFORM
_SAME = 1e-4  # difference of losses that is none
_NO_LIMIT = sys.maxsize
_LEFT = 8  # circuits with a head or a path less than the best that are looked around
_NEARER = 8  # looks at ever lower losses until a first circuit holds


class Steps:
    """Steps from circuits to simpler ones, and the search that takes them."""

    def __init__(self, judge: Judge, space: Space):
        self.judge, self.space, self._first_loss = judge, space, partial(judge.loss, parts=1)
        self._looked = set[tuple[str, int, Circuit]]()  # with which aim and limit, and around what
        self.aims = space.aiming("paths"), space.aiming("heads")

    def search(self) -> Doing[bool]:
        """Simplify the best circuit that treats all heads alike; return that it is done.

        Fewest paths lead to few heads, too, so fewest heads are looked for from there.
        """
        yield "starting"
        yield from self.simplify(min(self.space.whole, key=self.rank))
        if not self.judge.holding:
            yield from self.simplify(self.space.empty)
        if self.space.fewest == "heads" and self.judge.holding:
            self.aims = self.aims[::-1]
            yield from self.simplify(min(self.judge.holding, key=self.space.key))
        return True

    def simplify(self, circuit: Circuit) -> Doing[None]:
        """Look around ever simpler circuits that hold, until no look finds a simpler one.

        The circuit comes first: what is reached on the way to one aim may be the best by the other.
        """
        found: Circuit | None = circuit
        while found is not None:
            circuit, found = found, None
            best = min(self.judge.holding, key=self.aims[0].key, default=circuit)
            for aim, centre in [(0, circuit), (1, circuit), (0, best)]:
                found = found or (yield from self._near(aim, centre))
            for centre in [] if found else (yield from self._less(best)):
                found = found or (yield from self._near(0, centre))

    def _less(self, best: Circuit) -> Doing[list[Circuit]]:
        """Circuits that lack a head or a path of the best, those that lose least first.

        To do without it may take many changes, which are predicted better from there.
        """
        left: list[Circuit] = []
        if self.judge.holds(best):
            self.judge.around(best)
            for head in [head for head in self.space.heads if best[head] not in _IDLE]:
                yield f"trying without {head}"
                left.append(min((best.replace(head, i) for i in _IDLE), key=self._first_loss))
            left += [best.without(path) for path in best.paths() if len(best[path.head].paths) > 1]
        return sorted(left, key=self._first_loss)[:_LEFT]

    def _near(self, aim: int, centre: Circuit) -> Doing[Circuit | None]:
        """A simpler circuit than the best that holds, near one or near the nearest to holding."""
        looks = 1 if self.judge.holds(centre) else 2 if self.judge.holding else _NEARER
        fewest = self.aims[aim].fewest
        while looks and (look := (fewest, self._limits(aim)[0], centre)) not in self._looked:
            looks -= 1
            self._looked.add(look)
            yield f"looking for fewer {fewest}"
            found = yield from self._look(aim, centre)
            if found is not None and not self.judge.holds(found):
                found = self._settle(found)
            if found is None or self.judge.holds(found):
                return found
            if self._first_loss(found) >= self._first_loss(centre) - 10 * _SAME:
                break
            centre = found
        return None

    def _settle(self, circuit: Circuit) -> Circuit:
        """Uniform or identity for each idle head, as loses less on the first examples."""
        left = idle = [h for h in self.space.heads if self.judge.fast and circuit[h] in _IDLE]
        self.judge.around(circuit)
        while left:
            head, *left = left
            other = circuit.replace(head, _IDLE[circuit[head] == _IDLE[0]])
            if self._first_loss(other) < self._first_loss(circuit) - _SAME:
                circuit, left = other, [each for each in idle if each != head]
        return circuit

    def _limits(self, aim: int) -> tuple[int, int]:
        """Below which key a circuit is simpler; for the other aim also how large it may be."""
        best = [min(map(space.key, self.judge.holding), default=_NO_LIMIT) for space in self.aims]
        return best[aim], self.space.size(best[0]) if aim else _NO_LIMIT

    def rank(self, circuit: Circuit) -> tuple[bool, float, tuple[int, int], float]:
        """Sort key, lower is better: what holds, the simplest first, then the others by loss."""
        holds = self.judge.holds(circuit)
        loss = float(self.judge.losses(circuit).mean()) if holds else self.judge.loss(circuit)
        return not holds, 0.0 if holds else loss, self.space.simplicity(circuit), loss

    def _look(self, aim: int, circuit: Circuit) -> Doing[Circuit | None]:
        """A simpler circuit than the best, near one: the first that holds, or that loses least."""
        space, (limit, largest) = self.aims[aim], self._limits(aim)
        nearby, bar = Nearby(space, circuit, self.judge), self.judge.bar.loss

        def simpler(near: Near) -> bool:
            return near.key < limit and space.size(near.key) <= largest

        def changed(near: Near) -> int:  # few changes are predicted best
            return sum(map(ne, near.parts, nearby.start.parts[0].tolist()))

        others = (_AROUND_BEST if (holds := self.judge.holds(circuit)) else _PROMISING) // 2
        chain = nearby.chain(bar, holds)
        more = [chain[(len(chain) >> halved) - 1] for halved in range(len(chain).bit_length())]
        around = nearby.around(limit if limit < _NO_LIMIT else 0)
        found = [near for near in around if simpler(near)]
        found = [near for near in found if nearby.circuit_of(near) not in self.judge.known]
        hold = sorted([near for near in found if near.loss < bar], key=lambda near: near.key)
        more += [*hold[:_PROMISING], *found[:others], *sorted(found, key=changed)[:others]]
        more = sorted(filter(simpler, more), key=lambda near: (near.key, near.loss))
        trials = list(dict.fromkeys(map(nearby.circuit_of, more)))
        for number, trial in enumerate(trials, 1):
            yield f"trying circuits, {number} of {len(trials)}"
            if self.judge.around(circuit).holds(trial):
                return trial
        return min(trials, key=self._first_loss, default=None)
