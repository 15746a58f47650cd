"""Information flow along a circuit's paths (paper, section 5): what it can deliver.

1. A role takes everything its path sources hold, as pieces of `circuits.flow.pieces`. If the
   circuit's task has a graph, the graph's nodes take the places of x_0 .. x_D.
2. Going back from the output shows which paths can carry something that is asked for.
"""

from collections.abc import Sequence

from retrieval_interp.circuits.circuit import Circuit, Head, HeadPath
from retrieval_interp.circuits.flow.pieces import Held, check_layers, token_bit, tokens_held
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM
from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.roles import role_name
from retrieval_interp.tasks.vectors.graph import RetrievalGraph, path_graph


def circuit_flow(circuit: Circuit, n_layers: int) -> list[Held]:
    """What every role holds if each takes everything its path sources hold.

    Sources are read as they were before the layer, and the heads of a layer add up. A role without
    a path keeps what it holds. Uniform and identity heads, rows without a path and heads left as
    they are count as bringing nothing; `original_heads` lists the last kind, which in fact may
    bring anything.

    Args:
        circuit: its paths move the pieces, whether or not attention could find them.
        n_layers: layers of the model.

    Returns:
        n_layers+1 entries: before any layer, after the first, and so on.

    Raises:
        InputError: the circuit belongs to neither a chain nor a graph, or names a layer that the
            model lacks.
    """
    by_layer = paths_by_layer(circuit, n_layers)
    roles = circuit_graph(circuit).roles
    states: list[Held] = [tuple(token_bit(role.node) | 1 << 2 * role.statement for role in roles)]
    for paths in by_layer:
        held = states[-1]
        grown = list(held)
        for _, path in paths:
            grown[path.dest] |= held[path.src]
        states.append(tuple(grown))
    return states


def delivered(circuit: Circuit, n_layers: int) -> tuple[int, ...]:
    """The numbers of the symbols x_1..x_D, or of a graph's retrieved nodes, that reach s_0.

    Raises:
        InputError: as `circuit_flow`.
    """
    held = tokens_held(circuit_flow(circuit, n_layers)[-1][0])
    return tuple(node for node in circuit_graph(circuit).retrieved if node in held)


def carrying_paths(circuit: Circuit, n_layers: int) -> tuple[HeadPath, ...]:
    """The paths on some route of an asked symbol to the output; the others can only enable.

    A path of layer l carries if (a) its source holds some x_k, k >= 1, before layer l, and (b) its
    destination after layer l leads to s_0 after the last layer, along the residual stream and later
    paths. Under assumption 2 this is equivalent to: some x_k, k >= 1, has a route from its place in
    the input through this path to the output. The query's own x_0 does not count, since it is not
    asked for.

    This is what could be carried: a path counts even if its symbol also arrives by another route,
    or if the model does not use it.

    Raises:
        InputError: as `circuit_flow`.
    """
    states = circuit_flow(circuit, n_layers)
    by_layer = paths_by_layer(circuit, n_layers)
    asked = sum(map(token_bit, circuit_graph(circuit).retrieved))
    heard = {0}  # roles whose residual stream reaches the output
    carrying = set()
    for layer in reversed(range(n_layers)):
        onwards = [path for path in by_layer[layer] if path.path.dest in heard]
        carrying |= {path for path in onwards if states[layer][path.path.src] & asked}
        heard |= {path.path.src for path in onwards}
    return tuple(path for path in circuit.paths() if path in carrying)


def original_heads(circuit: Circuit, n_layers: int, n_heads: int) -> tuple[Head, ...]:
    """The heads that are original, cut, role-mean or follow a rule: they may carry anything.

    Raises:
        InputError: the circuit names a head that the model lacks.
    """
    circuit.check_fits(n_layers, n_heads)
    heads = (Head(layer, head) for layer in range(n_layers) for head in range(n_heads))
    reduced = (UNIFORM, IDENTITY)
    return tuple(h for h in heads if not (circuit[h].follows_paths or circuit[h] in reduced))


def describe_flow(circuit: Circuit, n_layers: int, n_heads: int) -> str:
    """What reaches the query, as a sentence.

    `By information flow along its paths, this circuit can deliver B and C but not D.` If something
    is missing, heads left as they are get a clause of their own, since they may bring it.

    Raises:
        InputError: as `circuit_flow`, or the circuit names a head that the model lacks.
    """
    kept = original_heads(circuit, n_layers, n_heads)
    brought, graph = delivered(circuit, n_layers), circuit_graph(circuit)
    got = [graph.nodes[node].name for node in brought]
    missing = [graph.nodes[node].name for node in graph.retrieved if node not in brought]
    if not missing:
        text = f"can deliver {listed(got, 'and')}"
    elif got:
        text = f"can deliver {listed(got, 'and')} but not {listed(missing, 'or')}"
    else:
        text = f"cannot deliver {listed(missing, 'or')}"
    if missing and kept:
        heads = [str(head) for head in kept]
        named = listed(heads, "and") if len(heads) <= 4 else f"{len(heads)} of its heads"
        verb = "is" if len(heads) == 1 else "are"
        text += f"; {named} {verb} not reduced to paths and may bring more"
    return f"By information flow along its paths, this circuit {text}."


def listed(words: Sequence[str], conjunction: str) -> str:
    """`A, B and C`."""
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} {conjunction} {words[-1]}"


def circuit_graph(circuit: Circuit) -> RetrievalGraph:
    """The graph of a circuit's task, by default the path with as many roles.

    Raises:
        InputError: the number of roles does not fit the graph, or any path.
    """
    named, n_roles = circuit.task.get("graph"), circuit.n_roles
    if named is None:
        if n_roles < 3 or n_roles % 2 == 0:
            raise InputError(f"circuit: expected 2 * steps + 1 roles, at least 3, found {n_roles}")
        return path_graph((n_roles - 1) // 2)
    graph = RetrievalGraph.parse(str(named))
    if len(graph.roles) != n_roles:
        raise InputError(
            f"circuit: expected the {len(graph.roles)} roles of its task's graph, found {n_roles}"
        )
    return graph


def paths_by_layer(circuit: Circuit, n_layers: int) -> list[list[HeadPath]]:
    """The paths of every layer that can bring something of the same chain.

    Raises:
        InputError: not the roles of a chain or graph, or a role or layer is out of range.
    """
    check_layers(n_layers)
    n_roles = len(circuit_graph(circuit).roles)
    by_layer: list[list[HeadPath]] = [[] for _ in range(n_layers)]
    for head in circuit.mechanisms:
        if not 0 <= head.layer < n_layers:
            raise InputError(
                f"circuit: expected heads of the model's {n_layers} layers, L0 on, found {head}"
            )
    for path in circuit.paths():
        if not all(0 <= role < n_roles for role in path.path):
            raise InputError(
                f"circuit: expected roles from s0 to {role_name(n_roles - 1)}, found {path}"
            )
        by_layer[path.head.layer].append(path)
    return by_layer
