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
    """A circuit near the one in place: the numbers of its mechanisms, and what it should lose."""

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


class Options(NamedTuple):
    """What one change can make of some heads, and how this differs from their mechanisms."""

    heads: Int[Tensor, " option"]
    made: Int[Tensor, " option"]
    keys: Int[Tensor, " option"]
    losses: Float[Tensor, " option"]
    second: Float[Tensor, "option number"]


class Nearby:
    """The circuits near one.

    Args:
        space: the heads, what may be made of them, and what is simple.
        circuit: the circuit in place.
        judge: measures losses.
    """

    def __init__(self, space: Space, circuit: Circuit, judge: Judge):
        self.space, self.circuit, self.judge = space, circuit, judge.around(circuit)
        self._made: list[dict[Mechanism, int]] = [{} for _ in space.heads]
        self._options: dict[tuple[int, int], Options] = {}
        self._singles: dict[Part, Changed] = {}  # estimates scaled to what was measured
        self._sums: dict[Part, tuple[Tensor, Tensor]] = {}
        self._changes = judge.changes(circuit)
        mechanisms = tuple(circuit[head] for head in space.heads)
        nothing = torch.zeros_like(self._changes.change(space.heads[0], mechanisms[0]).second)
        made, key = torch.tensor([self.made(circuit)]), torch.tensor([space.key(circuit)])
        self.start = Front(made, key, torch.tensor([judge.loss(circuit)]), nothing[None])
        simpler = [
            (head, option)
            for head, mechanism in zip(space.heads, mechanisms)
            for option in space.options(head, mechanism)
            if space.key_of(option) <= space.key_of(mechanism)
        ]
        few = _MEASURED_FAST if judge.fast else _MEASURED
        estimates = {each: self._changes.change(*each) for each in simpler}
        for each in sorted(simpler, key=lambda each: estimates[each].effect)[:few]:
            risen = judge.loss(circuit.replace(*each), 1) - judge.loss(circuit, 1)
            self._singles[each] = _scaled(estimates[each], risen)

    def made(self, circuit: Circuit) -> tuple[int, ...]:
        """The numbers of a circuit's mechanisms."""
        return tuple(self._number(place, circuit[h]) for place, h in enumerate(self.space.heads))

    def circuit_of(self, near: Near) -> Circuit:
        """The circuit with the mechanisms of these numbers."""
        return self.space.circuit([list(of)[each] for of, each in zip(self._made, near.made)])

    def _number(self, place: int, mechanism: Mechanism) -> int:
        return self._made[place].setdefault(mechanism, len(self._made[place]))

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
        found, pairs, start = [], [], 0
        for place, made in enumerate(front.made.T):
            for number in made.unique().tolist():
                found.append(self._of_head(place, number))
                some, end = (made == number).nonzero()[:, 0], start + len(found[-1].made)
                pairs.append(torch.cartesian_prod(some, torch.arange(start, end)))
                start = end
        options = Options(*map(torch.cat, zip(*found)))
        of, change = torch.cat(pairs).T
        losses = front.losses[of] + options.losses[change]
        losses += 2 * (front.second @ options.second.T)[of, change]
        keys = front.keys[of] + options.keys[change]

        def after(which: Tensor) -> Front:
            at, to = of[which], change[which]
            made = front.made[at].scatter(1, options.heads[to, None], options.made[to, None])
            return Front(made, keys[which], losses[which], front.second[at] + options.second[to])

        return losses, keys, after

    def _of_head(self, place: int, number: int) -> Options:
        """The options of a head with a mechanism."""
        if (place, number) not in self._options:
            head, mechanism = self.space.heads[place], list(self._made[place])[number]
            mechanisms = self.space.options(head, mechanism)
            made = torch.tensor([self._number(place, each) for each in mechanisms])
            firsts, seconds = zip(*(self._added(head, each) for each in (mechanism, *mechanisms)))
            first, second = (torch.stack(each)[1:] - each[0] for each in (firsts, seconds))
            keys = torch.tensor([self.space.key_of(each) for each in mechanisms])
            keys, losses = keys - self.space.key_of(mechanism), first + second.square().sum(1)
            heads = torch.full_like(made, place)
            self._options[place, number] = Options(heads, made, keys, losses, second)
        return self._options[place, number]

    def _added(
        self, head: Head, mechanism: Mechanism
    ) -> tuple[Float[Tensor, ""], Float[Tensor, " number"]]:
        """What a mechanism adds to the loss by itself, and to what is squared."""
        if (head, mechanism) not in self._sums:
            parts = self._parts(head, mechanism)
            each = [self._singles.get(part) or self._changes.change(*part) for part in parts]
            first = torch.tensor(sum(change.first for change in each), dtype=torch.float32)
            second = sum((change.second for change in each), self.start.second[0])
            self._sums[head, mechanism] = first, second
        return self._sums[head, mechanism]

    def _parts(self, head: Head, mechanism: Mechanism) -> list[Part]:
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
