"""What a search may make of a head, by its attention, and change about a circuit."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.mechanisms import (
    IDENTITY,
    ORIGINAL,
    RULES,
    UNIFORM,
    Mechanism,
    Shared,
    along,
)
from retrieval_interp.circuits.paths import Head, RolePath
from retrieval_interp.circuits.runs.means import (
    pattern_shares,
    position_means,
    role_mean,
    role_shares,
)
from retrieval_interp.tasks import Batch

# Kinds of candidates with paths, and the least mean attention of these.
_THRESHOLDS = [("one-hot", 0.5), ("one-hot", 0.3), ("one-hot", 0.1)]
_SHARED_THRESHOLDS = [("shared", 0.4), ("shared", 0.25), ("shared", 0.15)]
_MUCH = 100_000
_WEAK = 0.1  # paths with at least this mean attention may be added
_RULE_SHARE = 0.25  # a rule that has less of a head's attention is no candidate ...
_RULE_IN_ROLE = 0.5  # ... unless it has as much of the attention of a single role


def propose(attention: Float[Tensor, "dest src"], kind: str, threshold: float) -> Shared:
    """A mechanism along a head's paths with at least so much mean attention.

    Of a role's sources `one-hot` keeps the strongest, `shared` all.
    """
    paths = []
    for dest, row in enumerate(attention.tolist()):
        sources = [src for src, weight in enumerate(row) if weight >= threshold]
        if kind == "one-hot" and sources:
            sources = [max(sources, key=lambda src: row[src])]
        paths += [RolePath(dest, src) for src in sources]
    return along(paths)


def rule_candidates(model: Any, batch: Batch, heads: list[Head]) -> dict[Head, list[Mechanism]]:
    """The rules that have some of a head's attention, and its mean pattern.

    None where inputs are vectors, whose positions are shuffled: roles say what they are.
    """
    if batch.tokens is None:
        return {head: [] for head in heads}
    means, tried = position_means(model, batch), dict.fromkeys(heads, RULES)
    shares, of_roles = pattern_shares(model, batch, tried), role_shares(model, batch, tried)
    found: dict[Head, list[Mechanism]] = {}
    for head in heads:
        rated = zip(RULES, shares[head], of_roles[head])
        own = [r for r, share, by in rated if share >= _RULE_SHARE or by.max() >= _RULE_IN_ROLE]
        found[head] = [*own, means[head]]
    return found


class Change(NamedTuple):
    """Another mechanism for a head, or one path of it more or less."""

    head: Head
    mechanism: Mechanism | None = None
    more: RolePath | None = None
    less: RolePath | None = None


def drops(circuit: Circuit) -> list[Change]:
    """Leaving out each path of a circuit."""
    return [Change(head, less=path) for head, path in circuit.paths()]


def compatible(changes: Sequence[Change]) -> bool:
    """Whether no change undoes another one: a replaced head is changed by nothing else."""
    replaced = [change.head for change in changes if change.mechanism is not None]
    heads = [change.head for change in changes]
    return all(heads.count(head) == 1 for head in replaced)


def _is_vague(mechanism: Mechanism) -> bool:
    return mechanism.keeps_own or mechanism.is_measured


class Space:
    """The circuits of a model, and those that lie near a circuit."""

    def __init__(
        self,
        empty: Circuit,  # replaces nothing
        attention: Float[Tensor, "layer head dest src"],  # mean, by role
        heads: list[Head],  # that may be replaced
        rules: Mapping[Head, Sequence[Mechanism]],  # candidates by position and token
        shared: bool,  # whether sources may share
        fewest: str = "paths",
    ):
        self.fewest = fewest
        self.empty, self.attention, self.heads = empty, attention, heads
        self.rules, self.shared = rules, shared
        self._least = _THRESHOLDS + (_SHARED_THRESHOLDS if shared else [])
        self.means = {head: role_mean(attention[head]) for head in heads}
        self.attended = {
            head: [RolePath(*ends) for ends in (attention[head] >= _WEAK).nonzero().tolist()]
            for head in heads
        }
        self.candidates = {head: self._candidates(head) for head in heads}

    def _candidates(self, head: Head) -> list[Mechanism]:
        """Mechanisms of a head, cheapest first; identity before uniform, which runs slower."""
        paths = [propose(self.attention[head], *least) for least in self._least]
        found = [IDENTITY, UNIFORM, *paths, ORIGINAL]
        if self.shared:
            found += [*self.rules[head], self.means[head]]
        return sorted(dict.fromkeys(found), key=self._cost)

    def _cost(self, mechanism: Mechanism) -> int:
        return mechanism.cost(self.empty.n_roles)

    def cost(self, circuit: Circuit) -> int:
        """The cost of all heads that may be replaced."""
        return sum(self._cost(circuit[head]) for head in self.heads)

    def aiming(self, fewest: str) -> "Space":
        """The same space with another idea of what is simple."""
        other = copy(self)
        other.fewest = fewest
        return other

    def simplicity(self, circuit: Circuit) -> tuple[int, int]:
        """Cost, and number of heads that are not idle; the other way round for fewest heads."""
        first, second = divmod(self.key(circuit), _MUCH)
        return first, second

    def key(self, circuit: Circuit) -> int:
        """The simplicity in one number, a sum over heads."""
        return sum(self.key_of(circuit[head]) for head in self.heads)

    def key_of(self, mechanism: Mechanism) -> int:
        """What a head with this mechanism adds to the key."""
        cost = self._cost(mechanism)
        return cost + _MUCH * (cost > 0) if self.fewest == "heads" else _MUCH * cost + (cost > 0)

    def size(self, key: int) -> int:
        """Cost and number of heads that are not idle together."""
        return sum(divmod(key, _MUCH))

    def circuit(self, mechanisms: Sequence[Mechanism]) -> Circuit:
        """The circuit with these mechanisms of `heads`."""
        return replace(self.empty, mechanisms=dict(zip(self.heads, mechanisms)))

    def options(self, head: Head, mechanism: Mechanism) -> list[Mechanism]:
        """What one change can make of a head: another candidate, or a path more or less."""
        found = [*self.candidates[head]]
        if mechanism.follows_paths:
            found += [mechanism.without(path) for path in mechanism.paths]
        if not _is_vague(mechanism):
            kept = mechanism.paths if mechanism.follows_paths else ()
            for new in set(self.attended[head]) - set(kept):
                found.append(along([p for p in kept if self.shared or p.dest != new.dest] + [new]))
        return [each for each in dict.fromkeys(found) if each != mechanism]

    def useful(self, circuit: Circuit) -> list[Head]:
        """Heads that are not idle."""
        return [head for head in self.heads if self._cost(circuit[head])]

    def vague(self, circuit: Circuit) -> list[Head]:
        """Heads whose attention is their own, or measured."""
        return [head for head in self.heads if _is_vague(circuit[head])]

    def richer(self, circuit: Circuit) -> list[Change]:
        """The vague mechanisms of each head that cost more than what it has, the simplest first."""
        return [
            Change(head, richer)
            for head in self.heads
            for richer in self.candidates[head]
            if _is_vague(richer) and self._cost(richer) > self._cost(circuit[head])
        ]

    def cheaper(self, circuit: Circuit, heads: Sequence[Head] | None = None) -> list[Change]:
        """Every candidate of some heads, or of all, that costs less than what the head has."""
        return [
            Change(head, candidate)
            for head in heads or self.heads
            for candidate in self.candidates[head]
            if self._cost(candidate) < self._cost(circuit[head])
        ]

    def absent(self, circuit: Circuit) -> list[Change]:
        """Adding each path with some attention that the circuit lacks."""
        vague = self.vague(circuit)
        return [
            Change(head, more=path)
            for head in self.heads
            if head not in vague
            for dest, src in (self.attention[head] >= _WEAK).nonzero().tolist()
            if (path := RolePath(dest, src)) not in circuit[head].paths
        ]

    def other_idle(self, circuit: Circuit, heads: Sequence[Head] | None = None) -> list[Circuit]:
        """The circuit with uniform in place of identity, or the reverse, one head at a time."""
        other = {IDENTITY: UNIFORM, UNIFORM: IDENTITY}
        return [
            circuit.replace(head, other[circuit[head]])
            for head in heads or self.heads
            if circuit[head] in other
        ]

    def whole_circuits(self) -> list[Circuit]:
        """Circuits that replace every head alike, by what it attends to."""
        mechanisms: list[Mapping[Head, Mechanism]] = [
            {head: propose(self.attention[head], *least) for head in self.heads}
            for least in self._least
        ]
        mechanisms += [self.means] if self.shared else []
        circuits = [replace(self.empty, mechanisms=each) for each in mechanisms]
        return list(dict.fromkeys(circuits))

    def changed(self, circuit: Circuit, *changes: Change) -> Circuit:
        """The circuit after some changes, one after the other.

        Where no sources may share, an added path takes the place of the role's other one.
        """
        for head, mechanism, more, less in changes:
            old = circuit[head]
            if less is not None:
                mechanism = old.without(less)
            elif more is not None:
                kept = old.paths if old.follows_paths else ()
                kept = tuple(p for p in kept if self.shared or p.dest != more.dest)
                mechanism = along((*kept, more))
            circuit = circuit.replace(head, mechanism or old)
        return circuit
