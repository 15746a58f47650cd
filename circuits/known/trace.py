"""Tracing symbols through matching heads: which role attends to which, and which paths matter.

A role whose match is not unique (the end of the chain has no successor) attends to something that
happens to be similar; what it copies is unknown, and nothing may depend on it.
"""

from collections.abc import Sequence
from copy import deepcopy
from itertools import product
from typing import NamedTuple

from retrieval_interp.circuits.circuit import HeadPath, RolePath
from retrieval_interp.circuits.known.heads import PAIR, TOKEN, MatchingHead, Slot
from retrieval_interp.tasks import RetrievalTask


class Symbol(NamedTuple):
    """Token x_step of a chain, or the encoding of its pair of that step (0 for the query)."""

    vector: str
    step: int

    def __str__(self) -> str:
        return f"{self.vector}_{self.step}"


UNKNOWN = Symbol("unknown", 0)


class Held(NamedTuple):
    """How a slot holds a symbol.

    Attributes:
        weight: how much of it.
        carrying: the paths that brought it.
        enabling: the paths that brought what the matches of any of these paths compare.
    """

    weight: float
    carrying: frozenset[HeadPath] = frozenset()
    enabling: frozenset[HeadPath] = frozenset()


Content = dict[Symbol, Held]
State = list[dict[Slot, Content]]  # by role


def trace_heads(
    heads: Sequence[MatchingHead], task: RetrievalTask
) -> tuple[State, dict[MatchingHead, list[RolePath]]]:
    """What every role holds in the end, and the paths of each head, of roles with a target."""
    before: State = [
        {TOKEN: {Symbol("x", role // 2): Held(1)}, PAIR: {Symbol("p", _pair(role)): Held(1)}}
        for role in range(len(task.role_names))
    ]
    after, paths = before, {}
    for place, head in enumerate(heads):
        if place == 0 or head.layer > heads[place - 1].layer:
            before, after = after, deepcopy(after)
        paths[head] = own = _paths(head, before)
        for role, (source, slot) in product(range(len(after)), head.copy):
            path, enabling = own.get(role, (None, frozenset()))
            carrying = frozenset({HeadPath(head.place, path)} if path else ())
            brought = before[path.src].get(source, {}) if path else {UNKNOWN: Held(1)}
            content = after[role].setdefault(slot, {})
            for symbol, held in brought.items():
                old = content.get(symbol, Held(0))
                content[symbol] = Held(
                    old.weight + head.scale * held.weight,
                    old.carrying | held.carrying | carrying,
                    old.enabling | held.enabling | enabling,
                )
    return after, {head: [path for path, _ in own.values()] for head, own in paths.items()}


def _paths(head: MatchingHead, state: State) -> dict[int, tuple[RolePath, frozenset[HeadPath]]]:
    """The path of every role that finds one target, and the paths that let it be found."""
    paths = {}
    for role, slots in enumerate(state):
        query, avoid = slots.get(head.query, {}), slots.get(head.avoid or head.query, {})
        wanted, avoided = symbol_of(query), symbol_of(avoid)
        # Positions of other chains are visible too: pairs of a step are in random order.
        seen = [key for key in range(len(state)) if _pair(key) >= _pair(role)]
        keys = {
            key: symbol_of(state[key][head.key], 0.0) for key in seen if state[key].get(head.key)
        }
        if wanted is None or None in keys.values():
            continue
        found = [
            key
            for key, symbol in keys.items()
            if symbol == wanted and (_pair(key) > _pair(role) or key <= role)
        ]
        compared = [query[wanted]]
        if len(found) > 1 and head.avoid is not None and avoided is not None:
            found = [key for key in found if avoided not in state[key][head.avoided]]
            compared.append(avoid[avoided])
        if len(found) == 1:
            compared.append(state[found[0]][head.key][wanted])
            enabling = (held.carrying | held.enabling for held in compared)
            paths[role] = RolePath(role, found[0]), frozenset[HeadPath]().union(*enabling)
    return paths


def _pair(role: int) -> int:
    """The pair that a role belongs to; the query, which comes after all pairs, is pair 0."""
    return (role + 1) // 2


def symbol_of(content: Content, admixture: float = 0.1) -> Symbol | None:
    """The symbol that a slot holds, ignoring a small admixture of others."""
    main = max(content, key=lambda symbol: content[symbol].weight, default=UNKNOWN)
    rest = sum(abs(held.weight - (symbol == main)) for symbol, held in content.items())
    return None if UNKNOWN in (main, *content) or rest > admixture + 1e-9 else main
