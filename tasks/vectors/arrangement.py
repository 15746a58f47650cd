"""Where everything stands in the sequences of a retrieval graph (paper, sections 3.1, 4 and 6).

1. Of each node there are several candidates, all different symbols. Those of the query's nodes are
   the chains' own. Any other node has one candidate a line of its table: the statement that gives
   it for one combination of candidates of its key.
2. With tables `full` there is a line for every combination, as for every function and number in the
   paper's printed prompts (appendix A.4, A.5), so no part of a key says which line is meant. With
   `chains` there are the chains' own lines alone, and one part of a key is enough to find one.
3. The sequence holds the table of the last node, then of the one before, and so on, then the
   queries, chain by chain. A line is its key, then its value; the lines of a table are shuffled.

On a path both kinds of tables are the same, and this is the paper's sequence of section 6. Unlike
in F4, whose functions share four numbers, no two lines of a table give the same symbol.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tasks.vectors.graph import RetrievalGraph

Tables = Literal["full", "chains"]
_MANY = 10**12  # counts go no further: keys of keys make numbers that fill the memory


class Element(NamedTuple):
    """One symbol of one line.

    Attributes:
        symbol: number of the symbol. Chain c's own of node v has the number c * nodes + v; those of
            no chain follow.
        node: the node that it is a candidate of.
        line: number of the line. A table's lines are together, tables in the order of nodes; the
            queries, one a chain, come last and are not shuffled.
        start: where it stands if its line is the table's first. Elements with one start differ in
            nothing but the line.
        width: elements a line: it stands at start + width * (the line's place in its table).
    """

    symbol: int
    node: int
    line: int
    start: int
    width: int


@dataclass(frozen=True)
class Arrangement:
    """The order of symbols, lines and roles.

    Attributes:
        n_symbols: symbols a sequence.
        tables: the lines of every table, in the order of nodes.
        elements: the sequence in which every table's lines are in order.
        roles: the element of every role of every chain, [chain][role].
    """

    n_symbols: int
    tables: tuple[range, ...]
    elements: tuple[Element, ...]
    roles: tuple[tuple[int, ...], ...]


def candidate_counts(graph: RetrievalGraph, chains: int, tables: Tables) -> tuple[int, ...]:
    """How many candidates each node has, or 10^12 where there are more."""
    counts: list[int] = []
    for key in graph.keys:
        # The product over no key at all would be 1.
        count = math.prod(counts[p] for p in key) if key and tables == "full" else chains
        counts.append(min(count, _MANY))
    return tuple(counts)


def sequence_length(graph: RetrievalGraph, chains: int, tables: Tables) -> int:
    """The number of positions, computed without laying them out."""
    counts = candidate_counts(graph, chains, tables)
    lines = sum(count * (len(key) + 1) for count, key in zip(counts, graph.keys) if key)
    return lines + chains * len(graph.query)


def arrange(graph: RetrievalGraph, chains: int, tables: Tables) -> Arrangement:
    """Lay out the sequences of a graph.

    Args:
        graph: its nodes and keys.
        chains: how many interleaved chains, at least 1.
        tables: which lines there are.
    """
    counts = candidate_counts(graph, chains, tables)
    keys: list[list[tuple[int, ...]]] = []  # of each node and line, the candidates in the key
    own: list[list[int]] = []  # of each node and chain, the candidate that is the chain's
    for key in graph.keys:
        chosen = [tuple(own[parent][chain] for parent in key) for chain in range(chains)]
        every = itertools.product(*(range(counts[parent]) for parent in key))
        keys.append(list(every) if key and tables == "full" else chosen)
        place = {line: number for number, line in enumerate(keys[-1])}
        own.append([place[line] for line in chosen] if key else list(range(chains)))

    new = itertools.count(chains * len(graph.nodes))
    symbols: list[list[int]] = []  # of each node and candidate
    for node, count in enumerate(counts):
        of_chains = {own[node][chain]: chain * len(graph.nodes) + node for chain in range(chains)}
        symbols.append([of_chains[i] if i in of_chains else next(new) for i in range(count)])

    ends = itertools.accumulate((counts[node] for node in graph.retrieved), initial=0)
    spans = [range(first, end) for first, end in itertools.pairwise(ends)]
    elements: list[Element] = []
    places: list[list[list[int]]] = []  # the elements of each line, of each table, queries first

    def add(members: tuple[int, ...], first_line: int, rows: list[tuple[int, ...]]) -> None:
        start, width = len(elements), len(members)
        for number, row in enumerate(rows):
            for offset, (node, candidate) in enumerate(zip(members, row)):
                symbol = symbols[node][candidate]
                line = first_line + number
                elements.append(Element(symbol, node, line, start + offset, width))
        places.insert(0, [[start + width * i + j for j in range(width)] for i in range(len(rows))])

    for node, span in reversed(list(zip(graph.retrieved, spans))):
        rows = [(*line, number) for number, line in enumerate(keys[node])]
        add((*graph.keys[node], node), span.start, rows)
    add(graph.query, spans[-1].stop, [(chain,) * len(graph.query) for chain in range(chains)])

    def of_chain(chain: int) -> tuple[int, ...]:
        *earlier, last = places[0][chain]
        lines = [places[1 + i][own[node][chain]] for i, node in enumerate(graph.retrieved)]
        return (last, *earlier, *itertools.chain(*lines))

    roles = tuple(of_chain(chain) for chain in range(chains))
    return Arrangement(sum(counts), tuple(spans), tuple(elements), roles)
