"""Scores against runs with hooks set by hand, and what must not change them."""

from dataclasses import replace

import pytest
import torch

from retrieval_interp.circuits.circuit import Circuit, Head, RolePath
from retrieval_interp.circuits.losses import Scorer
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM, OneHot, Shared
from retrieval_interp.circuits.scores.score import score_circuit
from retrieval_interp.model import ModelConfig, build_model
from retrieval_interp.tasks import InputError, RetrievalTask
from tests.oracles import hooks_left, naive_mse, naive_outputs

CIRCUIT = Circuit(
    {
        Head(0, 0): Shared((RolePath(2, 1), RolePath(0, 2), RolePath(0, 4))),
        Head(0, 1): UNIFORM,
        Head(1, 1): IDENTITY,
        Head(2, 0): OneHot((RolePath(0, 4),)),
    },
    n_roles=5,
)


@pytest.mark.parametrize("mlp", [True, False])
@pytest.mark.parametrize("heads", [1, 2])
def test_every_score_equals_a_whole_run_with_hooks_set_by_hand(task, mlp, heads):
    model = build_model(ModelConfig(3, heads, 16, mlp=mlp), task)
    batch = task.sample(7, seed=3)
    kept = {head: m for head, m in CIRCUIT.mechanisms.items() if head.head < heads}
    circuit = Circuit(kept, 5)
    score = score_circuit(model, task, circuit, batch, controls=0)
    empty = Circuit({}, 5)

    def naive(c):
        return pytest.approx(naive_mse(model, task, c, batch), abs=1e-5)

    assert score.baseline_loss == naive(empty)
    assert score.combined_loss == naive(circuit)
    assert len(score.heads) == 3 * heads
    for row in score.heads:
        assert row.loss == naive(empty.replace(row.head, circuit[row.head]))
        assert (row.emptied is None) == (row.head not in kept)
        if row.emptied:
            assert row.emptied.loss == naive(circuit.replace(row.head, OneHot(())))
    assert [row.path for row in score.paths] == list(circuit.paths())
    for row in score.paths:
        assert row.ablated_loss == naive(circuit.without(row.path))
        assert row.live_loss == naive(empty.cut(row.path))
    with torch.no_grad():
        outputs = naive_outputs(model, circuit, batch)[:, -task.chains :]
    each = (outputs - batch.targets).square().mean(dim=(1, 2))
    assert score.combined_se == pytest.approx(float(each.std()) / 7**0.5, abs=1e-5)
    assert hooks_left(model) == 0


def test_models_and_batches_that_do_not_fit_are_refused(task, model):
    longer, other = RetrievalTask(steps=3), RetrievalTask(chains=3, steps=3, dim=4)
    with pytest.raises(InputError, match="found 8 and 8"):
        Scorer(model, longer, longer.sample(2))
    with pytest.raises(InputError, match="s0 to s4, found 7"):
        Scorer(model, task, other.sample(2))
    scorer = Scorer(model, task, task.sample(2))
    later = Circuit({Head(0, 0): OneHot((RolePath(1, 2),))}, 5)
    for _ in range(2):  # a path that was refused is not taken to be checked
        with pytest.raises(InputError, match="a source before its destination"):
            scorer.loss(later)


def test_sufficient_and_minimal_follow_the_tolerance(task, model):
    batch = task.sample(4)
    score = score_circuit(model, task, CIRCUIT, batch, 1e9, controls=0)
    assert not score.sufficient  # an untrained model's circuit is worse than knowing nothing
    score = replace(score, uninformed_loss=2.0, learned=True)
    assert score.sufficient and not score.minimal
    score = score_circuit(model, task, CIRCUIT, batch, 1e-9, controls=0)
    assert not score.sufficient and not score.minimal and not score.spared
    empty = score_circuit(model, task, Circuit({}, 5), batch, 1e9, controls=0)
    assert not empty.sufficient and not empty.minimal


def test_a_path_without_which_nothing_is_known_cannot_be_removed(task, model):
    """However large the tolerance is."""
    score = score_circuit(model, task, CIRCUIT, task.sample(4), tolerance=1e9, controls=0)
    worst = replace(score.paths[0], ablated_loss=2.0)
    for loss, minimal in ((2.0, True), (1.9, False)):
        row = replace(worst, ablated_loss=loss)
        losses = {"baseline_loss": 0.1, "combined_loss": 1.0, "uninformed_loss": 2.0}
        learned = replace(score, **losses, paths=(row,), learned=True)
        assert learned.sufficient and learned.minimal == minimal
        assert learned.spared == (() if minimal else (row.path,))
