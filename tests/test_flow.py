"""Depth bounds and information flow along chains; graphs are in test_graph_flow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_interp.circuits.circuit import Circuit, Head, RolePath
from retrieval_interp.circuits.draw.layout import chain_order
from retrieval_interp.circuits.flow import (
    causal_depth,
    describe_flow,
    least_depth,
    paper_bound,
    unmasked_depth,
)
from retrieval_interp.circuits.flow.delivery import delivered, held_nodes
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM, OneHot, Shared
from retrieval_interp.circuits.notation import parse_head_path
from retrieval_interp.tasks import InputError

CLOSED = {True: causal_depth, False: unmasked_depth}
# Worked by hand: layer 0 joins the pairs, layer 1 reads a pair ahead, layer 2 fetches C and D.
JOINED = ("L0.H0 s2<-s1", "L0.H0 s4<-s3", "L0.H0 s6<-s5")
FETCHED = ("L1.H0 s0<-s2", "L1.H0 s4<-s6", "L2.H0 s0<-s4")


def circuit_of(*texts, n_roles=7, idle=None):
    mechanisms = dict(idle or {})
    for path in (parse_head_path(text, n_roles) for text in texts):
        paths = mechanisms[path.head].paths if path.head in mechanisms else ()
        mechanisms[path.head] = Shared((*paths, path.path))
    return Circuit(mechanisms, n_roles)


# What the assumptions allow


@pytest.mark.parametrize("causal", [True, False])
def test_closed_forms_equal_the_simulation(causal):
    for steps in (*range(1, 34), 63, 64, 127, 128):
        assert CLOSED[causal](steps) == least_depth(steps, causal), steps


def test_an_induction_head_needs_two_layers_where_the_paper_leaves_one_open():
    assert (paper_bound(1), unmasked_depth(1), causal_depth(1)) == (1, 2, 2)


def test_the_depths_follow_the_formulas_where_floating_logarithms_round():
    assert [causal_depth(steps) for steps in (3, 4, 7, 8, 2**60 - 1, 2**60)] == [3, 4, 4, 5, 61, 62]
    half = (3**40 - 1) // 2  # 2 * steps = 3^40 - 1 and 3^40 + 1
    assert [paper_bound(steps) for steps in (half, half + 1)] == [40, 41]
    quarter = (3**40 - 1) // 4  # 4 * steps + 1 = 3^40 and 3^40 + 4
    assert [unmasked_depth(steps) for steps in (quarter, quarter + 1)] == [40, 41]


def test_steps_out_of_range_are_refused():
    for function in (paper_bound, unmasked_depth, causal_depth):
        for steps in (0, -3, True):
            with pytest.raises(InputError, match="steps"):
                function(steps)
    with pytest.raises(InputError, match="steps"):
        least_depth(0, causal=True)


# What a circuit does


def test_a_worked_circuit_holds_what_the_paper_and_pencil_say():
    states = held_nodes(circuit_of(*JOINED, *FETCHED), 3)
    letters = ["".join("ABCD"[node] for node in sorted(held)) for held in states[-1]]
    assert letters == ["ABCD", "A", "AB", "B", "BCD", "C", "CD"]
    assert [sorted(state[0]) for state in states] == [[0], [0], [0, 1], [0, 1, 2, 3]]


def test_a_circuit_delivers_what_its_paths_bring_to_the_query():
    circuit = circuit_of(*JOINED, *FETCHED)
    assert delivered(circuit, 3) == (1, 2, 3)
    assert delivered(circuit.without(parse_head_path("L1.H0 s4<-s6", 7)), 3) == (1, 2)
    assert delivered(circuit_of(), 3) == ()


def test_sources_are_read_before_the_layer_and_heads_of_a_layer_unite():
    assert delivered(circuit_of("L0.H0 s4<-s6", "L0.H0 s0<-s4"), 1) == (2,)
    assert delivered(circuit_of("L0.H0 s0<-s2", "L0.H1 s0<-s6", "L0.H0 s0<-s4"), 1) == (1, 2, 3)


def test_the_sentence_names_what_arrives_and_what_does_not():
    circuit = circuit_of(*JOINED, *FETCHED)
    fewer = circuit.without(parse_head_path("L1.H0 s4<-s6", 7))
    start = "By information flow along its paths, this circuit "
    assert describe_flow(circuit, 3, 1) == start + "can deliver B, C and D."
    assert describe_flow(fewer, 3, 1) == start + "can deliver B and C but not D."
    assert describe_flow(circuit_of(*FETCHED[:1]), 2, 1) == start + (
        "can deliver B but not C or D; L0.H0 is not reduced to paths and may bring more."
    )
    assert describe_flow(circuit_of(), 2, 1) == start + (
        "cannot deliver B, C or D; L0.H0 and L1.H0 are not reduced to paths and may bring more."
    )
    idle = {Head(0, 0): UNIFORM, Head(1, 0): IDENTITY}
    assert describe_flow(circuit_of("L2.H0 s0<-s4", idle=idle), 3, 1) == start + (
        "can deliver C but not B or D."
    )
    assert describe_flow(circuit_of(n_roles=3), 12, 2) == start + (
        "cannot deliver B; 24 of its heads are not reduced to paths and may bring more."
    )


@given(
    st.sets(st.tuples(st.integers(0, 2), st.integers(0, 1), *[st.integers(0, 4)] * 2), max_size=14)
)
def test_what_is_delivered_has_a_route_to_the_output(paths):
    """Followed place by place: (layer, head, dest, src) in 3 layers, 2 heads and 5 roles."""
    mechanisms = {}
    for layer, head, *path in paths:
        mechanisms.setdefault(Head(layer, head), []).append(RolePath(*path))
    circuit = Circuit({head: Shared(tuple(own)) for head, own in mechanisms.items()}, 5)
    expected = []
    for node, places in ((1, {2, 3}), (2, {4})):
        for layer in range(3):
            places = places | {dest for at, _, dest, src in paths if at == layer and src in places}
        expected += [node] if 0 in places else []
    assert delivered(circuit, 3) == tuple(expected)


def frontier_circuit(steps, layers):
    """docs/depth.md: layer 1 joins a pair, each later one fetches what the last token starts."""
    ahead = {role: role // 2 for role in range(0, 2 * steps + 1, 2)}  # the last token held
    heads = {Head(0, 0): OneHot(tuple(RolePath(role, role - 1) for role in ahead if role))}
    for layer in range(1, layers):
        srcs = {role: 2 * last + 2 for role, last in ahead.items() if last < steps}
        heads[Head(layer, 0)] = OneHot(tuple(RolePath(*path) for path in srcs.items()))
        ahead = {**ahead, **{role: ahead[src] for role, src in srcs.items()}}
    return Circuit(heads, 2 * steps + 1)


def test_one_head_a_layer_with_one_source_a_role_reaches_the_causal_depth():
    for steps in range(1, 41):
        layers = causal_depth(steps)
        circuit = frontier_circuit(steps, layers)
        assert delivered(circuit, layers) == tuple(range(1, steps + 1))
        assert steps not in delivered(frontier_circuit(steps, layers - 1), layers - 1)
        order, states = chain_order(2 * steps + 1), held_nodes(circuit, layers)
        for head, (dest, src) in circuit.paths():
            assert order.index(src) < order.index(dest)  # the mask allows it
            held = states[head.layer]  # and assumption 1: tokens, or first of all the encodings
            assert held[dest] & held[src] or (head.layer == 0 and dest - src == 1)


def test_the_table_for_three_steps_in_the_documentation():
    rows = zip(*held_nodes(frontier_circuit(3, 3), 3))
    letters = [["".join("ABCD"[k] for k in sorted(held)) for held in row] for row in rows]
    assert {role: row for role, row in enumerate(letters) if role % 2 == 0} == {
        6: ["D", "CD", "CD", "CD"],
        4: ["C", "BC", "BCD", "BCD"],
        2: ["B", "AB", "ABC", "ABCD"],
        0: ["A", "A", "AB", "ABCD"],
    }


def test_circuits_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match=r"expected heads from L0\.H0 to L2\.H0"):
        describe_flow(circuit_of("L3.H0 s0<-s2"), 3, 1)
    with pytest.raises(InputError, match="roles"):
        describe_flow(Circuit({}, 4), 1, 1)
