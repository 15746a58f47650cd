import pytest

from circuits.circuit import Head, Mechanism, RolePath, tidy
from circuits.discovery.candidates import propose
from circuits.discovery.search import discover
from circuits.scores.circuit_score import score_circuit
from circuits.scores.scorer import is_unlearned
from retrieval_interp.storage.checkpoint import load_checkpoint
from tasks import RetrievalTask


def test_proposals_follow_the_attention():
    import torch

    attention = torch.tensor([[0.1, 0.2, 0.7], [0.0, 1.0, 0.0], [0.0, 0.45, 0.55]])
    assert str(propose(attention, "one-hot", 0.4)) == "one-hot s0<-s2 s1<-s1 s2<-s2"
    assert str(propose(attention, "shared", 0.4)) == "shared s0<-s2 s1<-s1 s2<-s1 s2<-s2"
    assert str(propose(attention, "one-hot", 0.6)) == "one-hot s0<-s2 s1<-s1"


def test_shared_with_one_source_a_role_is_one_hot():
    assert tidy(Mechanism("shared", (RolePath(0, 2), RolePath(4, 3)))).kind == "one-hot"
    assert tidy(Mechanism("shared", (RolePath(0, 2), RolePath(0, 3)))).kind == "shared"


def test_one_chain_is_unlearned_only_when_nothing_is_known():
    one = RetrievalTask(chains=1)
    assert is_unlearned(1.0, one) and not is_unlearned(0.01, one)
    four = RetrievalTask()
    assert is_unlearned(0.75, four) and not is_unlearned(0.6, four)


@pytest.fixture(scope="module")
def small():
    return load_checkpoint("small")


def test_the_search_is_deterministic_and_leaves_the_model_alone(small):
    before = {name: p.clone() for name, p in small.model.named_parameters()}
    first = discover(small.model, small.task, examples=64, restarts=2)
    assert discover(small.model, small.task, examples=64, restarts=2) == first
    assert all((p == before[name]).all() for name, p in small.model.named_parameters())
    assert not any(point.has_hooks() for point in small.model.hook_dict.values())


def test_other_examples_name_the_same_paths(small):
    circuits = [discover(small.model, small.task, None, 256, seed, 1) for seed in (0, 1)]
    assert list(circuits[0].paths()) == list(circuits[1].paths())


def test_the_circuit_found_holds_on_other_examples(small):
    circuit = discover(small.model, small.task, examples=256, restarts=1)
    batch = small.task.sample(256, seed=7, split="test")
    score = score_circuit(small.model, small.task, circuit, batch, controls=10)
    assert score.sufficient and score.minimal
    assert len(circuit.mechanisms) == 5
    # Three useful heads: the least that D = 3 needs.
    assert sum(bool(mechanism.paths) for mechanism in circuit.mechanisms.values()) == 3


@pytest.mark.slow
def test_without_shared_sources_paths_are_one_hot_alone():
    small = load_checkpoint("small")
    circuit = discover(small.model, small.task, examples=256, restarts=1, shared=False)
    kinds = {mechanism.kind for mechanism in circuit.mechanisms.values()}
    assert len(circuit.mechanisms) == 5 and kinds <= {"one-hot", "uniform", "identity"}
    batch = small.task.sample(256, split="test")
    score = score_circuit(small.model, small.task, circuit, batch, controls=0)
    assert score.sufficient and {Head(2, 0), Head(4, 0)} < {path.head for path in circuit.paths()}
