"""What is concluded of models that others train, on models built by hand whose answer is known."""

import math

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.discovery.judge import Judge
from retrieval_interp.circuits.losses import Scorer
from retrieval_interp.circuits.mechanisms import PREVIOUS, UNIFORM
from retrieval_interp.circuits.paths import Head, HeadPath, RolePath
from retrieval_interp.views.scan_view import scan_verdict
from retrieval_interp.views.score_text import score_table, verdict
from tests.built_by_hand import END, Follows, Star, built, copies, finds_the_star, scores

PATH = HeadPath(Head(0, 0), RolePath(0, 2))


def star_model(sharpness=12.0, scale=20.0):
    return built(7, [finds_the_star(sharpness, scale), (scores(7), copies(0.0))])


def test_knowing_nothing_is_the_better_of_uniform_heads_and_a_constant():
    """With every head uniform this model is sure of letters that are not the answer."""
    model, task = star_model(), Star()
    batch = task.sample(256, split="test")
    blind = Circuit({Head(0, 0): UNIFORM, Head(0, 1): UNIFORM}, 3)
    score = ri.score_circuit(model, task, blind, batch, controls=0)
    shares = batch.targets[:, 0].bincount(minlength=4) / len(batch)
    entropy = float(-(shares * shares.log()).sum())
    assert score.combined_loss > 2 > entropy  # uniform heads
    assert score.uninformed_loss == pytest.approx(entropy, abs=0.02)
    assert score.uninformed_model == "the best constant output"
    learned = score.uninformed_loss - score.intact_loss
    share = (score.uninformed_loss - score.combined_loss) / learned
    assert not score.sufficient and score.kept == pytest.approx(share) and share < 0
    text = score_table(score, task)
    assert f"{score.uninformed_loss:.4f}" in text and "the best constant output" in text
    assert score.tolerance == pytest.approx(score.intact_loss + 0.05 * learned)
    found = ri.scan(model, task, examples=64)
    assert found.uninformed_model == "the best constant output"
    assert "constant" in scan_verdict(found)


def test_a_model_that_knows_nothing_has_not_learned():
    """It has the right shares of the letters, and some noise."""
    model, task = built(7, [(scores(7), copies(0.0))]), Star()
    with torch.no_grad():
        model.unembed.b_U += torch.tensor([0.01, -0.01, 0.0, 0.02])
    said = "has not learned the task: its cross entropy of 1.3"
    bench = ri.open(model, task, examples=64)
    bench.discover()
    assert said in bench.unlearned_text and not bench.circuit.mechanisms
    with pytest.warns(ri.InputWarning, match=said):
        assert ri.needed_paths(model, task, examples=64) == []
    with pytest.warns(ri.InputWarning, match=said):
        assert not ri.discover(model, task, examples=64).mechanisms
    bench.suppose("L0.H0 uniform")  # which changes nothing, and yet is no circuit of anything
    score = bench.score(0).data
    assert not (score.learned or score.sufficient or score.minimal) and math.isnan(score.kept)
    assert said in verdict(score, task)
    found = ri.scan(model, task, examples=64, joint=True)
    assert said in scan_verdict(found) and not found.learned and math.isnan(found.kept)


def test_nothing_is_returned_that_is_worse_than_the_tolerance():
    """The intact model is not clearly below it, and no start holds."""
    model, task = star_model(sharpness=3.0), Star()
    intact = Scorer(model, task, task.sample(64, split="discovery")).base_losses.mean()
    bench = ri.open(model, task, examples=64, tolerance=float(intact) * 0.5)
    said = repr(bench.discover(heads=["L0.H1"]))
    assert not bench.circuit.mechanisms and not bench.circuit.unfinished
    assert "The search has ended: the intact model itself is not below" in said


def test_what_is_needed_in_few_examples_is_found():
    """One example in twenty has a star; in all others the bias gives the answer."""
    task, seed = Star(starless=0.95), 0
    first = task.sample(64, seed, split="discovery")
    bias = torch.tensor([9.0, 0.0, 0.0, 0.0])
    looks, writes = finds_the_star(20.0, 30.0)
    looks[END, END] = 10.0  # so that END keeps to itself where there is no star
    model = built(7, [(looks, writes)], bias=bias)
    judge = Judge(model, task, task.sample(512, seed, split="discovery"))
    cut = judge.empty.cut(PATH)
    assert judge.loss(judge.empty) < judge.limit.loss < 0.1 < judge.losses_by_example(cut).mean()
    assert ri.needed_paths(model, task, seed=seed) == [(PATH,)]
    rare = (first.roles[:, 0, 2] >= 0).sum()
    assert rare < 12


@pytest.mark.parametrize("rows", [range(5), [2]])
def test_a_head_that_works_in_one_row_gets_its_rule(rows):
    looks = torch.zeros(9, 9)
    for dest in range(5):
        looks[4 + dest, 4 + max(dest - 1, 0) if dest in rows else 4 + dest] = 30.0
    model = built(5, [(looks, torch.eye(4) * 9)], d_vocab=4, attention_dir="bidirectional")
    assert ri.discover(model, Follows(), examples=64).mechanisms == {Head(0, 0): PREVIOUS}


def test_a_circuit_that_is_told_where_the_answer_stands_says_so():
    """A head that attends to the star with 0.5 to 0.9, replaced by one that is told where it is."""
    model, task = star_model(sharpness=3.5, scale=5.0), Star()
    bench = ri.open(model, task, examples=256)
    bench.suppose("L0.H0 one-hot END<-star", "L0.H1 uniform")
    score = bench.score(0).data
    gain = score.intact_loss - score.combined_loss
    assert score.better and score.sufficient and gain > 0.02
    by, told = score.notes
    assert f"better than the intact model, by {gain:.4g}" in by
    assert "told where the answer stands: its path L0.H0 END" in told
    bench.suppose("L0.H0 original")
    other = bench.score(0).data
    assert not other.better and not other.notes
