"""Circuits near one, and the losses that they are predicted to have.

1. One pass gives the gradients at a circuit. With them the loss of every circuit near it is a
   quadratic function of what differs (`attribute`): changes that make up for each other are seen.
   A part p (a head with a mechanism) adds first[p] to the loss and second[p] to what is squared:

       loss(circuit) = loss(start) + Σ_p first[p] + |Σ_p second[p]|²

2. What makes one head simpler is measured on a few examples, as gradients miss what a layer norm
   hides and overrate large changes; predictions are scaled to that.
3. A beam search then finds the circuits that should lose least, without a run.

All tables are on the CPU, whatever the device of the model.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.discovery.attribution import Changed
from retrieval_interp.circuits.discovery.judge import Judge
from retrieval_interp.circuits.discovery.space import Part, Space
from retrieval_interp.circuits.mechanisms import along

_SAME_PREDICTION = 1e-6  # difference of predicted losses that is none


@dataclass(frozen=True)
class Effort:
    """How much a search predicts, measures and tries; chosen on the shipped models."""

    measured: int = 48  # simpler heads that are measured: large changes are predicted badly
    measured_fast: int = 256  # the same where a run computes only what differs, so many cost little
    depth: int = 8  # changes one after the other: the errors of predictions add up
    states: int = 600  # circuits that are kept after each change, at most ...
    changes: int = 400_000  # ... and as have so many changes, as heads of a large model have many
    hold: int = 8  # circuits that are tried of those predicted to hold, the simplest first
    others: int = 32  # of those that should lose least, and that differ least: the 61st held once
    others_far: int = 4  # the same around a circuit that does not hold: they only lead closer
    looks: int = 8  # at ever lower losses, until a first circuit holds; then 2
    lacking: int = 8  # circuits without a part of the best; those that lose more lead nowhere


EFFORT = Effort()


class Near(NamedTuple):
    """A circuit near the start: the numbers of its parts, its key, and what it should lose."""

    parts: tuple[int, ...]
    key: int
    loss: float


class Front(NamedTuple):
    """Circuits near the start, as `Near`, with what is squared in their losses."""

    parts: Int[Tensor, "circuit head"]
    keys: Int[Tensor, " circuit"]
    losses: Float[Tensor, " circuit"]
    second: Float[Tensor, "circuit number"]

    def pick(self, chosen: Tensor | list[int]) -> "Front":
        """Some of them, by place."""
        return Front(*(column[chosen] for column in self))

    def listed(self) -> list[Near]:
        """All of them, one by one."""
        columns = self.parts.tolist(), self.keys.tolist(), self.losses.tolist()
        return [Near(tuple(parts), key, loss) for parts, key, loss in zip(*columns)]


class Nearby:
    """The circuits near one, in a space of circuits, with losses that a judge measures."""

    def __init__(self, space: Space, circuit: Circuit, judge: Judge, effort: Effort = EFFORT):
        self.space, self.circuit, self.judge, self.effort = space, circuit, judge, effort
        # It does not matter who loses more than halfway from the tolerance to knowing nothing.
        self._most = (judge.bar.loss + judge.uninformed.loss) / 2
        self.parts: list[Part] = []
        self._numbers: dict[Part, int] = {}
        self._keys: list[int] = []
        self._first: list[float] = []
        self._second: list[Float[Tensor, " number"]] = []
        self._options: dict[int, tuple[Int[Tensor, " option"], Float[Tensor, " option"]]] = {}
        self._changes = judge.changes(circuit)
        start = [space.part(head, circuit[head]) for head in space.heads]
        nothing = self._changes.change(start[0].head, start[0].mechanism)
        self._none = torch.zeros_like(nothing.second, dtype=torch.double)
        self._measured = self._measure_simpler(start)
        self.start = Front(
            parts=torch.tensor([[self._number(part) for part in start]]),
            keys=torch.tensor([space.key(circuit)]),
            losses=torch.tensor([judge.loss(circuit)], dtype=torch.double),
            second=self._none[None],
        )

    def _measure_simpler(self, start: list[Part]) -> dict[Part, Changed]:
        """What no more complex options of single heads change, with the effect that is measured."""
        judge, key_of = self.judge, self.space.key_of
        simpler = {
            option: self._changes.change(option.head, option.mechanism)
            for part in start
            for option in self.space.options(part)
            if key_of(option.mechanism) <= key_of(part.mechanism)
        }
        few = self.effort.measured_fast if judge.fast else self.effort.measured
        for part in sorted(simpler, key=lambda part: simpler[part].effect)[:few]:
            trial = self.circuit.replace(part.head, part.mechanism)
            risen = judge.loss(trial, stages=1, near=self.circuit) - judge.loss(
                self.circuit, stages=1
            )
            simpler[part] = _scaled(simpler[part], risen)
        return simpler

    def circuit_of(self, near: Near) -> Circuit:
        """The circuit with the parts of these numbers."""
        return self.space.circuit([self.parts[number].mechanism for number in near.parts])

    def around(self, limit: int = 0) -> list[Near]:
        """Of each key up to the start's or below a limit, circuits that should lose least.

        A beam search: of each key the best are changed once more. Of those that should lose the
        same, as where a path leads nowhere, only the simplest is kept. The best come first.
        """
        highest = max(int(self.start.keys), limit - 1)
        front, fronts = self.start, [self.start]
        seen = {near.parts for near in front.listed()}
        for _ in range(self.effort.depth):
            self.judge.deadline.check()
            front = self._best_changes(front, highest)
            new = [at for at, near in enumerate(front.listed()) if near.parts not in seen]
            if not new:
                break
            front = front.pick(new)
            seen.update(near.parts for near in front.listed())
            fronts.append(front)
        reached = Front(*map(torch.cat, zip(*fronts[1:] or fronts)))
        return reached.pick(_simplest(reached.losses, reached.keys)).listed()

    def chain(self, most: float, down: bool) -> list[Near]:
        """Ever simpler circuits, up to a loss, or some that should lose ever less, down to it.

        Each is one change from the last, which should cost least for what it saves.
        """
        front, links = self.start, list[Near]()
        while True:
            changes = _Changes(self, front)
            risen, more = changes.losses - front.losses, changes.keys - front.keys
            price = torch.where(risen > 0, risen / (-more).clamp(min=1), risen / more.clamp(min=1))
            up = (risen < 0) & (front.losses >= most)
            allowed = (more < 0) & (changes.losses <= most) if down else up
            cheapest = price.where(allowed, torch.inf).argmin()[None]
            if not bool(allowed[cheapest]):
                return links
            front = changes.made(cheapest)
            links += front.listed()

    def _best_changes(self, front: Front, highest: int) -> Front:
        """The best that come of one change of some circuits, of each key up to the highest."""
        changes = _Changes(self, front)
        losses, keys = changes.losses, changes.keys
        order = ((keys <= highest) & (losses <= self._most)).nonzero()[:, 0]
        order = order[_simplest(losses[order], keys[order])]
        order = order[keys[order].argsort(stable=True)]
        counts = keys[order].unique_consecutive(return_counts=True)[1]
        for_changes = self.effort.changes * len(front.parts) // max(1, len(losses))
        states = min(self.effort.states, max(1, for_changes))
        width = max(2, states // max(1, len(counts)))
        by_key = order.split(counts.tolist())
        chosen = torch.cat([order[:0], *(of_key[:width] for of_key in by_key)])
        return changes.made(chosen[losses[chosen].argsort()][: 2 * states])

    def options(self, number: int) -> tuple[Int[Tensor, " option"], Float[Tensor, " option"]]:
        """The parts that one change makes of a part, and what each adds to the loss by itself."""
        if number not in self._options:
            options = [self._number(option) for option in self.space.options(self.parts[number])]
            first = [self._first[n] - self._first[number] for n in options]
            second = torch.stack([self._second[n] for n in options]) - self._second[number]
            rise = torch.tensor(first, dtype=torch.double) + second.square().sum(1)
            self._options[number] = torch.tensor(options), rise
        return self._options[number]

    def tables(self) -> tuple[Int[Tensor, " part"], Float[Tensor, "part number"]]:
        """The key of every part so far, and what it adds to what is squared."""
        return torch.tensor(self._keys), torch.stack(self._second)

    def _number(self, part: Part) -> int:
        """The number of a part, which is added to the tables if it is new."""
        if part not in self._numbers:
            first, second = 0.0, self._none
            for row in self._rows(part):
                change = self._measured.get(row) or self._changes.change(row.head, row.mechanism)
                first, second = first + change.first, second + change.second
            self._numbers[part] = len(self.parts)
            self.parts.append(part)
            self._keys.append(self.space.key_of(part.mechanism))
            self._first.append(first)
            self._second.append(second)
        return self._numbers[part]

    def _rows(self, part: Part) -> list[Part]:
        """The changes of single rows that make up a mechanism along paths; any other as a whole."""
        base, mechanism = self.circuit[part.head], part.mechanism
        if mechanism == base:
            return []
        if not (base.follows_paths and mechanism.follows_paths):
            return [part]
        rows = []
        for dest in sorted({path.dest for path in {*base.paths} ^ {*mechanism.paths}}):
            kept = [path for path in base.paths if path.dest != dest]
            new = [path for path in mechanism.paths if path.dest == dest]
            rows.append(self.space.part(part.head, along([*kept, *new])))
        return rows


class _Changes:
    """Every change of one head of some circuits, [change], with the losses and keys after it."""

    def __init__(self, nearby: Nearby, front: Front):
        numbers, place = front.parts.unique(return_inverse=True)
        options = [nearby.options(number) for number in numbers.tolist()]
        shape = place.shape  # [circuit head], and then option
        to = pad_sequence([parts for parts, _ in options], True, -1)[place.flatten()]
        rise = pad_sequence([rises for _, rises in options], True)[place.flatten()]
        keys, self._second = nearby.tables()
        chosen = (to >= 0).nonzero()
        self._circuit, self._head = chosen[:, 0] // shape[1], chosen[:, 0] % shape[1]
        self._to = to[chosen[:, 0], chosen[:, 1]]
        self._from = front.parts[self._circuit, self._head]
        self._front = front
        products = front.second @ self._second.T
        crossed = products[self._circuit, self._to] - products[self._circuit, self._from]
        self.losses = front.losses[self._circuit] + rise[chosen[:, 0], chosen[:, 1]] + 2 * crossed
        self.keys = front.keys[self._circuit] + keys[self._to] - keys[self._from]

    def made(self, chosen: Int[Tensor, " some"]) -> Front:
        """The circuits that some of the changes make."""
        circuit, to = self._circuit[chosen], self._to[chosen]
        return Front(
            parts=self._front.parts[circuit].scatter(1, self._head[chosen, None], to[:, None]),
            keys=self.keys[chosen],
            losses=self.losses[chosen],
            second=self._front.second[circuit]
            + self._second[to]
            - self._second[self._from[chosen]],
        )


def _simplest(
    losses: Float[Tensor, " change"], keys: Int[Tensor, " change"]
) -> Int[Tensor, " some"]:
    """Of those that lose the same, the simplest; those that lose least first."""
    rounded = (losses / _SAME_PREDICTION).round()
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
