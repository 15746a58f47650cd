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


class Near(NamedTuple):
    """A circuit near the one in place: the mechanism of each head, and what it should lose."""

    mechanisms: tuple[Mechanism, ...]
    key: int
    loss: float
    second: Float[Tensor, " number"]


class Options(NamedTuple):
    """What one change can make of a head, and how this differs from its mechanism."""

    mechanisms: list[Mechanism]
    keys: Int[Tensor, " option"]
    first: Float[Tensor, " option"]
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
        few: of how many changes of one head they are measured, of those that should cost least.
    """

    def __init__(self, space: Space, circuit: Circuit, judge: Judge, few: int | None = None):
        self.space, self.circuit, self.judge = space, circuit, judge.around(circuit)
        self._options: dict[tuple[Head, Mechanism], Options] = {}
        self._singles: dict[tuple[Head, Mechanism], Changed] = {}
        self._errors: dict[tuple[Head, Mechanism], float] = {}
        self._rows: dict[tuple[Head, Mechanism], list[tuple[Head, Mechanism]]] = {}
        self._risen: dict[Circuit, float] = {}
        self._changes = judge.changes(circuit)
        mechanisms = tuple(circuit[head] for head in space.heads)
        nothing = torch.zeros_like(self._changes.change(space.heads[0], mechanisms[0]).second)
        self.start = Near(mechanisms, space.key(circuit), judge.loss(circuit), nothing)
        simpler = [
            (head, option)
            for head, mechanism in zip(space.heads, mechanisms)
            for option in space.options(head, mechanism)
            if space.key_of(option) <= space.key_of(mechanism)
        ]
        if few is None:
            few = _MEASURED_FAST if judge.fast else _MEASURED
        estimates = {each: self._changes.change(*each) for each in simpler}
        for each in sorted(simpler, key=lambda each: estimates[each].effect)[:few]:
            self._singles[each] = _scaled(estimates[each], self._rise(circuit.replace(*each)))

    def _rise(self, circuit: Circuit) -> float:
        """What a circuit loses on the first examples."""
        return self.judge.loss(circuit, 1) - self.judge.loss(self.circuit, 1)

    def learn(self, circuits: Iterable[Circuit]) -> None:
        """Correct the predictions by what these circuits lose."""
        self._risen.update({circuit: self._rise(circuit) for circuit in circuits})
        if not self._risen:
            return
        changed = [
            [
                part
                for head, own in zip(self.space.heads, self.start.mechanisms)
                if circuit[head] != own
                for part in self._parts(head, circuit[head])
            ]
            for circuit in self._risen
        ]
        columns = {part: at for at, part in enumerate(dict.fromkeys(chain(*changed)))}
        present = torch.zeros(len(changed), len(columns))
        missed = torch.zeros(len(changed))
        limit = self.judge.most - self.start.loss
        for row, (parts, risen) in enumerate(zip(changed, self._risen.values())):
            present[row, [columns[part] for part in parts]] = 1
            singles = [self._single(*part) for part in parts]
            second = torch.stack([single.second for single in singles]).sum(0)
            expected = sum(single.first for single in singles) + float(second.square().sum())
            missed[row] = min(risen, limit) - min(expected, limit)
        normal = present.T @ present + _RIDGE * torch.eye(len(columns))
        errors = torch.linalg.solve(normal, present.T @ missed)
        self._errors = dict(zip(columns, errors.tolist()))
        self._options.clear()

    def around(self) -> list[Near]:
        """Of each key up to the start's, circuits that should lose least, and no more than matters.

        A beam search: of each key the best are changed once more. Of those that should lose the
        same, as where a path leads nowhere, only the simplest is kept. The best come first.
        """
        front, found = [self.start], dict[int, Near]()
        seen = {self.start.mechanisms}
        changes = len(self._after(front).losses)
        states = min(_STATES, max(1, _CHANGES // changes))
        for _ in range(_DEPTH):
            self.judge.check_time()
            after = self._after(front)
            rounded = (after.losses / _SAME).round()
            allowed = (after.keys <= self.start.key) & (after.losses <= self.judge.most)
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
                if near.mechanisms not in seen
            ]
            seen.update(near.mechanisms for near in front)
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
        seconds = torch.stack([near.second for near in front])
        losses = torch.tensor([near.loss for near in front])
        keys = torch.tensor([near.key for near in front])
        found = []
        for place, head in enumerate(self.space.heads):
            alike: dict[Mechanism, list[int]] = {}
            for number, near in enumerate(front):
                alike.setdefault(near.mechanisms[place], []).append(number)
            for mechanism, numbers in alike.items():
                options, of = self._of_head(head, mechanism), torch.tensor(numbers)
                effects = options.first + options.second.square().sum(1)
                crossed = 2 * seconds[of] @ options.second.T
                count = torch.arange(len(options.mechanisms))
                after = [
                    losses[of, None] + effects + crossed,
                    keys[of, None] + options.keys,
                    *torch.meshgrid(of, torch.tensor([place]).expand(len(count)), indexing="ij"),
                    count.expand(len(of), -1),
                ]
                found.append([each.flatten() for each in after])
        return After(*map(torch.cat, zip(*found)))

    def _changed(self, front: list[Near], after: After, number: int) -> Near:
        """A circuit after the change with this number."""
        near, place = front[int(after.circuits[number])], int(after.heads[number])
        options = self._of_head(self.space.heads[place], near.mechanisms[place])
        option = int(after.options[number])
        mechanisms = list(near.mechanisms)
        mechanisms[place] = options.mechanisms[option]
        key, loss = int(after.keys[number]), float(after.losses[number])
        return Near(tuple(mechanisms), key, loss, near.second + options.second[option])

    def _of_head(self, head: Head, mechanism: Mechanism) -> Options:
        if (head, mechanism) not in self._options:
            mechanisms = self.space.options(head, mechanism)
            before, changed = (
                self._change(head, mechanism),
                [self._change(head, m) for m in mechanisms],
            )
            keys = torch.tensor([self.space.key_of(each) for each in mechanisms])
            first = torch.tensor([each.first for each in changed]) - before.first
            second = torch.stack([each.second for each in changed]) - before.second
            keys = keys - self.space.key_of(mechanism)
            self._options[head, mechanism] = Options(mechanisms, keys, first, second)
        return self._options[head, mechanism]

    def _change(self, head: Head, mechanism: Mechanism) -> Changed:
        """What a mechanism changes, with what is known of its parts."""
        parts = self._parts(head, mechanism)
        if not parts:
            return Changed(0.0, torch.zeros_like(self.start.second))
        singles = [self._single(*part) for part in parts]
        errors = sum(self._errors.get(part, 0.0) for part in parts)
        first = sum(single.first for single in singles) + errors
        return Changed(first, torch.stack([single.second for single in singles]).sum(0))

    def _single(self, head: Head, mechanism: Mechanism) -> Changed:
        if (head, mechanism) not in self._singles:
            self._singles[head, mechanism] = self._changes.change(head, mechanism)
        return self._singles[head, mechanism]

    def _parts(self, head: Head, mechanism: Mechanism) -> list[tuple[Head, Mechanism]]:
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


def _scaled(change: Changed, measured: float) -> Changed:
    """An estimated change with the effect that was measured.

    What was overrated is taken from the second part, of which each product with another's is then
    smaller, too; what is left is added to the first.
    """
    over, size = change.effect - measured, float(change.second.square().sum())
    taken = min(max(over, 0.0), size)
    scale = ((size - taken) / size) ** 0.5 if size > 0 else 1.0
    return Changed(change.first - over + taken, change.second * scale)
