"""Which head fetches which symbol for the query, and who had brought it there.

1. Paths move pieces layer by layer as in `circuits.flow.delivery`.
2. A head *fetches* the asked symbols that a path of its brings to the query and that the query does
   not hold yet. Where the path's source did not hold a symbol from the start, the head that brought
   it there first is named.
"""

from dataclasses import dataclass

from retrieval_interp.circuits.circuit import Circuit, Head
from retrieval_interp.circuits.flow.delivery import circuit_flow, circuit_graph, paths_by_layer
from retrieval_interp.circuits.flow.pieces import tokens_held


@dataclass(frozen=True)
class Fetch:
    """Symbols that one path brings to the query.

    Attributes:
        head: whose path it is.
        source: the role it reads.
        nodes: the numbers of the symbols, or of a graph's nodes, in their order.
        brought: those of them that the source did not hold from the start, each with the head
            that brought it there first.
    """

    head: Head
    source: int
    nodes: tuple[int, ...]
    brought: tuple[tuple[int, Head], ...]


def fetches(circuit: Circuit, n_layers: int) -> tuple[Fetch, ...]:
    """What every head fetches for the query, by layer.

    Args:
        circuit: of a chain or graph.
        n_layers: layers of the model.

    Raises:
        InputError: as `circuit_flow`.
    """
    asked = set(circuit_graph(circuit).retrieved)
    states = circuit_flow(circuit, n_layers)
    carriers: dict[tuple[int, int], Head] = {}  # of a node to a role
    found = []
    for held, paths in zip(states, paths_by_layer(circuit, n_layers)):
        moved: dict[tuple[int, int], Head] = {}
        for head, (dest, src) in paths:
            new = set(tokens_held(held[src])) - set(tokens_held(held[dest]))
            for node in new:
                moved.setdefault((dest, node), head)
            if dest == 0 and new & asked:
                nodes = tuple(sorted(new & asked))
                brought = [(n, carriers[src, n]) for n in nodes if (src, n) in carriers]
                found.append(Fetch(head, src, nodes, tuple(brought)))
        carriers = moved | carriers
    return tuple(found)
