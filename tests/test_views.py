"""Drawings of circuits; tables, verdicts, JSON and attention pages."""

import json
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.draw.layout import head_kind, worth_of_paths
from retrieval_interp.circuits.mechanisms import UNIFORM, OneHot
from retrieval_interp.circuits.paths import Head, HeadPath, RolePath
from retrieval_interp.views.score_text import path_table, score_table, score_to_dict, verdict

TASK = ri.RetrievalTask(chains=3, steps=2)
ENABLING = ri.parse_head_path("L0.H0 s2<-s1", 5)
CIRCUIT = replace(
    ri.parse_circuit(["L0.H0 s4<-s3", "L1.H0 uniform", "L2.H1 shared s0<-s2 s0<-s4"], TASK),
    enabling=(ENABLING,),
)
SEQUENCE = [3, 4, 1, 2, 0]  # the order of the roles
SVG = "{http://www.w3.org/2000/svg}"


def arrows(svg):
    """Every arrow's line, by its path."""
    groups = (group for group in ET.fromstring(svg) if group.get("data-path"))
    return {group.get("data-path"): group[2] for group in groups}


def test_an_arrow_ends_where_its_path_ends():
    """Roles stand in the order of the sequence, layers one above the other."""
    svg = ri.draw_circuit(CIRCUIT, 4, task=TASK)
    dots = list(ET.fromstring(svg).iter(f"{SVG}circle"))
    xs, ys = (sorted({float(dot.get(key)) for dot in dots}) for key in ("cx", "cy"))
    floors = ys[::-1]
    paths = [*CIRCUIT.paths(), ENABLING]
    assert set(arrows(svg)) == set(map(str, paths))
    for path in paths:
        line, (dest, src) = arrows(svg)[str(path)], map(SEQUENCE.index, path.path)
        (x, y), *_, (end, top) = re.findall(r"([\d.]+) ([\d.]+)", line.get("d"))
        assert (float(x), float(end)) == (xs[src], xs[dest])
        layer = path.head.layer
        assert (float(y), float(top)) == (floors[layer] - 5, floors[layer + 1] + 5)
        assert bool(line.get("stroke-dasharray")) == (path == ENABLING)


def test_an_arrow_is_as_wide_as_its_path_is_worth_of_what_was_learned():
    """A cross entropy of 4.2 before anything is learned, not an MSE of 1."""
    losses = dict(zip(CIRCUIT.paths(), (0.2, 2.2, 9.0)))
    svg = ri.draw_circuit(CIRCUIT, arrows=worth_of_paths(losses, 0.2, 4.2))
    widths = [float(line.get("stroke-width")) for line in arrows(svg).values()]
    assert widths == pytest.approx([1.5, 1.5, 3.75, 6.0], abs=0.06)


def test_idle_layers_of_a_deep_model_share_a_row():
    replaced = {Head(layer, head): UNIFORM for layer in range(15, 18) for head in (0, 1)}
    circuit = Circuit(replaced | {Head(20, 1): OneHot((RolePath(0, 2),))}, 5)
    texts = [text.text for text in ET.fromstring(ri.draw_circuit(circuit, 22)).iter(f"{SVG}text")]
    rows = ["L0-L14 original", "L15-L17: 2 uniform each", "L18-L19 original", "L20.H1 one-hot"]
    assert [text for text in texts if text.startswith("L")] == [*rows, "L21 original"]
    assert ri.draw_circuit(Circuit({}, 5), 12).count("L3 original") == 1


def test_heads_are_called_by_what_their_paths_do_on_every_chain():
    batch = ri.RepeatedTokensTask(length=6, alphabet=8).sample(32)

    def kind(*paths, batch=batch):
        return head_kind([HeadPath(Head(0, 0), RolePath(*path)) for path in paths], batch)

    assert kind((2, 1)) == "previous-token head"
    assert kind((0, 1)) == "duplicate-token head"
    assert kind((0, 2)) == "induction head"
    assert kind((0, 2), (2, 1)) == kind((0, 0)) == kind((1, 1)) == ""
    assert kind((0, 2), batch=ri.RetrievalTask(steps=1).sample(8)) == ""


LINES = ["L2.H0 one-hot s0<-s2 s4<-s6", "L4.H0 one-hot s0<-s4"]
SERVING = ("L0.H0 s2<-s1", "L0.H0 s4<-s4", "L4.H0 s0<-s0")


@pytest.fixture(scope="module")
def score(small):
    enabling = tuple(sorted(ri.parse_head_path(text, 7) for text in SERVING))
    circuit = replace(ri.parse_circuit(LINES, small.task), enabling=enabling)
    batch = small.task.sample(64, split="test")
    return ri.score_circuit(small.model, small.task, circuit, batch, controls=0)


def does(score, task):
    return {row[0]: row[-1] for row in path_table(score, task)[1]}


def test_tables_and_json_have_the_same_numbers(small, score):
    data, text = score_to_dict(score, "small", small.task, 0), score_table(score, small.task)
    for row in (*data["paths"], *data["enabling"]):
        (line,) = [line for line in text.splitlines() if line.startswith(row["name"] + " ")]
        assert f" {row['live_loss']:.4f} " in line and row["does"] in line
        assert ("removed_loss" in row) == ("carries" in line)
    removed = [row.removed_loss for row in score.paths]
    assert [row["removed_loss"] for row in data["paths"]] == removed
    assert data["combined_loss"] == score.combined_loss and f"{score.combined_loss:.4f}" in text
    said = does(score, small.task)
    assert all(said.values())
    assert said["L0.H0 s2<-s1"].startswith("enables L2.H0 s0<-s2 (key")
    # By itself in the last layer: nothing later could lose attention.
    assert said["L4.H0 s0<-s0"] == "the intact model does without it"


def test_a_tolerance_out_of_reach_is_said(small, score):
    tight = replace(score, tolerance=score.intact_loss - 0.001)
    assert score.reachable and not tight.reachable
    # What the model needs is left out.
    assert list(does(tight, small.task)) == [str(row.path) for row in score.paths]
    assert "out of reach" in verdict(tight, small.task)
    assert "out of reach" not in verdict(score, small.task)


def test_the_page_holds_the_attention_of_every_example(model, task):
    batch = task.sample(6)
    view = ri.attention_view(model, task, batch, [4, 1])
    data = json.loads(re.search(r"^const data = (\{.*\});$", view.html, re.M)[1])
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
    assert re.findall(r"<option value=\"\d+\">(\d+)</option>", view.html) == ["4", "1"]
