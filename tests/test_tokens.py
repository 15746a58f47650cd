"""Repeated tokens, k-hop induction and recall: recomputed by naive loops over the tokens alone."""

import math
from importlib.resources import files

import pytest
import torch
import torch.nn.functional as F

import retrieval_interp as ri
from retrieval_interp.tasks import InputError, KHopTask, RecallTask, RepeatedTokensTask
from retrieval_interp.tasks.structured import from_data
from retrieval_interp.tasks.trained import TrainedTask
from retrieval_interp.training.model import ModelConfig, build_model

TASKS = [
    RepeatedTokensTask(),
    RepeatedTokensTask(length=5, alphabet=5, rotate=False),
    KHopTask(),
    KHopTask(hops=1, alphabet=3),
    KHopTask(hops=4, alphabet=5, curriculum=False),
    RecallTask(),
    RecallTask(pairs=3, keys=3, values=4),
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
            assert all(a != b for a, b in itertoolswise(tokens))
        else:
            keys, values = tokens[: 2 * tasks : 2], tokens[1 : 2 * tasks : 2]
            assert sorted(tokens[2 * tasks :]) == sorted(keys)
            assert len(set(keys)) == len(set(values)) == tasks
            assert min(keys) >= task.values > max(values)
    # Every token occurs, and second copies begin everywhere.
    assert len(batch.inputs.unique()) == task.d_in
    if isinstance(task, RepeatedTokensTask) and task.rotate:
        turns = (
            batch.inputs[:, 1 : 1 + task.length] == batch.inputs[:, [1 + task.length]]
        ).nonzero()
        assert len(turns[:, 1].unique()) == task.length


@each_task
def test_splits_share_no_example_and_examples_depend_on_their_number_alone(task):
    if task.n_positions > 20:
        drawn = {s: task.sample(200, split=s).inputs for s in ("train", "validation", "test")}
        rows = [tuple(row) for inputs in drawn.values() for row in inputs.tolist()]
        assert len(set(rows)) == 600
    batch = task.sample(10, seed=4)
    for index in range(10):
        alone = task.sample(1, seed=4, start=index)
        for name in ("inputs", "targets", "roles"):
            assert torch.equal(getattr(alone, name)[0], getattr(batch, name)[index])


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


@each_task
def test_guessing_is_the_plateau(task):
    batch = task.sample(4)
    outputs = torch.zeros(4, task.n_positions, task.d_out)
    assert float(task.loss(outputs, batch)) == pytest.approx(task.plateau)
    assert task.plateau == pytest.approx(math.log(task.candidates))
    assert task.tolerance == pytest.approx(0.05 * task.plateau)


@each_task
def test_every_role_and_token_has_a_name(task):
    n_roles = len(task.role_names)
    assert len(task.role_labels) == len(task.role_symbols) == n_roles
    batch = task.sample(1)
    assert batch.roles.shape[-1] == n_roles
    labels = task.position_labels(batch, 0)
    assert [task.vocabulary.index(label) for label in labels] == batch.inputs[0].tolist()
    assert len(set(task.vocabulary)) == task.d_in


def test_names_of_roles():
    task = KHopTask(hops=2)
    assert task.role_labels == ("query A", "A of A->B", "B of A->B", "B of B->C", "C of B->C")
    assert task.role_symbols == ("A?", "A", "B", "B", "C")
    assert task.path_label(2, 1) == "B <- A of A->B" and task.asked == ("x_1", "x_2")
    assert KHopTask(hops=2, curriculum=False).asked == ("x_2",)
    assert RecallTask().path_label(0, 2) == "query key <- its value"
    assert RepeatedTokensTask().path_label(2, 1) == "B after it <- first A"


@each_task
def test_a_model_with_its_task_survives_a_checkpoint(task, tmp_path):
    sizes = ModelConfig(layers=1, heads=2, d_model=8, mlp=False)
    model = build_model(sizes, task).eval()
    ri.save_checkpoint(tmp_path / "x.safetensors", model, task, sizes, {})
    loaded = ri.load_checkpoint(tmp_path / "x.safetensors")
    assert loaded.task == task and loaded.task.to_dict() == task.to_dict()
    tokens = task.sample(2).inputs
    with torch.no_grad():
        assert torch.equal(loaded.model(tokens), model(tokens))
    words = loaded.model.tokenizer.convert_ids_to_tokens(tokens[0].tolist())
    assert words == task.position_labels(task.sample(2), 0)


def read(name, **fields):
    return from_data(TrainedTask, {"name": name, **fields}, "task")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: RepeatedTokensTask(length=1), "length to be an integer of at least 2, found 1"),
        (lambda: RepeatedTokensTask(length=9, alphabet=8), "at least length = 9 .*, found 8"),
        (lambda: RepeatedTokensTask(5000, 5000), "at most 8192 tokens, found 10001"),
        (lambda: RepeatedTokensTask(alphabet=65536), "at most 65536 words, found 65537"),
        (lambda: KHopTask(hops=0), "hops to be an integer of at least 1, found 0"),
        (lambda: KHopTask(alphabet=2), "alphabet to be an integer of at least 3, found 2"),
        (lambda: KHopTask(hops=2**20), "at most 8192 tokens"),
        (lambda: RecallTask(pairs=0), "pairs to be an integer of at least 1, found 0"),
        (lambda: RecallTask(pairs=40), "keys of at least pairs = 40 .*, found 32"),
        (lambda: RecallTask(pairs=9, values=8), "values of at least pairs = 9 .*, found 8"),
        (lambda: RecallTask(keys=True), "keys to be an integer of at least 2, found True"),
        (lambda: read("k-hop", curriculum="no"), "curriculum: expected true or false, found 'no'"),
        (lambda: read("recall", hops=1), "expected the keys pairs, keys, values, found 'hops'"),
    ],
)
def test_bad_parameters_are_refused(make, text):
    with pytest.raises(InputError, match=text):
        make()


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


def test_every_head_of_k_hop_takes_one_hop():
    k_hop = ri.load_checkpoint("k-hop")
    batch = k_hop.task.sample(64, split="test")
    attention = ri.mean_attention(k_hop.model, batch)[:, 0]
    assert attention[0, [2, 4, 6], [1, 3, 5]].min() > 0.5  # the previous token
    for layer, paths in ((1, ["s0<-s2", "s2<-s4", "s4<-s6"]), (2, ["s0<-s2", "s2<-s4"])):
        for path in paths:
            assert attention[layer][ri.RolePath.parse(path, 7)] > 0.7
