"""Repeated tokens and k-hop induction: recomputed by naive loops over the tokens alone."""

import itertools
from importlib.resources import files

import pytest
import torch
import torch.nn.functional as F

import retrieval_interp as ri
from retrieval_interp.model import ModelConfig, build_model
from retrieval_interp.tasks import KHopTask, RepeatedTokensTask
from retrieval_interp.tasks.structured import from_data

TASKS = [
    RepeatedTokensTask(),
    RepeatedTokensTask(length=5, alphabet=5, rotate=False),
    KHopTask(),
    KHopTask(hops=1, alphabet=3),
    KHopTask(hops=4, alphabet=5, curriculum=False),
]
each_task = pytest.mark.parametrize("task", TASKS, ids=str)


def find(tokens, i):
    """max {j <= i : X_{j-1} = X_i}, or None; the begin token, at 0, is no X."""
    found = [j for j in range(2, i + 1) if tokens[j - 1] == tokens[i]]
    return max(found, default=None)


def expected(task, tokens):
    """Roles and answers of every chain, in order."""
    chains = []
    for place in range(1, len(tokens)):
        if isinstance(task, KHopTask):
            if place < len(tokens) - task.alphabet:
                continue
            roles, answers = [place], []
            for _ in range(task.hops):
                following = find(tokens, roles[-1])
                assert following is not None
                roles += [following - 1, following]
                answers.append(tokens[following])
            if not task.curriculum:
                answers = answers[-1:]
        else:
            repeated = isinstance(task, RepeatedTokensTask)
            context = 1 + (task.length if repeated else 2 * tasks)
            earlier = tokens[:context].index(tokens[place])
            if place < context or earlier == context - 1:
                continue
            roles, answers = [place, earlier, earlier + 1], [tokens[earlier + 1]]
        chains.append((roles, answers))
    return chains


@each_task
def test_roles_and_answers_are_what_a_loop_finds(task):
    batch = task.sample(50, seed=3, split="test")
    assert batch.inputs.shape == (50, task.n_positions)
    for example, tokens in enumerate(batch.inputs.tolist()):
        assert tokens[0] == task.d_in - 1 and task.vocabulary[tokens[0]] == "<s>"
        chains = expected(task, tokens)
        assert batch.roles[example].tolist() == [roles for roles, _ in chains]
        targets = batch.targets[example].reshape(len(chains), -1).tolist()
        assert targets == [answers for _, answers in chains]


@each_task
def test_sequences_are_as_documented(task):
    batch = task.sample(200, seed=1)
    for tokens in batch.inputs[:, 1:].tolist():
        if isinstance(task, RepeatedTokensTask):
            first, second = tokens[: task.length], tokens[task.length :]
            turn = first.index(second[0])
            assert second == first[turn:] + first[:turn] and len(set(first)) == task.length
            assert task.rotate or turn == 0
        elif isinstance(task, KHopTask):
            for start in range(0, len(tokens), task.alphabet):
                assert sorted(tokens[start : start + task.alphabet]) == [*range(task.alphabet)]
            assert all(a != b for a, b in itertools.pairwise(tokens))
    # Every token occurs, and second copies begin everywhere.
    assert len(batch.inputs.unique()) == task.d_in
    if isinstance(task, RepeatedTokensTask) and task.rotate:
        turns = (
            batch.inputs[:, 1 : 1 + task.length] == batch.inputs[:, [1 + task.length]]
        ).nonzero()
        assert len(turns[:, 1].unique()) == task.length


@each_task
def test_losses_equal_a_loop(task):
    batch, n = task.sample(6), len(task.asked)
    outputs = torch.randn(6, task.n_positions, task.d_out, generator=torch.manual_seed(0))
    losses, right, differences = (torch.zeros(6, n) for _ in range(3))
    for example, tokens in enumerate(batch.inputs.tolist()):
        chains = expected(task, tokens)
        for roles, answers in chains:
            by_hop = outputs[example, roles[0]].split(task.candidates)
            for column, (scores, answer) in enumerate(zip(by_hop, answers)):
                loss = F.cross_entropy(scores, torch.tensor(answer))
                losses[example, column] += loss / len(chains)
                right[example, column] += float(int(scores.argmax()) == answer) / len(chains)
                others = (scores.sum() - scores[answer]) / (task.candidates - 1)
                differences[example, column] += (scores[answer] - others) / len(chains)
    torch.testing.assert_close(task.example_losses(outputs, batch), losses)
    torch.testing.assert_close(task.accuracies(outputs, batch), right.mean(0))
    torch.testing.assert_close(task.logit_differences(outputs, batch), differences)
    few = outputs[torch.arange(6)[:, None], batch.roles[:, :, 0]]
    torch.testing.assert_close(task.example_losses(few, batch), losses)


def test_names_of_roles():
    task = KHopTask(hops=2)
    assert task.role_labels == ("query A", "A of A->B", "B of A->B", "B of B->C", "C of B->C")
    assert task.role_symbols == ("A?", "A", "B", "B", "C")
    assert task.path_label(2, 1) == "B <- A of A->B" and task.asked == ("x_1", "x_2")
    assert KHopTask(hops=2, curriculum=False).asked == ("x_2",)
    assert RepeatedTokensTask().path_label(2, 1) == "B after it <- first A"


def test_paths_that_are_forbidden_in_some_examples_are_not_proposed():
    """s1 and s4 of a k-hop chain can be one position, so that s4<-s1 has attention."""
    task = KHopTask(hops=2, alphabet=4)
    model = build_model(ModelConfig(layers=1, heads=1, d_model=8, mlp=False), task).eval()
    batch = task.sample(64)
    assert ri.mean_attention(model, batch)[0, 0, 4, 1] > 0.005
    bench = ri.open(model, task, examples=64)
    assert bench.intact_attention[0, 0, 4, 1] == 0 and bench.intact_attention[0, 0, 2, 1] > 0
    bench.suppose("L0.H0 role-mean")
    bench.discover()


@pytest.mark.parametrize(
    "name", ["repeated", "k-hop", pytest.param("k-hop-7", marks=pytest.mark.slow)]
)
def test_shipped_models_are_their_presets_and_their_circuits_are_known(name):
    checkpoint = ri.load_checkpoint(name)
    assert from_data(ri.Recipe, checkpoint.training["recipe"], name) == ri.PRESETS[name]
    model, task = checkpoint.model, checkpoint.task
    batch = task.sample(64, split="test")
    with torch.no_grad():
        assert task.accuracies(model(batch.inputs), batch).min() > 0.999
    path = files("retrieval_interp") / "results" / f"{name}.circuit.json"
    circuit = ri.Circuit.from_json(path.read_text(), len(task.role_names))
    score = ri.score_circuit(model, task, circuit, batch, controls=0)
    assert score.combined_loss < task.tolerance
    rest = ([0, 1, 2, 3], [0, 1, 2], [0, 3])  # by layer, of k-hop-7
    lines = {
        "repeated": ["L0.H0 uniform", "L1.H0 one-hot s0<-s2"],
        "k-hop": [
            "L0.H0 uniform",
            "L1.H0 one-hot s4<-s6",
            "L2.H0 one-hot s0<-s2 s2<-s4",
            "L3.H0 one-hot s0<-s2",
        ],
        # Hops by one in layer 1, by two in layer 2, by four in layer 3.
        "k-hop-7": [
            *(f"L{layer}.H{head} uniform" for layer, heads in enumerate(rest) for head in heads),
            "L1.H3 one-hot s4<-s6 s6<-s8 s8<-s10 s10<-s12 s12<-s14",
            "L2.H1 one-hot s0<-s4 s4<-s8 s6<-s10 s8<-s12",
            "L2.H2 one-hot s2<-s4 s4<-s6",
            "L3.H0 one-hot s0<-s2",
            "L3.H1 one-hot s0<-s8",
            "L3.H2 one-hot s0<-s4",
            "L3.H3 one-hot s0<-s6",
        ],
    }
    assert circuit.mechanisms == ri.parse_circuit(lines[name], task).mechanisms


def test_a_previous_token_head_enables_the_induction_head():
    """What Olsson et al. (2022) describe, found by the search and measured by key."""
    repeated = ri.load_checkpoint("repeated")
    found = ri.discover(repeated.model, repeated.task, examples=32)
    assert [str(path) for path in found.paths()] == ["L1.H0 s0<-s2"]
    batch = repeated.task.sample(32, split="test")
    cut, later = (ri.parse_head_path(text, 3) for text in ("L0.H0 s2<-s1", "L1.H0 s0<-s2"))
    (enabled,) = ri.enabled_by(repeated.model, batch, [cut], [later])[cut]
    assert enabled.side == "key" and enabled.attention > 0.9 and enabled.when_cut < 0.1
