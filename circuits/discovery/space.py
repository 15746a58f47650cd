"""The circuits that a search may try, their costs, and predictions of their losses.

`Space` lists what each head may become, by what it attends to. `Neighbourhood` finds the best
circuits near a given one by predicted losses, and tries none:

1. One pass at the start gives gradients by all attention patterns. With them the loss of a nearby
   circuit is a quadratic function of what differs (`attribute`), in which changes can compensate
   for each other. A choice c (a mechanism for a head) has a number first[c] and a vector second[c]:

       loss(circuit) = loss(start) + Σ_c first[c] + |Σ_c second[c]|²

2. Changes that make one head simpler are also measured on a few examples, and the predictions
   scaled accordingly: gradients miss what a layer norm hides, and overestimate large changes.
3. A beam search (`Neighbourhood.around`) finds the circuits with the lowest predictions, without a
   run.

All tables are on the CPU, whatever the device of the model.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.discovery.attribution import Estimate
from retrieval_interp.circuits.discovery.judge import Judge
from retrieval_interp.circuits.hooks import HookedModel
from retrieval_interp.circuits.means import overlaps, position_means, propose, role_mean
from retrieval_interp.circuits.mechanisms import (
    FIRST,
    IDENTITY,
    ORIGINAL,
    PREVIOUS,
    RULES,
    UNIFORM,
    Mechanism,
    OneHot,
    Shared,
)
from retrieval_interp.circuits.paths import Head, RolePath
from retrieval_interp.tasks import Batch

# Candidates along paths: which kind, and the least mean attention of a path.
_THRESHOLDS = [("one-hot", 0.5), ("one-hot", 0.3), ("one-hot", 0.1)]
_SHARED_THRESHOLDS = [("shared", 0.4), ("shared", 0.25), ("shared", 0.15)]
_DOMINATES = 100_000  # more than any circuit costs
_LEAST_ATTENTION = 0.1  # mean attention of a path from which on it may be added to a head
_RULE_SHARE = 0.25  # share of a head's attention that a rule has to explain to be a candidate, ...
_RULE_IN_ROLE = 0.5  # ... or share of the attention of one of its roles
_SAME_PREDICTION = 1e-6  # difference of predicted losses that is none


def rule_candidates(
    model: HookedModel, batch: Batch, heads: list[Head]
) -> dict[Head, list[Mechanism]]:
    """Return each head's mean pattern, and rules that explain much of its attention.

    For models that read vectors, whose positions are shuffled, these are only your own rules
    that read no tokens: there the roles say what is at a position.
    """
    on_tokens = batch.tokens is not None
    by_position = FIRST, PREVIOUS
    rules = [rule for rule in RULES if on_tokens or not (rule.reads_tokens or rule in by_position)]
    if not (on_tokens or rules):
        return {head: [] for head in heads}
    means = position_means(model, batch) if on_tokens else {}
    rules = [rule for rule in rules if not rule.follows_paths]  # tried along paths, in `Space`
    explained = overlaps(model, batch, dict.fromkeys(heads, rules))
    candidates: dict[Head, list[Mechanism]] = {head: [] for head in heads}
    for head in heads:
        for rule, (share, by_role) in zip(rules, explained[head]):
            if share >= _RULE_SHARE or by_role.max() >= _RULE_IN_ROLE:
                candidates[head].append(rule)
        candidates[head] += [means[head]] if on_tokens else []
    return candidates


@dataclass(frozen=True, eq=False)
class Choice:
    """A head with a mechanism. A `Space` has one object of each: look-ups are fast."""

    head: Head
    mechanism: Mechanism


class Space:
    """The circuits that a search may try, and their cost.

    Args:
        empty: the circuit that replaces nothing.
        attention: mean attention of every head, by role.
        heads: heads that may be replaced.
        rules: candidates of each head besides those along paths (`rule_candidates`).
        shared, fewest: as in `SearchOptions`.
    """

    def __init__(
        self,
        empty: Circuit,
        attention: Float[Tensor, "layer head dest src"],
        heads: list[Head],
        rules: Mapping[Head, Sequence[Mechanism]],
        shared: bool,
        fewest: str = "paths",
    ):
        self.empty, self.heads, self.shared, self.fewest = empty, heads, shared, fewest
        thresholds = _THRESHOLDS + (_SHARED_THRESHOLDS if shared else [])
        alike: list[dict[Head, Mechanism]] = [
            {head: propose(attention[head], *threshold) for head in heads}
            for threshold in thresholds
        ]
        if shared:
            alike.append({head: role_mean(attention[head]) for head in heads})
        self.starts = list(dict.fromkeys(replace(empty, mechanisms=start) for start in alike))
        self.candidates: dict[Head, list[Mechanism]] = {}  # of each head, the simplest first
        self.attended: dict[Head, list[RolePath]] = {}  # paths that may be added to a head
        self._choices: dict[tuple[Head, Mechanism], Choice] = {}
        self._neighbours: dict[Choice, list[Choice]] = {}
        along_paths = [rule for rule in RULES if rule.follows_paths] if shared else []
        for head in heads:
            from_rules = [*rules[head]] if shared else []
            from_rules += [
                rule.with_paths(start[head].paths) for rule in along_paths for start in alike
            ]
            every = [IDENTITY, UNIFORM, *(start[head] for start in alike), *from_rules, ORIGINAL]
            self.candidates[head] = sorted(dict.fromkeys(every), key=self._cost)
            paths = (attention[head] >= _LEAST_ATTENTION).nonzero().tolist()
            self.attended[head] = [RolePath(*path) for path in paths]

    def aiming(self, fewest: str) -> "Space":
        """Return the space in which fewest `paths`, or `heads`, count first."""
        aimed = copy(self)
        aimed.fewest = fewest
        return aimed

    def cost(self, circuit: Circuit) -> int:
        """Return the cost of a circuit: the sum over all heads that may be replaced."""
        return sum(self._cost(circuit[head]) for head in self.heads)

    def useful(self, circuit: Circuit) -> list[Head]:
        """Return the heads whose mechanism costs something, unlike uniform and identity."""
        return [head for head in self.heads if self._cost(circuit[head])]

    def complexity(self, circuit: Circuit) -> int:
        """Return cost and number of useful heads in one number, lower is simpler."""
        return sum(self.complexity_of(circuit[head]) for head in self.heads)

    def complexity_of(self, mechanism: Mechanism) -> int:
        """Return what a head with this mechanism adds to a circuit's complexity."""
        cost = self._cost(mechanism)
        by_heads = self.fewest == "heads"
        return cost + _DOMINATES * (cost > 0) if by_heads else _DOMINATES * cost + (cost > 0)

    def size(self, complexity: int) -> int:
        """Return cost plus number of useful heads, of a complexity."""
        return sum(divmod(complexity, _DOMINATES))

    def circuit(self, mechanisms: Sequence[Mechanism]) -> Circuit:
        """Return the circuit in which `heads` have these mechanisms."""
        return replace(self.empty, mechanisms=dict(zip(self.heads, mechanisms)))

    def choice(self, head: Head, mechanism: Mechanism) -> Choice:
        """Return a head's choice of a mechanism, the same object every time."""
        return self._choices.setdefault((head, mechanism), Choice(head, mechanism))

    def neighbours(self, choice: Choice) -> list[Choice]:
        """Return choices one change away: another candidate, a path more or less.

        If sources may not share a role, a path that is added replaces the role's other one.
        """
        if choice not in self._neighbours:
            head, mechanism = choice.head, choice.mechanism
            others = list(self.candidates[head])
            kept = mechanism.paths if mechanism.follows_paths else ()
            others += [mechanism.without(removed) for removed in kept]
            if not (mechanism.keeps_own or mechanism.is_measured):
                for new in self.attended[head]:
                    beside = [path for path in kept if self.shared or path.dest != new.dest]
                    others += [mechanism.with_paths([*beside, new])] if new not in kept else []
            distinct = [other for other in dict.fromkeys(others) if other != mechanism]
            self._neighbours[choice] = [self.choice(head, other) for other in distinct]
        return self._neighbours[choice]

    def _cost(self, mechanism: Mechanism) -> int:
        of_head, of_role = mechanism.cost
        return of_head + of_role * self.empty.n_roles


# The circuits near one, by predicted losses


@dataclass(frozen=True)
class Effort:
    """How much a search predicts, measures and tries; chosen on shipped models."""

    measured: int = 48  # simpler choices that are measured, as large changes are predicted badly
    measured_if_cheap: int = 256  # the same for models of which a run computes only what differs
    depth: int = 8  # changes from the start at most, since the errors of predictions add up
    states: int = 600  # circuits that the beam keeps after each change
    moves: int = 400_000  # changes weighed at most for these; where there are more, fewer are kept
    predicted_to_hold: int = 8  # circuits tried of those predicted to hold, the simplest
    others: int = 32  # circuits tried of all that were predicted, those with the lowest losses
    others_far: int = 4  # the same around a circuit that does not hold, to get closer to holding
    steps_not_holding: int = 8  # in a row, to circuits that do not hold; 2 after one held
    lacking: int = 8  # circuits with one head or path less than the best that are searched around


EFFORT = Effort()


class Predicted(NamedTuple):
    """A circuit near the start, with its predicted loss."""

    choices: tuple[int, ...]  # of each head, as numbers (`Neighbourhood.choices`)
    complexity: int  # lower for simpler circuits (`Space.complexity`)
    loss: float  # predicted


class Beam(NamedTuple):
    """Several such circuits as tensors, with their second-order vectors."""

    choices: Int[Tensor, "circuit head"]
    complexities: Int[Tensor, " circuit"]
    losses: Float[Tensor, " circuit"]
    second: Float[Tensor, "circuit number"]

    def pick(self, chosen: Tensor | list[int]) -> "Beam":
        """Return some of them, by index or mask."""
        return Beam(*(column[chosen] for column in self))

    def listed(self) -> list[Predicted]:
        """Return them one by one."""
        columns = self.choices.tolist(), self.complexities.tolist(), self.losses.tolist()
        return [
            Predicted(tuple(choices), complexity, loss)
            for choices, complexity, loss in zip(*columns)
        ]


class Moves(NamedTuple):
    """Changes of one head of one circuit of a `Beam` each, and what becomes of the circuits."""

    circuit: Int[Tensor, " move"]  # its index in the beam
    head: Int[Tensor, " move"]  # its index in the circuit's choices
    old: Int[Tensor, " move"]  # the head's choice, by number
    new: Int[Tensor, " move"]
    complexities: Int[Tensor, " move"]  # of the changed circuits
    losses: Float[Tensor, " move"]  # predicted for them


class Neighbourhood:
    """The circuits of a space near a start, with predicted losses."""

    def __init__(self, space: Space, circuit: Circuit, judge: Judge, effort: Effort = EFFORT):
        self.space, self.circuit, self.judge, self.effort = space, circuit, judge, effort
        # Circuits that lose more than halfway from the tolerance to knowing nothing are dropped.
        self._highest_loss = (judge.limit.loss + judge.uninformed.loss) / 2
        self.choices: list[Choice] = []  # by number
        self._numbers: dict[Choice, int] = {}
        self._complexities: list[int] = []
        self._first: list[float] = []
        self._second: list[Float[Tensor, " number"]] = []
        self._neighbours: dict[int, tuple[Int[Tensor, " choice"], Float[Tensor, " choice"]]] = {}
        self._estimates = judge.estimates_around(circuit)
        start = [space.choice(head, circuit[head]) for head in space.heads]
        unchanged = self._estimates.change(start[0].head, start[0].mechanism)
        self._zero = torch.zeros_like(unchanged.second, dtype=torch.double)
        self._measured = self._measure_simpler(start)
        self.start = Beam(
            choices=torch.tensor([[self._number(choice) for choice in start]]),
            complexities=torch.tensor([space.complexity(circuit)]),
            losses=torch.tensor([judge.loss(circuit)], dtype=torch.double),
            second=self._zero[None],
        )

    def _measure_simpler(self, start: list[Choice]) -> dict[Choice, Estimate]:
        """Predict changes of heads to simpler choices; measure the least harmful."""
        judge, complexity_of = self.judge, self.space.complexity_of
        simpler = {
            option: self._estimates.change(option.head, option.mechanism)
            for choice in start
            for option in self.space.neighbours(choice)
            if complexity_of(option.mechanism) <= complexity_of(choice.mechanism)
        }
        count = self.effort.measured_if_cheap if judge.runs_are_cheap else self.effort.measured
        for choice in sorted(simpler, key=lambda choice: simpler[choice].effect)[:count]:
            trial = self.circuit.replace(choice.head, choice.mechanism)
            loss = judge.loss(trial, near=self.circuit, examples=16)
            rise = loss - judge.loss(self.circuit, examples=16)
            simpler[choice] = _scaled(simpler[choice], rise)
        return simpler

    def circuit_of(self, predicted: Predicted) -> Circuit:
        """Return the circuit that was predicted."""
        return self.space.circuit([self.choices[number].mechanism for number in predicted.choices])

    def around(self, below: int = 0) -> list[Predicted]:
        """Find circuits with low predictions by a beam search, the lowest loss first.

        They are at most as complex as the start, or less complex than `below` if that allows more.
        In each step the best of each complexity are changed once; of circuits with the same loss
        only the simplest is kept.
        """
        highest = max(int(self.start.complexities), below - 1)
        beam, beams = self.start, [self.start]
        seen = {predicted.choices for predicted in beam.listed()}
        for _ in range(self.effort.depth):
            self.judge.deadline.check()
            beam = self._best_moves(beam, highest)
            new = [n for n, circuit in enumerate(beam.listed()) if circuit.choices not in seen]
            if not new:
                break
            beam = beam.pick(new)
            seen.update(predicted.choices for predicted in beam.listed())
            beams.append(beam)
        reached = Beam(*map(torch.cat, zip(*beams[1:] or beams)))
        return reached.pick(_simplest(reached.losses, reached.complexities)).listed()

    def greedy_changes(self, limit: float, down: bool) -> list[Predicted]:
        """Follow the best change from circuit to circuit, and return all on the way.

        With `down` they become ever simpler while the predicted loss stays below `limit`; otherwise
        the loss falls until it is below. The best change has the best ratio of loss to complexity.
        """
        beam, links = self.start, list[Predicted]()
        while True:
            moves = self.moves(beam)
            rise, growth = moves.losses - beam.losses, moves.complexities - beam.complexities
            price = torch.where(rise > 0, rise / (-growth).clamp(min=1), rise / growth.clamp(min=1))
            improves = (rise < 0) & (beam.losses >= limit)
            allowed = (growth < 0) & (moves.losses <= limit) if down else improves
            cheapest = price.where(allowed, torch.inf).argmin()[None]
            if not bool(allowed[cheapest]):
                return links
            beam = self.moved(beam, moves, cheapest)
            links += beam.listed()

    def _best_moves(self, beam: Beam, highest: int) -> Beam:
        """Change each of some circuits once; return the best of each complexity."""
        moves = self.moves(beam)
        losses, complexities = moves.losses, moves.complexities
        order = ((complexities <= highest) & (losses <= self._highest_loss)).nonzero()[:, 0]
        order = order[_simplest(losses[order], complexities[order])]
        order = order[complexities[order].argsort(stable=True)]
        counts = complexities[order].unique_consecutive(return_counts=True)[1]
        affordable = self.effort.moves * len(beam.choices) // max(1, len(losses))
        states = min(self.effort.states, max(1, affordable))
        width = max(2, states // max(1, len(counts)))
        by_complexity = order.split(counts.tolist())
        chosen = torch.cat([order[:0], *(equals[:width] for equals in by_complexity)])
        return self.moved(beam, moves, chosen[losses[chosen].argsort()][: 2 * states])

    def moves(self, beam: Beam) -> Moves:
        """Change each head of each circuit to every neighbouring choice.

        Of a circuit with S = Σ_c second[c], a change from choice o to n adds to the loss

            first[n] - first[o] + |second[n] - second[o]|²  +  2 S · (second[n] - second[o])

        of which the first part is the same for all circuits (`neighbours`).
        """
        numbers, index = beam.choices.unique(return_inverse=True)  # index is [circuit head]
        neighbours = [self.neighbours(number) for number in numbers.tolist()]
        # [circuit head neighbour], padded
        new = pad_sequence([choices for choices, _ in neighbours], True, -1)[index]
        rise = pad_sequence([rises for _, rises in neighbours], True)[index]
        circuit, head, neighbour = (new >= 0).nonzero().unbind(1)
        old, new = beam.choices[circuit, head], new[circuit, head, neighbour]
        complexities, second = self.tables()
        products = beam.second @ second.T
        crossed = products[circuit, new] - products[circuit, old]
        return Moves(
            circuit=circuit,
            head=head,
            old=old,
            new=new,
            complexities=beam.complexities[circuit] + complexities[new] - complexities[old],
            losses=beam.losses[circuit] + rise[circuit, head, neighbour] + 2 * crossed,
        )

    def moved(self, beam: Beam, moves: Moves, chosen: Int[Tensor, " some"]) -> Beam:
        """Return the circuits after some of the moves."""
        circuit, head, old, new, complexities, losses = (column[chosen] for column in moves)
        _, second = self.tables()
        return Beam(
            choices=beam.choices[circuit].scatter(1, head[:, None], new[:, None]),
            complexities=complexities,
            losses=losses,
            second=beam.second[circuit] + second[new] - second[old],
        )

    def neighbours(self, number: int) -> tuple[Int[Tensor, " choice"], Float[Tensor, " choice"]]:
        """Return the choices one change away, and what each alone adds to the loss."""
        if number not in self._neighbours:
            neighbours = [self._number(c) for c in self.space.neighbours(self.choices[number])]
            first = [self._first[n] - self._first[number] for n in neighbours]
            second = torch.stack([self._second[n] for n in neighbours]) - self._second[number]
            rise = torch.tensor(first, dtype=torch.double) + second.square().sum(1)
            self._neighbours[number] = torch.tensor(neighbours), rise
        return self._neighbours[number]

    def tables(self) -> tuple[Int[Tensor, " choice"], Float[Tensor, "choice number"]]:
        """Return the complexity and the second-order vector of every choice so far."""
        return torch.tensor(self._complexities), torch.stack(self._second)

    def _number(self, choice: Choice) -> int:
        """Return the number of a choice, which is added to the tables if it is new."""
        if choice not in self._numbers:
            first, second = 0.0, self._zero
            for row in self._row_changes(choice):
                change = self._measured.get(row) or self._estimates.change(row.head, row.mechanism)
                first, second = first + change.first, second + change.second
            self._numbers[choice] = len(self.choices)
            self.choices.append(choice)
            self._complexities.append(self.space.complexity_of(choice.mechanism))
            self._first.append(first)
            self._second.append(second)
        return self._numbers[choice]

    def _row_changes(self, choice: Choice) -> list[Choice]:
        """Split a change of paths into changes of rows; any other stays whole."""
        base, mechanism = self.circuit[choice.head], choice.mechanism
        if mechanism == base:
            return []
        kinds = {type(base), type(mechanism)}
        if not base.follows_paths or (len(kinds) > 1 and not kinds <= {OneHot, Shared}):
            return [choice]
        rows = []
        for dest in sorted({path.dest for path in {*base.paths} ^ {*mechanism.paths}}):
            kept = [path for path in base.paths if path.dest != dest]
            new = [path for path in mechanism.paths if path.dest == dest]
            rows.append(self.space.choice(choice.head, base.with_paths([*kept, *new])))
        return rows


def _simplest(
    losses: Float[Tensor, " move"], complexities: Int[Tensor, " move"]
) -> Int[Tensor, " some"]:
    """Return the simplest of each group of equal losses, the lowest loss first."""
    rounded = (losses / _SAME_PREDICTION).round()
    order = complexities.argsort(stable=True)
    order = order[rounded[order].argsort(stable=True)]
    return order[rounded[order].diff(prepend=rounded.new_tensor([-torch.inf])) > 0]


def _scaled(change: Estimate, measured: float) -> Estimate:
    """Scale an estimated change so that its effect is the measured one.

    An overestimate is taken from the second-order part, which also shrinks its products with other
    changes; what then still differs is taken from the first-order part.
    """
    over, size = change.effect - measured, float(change.second.square().sum())
    taken = min(max(over, 0.0), size)
    scale = ((size - taken) / size) ** 0.5 if size > 0 else 1.0
    return Estimate(change.first - over + taken, change.second * scale)
