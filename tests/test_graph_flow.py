from itertools import product

import pytest

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.flow import describe_flow, least_depth, node_depths, simulate
from retrieval_interp.circuits.flow.bounds import piece_name
from retrieval_interp.circuits.flow.delivery import delivered, held_nodes
from retrieval_interp.circuits.notation import parse_circuit
from retrieval_interp.tasks import (
    GRAPHS,
    ConditionalRetrievalTask,
    InputError,
    RetrievalGraph,
    path_graph,
)

UNEVEN = RetrievalGraph.parse("a; b <- a; c <- b; d <- c; z <- a, d")
TWICE = RetrievalGraph.parse("a; b; x <- a, b; y <- x; z <- y, a")
ALL = [*GRAPHS.values(), UNEVEN, TWICE, *map(path_graph, (1, 2, 3, 4, 7, 8))]


def names(graph, held):
    """What every role holds, in words."""
    return [{piece_name(int(piece), graph) for piece in own.nonzero()} for own in held]


# By hand

# Before any layer: the query, (a, x), (a, y) and (x, y, z), an encoding each.
START = ["p0 a", "a p1", "x p1", "a p2", "y p2", "x p3", "y p3", "z p3"]
# Full tables, causal. In layer 1 every element takes what stands before it in its statement; a is
# in (a, y) too, which stands before (a, x) and the query: s1 finds p2, s0 both p1 and p2. x and y
# are in several statements of z's table, so neither tells which is meant.
FIRST = ["p0 a p1 p2", "a p1 p2", "a x p1", "a p2", "a y p2", "x p3", "x y p3", "x y z p3"]
# In layer 2 the query finds both pairs. (a, x) finds (a, y), now by its value, too.
SECOND = ["p0 a x y p1 p2", "a y p1 p2", "a x y p1 p2", *FIRST[3:]]


def test_the_papers_example_worked_by_hand():
    graph = GRAPHS["triple"]
    found = [names(graph, held) for held in simulate(graph, 3, causal=True)]
    for layer, rows in enumerate((START, FIRST, SECOND)):
        assert found[layer] == [set(row.split()) for row in rows]
    assert {"x", "y", "z"} <= found[3][0]  # the query has the whole key of z


@pytest.mark.parametrize(
    ("graph", "tables", "causal", "depths"),
    [
        # One layer joins the pairs, one looks both up, one the value.
        ("triple", "full", True, "a 0 x 2 y 2 z 3"),
        ("triple", "chains", True, "a 0 x 2 y 2 z 3"),
        ("triple", "full", False, "a 0 x 2 y 2 z 3"),
        # By x alone (a, x) and (x, y, z) find each other in the first layer.
        ("triple", "chains", False, "a 0 x 2 y 2 z 2"),
        # The earlier symbol of the query shares its encoding.
        ("functions", "full", True, "alias 1 letter 0 number 2 function 2 value 3"),
        # person and job are a chain of two steps; then the relative, which has found its country.
        ("relatives", "full", True, "person 0 job 2 relation 3 relative 4 country 4"),
        # The shortcut: the person alone finds the relative, together with the job; and the
        # relation that stands in its statement.
        ("relatives", "chains", True, "person 0 job 2 relation 2 relative 2 country 3"),
    ],
)
def test_depths_of_the_papers_graphs(graph, tables, causal, depths):
    found = node_depths(GRAPHS[graph], causal, tables)
    assert " ".join(f"{name} {depth}" for name, depth in found.items()) == depths


def test_a_value_that_needs_its_whole_key_is_as_deep_as_the_deepest_of_it():
    """d comes by a path of three steps (3 layers), then z by a and d; by a alone at once."""
    assert node_depths(UNEVEN, True, "full") == {"a": 0, "b": 2, "c": 3, "d": 3, "z": 4}
    assert least_depth(UNEVEN, True, "chains") == 2


# A second simulation


def reference(graph, layers, causal, tables):
    """The assumptions on a whole sequence of three chains, with sets of strings."""
    candidates, rows = {}, {}
    for node in graph.nodes:
        if not node.key:
            candidates[node.name] = [f"{node.name}{c}" for c in range(3)]
            continue
        of_key = [candidates[name] for name in node.key]
        rows[node.name] = list(product(*of_key) if tables == "full" else zip(*of_key))
        candidates[node.name] = [f"{node.name}({'-'.join(row)})" for row in rows[node.name]]
    positions = []  # table, line, element, pieces
    for node in reversed([node for node in graph.nodes if node.key]):
        for line, row in enumerate(rows[node.name]):
            for element, piece in enumerate([*row, candidates[node.name][line]]):
                positions.append((node.name, line, element, {piece, f"p-{node.name}{line}"}))
    given = [node.name for node in graph.nodes if not node.key]
    for chain in range(3):
        for element, name in enumerate(given):
            positions.append(("query", chain, element, {f"{name}{chain}", f"p{chain}"}))
    order = [*reversed([node.name for node in graph.nodes if node.key]), "query"]
    last = [(t, line, e) for t, line, e, _ in positions].index(("query", 0, len(given) - 1))
    held = [[pieces for *_, pieces in positions]]
    for _ in range(layers):
        before, after = held[-1], []
        for (table, line, element, _), pieces in zip(positions, before):
            grown = set(pieces)
            for (t, other, e, _), offered in zip(positions, before):
                mine = (t, other) == (table, line)
                if causal and not (e <= element if mine else order.index(t) < order.index(table)):
                    continue
                shared = pieces & offered
                alike = [
                    h for (t2, o, e2, _), h in zip(positions, before)
                    if (t2, e2) == (t, e) and o != other and shared <= h
                ]  # fmt: skip
                if shared and not alike:
                    grown |= offered
            after.append(grown)
        held.append(after)
    own = {}
    for node in graph.nodes:
        row = [own[name] for name in node.key]
        if node.key:
            own[node.name] = candidates[node.name][rows[node.name].index(tuple(row))]
        else:
            own[node.name] = f"{node.name}0"
    return [{name for name in own if own[name] in state[last]} for state in held]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("tables", ["full", "chains"])
@pytest.mark.parametrize("graph", ALL, ids=str)
def test_a_second_simulation_with_strings_and_three_chains_agrees(graph, tables, causal):
    layers = least_depth(graph, causal, tables) + 1
    tokens = {node.name for node in graph.nodes}
    states = simulate(graph, layers, causal, tables)
    found = [tokens & names(graph, held[:1])[0] for held in states]
    assert found == reference(graph, layers, causal, tables)


def test_what_cannot_be_simulated_is_refused():
    many = RetrievalGraph.parse(f"{'; '.join('abcdefgh')}; z <- {', '.join('abcdefgh')}")
    with pytest.raises(InputError, match="at most 2100 positions, found 2320"):
        least_depth(many, causal=True)
    assert least_depth(many, causal=True, tables="chains") == 2


# What a circuit of a graph does

TASK = ConditionalRetrievalTask()
# s1 s2 are a and x, s3 s4 a and y, s5 s6 s7 x, y and z: join, look up both, look up z.
LINES = ["L0.H0 s2<-s1 s4<-s3 s7<-s6", "L1.H0 s0<-s2", "L1.H1 s0<-s4", "L2.H0 s0<-s7"]


def test_a_circuit_of_a_graph_delivers_its_nodes():
    circuit = parse_circuit(LINES, TASK)
    assert held_nodes(circuit, 3)[-1][0] == {0, 1, 2, 3}
    said = "By information flow along its paths, this circuit can deliver x, y and z."
    assert describe_flow(circuit, 3, 2) == said
    assert delivered(parse_circuit([LINES[0], LINES[1], LINES[3]], TASK), 3) == (
        1,
        2,
        3,
    )  # y with z
    assert delivered(parse_circuit([LINES[1], LINES[3]], TASK), 3) == (1, 3)


def test_a_circuit_that_does_not_fit_its_graph_is_refused():
    circuit = Circuit({}, 7, task=TASK.to_dict())
    with pytest.raises(InputError, match="expected the 8 roles .*, found 7"):
        delivered(circuit, 1)
