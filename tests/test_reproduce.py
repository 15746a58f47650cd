"""The claims: what decides each, and what the package's own evidence says."""

import json
import re
import runpy
import shlex
from pathlib import Path

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits import Scorer
from retrieval_interp.circuits.mechanisms import UNIFORM, OneHot, Shared
from retrieval_interp.commands.ablate import main as ablate
from retrieval_interp.commands.reproduce import main
from retrieval_interp.emergence.report import emergence_json
from retrieval_interp.emergence.series import LogRow, PathAtStep, Series, Snapshot
from retrieval_interp.reproduce import evidence as evidence_module
from retrieval_interp.reproduce.claims import CLAIMS, costs_of_paths, heads_emerge, judge
from retrieval_interp.reproduce.evidence import Evidence, Shipped, Worth, worth_of
from tests.naive import naive_loss

RECIPE = {"task": {"steps": 5, "base": 100.0}, "steps": 4000, "batch": 128}
RECIPE |= {"model": {"d_model": 64, "heads": 1, "mlp": False}}


def grid(name="section7-ic", partial=((0.6, 0.7, 0.8), (0.1, 0.4, 0.8)), **changes):
    """What a sweep of two cells says of itself."""
    said = {"command": "a command", "grid": name, "scale": "laptop", "recipe": RECIPE}
    said |= {"asked": ["x_1", "x_2", "x_3"], "cells": 2, "finished": 2, "failed": {}}
    said |= {"order": {"held": 2, "broken": [], "fewer_than_two_fell": 0}, "share_above_0.7": 0.5}
    said["depths"] = [
        {"layers": at, "partial_losses": list(row)}
        | dict.fromkeys(("mean", "min", "max"), sum(row) / len(row))
        for at, row in enumerate(partial, start=1)
    ]
    return said | changes


@pytest.fixture
def results(tmp_path, monkeypatch):
    """An empty folder in place of the package's results, and no shipped checkpoints."""
    monkeypatch.setattr(evidence_module, "results_folder", lambda: tmp_path / "results")
    monkeypatch.setattr(evidence_module.storage, "shipped_checkpoints", dict)
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


def judged(results, only):
    return judge(Evidence(results.parent / "runs"), [only])[only]


def test_where_nothing_was_run_there_is_no_number(results):
    found = judge(Evidence(results.parent / "runs"))
    assert found.keys() == CLAIMS.keys()
    for row in (row for name, rows in found.items() for row in rows if name != "C2"):
        assert (row.ours, row.verdict) == ("", "not run")
        assert row.command.startswith("python -m retrieval_interp")


@pytest.mark.parametrize(
    ("only", "summary", "ours", "verdict"),
    [
        ("C3", {"share_above_0.7": 1.0}, "2 of 2 runs end above 0.7", "at smaller scale"),
        ("C3", {"share_above_0.7": 0.5}, "1 of 2 runs end above 0.7", "not reproduced"),
        ("C3", {"share_above_0.7": 1.0, "scale": "full"}, "2 of 2 runs", "reproduced"),
        ("C4", {}, "x_1 from 2 layers, x_2 from 2 layers, x_3 at no depth", "at smaller scale"),
        ("C4", {"partial": ((0.9, 0.1, 0.2), (0.4, 0.1, 0.2))}, "x_2 from 1 layers", "not rep"),
        ("C5", {}, "2 of 2 runs", "reproduced at smaller scale"),
        ("C5", {"order": {"held": 1, "broken": ["a"], "fewer_than_two_fell": 3}}, "1 of 2", "not"),
    ],
)
def test_a_grids_numbers_decide(results, only, summary, ours, verdict):
    name = "section7-nonic" if only == "C3" else "section7-ic"
    (results / f"{name}.json").write_text(json.dumps(grid(name, **summary)))
    (row,) = judged(results, only)
    assert ours in row.ours and verdict in row.verdict and row.command == "a command"
    assert row.verdict.startswith("not") == verdict.startswith("not")
    (results / f"{name}-5.json").write_text(json.dumps(grid(name, **summary | {"scale": "larger"})))
    assert [found.run for found in judged(results, only)] == [row.run, "larger"]


@pytest.mark.parametrize(("accuracy", "verdict"), [(0.97, "reproduced at"), (0.9, "not rep")])
def test_answers_in_words_are_read_from_the_rows_of_llm(results, accuracy, verdict):
    row = {"model": "own", "formulation": "equations", "questions": 9, "chance": 0.25}
    row |= {"stderr": 0.02, "command": "its command"}
    rows = [{**row, "steps": 2, "accuracy": 1.0}, {**row, "steps": 3, "accuracy": accuracy}]
    rows.append({**rows[0], "solved": 1, "accuracy": 0.5, "questions": 8})
    (results / "llm.json").write_text(json.dumps({"command": "a command", "rows": rows}))
    found, other = judged(results, "C1")
    assert (other.run, other.verdict) == ("own, 1 solved", "not reproduced")
    said = f"equations D = 2, 3: 100% +- 2%, {accuracy:.0%} +- 2% (chance 25%)"
    assert (found.ours, found.scale) == (said, "9 questions each (500)")
    assert found.verdict.startswith(verdict) and found.command == "its command"


def test_a_finished_sweep_counts_too_if_it_says_how_it_was_made(results):
    folder = results.parent / "runs" / "section7-nonic"
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(grid("section7-nonic")))
    (row,) = judged(results, "C3")
    assert "1 of 2" in row.ours
    (folder / "summary.json").write_text(json.dumps({"finished": 1}))
    with pytest.raises(ri.InputError, match="command that made it"):
        judged(results, "C3")


@pytest.mark.slow
def test_the_shipped_models_numbers_are_those_of_its_circuit(monkeypatch, small):
    only = {"small": ri.shipped_checkpoints()["small"]}
    monkeypatch.setattr(evidence_module.storage, "shipped_checkpoints", lambda: only)
    package = Evidence(Path("/nowhere"))
    text = (evidence_module.results_folder() / "small.circuit.json").read_text()
    circuit = ri.Circuit.from_json(text, 7)
    batch = small.task.sample(512, split="test")
    score = ri.score_circuit(small.model, small.task, circuit, batch, controls=0)
    ours = {name: rows[-1] for name, rows in judge(package, ["C6", "C7", "C9"]).items()}
    assert {row.run for row in ours.values()} == {"small"}
    fresh = small.task.sample(4096, split="test")
    with torch.no_grad():
        loss = float(small.task.loss(small.model(fresh.inputs), fresh))
    assert ours["C6"].ours.startswith(f"{loss:.4f} +- ")
    assert ours["C7"].ours.startswith(f"{score.combined_loss:.4f} with 5 of 5 heads replaced")
    assert ours["C9"].ours.startswith("3 useful heads (least possible 3)")
    assert {row.verdict for row in ours.values()} == {"reproduced at smaller scale"}


@pytest.mark.slow
def test_paths_of_several_heads_are_removed_together(small):
    """And the first useful layer is made uniform; as with plain hooks."""
    shipped, shared = Evidence(Path("/nowhere")).trained("small").circuit, ri.RolePath(0, 2)
    circuit = shipped.replace((3, 0), OneHot((shared,)))
    batch = small.task.sample(512, split="test")
    worth = worth_of(Scorer(small.model, small.task, batch), circuit)
    without = circuit.without(ri.HeadPath(ri.Head(2, 0), shared)).replace((3, 0), OneHot(()))
    path, alone = list(worth.ablated.items())[-1]
    naive = [
        naive_loss(small.model, small.task, changed, batch)
        for changed in (without, circuit.replace((0, 0), UNIFORM), circuit.without(path))
    ]
    costs = [worth.together[shared], worth.first_uniform, alone]
    assert costs == pytest.approx(naive, abs=1e-5)
    assert len(worth.together) == 1 and len(worth.useful) == 4


@pytest.mark.parametrize(
    ("combined", "first", "later", "said", "agrees"),
    [
        (0.04, 0.07, 0.5, "0.07 with the first useful layer (L2) uniform; 1 of 1 later", True),
        # The ends belong to the range, to two decimals.
        (0.04, 0.1049, 0.8949, "1 of 1 later paths inside, 0 below: L5.H0 s0<-s2 0.89", True),
        (0.04, 0.1051, 0.5, "0.11 with the first", False),
        (0.04, 0.07, 0.1649, "0 of 1 later paths inside, 1 below: L5.H0 s0<-s2 0.16", False),
        # A circuit that does not hold shows nothing about its paths.
        (0.06, 0.07, 0.5, "1 of 1 later paths", False),
        (0.04, 0.07, None, "0 of 0 later paths inside, 0 below: none", False),
    ],
)
def test_each_path_has_to_cost_what_the_papers_do(combined, first, later, said, agrees):
    costs = {"L2.H0 s2<-s1": 0.3, "L5.H0 s0<-s2": later}
    paths = {ri.parse_head_path(path, 7): cost for path, cost in costs.items() if cost is not None}
    useful, together = (ri.Head(2, 0), ri.Head(5, 0)), {ri.RolePath(0, 2): 0.7}
    text, as_claimed = costs_of_paths(Worth(combined, paths, together, useful, first))
    assert said in text and as_claimed is agrees
    assert text.endswith("; paths removed from all their heads: s0<-s2 0.70")


def test_transformer_d_and_its_circuit_are_judged_by_the_papers_losses(monkeypatch):
    package = Evidence(Path("/nowhere"))
    for fresh, combined, verdict in (
        (0.0310, 0.0450, "reproduced"),
        (0.0311, 0.0400, "not reproduced"),
        (0.0100, 0.0451, "not reproduced"),
    ):
        monkeypatch.setattr(Shipped, "worth", Worth(combined, {}))
        monkeypatch.setattr(Shipped, "fresh_loss", (fresh, 0.001))
        (row,) = judge(package, ["C10"])["C10"]
        assert row.ours.endswith(f"; {combined:.4f} with the circuit") and row.verdict == verdict
        assert "--tolerance 0.045" in row.command


EVERY, LAST = 100, 1000
GOOD = {
    "L0.H0 s1<-s1": 100,  # attends to itself: no part of the claim
    "L0.H0 s2<-s1": 200,
    "L0.H0 s4<-s3": 900,
    "L1.H0 s0<-s2": 300,
    "L2.H0 s0<-s4": 500,
    "L3.H0 s0<-s6": 700,
}
FELL = (400, 600, 800)


def series_of(come=(), fell=FELL):
    """A series in which paths have all attention, and symbols no loss, from given steps on.

    Args:
        come: what differs from a series that shows the paper's claim: the first measured step at
            which a path is past 0.5, None for never; by default as in GOOD.
        fell: the same for the losses of x_1, x_2 and x_3.
    """
    come = {ri.parse_head_path(name, 7): step for name, step in {**GOOD, **dict(come)}.items()}
    heads = {path.head: Shared(tuple(p.path for p in come if p.head == path.head)) for path in come}
    circuit, steps = ri.Circuit(heads, 7), range(0, LAST + 1, EVERY)

    def at(step, since):
        return since is not None and step >= since

    def row(step):
        losses = tuple(0.1 if at(step, since) else 0.9 for since in fell)
        paths = {
            str(path): PathAtStep(float(at(step, come[path])), losses) for path in circuit.paths()
        }
        return Snapshot(step, losses, losses, paths)

    rows = tuple(map(row, steps))
    losses = tuple(LogRow(at.step, 0.5, at.partial_losses, None) for at in rows)
    recipe = ri.Recipe(ri.RetrievalTask(steps=3), ri.ModelConfig(layers=9), steps=LAST)
    return Series("made by hand", recipe, circuit, "by hand", 0.05, rows, losses)


NEVER = {"L2.H0 s0<-s4": None}


@pytest.mark.parametrize(
    ("come", "fell", "conditions"),
    [
        # As good as the paper's: heads one by one, or x_2 found where it is first in its pair.
        ({}, FELL, (True, True, True, True)),
        ({**NEVER, "L2.H0 s0<-s5": 500}, FELL, (True, True, True, True)),
        # Another path between two positions comes first.
        ({"L1.H0 s4<-s6": 200}, FELL, (False, True, True, True)),
        ({"L1.H0 s0<-s2": None}, FELL, (False, False, False, True)),
        # A symbol without a head of the query, or two symbols by one head.
        (NEVER, FELL, (True, False, False, True)),
        ({**NEVER, "L1.H0 s0<-s4": 500}, FELL, (True, False, True, True)),
        # Heads out of turn, or two of them at the same step.
        ({"L2.H0 s0<-s4": 900}, FELL, (True, True, False, True)),
        ({"L2.H0 s0<-s4": 700}, FELL, (True, True, None, True)),
        # Losses out of turn, or none that fell.
        ({}, (400, 800, 600), (True, True, True, False)),
        ({}, (None, None, None), (True, True, True, None)),
    ],
)
def test_each_condition_of_the_claim_can_fail(come, fell, conditions):
    text, as_claimed = heads_emerge(series_of(come, fell))
    assert as_claimed is all(conditions)
    said = re.findall(r": (yes|no|cannot be told)", text)
    assert said == [{True: "yes", False: "no", None: "cannot be told"}[one] for one in conditions]


def test_what_comes_between_two_measured_steps_comes_half_way():
    text, _ = heads_emerge(series_of())
    for words in ("x_1 350, x_2 550", "L1.H0 s0<-s2 at 250", "L3.H0 s0<-s6 at 650"):
        assert words in text


def test_symbols_arrive_by_any_route():
    """Without a path of the query to x_2 it comes with x_1, to which a pair has brought it."""
    come = {**NEVER, "L1.H0 s2<-s4": 450, "L2.H0 s0<-s2": 600}
    text, _ = heads_emerge(series_of(come))
    assert text.endswith("the query can have x_1 at 250, x_2 at 550, x_3 at 650")


def test_the_rows_verdict_is_the_rules(results):
    for name, come in (("small", GOOD), ("transformer-d", NEVER)):
        text = emergence_json(series_of(come), "python -m retrieval_interp emergence", 2, 0)
        (results / f"{name}.emergence.json").write_text(text)
    first, second = judged(results, "C11")
    assert (first.verdict, second.verdict) == ("not reproduced", "reproduced at smaller scale")
    assert first.ours == heads_emerge(series_of(NEVER))[0]


@pytest.mark.slow
def test_a_shipped_circuit_is_what_its_command_finds(tmp_path):
    file = evidence_module.results_folder() / "k-hop.circuit.json"
    shipped = json.loads(file.read_text())
    *words, written = shlex.split(shipped["record"].pop("command"))
    ablate([*words[words.index("--ckpt") :], str(tmp_path / "made.json")])
    made = json.loads((tmp_path / "made.json").read_text())
    assert Path(written).name == file.name
    assert {**made, "record": None} == {**shipped, "record": None}


def test_the_command_prints_and_writes_the_same_rows(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["--only", "C2", "C5", "--json", "rows.json"])
    words = " ".join(capsys.readouterr().out.split())
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["id"] for row in rows] == ["C2", "C5", "C5"]
    for row in rows:
        assert " ".join(row["ours"].split()) in words and row["command"] in words
    assert "3 rows: 1 reproduced, 2 reproduced at smaller scale" in words


def test_the_page_has_the_rows_that_need_no_model():
    root = Path(__file__).parent.parent
    tables_markdown = runpy.run_path(str(root / "docs/claims.py"))["tables_markdown"]
    only = ["C1", "C2", "C3", "C4", "C5", "C11"]
    lines = tables_markdown(judge(Evidence(Path("/nowhere")), only)).splitlines()
    assert set(lines) <= set((root / "docs/reproduction.md").read_text().splitlines())
