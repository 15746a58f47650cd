import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_interp.circuits.circuit import Circuit, Head, HeadPath, RolePath
from retrieval_interp.circuits.draw.layout import role_order
from retrieval_interp.circuits.flow import (
    causal_depth,
    least_depth,
    paper_bound,
    simulate,
    unmasked_depth,
)
from retrieval_interp.circuits.flow.delivery import (
    carrying_paths,
    circuit_flow,
    delivered,
    describe_flow,
    original_heads,
)
from retrieval_interp.circuits.flow.fetches import Fetch, fetches
from retrieval_interp.circuits.flow.pieces import piece_names, tokens_held
from retrieval_interp.circuits.flow.simulation import sequence_order
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM, OneHot, Shared
from retrieval_interp.circuits.notation import parse_head_path
from retrieval_interp.tasks import InputError, RetrievalTask

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


def names(held):
    return [" ".join(piece_names(pieces)) for pieces in held]


# What the assumptions allow


def reference(steps, layers, causal, chains=2):
    """Assumptions 1 and 2 on a whole sequence with sets of strings; the first chain's roles."""
    places, pieces = {}, []
    for pair in range(steps, 0, -1):
        for chain in range(chains):
            for element in (1, 0):
                places[chain, 2 * pair - element] = len(pieces)
                pieces.append({f"{chain}{'ABCDEFGHI'[pair - element]}", f"{chain}p{pair}"})
    for chain in range(chains):
        places[chain, 0] = len(pieces)
        pieces.append({f"{chain}A", f"{chain}p0"})
    states = [pieces]
    for _ in range(layers):
        before = states[-1]
        after = []
        for place, held in enumerate(before):
            visible = before[: place + 1] if causal else before
            after.append(held.union(*(other for other in visible if other & held)))
        states.append(after)
    return [[state[places[0, role]] for role in range(2 * steps + 1)] for state in states]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("steps", range(1, 9))
def test_the_simulation_equals_sets_of_strings_over_a_sequence_of_two_chains(steps, causal):
    layers = CLOSED[causal](steps) + 1
    found = [
        [{f"0{name}" for name in piece_names(pieces)} for pieces in held]
        for held in simulate(steps, layers, causal)
    ]
    assert found == reference(steps, layers, causal)


def test_the_simulated_order_is_the_order_of_the_task():
    for steps in (1, 2, 5):
        batch = RetrievalTask(chains=3, steps=steps).sample(4)
        assert list(sequence_order(steps)) == role_order(batch)


@pytest.mark.parametrize("causal", [True, False])
def test_closed_forms_equal_the_simulation(causal):
    for steps in range(1, 129):
        assert CLOSED[causal](steps) == least_depth(steps, causal), steps


def test_an_induction_head_needs_two_layers_where_the_paper_leaves_one_open():
    assert (paper_bound(1), unmasked_depth(1), causal_depth(1)) == (1, 2, 2)


def test_the_depths_follow_the_formulas_where_floating_logarithms_round():
    assert [causal_depth(steps) for steps in (3, 4, 7, 8, 2**60 - 1, 2**60)] == [3, 4, 4, 5, 61, 62]
    half = (3**40 - 1) // 2  # 2 * steps = 3^40 - 1 and 3^40 + 1
    assert [paper_bound(steps) for steps in (half, half + 1)] == [40, 41]
    quarter = (3**40 - 1) // 4  # 4 * steps + 1 = 3^40 and 3^40 + 4
    assert [unmasked_depth(steps) for steps in (quarter, quarter + 1)] == [40, 41]


def test_the_exact_depths_are_above_the_paper_bound_by_the_mask_and_the_open_end():
    for steps in range(1, 129):
        assert paper_bound(steps) <= unmasked_depth(steps) <= paper_bound(steps) + 1
        assert unmasked_depth(steps) <= causal_depth(steps)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("steps", [1, 2, 3, 6, 13, 20])
def test_every_role_holds_neighbours_only_and_no_more_than_lemma_3_allows(steps, causal):
    for layer, held in enumerate(simulate(steps, CLOSED[causal](steps), causal)):
        for pieces in held:
            assert "0" not in f"{pieces:b}".strip("0")  # lemma 2
            assert pieces.bit_count() <= 3**layer + 1  # lemma 3


def test_the_interval_recurrences_of_the_proof_hold():
    for steps in (1, 4, 11):
        for layer, held in enumerate(simulate(steps, 6, causal=False)):
            reach = (3**layer - 1) // 2
            for role, pieces in enumerate(held):
                ends = (max(0, role - reach), min(2 * steps + 1, role + 1 + reach))
                assert (min_bit(pieces), pieces.bit_length() - 1) == ends
        for layer, held in enumerate(simulate(steps, 6, causal=True)):
            for role in range(0, 2 * steps + 1, 2):
                last = min(2 * steps, role + 2**layer - 1)  # the paper's e_last is bit last+1
                assert held[role].bit_length() - 1 == last + 1
            for role in range(1, 2 * steps + 1, 2):
                assert held[role] == 0b11 << role


def min_bit(pieces):
    return (pieces & -pieces).bit_length() - 1


def test_steps_and_layers_out_of_range_are_refused():
    for function in (paper_bound, unmasked_depth, causal_depth, sequence_order):
        for steps in (0, -3, True):
            with pytest.raises(InputError, match=r"^steps: expected an integer of at least 1, fo"):
                function(steps)
    with pytest.raises(InputError, match="at least 1, found 0"):
        least_depth(0, causal=True)
    with pytest.raises(InputError, match="at least 1, found 0"):
        simulate(0, 1, causal=True)
    with pytest.raises(InputError, match="^layers: expected an integer of at least 0, found -1"):
        simulate(2, -1, causal=True)


# What a circuit does


def test_a_worked_circuit_holds_what_the_paper_and_pencil_say():
    states = circuit_flow(circuit_of(*JOINED, *FETCHED), 3)
    start = ["p0 A", "A p1", "p1 B", "B p2", "p2 C", "C p3", "p3 D"]
    joined = ["p0 A", "A p1", "A p1 B", "B p2", "B p2 C", "C p3", "C p3 D"]
    ahead = ["p0 A p1 B", "A p1", "A p1 B", "B p2", "B p2 C p3 D", "C p3", "C p3 D"]
    assert names(states[0]) == start
    assert names(states[1]) == joined
    assert names(states[2]) == ahead
    assert names(states[3]) == ["p0 A p1 B p2 C p3 D", *ahead[1:]]


def test_a_circuit_delivers_what_its_paths_bring_to_the_query():
    circuit = circuit_of(*JOINED, *FETCHED)
    assert delivered(circuit, 3) == (1, 2, 3)
    without = circuit.without(parse_head_path("L1.H0 s4<-s6", 7))
    assert delivered(without, 3) == (1, 2)
    assert delivered(circuit_of(), 3) == ()


def test_sources_are_read_before_the_layer_and_heads_of_a_layer_unite():
    assert delivered(circuit_of("L0.H0 s4<-s6", "L0.H0 s0<-s4"), 1) == (2,)
    assert delivered(circuit_of("L0.H0 s0<-s2", "L0.H1 s0<-s6", "L0.H0 s0<-s4"), 1) == (1, 2, 3)


def test_uniform_and_identity_heads_bring_nothing():
    idle = {Head(0, 0): UNIFORM, Head(1, 0): IDENTITY}
    circuit = circuit_of("L2.H0 s0<-s4", idle=idle)
    assert circuit_flow(circuit, 3)[2] == circuit_flow(circuit, 3)[0]
    assert delivered(circuit, 3) == (2,)


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
    assert describe_flow(circuit_of(n_roles=3), 12, 2) == start + (
        "cannot deliver B; 24 of its heads are not reduced to paths and may bring more."
    )


def test_heads_left_as_they_are_are_listed():
    circuit = circuit_of("L1.H0 s0<-s2", idle={Head(0, 1): UNIFORM})
    assert original_heads(circuit, 2, 2) == (Head(0, 0), Head(1, 1))


def test_paths_that_bring_only_the_querys_own_symbol_or_lead_nowhere_do_not_carry():
    nowhere = "L2.H0 s2<-s6"  # s2 is not read after layer 2
    circuit = circuit_of(*JOINED, *FETCHED, nowhere)
    expected = [*JOINED[1:], *FETCHED]  # s2<-s1 brings A, which is what lets s0 find s2
    assert [str(path) for path in carrying_paths(circuit, 3)] == sorted(expected)


# (layer, head, dest, src) of circuits with 3 layers, 2 heads and 5 roles
some_paths = st.sets(
    st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 4), st.integers(0, 4)),
    max_size=14,
)


def shared_circuit(paths):
    mechanisms = {}
    for layer, head, *path in paths:
        mechanisms.setdefault(Head(layer, head), []).append(RolePath(*path))
    return Circuit({head: Shared(tuple(p)) for head, p in mechanisms.items()}, 5)


def has_a_route(circuit, wanted):
    """Whether some x_k, k >= 1, gets through the wanted path to s_0, followed place by place."""
    places = {(role, False) for role in range(2, 5)}  # where it is, and whether it came that way
    for layer in range(3):
        places |= {
            (path.path.dest, through or path == wanted)
            for path in circuit.paths()
            for role, through in places
            if path.head.layer == layer and path.path.src == role
        }
    return (0, True) in places


@given(some_paths)
def test_carrying_paths_are_those_with_a_route_from_an_asked_token_to_the_output(paths):
    circuit = shared_circuit(paths)
    expected = [path for path in circuit.paths() if has_a_route(circuit, path)]
    assert list(carrying_paths(circuit, 3)) == expected


@given(some_paths)
def test_the_carrying_paths_alone_deliver_the_same(paths):
    circuit = alone = shared_circuit(paths)
    for path in set(circuit.paths()) - set(carrying_paths(circuit, 3)):
        alone = alone.without(path)
    assert delivered(alone, 3) == delivered(circuit, 3)


def frontier_circuit(steps, layers):
    """docs/depth.md: layer 1 joins a pair, each later one fetches what the last token starts."""
    ahead = {role: role // 2 for role in range(0, 2 * steps + 1, 2)}  # the last token held
    paths = [HeadPath(Head(0, 0), RolePath(2 * pair, 2 * pair - 1)) for pair in ahead.values()][1:]
    for layer in range(1, layers):
        srcs = {role: 2 * last + 2 for role, last in ahead.items() if last < steps}
        paths += [HeadPath(Head(layer, 0), RolePath(*path)) for path in srcs.items()]
        ahead = {**ahead, **{role: ahead[src] for role, src in srcs.items()}}
    mechanisms = {
        head: OneHot(tuple(path.path for path in paths if path.head == head))
        for head in {path.head for path in paths}
    }
    return Circuit(mechanisms, 2 * steps + 1)


def test_one_head_a_layer_with_one_source_a_role_reaches_the_causal_depth():
    for steps in range(1, 41):
        layers = causal_depth(steps)
        circuit = frontier_circuit(steps, layers)
        assert delivered(circuit, layers) == tuple(range(1, steps + 1))
        assert steps not in delivered(frontier_circuit(steps, layers - 1), layers - 1)
        order = sequence_order(steps)
        states = circuit_flow(circuit, layers)
        for head, (dest, src) in circuit.paths():
            assert order.index(src) < order.index(dest)  # the mask allows it
            assert states[head.layer][dest] & states[head.layer][src]  # assumption 1 does


def test_the_table_for_three_steps_in_the_documentation():
    rows = zip(*circuit_flow(frontier_circuit(3, 3), 3))
    letters = [["".join("ABCD"[k] for k in tokens_held(p)) for p in row] for row in rows]
    assert {role: row for role, row in enumerate(letters) if role % 2 == 0} == {
        6: ["D", "CD", "CD", "CD"],
        4: ["C", "BC", "BCD", "BCD"],
        2: ["B", "AB", "ABC", "ABCD"],
        0: ["A", "A", "AB", "ABCD"],
    }


def test_circuits_that_do_not_fit_are_refused():
    circuit = circuit_of("L3.H0 s0<-s2")
    for function in (circuit_flow, delivered, carrying_paths):
        with pytest.raises(
            InputError, match="expected heads of the model's 3 layers, L0 on, found"
        ):
            function(circuit, 3)
    with pytest.raises(InputError, match=r"expected heads from L0\.H0 to L2\.H0"):
        describe_flow(circuit, 3, 1)
    with pytest.raises(InputError, match="expected 2 \\* steps \\+ 1 roles, at least 3, found 4"):
        delivered(Circuit({}, 4), 1)
    too_far = Circuit({Head(0, 0): OneHot((RolePath(0, 9),))}, 5)
    with pytest.raises(InputError, match=r"roles from s0 to s4, found L0\.H0 s0<-s9"):
        delivered(too_far, 1)
    with pytest.raises(InputError, match="layers: expected an integer of at least 0"):
        circuit_flow(circuit, -1)


def test_who_fetches_what_and_who_had_brought_it_there():
    first, second, last = Head(0, 0), Head(1, 0), Head(2, 0)
    assert fetches(circuit_of(*JOINED, *FETCHED), 3) == (
        Fetch(second, 2, (1,), ()),  # B, the source's own symbol
        Fetch(last, 4, (2, 3), ((3, second),)),  # C is the source's own, D was brought
    )
    # Read one layer after the other, B comes along with C, and the joining head had brought it.
    assert fetches(circuit_of(*JOINED, "L1.H0 s0<-s4"), 2) == (
        Fetch(second, 4, (1, 2), ((1, first),)),
    )
    assert fetches(circuit_of(*JOINED), 3) == ()
    # The source is read as it was before the layer: in one layer nothing passes on.
    assert fetches(circuit_of("L0.H0 s4<-s6", "L0.H0 s0<-s4"), 1) == (Fetch(first, 4, (2,), ()),)
