"""Random numbers, roles, and the retrieval task in vectors."""

import math

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.tasks import path_graph
from retrieval_interp.tasks.roles import join_labels, parse_role, symbol_letter
from retrieval_interp.tasks.sampling import normals, philox, random_words


def words(counter, key):
    state = tuple(torch.tensor(value) for value in counter)
    return [f"{int(word):08x}" for word in philox(state, key)]


def test_words_equal_the_published_known_answers():
    # Random123's known-answer table for philox4x32 with 10 rounds.
    ones = 0xFFFFFFFF
    assert words((0, 0, 0, 0), (0, 0)) == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]
    assert words((ones,) * 4, (ones,) * 2) == ["408f276d", "41c83b0e", "a20bc7c6", "6d5451fd"]
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert words(pi, (0xA4093822, 0x299F31D0)) == ["d16cfe09", "94fdcceb", "5001e420", "24126ea1"]


def test_normals_have_the_moments_and_quantiles_of_a_standard_normal():
    x = normals(random_words(torch.arange(50_000), 8, 3, 0)).double()
    assert abs(x.mean()) < 0.01 and abs(x.std() - 1) < 0.01
    assert abs((x**3).mean()) < 0.02 and abs((x**4).mean() - 3) < 0.05
    assert abs((x.abs() < 1.959964).double().mean() - 0.95) < 0.002
    correlations = torch.corrcoef(x.T) - torch.eye(8)
    assert correlations.abs().max() < 0.03


def test_roles_are_read_by_name():
    assert [parse_role(f"s{role}", 7) for role in range(7)] == list(range(7))
    for name in ("s7", "s-1", "s01", "S0", "", "s", "x1", "s1 s2", None, 3):
        with pytest.raises(ri.InputError, match="expected a role from s0 to s6, found"):
            parse_role(name, 7)


def test_letters_follow_the_paper():
    letters = ["query A", "A of A->B", "B of A->B", "B of B->C", "C of B->C"]
    labels = path_graph(3).role_labels
    assert list(labels[:5]) == letters
    assert join_labels(labels[2], labels[1]) == "B <- A of A->B"
    assert join_labels(labels[0], labels[2]) == "query A <- B of A->B"
    assert join_labels(labels[2], labels[3]) == "B of A->B <- B of B->C"
    assert [symbol_letter(step) for step in (25, 26)] == ["Z", "x26"]


def reference_sequence(task, symbols, slots):
    """One sequence by plain loops, from the definition: list of (chain, symbol number, pair)."""
    sequence = []
    for step in range(task.steps, 0, -1):
        for slot in range(task.chains):
            chain = slots[step - 1].index(slot)
            pair = len(sequence) // 2
            sequence.append((chain, step - 1, pair))
            sequence.append((chain, step, pair))
    n_pairs = task.chains * task.steps
    sequence += [(chain, 0, n_pairs + chain) for chain in range(task.chains)]
    vectors = []
    for position, (chain, symbol, pair) in enumerate(sequence):
        place = pair if task.position == "pair" else position
        encoding = []
        for i in range(task.dim // 2):
            angle = place * task.base ** (-2 * i / task.dim)
            encoding += [math.cos(angle), math.sin(angle)]
        vectors.append(list(symbols[chain][symbol]) + encoding)
    return sequence, torch.tensor(vectors)


@pytest.mark.parametrize("position", ["pair", "token"])
@pytest.mark.parametrize("curriculum", [True, False])
def test_layout_equals_a_loop_written_reference(position, curriculum):
    task = ri.RetrievalTask(3, 6, curriculum, position, base=100.0, steps=4)
    generator = torch.Generator().manual_seed(0)
    symbols = torch.randn(5, 3, 5, 6, generator=generator)
    slots = torch.stack(
        [torch.stack([torch.randperm(3, generator=generator) for _ in range(4)]) for _ in range(5)]
    )
    batch = task.arrange(symbols.flatten(1, 2), slots.flatten(1))
    for example in range(5):
        drawn = symbols[example].tolist(), slots[example].tolist()
        sequence, vectors = reference_sequence(task, *drawn)
        torch.testing.assert_close(batch.inputs[example], vectors)
        for chain in range(3):
            for role in range(9):
                found = sequence[int(batch.roles[example, chain, role])]
                assert found[:2] == (chain, role // 2)
            asked = range(1, 5) if curriculum else [4]
            expected = torch.cat([symbols[example, chain, step] for step in asked])
            torch.testing.assert_close(batch.targets[example, chain], expected)


def test_shuffles_are_uniform_and_independent_between_steps():
    batch = ri.RetrievalTask(chains=3, steps=2, dim=2).sample(6000, seed=2)
    orders = (batch.roles[:, :, 1].argsort() * torch.tensor([9, 3, 1])).sum(1)
    both = orders * 100 + (batch.roles[:, :, 3].argsort() * torch.tensor([9, 3, 1])).sum(1)
    counts = both.unique(return_counts=True)[1]
    assert len(counts) == 36
    # chi-square with 35 degrees of freedom: 66.6 is its 0.999 quantile
    assert float(((counts - 6000 / 36) ** 2 / (6000 / 36)).sum()) < 66.6


@pytest.mark.parametrize(
    "task", [ri.RetrievalTask(), ri.RetrievalTask(dim=8, tokens="unit")], ids=str
)
def test_losses_of_known_answers(task):
    batch = task.sample(2000, seed=1)
    answers = torch.zeros(2000, task.n_positions, task.d_out)
    answers[:, -4:] = batch.targets.mean(1, keepdim=True)
    assert float(task.loss(answers, batch)) == pytest.approx(task.plateau, rel=0.02)
    assert task.plateau == 0.75 * task.loss_scale
    answers[:, -4:] = batch.targets
    assert float(task.loss(answers, batch)) == 0.0
    answers[:, -4:, task.dim : 2 * task.dim] = 0.0  # x_2 only is wrong
    partial = task.partial_losses(answers, batch)
    assert partial[0] == partial[2] == 0
    assert float(partial[1]) == pytest.approx(task.loss_scale, rel=0.03)
    torch.testing.assert_close(task.loss(answers, batch), partial.mean())
