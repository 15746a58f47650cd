import math

import pytest
import torch
import torch.nn.functional as F

from retrieval_interp.tasks import EquationsTask
from retrieval_interp.tasks.training_task import BEGIN
from retrieval_interp.tasks.words.prompts import EquationsPrompt

TASKS = [EquationsTask(), EquationsTask(curriculum=False), EquationsTask(3, 4), EquationsTask(2, 1)]
each_task = pytest.mark.parametrize("task", TASKS, ids=str)


def parse(text):
    """Definitions in order of print, and the variables asked for."""
    lines = [line.split(" = ") for line in text.splitlines()]
    return dict(line for line in lines if line[1] != "?"), [a for a, b in lines if b == "?"]


def follow(definitions, variable):
    """x_0, x_1, ..., up to the number."""
    chain = [variable]
    while chain[-1] in definitions:
        chain.append(definitions[chain[-1]])
    return chain


@each_task
def test_documents_are_those_of_the_prompt(task):
    """The text up to the first `?` equals what the formulation renders; more questions follow."""
    prompt = EquationsPrompt(task.steps, task.chains, question="short")
    batch = task.sample(20, seed=3)
    words = [[task.vocabulary[token] for token in row] for row in batch.inputs.tolist()]
    for example, roles in enumerate(batch.roles.tolist()):
        assert words[example][0] == BEGIN
        chains = [
            [words[example][c[0]], *(words[example][c[2 * d]] for d in range(1, task.steps + 1))]
            for c in roles
        ]
        orders = [
            sorted(range(task.chains), key=lambda c, d=d: roles[c][2 * d])
            for d in range(1, task.steps + 1)
        ]
        question = prompt.render(chains, orders)
        rest = "".join(f"\n{chain[0]} = ?" for chain in chains[1:])
        assert task.text(batch, example) == question.prompt + rest
        assert int(question.correct) == batch.targets[example, 0, -1]


@each_task
def test_targets_are_what_following_the_text_gives(task):
    batch = task.sample(20, seed=1, split="test")
    likes = [
        {follow(*parse(task.text(batch, 0))[:1], v)[k] for v in parse(task.text(batch, 0))[1]}
        for k in range(task.steps + 1)
    ]
    for example in range(20):
        definitions, asked = parse(task.text(batch, example))
        words = [task.vocabulary[token] for token in batch.inputs[example].tolist()]
        for chain, variable in enumerate(asked):
            symbols = follow(definitions, variable)
            assert len(symbols) == task.steps + 1
            roles = batch.roles[example, chain].tolist()
            assert [words[roles[0]], words[roles[-1]]] == [variable, "?"]
            for d in range(1, task.steps + 1):
                assert [words[roles[2 * d - 1]], words[roles[2 * d]]] == symbols[d - 1 : d + 1]
            for k, symbol in enumerate(symbols):
                assert sorted(likes[k])[batch.targets[example, chain, k]] == symbol


def test_names_of_roles():
    task = EquationsTask(steps=2)
    assert task.role_labels == (
        *("query A", "A of A->B", "B of A->B", "B of B->C", "C of B->C", "answer"),
    )
    assert task.role_symbols == ("A?", "A", "B", "B", "C", "?")
    assert task.path_label(2, 1) == "B <- A of A->B"
    assert task.path_label(5, 0) == "answer <- query A"
    assert task.asked == ("x_0", "x_1", "x_2") and task.answer_roles == (5,)
    assert EquationsTask(steps=2, curriculum=False).asked == ("x_2",)


def test_all_documents_are_equally_likely():
    """Names of x_0, x_1 and the numbers, and two orders of print; that of questions is names'."""
    task = EquationsTask(2, 2)
    batch = task.sample(3200, seed=9)
    texts = [task.text(batch, example) for example in range(3200)]
    counts = [texts.count(text) for text in set(texts)]
    assert len(counts) == 2**5
    assert sum((count - 100) ** 2 / 100 for count in counts) < 31 + 4 * math.sqrt(62)  # chi-squared


@each_task
def test_losses_equal_a_loop(task):
    batch = task.sample(6)
    outputs = torch.randn(6, task.n_positions, task.d_out, generator=torch.manual_seed(0))
    losses = torch.zeros(6, len(task.asked))
    right, differences = losses.clone(), losses.clone()
    for example in range(6):
        definitions, asked = parse(task.text(batch, example))
        chains = [follow(definitions, variable) for variable in asked]
        for place in range(task.chains):
            logits = outputs[example, task.n_positions - 3 * len(asked) + 3 * place + 2]
            for column, name in enumerate(task.asked):
                k = int(name.removeprefix("x_"))
                likes = [other[k] for other in chains]
                tokens = [task.vocabulary.index(word) for word in likes]
                scores = logits[tokens]
                losses[example, column] += (
                    F.cross_entropy(scores, torch.tensor(place)) / task.chains
                )
                right[example, column] += float(int(scores.argmax()) == place) / task.chains
                others = (scores.sum() - scores[place]) / (task.chains - 1)
                differences[example, column] += (scores[place] - others) / task.chains
    torch.testing.assert_close(task.example_losses(outputs, batch), losses)
    torch.testing.assert_close(task.accuracies(outputs, batch), right.mean(0))
    torch.testing.assert_close(task.logit_differences(outputs, batch), differences)
    torch.testing.assert_close(task.loss(outputs, batch), losses.mean())
    torch.testing.assert_close(task.partial_losses(outputs, batch), losses.mean(0))
    few = outputs[torch.arange(6)[:, None], batch.roles[:, :, -1]]
    torch.testing.assert_close(task.example_losses(few, batch), losses)
