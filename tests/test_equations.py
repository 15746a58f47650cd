import math

import pytest
import torch
import torch.nn.functional as F

from tasks import EquationsTask, InputError
from tasks.equations import BEGIN
from tasks.prompts import EquationsPrompt

TASKS = [EquationsTask(), EquationsTask(curriculum=False), EquationsTask(3, 4), EquationsTask(2, 1)]
each_task = pytest.mark.parametrize("task", TASKS, ids=str)


def parse(text):
    """Definitions in order of print, and the variables asked for."""
    lines = [line.split(" = ") for line in text.splitlines()]
    return [line for line in lines if line[1] != "?"], [a for a, b in lines if b == "?"]


def solve(definitions, variable):
    """The number behind a variable and how many steps away it is."""
    held, steps = dict(definitions), 0
    while variable in held:
        variable, steps = held[variable], steps + 1
    return int(variable), steps


@each_task
def test_statements_are_those_of_the_prompt(task):
    """The text equals what the formulation renders from the same chains and orders."""
    prompt = EquationsPrompt(task.steps, task.chains, question="short")
    batch = task.sample(20, seed=3)
    words = [[task.vocabulary[t] for t in row] for row in batch.inputs.tolist()]
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
        assert task.text(batch, example).startswith(question.prompt + "\n")
        assert int(question.correct) == batch.targets[example, 0]


@each_task
def test_every_question_has_its_answer_and_depth(task):
    batch = task.sample(20, seed=1, split="test")
    for example in range(20):
        definitions, asked = parse(task.text(batch, example))
        depths = [solve(definitions, variable)[1] for variable in asked]
        assert depths == [depth for depth in task.depths for _ in range(task.chains)]
        assert len(set(asked)) == len(asked)
        words = [task.vocabulary[token] for token in batch.inputs[example].tolist()]
        for chain, roles in enumerate(batch.roles[example].tolist()):
            for place, answer in enumerate(task.answer_roles):
                query = words[roles[0 if place == 0 else answer - 1]]
                assert words[roles[answer]] == "?" and words[roles[answer] - 2] == query
                number, steps = solve(definitions, query)
                assert number == batch.targets[example, chain]
                assert steps == task.depths[place]


def test_roles_stand_where_the_symbols_are():
    task = EquationsTask()
    batch = task.sample(8, seed=5)
    at_roles = batch.inputs[:, None].expand(-1, 4, -1).gather(2, batch.roles)
    assert torch.equal(at_roles[..., 0], at_roles[..., 1])  # x_0
    assert torch.equal(at_roles[..., 2], at_roles[..., 3])  # x_1
    assert torch.equal(at_roles[..., 4], at_roles[..., 5])  # x_2
    assert torch.equal(at_roles[..., 6], batch.targets)  # x_3
    assert torch.equal(at_roles[..., 8], at_roles[..., 2])  # the question of x_1
    assert torch.equal(at_roles[..., 10], at_roles[..., 4])  # the question of x_2
    assert torch.equal(at_roles[..., 12], batch.targets)  # the question of x_3
    assert task.role_labels[7:10] == ("answer A", "query B", "answer B")
    assert task.role_labels[10:] == ("query C", "answer C", "query D", "answer D")
    assert task.role_symbols == ("A?", *"ABBCCD", "?A", "B?", "?B", "C?", "?C", "D?", "?D")
    assert task.path_label(2, 1) == "B <- A of A->B"
    assert task.path_label(7, 0) == "answer A <- query A"


def test_all_documents_are_equally_likely():
    """Four variables, two numbers and two orders of print; the order of questions is names' too."""
    task = EquationsTask(2, 2, curriculum=False)
    batch = task.sample(4000, seed=9)
    texts = [task.text(batch, example) for example in range(4000)]
    possible, expected = math.factorial(4) * 2 * 2 * 2, 4000 / 192
    counts = [texts.count(text) for text in set(texts)]
    counts += [0] * (possible - len(counts))
    chi_squared = sum((count - expected) ** 2 / expected for count in counts)
    assert len(counts) == possible and chi_squared < 191 + 4 * math.sqrt(2 * 191)


def test_examples_do_not_depend_on_how_they_are_drawn():
    task = EquationsTask()
    batch = task.sample(10, seed=4)
    for index in range(10):
        alone = task.sample(1, seed=4, start=index)
        for name in ("inputs", "targets", "roles"):
            assert torch.equal(getattr(alone, name)[0], getattr(batch, name)[index])
    other = task.sample(10, seed=4, split="test")
    assert not torch.equal(other.inputs, batch.inputs)


@each_task
def test_losses_equal_a_loop(task):
    batch = task.sample(6)
    outputs = torch.randn(6, task.n_positions, task.d_out, generator=torch.manual_seed(0))
    losses = torch.zeros(6, len(task.depths))
    right, differences = losses.clone(), losses.clone()
    for example in range(6):
        definitions, asked = parse(task.text(batch, example))
        for place, variable in enumerate(asked):
            at = task.n_positions - 3 * len(asked) + 3 * place + 2
            number, steps = solve(definitions, variable)
            column = task.asked.index(f"depth {steps}")
            logits = outputs[example, at]
            losses[example, column] += F.cross_entropy(logits, torch.tensor(number)) / task.chains
            right[example, column] += float(int(logits.argmax()) == number) / task.chains
            others = [float(logits[n]) for n in range(task.chains) if n != number]
            differences[example, column] += (
                float(logits[number]) - sum(others) / len(others)
            ) / task.chains
    torch.testing.assert_close(task.example_losses(outputs, batch), losses)
    torch.testing.assert_close(task.accuracies(outputs, batch), right.mean(0))
    torch.testing.assert_close(task.logit_differences(outputs, batch), differences)
    torch.testing.assert_close(task.loss(outputs, batch), losses.mean())
    roles = batch.roles[:, :, list(task.answer_roles)].flatten(1)
    few = outputs[torch.arange(6)[:, None], roles]
    torch.testing.assert_close(task.example_losses(few, batch), losses)


def test_guessing_among_the_numbers_is_the_plateau():
    task = EquationsTask(5, 2)
    batch = task.sample(4)
    outputs = torch.full((4, task.n_positions, task.d_out), -1e9)
    outputs[..., :5] = 0.0
    assert float(task.loss(outputs, batch)) == pytest.approx(task.plateau) == math.log(5)
    assert task.tolerance == pytest.approx(0.05 * math.log(5))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"chains": 1}, "chains to be an integer of at least 2, found 1"),
        ({"steps": 0}, "steps to be an integer of at least 1, found 0"),
        ({"steps": True}, "steps to be an integer"),
        ({"chains": 100, "steps": 100}, "at most 8192 words, found 60301"),
    ],
)
def test_bad_parameters_are_refused(fields, text):
    with pytest.raises(InputError, match=text):
        EquationsTask(**fields)
