import math

import pytest
import torch

from retrieval_interp.tasks import RetrievalTask

# Appendix A.1: D = 5, four chains, the pairs of step 5 first, the queries left out but one.
EQUATIONS = """b=2 c=3 d=0 a=1 e=b g=a h=d f=c k=e i=f l=g j=h n=k p=l o=i m=j q=n s=p r=o t=m"""


def reference_sequence(task, symbols, slots, queries):
    """One sequence by plain loops, from the definition: list of (chain, symbol number, pair)."""
    sequence = []
    for step in range(task.steps, 0, -1):
        for slot in range(task.chains):
            chain = slots[step - 1].index(slot)
            pair = len(sequence) // 2
            sequence.append((chain, step - 1, pair))
            sequence.append((chain, step, pair))
    n_pairs = task.chains * task.steps
    for place, chain in enumerate(queries):
        sequence.append((chain, 0, n_pairs + place))
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
    task = RetrievalTask(3, 4, 6, curriculum, position, base=100.0)
    generator = torch.Generator().manual_seed(0)
    symbols = torch.randn(5, 3, 5, 6, generator=generator)
    slots = torch.stack(
        [torch.stack([torch.randperm(3, generator=generator) for _ in range(4)]) for _ in range(5)]
    )
    batch = task.arrange(symbols.flatten(1, 2), slots.flatten(1))
    for example in range(5):
        sequence, vectors = reference_sequence(
            task, symbols[example].tolist(), slots[example].tolist(), range(3)
        )
        torch.testing.assert_close(batch.inputs[example], vectors)
        for chain in range(3):
            for role in range(9):
                found = sequence[int(batch.roles[example, chain, role])]
                assert found[:2] == (chain, role // 2)
                if role:  # both elements of a pair stand together
                    assert int(batch.roles[example, chain, role]) % 2 == (role + 1) % 2
            asked = range(1, 5) if curriculum else [4]
            expected = torch.cat([symbols[example, chain, step] for step in asked])
            torch.testing.assert_close(batch.targets[example, chain], expected)


def test_layout_gives_the_order_of_the_papers_printed_example():
    pairs = [line.split("=") for line in EQUATIONS.split()]
    successor = dict(pairs)  # q = n: the chain goes from q to n
    chains = []
    for query in "qsrt":
        chain = [query]
        while chain[-1] in successor:
            chain.append(successor[chain[-1]])
        chains.append(chain)
    assert all(len(chain) == 6 for chain in chains)
    names = sorted({name for chain in chains for name in chain})
    codes = {name: float(number) for number, name in enumerate(names, start=1)}
    task = RetrievalTask(chains=4, steps=5, dim=2)
    symbols = torch.tensor([[[[codes[name]] * 2 for name in chain] for chain in chains]])
    slots = torch.zeros(1, 5, 4, dtype=torch.long)
    for line, pair in enumerate(pairs):
        chain = next(i for i, chain in enumerate(chains) if pair[0] in chain)
        step = chains[chain].index(pair[0]) + 1
        slots[0, step - 1, chain] = line - 4 * (5 - step)
    batch = task.arrange(symbols.flatten(1, 2), slots.flatten(1))
    letters = {code: name for name, code in codes.items()}
    printed = [letters[float(value)] for value in batch.inputs[0, :, 0]]
    assert printed[:40] == [name for pair in pairs for name in pair]
    assert printed[40:] == list("qsrt")
    answers = {chain[0]: letters[float(batch.targets[0, c, -1])] for c, chain in enumerate(chains)}
    assert answers["s"] == "1"  # as the paper says


def test_roles_hold_what_equation_1_says():
    task = RetrievalTask()
    batch = task.sample(16, seed=5)
    held = batch.inputs[torch.arange(16)[:, None, None], batch.roles]
    tokens, encodings = held[..., :4], held[..., 4:]
    for role in range(1, 7):
        if role % 2:  # x_{d-1} stands at s_{2d-2} and s_{2d-1}
            torch.testing.assert_close(tokens[:, :, role], tokens[:, :, role - 1])
        else:  # both elements of pair d share p_d
            torch.testing.assert_close(encodings[:, :, role], encodings[:, :, role - 1])
            torch.testing.assert_close(
                tokens[:, :, role], batch.targets[..., 2 * role - 4 : 2 * role]
            )
    assert len({tuple(row) for row in encodings[0].reshape(-1, 4).round(decimals=5).tolist()}) == 16


def test_shuffles_are_uniform_and_independent_between_steps():
    batch = RetrievalTask(chains=3, steps=2, dim=2).sample(6000, seed=2)
    orders = (batch.roles[:, :, 1].argsort() * torch.tensor([9, 3, 1])).sum(1)
    both = orders * 100 + (batch.roles[:, :, 3].argsort() * torch.tensor([9, 3, 1])).sum(1)
    counts = both.unique(return_counts=True)[1]
    assert len(counts) == 36
    # chi-square with 35 degrees of freedom: 66.6 is its 0.999 quantile
    assert float(((counts - 6000 / 36) ** 2 / (6000 / 36)).sum()) < 66.6


def test_losses_of_known_answers():
    task = RetrievalTask()
    batch = task.sample(2000, seed=1)
    zeros = torch.zeros(2000, task.n_positions, task.d_out)
    assert abs(float(task.loss(zeros, batch)) - 1.0) < 0.02
    means = zeros.clone()
    means[:, -4:] = batch.targets.mean(1, keepdim=True)
    assert abs(float(task.loss(means, batch)) - task.plateau) < 0.02
    assert task.plateau == 0.75
    unit = RetrievalTask(dim=8, tokens="unit")
    drawn = unit.sample(2000)
    means = drawn.targets.mean(1, keepdim=True).expand(-1, 28, -1)
    assert abs(float(unit.loss(means, drawn)) - unit.plateau) < 0.002
    right = zeros.clone()
    right[:, -4:] = batch.targets
    assert float(task.loss(right, batch)) == 0.0
    right[:, -4:, 4:8] = 0.0  # x_2 alone is wrong
    partial = task.partial_losses(right, batch)
    assert partial[0] == partial[2] == 0 and abs(float(partial[1]) - 1) < 0.03
    torch.testing.assert_close(task.loss(right, batch), partial.mean())
