"""Paths that a model needs, alone or as one of several, against enumeration and known models."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import retrieval_interp as ri
from examples.reach_the_bound import compile_circuit, doubling_heads, split
from retrieval_interp.circuits.circuit import Circuit, Head, HeadPath, RolePath, circuit_diff
from retrieval_interp.circuits.discovery.needed import minimal_sets
from retrieval_interp.circuits.hooks import ablated
from retrieval_interp.circuits.losses import Scorer
from retrieval_interp.circuits.mechanisms import Cut
from retrieval_interp.tasks import RetrievalTask
from tests.built_by_hand import Star, built, finds_the_star
from tests.oracles import naive_mse

TOLERANCE = 0.05 / 8  # for symbols of variance 1/8


@given(st.lists(st.sets(st.integers(0, 9), min_size=1, max_size=4), max_size=4))
def test_all_minimal_sets_are_found(sets):
    def breaks(lost):
        return any(each <= set(lost) for each in sets)

    found = minimal_sets(range(10), breaks, most=1000)
    smallest = {frozenset(each) for each in sets if not any(other < each for other in sets)}
    assert {frozenset(each) for each in found} == smallest and len(found) == len(smallest)


def test_sets_that_overlap_say_how_many_heads_suffice():
    """Four heads add up: any three are enough and no two, as enumeration says."""
    task, path = Star(), RolePath(0, 2)
    heads = [HeadPath(Head(0, head), path) for head in range(4)]
    model = built(7, [finds_the_star(30.0, 1.5)] * 4)
    batch = task.sample(64, split="test")
    scorer = Scorer(model, task, batch)
    lost = [scorer.loss(scorer.empty_circuit.cut(*heads[:count])) for count in range(4)]
    tolerance = (lost[1] + lost[2]) / 2
    found = ri.needed_paths(model, task, tolerance, 64)
    assert sorted(found) == list(itertools.combinations(heads, 2))
    circuit = Circuit({}, 3, redundant=tuple(found), role_names=task.role_names)
    all_heads = "L0.H0, L0.H1, L0.H2, L0.H3"
    assert repr(circuit) == f"any 3 of {all_heads} suffice for END<-star"
    some = Circuit({}, 3, redundant=tuple(found[:2]), role_names=task.role_names)
    assert "one of L0.H2, L0.H3 is needed for END<-star" in repr(some)


def duplicated(copies, pairing="point"):
    """A model whose pair rule is shared by some heads of the first layer.

    They write the encoding that the query of later heads holds, and half a query finds the same
    key. If they join pairs instead, half a key loses to a rival of full length.
    """
    task = RetrievalTask(steps=3, dim=8, tokens="unit")
    first, *others = doubling_heads(task, pairing)
    return compile_circuit([*split(first, range(1, copies)), *others], task)


@pytest.mark.slow
@pytest.mark.parametrize("pairing", ["join", "point"])
def test_sets_equal_those_of_all_subsets_run_by_hooks(pairing):
    """Every subset of three heads cut with plain hooks on the pattern, none of our runs."""
    built = duplicated(3, pairing)
    model, task = built.model, built.task
    batch = task.sample(64, split="discovery")

    def loss(cut):
        zeros = Circuit({path.head: Cut((path.path,)) for path in cut}, 7)
        return naive_mse(model, task, zeros, batch)

    found = set(ri.needed_paths(model, task, TOLERANCE, 64))
    for role_path in {path.path for path in built.enabling | built.carrying}:
        heads = [Head(layer, head) for layer in range(3) for head in range(3)]
        mean = ri.mean_attention(model, batch)
        present = [HeadPath(head, role_path) for head in heads if mean[head][role_path] >= 0.05]
        breaking = [
            set(cut)
            for size in range(1, len(present) + 1)
            for cut in itertools.combinations(present, size)
            if loss(cut) > TOLERANCE
        ]
        minimal = {
            tuple(sorted(cut)) for cut in breaking if not any(other < cut for other in breaking)
        }
        assert minimal == {paths for paths in found if paths[0].path == role_path}


@pytest.fixture(scope="module")
def halved():
    built = duplicated(2)
    circuit = ri.discover(built.model, built.task, tolerance=TOLERANCE, examples=16)
    batch = built.task.sample(64, split="test")
    score = ri.score_circuit(built.model, built.task, circuit, batch, TOLERANCE, controls=0)
    return built, circuit, score


def test_the_score_of_redundant_paths_is_that_of_plain_runs(halved):
    built, circuit, score = halved
    batch = built.task.sample(64, split="test")
    assert not circuit.enabling
    assert {*itertools.chain(*circuit.redundant)} == built.enabling - built.carrying
    assert len(score.redundant) == len(circuit.redundant) > 0
    for row in score.redundant:
        measured_by_cut = {
            row.paths: row.live_loss,
            row.paths[1:]: row.left_losses[0],
            row.paths[:1]: row.left_losses[1],
        }
        for cut, measured in measured_by_cut.items():
            lost = Circuit({}, circuit.n_roles).cut(*cut)
            with ablated(built.model, lost, batch), torch.no_grad():
                expected = float(built.task.loss(built.model(batch.inputs), batch))
            assert measured == pytest.approx(expected, abs=1e-6)
        assert row.one_suffices and row.needed and all(row.suffice)
        least, most = min(row.left_losses), row.live_loss
        assert 0 <= least < most
        if row.paths[0].path == RolePath(0, 1):  # what the query needs to find s2
            later = {HeadPath(Head(1, 0), RolePath(0, 2)), HeadPath(Head(2, 0), RolePath(0, 4))}
            assert {enabled.path for enabled in row.enables} == later
            assert row.enables[0].side == "query" and row.enables[0].attention > 0.99


def test_a_circuit_file_keeps_redundant_paths(halved):
    _, circuit, _ = halved
    assert Circuit.from_json(circuit.to_json(), circuit.n_roles) == circuit
    without = Circuit(circuit.mechanisms, circuit.n_roles, circuit.task)
    said = "any one of L0.H0, L0.H1 suffices for s2<-s3"
    assert said in repr(circuit) and f"redundant: + {said}" in circuit_diff(without, circuit)


def test_a_model_that_misses_the_tolerance_blames_no_path():
    task, small = RetrievalTask(steps=2), ri.load_checkpoint("small")
    unlearned = ri.build_model(ri.ModelConfig(layers=2, heads=1, d_model=16), task)
    with pytest.warns(ri.InputWarning, match="has not learned the task"):
        assert ri.needed_paths(unlearned, task, examples=16) == []
    assert ri.needed_paths(small.model, small.task, 1e-4, 64) == []
