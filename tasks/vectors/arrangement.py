"""Where every symbol stands in the sequences of a retrieval graph (paper, sections 3.1, 4 and 6).

A node's candidates are the symbols of the chains if it is given in the query; any other has one per
line of its table, a statement of its value for one combination of candidates of its key. `full`
tables have all combinations (appendix A.4, A.5), `chains` tables only those of the chains. A
sequence holds the tables, the last node's first, each with its lines shuffled, then the queries.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from retrieval_interp.tasks.vectors.graph import RetrievalGraph

Tables = Literal["full", "chains"]
_MANY = 10**12  # a cap on counts, which grow exponentially with nested keys


class Element(NamedTuple):
    """One symbol of one line; its position is start + width * (the line's place in its table)."""

    symbol: int  # c * nodes + v for chain c's symbol of node v; those of no chain come after
    node: int  # of which it is a candidate
    line: int  # table by table, in the order of nodes; last the queries, which are not shuffled
    start: int  # its position if its line is the table's first
    width: int  # elements per line


@dataclass(frozen=True)
class Arrangement:
    """The order of symbols, lines and roles."""

    n_symbols: int  # per sequence
    tables: tuple[range, ...]  # the lines of every table, in the order of nodes
    elements: tuple[Element, ...]  # the sequence in which the lines of every table are in order
    roles: tuple[tuple[int, ...], ...]  # the element of every role, [chain][role]


def candidate_counts(graph: RetrievalGraph, chains: int, tables: Tables) -> tuple[int, ...]:
    """The number of candidates of each node, capped at 10^12."""
    counts: list[int] = []
    for key in graph.keys:
        # The product over an empty key would be 1.
        count = math.prod(counts[p] for p in key) if key and tables == "full" else chains
        counts.append(min(count, _MANY))
    return tuple(counts)


def sequence_length(graph: RetrievalGraph, chains: int, tables: Tables) -> int:
    """The number of positions, computed without laying them out."""
    counts = candidate_counts(graph, chains, tables)
    lines = sum(count * (len(key) + 1) for count, key in zip(counts, graph.keys) if key)
    return lines + chains * len(graph.query)


def arrange(graph: RetrievalGraph, chains: int, tables: Tables) -> Arrangement:
    """Lay out the sequences of a graph, for a number of interleaved chains."""
    counts = candidate_counts(graph, chains, tables)
    keys: list[list[tuple[int, ...]]] = []  # [node][line]: the candidates in its key
    own: list[list[int]] = []  # [node][chain]: the chain's candidate
    for key in graph.keys:
        chosen = [tuple(own[parent][chain] for parent in key) for chain in range(chains)]
        every = itertools.product(*(range(counts[parent]) for parent in key))
        keys.append(list(every) if key and tables == "full" else chosen)
        place = {line: number for number, line in enumerate(keys[-1])}
        own.append([place[line] for line in chosen] if key else list(range(chains)))

    new = itertools.count(chains * len(graph.nodes))
    symbols: list[list[int]] = []  # [node][candidate]
    for node, count in enumerate(counts):
        of_chains = {own[node][chain]: chain * len(graph.nodes) + node for chain in range(chains)}
        symbols.append([of_chains[i] if i in of_chains else next(new) for i in range(count)])

    ends = itertools.accumulate((counts[node] for node in graph.retrieved), initial=0)
    spans = [range(first, end) for first, end in itertools.pairwise(ends)]
    elements: list[Element] = []
    places: list[list[list[int]]] = []  # [table][line]: its elements; queries first

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
