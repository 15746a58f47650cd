"""Simulated information flow along chains and graphs (paper, sections 3.1, 5, appendix B).

1. A role starts with its node's token and its statement's encoding (equation 1, `flow.pieces`).
2. `simulate` gives every position all that assumptions 1 and 2 allow: in each layer it attends to
   every position that it can identify by what it holds, and takes everything they hold. Fewer or
   narrower heads can only hold less, so the resulting depths are lower bounds.
3. Assumption 1, for tables: a position can attend to another if they share something that
   distinguishes it from the same element of all other statements of its table. Under a causal mask
   a position sees its own statement up to itself and all of later steps; other statements of its
   own table stand before or after it by chance, and are not relied on.

If tables hold only the chains' own statements, one shared piece is enough, as in the paper: no
other statement has it. In full tables several statements have the same part of a key. Attending by
that part means attending to all of them and getting a mixture of their values; to pick one
statement, the shared pieces have to be the whole key, the value, or something that only this
statement holds. This is stronger than the paper's assumption, under which a position would keep
everything in the mixture; the depths would then be those of `tables="chains"`, since all statements
of a table share pieces alike. So the depth with full tables is a lower bound for attention that
picks one statement, as every one-hot path does; the depth with `chains` is a lower bound without
this condition.

A chain is a path graph, on which any shared piece identifies a position. One chain, followed role
by role, is then enough, which takes a second for 512 steps; other graphs are simulated position by
position.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from retrieval_interp.circuits.flow.pieces import (
    Held,
    bits_of,
    check_layers,
    check_steps,
    token_bit,
)
from retrieval_interp.tasks import InputError, RetrievalGraph, path_graph
from retrieval_interp.tasks.vectors.arrangement import Arrangement, Tables, arrange, sequence_length

_CHAINS = 2  # the one that is followed, and one to distinguish it from
_MAX_POSITIONS = 1000


def simulate(
    graph: RetrievalGraph | int, layers: int, causal: bool, tables: Tables = "full"
) -> list[Held]:
    """What every role of a chain can hold of its chain; see the module's docstring.

    Args:
        graph: what each step depends on, or the number of induction steps D of a chain.
        layers: number of layers, at least 0.
        causal: whether a position sees only itself and earlier ones.
        tables: which statements there are; irrelevant for a chain.

    Returns:
        layers+1 entries: before any layer, after the first, and so on.

    Raises:
        InputError: steps or layers is out of range, or the graph's tables are too long to simulate.
    """
    check_layers(layers)
    return list(islice(_after_each_layer(graph, causal, tables), layers + 1))


def node_depths(
    graph: RetrievalGraph | int, causal: bool, tables: Tables = "full"
) -> dict[str, int]:
    """For each node, the number of layers after which s_0 first holds its token, in node order.

    Raises:
        InputError: as `simulate`.
    """
    names = [node.name for node in _graph(graph).nodes]
    depths: dict[str, int] = {}
    for depth, held in enumerate(_after_each_layer(graph, causal, tables)):
        for number, name in enumerate(names):
            if held[0] & token_bit(number):
                depths.setdefault(name, depth)
        if len(depths) == len(names):
            break
    return {name: depths[name] for name in names}


def least_depth(graph: RetrievalGraph | int, causal: bool, tables: Tables = "full") -> int:
    """The number of layers after which s_0 first holds the answer (x_D on a chain).

    Raises:
        InputError: as `simulate`.
    """
    answer = token_bit(len(_graph(graph).nodes) - 1)
    states = enumerate(_after_each_layer(graph, causal, tables))
    return next(depth for depth, held in states if held[0] & answer)


def sequence_order(steps: int) -> tuple[int, ...]:
    """Roles in sequence order: s_{2D-1}, s_{2D}, ..., s_2, s_0."""
    check_steps(steps)
    return (*(role for pair in range(steps, 0, -1) for role in (2 * pair - 1, 2 * pair)), 0)


def _graph(graph: RetrievalGraph | int) -> RetrievalGraph:
    if isinstance(graph, RetrievalGraph):
        return graph
    check_steps(graph)
    return path_graph(graph)


def _after_each_layer(graph: RetrievalGraph | int, causal: bool, tables: Tables) -> Iterator[Held]:
    graph = _graph(graph)
    steps = len(graph.nodes) - 1
    if graph.keys == ((), *((node,) for node in range(steps))):
        return _by_roles(steps, causal)
    return _by_positions(graph, causal, tables)


# A chain, role by role


def _by_roles(steps: int, causal: bool) -> Iterator[Held]:
    # Role i starts with token x_{i // 2} and encoding p_{(i + 1) // 2}: bits i and i+1.
    order, held = sequence_order(steps), tuple(0b11 << role for role in range(2 * steps + 1))
    while True:
        yield held
        held = _role_layer(held, order, causal)


def _role_layer(held: Held, order: tuple[int, ...], causal: bool) -> Held:
    bits = [list(bits_of(pieces)) for pieces in held]
    offers = [0] * (len(held) + 1)  # per piece: everything its visible holders hold
    grown = list(held)

    def take(role: int) -> None:
        for bit in bits[role]:
            grown[role] |= offers[bit]

    for role in order:
        for bit in bits[role]:
            offers[bit] |= held[role]
        if causal:  # later positions have not offered anything yet
            take(role)
    if not causal:
        for role in order:
            take(role)
    return tuple(grown)


# A graph, position by position


def _by_positions(graph: RetrievalGraph, causal: bool, tables: Tables) -> Iterator[Held]:
    length = sequence_length(graph, _CHAINS, tables)
    if length > _MAX_POSITIONS:
        raise InputError(
            f"flow: expected a graph of which two chains fill at most {_MAX_POSITIONS} positions, "
            f"found {length}; use a smaller graph or tables 'chains'"
        )
    order = arrange(graph, _CHAINS, tables)
    held = _start(graph, order)
    visible = _visible(order, causal)
    # Some positions belong to other lines; only this chain's pieces are reported.
    own = (1 << 2 * len(graph.nodes)) - 1
    while True:
        yield tuple(held[place] & own for place in order.roles[0])
        held = _position_layer(held, visible)


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
    """For each position, those it sees, each with the same element of its table's other lines."""
    same: dict[int, list[int]] = {}
    for place, element in enumerate(order.elements):
        same.setdefault(element.start, []).append(place)
    table = {line: number for number, span in enumerate(order.tables) for line in span}
    # Tables of later steps come first; the queries, which are in no table, last.
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


def _position_layer(held: Sequence[int], visible: list[list[tuple[int, list[int]]]]) -> list[int]:
    grown = list(held)
    for dest, sources in enumerate(visible):
        for src, others in sources:
            shared = held[dest] & held[src]
            if shared and not any(held[other] & shared == shared for other in others):
                grown[dest] |= held[src]
    return grown
