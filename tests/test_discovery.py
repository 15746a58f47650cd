import itertools

import pytest

from retrieval_interp.circuits.circuit import Circuit, Head, RolePath
from retrieval_interp.circuits.discovery.candidates import propose
from retrieval_interp.circuits.discovery.changes import Add, changed
from retrieval_interp.circuits.discovery.search import Search, discover
from retrieval_interp.circuits.discovery.watch import SearchStopped
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM, along
from retrieval_interp.circuits.notation import parse_head_path
from retrieval_interp.circuits.runs.losses import mean_loss, standard_error
from retrieval_interp.circuits.scores.circuit_score import score_circuit
from retrieval_interp.circuits.scores.scorer import Scorer, is_unlearned
from retrieval_interp.storage.checkpoint import load_checkpoint
from retrieval_interp.tasks import InputError, RetrievalTask, Task
from retrieval_interp.training.model import ModelConfig, build_model
from tests.test_scoring import naive_mse


def test_proposals_follow_the_attention():
    import torch

    attention = torch.tensor([[0.1, 0.2, 0.7], [0.0, 1.0, 0.0], [0.0, 0.45, 0.55]])
    assert str(propose(attention, "one-hot", 0.4)) == "one-hot s0<-s2 s1<-s1 s2<-s2"
    assert str(propose(attention, "shared", 0.4)) == "shared s0<-s2 s1<-s1 s2<-s1 s2<-s2"
    assert str(propose(attention, "one-hot", 0.6)) == "one-hot s0<-s2 s1<-s1"


def test_shared_with_one_source_a_role_is_one_hot():
    assert along((RolePath(0, 2), RolePath(4, 3))).kind == "one-hot"
    assert along((RolePath(0, 2), RolePath(0, 3))).kind == "shared"


def test_one_chain_is_unlearned_only_when_nothing_is_known():
    one = RetrievalTask(chains=1)
    assert is_unlearned(1.0, one) and not is_unlearned(0.01, one)
    four = RetrievalTask()
    assert is_unlearned(0.75, four) and not is_unlearned(0.6, four)


@pytest.fixture(scope="module")
def small():
    return load_checkpoint("small")


@pytest.mark.slow
def test_the_search_is_deterministic_and_leaves_the_model_alone(small):
    before = {name: p.clone() for name, p in small.model.named_parameters()}
    first = discover(small.model, small.task, examples=64, restarts=2)
    assert discover(small.model, small.task, examples=64, restarts=2) == first
    assert all((p == before[name]).all() for name, p in small.model.named_parameters())
    assert not any(point.has_hooks() for point in small.model.hook_dict.values())


@pytest.mark.slow
def test_other_examples_name_the_same_paths(small):
    circuits = [discover(small.model, small.task, None, 256, seed, 1) for seed in (0, 1)]
    assert list(circuits[0].paths()) == list(circuits[1].paths())


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
def test_no_two_changes_make_a_found_circuit_cheaper(small, shared):
    """Tried one by one and two by two, apart from the search."""
    found = discover(small.model, small.task, examples=64, restarts=1, shared=shared)
    scorer = Scorer(small.model, small.task, small.task.sample(64, split="discovery"))
    circuit = Circuit(found.mechanisms, found.n_roles, found.task)

    def holds(trial):
        losses = scorer.losses(trial)
        return mean_loss(losses) + 2 * standard_error(losses.mean(dim=1)) < 0.05

    def simpler(trial):
        useful = [head for head, mechanism in trial.mechanisms.items() if mechanism.paths]
        yield from (trial.without(path) for path in trial.paths())
        yield from (trial.replace(head, idle) for head in useful for idle in (UNIFORM, IDENTITY))

    assert holds(circuit)
    once = list(simpler(circuit))
    twice = list(itertools.chain.from_iterable(map(simpler, once)))
    assert len(twice) > 50 and not any(map(holds, [*once, *twice]))


@pytest.mark.slow
def test_a_search_ends_when_there_is_no_other_start(small):
    """However many were asked for; few circuits differ in two heads."""
    heads = [Head(1, 0), Head(3, 0)]
    found = discover(small.model, small.task, examples=16, restarts=20, heads=heads)
    assert discover(small.model, small.task, examples=16, restarts=10**15, heads=heads) == found


@pytest.mark.slow
def test_a_single_path_too_many_is_noticed_at_the_end(small):
    """Also where no two changes together hold."""
    found = discover(small.model, small.task, examples=64, restarts=1)
    circuit = Circuit(found.mechanisms, found.n_roles, found.task)
    spare = changed(circuit, [Add(parse_head_path("L2.H0 s6<-s6", 7))])
    batch = small.task.sample(64, split="discovery")
    search = Search(small.model, small.task, batch, None)
    assert search.steps.one_or_two_less(circuit) is None
    less = search.steps.one_or_two_less(spare)
    assert less is not None and search.space.simplicity(less) == search.space.simplicity(circuit)


class Silent(Task):
    """The task of another, which names neither a plateau nor a tolerance."""

    def __init__(self, task):
        self.task = task

    role_names = property(lambda self: self.task.role_names)

    def sample(self, *arguments, **more):
        return self.task.sample(*arguments, **more)

    def example_losses(self, outputs, batch):
        return self.task.example_losses(outputs, batch)


@pytest.mark.slow
def test_without_a_tolerance_95_percent_of_what_was_learned_is_kept(small):
    task = Silent(small.task)
    batch = task.sample(64, split="test")
    circuit = discover(small.model, task, examples=64, restarts=1)
    score = score_circuit(small.model, task, circuit, batch, controls=0)
    blind = Circuit({Head(layer, 0): UNIFORM for layer in range(5)}, 7)
    uninformed, intact, combined = (
        naive_mse(small.model, small.task, each, batch) for each in (blind, Circuit({}, 7), circuit)
    )
    assert score.uninformed_loss == pytest.approx(uninformed, abs=1e-5)
    expected = uninformed - 0.95 * (uninformed - intact)
    assert score.tolerance == pytest.approx(expected, abs=1e-5)
    share = (uninformed - combined) / (uninformed - intact)
    assert score.kept == pytest.approx(share, abs=1e-5)
    assert score.sufficient and score.kept > 0.95


@pytest.mark.slow
def test_what_is_worse_than_knowing_nothing_is_no_circuit(small):
    """However large the tolerance is."""
    found = discover(small.model, small.task, tolerance=10.0, examples=64, restarts=1)
    batch = small.task.sample(64, split="test")
    assert naive_mse(small.model, small.task, found, batch) < 0.75
    nowhere = Circuit({Head(layer, 0): UNIFORM for layer in range(5)}, 7)
    score = score_circuit(small.model, small.task, nowhere, batch, 10.0, controls=0)
    assert score.combined_loss > 0.75 and not score.sufficient and score.kept < 0


def test_a_model_that_knows_nothing_has_no_circuit():
    task = Silent(RetrievalTask(chains=3, steps=2, dim=4))
    model = build_model(ModelConfig(layers=2, heads=1, d_model=16), task.task)
    for parameter in model.parameters():
        parameter.data.zero_()
    assert not discover(model, task, examples=16, restarts=1).mechanisms


@pytest.mark.slow
def test_a_search_out_of_time_gives_its_best_so_far(small, monkeypatch):
    """Time counted in looks at parts of the examples, of which a whole search takes 2,000."""
    looks = itertools.count()
    monkeypatch.setattr("retrieval_interp.circuits.discovery.search.monotonic", lambda: next(looks))
    ranks, cut_short, enabling = [], [], []
    for time in (2.0, 300.0, 750.0):
        with pytest.warns(SearchStopped) as told:
            found = discover(small.model, small.task, examples=64, restarts=1, time=time)
        assert "a simpler circuit may exist" in str(told[0].message)
        cut_short.append("the intact model may need more" in str(told[-1].message))
        assert found.unfinished == "; ".join(str(one.message) for one in told)
        enabling.append(len(found.enabling))
        search = Search(small.model, small.task, small.task.sample(64, split="discovery"), None)
        ranks.append(search.steps.rank(found))
        assert not any(point.has_hooks() for point in small.model.hook_dict.values())
    unlimited = discover(small.model, small.task, examples=64, restarts=1, time=1e9)
    assert unlimited.unfinished == ""
    assert ranks == sorted(ranks, reverse=True) and ranks[-1] >= search.steps.rank(unlimited)
    assert cut_short == [True, True, False] and enabling[0] == 0 < enabling[-1]
    assert search.judge.holds(found) and any(found.paths())


@pytest.mark.parametrize("time", [0.0, -1.0, float("nan")])
def test_no_time_is_refused(small, time):
    with pytest.raises(InputError, match="time: expected more than 0"):
        discover(small.model, small.task, time=time)


@pytest.mark.parametrize("place", [1, 3, 40])
def test_an_interrupt_leaves_nothing_on_the_model(small, monkeypatch, place):
    """The model as HookRuns see it, with hooks on it in every run and estimate."""
    learnable = [parameter.requires_grad for parameter in small.model.parameters()]
    attended, runs = itertools.count(1), "blocks.2.attn.hook_pattern"

    def interrupt(pattern, hook):
        if next(attended) == place:
            raise KeyboardInterrupt

    with small.model.hooks(fwd_hooks=[(runs, interrupt)]):
        before = {name: len(p.fwd_hooks) for name, p in small.model.hook_dict.items()}
        with pytest.raises(KeyboardInterrupt):
            discover(small.model, small.task, examples=16, restarts=1)
        assert before == {name: len(p.fwd_hooks) for name, p in small.model.hook_dict.items()}
    assert learnable == [parameter.requires_grad for parameter in small.model.parameters()]
    assert all(parameter.grad is None for parameter in small.model.parameters())
