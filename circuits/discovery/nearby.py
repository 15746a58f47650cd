"""Predict the losses of circuits near a given one, and find the best of them.

1. One pass at the start gives gradients by all attention patterns. With them the loss of a nearby
   circuit is a quadratic function of what differs (`attribute`), in which changes can compensate
   for each other. A choice c (a mechanism for a head) has a number first[c] and a vector second[c]:

       loss(circuit) = loss(start) + Σ_c first[c] + |Σ_c second[c]|²

2. Changes that make one head simpler are also measured on a few examples, and the predictions
   scaled accordingly: gradients miss what a layer norm hides, and overestimate large changes.
3. A beam search (`Nearby.around`) finds the circuits with the lowest predictions, without a run.

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
from retrieval_interp.circuits.discovery.space import Choice, Space
from retrieval_interp.circuits.mechanisms import along

_SAME_PREDICTION = 1e-6  # difference of predicted losses that is none


@dataclass(frozen=True)
class Effort:
    """How much a search predicts, measures and tries; chosen on shipped models."""

    measured: int = 48  # simpler choices that are measured, as large changes are predicted badly
    measured_fast: int = 256  # the same for models of which a run computes only what differs
    depth: int = 8  # changes from the start at most, since the errors of predictions add up
    states: int = 600  # circuits that the beam keeps after each change, ...
    changes: int = 400_000  # ... fewer if together they have more changes than this
    hold: int = 8  # circuits predicted to hold that are tried, the simplest ones
    others: int = 32  # of those with the lowest losses, and with the fewest changes, each
    others_far: int = 4  # the same around a circuit that does not hold, to get closer to holding
    looks: int = 8  # looks in a row that may end at a circuit that does not hold; 2 after one held
    lacking: int = 8  # circuits with one head or path less than the best that are looked around


EFFORT = Effort()


class Near(NamedTuple):
    """A circuit near the start, with its predicted loss."""

    choices: tuple[int, ...]  # of each head, as numbers (`Nearby.choices`)
    key: int  # lower for simpler circuits (`Space.key`)
    loss: float  # predicted


class Front(NamedTuple):
    """Several such circuits as tensors, with their second-order vectors."""

    choices: Int[Tensor, "circuit head"]
    keys: Int[Tensor, " circuit"]
    losses: Float[Tensor, " circuit"]
    second: Float[Tensor, "circuit number"]

    def pick(self, chosen: Tensor | list[int]) -> "Front":
        """Return some of them, by index or mask."""
        return Front(*(column[chosen] for column in self))

    def listed(self) -> list[Near]:
        """Return them one by one."""
        columns = self.choices.tolist(), self.keys.tolist(), self.losses.tolist()
        return [Near(tuple(choices), key, loss) for choices, key, loss in zip(*columns)]


class Nearby:
    """The circuits of a space near a start, with predicted losses."""

    def __init__(self, space: Space, circuit: Circuit, judge: Judge, effort: Effort = EFFORT):
        self.space, self.circuit, self.judge, self.effort = space, circuit, judge, effort
        # Circuits that lose more than halfway from the tolerance to knowing nothing are dropped.
        self._highest_loss = (judge.bar.loss + judge.uninformed.loss) / 2
        self.choices: list[Choice] = []  # by number
        self._numbers: dict[Choice, int] = {}
        self._keys: list[int] = []
        self._first: list[float] = []
        self._second: list[Float[Tensor, " number"]] = []
        self._options: dict[int, tuple[Int[Tensor, " option"], Float[Tensor, " option"]]] = {}
        self._changes = judge.changes(circuit)
        start = [space.choice(head, circuit[head]) for head in space.heads]
        unchanged = self._changes.change(start[0].head, start[0].mechanism)
        self._zero = torch.zeros_like(unchanged.second, dtype=torch.double)
        self._measured = self._measure_simpler(start)
        self.start = Front(
            choices=torch.tensor([[self._number(choice) for choice in start]]),
            keys=torch.tensor([space.key(circuit)]),
            losses=torch.tensor([judge.loss(circuit)], dtype=torch.double),
            second=self._zero[None],
        )

    def _measure_simpler(self, start: list[Choice]) -> dict[Choice, Changed]:
        """Predict changes of heads to simpler choices; measure the least harmful."""
        judge, key_of = self.judge, self.space.key_of
        simpler = {
            option: self._changes.change(option.head, option.mechanism)
            for choice in start
            for option in self.space.options(choice)
            if key_of(option.mechanism) <= key_of(choice.mechanism)
        }
        count = self.effort.measured_fast if judge.fast else self.effort.measured
        for choice in sorted(simpler, key=lambda choice: simpler[choice].effect)[:count]:
            trial = self.circuit.replace(choice.head, choice.mechanism)
            loss = judge.loss(trial, stages=1, near=self.circuit)
            rise = loss - judge.loss(self.circuit, stages=1)
            simpler[choice] = _scaled(simpler[choice], rise)
        return simpler

    def circuit_of(self, near: Near) -> Circuit:
        """Return the circuit of a `Near`."""
        return self.space.circuit([self.choices[number].mechanism for number in near.choices])

    def around(self, limit: int = 0) -> list[Near]:
        """Find circuits with low predictions by a beam search, the lowest loss first.

        Keys go up to the start's, or below `limit` if that is higher. In each step the best of each
        key are changed once; of circuits with the same loss only the simplest is kept.
        """
        highest = max(int(self.start.keys), limit - 1)
        front, fronts = self.start, [self.start]
        seen = {near.choices for near in front.listed()}
        for _ in range(self.effort.depth):
            self.judge.deadline.check()
            front = self._best_changes(front, highest)
            new = [n for n, near in enumerate(front.listed()) if near.choices not in seen]
            if not new:
                break
            front = front.pick(new)
            seen.update(near.choices for near in front.listed())
            fronts.append(front)
        reached = Front(*map(torch.cat, zip(*fronts[1:] or fronts)))
        return reached.pick(_simplest(reached.losses, reached.keys)).listed()

    def chain(self, most: float, down: bool) -> list[Near]:
        """Follow the best change from circuit to circuit, and return all on the way.

        With `down` they become ever simpler while the predicted loss stays below `most`; otherwise
        the loss falls until it is below. The best change has the best ratio of loss to key.
        """
        front, links = self.start, list[Near]()
        while True:
            changes = _Changes(self, front)
            rise, growth = changes.losses - front.losses, changes.keys - front.keys
            price = torch.where(rise > 0, rise / (-growth).clamp(min=1), rise / growth.clamp(min=1))
            improves = (rise < 0) & (front.losses >= most)
            allowed = (growth < 0) & (changes.losses <= most) if down else improves
            cheapest = price.where(allowed, torch.inf).argmin()[None]
            if not bool(allowed[cheapest]):
                return links
            front = changes.apply(cheapest)
            links += front.listed()

    def _best_changes(self, front: Front, highest: int) -> Front:
        """Change each of some circuits once; return the best of each key."""
        changes = _Changes(self, front)
        losses, keys = changes.losses, changes.keys
        order = ((keys <= highest) & (losses <= self._highest_loss)).nonzero()[:, 0]
        order = order[_simplest(losses[order], keys[order])]
        order = order[keys[order].argsort(stable=True)]
        counts = keys[order].unique_consecutive(return_counts=True)[1]
        affordable = self.effort.changes * len(front.choices) // max(1, len(losses))
        states = min(self.effort.states, max(1, affordable))
        width = max(2, states // max(1, len(counts)))
        by_key = order.split(counts.tolist())
        chosen = torch.cat([order[:0], *(of_key[:width] for of_key in by_key)])
        return changes.apply(chosen[losses[chosen].argsort()][: 2 * states])

    def options(self, number: int) -> tuple[Int[Tensor, " option"], Float[Tensor, " option"]]:
        """Return the choices one change away, and what each alone adds to the loss."""
        if number not in self._options:
            options = [self._number(option) for option in self.space.options(self.choices[number])]
            first = [self._first[n] - self._first[number] for n in options]
            second = torch.stack([self._second[n] for n in options]) - self._second[number]
            rise = torch.tensor(first, dtype=torch.double) + second.square().sum(1)
            self._options[number] = torch.tensor(options), rise
        return self._options[number]

    def tables(self) -> tuple[Int[Tensor, " choice"], Float[Tensor, "choice number"]]:
        """Return the key and the second-order vector of every choice so far."""
        return torch.tensor(self._keys), torch.stack(self._second)

    def _number(self, choice: Choice) -> int:
        """Return the number of a choice, which is added to the tables if it is new."""
        if choice not in self._numbers:
            first, second = 0.0, self._zero
            for row in self._row_changes(choice):
                change = self._measured.get(row) or self._changes.change(row.head, row.mechanism)
                first, second = first + change.first, second + change.second
            self._numbers[choice] = len(self.choices)
            self.choices.append(choice)
            self._keys.append(self.space.key_of(choice.mechanism))
            self._first.append(first)
            self._second.append(second)
        return self._numbers[choice]

    def _row_changes(self, choice: Choice) -> list[Choice]:
        """Split a change of paths into changes of rows; any other stays whole."""
        base, mechanism = self.circuit[choice.head], choice.mechanism
        if mechanism == base:
            return []
        if not (base.follows_paths and mechanism.follows_paths):
            return [choice]
        rows = []
        for dest in sorted({path.dest for path in {*base.paths} ^ {*mechanism.paths}}):
            kept = [path for path in base.paths if path.dest != dest]
            new = [path for path in mechanism.paths if path.dest == dest]
            rows.append(self.space.choice(choice.head, along([*kept, *new])))
        return rows


class _Changes:
    """Every change of one head of some circuits, with loss and key, [change]."""

    def __init__(self, nearby: Nearby, front: Front):
        numbers, place = front.choices.unique(return_inverse=True)
        options = [nearby.options(number) for number in numbers.tolist()]
        shape = place.shape  # [circuit head], and then option
        to = pad_sequence([choices for choices, _ in options], True, -1)[place.flatten()]
        rise = pad_sequence([rises for _, rises in options], True)[place.flatten()]
        keys, self._second = nearby.tables()
        chosen = (to >= 0).nonzero()
        self._circuit, self._head = chosen[:, 0] // shape[1], chosen[:, 0] % shape[1]
        self._to = to[chosen[:, 0], chosen[:, 1]]
        self._from = front.choices[self._circuit, self._head]
        self._front = front
        products = front.second @ self._second.T
        crossed = products[self._circuit, self._to] - products[self._circuit, self._from]
        self.losses = front.losses[self._circuit] + rise[chosen[:, 0], chosen[:, 1]] + 2 * crossed
        self.keys = front.keys[self._circuit] + keys[self._to] - keys[self._from]

    def apply(self, chosen: Int[Tensor, " some"]) -> Front:
        """Return the circuits after some of the changes."""
        circuit, to = self._circuit[chosen], self._to[chosen]
        return Front(
            choices=self._front.choices[circuit].scatter(1, self._head[chosen, None], to[:, None]),
            keys=self.keys[chosen],
            losses=self.losses[chosen],
            second=self._front.second[circuit]
            + self._second[to]
            - self._second[self._from[chosen]],
        )


def _simplest(
    losses: Float[Tensor, " change"], keys: Int[Tensor, " change"]
) -> Int[Tensor, " some"]:
    """Return the simplest of each group of equal losses, the lowest loss first."""
    rounded = (losses / _SAME_PREDICTION).round()
    order = keys.argsort(stable=True)
    order = order[rounded[order].argsort(stable=True)]
    return order[rounded[order].diff(prepend=rounded.new_tensor([-torch.inf])) > 0]


def _scaled(change: Changed, measured: float) -> Changed:
    """Scale an estimated change so that its effect is the measured one.

    An overestimate is taken from the second-order part, which also shrinks its products with other
    changes; what then still differs is taken from the first-order part.
    """
    over, size = change.effect - measured, float(change.second.square().sum())
    taken = min(max(over, 0.0), size)
    scale = ((size - taken) / size) ** 0.5 if size > 0 else 1.0
    return Changed(change.first - over + taken, change.second * scale)
