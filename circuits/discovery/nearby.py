"""Circuits near one, and the losses that they are predicted to have.

1. One pass gives the gradients at a circuit. With them the loss of every circuit near it is a
   quadratic function of what differs (`attribute`): changes that make up for each other are seen.
2. What makes one head simpler is measured on a few examples, as gradients miss what a layer norm
   hides and overrate large changes; predictions are scaled to that.
3. A beam search then finds the circuits that should lose least, without a run.
4. What these really lose corrects the next predictions, by ridge regression.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

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
_RIDGE = 1.0  # measurements that a change has to differ in before half of their error is its own
Part = tuple[Head, Mechanism]


class Near(NamedTuple):
    """A circuit near the one in place: the numbers of its mechanisms, and what it should lose."""

    made: tuple[int, ...]
    key: int
    loss: float
    second: Float[Tensor, " number"]


class Options(NamedTuple):
    """What one change can make of a head, and how this differs from its mechanism."""

    made: list[int]
    keys: Int[Tensor, " option"]
    losses: Float[Tensor, " option"]
    second: Float[Tensor, "option number"]


class After(NamedTuple):
    """What comes of every change of some circuits, and of which circuit, head and option it is."""

    losses: Float[Tensor, " change"]
    keys: Int[Tensor, " change"]
    circuits: Int[Tensor, " change"]
    heads: Int[Tensor, " change"]
    options: Int[Tensor, " change"]


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
        self._singles: dict[Part, Changed] = {}
        self._errors: dict[Part, float] = {}
        self._rows: dict[Part, list[Part]] = {}
        self._risen: dict[Circuit, float] = {}
        self._changes = judge.changes(circuit)
        mechanisms = tuple(circuit[head] for head in space.heads)
        nothing = torch.zeros_like(self._changes.change(space.heads[0], mechanisms[0]).second)
        self.start = Near(self.made(circuit), space.key(circuit), judge.loss(circuit), nothing)
        simpler = [
            (head, option)
            for head, mechanism in zip(space.heads, mechanisms)
            for option in space.options(head, mechanism)
            if space.key_of(option) <= space.key_of(mechanism)
        ]
        few = _MEASURED_FAST if judge.fast else _MEASURED
        estimates = {each: self._changes.change(*each) for each in simpler}
        for each in sorted(simpler, key=lambda each: estimates[each].effect)[:few]:
            self._singles[each] = _scaled(estimates[each], self._rise(circuit.replace(*each)))

    def made(self, circuit: Circuit) -> tuple[int, ...]:
        """The numbers of a circuit's mechanisms."""
        return tuple(self._number(place, circuit[h]) for place, h in enumerate(self.space.heads))

    def circuit_of(self, near: Near) -> Circuit:
        """The circuit with the mechanisms of these numbers."""
        return self.space.circuit([list(of)[each] for of, each in zip(self._made, near.made)])

    def _number(self, place: int, mechanism: Mechanism) -> int:
        return self._made[place].setdefault(mechanism, len(self._made[place]))

    def _rise(self, circuit: Circuit) -> float:
        """What a circuit loses on the first examples."""
        return self.judge.loss(circuit, 1) - self.judge.loss(self.circuit, 1)

    def learn(self, circuits: Iterable[Circuit]) -> None:
        """Correct the predictions by what these circuits lose."""
        self._risen.update({circuit: self._rise(circuit) for circuit in circuits})
        if not self._risen:
            return
        heads = self.space.heads
        parts, present = _table(
            [part for head in heads for part in self._parts(head, circuit[head])]
            for circuit in self._risen
        )
        first, second = self._added(parts, present)
        limit = self.judge.most - self.start.loss
        risen = torch.tensor(list(self._risen.values())).clamp(max=limit)
        missed = risen - (first + second.square().sum(1)).clamp(max=limit)
        normal = present.T @ present + _RIDGE * torch.eye(len(parts))
        errors = torch.linalg.solve(normal, present.T @ missed)
        self._errors = dict(zip(parts, errors.tolist()))
        self._options.clear()

    def around(self, limit: int = 0) -> list[Near]:
        """Of each key up to the start's or below a limit, circuits that should lose least.

        A beam search: of each key the best are changed once more. Of those that should lose the
        same, as where a path leads nowhere, only the simplest is kept. The best come first.
        """
        most = max(self.start.key, limit - 1)
        front, found = [self.start], dict[int, Near]()
        seen = {self.start.made}
        changes = len(self._after(front).losses)
        states = min(_STATES, max(1, _CHANGES // changes))
        for _ in range(_DEPTH):
            self.judge.check_time()
            after = self._after(front)
            rounded = (after.losses / _SAME).round()
            allowed = (after.keys <= most) & (after.losses <= self.judge.most)
            order = allowed.nonzero()[:, 0]
            order = order[after.keys[order].argsort(stable=True)]
            order = order[rounded[order].argsort(stable=True)]
            order = order[rounded[order].diff(prepend=rounded.new_tensor([-torch.inf])) > 0]
            order = order[after.keys[order].argsort(stable=True)]
            if not len(order):
                break
            counts = after.keys[order].unique_consecutive(return_counts=True)[1]
            width = max(2, states // max(1, len(counts)))
            chosen = torch.cat([of_key[:width] for of_key in order.split(counts.tolist())])
            chosen = chosen[after.losses[chosen].argsort()][: 2 * states]
            front = [
                near
                for near in (self._changed(front, after, place) for place in chosen.tolist())
                if near.made not in seen
            ]
            seen.update(near.made for near in front)
            for near in front:
                same = round(near.loss / _SAME)
                if same not in found or near.key < found[same].key:
                    found[same] = near
            if not front:
                break
        return sorted(found.values(), key=lambda near: near.loss)

    def down(self, most: float) -> list[Near]:
        """Ever simpler circuits; what should cost least for what it saves goes first."""
        return self._chain(lambda near, after: (after.keys < near.key) & (after.losses <= most))

    def up(self, most: float) -> list[Near]:
        """Circuits that should lose ever less, until it is less than `most`."""
        return self._chain(lambda near, after: (after.losses < near.loss) & (near.loss >= most))

    def _chain(self, allowed: Callable[[Near, After], Bool[Tensor, " change"]]) -> list[Near]:
        found = [self.start]
        while True:
            after = self._after(found[-1:])
            risen, more = after.losses - found[-1].loss, after.keys - found[-1].key
            # What rises counts per unit that is saved; what falls, per unit that is spent.
            price = torch.where(risen > 0, risen / (-more).clamp(min=1), risen / more.clamp(min=1))
            price[~allowed(found[-1], after)] = torch.inf
            best = int(price.argmin())
            if not bool(price[best] < torch.inf):
                return found[1:]
            found.append(self._changed(found[-1:], after, best))

    def _after(self, front: list[Near]) -> After:
        """Every change of every circuit; of a head with fewer options some lose infinitely much."""
        seconds = torch.stack([near.second for near in front])
        losses = torch.tensor([near.loss for near in front])
        keys = torch.tensor([near.key for near in front])
        found = []
        for place, made in enumerate(torch.tensor([near.made for near in front]).T):
            numbers, of = made.unique(return_inverse=True)
            each = [self._of_head(place, number) for number in numbers.tolist()]
            own = pad_sequence([options.losses for options in each], True, torch.inf)[of]
            more = pad_sequence([options.keys for options in each], True)[of]
            second = pad_sequence([options.second for options in each], True)[of]
            crossed = torch.einsum("con,cn->co", second, seconds)
            after = losses[:, None] + own + 2 * crossed, keys[:, None] + more
            at = (torch.arange(len(front)), torch.tensor([place]), torch.arange(own.shape[1]))
            which = torch.meshgrid(*at, indexing="ij")
            found.append([part.flatten() for part in (*after, *which)])
        return After(*map(torch.cat, zip(*found)))

    def _changed(self, front: list[Near], after: After, number: int) -> Near:
        """A circuit after the change with this number."""
        near, place = front[int(after.circuits[number])], int(after.heads[number])
        options, option = self._of_head(place, near.made[place]), int(after.options[number])
        made = (*near.made[:place], options.made[option], *near.made[place + 1 :])
        key, loss = int(after.keys[number]), float(after.losses[number])
        return Near(made, key, loss, near.second + options.second[option])

    def _of_head(self, place: int, number: int) -> Options:
        if (place, number) not in self._options:
            head, mechanism = self.space.heads[place], list(self._made[place])[number]
            mechanisms = self.space.options(head, mechanism)
            parts, present = _table(self._parts(head, each) for each in (mechanism, *mechanisms))
            first, second = self._added(parts, present)
            first += present @ torch.tensor([self._errors.get(part, 0.0) for part in parts])
            first, second = first[1:] - first[0], second[1:] - second[0]
            keys = torch.tensor([self.space.key_of(each) for each in mechanisms])
            keys = keys - self.space.key_of(mechanism)
            losses = first + second.square().sum(1)
            made = [self._number(place, each) for each in mechanisms]
            self._options[place, number] = Options(made, keys, losses, second)
        return self._options[place, number]

    def _added(
        self, parts: list[Part], present: Float[Tensor, "change part"]
    ) -> tuple[Float[Tensor, " change"], Float[Tensor, "change number"]]:
        """What each change adds to the loss by itself and to what is squared, uncorrected."""
        singles = [self._single(*part) for part in parts]
        first = torch.tensor([single.first for single in singles])
        second = [single.second for single in singles] or [self.start.second]
        return present @ first, present @ torch.stack(second)[: len(parts)]

    def _single(self, head: Head, mechanism: Mechanism) -> Changed:
        if (head, mechanism) not in self._singles:
            self._singles[head, mechanism] = self._changes.change(head, mechanism)
        return self._singles[head, mechanism]

    def _parts(self, head: Head, mechanism: Mechanism) -> list[Part]:
        """The changes of single rows that make up a mechanism along paths; any other as a whole."""
        base = self.circuit[head]
        if mechanism == base:
            return []
        if not (base.follows_paths and mechanism.follows_paths):
            return [(head, mechanism)]
        if (head, mechanism) not in self._rows:
            changed = {path.dest for path in {*base.paths} ^ {*mechanism.paths}}
            self._rows[head, mechanism] = [
                (head, along([*(p for p in base.paths if p.dest != dest), *row]))
                for dest in sorted(changed)
                for row in [[p for p in mechanism.paths if p.dest == dest]]
            ]
        return self._rows[head, mechanism]


def _table(changed: Iterable[list[Part]]) -> tuple[list[Part], Float[Tensor, "change part"]]:
    """The parts of all changes, and 1 where a change has one."""
    rows = list(changed)
    columns = {part: at for at, part in enumerate(dict.fromkeys(chain(*rows)))}
    present = torch.zeros(len(rows), len(columns))
    for row, parts in zip(present, rows):
        row[[columns[part] for part in parts]] = 1
    return list(columns), present


def _scaled(change: Changed, measured: float) -> Changed:
    """An estimated change with the effect that was measured.

    What was overrated is taken from the second part, of which each product with another's is then
    smaller, too; what is left is added to the first.
    """
    over, size = change.effect - measured, float(change.second.square().sum())
    taken = min(max(over, 0.0), size)
    scale = ((size - taken) / size) ** 0.5 if size > 0 else 1.0
    return Changed(change.first - over + taken, change.second * scale)
