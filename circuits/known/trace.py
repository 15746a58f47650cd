"""Tracing symbols through rules: which role attends to which, and which paths matter.

1. Rules are traced by role: which symbol is in which slot, and which role attends to which. A role
   whose match is not unique (the end of the chain has no successor) attends to whatever happens to
   be similar; what it copies is undetermined, and nothing may depend on it.
2. Working back from the read-out, a path carries if what it copies arrives there, and enables if
   what it copies is compared by a path that carries or enables.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from retrieval_interp.circuits.circuit import Head, HeadPath, RolePath
from retrieval_interp.circuits.known.rules import PAIR, TOKEN, Kind, Rule, Slot
from retrieval_interp.tasks import RetrievalTask

ADMIXTURE = 0.1  # how much of other symbols a slot may hold beside its main one


class Symbol(NamedTuple):
    """Token x_step of a chain, or the encoding of its pair of that step (0 for the query)."""

    kind: Kind
    step: int

    def __str__(self) -> str:
        return f"{self.kind}_{self.step}"


Content = dict[Symbol, float] | None  # None: undetermined
State = list[dict[Slot, Content]]  # by role


class Target(NamedTuple):
    """Which role a role attends to, and whether only `avoid` decided between several."""

    src: int
    contested: bool


@dataclass(frozen=True)
class Trace:
    """What the rules do, by role.

    Attributes:
        states: what each role holds before each layer, and after the last.
        targets: by rule and role, for roles that find exactly one target.
    """

    states: tuple[State, ...]
    targets: dict[Rule, dict[int, Target]]


def trace_rules(rules: Sequence[Rule], task: RetrievalTask, n_layers: int) -> Trace:
    """Trace the symbols through the slots of every role."""
    n_roles = len(task.role_names)
    state: State = [
        {TOKEN: {Symbol("x", role // 2): 1.0}, PAIR: {Symbol("p", (role + 1) // 2): 1.0}}
        for role in range(n_roles)
    ]
    states, targets = [state], {}
    for layer in range(n_layers):
        after = [dict(held) for held in state]
        for rule in (rule for rule in rules if rule.layer == layer):
            found = {role: _target(rule, state, role) for role in range(n_roles)}
            targets[rule] = {role: target for role, target in found.items() if target is not None}
            for role, target in found.items():
                for source, own in rule.copy:
                    brought = None if target is None else state[target.src].get(source, {})
                    after[role][own] = _sum(after[role].get(own, {}), brought, rule.scale)
        states.append(state := after)
    return Trace(tuple(states), targets)


def _target(rule: Rule, state: State, role: int) -> Target | None:
    wanted = symbol_of(state[role].get(rule.query, {}))
    # Positions of other chains are visible too: pairs of a step are in random order.
    seen = [key for key in range(len(state)) if _pair(key) >= _pair(role)]
    held = {key: state[key].get(rule.key, {}) for key in seen}
    keys = {key: symbol_of(content, 0.0) for key, content in held.items() if content != {}}
    if wanted is None or None in keys.values():
        return None
    found = [
        key
        for key, symbol in keys.items()
        if symbol == wanted and (_pair(key) > _pair(role) or key <= role)
    ]
    contested = len(found) > 1
    if contested and rule.avoid is not None:
        avoided = symbol_of(state[role].get(rule.avoid, {}))
        own = TOKEN if rule.avoid.kind == "x" else PAIR
        if avoided is not None:
            found = [key for key in found if state[key][own] != {avoided: 1.0}]
    return Target(found[0], contested) if len(found) == 1 else None


def _pair(role: int) -> int:
    """The pair that a role belongs to; the query, which comes after all pairs, is pair 0."""
    return (role + 1) // 2


def symbol_of(content: Content, admixture: float = ADMIXTURE) -> Symbol | None:
    """The symbol that a slot holds, ignoring a small admixture of others."""
    if not content:
        return None
    symbol, weight = max(content.items(), key=lambda item: item[1])
    rest = abs(1 - weight) + sum(abs(other) for other in content.values()) - abs(weight)
    return symbol if rest <= admixture + 1e-9 else None


def _sum(held: Content, brought: Content, scale: float) -> Content:
    if held is None or brought is None:
        return None
    symbols = {**held, **brought}
    return {s: held.get(s, 0.0) + scale * brought.get(s, 0.0) for s in symbols}


def asked_steps(task: RetrievalTask) -> range:
    return range(1 if task.curriculum else task.steps, task.steps + 1)


def useful_paths(
    trace: Trace, rules: Sequence[Rule], task: RetrievalTask
) -> tuple[frozenset[HeadPath], frozenset[HeadPath]]:
    """Carrying and enabling paths: those that bring what is read out, and what is compared."""
    read = {(0, Slot("x", i), Symbol("x", i)) for i in asked_steps(task)}
    compared: set[tuple[int, Slot, Symbol]] = set()
    carrying: set[HeadPath] = set()
    enabling: set[HeadPath] = set()
    for layer in reversed(range(len(trace.states) - 1)):
        state = trace.states[layer]
        before: list[set[tuple[int, Slot, Symbol]]] = [set(), set()]
        for rule in (rule for rule in rules if rule.layer == layer):
            for dest, target in trace.targets[rule].items():
                path = HeadPath(Head(rule.layer, rule.head), RolePath(dest, target.src))
                for needed, paths, earlier in zip((read, compared), (carrying, enabling), before):
                    brought = {
                        (target.src, source, symbol)
                        for source, own in rule.copy
                        for symbol in state[target.src].get(source) or {}
                        if (dest, own, symbol) in needed
                    }
                    if brought:
                        paths.add(path)
                    earlier |= brought
                if path in carrying or path in enabling:
                    before[1] |= _comparison(rule, state, dest, target)
        read, compared = read | before[0], compared | before[1]
    return frozenset(carrying), frozenset(enabling)


def _comparison(
    rule: Rule, state: State, dest: int, target: Target
) -> set[tuple[int, Slot, Symbol]]:
    """What a match depends on. Keys of other positions do not count: losing a rival is harmless."""
    places = [(dest, rule.query), (target.src, rule.key)]
    if target.contested and rule.avoid is not None:
        places.append((dest, rule.avoid))
    symbols = [(role, slot, symbol_of(state[role].get(slot))) for role, slot in places]
    return {(role, slot, symbol) for role, slot, symbol in symbols if symbol is not None}
