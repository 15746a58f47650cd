"""Circuits near one, and the losses that they are predicted to have.

1. One pass gives the gradients at a circuit. With them the loss of every circuit near it is a
   quadratic function of what differs (`attribute`): changes that make up for each other are seen.
2. What makes one head simpler is measured on a few examples, as gradients miss what a layer norm
   hides and overrate large changes; predictions are scaled to that.
3. A beam search then finds the circuits that should lose least, without a run.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from retrieval_interp.circuits.attribution import Changed
from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.discovery.judge import Judge
from retrieval_interp.circuits.discovery.space import Space
from retrieval_interp.circuits.mechanisms import Mechanism, along
from retrieval_interp.circuits.paths import Head

_MEASURED = 48  # simpler heads that are measured ...
_MEASURED_FAST = 256  # ... where only what changes is run
_DEPTH = 8  # changes of a beam search, one after the other
_STATES = 600  # circuits that it keeps after each of them, at most ...
_CHANGES = 400_000  # ... and about as many as have so many changes
_SAME = 1e-6  # difference of losses that is none
Part = tuple[Head, Mechanism]


class Near(NamedTuple):
    """A circuit near the one in place: the numbers of its parts, and what it should lose."""

    made: tuple[int, ...]
    key: int
    loss: float


class Front(NamedTuple):
    """Circuits near the one in place, as `Near`, with the second parts of their changes."""

    made: Int[Tensor, "circuit head"]
    keys: Int[Tensor, " circuit"]
    losses: Float[Tensor, " circuit"]
    second: Float[Tensor, "circuit number"]

    def some(self, which: Tensor | list[int]) -> "Front":
        """These of them."""
        return Front(*(each[which] for each in self))

    def each(self) -> list[Near]:
        """Every one of them by itself."""
        return [Near(tuple(made), *of) for made, *of in zip(*(x.tolist() for x in self[:3]))]


class Added(NamedTuple):
    """What a mechanism of a head adds to the key, to the loss by itself, and to what is squared."""

    key: int
    first: float
    second: Float[Tensor, " number"]


class Nearby:
    """The circuits near one.

    Args:
        space: the heads, what may be made of them, and what is simple.
        circuit: the circuit in place.
        judge: measures losses.
    """

    def __init__(self, space: Space, circuit: Circuit, judge: Judge):
        self.space, self.circuit, self.judge = space, circuit, judge.around(circuit)
        self._parts, self._added = list[Part](), list[Added]()
        self._numbers: dict[Part, int] = {}
        self._reached: dict[int, tuple[Tensor, Tensor]] = {}
        self._changes = judge.changes(circuit)
        same = self._changes.change(space.heads[0], circuit[space.heads[0]])
        self._none = torch.zeros_like(same.second, dtype=torch.double)
        simpler = [
            (head, option)
            for head in space.heads
            for option in space.options(head, circuit[head])
            if space.key_of(option) <= space.key_of(circuit[head])
        ]
        few = _MEASURED_FAST if judge.fast else _MEASURED
        self._singles = {each: self._changes.change(*each) for each in simpler}
        for each in sorted(simpler, key=lambda each: self._singles[each].effect)[:few]:
            risen = judge.loss(circuit.replace(*each), 1) - judge.loss(circuit, 1)
            self._singles[each] = _scaled(self._singles[each], risen)
        made = torch.tensor([[self._number((head, circuit[head])) for head in space.heads]])
        loss = torch.tensor([judge.loss(circuit)], dtype=torch.double)
        key = torch.tensor([space.key(circuit)])
        self.start = Front(made, key, loss, self._none[None])

    def circuit_of(self, near: Near) -> Circuit:
        """The circuit with the parts of these numbers."""
        return self.space.circuit([self._parts[number][1] for number in near.made])

    def around(self, limit: int = 0) -> list[Near]:
        """Of each key up to the start's or below a limit, circuits that should lose least.

        A beam search: of each key the best are changed once more. Of those that should lose the
        same, as where a path leads nowhere, only the simplest is kept. The best come first.
        """
        most = max(int(self.start.keys), limit - 1)
        front, found = self.start, [self.start]
        seen = {near.made for near in front.each()}
        for _ in range(_DEPTH):
            self.judge.check_time()
            front = self._best(front, most)
            front = front.some([n for n, near in enumerate(front.each()) if near.made not in seen])
            if not len(front.made):
                break
            seen.update(near.made for near in front.each())
            found.append(front)
        every = Front(*map(torch.cat, zip(*found[1:] or found)))
        return every.some(_simplest(every.losses, every.keys)).each()

    def chain(self, most: float, down: bool) -> list[Near]:
        """Ever simpler circuits, up to a loss, or some that should lose ever less, down to it.

        Each is one change from the last, which should cost least for what it saves.
        """
        front, found = self.start, list[Near]()
        while True:
            losses, keys, after = self._after(front)
            risen, more = losses - front.losses, keys - front.keys
            price = torch.where(risen > 0, risen / (-more).clamp(min=1), risen / more.clamp(min=1))
            up = (risen < 0) & (front.losses >= most)
            allowed = (more < 0) & (losses <= most) if down else up
            best = price.where(allowed, torch.inf).argmin()[None]
            if not bool(allowed[best]):
                return found
            front = after(best)
            found += front.each()

    def _best(self, front: Front, most: int) -> Front:
        """The best that come of one change of some circuits, of each key up to a limit."""
        losses, keys, after = self._after(front)
        order = ((keys <= most) & (losses <= self.judge.most)).nonzero()[:, 0]
        order = order[_simplest(losses[order], keys[order])]
        order = order[keys[order].argsort(stable=True)]
        counts = keys[order].unique_consecutive(return_counts=True)[1]
        states = min(_STATES, max(1, _CHANGES * len(front.made) // len(losses)))
        width = max(2, states // max(1, len(counts)))
        chosen = torch.cat([order[:0], *(each[:width] for each in order.split(counts.tolist()))])
        return after(chosen[losses[chosen].argsort()][: 2 * states])

    def _after(self, front: Front) -> tuple[Tensor, Tensor, Callable[[Tensor], Front]]:
        """The losses and keys after every change of some circuits, and what makes some changes."""
        numbers, of = front.made.unique(return_inverse=True)
        tos, effects = zip(*map(self._reach, numbers.tolist()))
        sizes = torch.tensor(list(map(len, tos)))
        many = sizes[of].flatten()
        place = torch.arange(of.numel()).repeat_interleave(many)
        starts = (sizes.cumsum(0) - sizes)[of].flatten() - many.cumsum(0) + many
        change = starts[place] + torch.arange(len(place))
        at, head = place // of.shape[1], place % of.shape[1]
        to, was = torch.cat(tos)[change], front.made.flatten()[place]
        second = torch.stack([each.second for each in self._added])
        products = front.second @ second.T
        losses = front.losses[at] + torch.cat(effects)[change]
        losses += 2 * (products[at, to] - products[at, was])
        each = torch.tensor([each.key for each in self._added])
        keys = front.keys[at] + each[to] - each[was]

        def after(which: Tensor) -> Front:
            circuit, new = at[which], to[which]
            made = front.made[circuit].scatter(1, head[which, None], new[:, None])
            squared = front.second[circuit] + second[new] - second[was[which]]
            return Front(made, keys[which], losses[which], squared)

        return losses, keys, after

    def _reach(self, number: int) -> tuple[Int[Tensor, " option"], Float[Tensor, " option"]]:
        """The parts that one change makes of a part, and what each adds to the loss by itself."""
        if number not in self._reached:
            head, mechanism = self._parts[number]
            to = [self._number((head, each)) for each in self.space.options(head, mechanism)]
            was, new = self._added[number], [self._added[each] for each in to]
            first = torch.tensor([each.first - was.first for each in new], dtype=torch.double)
            second = torch.stack([each.second for each in new]) - was.second
            self._reached[number] = torch.tensor(to), first + second.square().sum(1)
        return self._reached[number]

    def _number(self, part: Part) -> int:
        if part not in self._numbers:
            rows = self._rows(*part)
            each = [self._singles.get(row) or self._changes.change(*row) for row in rows]
            second = sum((row.second for row in each), self._none)
            self._numbers[part] = len(self._parts)
            self._parts.append(part)
            key, first = self.space.key_of(part[1]), sum(row.first for row in each)
            self._added.append(Added(key, first, second))
        return self._numbers[part]

    def _rows(self, head: Head, mechanism: Mechanism) -> list[Part]:
        """The changes of single rows that make up a mechanism along paths; any other as a whole."""
        base = self.circuit[head]
        if mechanism == base:
            return []
        if not (base.follows_paths and mechanism.follows_paths):
            return [(head, mechanism)]
        changed = {path.dest for path in {*base.paths} ^ {*mechanism.paths}}
        return [
            (head, along([*(p for p in base.paths if p.dest != dest), *row]))
            for dest in sorted(changed)
            for row in [[p for p in mechanism.paths if p.dest == dest]]
        ]


def _simplest(losses: Float[Tensor, " change"], keys: Int[Tensor, " change"]) -> Tensor:
    """Of those that lose the same, the simplest; those that lose least first."""
    rounded = (losses / _SAME).round()
    order = keys.argsort(stable=True)
    order = order[rounded[order].argsort(stable=True)]
    return order[rounded[order].diff(prepend=rounded.new_tensor([-torch.inf])) > 0]


def _scaled(change: Changed, measured: float) -> Changed:
    """An estimated change with the effect that was measured.

    What was overrated is taken from the second part, of which each product with another's is then
    smaller, too; what is left is added to the first.
    """
    over, size = change.effect - measured, float(change.second.square().sum())
    taken = min(max(over, 0.0), size)
    scale = ((size - taken) / size) ** 0.5 if size > 0 else 1.0
    return Changed(change.first - over + taken, change.second * scale)
