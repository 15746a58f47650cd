"""Retrieval graphs: what each step of conditional retrieval depends on (paper, section 3.1).

`a; x <- a; y <- a; z <- x, y` is the paper's example: a is given in the query, x and y are looked
up by a, and z by both. A statement is the symbols of a key and then the value; those with the same
key, as of x and y, differ only by their order. Roles (appendix B): s0 is the last symbol of the
query, where the outputs are read; then come its earlier ones, then each statement's symbols.

A sequence has a table of statements for every value, the last value's first, and then the queries.
A table states the value of every combination of candidates of its key (`full`, appendix A.4 and
A.5), or only of the combinations that occur in chains (`chains`).
"""

import itertools
import math
import re
import string
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from retrieval_interp.tasks.messages import InputError

Tables = Literal["full", "chains"]
_MANY = 10**12  # a cap on counts, which grow exponentially with nested keys
_NAMED = {
    # Section 3.1: .. x y z .. a y .. a x .. a
    "triple": "a; x <- a; y <- a; z <- x, y",
    # F4, appendix A.4: b(3) = 0. e = b. i = 3. e(i) = ?
    "functions": "alias; letter; number <- letter; function <- alias; value <- function, number",
    # F5, appendix A.5: Lily lives in Brazil. Eve's mother is Lily. Lawyers live with their
    # mothers. Eve works as a lawyer. Where does Eve live?
    "relatives": "person; job <- person; relation <- job; relative <- person, relation; "
    "country <- relative",
}


class Node(NamedTuple):
    """A symbol and the nodes by which it is looked up; without a key it is given in the query."""

    name: str
    key: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} <- {', '.join(self.key)}" if self.key else self.name


class Role(NamedTuple):
    """A position of a chain: a node's symbol, in the query (statement 0) or the n-th statement."""

    node: int
    statement: int


@dataclass(frozen=True)
class RetrievalGraph:
    """A directed acyclic graph of retrieval steps, such as `RetrievalGraph.parse("a; x <- a")`.

    Nodes come after those of their keys. The last one is the answer, and all others lead to it.
    """

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        earlier: set[str] = set()
        for name, key in self.nodes:
            if (
                not re.fullmatch(r"[A-Za-z_]\w{0,19}", name, re.ASCII)
                or name in earlier
                or not earlier.issuperset(key)
                or len(set(key)) < len(key)
            ):
                raise InputError(
                    "graph: expected different names of at most 20 letters, digits and _, and keys "
                    f"of different earlier nodes, found '{Node(name, key)!s:.60}'"
                )
            earlier.add(name)
        used = {name for node in self.nodes for name in node.key}
        unused = [str(node) for node in self.nodes[:-1] if node.name not in used]
        if not used or unused or not self.nodes[-1].key:
            raise InputError(
                "graph: expected all nodes but the last, the answer, to be in a key of another, "
                f"found '{'; '.join(unused):.60}'; use them or leave them out"
            )

    @classmethod
    def parse(cls, text: str) -> "RetrievalGraph":
        """Read a graph as it is written (`a; x <- a`), or by name (`triple`)."""
        text = _NAMED.get(text.strip(), text)
        if "<-" not in text:
            raise InputError(
                f"graph: expected one of {', '.join(_NAMED)}, or nodes such as "
                f"'a; x <- a; y <- a; z <- x, y', found {text!r:.60}"
            )
        parts = [part.replace(" ", "").partition("<-") for part in text.split(";")]
        nodes = (Node(name, tuple(key.split(",")) if arrow else ()) for name, arrow, key in parts)
        return cls(tuple(nodes))

    def __str__(self) -> str:
        """The graph as text that `parse` reads."""
        return "; ".join(map(str, self.nodes))

    @cached_property
    def keys(self) -> tuple[tuple[int, ...], ...]:
        """The key of every node, as node numbers; empty for query nodes."""
        places = {node.name: index for index, node in enumerate(self.nodes)}
        return tuple(tuple(places[name] for name in node.key) for node in self.nodes)

    @property
    def query(self) -> tuple[int, ...]:
        """The nodes given in the query, in order."""
        return tuple(index for index, node in enumerate(self.nodes) if not node.key)

    @property
    def retrieved(self) -> tuple[int, ...]:
        """The nodes that are looked up, one per statement, in order; the last is the answer."""
        return tuple(index for index, node in enumerate(self.nodes) if node.key)

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """Every role of a chain, s0 first."""
        *earlier, last = self.query
        roles = [Role(node, 0) for node in (last, *earlier)]
        for statement, value in enumerate(self.retrieved, start=1):
            roles += [Role(node, statement) for node in (*self.keys[value], value)]
        return tuple(roles)

    @cached_property
    def role_labels(self) -> tuple[str, ...]:
        """`query a`, and then `a of a->y`, `y of a->y`, and so on."""
        labels = []
        for node, statement in self.roles:
            name = self.nodes[node].name
            value = self.nodes[self.retrieved[statement - 1]]
            pair = f"{name} of {','.join(value.key)}->{value.name}"
            labels.append(pair if statement else f"query {name}")
        return tuple(labels)

    @cached_property
    def role_symbols(self) -> tuple[str, ...]:
        """The symbol at every role, with a question mark for s0: `a?`, `a`, `y`, and so on."""
        query, *symbols = (self.nodes[role.node].name for role in self.roles)
        return (f"{query}?", *symbols)


def candidate_counts(graph: RetrievalGraph, chains: int, tables: Tables) -> list[int]:
    """Count the symbols of each node, one for every line of its table, capped at 10^12."""
    counts: list[int] = []
    for key in graph.keys:
        full = math.prod(counts[parent] for parent in key)
        counts.append(min(full, _MANY) if key and tables == "full" else chains)
    return counts


class Table(NamedTuple):
    """The statements of a node's value, or the queries, before they are shuffled."""

    nodes: tuple[int, ...]  # of a line's symbols: those of the key, then the value
    lines: list[tuple[int, ...]]  # the symbols of each line
    of_chain: list[int]  # the line of each chain


def lay_out(graph: RetrievalGraph, chains: int, tables: Tables) -> list[Table]:
    """Return the tables in the order of the sequence: the last node's first, the queries last.

    Symbol `c * len(graph.nodes) + v` is chain c's symbol of node v; larger ones are of no chain.
    """
    n_nodes = len(graph.nodes)
    unused = itertools.count(chains * n_nodes)
    symbols: list[list[int]] = []  # [node][candidate]
    chosen: list[list[int]] = []  # [node][chain]: the chain's candidate
    laid_out: list[Table] = []
    for node, key in enumerate(graph.keys):
        keys = [tuple(chosen[parent][chain] for parent in key) for chain in range(chains)]
        lines = keys
        if key and tables == "full":
            lines = list(itertools.product(*(range(len(symbols[parent])) for parent in key)))
        chosen.append([lines.index(line) for line in keys] if key else list(range(chains)))
        of_chain = {line: chain * n_nodes + node for chain, line in enumerate(chosen[node])}
        values = [of_chain[i] if i in of_chain else next(unused) for i in range(len(lines))]
        symbols.append(values)
        if key:
            rows = [
                (*(symbols[parent][i] for parent, i in zip(key, line)), value)
                for line, value in zip(lines, values)
            ]
            laid_out.insert(0, Table((*key, node), rows, chosen[node]))
    asked = [tuple(chain * n_nodes + node for node in graph.query) for chain in range(chains)]
    return [*laid_out, Table(graph.query, asked, list(range(chains)))]


def symbol_letter(step: int) -> str:
    """Return A for x_0, B for x_1, ... Z for x_25, then x26, x27, ... (section 3.1)."""
    return string.ascii_uppercase[step] if step < 26 else f"x{step}"


def path_graph(steps: int) -> RetrievalGraph:
    """Return the graph of the plain retrieval problem: A; B <- A; C <- B; and so on.

    Its roles s_{2d-1} and s_{2d} are the elements of pair d, x_{d-1} and x_d (appendix B).
    """
    names = [symbol_letter(step) for step in range(steps + 1)]
    values = [Node(name, (key,)) for key, name in itertools.pairwise(names)]
    return RetrievalGraph((Node(names[0]), *values))


GRAPHS = {name: RetrievalGraph.parse(name) for name in _NAMED}
"""Graphs by name: the paper's example (section 3.1), and its formulations F4 and F5 (section 4)."""
