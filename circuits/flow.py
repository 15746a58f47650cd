"""How many layers retrieval needs at least (paper, sections 3.1 and 5, appendix B).

In closed form (proved in docs/depth.md), and by simulation, where positions *hold* pieces of
information:

1. A position starts with its symbol's token and its statement's encoding (equation 1).
2. In each layer every position attends to all positions that it can identify by what it holds
   (assumption 1), and copies all that they hold (assumption 2).
3. It can identify another one if they have pieces in common that no other statement of its table
   has in the same place. Under a causal mask it sees its own statement up to itself, and all later
   steps; which others of its own table come before it is random, and not relied on.

A chain of D steps is a path graph. Two are simulated, so that one can be mistaken for the other.
"""

from collections.abc import Iterator, Sequence
from itertools import count

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM
from retrieval_interp.tasks import InputError, RetrievalGraph, path_graph
from retrieval_interp.tasks.graph import Tables, lay_out
from retrieval_interp.tasks.messages import listed

_CHAINS = 2
Graph = RetrievalGraph | int  # a graph, or how many steps a chain has


def paper_bound(steps: int) -> int:
    """The lower bound of theorem 1, ceil(log3(2D)), which ignores the mask and the chain's end."""
    return _ceil_log3(2 * _checked(steps))


def unmasked_depth(steps: int) -> int:
    """ceil(log3(4D + 1)): the least depth under assumptions 1 and 2 without a mask."""
    return _ceil_log3(4 * _checked(steps) + 1)


def causal_depth(steps: int) -> int:
    """floor(log2 D) + 2: the least depth under assumptions 1 and 2 with the causal mask."""
    return _checked(steps).bit_length() + 1


def _checked(steps: int) -> int:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InputError(f"steps: expected an integer of at least 1, found {steps!r}")
    return steps


def _ceil_log3(number: int) -> int:
    return next(exponent for exponent in count() if 3**exponent >= number)


def node_depths(graph: Graph, causal: bool, tables: Tables = "full") -> dict[str, int]:
    """Return after how many layers s_0 first holds each node's token."""
    depths = {node.name: -1 for node in _graph(graph).nodes}
    for depth, held in enumerate(after_each_layer(graph, causal, tables)):
        for name, there in zip(depths, held[0, 1::2]):
            if there and depths[name] < 0:
                depths[name] = depth
        if min(depths.values()) >= 0:
            break
    return depths


def least_depth(graph: Graph, causal: bool, tables: Tables = "full") -> int:
    """Return after how many layers s_0 first holds the answer (x_D on a chain)."""
    *_, answer = node_depths(graph, causal, tables).values()
    return answer


def _graph(graph: Graph) -> RetrievalGraph:
    return graph if isinstance(graph, RetrievalGraph) else path_graph(graph)


def after_each_layer(
    graph: Graph, causal: bool, tables: Tables = "full"
) -> Iterator[Bool[Tensor, "role piece"]]:
    """Yield which pieces each role can hold, at the start and after each layer.

    Piece 2n is the encoding of statement n (0 for the query), piece 2n+1 the token of node n: on a
    path p_0 x_0 p_1 x_1 ... p_D x_D, where the paper's e_j is piece j+1.
    """
    graph = _graph(graph)
    laid_out = lay_out(graph, _CHAINS, tables)
    places = [  # what stands at each position
        (table, line, element, symbol)
        for table, (_, lines, _) in enumerate(laid_out)
        for line, symbols in enumerate(lines)
        for element, symbol in enumerate(symbols)
    ]
    position_of = {place[:3]: position for position, place in enumerate(places)}
    roles = []  # the positions of the roles of the first chain
    for node, statement in graph.roles:
        number = len(laid_out) - 1 - statement
        table = laid_out[number]
        roles.append(position_of[number, table.of_chain[0], table.nodes.index(node)])
    held = _start(graph, places, roles)
    table_of, line_of, element_of, _ = torch.tensor(places).unbind(-1)
    same_table, same_line = (x[:, None] == x for x in (table_of, line_of))
    visible = torch.ones_like(same_table)
    if causal:
        visible = (same_table & same_line).tril() | (table_of < table_of[:, None])
    # The rivals of a position: the same element of the table's other lines, or -1.
    rival_at = same_table & ~same_line & (element_of[:, None] == element_of)
    rivals = pad_sequence([row.nonzero()[:, 0] for row in rival_at], padding_value=-1)
    while True:
        yield held[roles, : 2 * len(graph.nodes)]
        identified, with_none = visible, torch.cat([held, torch.zeros_like(held[:1])])
        for rival in rivals:
            identified = identified & _share(held, held & ~with_none[rival])
        held = held | _share(identified, held.T)


def _start(
    graph: RetrievalGraph, places: Sequence[tuple[int, ...]], roles: list[int]
) -> Bool[Tensor, "pos piece"]:
    """Return the pieces that every position holds at the start, those of the first chain first."""
    piece: dict[tuple[int, ...], int] = {}  # by table and line, or by symbol
    for role, position in zip(graph.roles, roles):
        piece[places[position][:2]] = 2 * role.statement
        piece[places[position][3:]] = 2 * role.node + 1
    first = 2 * len(graph.nodes)
    rows = [
        [piece.setdefault(key, first + len(piece)) for key in (place[:2], place[3:])]
        for place in places
    ]
    held = torch.zeros(len(rows), first + len(piece), dtype=torch.bool)
    return held.scatter(1, torch.tensor(rows), True)


def _share(rows: Bool[Tensor, "a x"], columns: Bool[Tensor, "b x"]) -> Bool[Tensor, "a b"]:
    """Whether a row and a column have a true entry in common."""
    return rows.float() @ columns.float().T > 0


def delivered(circuit: Circuit, n_layers: int) -> tuple[int, ...]:
    """Return which symbols x_1..x_D, or retrieved nodes, reach s_0, by number."""
    graph = circuit_graph(circuit)
    held = [frozenset({role.node}) for role in graph.roles]  # the nodes whose tokens a role holds
    for layer in range(n_layers):
        before = list(held)
        for head, path in circuit.paths():
            if head.layer == layer:
                held[path.dest] |= before[path.src]
    return tuple(node for node in graph.retrieved if node in held[0])


def describe_flow(circuit: Circuit, n_layers: int, n_heads: int) -> str:
    """Say which symbols reach the query.

    `By information flow along its paths, this circuit can deliver B and C but not D.` If some are
    missing, and other heads may deliver them, it says that, too.
    """
    circuit.check_fits(n_layers, n_heads)
    nodes, graph = delivered(circuit, n_layers), circuit_graph(circuit)
    reaching = [graph.nodes[node].name for node in nodes]
    missing = [graph.nodes[node].name for node in graph.retrieved if node not in nodes]
    text = f"can deliver {listed(reaching, 'and')}" if reaching else "cannot deliver"
    if missing:
        text += f"{' but not' if reaching else ''} {listed(missing, 'or')}"
        reduced = sum(
            mechanism.follows_paths or mechanism in (UNIFORM, IDENTITY)
            for mechanism in circuit.mechanisms.values()
        )
        if reduced < n_layers * n_heads:
            text += "; heads that are not reduced to paths may bring more"
    return f"By information flow along its paths, this circuit {text}."


def circuit_graph(circuit: Circuit) -> RetrievalGraph:
    """Return the graph of a circuit's task; by default the path with as many roles."""
    named, n_roles = circuit.task.get("graph"), circuit.n_roles
    graph = path_graph(max(1, (n_roles - 1) // 2)) if named is None else RetrievalGraph.parse(named)
    if len(graph.roles) != n_roles:
        raise InputError(
            f"circuit: expected the {len(graph.roles)} roles of {named or 'a chain'}, found "
            f"{n_roles}"
        )
    return graph
