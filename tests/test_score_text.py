"""What tables say of paths whose use is not seen, and of a tolerance that cannot be kept."""

from dataclasses import replace

import pytest

import retrieval_interp as ri
from retrieval_interp.circuits import parse_circuit, parse_head_path, score_circuit
from retrieval_interp.circuits.discovery.search import discover
from retrieval_interp.circuits.scores.enabling import LEAST_DROP, enabled_by
from retrieval_interp.views.page import unbroken
from retrieval_interp.views.score_text import path_rows, score_table, verdict

LINES = ["L2.H0 one-hot s0<-s2 s4<-s6", "L4.H0 one-hot s0<-s4"]
SERVING = ("L0.H0 s2<-s1", "L0.H0 s4<-s4", "L4.H0 s0<-s0")


@pytest.fixture(scope="module")
def small():
    return ri.load_checkpoint("small")


@pytest.fixture(scope="module")
def batch(small):
    return small.task.sample(64, split="test")


@pytest.fixture(scope="module")
def score(small, batch):
    enabling = tuple(sorted(parse_head_path(text, 7) for text in SERVING))
    circuit = replace(parse_circuit(LINES, small.task), enabling=enabling)
    return score_circuit(small.model, small.task, circuit, batch, controls=0)


def said(score, task):
    return {row[0]: row[-1] for row in path_rows(score, task)}


def test_the_later_path_that_loses_most_is_known_where_none_loses_enough(small, batch, score):
    later = [row.path for row in (*score.paths, *score.enabling)]
    for row in (*score.paths, *score.enabling):
        lost = enabled_by(small.model, batch, [row.path], later, 0.0)[row.path]
        counted = tuple(one for one in lost if one.attention - one.when_cut >= LEAST_DROP)
        assert row.enables == counted
        assert row.nearly == (None if counted or not lost else lost[0])


def test_no_row_is_silent(small, score):
    does = said(score, small.task)
    assert all(does.values())
    assert does["L0.H0 s2<-s1"].startswith("enables L2.H0 s0<-s2 (key")
    # By itself in the last layer: nothing later could lose attention.
    last = next(row for row in score.enabling if str(row.path) == "L4.H0 s0<-s0")
    assert last.nearly is None and last.live_loss <= score.tolerance
    assert does["L4.H0 s0<-s0"] == "the intact model does without it"


def test_a_path_that_is_needed_for_nothing_seen_says_what_is_known(small, score):
    """As `L0.H0 s4<-s4` would read if it took a little less of the later path's attention."""
    row = next(row for row in score.enabling if str(row.path) == "L0.H0 s4<-s4")
    (most,) = row.enables
    quiet = replace(row, enables=(), nearly=replace(most, when_cut=most.attention - 0.05))

    def with_enabling(*rows):
        replaced = replace(score.replaced, paths=())
        return replace(score, intact=replace(score.intact, enabling=rows), replaced=replaced)

    changed = with_enabling(quiet)
    assert row.live_loss > score.tolerance
    assert said(changed, small.task)["L0.H0 s4<-s4"] == (
        f"needed by the intact model (intact: {score.baseline_loss:.4f}); no later path listed "
        f"here loses 0.1 of attention without it (most: L4.H0 s0<-s4, {most.attention:.2f} to "
        f"{most.attention - 0.05:.2f})"
    )
    alone = with_enabling(replace(quiet, nearly=None))
    assert said(alone, small.task)["L0.H0 s4<-s4"].endswith(
        "no later path listed here loses attention without it"
    )
    rotary = replace(alone, notes=("Enabled paths are not shown: rotary.",))
    assert said(rotary, small.task)["L0.H0 s4<-s4"].endswith("what it enables cannot be told")


def test_a_tolerance_out_of_reach_is_said_and_by_how_much(small, score):
    tight = replace(score, tolerance=score.baseline_loss - 0.001)
    assert score.reachable and not tight.reachable
    rows = said(tight, small.task)
    assert list(rows) == [str(row.path) for row in score.paths]  # what the model needs is left out
    text = verdict(tight, small.task)
    assert "The tolerance is out of reach on these examples: the intact model's own MSE of" in text
    assert "is 0.001 above" in text and "3 rows about that are left out" in text
    assert text.endswith("Try a tolerance of 0.05.")
    # A model that misses the task's own as well: 0.75 - 0.95 * (0.75 - 0.4).
    assert score.uninformed_loss == 0.75
    poor = verdict(replace(score, intact=replace(score.intact, loss=0.4)), small.task)
    assert poor.endswith(("Try a tolerance of 0.417.", "Try a tolerance of 0.418."))
    assert "out of reach" not in verdict(score, small.task)
    assert "L0.H0 s2<-s1" not in score_table(tight, small.task)


@pytest.mark.slow
def test_a_search_blames_no_path_where_the_intact_model_barely_holds(small):
    """Of 512 examples the intact loss is just below this tolerance; any cut would exceed it."""
    batch = small.task.sample(64, split="discovery")
    from retrieval_interp.circuits.scores.scorer import Scorer

    scorer = Scorer(small.model, small.task, batch)
    barely = scorer.rebase(scorer.empty_circuit) + 1e-4
    found = discover(small.model, small.task, barely, examples=64, restarts=1)
    assert found.enabling == () and found.redundant == ()


def test_a_note_on_heads_replaced_alone_is_there_only_where_one_costs_more(small, score):
    worst = max(row.loss for row in score.heads)
    assert worst > score.combined_loss
    assert "Replacing one head can cost more" in score_table(score, small.task)
    more = replace(score, replaced=replace(score.replaced, loss=worst))
    assert "Replacing one head" not in score_table(more, small.task)


def test_words_with_arrows_stay_on_one_line():
    assert unbroken("<L0.H0 s4<-s3, B of A->B") == (
        '&lt;L0.H0 <span class="nowrap">s4&lt;-s3</span>, B of <span class="nowrap">A-&gt;B</span>'
    )
