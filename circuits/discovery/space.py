"""The circuits that a search may try, by what heads attend to; and their costs."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.hooks import HookedModel
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

# Candidates along paths: which kind, and the least mean attention of a path.
_THRESHOLDS = [("one-hot", 0.5), ("one-hot", 0.3), ("one-hot", 0.1)]
_SHARED_THRESHOLDS = [("shared", 0.4), ("shared", 0.25), ("shared", 0.15)]
_MUCH = 100_000  # more than any circuit costs
_WEAK = 0.1  # mean attention of a path from which on it may be added to a head
_RULE_SHARE = 0.25  # share of a head's attention that a rule has to explain to be a candidate, ...
_RULE_IN_ROLE = 0.5  # ... or share of the attention of one of its roles


def cost_of(mechanism: Mechanism, n_roles: int) -> int:
    """Return the cost of a head with a mechanism: 0 for uniform and identity.

    Along paths it is 1 for a role's first source and 2 for each further one; without any path 1,
    since no softmax attends nowhere. Other mechanisms state their own (`Mechanism.cost`).
    """
    if mechanism.follows_paths:
        return max(1, 2 * len(mechanism.paths) - len({path.dest for path in mechanism.paths}))
    of_head, of_role = mechanism.cost
    return of_head + of_role * n_roles


def propose(attention: Float[Tensor, "dest src"], kind: str, threshold: float) -> Shared:
    """Return the mechanism along paths whose mean attention reaches a threshold.

    Of a role's sources, `one-hot` keeps the strongest and `shared` all.
    """
    paths = []
    for dest, row in enumerate(attention.tolist()):
        sources = [src for src, weight in enumerate(row) if weight >= threshold]
        if kind == "one-hot" and sources:
            sources = [max(sources, key=lambda src: row[src])]
        paths += [RolePath(dest, src) for src in sources]
    return along(paths)


def rule_candidates(
    model: HookedModel, batch: Batch, heads: list[Head]
) -> dict[Head, list[Mechanism]]:
    """Return each head's mean pattern, and rules that explain much of its attention.

    For models that read vectors, whose positions are shuffled, these are only rules of one's own
    that read no tokens: there the roles say what stands at a position.
    """
    on_tokens = batch.tokens is not None
    by_position = FIRST, PREVIOUS
    rules = [rule for rule in RULES if on_tokens or not (rule.reads_tokens or rule in by_position)]
    if not (on_tokens or rules):
        return {head: [] for head in heads}
    means = position_means(model, batch) if on_tokens else {}
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
        self._options: dict[Choice, list[Choice]] = {}
        for head in heads:
            measured = rules[head] if shared else []
            every = [IDENTITY, UNIFORM, *(start[head] for start in alike), *measured, ORIGINAL]
            self.candidates[head] = sorted(dict.fromkeys(every), key=self._cost)
            paths = (attention[head] >= _WEAK).nonzero().tolist()
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
        """Return the heads that cost something: neither uniform nor identity."""
        return [head for head in self.heads if self._cost(circuit[head])]

    def key(self, circuit: Circuit) -> int:
        """Return cost and number of useful heads in one number, lower is simpler."""
        return sum(self.key_of(circuit[head]) for head in self.heads)

    def key_of(self, mechanism: Mechanism) -> int:
        """Return what a head with this mechanism adds to a circuit's key."""
        cost = self._cost(mechanism)
        return cost + _MUCH * (cost > 0) if self.fewest == "heads" else _MUCH * cost + (cost > 0)

    def size(self, key: int) -> int:
        """Return cost plus number of useful heads, of a key."""
        return sum(divmod(key, _MUCH))

    def circuit(self, mechanisms: Sequence[Mechanism]) -> Circuit:
        """Return the circuit in which `heads` have these mechanisms."""
        return replace(self.empty, mechanisms=dict(zip(self.heads, mechanisms)))

    def choice(self, head: Head, mechanism: Mechanism) -> Choice:
        """Return a head's choice of a mechanism, the same object every time."""
        return self._choices.setdefault((head, mechanism), Choice(head, mechanism))

    def options(self, choice: Choice) -> list[Choice]:
        """Return choices one change away: another candidate, a path more or less.

        If sources may not share a role, a path that is added replaces the role's other one.
        """
        if choice not in self._options:
            head, mechanism = choice.head, choice.mechanism
            options = list(self.candidates[head])
            kept = mechanism.paths if mechanism.follows_paths else ()
            options += [along(path for path in kept if path != removed) for removed in kept]
            if not (mechanism.keeps_own or mechanism.is_measured):
                for new in self.attended[head]:
                    beside = [path for path in kept if self.shared or path.dest != new.dest]
                    options += [along([*beside, new])] if new not in kept else []
            distinct = [option for option in dict.fromkeys(options) if option != mechanism]
            self._options[choice] = [self.choice(head, option) for option in distinct]
        return self._options[choice]

    def _cost(self, mechanism: Mechanism) -> int:
        return cost_of(mechanism, self.empty.n_roles)
