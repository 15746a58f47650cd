"""Circuits in words; every number of a sentence is one of the score."""

from dataclasses import replace

import pytest
from retrieval_interp.views.finding import example_sequence, finding, task_words

import retrieval_interp as ri
from retrieval_interp.config.model_config import ModelConfig
from retrieval_interp.training.model import build_model

INDUCTION = {
    "heads": [
        {"layer": 0, "head": 0, "mechanism": "uniform"},
        {"layer": 1, "head": 0, "mechanism": "one-hot", "paths": [["s0", "s2"]]},
    ],
    "enabling": ["L0.H0 s2<-s1"],
}


def test_chains_say_who_fetches_what():
    task = ri.RetrievalTask(chains=2, steps=3, dim=2)
    model = build_model(ModelConfig(layers=3, heads=1, d_model=8), task)
    lines = ["L0.H0 s2<-s1 s4<-s3 s6<-s5", "L1.H0 s0<-s2 s4<-s6", "L2.H0 s0<-s4"]
    batch = task.sample(8)
    score = ri.score_circuit(model, task, ri.parse_circuit(lines, task), batch, controls=0)
    assert finding(score, task, batch, 3, 1) == []  # of a model that has learned nothing
    said = finding(replace(score, baseline_loss=0.01), task, batch, 3, 1)
    assert said[:2] == [
        "L1.H0 fetches B from B of A->B; L2.H0 fetches C and D from C of B->C, where L1.H0 had "
        "brought D.",
        "By information flow along its paths, this circuit can deliver B, C and D.",
    ]
    empty = ri.score_circuit(model, task, ri.Circuit({}, 7), batch, controls=0)
    assert finding(empty, task, batch, 3, 1) == []


@pytest.fixture(scope="module")
def repeated():
    bench = ri.open("repeated", examples=32, progress=lambda items, what: items)
    bench.suppose(ri.Circuit.from_dict(INDUCTION, 3))
    return bench


def replace_head(path, layer):
    return path._replace(head=path.head._replace(layer=layer))


def test_an_induction_heads_circuit_reads_as_one(repeated):
    score = repeated.score().data
    (later,) = score.enabling[0].enables
    assert later.side == "key" and later.attention > 0.9 > 0.1 > later.when_cut
    assert finding(score, repeated.task, repeated.batch, 2, 1) == [
        "L1.H0, an induction head, brings what is at “B after it” to “repeated A”.",
        "L0.H0, a previous-token head, brings “first A” to “B after it”, which enables L1.H0 "
        f"(key; without it the attention s0<-s2 falls from {later.attention:.2f} to "
        f"{later.when_cut:.2f}).",
    ]
    others = tuple(
        replace(later, path=replace_head(later.path, head), when_cut=later.when_cut + 0.1 * number)
        for number, head in ((3, 3), (2, 2), (1, 4), (4, 2), (5, 4))
    )
    row = replace(score.enabling[0], enables=(*others, later))
    last = finding(replace(score, enabling=(row,)), repeated.task, repeated.batch, 5, 1)[-1]
    assert last.count("falls from") == 2 and last.index("L1.H0") < last.index("L4.H0")
    assert last.endswith(", and less so L2.H0 and L3.H0.")
    tight = replace(score, tolerance=score.baseline_loss / 2)
    assert not tight.reachable  # so that it cannot be told what enables
    assert len(finding(tight, repeated.task, repeated.batch, 2, 1)) == 1
    drawing = repeated.drawing()
    assert "L0.H0 previous-token head" in drawing and "enables (key) L1.H0" in drawing
    assert "L1.H0 induction head" in drawing


def test_the_task_is_said_in_two_sentences_with_an_example(repeated):
    task, batch = repeated.task, repeated.batch
    first, second = task_words(repeated.model, task, batch)
    assert first.startswith("16 of 64 tokens, repeated") and "2 layers of 1 head" in first
    assert second == (
        "An example has 33 positions and asks 15 questions; the roles of a question are repeated A "
        "(s0), first A (s1) and B after it (s2)."
    )
    sequence = example_sequence(repeated.model, task, batch, repeated.order)
    assert [place["text"] for place in sequence] == task.position_labels(batch, 0)
    marked = {place["role"]: number for number, place in enumerate(sequence) if place["role"]}
    assert marked == {f"s{role}": int(batch.roles[0, 0, role]) for role in range(3)}
