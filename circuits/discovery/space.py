"""What a search may change about a circuit, by the attention of the model's heads; runs nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit, Head, HeadPath, RolePath
from retrieval_interp.circuits.discovery.candidates import propose
from retrieval_interp.circuits.discovery.changes import Change, Replace, changed
from retrieval_interp.circuits.discovery.cost import circuit_cost, cost
from retrieval_interp.circuits.mechanisms import IDENTITY, ORIGINAL, UNIFORM, Mechanism, Shared
from retrieval_interp.circuits.runs.means import role_mean

_THRESHOLDS: tuple[tuple[Literal["one-hot", "shared"], float], ...] = (
    ("one-hot", 0.5),
    ("one-hot", 0.3),
    ("one-hot", 0.1),
    ("shared", 0.4),
    ("shared", 0.25),
    ("shared", 0.15),
)
_WEAK = 0.1  # paths with at least this mean attention come back where a head is left out
_ADDED = 0.1  # paths with at least this mean attention may be added


def is_vague(mechanism: Mechanism) -> bool:
    """Whether it says neither where a head attends nor that it is idle."""
    return mechanism.is_measured or mechanism.keeps_own


class Space:
    """The circuits of a model, and those that lie near a circuit.

    Args:
        empty: the circuit that replaces nothing.
        attention: mean attention by role, [layer head dest src].
        heads: those that may be replaced.
        rules: of each head, candidates by position and token.
        shared: whether several sources may share a role's attention.
    """

    def __init__(
        self,
        empty: Circuit,
        attention: Float[Tensor, "layer head dest src"],
        heads: list[Head],
        rules: Mapping[Head, Sequence[Mechanism]],
        shared: bool,
    ):
        self.empty, self.attention, self.heads = empty, attention, heads
        self.rules, self.shared = rules, shared
        self.candidates = {head: self._candidates(head) for head in heads}

    def _candidates(self, head: Head) -> list[Mechanism]:
        """Mechanisms of a head, cheapest first; identity before uniform, which runs slower."""
        attention = self.attention[head]
        proposals = [propose(attention, kind, threshold) for kind, threshold in _THRESHOLDS]
        found = [
            IDENTITY, UNIFORM, *self.rules[head], *proposals, role_mean(attention), ORIGINAL,
        ]  # fmt: skip
        distinct = [m for m in dict.fromkeys(found) if self.shared or not isinstance(m, Shared)]
        return sorted(distinct, key=lambda mechanism: cost(mechanism, len(attention)))

    def simplicity(self, circuit: Circuit) -> tuple[int, int]:
        """Cost, and number of heads with paths or without a mechanism."""
        return self.cost(circuit), len(self.useful(circuit))

    def cost(self, circuit: Circuit) -> int:
        """The cost of all heads that may be replaced (`circuits.discovery.cost`)."""
        return circuit_cost(circuit, self.heads)

    def useful(self, circuit: Circuit) -> list[Head]:
        """Heads that are not idle."""
        return [head for head in self.heads if cost(circuit[head], circuit.n_roles)]

    def vague(self, circuit: Circuit) -> list[Head]:
        """Heads that have neither paths nor an idle mechanism."""
        return [head for head in self.heads if is_vague(circuit[head])]

    def richer(self, head: Head) -> list[Mechanism]:
        """Mechanisms of a head that are not simple, the simplest first."""
        means = [rule for rule in self.rules[head] if rule.is_measured]
        return [role_mean(self.attention[head]), *means, ORIGINAL]

    def cheaper(self, circuit: Circuit, heads: Sequence[Head] | None = None) -> list[Replace]:
        """Every candidate of some heads, or of all, that costs less than what the head has."""
        return [
            Replace(head, candidate)
            for head in heads or self.heads
            for candidate in self.candidates[head]
            if cost(candidate, circuit.n_roles) < cost(circuit[head], circuit.n_roles)
        ]

    def absent(self, circuit: Circuit) -> list[HeadPath]:
        """Paths with some attention that the circuit lacks."""
        vague = self.vague(circuit)
        return [
            HeadPath(head, path)
            for head in self.heads
            if head not in vague
            for dest, src in (self.attention[head] >= _ADDED).nonzero().tolist()
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
        mechanisms = [
            *(
                {h: propose(self.attention[h], kind, threshold) for h in self.heads}
                for kind, threshold in _THRESHOLDS
                if self.shared or kind == "one-hot"
            ),
            {head: role_mean(self.attention[head]) for head in self.heads},
        ]
        circuits = [replace(self.empty, mechanisms=each) for each in mechanisms]
        return [c for place, c in enumerate(circuits) if c not in circuits[:place]]

    def changed(self, circuit: Circuit, *changes: Change) -> Circuit:
        """The circuit after some changes."""
        return changed(circuit, changes, self.shared)

    def all_idle(self, circuit: Circuit, mechanism: Mechanism) -> Circuit:
        """The circuit with all its idle heads uniform, or all identity."""
        idle = [head for head in self.heads if circuit[head] in (UNIFORM, IDENTITY)]
        return self._with(circuit, dict.fromkeys(idle, mechanism))

    def without(self, circuit: Circuit, lost: Head) -> Circuit:
        """The circuit without one head, the weak paths of the others added."""
        weak = {
            head: propose(self.attention[head], mechanism.kind, _WEAK)
            for head, mechanism in circuit.mechanisms.items()
            if mechanism.follows_paths
        }
        return self._with(circuit, {**weak, lost: IDENTITY})

    def _with(self, circuit: Circuit, mechanisms: Mapping[Head, Mechanism]) -> Circuit:
        return replace(circuit, mechanisms={**circuit.mechanisms, **mechanisms})
