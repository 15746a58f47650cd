"""The greedy search: look around a circuit, try what should be simpler, go on from what holds.

It yields what is done, so that a search can be watched, and left, at any time. What to try is
predicted (`nearby`); every decision is made by exact losses (`judge`).
"""

import sys
from collections.abc import Generator
from typing import TypeVar

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.discovery.judge import Judge
from retrieval_interp.circuits.discovery.nearby import Nearby
from retrieval_interp.circuits.discovery.space import Space

Result = TypeVar("Result")
Doing = Generator[str, None, Result]  # yields what is done and returns what comes of it

_PROMISING = 8  # circuits of a look that should hold, and as many others, that are tried
_NO_LIMIT = sys.maxsize
_ROUNDS = 4  # of trials in a look
_FEW = 4  # heads in which circuits differ that say something of each other
_PATIENCE = 14  # looks without a simpler circuit that end the search, or two for each head


class Steps:
    """Steps from circuits to simpler ones, and the greedy search that takes them."""

    def __init__(self, judge: Judge, space: Space):
        self.judge, self.space = judge, space
        other = "heads" if space.fewest == "paths" else "paths"
        self.aims = space, space.aiming(other)

    def search(self) -> Doing[bool]:
        """Simplify the best circuit that treats all heads alike; return that it is done."""
        yield "starting"
        yield from self.simplify(min(self.space.whole, key=self.promise))
        if not self.judge.holding:
            yield from self.simplify(self.space.empty)
        return True

    def simplify(self, circuit: Circuit) -> Doing[None]:
        """Look around ever simpler circuits that hold, and around some that nearly do.

        After a look without success the next one has the other aim, fewest paths or fewest heads:
        what is reached on the way to one may be the best by the other. It ends after some looks
        without success.
        """
        failed, aim, looked = 0, 0, set[tuple[int, Circuit]]()
        after: Circuit | None = circuit
        self.judge.holds(circuit)
        while after is not None and failed < min(_PATIENCE, 2 * len(self.space.heads)):
            looked.add((aim, after))
            yield f"looking for fewer {self.aims[aim].fewest}"
            found = yield from self._look(aim, after)
            if found is not None:
                after, failed = found, 0
                continue
            failed, aim = failed + 1, 1 - aim
            after = min(self.judge.holding, key=self.aims[aim].key, default=None)
            if after is None or (aim, after) in looked:
                after = self._nearly(aim, looked, by_loss=failed % 4 < 2)

    def _limits(self, aim: int) -> tuple[int, int]:
        """Below which key a circuit is simpler, and how large it may be.

        With the other aim it has no more paths and heads than the best circuit.
        """
        best = [min(map(space.key, self.judge.holding), default=_NO_LIMIT) for space in self.aims]
        return best[aim], self.space.size(best[0]) if aim else _NO_LIMIT

    def rank(self, circuit: Circuit) -> tuple[bool, tuple[int, int], float]:
        """Sort key, lower is better: holds, then simplicity, then loss."""
        loss = float(self.judge.losses(circuit).mean())
        return not self.judge.holds(circuit), self.space.simplicity(circuit), loss

    def promise(self, circuit: Circuit) -> tuple[bool, float, tuple[int, int]]:
        """Sort key of starts: those that hold, cheapest first, then the others by loss."""
        holds, loss = self.judge.holds(circuit), self.judge.loss(circuit)
        return not holds, (0.0 if holds else loss), self.space.simplicity(circuit)

    def _look(self, aim: int, circuit: Circuit) -> Doing[Circuit | None]:
        """A circuit near one that is simpler than the best, and holds.

        What is tried corrects what is predicted, until nothing new is predicted to hold.
        """
        space, (limit, largest) = self.aims[aim], self._limits(aim)
        nearby, bar = Nearby(space, circuit, self.judge), self.judge.bar.loss
        nearby.learn(self._seen_near(circuit))
        chain = nearby.down(bar) if limit < _NO_LIMIT else nearby.up(bar)
        tried = [chain[(len(chain) >> halved) - 1] for halved in range(len(chain).bit_length())]
        for _ in range(_ROUNDS):
            known = set(map(nearby.made, self.judge.known))
            found = [
                each
                for each in nearby.around(limit if limit < _NO_LIMIT else 0)
                if each.key < limit and space.size(each.key) <= largest and each.made not in known
            ]
            hold = sorted([each for each in found if each.loss < bar], key=lambda each: each.key)
            bold = sorted(found, key=lambda each: self._price(space, each.loss, each.key, limit))
            tried += [*hold[:_PROMISING], *found[: _PROMISING // 2], *bold[: _PROMISING // 2]]
            tried.sort(key=lambda each: (each.key, each.loss))
            trials = list(dict.fromkeys(map(nearby.circuit_of, tried)))
            for trial in trials:
                yield ""
                if self.judge.around(circuit).holds(trial):
                    return trial
            if not hold:
                break
            nearby.learn(trials)
            tried = []
        return None

    def _seen_near(self, circuit: Circuit) -> list[Circuit]:
        """Measured circuits that differ from one in a few heads."""
        return [
            other
            for other in self.judge.known
            if 0 < sum(circuit[head] != other[head] for head in self.space.heads) <= _FEW
        ]

    def _nearly(self, aim: int, looked: set[tuple[int, Circuit]], by_loss: bool) -> Circuit | None:
        """A simpler circuit that does not hold, from which one that does may be near.

        That which loses least, or that which loses least for what it saves.
        """
        space, (limit, largest) = self.aims[aim], self._limits(aim)
        simpler = [
            each
            for each in self.judge.scored
            if (aim, each) not in looked
            and space.key(each) < limit
            and space.size(space.key(each)) <= largest
        ]

        def order(circuit: Circuit) -> float:
            loss = self.judge.loss(circuit, 1)
            return loss if by_loss else self._price(space, loss, space.key(circuit), limit)

        return min(simpler, key=order, default=None)

    def _price(self, space: Space, loss: float, key: int, limit: int) -> float:
        """By how much a loss is too high, for each unit of cost and each head that is saved."""
        saved = space.size(limit) - space.size(key) if limit < _NO_LIMIT else 1
        return max(0.0, loss - self.judge.bar.loss) / max(saved, 0.5)
