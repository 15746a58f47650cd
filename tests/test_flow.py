"""How deep a model must be, and what a circuit delivers, by hand."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import retrieval_interp as ri
from retrieval_interp.circuits import flow
from retrieval_interp.circuits.mechanisms import Shared


@pytest.mark.parametrize("steps", [*range(1, 34), 63, 64, 127, 128])
def test_closed_forms_equal_the_simulation(steps):
    assert flow.causal_depth(steps) == flow.least_depth(steps, causal=True)
    assert flow.unmasked_depth(steps) == flow.least_depth(steps, causal=False)


def test_the_depths_follow_the_formulas_where_floating_logarithms_round():
    assert (flow.paper_bound(1), flow.unmasked_depth(1), flow.causal_depth(1)) == (1, 2, 2)
    found = [flow.causal_depth(steps) for steps in (3, 4, 7, 8, 2**60 - 1, 2**60)]
    assert found == [3, 4, 4, 5, 61, 62]
    half = (3**40 - 1) // 2  # 2 * steps = 3^40 - 1 and 3^40 + 1
    assert [flow.paper_bound(steps) for steps in (half, half + 1)] == [40, 41]
    quarter = (3**40 - 1) // 4  # 4 * steps + 1 = 3^40 and 3^40 + 4
    assert [flow.unmasked_depth(steps) for steps in (quarter, quarter + 1)] == [40, 41]


@pytest.mark.parametrize(
    ("graph", "tables", "causal", "depths"),
    [
        # One layer joins the pairs, one looks both up, one the value.
        ("triple", "full", True, "a 0 x 2 y 2 z 3"),
        # By x alone (a, x) and (x, y, z) find each other in the first layer.
        ("triple", "chains", False, "a 0 x 2 y 2 z 2"),
        # The earlier symbol of the query shares its encoding.
        ("functions", "full", True, "alias 1 letter 0 number 2 function 2 value 3"),
        # person and job are a chain of two steps; then the relative, which has found its country.
        ("relatives", "full", True, "person 0 job 2 relation 3 relative 4 country 4"),
        # The shortcut: the person alone finds the relative, together with the job; and the
        # relation that stands in its statement.
        ("relatives", "chains", True, "person 0 job 2 relation 2 relative 2 country 3"),
        # A chain of three steps, whose end is a part of the last key.
        ("a; b <- a; c <- b; d <- c; z <- a, d", "full", True, "a 0 b 2 c 3 d 3 z 4"),
        # Each step waits for the one before; without the mask the line of z finds its x meanwhile.
        ("a; b; x <- a, b; y <- x; z <- y, a", "full", True, "a 1 b 0 x 2 y 3 z 4"),
        ("a; b; x <- a, b; y <- x; z <- y, a", "full", False, "a 1 b 0 x 2 y 3 z 3"),
    ],
)
def test_depths_of_graphs(graph, tables, causal, depths):
    by_node = flow.node_depths(ri.RetrievalGraph.parse(graph), causal, tables)
    assert " ".join(f"{name} {depth}" for name, depth in by_node.items()) == depths


def test_a_circuit_delivers_what_its_paths_bring_to_the_query():
    # Layer 0 joins the pairs, layer 1 reads a pair ahead, layer 2 fetches C and D.
    lines = ["L0.H0 s2<-s1 s4<-s3 s6<-s5", "L1.H0 s0<-s2 s4<-s6", "L2.H0 s0<-s4"]
    circuit = ri.parse_circuit(lines, ri.RetrievalTask())
    assert flow.delivered(circuit, 3) == (1, 2, 3)
    assert flow.delivered(circuit.without(ri.parse_head_path("L1.H0 s4<-s6", 7)), 3) == (1, 2)


@given(
    st.sets(st.tuples(st.integers(0, 2), st.integers(0, 1), *[st.integers(0, 4)] * 2), max_size=14)
)
def test_what_is_delivered_has_a_route_to_the_output(paths):
    """Followed place by place: (layer, head, dest, src) in 3 layers, 2 heads and 5 roles."""
    mechanisms = {}
    for layer, head, *path in paths:
        mechanisms.setdefault(ri.Head(layer, head), []).append(ri.RolePath(*path))
    circuit = ri.Circuit({head: Shared(tuple(own)) for head, own in mechanisms.items()}, 5)
    expected = []
    for node, places in ((1, {2, 3}), (2, {4})):
        for layer in range(3):
            places = places | {dest for at, _, dest, src in paths if at == layer and src in places}
        expected += [node] if 0 in places else []
    assert flow.delivered(circuit, 3) == tuple(expected)


TASK = ri.ConditionalRetrievalTask()
# s1 s2 are a and x, s3 s4 a and y, s5 s6 s7 x, y and z: join, look up both, look up z.
LINES = ["L0.H0 s2<-s1 s4<-s3 s7<-s6", "L1.H0 s0<-s2", "L1.H1 s0<-s4", "L2.H0 s0<-s7"]


def test_a_circuit_of_a_graph_delivers_its_nodes():
    circuit = ri.parse_circuit(LINES, TASK)
    assert flow.delivered(circuit, 3) == (1, 2, 3)
    assert "can deliver x, y and z." in flow.describe_flow(circuit, 3, 2)
    without_y = [LINES[0], LINES[1], LINES[3]]  # but y comes with z
    assert flow.delivered(ri.parse_circuit(without_y, TASK), 3) == (1, 2, 3)
    assert flow.delivered(ri.parse_circuit(without_y[1:], TASK), 3) == (1, 3)


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: flow.causal_depth(True), "steps"),
        (lambda: flow.describe_flow(ri.Circuit({}, 4), 1, 1), "roles"),
        (lambda: flow.delivered(ri.Circuit({}, 7, task=TASK.to_dict()), 1), "8 roles .*, found 7"),
    ],
)
def test_what_does_not_fit_is_refused(refused, message):
    with pytest.raises(ri.InputError, match=message):
        refused()


def test_the_table_and_the_json_hold_a_row_for_every_length(tmp_path, run_command_in_process):
    path = tmp_path / "bound.json"
    done = run_command_in_process("bound", "--steps", 1, 3, 4, "--json", path)
    keys = ["steps", "paper", "unmasked", "causal", "simulated_unmasked", "simulated_causal"]
    rows = [[1, 1, 2, 2, 2, 2], [3, 2, 3, 3, 3, 3], [4, 2, 3, 4, 3, 4]]
    assert json.loads(path.read_text()) == [dict(zip(keys, row)) for row in rows]
    assert done.stdout.splitlines()[-3].split() == ["4", "2", "3", "4", "3", "4"]
