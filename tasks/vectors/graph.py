"""Retrieval graphs: what each step of conditional retrieval depends on (paper, section 3.1).

1. A node is a symbol of a chain. A node without a key is given in the query; any other is the value
   of a statement, a tuple in the sequence: the nodes of its key in order, then the node itself.
2. A graph is written as its nodes with their keys. `a; x <- a; y <- a; z <- x, y` is the paper's
   example: x and y are looked up by a, and z by both of them.
3. Nodes are sorted so that keys come first, staying as close to the given order as possible. The
   last node is the answer, and everything else leads to it.
4. Roles (appendix B): s0 is the last symbol of the query, where the outputs are read; then come the
   earlier symbols of the query, then each statement's key and value. On a path these are the
   paper's s_0 .. s_2D.

Two statements may have the same key, as x and y above. As in the paper, only their order
distinguishes them: the statements of a step are contiguous, so a position shows which step it
belongs to.
"""

import heapq
import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.roles import symbol_letter

_MAX_NODES = 50_000
_NAME = r"[A-Za-z_][A-Za-z0-9_]{0,19}"


class Node(NamedTuple):
    """A symbol and the nodes by which it is looked up; without a key it is given in the query."""

    name: str
    key: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} <- {', '.join(self.key)}" if self.key else self.name


class Role(NamedTuple):
    """What a position holds: the symbol of a node, in the query (0) or in the n-th statement."""

    node: int
    statement: int


@dataclass(frozen=True)
class RetrievalGraph:
    """A directed acyclic graph of retrieval steps; see the module's docstring.

    Attributes:
        nodes: sorted so that keys come first.

    Raises:
        InputError: no or too many nodes, a name that is not an identifier or is used twice, a key
            with an unknown or repeated node, a cycle, nothing to retrieve, or a node other than the
            last that is in no key.
    """

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        nodes = tuple(Node(name, tuple(key)) for name, key in self.nodes)
        if not 1 <= len(nodes) <= _MAX_NODES:
            raise InputError(f"graph: expected 1 to {_MAX_NODES} nodes, found {len(nodes)}")
        known: set[str] = set()
        for name, _ in nodes:
            if not re.fullmatch(_NAME, name):
                raise InputError(
                    "graph: expected names of at most 20 letters, digits and _, not starting with "
                    f"a digit, found {name!r:.60}"
                )
            if name in known:
                raise InputError(f"graph: expected every node once, found {name!r} twice")
            known.add(name)
        for node in nodes:
            for parent in node.key:
                if parent not in known:
                    raise InputError(
                        f"graph: expected keys of the nodes {', '.join(sorted(known)):.60}, found "
                        f"{parent!r:.40} in '{node!s:.60}'; add it as a node"
                    )
            if len(set(node.key)) < len(node.key):
                raise InputError(
                    f"graph: expected a key of different nodes, found '{node!s:.60}'; name each "
                    "once"
                )
        ordered = _keys_first(nodes)
        retrieved = [node for node in ordered if node.key]
        if not retrieved:
            raise InputError(
                f"graph: expected a node to retrieve, such as 'x <- {ordered[0].name}', found none "
                "with a key; add one"
            )
        used = {parent for node in ordered for parent in node.key}
        for node in ordered:
            if node.name not in used and node != retrieved[-1]:
                raise InputError(
                    f"graph: expected every node but the answer, {retrieved[-1].name}, to be in a "
                    f"key, found '{node!s:.60}' in none; use it or leave it out"
                )
        object.__setattr__(self, "nodes", ordered)

    @classmethod
    def parse(cls, text: str) -> "RetrievalGraph":
        """Read a graph as it is written (`a; x <- a`), or by name (`triple`, `path-3`).

        Raises:
            InputError: neither, or not a valid graph.
        """
        text = text.strip()
        if text in GRAPHS:
            return GRAPHS[text]
        if path := re.fullmatch(r"path-([0-9]{1,9})", text):
            return path_graph(int(path[1]))
        if "<-" not in text:
            raise InputError(
                f"graph: expected one of {', '.join(GRAPHS)}, path-<steps>, or nodes such as "
                f"'a; x <- a; y <- a; z <- x, y', found {text!r:.60}"
            )
        nodes = []
        for part in text.split(";"):
            name, arrow, key = part.partition("<-")
            parents = tuple(parent.strip() for parent in key.split(",")) if arrow else ()
            nodes.append(Node(name.strip(), parents))
        return cls(tuple(nodes))

    def __str__(self) -> str:
        """The graph as text that `parse` reads."""
        return "; ".join(map(str, self.nodes))

    @cached_property
    def places(self) -> dict[str, int]:
        """The number of every node, by name."""
        return {node.name: place for place, node in enumerate(self.nodes)}

    @cached_property
    def keys(self) -> tuple[tuple[int, ...], ...]:
        """The key of every node, as node numbers; empty for query nodes."""
        return tuple(tuple(self.places[name] for name in node.key) for node in self.nodes)

    @property
    def query(self) -> tuple[int, ...]:
        """The nodes given in the query, in order."""
        return tuple(place for place, key in enumerate(self.keys) if not key)

    @property
    def retrieved(self) -> tuple[int, ...]:
        """The values, one per statement, in order; the last is the answer."""
        return tuple(place for place, key in enumerate(self.keys) if key)

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """Every role of a chain, s0 first."""
        *earlier, last = self.query
        return (
            *(Role(node, 0) for node in (last, *earlier)),
            *(
                Role(node, statement)
                for statement, value in enumerate(self.retrieved, start=1)
                for node in (*self.keys[value], value)
            ),
        )

    def role_label(self, role: int) -> str:
        """`query a`, or `y of a->y`."""
        node, statement = self.roles[role]
        if statement == 0:
            return f"query {self.nodes[node].name}"
        value = self.nodes[self.retrieved[statement - 1]]
        return f"{self.nodes[node].name} of {','.join(value.key)}->{value.name}"


def _keys_first(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Sort nodes so that each follows its key, otherwise keeping the given order.

    Raises:
        InputError: there is a cycle; the message names it.
    """
    place = {node.name: number for number, node in enumerate(nodes)}
    missing = [len(node.key) for node in nodes]
    users: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        for parent in node.key:
            users[place[parent]].append(number)
    ready = [number for number, count in enumerate(missing) if not count]
    ordered: list[Node] = []
    while ready:
        number = heapq.heappop(ready)
        ordered.append(nodes[number])
        for user in users[number]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, user)
    if len(ordered) == len(nodes):
        return tuple(ordered)
    # Each remaining node waits for another remaining one: following them finds a cycle.
    left = {node.name: node for node in nodes if missing[place[node.name]]}
    name = next(iter(left))
    trail: dict[str, int] = {}
    while name not in trail:
        trail[name] = len(trail)
        name = next(parent for parent in left[name].key if parent in left)
    cycle = " <- ".join([*list(trail)[trail[name] :], name])
    raise InputError(f"graph: expected no cycle, found {cycle:.200}; leave one of these out")


def path_graph(steps: int) -> RetrievalGraph:
    """The graph of the plain retrieval problem: A; B <- A; C <- B; and so on.

    Raises:
        InputError: steps is out of range.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps < _MAX_NODES:
        raise InputError(f"graph: expected 1 to {_MAX_NODES - 1} steps of a path, found {steps!r}")
    names = [symbol_letter(step) for step in range(steps + 1)]
    keys = [(), *((name,) for name in names)]
    return RetrievalGraph(tuple(Node(name, key) for name, key in zip(names, keys)))


GRAPHS: dict[str, RetrievalGraph] = {
    name: RetrievalGraph(nodes)
    for name, nodes in {
        # Section 3.1: .. x y z .. a y .. a x .. a
        "triple": (Node("a"), Node("x", ("a",)), Node("y", ("a",)), Node("z", ("x", "y"))),
        # F4, appendix A.4: b(3) = 0. e = b. i = 3. e(i) = ?
        "functions": (
            Node("alias"),
            Node("letter"),
            Node("number", ("letter",)),
            Node("function", ("alias",)),
            Node("value", ("function", "number")),
        ),
        # F5, appendix A.5: Lily lives in Brazil. Eve's mother is Lily. Lawyers live with their
        # mothers. Eve works as a lawyer. Where does Eve live?
        "relatives": (
            Node("person"),
            Node("job", ("person",)),
            Node("relation", ("job",)),
            Node("relative", ("person", "relation")),
            Node("country", ("relative",)),
        ),
    }.items()
}
"""Graphs by name: the paper's example (section 3.1), and its formulations F4 and F5 (section 4)."""
