"""Paths that are needed, alone, as one of several or as such; circuits that do as well."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import retrieval_interp as ri
from examples.reach_the_bound import compile_circuit, doubling_heads, split
from retrieval_interp.circuits.circuit import Circuit, circuit_diff
from retrieval_interp.circuits.discovery.needed import minimal_sets
from retrieval_interp.circuits.discovery.search import _CONFIRMING, Search, SearchOptions
from retrieval_interp.circuits.losses import Scorer, standard_error
from retrieval_interp.circuits.mechanisms import IDENTITY, Cut, OneHot
from retrieval_interp.circuits.paths import Head, HeadPath, RolePath
from tests.built_by_hand import LastMark, Star, built, finds_the_star, passing_model
from tests.naive import naive_loss

TOLERANCE = 0.05 / 8  # for symbols of variance 1/8


@given(st.lists(st.sets(st.integers(0, 9), min_size=1, max_size=4), max_size=4))
def test_all_minimal_sets_are_found(sets):
    def breaks(lost):
        return any(each <= set(lost) for each in sets)

    found = minimal_sets(range(10), breaks, max_nodes=1000)
    smallest = {frozenset(each) for each in sets if not any(other < each for other in sets)}
    assert {frozenset(each) for each in found} == smallest and len(found) == len(smallest)


@pytest.mark.parametrize("scales", [(1.5, 1.5, 1.5, 1.5), (4.0, 1.5, 1.5)])
def test_sets_equal_those_of_all_subsets_run_by_hooks(scales):
    """Heads that add up: any three of four are enough; or the first, and one of the others."""
    task, path = Star(), RolePath(0, 2)
    heads = [HeadPath(Head(0, number), path) for number in range(len(scales))]
    model = built(7, [finds_the_star(30.0, scale) for scale in scales])
    batch = task.sample(64, split="test")

    def loss(*cut):
        return naive_loss(model, task, Circuit({head: Cut((path,)) for head, _ in cut}, 3), batch)

    tolerance = (loss(heads[-1]) + loss(*heads[-2:])) / 2
    subsets = [s for size in range(1, 5) for s in itertools.combinations(heads, size)]
    breaking = [set(subset) for subset in subsets if loss(*subset) > tolerance]
    minimal = [tuple(sorted(s)) for s in breaking if not any(other < s for other in breaking)]
    found = ri.needed_paths(model, task, tolerance, 64)
    assert sorted(found) == sorted(minimal) and len(minimal) == (6 if len(scales) == 4 else 2)


def test_sets_that_overlap_are_told_together():
    paths = [ri.HeadPath(ri.Head(0, head), ri.RolePath(1, 0)) for head in range(4)]
    pairs = tuple(itertools.combinations(paths, 2))
    every, some, single = (Circuit({}, 3, redundant=pairs[:n]) for n in (6, 2, 1))
    assert "any 3 of L0.H0, L0.H1, L0.H2, L0.H3 suffice" in repr(every)
    assert "one of L0.H0, L0.H1 is needed for" in repr(some)
    said = "any one of L0.H0, L0.H1 suffices for s1<-s0"
    assert said in repr(single) and f"redundant: + {said}" in circuit_diff(Circuit({}, 3), single)
    assert Circuit.from_json(every.to_json(), 3) == every


def test_the_score_of_redundant_paths_is_that_of_plain_runs():
    """Two heads of the first layer share the pair rule; half a query finds the same key."""
    task = ri.RetrievalTask(steps=3, dim=8, tokens="unit")
    first, *others = doubling_heads(task, "point")
    built = compile_circuit([*split(first, [1]), *others], task)
    circuit = ri.discover(built.model, task, tolerance=TOLERANCE, examples=16)
    batch = task.sample(64, split="test")
    score = ri.score_circuit(built.model, task, circuit, batch, TOLERANCE, controls=0)
    assert not circuit.enabling
    assert {*itertools.chain(*circuit.redundant)} == built.enabling - built.carrying
    assert len(score.redundant) == len(circuit.redundant) > 0
    for row in score.redundant:
        cuts = (row.paths, row.paths[1:], row.paths[:1])
        for cut, measured in zip(cuts, (row.live_loss, *row.left_losses)):
            zeros = Circuit({path.head: Cut((path.path,)) for path in cut}, circuit.n_roles)
            expected = naive_loss(built.model, task, zeros, batch)
            assert measured == pytest.approx(expected, abs=1e-6)
        assert row.one_suffices and row.needed and all(row.suffice)
        assert min(row.left_losses) < row.live_loss
        if row.paths[0].path == RolePath(0, 1):  # what the query needs to find s2
            later = {HeadPath(Head(1, 0), RolePath(0, 2)), HeadPath(Head(2, 0), RolePath(0, 4))}
            assert {enabled.path for enabled in row.enables} == later
            assert row.enables[0].side == "query" and row.enables[0].attention > 0.99


def test_a_model_that_misses_the_tolerance_blames_no_path(small):
    assert ri.needed_paths(small.model, small.task, 1e-4, 64) == []


def test_what_only_hands_on_is_needed_as_such():
    model, task = passing_model(), LastMark()
    circuit, batch = ri.discover(model, task, examples=32), task.sample(64, split="test")
    score = ri.score_circuit(model, task, circuit, batch, controls=0)
    copies = HeadPath(Head(1, 0), RolePath(0, 1))
    assert circuit[0, 0] == IDENTITY and list(circuit.paths()) == [copies]
    passes, marks = HeadPath(Head(0, 0), RolePath(1, 1)), HeadPath(Head(0, 1), RolePath(1, 2))
    assert circuit.enabling == (passes, marks)  # the intact model needs both
    combined = naive_loss(model, task, circuit, batch)
    assert score.combined_loss == pytest.approx(combined, abs=1e-6)
    losses = {row.head: row.zero_ablated.mean for row in score.heads}
    for head in (Head(0, 0), Head(0, 1)):
        emptied = naive_loss(model, task, circuit.replace(head, OneHot(())), batch)
        assert losses[head] == pytest.approx(emptied, abs=1e-6)
    assert losses[0, 0] > 1.3 > score.limit > losses[0, 1]
    assert score.rest_zero_ablated_loss == pytest.approx(losses[0, 1], abs=1e-6)
    (row,) = score.needed_as_such
    (copied,) = row.enables
    assert row.head == (0, 0) and (copied.path, copied.side) == (copies, "value")
    assert copied.attention == copied.when_cut > 0.95 and copied.by_value == pytest.approx(0.0)


@pytest.mark.slow
def test_every_path_that_can_be_exchanged_for_another_is_found(small):
    model, task = small.model, small.task
    lines = ["L0.H0 one-hot s0<-s0 s2<-s2 s4<-s3 s6<-s6", "L1.H0 identity"]
    lines += ["L2.H0 one-hot s0<-s2 s4<-s6", "L3.H0 uniform", "L4.H0 one-hot s0<-s4"]
    given = ri.parse_circuit(lines, task)
    several = ri.alternatives(model, task, given, examples=64, time=3600.0)
    batches = [task.sample(64, seed, split="discovery") for seed in (0, _CONFIRMING)]
    scorers = [Scorer(model, task, batch) for batch in batches]

    def holds(circuit):
        each = [scorer.losses_by_example(circuit) for scorer in scorers]
        return all(float(e.mean()) + 2 * standard_error(e) < task.tolerance for e in each)

    space = Search(model, task, SearchOptions(examples=64, shared=False)).space
    cost = space.cost(given)
    exchanged = [
        given.without(path).replace(head, given.without(path)[head].adding(new))
        for path in given.paths()
        for head, attended in space.attended.items()
        for new in attended
    ]
    right = {c for c in exchanged if c != given and space.cost(c) == cost and holds(c)}
    found = {frozenset(circuit.paths()) for circuit in several.circuits}
    assert several.complete and right and {frozenset(c.paths()) for c in right} <= found
    assert len(found) == len(several.circuits) and all(map(holds, several.circuits))
    assert {space.cost(circuit) for circuit in several.circuits} == {cost}
    one, other = several.exchanges[0]
    assert any({one} == a - b and {other} == b - a for a in found for b in found)
    assert several.text(task).startswith(f"{len(found)} circuits of this cost hold. All of them")
