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
    FIRST,
    IDENTITY,
    ORIGINAL,
    PREVIOUS,
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


def cost_of(mechanism: Mechanism, n_roles: int) -> int:
    """How far a mechanism is from simple, in a task with so many roles.

    One that follows paths costs 1 for a role's first source and 2 for each other, and 1 if it has
    none, as no softmax attends nowhere.
    """
    if mechanism.follows_paths:
        return max(1, 2 * len(mechanism.paths) - len({path.dest for path in mechanism.paths}))
    of_head, of_role = mechanism.cost
    return of_head + of_role * n_roles


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
    """The rules whose pattern overlaps with a head's attention, and its mean pattern.

    Where inputs are vectors, whose positions are shuffled, only rules of one's own, as roles say
    what positions are.
    """
    on_tokens = batch.tokens is not None
    by_position = FIRST, PREVIOUS
    rules = [rule for rule in RULES if on_tokens or not (rule.reads_tokens or rule in by_position)]
    if not (on_tokens or rules):
        return {head: [] for head in heads}
    means = position_means(model, batch) if on_tokens else {}
    tried = dict.fromkeys(heads, rules)
    overlapping = overlaps(model, batch, tried)
    found: dict[Head, list[Mechanism]] = {}
    for head in heads:
        rated = zip(rules, *zip(*overlapping[head]))
        own = [r for r, share, by in rated if share >= _RULE_SHARE or by.max() >= _RULE_IN_ROLE]
        found[head] = [*own, means[head]] if on_tokens else own
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
        self.candidates: dict[Head, list[Mechanism]] = {}  # what a head may become, simple first
        self.attended: dict[Head, list[RolePath]] = {}  # paths that may be added to it
        self._parts: dict[tuple[Head, Mechanism], Part] = {}
        self._options: dict[Part, list[Part]] = {}
        for head in heads:
            measured = rules[head] if shared else []
            every = [IDENTITY, UNIFORM, *(start[head] for start in alike), *measured, ORIGINAL]
            self.candidates[head] = sorted(dict.fromkeys(every), key=self._cost)
            paths = (attention[head] >= _WEAK).nonzero().tolist()
            self.attended[head] = [RolePath(*path) for path in paths]

    def aiming(self, fewest: str) -> "Space":
        """The same space with another idea of what counts first."""
        aimed = copy(self)
        aimed.fewest = fewest
        return aimed

    def cost(self, circuit: Circuit) -> int:
        """The cost of all heads that may be replaced."""
        return sum(self._cost(circuit[head]) for head in self.heads)

    def useful(self, circuit: Circuit) -> list[Head]:
        """The heads that may be replaced and are not idle."""
        return [head for head in self.heads if self._cost(circuit[head])]

    def key(self, circuit: Circuit) -> int:
        """Cost and number of useful heads in one number, a sum over heads: lower is simpler."""
        return sum(self.key_of(circuit[head]) for head in self.heads)

    def key_of(self, mechanism: Mechanism) -> int:
        """What a head with this mechanism adds to the key."""
        cost = self._cost(mechanism)
        return cost + _MUCH * (cost > 0) if self.fewest == "heads" else _MUCH * cost + (cost > 0)

    def size(self, key: int) -> int:
        """Cost and number of useful heads, added."""
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
            options += [along(path for path in kept if path != removed) for removed in kept]
            if not (mechanism.keeps_own or mechanism.is_measured):
                for new in self.attended[head]:
                    beside = [path for path in kept if self.shared or path.dest != new.dest]
                    options += [along([*beside, new])] if new not in kept else []
            distinct = [option for option in dict.fromkeys(options) if option != mechanism]
            self._options[part] = [self.part(head, option) for option in distinct]
        return self._options[part]

    def _cost(self, mechanism: Mechanism) -> int:
        return cost_of(mechanism, self.empty.n_roles)
