from itertools import islice, product

import pytest

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.flow import least_depth, node_depths, simulate, simulation
from retrieval_interp.circuits.flow.delivery import (
    carrying_paths,
    circuit_flow,
    delivered,
    describe_flow,
)
from retrieval_interp.circuits.flow.pieces import piece_names
from retrieval_interp.circuits.mechanisms import OneHot
from retrieval_interp.circuits.notation import parse_head_path
from retrieval_interp.tasks import (
    GRAPHS,
    ConditionalRetrievalTask,
    InputError,
    RetrievalGraph,
    path_graph,
)

UNEVEN = RetrievalGraph.parse("a; b <- a; c <- b; d <- c; z <- a, d")
TWICE = RetrievalGraph.parse("a; b; x <- a, b; y <- x; z <- y, a")


def names(graph, held):
    return [" ".join(piece_names(pieces, graph)) for pieces in held]


# The same as on chains


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("steps", range(1, 17))
def test_on_a_path_all_is_as_on_a_chain(steps, causal):
    graph, layers = path_graph(steps), least_depth(steps, causal) + 1
    held = simulate(steps, layers, causal)
    for tables in ("full", "chains"):
        # The chain's own way, role by role, and that of any graph, position by position.
        by_positions = simulation._by_positions(graph, causal, tables)
        assert list(islice(by_positions, layers + 1)) == held
        assert simulate(graph, layers, causal, tables) == held
    assert [piece_names(p, graph) for p in held[-1]] == [piece_names(p) for p in held[-1]]


# By hand

# Before any layer: the query, (a, x), (a, y) and (x, y, z), an encoding each.
START = ["p0 a", "a p1", "x p1", "a p2", "y p2", "x p3", "y p3", "z p3"]
# Full tables, causal. In layer 1 every element takes what stands before it in its statement; a is
# in (a, y) too, which stands before (a, x) and the query: s1 finds p2, s0 both p1 and p2. x and y
# are in several statements of z's table, so neither tells which is meant.
FIRST = ["p0 a p1 p2", "a p1 p2", "a x p1", "a p2", "a y p2", "x p3", "x y p3", "x y z p3"]
# In layer 2 the query finds both pairs. (a, x) finds (a, y), now by its value, too.
SECOND = ["p0 a x y p1 p2", "a y p1 p2", "a x y p1 p2", *FIRST[3:]]
# In layer 3 it has the whole key of z.
THIRD = ["p0 a x y z p1 p2 p3", "a y p1 p2", "a x y z p1 p2 p3", *FIRST[3:]]


def sets(rows):
    return [set(row.split()) for row in rows]


def test_the_papers_example_worked_by_hand():
    graph = GRAPHS["triple"]
    states = simulate(graph, 3, causal=True)
    found = [sets(names(graph, held)) for held in states]
    assert found[:3] == [sets(START), sets(FIRST), sets(SECOND)]
    third = found[3]
    assert third[0] == sets(THIRD)[0] and third[2] == sets(THIRD)[2]
    assert least_depth(graph, causal=True) == 3


@pytest.mark.parametrize(
    ("graph", "tables", "causal", "depths"),
    [
        # One layer joins the pairs, one looks both up, one the value.
        ("triple", "full", True, {"a": 0, "x": 2, "y": 2, "z": 3}),
        ("triple", "chains", True, {"a": 0, "x": 2, "y": 2, "z": 3}),
        ("triple", "full", False, {"a": 0, "x": 2, "y": 2, "z": 3}),
        # By x alone (a, x) and (x, y, z) find each other in the first layer.
        ("triple", "chains", False, {"a": 0, "x": 2, "y": 2, "z": 2}),
        # The earlier symbol of the query shares its encoding.
        (
            "functions",
            "full",
            True,
            {"alias": 1, "letter": 0, "number": 2, "function": 2, "value": 3},
        ),
        # person and job are a chain of two steps; then the relative, which has found its country.
        (
            "relatives",
            "full",
            True,
            {"person": 0, "job": 2, "relation": 3, "relative": 4, "country": 4},
        ),
        # The shortcut: the person alone finds the relative, together with the job; and the
        # relation that stands in its statement.
        (
            "relatives",
            "chains",
            True,
            {"person": 0, "job": 2, "relation": 2, "relative": 2, "country": 3},
        ),
    ],
)
def test_depths_of_the_papers_graphs(graph, tables, causal, depths):
    assert node_depths(GRAPHS[graph], causal, tables) == depths
    assert least_depth(GRAPHS[graph], causal, tables) == list(depths.values())[-1]


def test_a_value_that_needs_its_whole_key_is_as_deep_as_the_deepest_of_it():
    """d comes by a path of three steps (3 layers), then z by a and d; by a alone at once."""
    assert node_depths(UNEVEN, True, "full") == {"a": 0, "b": 2, "c": 3, "d": 3, "z": 4}
    assert least_depth(UNEVEN, True, "chains") == 2


# A second simulation


def reference(graph, layers, causal, tables, whole_keys=True):
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
                if shared and not (whole_keys and alike):
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
@pytest.mark.parametrize("graph", [*GRAPHS.values(), UNEVEN, TWICE], ids=str)
def test_a_second_simulation_with_strings_and_three_chains_agrees(graph, tables, causal):
    layers = least_depth(graph, causal, tables) + 1
    tokens = {node.name for node in graph.nodes}
    found = [
        tokens & set(piece_names(held[0], graph))
        for held in simulate(graph, layers, causal, tables)
    ]
    assert found == reference(graph, layers, causal, tables)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("graph", [*GRAPHS.values(), UNEVEN, TWICE], ids=str)
def test_taking_mixtures_whole_full_tables_are_no_deeper_than_the_chains_own(graph, causal):
    layers = least_depth(graph, causal, "chains")
    loose = reference(graph, layers, causal, "full", whole_keys=False)
    assert loose == reference(graph, layers, causal, "chains")


def test_what_cannot_be_simulated_is_refused():
    many = RetrievalGraph.parse(f"{'; '.join('abcdefgh')}; z <- {', '.join('abcdefgh')}")
    with pytest.raises(InputError, match="at most 1000 positions, found 2320; use a smaller graph"):
        least_depth(many, causal=True)
    assert least_depth(many, causal=True, tables="chains") == 2
    with pytest.raises(InputError, match="^layers: expected an integer of at least 0, found -1"):
        simulate(UNEVEN, -1, causal=True)


# What a circuit of a graph does

TASK = ConditionalRetrievalTask()
# s1 s2 are a and x, s3 s4 a and y, s5 s6 s7 x, y and z: join, look up both, look up z.
LINES = (
    ("L0.H0", "s2<-s1", "s4<-s3", "s7<-s6"),
    ("L1.H0", "s0<-s2"),
    ("L1.H1", "s0<-s4"),
    ("L2.H0", "s0<-s7"),
)


def circuit_of(*lines, task=TASK):
    mechanisms = {}
    for head, *paths in lines:
        parsed = [parse_head_path(f"{head} {path}", len(task.role_names)) for path in paths]
        mechanisms[parsed[0].head] = OneHot(tuple(p.path for p in parsed))
    return Circuit(mechanisms, len(task.role_names), task=task.to_dict())


def test_a_circuit_of_a_graph_delivers_its_nodes():
    circuit = circuit_of(*LINES)
    held = names(TASK.graph, circuit_flow(circuit, 3)[-1])
    assert set(held[0].split()) == {"p0", "a", "p1", "x", "p2", "y", "p3", "z"}
    assert delivered(circuit, 3) == (1, 2, 3)
    start = "By information flow along its paths, this circuit "
    assert describe_flow(circuit, 3, 2).startswith(f"{start}can deliver x, y and z")
    fewer = circuit_of(*LINES[:2], LINES[3])
    assert describe_flow(fewer, 3, 1) == f"{start}can deliver x, y and z."  # y with z's statement
    assert delivered(circuit_of(LINES[1], LINES[3]), 3) == (1, 3)
    # The query's own a is not asked for: these two only enable.
    enabling = {"L0.H0 s2<-s1", "L0.H0 s4<-s3"}
    assert {str(p) for p in circuit.paths()} - enabling == {
        str(p) for p in carrying_paths(circuit, 3)
    }


def test_a_circuit_that_does_not_fit_its_graph_is_refused():
    circuit = Circuit({}, 7, task=TASK.to_dict())
    with pytest.raises(InputError, match="expected the 8 roles of its task's graph, found 7"):
        delivered(circuit, 1)
