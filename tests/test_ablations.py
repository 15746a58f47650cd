"""Ablations, what enables what, and the control: against naive runs and known circuits."""

import random
from collections import Counter

import pytest
import torch

import retrieval_interp.circuits.scores.score as scores
from examples.reach_the_bound import compile_circuit
from retrieval_interp.circuits.attention import Mask
from retrieval_interp.circuits.circuit import Circuit, Head, HeadPath, RolePath
from retrieval_interp.circuits.discovery.search import discover
from retrieval_interp.circuits.hooks import ablated
from retrieval_interp.circuits.losses import Scorer
from retrieval_interp.circuits.means import mean_attention
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM, OneHot, Shared, Where
from retrieval_interp.circuits.scores.ablations import ablations
from retrieval_interp.circuits.scores.enabling import enabled_by
from retrieval_interp.circuits.scores.score import random_circuit, random_control
from retrieval_interp.tasks import RetrievalTask
from tests.oracles import PATHS, naive_mse, random_heads


def test_ablations_equal_a_naive_loop(task, model):
    batch, least = task.sample(5, seed=2), 0.2
    found = ablations(model, task, batch, least)
    empty = Circuit({}, 5)
    assert found.baseline_loss == pytest.approx(naive_mse(model, task, empty, batch), abs=1e-5)
    assert len(found.heads) == 3 * 2 * 2
    for (head, mechanism), mse in found.heads.items():
        expected = naive_mse(model, task, empty.replace(head, mechanism), batch)
        assert mse == pytest.approx(expected, abs=1e-5)
    for head, cost in found.head_costs.items():
        losses = [loss for (other, _), loss in found.heads.items() if other == head]
        assert cost == pytest.approx(min(losses) - found.baseline_loss)
    attention = mean_attention(model, batch)
    wanted = [layer_head[path] >= least for layer_head in attention.flatten(0, 1) for path in PATHS]
    assert len(found.paths) == sum(map(bool, wanted))
    for row in found.paths:
        expected = naive_mse(model, task, empty.cut(row.path), batch)
        assert row.live_loss == pytest.approx(expected, abs=1e-5)
        assert row.attention == pytest.approx(float(attention[row.path.head][row.path.path]))


def test_what_a_path_enables_is_seen_from_both_sides(task, model):
    """The sides by definition: queries, keys or values of a cut run in an intact head."""
    batch = task.sample(6, seed=1)
    cut = HeadPath(Head(0, 0), RolePath(2, 1))
    later = [HeadPath(Head(2, 1), RolePath(0, 2)), HeadPath(Head(1, 0), RolePath(4, 3))]
    other = HeadPath(Head(1, 0), RolePath(4, 3))
    found = enabled_by(model, batch, [other, cut], [*later, cut], least_drop=-1.0)
    assert {row.path for row in found[other]} == {later[0]}
    rows = found[cut]
    assert {row.path for row in rows} == set(later)
    circuit = Circuit({}, 5).cut(cut)
    intact, (_, before) = mean_attention(model, batch), model.run_with_cache(batch.inputs)
    with ablated(model, circuit, batch):
        _, changed = model.run_with_cache(batch.inputs)
    for row in rows:
        layer, place = row.path.head.layer, (*row.path.head, *row.path.path)
        assert row.attention == pytest.approx(float(intact[place]), abs=1e-5)
        x, y = (
            torch.stack(
                [
                    run[f"blocks.{layer}.attn.hook_v"][example, at, row.path.head.head]
                    for example in range(6)
                    for at in batch.roles[example, :, row.path.path.src]
                ]
            )
            for run in (before, changed)
        )
        x, y = x - x.mean(0), y - y.mean(0)
        share = float((x * y).sum() / (x * x).sum())
        assert row.by_value == pytest.approx(row.attention * share, abs=1e-5)
        for side, value in (("q", row.by_query), ("k", row.by_key)):
            name = f"blocks.{layer}.attn.hook_{side}"
            with model.hooks(fwd_hooks=[(name, lambda x, hook, name=name: changed[name])]):
                assert value == pytest.approx(float(mean_attention(model, batch)[place]), abs=1e-5)
        with ablated(model, circuit, batch):
            both = mean_attention(model, batch)
        assert row.when_cut == pytest.approx(float(both[place]), abs=1e-5)


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 4))])
def test_discovery_recovers_compiled_circuits(seed):
    """Precision and recall 1 on circuits that are known because they were built."""
    task = RetrievalTask(steps=1 + seed % 3, dim=8, tokens="unit")
    rules = random_heads(task, 4, seed=seed, n_heads=1 + seed % 2, extras=False)
    built = compile_circuit(rules, task, n_layers=4, n_heads=1 + seed % 2)
    found = discover(built.model, task, tolerance=0.05 / 8, examples=64, seed=seed)
    assert set(found.paths()) == set(built.carrying)
    assert set(found.enabling) == set(built.enabling) - set(built.carrying)
    for head in built.idle:
        assert found[head] in (UNIFORM, IDENTITY)


def test_random_circuits_have_the_same_size_and_mechanisms(task):
    circuit = Circuit(
        {
            Head(0, 0): OneHot((RolePath(2, 1), RolePath(4, 3))),
            Head(1, 0): Shared((RolePath(0, 2), RolePath(0, 4), RolePath(2, 1))),
            Head(2, 0): UNIFORM,
            Head(2, 1): IDENTITY,
        },
        5,
    )
    heads = [Head(layer, head) for layer in range(3) for head in range(2)]
    paths = Where.of(task.sample(8), Mask()).paths
    assert sorted(paths) == sorted(RolePath(*path) for path in PATHS)

    def shape(c):
        return Counter(
            (m.kind, tuple(sorted(Counter(path.dest for path in m.paths).values())))
            for m in c.mechanisms.values()
        )

    draw = random.Random(0)
    drawn = [random_circuit(circuit, heads, [paths] * 3, draw) for _ in range(30)]
    assert all(shape(other) == shape(circuit) for other in drawn)
    assert len({tuple(other.mechanisms.items()) for other in drawn}) > 25
    used = {path.path for other in drawn for path in other.paths()}
    assert used <= set(paths) and len(used) == len(paths)


def test_the_control_is_what_random_circuits_give(task, model, monkeypatch):
    monkeypatch.setattr(scores, "QUICK", 2)  # examples that may refuse, all decide
    batch = task.sample(4)
    circuit = Circuit({Head(1, 0): OneHot((RolePath(0, 2),))}, 5)
    heads = [Head(layer, head) for layer in range(3) for head in range(2)]
    paths = Where.of(batch, Mask()).paths
    found = random_control(Scorer(model, task, batch), circuit, count=8, seed=4)
    draw = random.Random(4)
    drawn = [random_circuit(circuit, heads, [paths] * 3, draw) for _ in range(8)]
    goal, expected = naive_mse(model, task, circuit, batch), []
    for other in drawn:
        few = torch.tensor([naive_mse(model, task, other, batch[[n]]) for n in range(2)])
        is_close = few.mean() - 4 * few.std() / 2**0.5 <= goal
        expected.append(naive_mse(model, task, other, batch) if is_close else float(few.mean()))
    torch.testing.assert_close(
        torch.tensor(found), torch.tensor(sorted(expected)), atol=1e-5, rtol=0
    )
