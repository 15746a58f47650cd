import math

import pytest
import torch

from retrieval_interp.tasks import RetrievalTask


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
    task = RetrievalTask(3, 6, curriculum, position, base=100.0, steps=4)
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
    batch = RetrievalTask(chains=3, steps=2, dim=2).sample(6000, seed=2)
    orders = (batch.roles[:, :, 1].argsort() * torch.tensor([9, 3, 1])).sum(1)
    both = orders * 100 + (batch.roles[:, :, 3].argsort() * torch.tensor([9, 3, 1])).sum(1)
    counts = both.unique(return_counts=True)[1]
    assert len(counts) == 36
    # chi-square with 35 degrees of freedom: 66.6 is its 0.999 quantile
    assert float(((counts - 6000 / 36) ** 2 / (6000 / 36)).sum()) < 66.6


@pytest.mark.parametrize("task", [RetrievalTask(), RetrievalTask(dim=8, tokens="unit")], ids=str)
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
