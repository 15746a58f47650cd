"""Tasks in tokens, solved by loops over the tokens, and models of whole words."""

import itertools
from importlib.resources import files

import pytest
import torch
import torch.nn.functional as F

import retrieval_interp as ri
from retrieval_interp.tasks.structured import from_data
from tests.models import randomize, stock_transformer

IN_LINES = [
    ri.EquationsTask(),
    ri.EquationsTask(3, 4, curriculum=False),
    ri.EquationsTask(2, 1),
]
REPEATED = [ri.RepeatedTokensTask(), ri.RepeatedTokensTask(length=5, alphabet=5, rotate=False)]
HOPS = [
    ri.KHopTask(),
    ri.KHopTask(hops=1, alphabet=3),
    ri.KHopTask(hops=4, alphabet=5, curriculum=False),
]
each_task = pytest.mark.parametrize("task", [*IN_LINES, *REPEATED, *HOPS], ids=str)


def solve_by_matching(task, tokens):
    size = task.candidates
    for place in range(1, len(tokens)):
        roles, earlier = [place], tokens.index(tokens[place])
        if isinstance(task, ri.RepeatedTokensTask) and earlier < task.length < place:
            roles += [earlier, earlier + 1]
        elif isinstance(task, ri.KHopTask) and place >= len(tokens) - size:
            for _ in range(task.hops):  # max {j <= i : X_{j-1} = X_i}; the first token is no X
                i = roles[-1]
                following = max(j for j in range(2, i + 1) if tokens[j - 1] == tokens[i])
                roles += [following - 1, following]
        else:
            continue
        answers = [tokens[at] for at in roles[2::2]][-len(task.asked) :]
        yield roles, [(range(c * size, (c + 1) * size), answer) for c, answer in enumerate(answers)]


def solve_equations(task, tokens):
    unknown = task.vocabulary.index("?")
    lines = {tokens[at]: at for at in range(1, len(tokens), 3) if tokens[at + 2] != unknown}
    chains = []
    for question in (at for at in range(1, len(tokens), 3) if tokens[at + 2] == unknown):
        roles = [question]
        while tokens[roles[-1]] in lines:
            statement = lines[tokens[roles[-1]]]
            roles += [statement, statement + 2]
        chains.append(([*roles, question + 2], [tokens[at] for at in roles[::2]]))
    names = [sorted(column) for column in zip(*(symbols for _, symbols in chains))]
    asked = [int(name.removeprefix("x_")) for name in task.asked]
    for roles, symbols in chains:
        yield roles, [(names[k], names[k].index(symbols[k])) for k in asked]


def chains_of(task, tokens):
    """Of every chain: its roles, and of all that is asked the logits and which of them is right."""
    solver = solve_equations if isinstance(task, ri.EquationsTask) else solve_by_matching
    return list(solver(task, tokens))


@each_task
def test_roles_and_answers_are_what_a_loop_finds(task):
    batch = task.sample(50, seed=3, split="test")
    assert batch.inputs.shape == (50, task.n_positions)
    chains = [chains_of(task, tokens) for tokens in batch.inputs.tolist()]
    assert batch.roles.tolist() == [[roles for roles, _ in example] for example in chains]
    right = [[[right for _, right in asked] for _, asked in example] for example in chains]
    assert task.right(batch).tolist() == right
    assert {task.vocabulary[token] for token in batch.inputs[:, 0]} == {"<s>"}


@each_task
def test_losses_equal_a_loop(task):
    batch, n = task.sample(6), len(task.asked)
    outputs = torch.randn(6, task.n_positions, task.d_out, generator=torch.manual_seed(0))
    losses, right, differences = (torch.zeros(6, n) for _ in range(3))
    (role,) = task.scored_roles
    for example, tokens in enumerate(batch.inputs.tolist()):
        chains = chains_of(task, tokens)
        for roles, asked in chains:
            for column, (places, answer) in enumerate(asked):
                scores = outputs[example, roles[role], list(places)]
                loss = F.cross_entropy(scores, torch.tensor(answer))
                losses[example, column] += loss / len(chains)
                right[example, column] += float(int(scores.argmax()) == answer) / len(chains)
                others = (scores.sum() - scores[answer]) / (task.candidates - 1)
                differences[example, column] += (scores[answer] - others) / len(chains)
    torch.testing.assert_close(task.example_losses(outputs, batch), losses)
    torch.testing.assert_close(task.accuracies(outputs, batch), right.mean(0))
    torch.testing.assert_close(task.logit_differences(outputs, batch), differences)
    torch.testing.assert_close(task.partial_losses(outputs, batch), losses.mean(0))
    torch.testing.assert_close(task.loss(outputs, batch), losses.mean())
    few = outputs[torch.arange(6)[:, None], batch.roles[:, :, role]]
    torch.testing.assert_close(task.example_losses(few, batch), losses)


@pytest.mark.parametrize("task", REPEATED, ids=str)
def test_repeated_tokens_differ_and_come_again_in_order(task):
    for tokens in task.sample(200, seed=1).inputs[:, 1:].tolist():
        first, second = tokens[: task.length], tokens[task.length :]
        turn = first.index(second[0])
        assert second == first[turn:] + first[:turn] and len(set(first)) == task.length
        assert task.rotate or turn == 0


@pytest.mark.parametrize("task", HOPS, ids=str)
def test_sequences_of_hops_are_shuffled_alphabets(task):
    for tokens in task.sample(200, seed=1).inputs[:, 1:].tolist():
        for start in range(0, len(tokens), task.alphabet):
            assert sorted(tokens[start : start + task.alphabet]) == [*range(task.alphabet)]
        assert all(a != b for a, b in itertools.pairwise(tokens))


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


@torch.no_grad()
def test_a_model_of_words_is_a_hooked_transformer_that_reads_text():
    """The same weights in stock TransformerLens, from text, give the same logits."""
    task = ri.EquationsTask(chains=3, steps=2)
    model = randomize(ri.build_model(ri.ModelConfig(2, 2, 16), task)).eval()
    stock = stock_transformer(model.tokenizer, **vars(model.cfg))
    stock.load_state_dict(model.state_dict())
    batch = task.sample(3)
    for example in range(3):
        text = task.text(batch, example)
        assert torch.equal(model.to_tokens(text)[0], batch.inputs[example])
        torch.testing.assert_close(stock.eval()(text)[0], model(batch.inputs)[example])
    assert model.to_str_tokens("a = 0\nb = ?") == ["<s>", "a", "=", "0", "b", "=", "?"]
