"""What tables, verdicts, JSON and attention pages show; all of a score come from the same rows."""

import json
import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits import parse_circuit, parse_head_path, score_circuit
from retrieval_interp.views.report import example_sequence, task_words
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


def test_every_key_of_the_json_is_documented(small):
    circuit = parse_circuit(LINES, small.task)
    pair = tuple(parse_head_path(f"L{layer}.H0 s0<-s2", 7) for layer in (2, 3))
    given = replace(circuit, redundant=(pair,), enabling=(parse_head_path(SERVING[0], 7),))
    batch = small.task.sample(8, split="test")
    scored = score_circuit(small.model, small.task, given, batch, controls=0)
    data = score_to_dict(scored, "small", small.task, 0)
    lists = ("heads", "paths", "enabling", "redundant")
    rows = [data, *(row for name in lists for row in data[name])]
    rows += [later for row in data["enabling"] for later in row["enables"]]
    page = (Path(__file__).parent.parent / "docs/commands.md").read_text()
    about = page.split("### The JSON of ablate")[1].split("### Circuit files")[0]
    assert all(data[name] for name in lists) and data["enabling"][0]["enables"]
    assert {key for row in rows for key in row if f"`{key}`" not in about} == set()


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


def test_the_task_is_said_with_an_example_and_heads_are_named():
    bench = ri.open("repeated", examples=32, progress=lambda items, what: items)
    circuit = ri.parse_circuit(["L0.H0 uniform", "L1.H0 s0<-s2"], bench.task)
    bench.suppose(replace(circuit, enabling=(parse_head_path("L0.H0 s2<-s1", bench.task),)))
    (row,) = bench.score().data.enabling
    (later,) = row.enables
    assert later.side == "key" and later.attention > 0.9 > 0.1 > later.when_cut
    drawing = bench.drawing()
    assert "L0.H0 previous-token head" in drawing and "enables (key) L1.H0" in drawing
    assert "L1.H0 induction head" in drawing
    words = task_words(bench.model, bench.task, bench.batch)
    assert "asks 15 questions" in words and "first A (s1) and B after it (s2)" in words
    sequence = example_sequence(bench.model, bench.task, bench.batch, bench.order)
    assert [place["text"] for place in sequence] == bench.task.position_labels(bench.batch, 0)
    marked = {place["role"]: number for number, place in enumerate(sequence) if place["role"]}
    assert marked == {f"s{role}": int(bench.batch.roles[0, 0, role]) for role in range(3)}


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
    model = deepcopy(model)
    for cfg in (model.cfg, *(block.attn.cfg for block in model.blocks)):
        cfg.attention_dir = "bidirectional"
    assert page_data(ri.attention_view(model, task, batch).html)["props"]["maskUpperTri"] is False
