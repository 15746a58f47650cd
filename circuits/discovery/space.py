"""What a search may make of a head, by its attention, and what is simple."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.means import overlaps, position_means, role_mean
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
from retrieval_interp.tasks import Batch

# Kinds of candidates with paths, and the least mean attention of these.
_THRESHOLDS = [("one-hot", 0.5), ("one-hot", 0.3), ("one-hot", 0.1)]
_SHARED_THRESHOLDS = [("shared", 0.4), ("shared", 0.25), ("shared", 0.15)]
_MUCH = 100_000  # more than any circuit costs
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
    overlapping = overlaps(model, batch, tried)
    found: dict[Head, list[Mechanism]] = {}
    for head in heads:
        rated = zip(RULES, *zip(*overlapping[head]))
        own = [r for r, share, by in rated if share >= _RULE_SHARE or by.max() >= _RULE_IN_ROLE]
        found[head] = [*own, means[head]]
    return found


@dataclass(frozen=True, eq=False)
class Part:
    """A head with a mechanism. A space has one object of each, so looking one up is fast."""

    head: Head
    mechanism: Mechanism


class Space:
    """The circuits of a model, and which of them are simple.

    Args:
        empty: the circuit that replaces nothing.
        attention: mean attention of every head, by role.
        heads: heads that may be replaced.
        rules: their candidates by position and token.
        shared: whether several sources may share a role's attention, and rules and measured
            patterns are allowed; otherwise there are only uniform, identity and one-hot maps, as
            in the paper.
        fewest: what counts first, the cost of `paths` or the number of `heads` that are not idle.
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
        least = _THRESHOLDS + (_SHARED_THRESHOLDS if shared else [])
        alike: list[dict[Head, Mechanism]] = [
            {head: propose(attention[head], *each) for head in heads} for each in least
        ]
        if shared:
            alike.append({head: role_mean(attention[head]) for head in heads})
        self.whole = list(dict.fromkeys(replace(empty, mechanisms=each) for each in alike))
        self.candidates: dict[Head, list[Mechanism]] = {}
        self.attended: dict[Head, list[RolePath]] = {}
        self._parts: dict[tuple[Head, Mechanism], Part] = {}
        self._options: dict[Part, list[Part]] = {}
        for head in heads:
            measured = rules[head] if shared else []
            found = [IDENTITY, UNIFORM, *(each[head] for each in alike), *measured, ORIGINAL]
            self.candidates[head] = sorted(dict.fromkeys(found), key=self._cost)
            paths = (attention[head] >= _WEAK).nonzero().tolist()
            self.attended[head] = [RolePath(*path) for path in paths]

    def aiming(self, fewest: str) -> "Space":
        """The same space with another idea of what counts first."""
        other = copy(self)
        other.fewest = fewest
        return other

    def cost(self, circuit: Circuit) -> int:
        """The cost of all heads that may be replaced."""
        return sum(self._cost(circuit[head]) for head in self.heads)

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
        """Cost and number of heads that are not idle, added."""
        return sum(divmod(key, _MUCH))

    def circuit(self, mechanisms: Sequence[Mechanism]) -> Circuit:
        """The circuit with these mechanisms of `heads`."""
        return replace(self.empty, mechanisms=dict(zip(self.heads, mechanisms)))

    def part(self, head: Head, mechanism: Mechanism) -> Part:
        """A head with a mechanism, as an object that is the same every time."""
        return self._parts.setdefault((head, mechanism), Part(head, mechanism))

    def options(self, part: Part) -> list[Part]:
        """What one change can make of a head: another candidate, or a path more or less.

        Where no sources may share, a path that is added takes the place of the role's other one.
        """
        if part not in self._options:
            head, mechanism = part.head, part.mechanism
            options = list(self.candidates[head])
            kept = mechanism.paths if mechanism.follows_paths else ()
            options += [along(other for other in kept if other != path) for path in kept]
            if not (mechanism.keeps_own or mechanism.is_measured):
                for new in self.attended[head]:
                    others = [path for path in kept if self.shared or path.dest != new.dest]
                    options += [along([*others, new])] if new not in kept else []
            distinct = [option for option in dict.fromkeys(options) if option != mechanism]
            self._options[part] = [self.part(head, option) for option in distinct]
        return self._options[part]

    def _cost(self, mechanism: Mechanism) -> int:
        return mechanism.cost(self.empty.n_roles)
