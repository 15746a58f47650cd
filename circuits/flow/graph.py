"""Information flow along any retrieval graph (paper, sections 3.1 and 5, appendix B).

1. The pieces of a chain: the token of every node, and the encoding of every statement, that of the
   query being number 0. A role starts with its node's token and its statement's encoding, as in
   equation (1). A set of pieces is an integer: bit 2n stands for encoding n, bit 2n+1 for node n's
   token. On a path these are the pieces of `circuits.flow.chain`.
2. The sequence of two chains is simulated whole, with all statements of its tables. In a layer a
   position attends to every position that assumption 1 allows, and takes all it holds
   (assumption 2).
3. Assumption 1, for tables: a position can attend to another if they share something that tells it
   from the same element of all other statements of its table. Under a causal mask it sees its own
   statement up to itself and all of later steps; other statements of its own table stand before or
   after it by chance, and are not counted on.

Where tables hold the chains' own statements alone, one shared piece is enough, as in the paper: no
other statement has it. In full tables a part of a key is in several statements. To attend by it is
to attend to all of them, and brings a mixture of their values; what is shared has to be the whole
key, the value, or what only that statement holds. This is a stronger assumption than the paper's,
which would let a position keep all that is in the mixture: then the depths would be those of
`tables="chains"`, since all statements of a table share pieces alike. So the depth with full tables
is a lower bound for attention that picks one statement, as every one-hot path does, and the depth
with `chains` is a lower bound without this.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from circuits.flow.chain import Held, bits_of, check_layers, token_bit
from tasks import InputError, RetrievalGraph
from tasks.vectors.arrangement import Arrangement, Tables, arrange, sequence_length

_CHAINS = 2  # the one that is followed, and another to be told from
_MAX_POSITIONS = 1000


def simulate(
    graph: RetrievalGraph, layers: int, causal: bool, tables: Tables = "full"
) -> list[Held]:
    """What every role of a chain can hold of its chain; see the module's docstring.

    Args:
        graph: what each step depends on.
        layers: how many layers, at least 0.
        causal: whether a position sees itself and earlier ones only.
        tables: which statements there are.

    Returns:
        layers+1 entries: before any layer, after the first, and so on.

    Raises:
        InputError: layers out of range, or a graph whose tables are too long to simulate.
    """
    check_layers(layers)
    return list(islice(_after_each_layer(graph, causal, tables), layers + 1))


def node_depths(graph: RetrievalGraph, causal: bool, tables: Tables = "full") -> dict[str, int]:
    """The number of layers after which s_0 first holds each node's token, in the order of nodes.

    Raises:
        InputError: a graph whose tables are too long to simulate.
    """
    names = [node.name for node in graph.nodes]
    depths: dict[str, int] = {}
    for depth, held in enumerate(_after_each_layer(graph, causal, tables)):
        for number, name in enumerate(names):
            if held[0] & token_bit(number):
                depths.setdefault(name, depth)
        if len(depths) == len(names):
            break
    return {name: depths[name] for name in names}


def least_depth(graph: RetrievalGraph, causal: bool, tables: Tables = "full") -> int:
    """The number of layers after which s_0 first holds the answer.

    Raises:
        InputError: a graph whose tables are too long to simulate.
    """
    return node_depths(graph, causal, tables)[graph.nodes[-1].name]


def piece_names(graph: RetrievalGraph, pieces: int) -> tuple[str, ...]:
    """The names of a set of pieces: `p1` for an encoding, the node's for a token."""
    return tuple(
        graph.nodes[bit // 2].name if bit % 2 else f"p{bit // 2}" for bit in bits_of(pieces)
    )


def _after_each_layer(graph: RetrievalGraph, causal: bool, tables: Tables) -> Iterator[Held]:
    length = sequence_length(graph, _CHAINS, tables)
    if length > _MAX_POSITIONS:
        raise InputError(
            f"flow: expected a graph of which two chains fill at most {_MAX_POSITIONS} positions, "
            f"found {length}; use a smaller graph or tables 'chains'"
        )
    order = arrange(graph, _CHAINS, tables)
    held = _start(graph, order)
    visible = _visible(order, causal)
    # Every position is a role of this chain, or another line's; only this chain's pieces are told.
    own = (1 << 2 * len(graph.nodes)) - 1
    while True:
        yield tuple(held[place] & own for place in order.roles[0])
        held = _layer(held, visible)


def _start(graph: RetrievalGraph, order: Arrangement) -> list[int]:
    """The pieces of every position; those of the first chain have the lowest bits."""
    known: dict[tuple[str, int], int] = {}
    for role, place in zip(graph.roles, order.roles[0]):
        known["symbol", order.elements[place].symbol] = token_bit(role.node)
        known["line", order.elements[place].line] = 1 << 2 * role.statement
    for element in order.elements:
        for piece in (("symbol", element.symbol), ("line", element.line)):
            known.setdefault(piece, 1 << 2 * len(graph.nodes) + len(known))
    return [known["symbol", e.symbol] | known["line", e.line] for e in order.elements]


def _visible(order: Arrangement, causal: bool) -> list[list[tuple[int, list[int]]]]:
    """For every position those it sees, each with the same element of the table's other lines."""
    same: dict[int, list[int]] = {}
    for place, element in enumerate(order.elements):
        same.setdefault(element.start, []).append(place)
    table = {line: number for number, span in enumerate(order.tables) for line in span}
    # Tables of later steps stand first; the queries, which are in none, last.
    block = [-table.get(element.line, -1) for element in order.elements]

    def sees(dest: int, src: int) -> bool:
        if order.elements[dest].line == order.elements[src].line:
            return src <= dest
        return block[src] < block[dest]

    places = range(len(order.elements))
    return [
        [
            (src, [other for other in same[order.elements[src].start] if other != src])
            for src in places
            if not causal or sees(dest, src)
        ]
        for dest in places
    ]


def _layer(held: Sequence[int], visible: list[list[tuple[int, list[int]]]]) -> list[int]:
    grown = list(held)
    for dest, sources in enumerate(visible):
        for src, others in sources:
            shared = held[dest] & held[src]
            if shared and not any(held[other] & shared == shared for other in others):
                grown[dest] |= held[src]
    return grown
