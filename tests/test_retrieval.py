"""Random numbers, roles, and retrieval in vectors, along chains and graphs."""

import math
from dataclasses import replace

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.tasks import path_graph
from retrieval_interp.tasks.graph import Node
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


@pytest.mark.parametrize("position", ["pair", "token"])
def test_positions_are_encoded_by_cosines_and_sines(position):
    task = ri.RetrievalTask(3, 6, position=position, base=100.0, steps=4)
    pairs = [*(place // 2 for place in range(24)), 12, 13, 14]
    counts = torch.tensor(pairs if position == "pair" else range(27))
    angles = counts[:, None] * 100.0 ** (-torch.arange(3) / 3)
    encoding = torch.stack([angles.cos(), angles.sin()], dim=-1).flatten(1)
    torch.testing.assert_close(task.sample(2).inputs[..., 6:], encoding.expand(2, -1, -1))


def test_shuffles_are_uniform_and_independent_between_steps():
    batch = ri.RetrievalTask(chains=3, steps=2, dim=2).sample(6000, seed=2)
    orders = (batch.roles[:, :, 1].argsort() * torch.tensor([9, 3, 1])).sum(1)
    both = orders * 100 + (batch.roles[:, :, 3].argsort() * torch.tensor([9, 3, 1])).sum(1)
    counts = both.unique(return_counts=True)[1]
    assert len(counts) == 36
    # chi-square with 35 degrees of freedom: 66.6 is its 0.999 quantile
    assert float(((counts - 6000 / 36) ** 2 / (6000 / 36)).sum()) < 66.6


@pytest.mark.parametrize("task", [ri.RetrievalTask(), ri.RetrievalTask(dim=8, tokens="unit")])
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
    answers[:, -4:] = batch.targets
    answers[5, -4:] += 2.0  # one example is wrong
    assert task.example_losses(answers, batch)[4:7].mean(1).tolist() == pytest.approx([0, 4, 0])


TWO_KEYS = ri.RetrievalGraph.parse("a; b; x <- a, b; y <- x; z <- y, a; w <- z, x")
ALL = [ri.RetrievalTask(3, 6, steps=4)] + [
    ri.ConditionalRetrievalTask(chains, graph=graph, dim=4, tables=tables)
    for graph, chains in [*((known, 4) for known in ri.GRAPHS.values()), (TWO_KEYS, 2)]
    for tables in ("full", "chains")
]


def test_examples_of_the_retrieval_task_are_those_that_models_were_trained_on():
    batch = ri.RetrievalTask().sample(3, seed=1)
    first = [-0.533797, 1.150265, -1.445313, -0.456705, 1.0, 0.0, 1.0, 0.0]
    torch.testing.assert_close(batch.inputs[2, 0], torch.tensor(first), atol=1e-5, rtol=0)
    assert batch.roles[2, 1].tolist() == [25, 22, 23, 12, 13, 4, 5]


def statements(task, tokens):
    """The sequence of one example as tuples of vectors, cut by the definition, by node."""
    counts, found, place = {}, {}, 0
    for node in task.graph.nodes:
        full = node.key and task.tables == "full"
        counts[node.name] = math.prod(counts[name] for name in node.key) if full else task.chains
    for node in reversed([node for node in task.graph.nodes if node.key]):
        width, begin = len(node.key) + 1, place
        place += width * counts[node.name]
        found[node.name] = [tokens[at : at + width] for at in range(begin, place, width)]
    given = [node.name for node in task.graph.nodes if not node.key]
    assert place + task.chains * len(given) == len(tokens) == task.n_positions
    starts = range(place, len(tokens), len(given))
    return found, [dict(zip(given, tokens[at : at + len(given)])) for at in starts]


def follow(task, tokens):
    """For each query and retrieved node, all values whose key fits."""
    found, queries = statements(task, tokens)
    answers = []
    for known in queries:
        values = {}
        for node in task.graph.nodes:
            if node.key:
                key = [known[name] for name in node.key]
                fits = [line[-1] for line in found[node.name] if line[:-1] == key]
                values[node.name], known[node.name] = fits, fits[0]
        answers.append(values)
    return answers


@pytest.mark.parametrize("task", ALL, ids=str)
def test_following_the_statements_finds_the_targets(task):
    batch = replace(task, position="token").sample(3, seed=4)
    for example in range(3):
        tokens = batch.inputs[example, :, : task.dim].tolist()
        for chain, values in enumerate(follow(task, tokens)):
            assert all(len(fits) == 1 for fits in values.values())
            flat = [number for fits in values.values() for number in fits[0]]
            assert flat == batch.targets[example, chain].tolist()
    last = replace(task, curriculum=False).sample(3, seed=4)
    assert torch.equal(last.inputs[..., : task.dim], batch.inputs[..., : task.dim])
    assert torch.equal(last.targets, batch.targets[..., -task.dim :])


@pytest.mark.parametrize("task", ALL, ids=str)
def test_roles_hold_the_symbols_of_their_nodes_and_statements_share_an_encoding(task):
    batch = task.sample(5, seed=6)
    held = batch.inputs[torch.arange(5)[:, None, None], batch.roles]
    tokens, encodings = held[..., : task.dim], held[..., task.dim :]
    nodes = [node.name for node in task.graph.nodes]
    seen = {}
    for role, (node, statement) in enumerate(task.graph.roles):
        assert task.role_symbols[role].rstrip("?") == nodes[node]
        torch.testing.assert_close(tokens[:, :, role], seen.setdefault(node, tokens[:, :, role]))
        if node in task.asked_nodes:
            asked = task.asked_nodes.index(node)
            block = batch.targets[..., asked * task.dim : (asked + 1) * task.dim]
            torch.testing.assert_close(tokens[:, :, role], block)
        first = [r.statement for r in task.graph.roles].index(statement)
        torch.testing.assert_close(encodings[:, :, role], encodings[:, :, first])


def test_the_plateau_is_the_mean_of_the_candidates():
    full = ri.ConditionalRetrievalTask()
    assert full.plateau == pytest.approx((3 / 4 + 3 / 4 + 15 / 16) / 3)
    assert replace(full, tables="chains").plateau == 0.75
    assert replace(full, curriculum=False).plateau == 15 / 16
    relatives = replace(full, graph=ri.GRAPHS["relatives"], tokens="unit")
    assert relatives.plateau == pytest.approx((3 / 4 + 3 / 4 + 15 / 16 + 15 / 16) / 16)
    assert replace(full, chains=1).plateau == 1.0


def test_a_graph_is_read_and_written_as_text():
    graph = ri.RetrievalGraph.parse(" a;x<-a ; y <- a; z <-x ,y")
    assert graph.nodes == (Node("a"), Node("x", ("a",)), Node("y", ("a",)), Node("z", ("x", "y")))
    assert str(graph) == "a; x <- a; y <- a; z <- x, y"
    for known in (*ri.GRAPHS.values(), path_graph(30)):
        assert ri.RetrievalGraph.parse(str(known)) == known
    assert ri.RetrievalGraph.parse("triple") == ri.GRAPHS["triple"] == graph
    assert path_graph(2) == ri.RetrievalGraph.parse("A; B <- A; C <- B")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("tripel", "expected one of triple, .* found 'tripel'"),
        ("a; x <- a; x <- a", "found 'x <- a'"),
        ("a; x <- a; y <- a", "all nodes but the last, the answer, .* found 'x <- a'"),
    ],
)
def test_graphs_that_are_none_are_refused(text, error):
    with pytest.raises(ri.InputError, match=f"^graph: .*{error}"):
        ri.RetrievalGraph.parse(text)
