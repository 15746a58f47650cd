"""What a circuit's paths can deliver by information flow (paper, section 5).

A role takes everything that its path sources hold, whether or not attention could find them.
Sources are read as they were before the layer, and the heads of a layer add up. Uniform and
identity heads bring nothing. If the circuit's task has a graph, its nodes take the places of
x_0 .. x_D.
"""

from collections.abc import Sequence

from retrieval_interp.circuits.circuit import Circuit, Head
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM
from retrieval_interp.tasks import InputError, RetrievalGraph, path_graph


def held_nodes(circuit: Circuit, n_layers: int) -> list[list[frozenset[int]]]:
    """The nodes whose tokens every role holds: before any layer, after the first, and so on."""
    states = [[frozenset({role.node}) for role in circuit_graph(circuit).roles]]
    for layer in range(n_layers):
        held = states[-1]
        grown = list(held)
        for head, path in circuit.paths():
            if head.layer == layer:
                grown[path.dest] |= held[path.src]
        states.append(grown)
    return states


def delivered(circuit: Circuit, n_layers: int) -> tuple[int, ...]:
    """The numbers of the symbols x_1..x_D, or of a graph's retrieved nodes, that reach s_0."""
    held = held_nodes(circuit, n_layers)[-1][0]
    return tuple(node for node in circuit_graph(circuit).retrieved if node in held)


def describe_flow(circuit: Circuit, n_layers: int, n_heads: int) -> str:
    """What reaches the query, as a sentence.

    `By information flow along its paths, this circuit can deliver B and C but not D.` If something
    is missing, heads that are not reduced to paths get a clause, since they may bring it.
    """
    circuit.check_fits(n_layers, n_heads)
    brought, graph = delivered(circuit, n_layers), circuit_graph(circuit)
    got = [graph.nodes[node].name for node in brought]
    missing = [graph.nodes[node].name for node in graph.retrieved if node not in brought]
    text = f"can deliver {listed(got, 'and')}"
    if missing:
        but = f"{text} but not" if got else "cannot deliver"
        text = f"{but} {listed(missing, 'or')}"
    heads = [Head(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    bring_nothing = UNIFORM, IDENTITY
    reduced = {h for h in heads if circuit[h].follows_paths or circuit[h] in bring_nothing}
    loose = [str(head) for head in heads if head not in reduced]
    if missing and loose:
        named = listed(loose, "and") if len(loose) <= 4 else f"{len(loose)} of its heads"
        verb = "is" if len(loose) == 1 else "are"
        text += f"; {named} {verb} not reduced to paths and may bring more"
    return f"By information flow along its paths, this circuit {text}."


def listed(words: Sequence[str], conjunction: str) -> str:
    """`A, B and C`."""
    *others, last = words or [""]
    return f"{', '.join(others)} {conjunction} {last}" if others else last


def circuit_graph(circuit: Circuit) -> RetrievalGraph:
    """The graph of a circuit's task, by default the path with as many roles."""
    named, n_roles = circuit.task.get("graph"), circuit.n_roles
    graph = path_graph(max(1, (n_roles - 1) // 2)) if named is None else RetrievalGraph.parse(named)
    if len(graph.roles) != n_roles:
        found = f"the {len(graph.roles)} roles of {named or 'a chain'}, found {n_roles}"
        raise InputError(f"circuit: expected {found}")
    return graph
