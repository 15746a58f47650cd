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

_PROMISING = 16  # circuits of a look that should hold, and as many others, that are tried
_MEASURED = 48  # simpler heads of a look that are measured ...
_MEASURED_FAST = 256  # ... where only what changes is run
_NO_LIMIT = sys.maxsize
_PATIENCE = 6  # looks without a simpler circuit, after which a search ends


def named(name: str, doing: Doing[None]) -> Doing[None]:
    """Put a name before what is done."""
    for what in doing:
        yield f"{name}: {what}" if what else name


class Steps:
    """Steps from circuits to simpler ones, and the greedy search that takes them."""

    def __init__(self, judge: Judge, space: Space):
        self.judge, self.space = judge, space
        self.most = (judge.bar.loss + judge.uninformed.loss) / 2  # that is predicted of a trial

    def search(self, restarts: int) -> Doing[Circuit]:
        """Simplify circuits from several starts: first to fewest paths, then to fewest heads.

        The intact model is the second start, or the last if no other comes to hold. What is
        reached on the way to fewest heads may have fewer paths, and the other way round.
        """
        yield "starting"
        intact = self.space.empty
        starts = sorted(self.space.whole, key=self.promise)
        starts = [*starts[:1], intact, *starts[1:]][:restarts]
        looked: dict[str, set[Circuit]] = {"paths": set(), "heads": set()}
        for number, start in enumerate(starts, 1):
            doing = self.simplify(start, self.space.aiming("paths"), looked["paths"])
            yield from named(f"start {number} of {len(starts)}", doing)
        if not self.judge.holding:
            doing = self.simplify(intact, self.space.aiming("paths"), looked["paths"])
            yield from named("from the intact model", doing)
        for aim in ("heads", self.space.fewest):
            space = self.space.aiming(aim)
            best = min(self.judge.holding, key=space.simplicity, default=intact)
            if best not in looked[aim]:
                doing = self.simplify(best, space, looked[aim])
                yield from named(f"fewer {aim}", doing)
        return min(self.judge.holding, key=self.rank, default=intact)

    def simplify(self, circuit: Circuit, space: Space, looked: set[Circuit]) -> Doing[None]:
        """Look around ever simpler circuits that hold, and around some that nearly do.

        `looked` has those around which nothing better was found; more are added.
        """
        best, failed = circuit if self.judge.holds(circuit) else None, 0
        while failed < _PATIENCE:
            looked.add(circuit)
            yield "looking around"
            before, failed = best, failed + 1
            limit = _NO_LIMIT if best is None else space.key(best)
            for trial in self._proposed(circuit, space, limit):
                yield ""
                if self.judge.around(circuit).holds(trial):
                    best, circuit, failed = trial, trial, 0
                    break
            if best == before:
                nearly = self._nearly(space, best, looked)
                if nearly is None:
                    break
                circuit = nearly

    def rank(self, circuit: Circuit) -> tuple[bool, tuple[int, int], float]:
        """Sort key, lower is better: holds, then simplicity, then loss."""
        loss = float(self.judge.losses(circuit).mean())
        return not self.judge.holds(circuit), self.space.simplicity(circuit), loss

    def promise(self, circuit: Circuit) -> tuple[bool, float, tuple[int, int]]:
        """Sort key of starts: those that hold, cheapest first, then the others by loss."""
        holds, loss = self.judge.holds(circuit), self.judge.loss(circuit)
        return not holds, (0.0 if holds else loss), self.space.simplicity(circuit)

    def nearby(self, circuit: Circuit, space: Space) -> Nearby:
        """What lies around a circuit."""
        near = self.judge.around(circuit)
        few = _MEASURED_FAST if near.fast else _MEASURED
        changes, loss = near.changes(circuit), near.loss(circuit)
        return Nearby(space, circuit, loss, changes, lambda trial: near.loss(trial, 1), few)

    def _proposed(self, circuit: Circuit, space: Space, limit: int) -> list[Circuit]:
        """Circuits near one, with keys below a limit, that are worth a try; the simplest first."""
        bar, nearby = self.judge.bar.loss, self.nearby(circuit, space)
        chain = nearby.down(bar) if limit < _NO_LIMIT else nearby.up(bar)
        tried = [chain[(len(chain) >> halved) - 1] for halved in range(len(chain).bit_length())]
        found = [
            each
            for each in nearby.around(self.most)
            if each.key < limit and space.circuit(each.mechanisms) not in self.judge.known
        ]
        hold = sorted([each for each in found if each.loss < bar], key=lambda each: each.key)
        bold = sorted(found, key=lambda each: self._price(space, each.loss, each.key, limit))
        tried += [*hold[:_PROMISING], *found[: _PROMISING // 2], *bold[: _PROMISING // 2]]
        tried.sort(key=lambda each: (each.key, each.loss))
        return list(dict.fromkeys(space.circuit(each.mechanisms) for each in tried))

    def _nearly(self, space: Space, best: Circuit | None, looked: set[Circuit]) -> Circuit | None:
        """A simpler circuit that does not hold, from which one that does may be near.

        In turns that which loses least, and that which loses least for what it saves.
        """
        limit = _NO_LIMIT if best is None else space.key(best)
        measured = [each for each in self.judge.measured() if each not in looked]
        simpler = {each: self.judge.loss(each) for each in measured if space.key(each) < limit}
        if len(looked) % 2:
            return min(simpler, key=simpler.__getitem__, default=None)
        price = {
            each: self._price(space, loss, space.key(each), limit) for each, loss in simpler.items()
        }
        return min(price, key=price.__getitem__, default=None)

    def _price(self, space: Space, loss: float, key: int, limit: int) -> float:
        """By how much a loss is too high, for each unit of cost and each head that is saved."""
        saved = space.size(limit) - space.size(key) if limit < _NO_LIMIT else 1
        return max(0.0, loss - self.judge.bar.loss) / max(saved, 0.5)
