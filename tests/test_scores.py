"""Scores, ablations, what enables what and the control, against hooks set by hand."""

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.losses import Scorer
from retrieval_interp.circuits.mechanisms import OneHot
from retrieval_interp.circuits.paths import Head, HeadPath, Mask, Positions, RolePath
from retrieval_interp.circuits.scores.score import random_circuit, random_control
from tests.models import Lookup, hooked_model
from tests.naive import PATHS, hooks_left, naive_loss, naive_losses

HEADS = [Head(layer, head) for layer in range(3) for head in range(2)]
LINES = ["L0.H0 shared s2<-s1 s0<-s2 s0<-s4", "L0.H1 uniform", "L1.H1 identity", "L2.H0 s0<-s4"]
CIRCUIT = ri.parse_circuit(LINES, ri.RetrievalTask(chains=3, steps=2, dim=4))


@pytest.mark.parametrize("mlp", [True, False])
@pytest.mark.parametrize("heads", [1, 2])
def test_every_score_equals_a_whole_run_with_hooks_set_by_hand(task, mlp, heads):
    model = ri.build_model(ri.ModelConfig(3, heads, 16, mlp=mlp), task)
    batch = task.sample(7, seed=3)
    kept = {head: m for head, m in CIRCUIT.mechanisms.items() if head.head < heads}
    circuit = Circuit(kept, 5)
    score = ri.score_circuit(model, task, circuit, batch, controls=0)
    empty = Circuit({}, 5)

    def naive(c, intact=0.0):
        """The mean loss, and its standard error."""
        losses = naive_losses(model, task, c, batch) - intact
        return pytest.approx((float(losses.mean()), float(losses.std()) / 7**0.5), abs=1e-5)

    assert (score.intact_loss, score.intact_se) == naive(empty)
    assert (score.combined_loss, score.combined_se) == naive(circuit)
    excess = naive(circuit, naive_losses(model, task, empty, batch))
    assert (score.combined_loss - score.intact_loss, score.excess_se) == excess
    assert len(score.heads) == 3 * heads
    for row in score.heads:
        assert (row.loss, row.se) == naive(empty.replace(row.head, circuit[row.head]))
        assert (row.zero_ablated is None) == (row.head not in kept)
        if row.zero_ablated:
            assert row.zero_ablated == naive(circuit.replace(row.head, OneHot(())))
    assert [row.path for row in score.paths] == list(circuit.paths())
    for row in score.paths:
        assert (row.removed_loss, row.se) == naive(circuit.without(row.path))
        assert (row.live_loss, row.live_se) == naive(empty.cut(row.path))
    assert hooks_left(model) == 0


def test_models_and_batches_that_do_not_fit_are_refused(task, model):
    longer, other = ri.RetrievalTask(steps=3), ri.RetrievalTask(chains=3, steps=3, dim=4)
    with pytest.raises(ri.InputError, match="found 8 and 8"):
        Scorer(model, longer, longer.sample(2))
    with pytest.raises(ri.InputError, match="s0 to s4, found 7"):
        Scorer(model, task, other.sample(2))
    scorer = Scorer(model, task, task.sample(2))
    later = Circuit({Head(0, 0): OneHot((RolePath(1, 2),))}, 5)
    for _ in range(2):  # a path that was refused is not taken to be checked
        with pytest.raises(ri.InputError, match="a source before its destination"):
            scorer.loss(later)


def test_sufficient_and_minimal_follow_the_tolerance(task, model):
    batch = task.sample(4)
    score = ri.score_circuit(model, task, CIRCUIT, batch, 1e9, controls=0)
    assert not score.sufficient  # an untrained model's circuit is worse than knowing nothing
    score = replace(score, uninformed_loss=2.0, learned=True)
    assert score.sufficient and not score.minimal
    score = ri.score_circuit(model, task, CIRCUIT, batch, 1e-9, controls=0)
    assert not score.sufficient and not score.minimal and not score.spared


def test_a_path_without_which_nothing_is_known_cannot_be_removed(task, model):
    """However large the tolerance is."""
    score = ri.score_circuit(model, task, CIRCUIT, task.sample(4), tolerance=1e9, controls=0)
    losses = {"intact_loss": 0.1, "combined_loss": 1.0, "uninformed_loss": 2.0}
    for loss, spared in ((2.0, ()), (1.9, (score.paths[0].path,))):
        row = replace(score.paths[0], removed_loss=loss)
        learned = replace(score, **losses, paths=(row,), learned=True)
        assert learned.sufficient and learned.minimal == (not spared)
        assert learned.spared == spared


def test_ablations_equal_a_naive_loop(task, model):
    batch, least = task.sample(5, seed=2), 0.2
    found = ri.ablations(model, task, batch, least)
    empty = Circuit({}, 5)
    assert found.intact_loss == pytest.approx(naive_loss(model, task, empty, batch), abs=1e-5)
    assert len(found.heads) == 3 * 2 * 2
    for (head, mechanism), mse in found.heads.items():
        expected = naive_loss(model, task, empty.replace(head, mechanism), batch)
        assert mse == pytest.approx(expected, abs=1e-5)
    for head, rise in found.head_rises.items():
        losses = [loss for (other, _), loss in found.heads.items() if other == head]
        assert rise == pytest.approx(min(losses) - found.intact_loss)
    attention = ri.mean_attention(model, batch)
    wanted = [layer_head[path] >= least for layer_head in attention.flatten(0, 1) for path in PATHS]
    assert len(found.paths) == sum(map(bool, wanted))
    for row in found.paths:
        expected = naive_loss(model, task, empty.cut(row.path), batch)
        assert row.live_loss == pytest.approx(expected, abs=1e-5)
        assert row.attention == pytest.approx(float(attention[row.path.head][row.path.path]))


@pytest.mark.parametrize("rotary", [False, True])
def test_what_a_path_enables_is_seen_from_both_sides(rotary, task, model):
    """The sides by definition: queries, keys or values of a cut run in an intact head."""
    if rotary:
        task = Lookup()
        model = hooked_model(n_layers=3, positional_embedding_type="rotary", rotary_dim=8)
    batch = task.sample(6, seed=1)
    cut, other = HeadPath(Head(0, 0), RolePath(2, 1)), HeadPath(Head(1, 0), RolePath(0, 1))
    later = [HeadPath(Head(2, 1), RolePath(0, 2)), other]
    found = ri.enabled_by(model, batch, [other, cut], [*later, cut], least_drop=-1.0)
    assert {row.path for row in found[other]} == {later[0]}
    rows = found[cut]
    assert {row.path for row in rows} == set(later)
    _, before = model.run_with_cache(batch.inputs)
    with ri.ablated(model, Circuit.empty(task).cut(cut), batch):
        _, changed = model.run_with_cache(batch.inputs)
    example = torch.arange(6)[:, None]

    def at_role(run, name, path, role):
        """What is computed for a path's head at the positions of a role, [example chain d_head]."""
        layer, head = path.head
        return run[f"blocks.{layer}.attn.hook_{name}"][example, batch.roles[:, :, role], head]

    def attention(queries, keys, path):
        """The mean along a path by the queries of one run and the keys of another."""
        (layer, head), (dest, src), rot = path.head, path.path, "rot_" if rotary else ""
        q = at_role(queries, f"{rot}q", path, dest)
        k = keys[f"blocks.{layer}.attn.hook_{rot}k"][:, :, head]
        scores, place = q @ k.mT / q.shape[-1] ** 0.5, torch.arange(k.shape[1])
        hidden = place > batch.roles[:, :, dest, None]
        pattern = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        along = pattern.gather(2, batch.roles[:, :, src, None])
        return pytest.approx(float(along.mean()), abs=1e-5)

    for row in rows:
        assert row.attention == attention(before, before, row.path)
        assert row.when_cut == attention(changed, changed, row.path)
        assert row.by_query == attention(changed, before, row.path)
        assert row.by_key == attention(before, changed, row.path)
        x, y = (at_role(run, "v", row.path, row.path.path.src) for run in (before, changed))
        x, y = x - x.mean((0, 1)), y - y.mean((0, 1))
        share = float((x * y).sum() / (x * x).sum())
        assert row.by_value == pytest.approx(row.attention * share, abs=1e-5)


def test_random_circuits_have_the_same_size_and_mechanisms(task):
    lines = ["L0.H0 s2<-s1 s4<-s3", "L1.H0 shared s0<-s2 s0<-s4 s2<-s1"]
    circuit = ri.parse_circuit([*lines, "L2.H0 uniform", "L2.H1 identity"], task)
    paths = Positions.of(task.sample(8), Mask()).paths
    assert sorted(paths) == sorted(RolePath(*path) for path in PATHS)

    def shape(c):
        return Counter(
            (m.kind, tuple(sorted(Counter(path.dest for path in m.paths).values())))
            for m in c.mechanisms.values()
        )

    draw = random.Random(0)
    drawn = [random_circuit(circuit, HEADS, [paths] * 3, draw) for _ in range(30)]
    assert all(shape(other) == shape(circuit) for other in drawn)
    assert len({tuple(other.mechanisms.items()) for other in drawn}) > 25
    used = {path.path for other in drawn for path in other.paths()}
    assert used <= set(paths) and len(used) == len(paths)


def test_the_control_is_what_random_circuits_give(task, model, monkeypatch):
    """Two examples may refuse, all decide."""
    monkeypatch.setattr("retrieval_interp.circuits.scores.score.QUICK", 2)
    batch = task.sample(4)
    circuit = ri.parse_circuit(["L1.H0 s0<-s2"], task)
    paths = Positions.of(batch, Mask()).paths
    found = random_control(Scorer(model, task, batch), circuit, count=8, seed=4)
    draw = random.Random(4)
    drawn = [random_circuit(circuit, HEADS, [paths] * 3, draw) for _ in range(8)]
    goal, expected = naive_loss(model, task, circuit, batch), []
    for other in drawn:
        few = torch.tensor([naive_loss(model, task, other, batch[[n]]) for n in range(2)])
        is_close = few.mean() - 4 * few.std() / 2**0.5 <= goal
        expected.append(naive_loss(model, task, other, batch) if is_close else float(few.mean()))
    assert found == pytest.approx(sorted(expected), abs=1e-5)
