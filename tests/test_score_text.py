"""What tables, verdicts, JSON and attention pages show; all of a score come from the same rows."""

import json
import re
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits import parse_circuit, parse_head_path, score_circuit
from retrieval_interp.circuits.hooks import is_hooked_transformer
from retrieval_interp.views.score_text import path_table, score_table, score_to_dict, verdict

LINES = ["L2.H0 one-hot s0<-s2 s4<-s6", "L4.H0 one-hot s0<-s4"]
SERVING = ("L0.H0 s2<-s1", "L0.H0 s4<-s4", "L4.H0 s0<-s0")


@pytest.fixture(scope="module")
def score(small):
    enabling = tuple(sorted(parse_head_path(text, 7) for text in SERVING))
    circuit = replace(parse_circuit(LINES, small.task), enabling=enabling)
    batch = small.task.sample(64, split="test")
    return score_circuit(small.model, small.task, circuit, batch, controls=0)


def does(score, task):
    return {row[0]: row[-1] for row in path_table(score, task)[1]}


def test_tables_and_json_have_the_same_numbers(small, score):
    data, text = score_to_dict(score, "small", small.task, 0), score_table(score, small.task)
    for row in (*data["paths"], *data["enabling"]):
        (line,) = [line for line in text.splitlines() if line.startswith(row["name"] + " ")]
        assert f" {row['live_loss']:.4f} " in line and row["does"] in line
        assert ("ablated_loss" in row) == ("carries" in line)
    for row, scored in zip(data["paths"], score.paths):
        assert row["ablated_loss"] == scored.ablated_loss
        assert row["dest"] == f"s{scored.path.path.dest}"
    assert data["combined_loss"] == score.combined_loss and f"{score.combined_loss:.4f}" in text


def test_no_row_is_silent(small, score):
    said = does(score, small.task)
    assert all(said.values())
    assert said["L0.H0 s2<-s1"].startswith("enables L2.H0 s0<-s2 (key")
    # By itself in the last layer: nothing later could lose attention.
    assert said["L4.H0 s0<-s0"] == "the intact model does without it"


def test_a_tolerance_out_of_reach_is_said(small, score):
    tight = replace(score, tolerance=score.baseline_loss - 0.001)
    assert score.reachable and not tight.reachable
    # What the model needs is left out.
    assert list(does(tight, small.task)) == [str(row.path) for row in score.paths]
    assert "out of reach" in verdict(tight, small.task)
    assert "out of reach" not in verdict(score, small.task)


def page_data(html):
    return json.loads(re.search(r"^const data = (\{.*\});$", html, re.M)[1])


def test_the_page_holds_the_attention_of_every_example(model, task):
    batch = task.sample(6)
    view = ri.attention_view(model, task, batch, [4, 1])
    data = page_data(view.html)
    _, cache = model.run_with_cache(batch.inputs)
    for place, example in enumerate([4, 1]):
        for head, pattern in enumerate(data["attention"][place]):
            layer, number = divmod(head, model.cfg.n_heads)
            expected = cache[f"blocks.{layer}.attn.hook_pattern"][example, number]  # [dest src]
            shown = torch.tensor(pattern) / 1000
            torch.testing.assert_close(shown, expected, atol=5e-4, rtol=0)
        assert data["tokens"][place] == task.position_labels(batch, example)
    names = data["props"]["attentionHeadNames"]
    assert names == [f"L{layer}.H{head}" for layer in range(3) for head in range(2)]
    assert data["props"]["maskUpperTri"] is True
    assert re.findall(r"<option value=\"\d+\">(\d+)</option>", view.html) == ["4", "1"]
    if not is_hooked_transformer(model):
        return  # a bridge shows by itself what it masks
    model = deepcopy(model)
    for cfg in (model.cfg, *(block.attn.cfg for block in model.blocks)):
        cfg.attention_dir = "bidirectional"
    assert page_data(ri.attention_view(model, task, batch).html)["props"]["maskUpperTri"] is False
