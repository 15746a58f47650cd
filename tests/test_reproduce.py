import json
import re
from pathlib import Path

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.reproduce import evidence as evidence_module
from retrieval_interp.reproduce.__main__ import main
from retrieval_interp.reproduce.claims import CLAIMS, first_joins, judge, useful_heads
from retrieval_interp.reproduce.evidence import Evidence
from retrieval_interp.reproduce.gallery import figures
from retrieval_interp.reproduce.table import table_markdown
from tasks import InputError

RECORD = {"command": "a command", "versions": {"torch": ["2"]}, "date": "2026-01-01"}
RECIPE = {
    "task": {"steps": 5, "base": 100.0},
    "model": {"d_model": 64, "heads": 1, "mlp": False},
    "steps": 4000,
    "batch": 128,
}


def grid(name="section7-ic", partial=((0.6, 0.7, 0.8), (0.1, 0.4, 0.8)), **changes):
    losses = [sum(row) / len(row) for row in partial]
    return {
        **RECORD,
        "grid": name,
        "scale": "laptop",
        "recipe": RECIPE,
        "asked": ["x_1", "x_2", "x_3"],
        "cells": 2,
        "finished": 2,
        "failed": {},
        "share_above_0.7": 0.5,
        "depths": [
            {
                "layers": layers,
                "mean": loss,
                "min": loss,
                "max": loss,
                "partial_losses": list(row),
            }
            for layers, (loss, row) in enumerate(zip(losses, partial), start=1)
        ],
        "order": {"held": 2, "broken": [], "fewer_than_two_fell": 0},
        **changes,
    }


@pytest.fixture
def results(tmp_path, monkeypatch):
    """An empty folder in place of the package's results, and no shipped checkpoints."""
    monkeypatch.setattr(evidence_module, "results_folder", lambda: tmp_path / "results")
    monkeypatch.setattr(evidence_module, "shipped_checkpoints", dict)
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


def judged(results, only):
    return judge(Evidence(results.parent / "runs"), [only])


def test_where_nothing_was_run_there_is_no_number(results):
    rows = judge(Evidence(results.parent / "runs"))
    assert {row.id for row in rows} == set(CLAIMS)
    for row in rows:
        if row.id != "C2":  # computed on the spot
            assert (row.ours, row.verdict, row.source) == ("", "not run", "")
            assert row.command.startswith("python -m retrieval_interp.")


@pytest.mark.parametrize(
    ("only", "summary", "ours", "verdict"),
    [
        ("C3", {"share_above_0.7": 1.0}, "2 of 2 runs end above 0.7", "at smaller scale"),
        ("C3", {"share_above_0.7": 0.5}, "1 of 2 runs end above 0.7", "not reproduced"),
        ("C3", {"share_above_0.7": 1.0, "scale": "full"}, "2 of 2 runs", "reproduced"),
        ("C3", {"share_above_0.7": 1.0, "scale": "full", "cells": 3}, "2 of 2", "smaller scale"),
        ("C4", {}, "x_1 from 2 layers, x_2 from 2 layers, x_3 at no depth", "at smaller scale"),
        (
            "C4",
            {"partial": ((0.9, 0.1, 0.2), (0.4, 0.1, 0.2))},
            "x_1 from 2 layers, x_2 from 1 layers",
            "not reproduced",
        ),
        ("C4", {"partial": ((0.9, 0.9, 0.9),)}, "x_1 at no depth", "not reproduced"),
        ("C4", {"partial": ((0.1, 0.1, 0.1),)}, "x_1 from 1 layers", "not reproduced"),
        ("C5", {}, "2 of 2 runs", "reproduced at smaller scale"),
        (
            "C5",
            {"order": {"held": 1, "broken": ["a"], "fewer_than_two_fell": 3}},
            "1 of 2 runs; in 3 more fewer than two fell below 0.5",
            "not reproduced",
        ),
        ("C5", {"order": {"held": 0, "broken": [], "fewer_than_two_fell": 2}}, "0 of 0", "not rep"),
    ],
)
def test_a_grids_numbers_decide(results, only, summary, ours, verdict):
    name = "section7-nonic" if only == "C3" else "section7-ic"
    (results / f"{name}.json").write_text(json.dumps(grid(name, **summary)))
    (row,) = judged(results, only)
    assert ours in row.ours and verdict in row.verdict and row.command == "a command"
    assert row.verdict.startswith("not") == verdict.startswith("not")


def test_a_finished_sweep_counts_too(results):
    folder = results.parent / "runs" / "section7-nonic"
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(grid("section7-nonic")))
    (row,) = judged(results, "C3")
    assert "1 of 2" in row.ours


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "section7-ic.json: expected JSON, found"),
        ("[]", "section7-ic.json: expected a result file, found list"),
        (json.dumps({**grid(), "date": None, "finished": 0}), "with finished cells"),
        (
            json.dumps({k: v for k, v in grid().items() if k != "versions"}),
            "how it was made: expected the key 'versions'",
        ),
        (json.dumps({**grid(), "command": None}), "how it was made: command: expected text"),
        (json.dumps(grid("section7-nonic")), "expected a summary of section7-ic"),
    ],
)
def test_a_file_that_does_not_say_how_it_was_made_is_refused(results, text, error):
    (results / "section7-ic.json").write_text(text)
    with pytest.raises(InputError, match=error):
        judged(results, "C5")


@pytest.fixture(scope="module")
def package():
    """The package's own evidence; nothing from other runs."""
    return Evidence(Path("/nowhere"))


@pytest.fixture
def only_small(monkeypatch):
    """Of the shipped checkpoints the smallest."""
    ship(monkeypatch, "small")


def ship(monkeypatch, *names):
    some = {name: ri.shipped_checkpoints()[name] for name in names}
    monkeypatch.setattr(evidence_module, "shipped_checkpoints", lambda: some)


def test_the_shipped_models_numbers_are_those_of_its_circuit(only_small):
    package = Evidence(Path("/nowhere"))
    small = ri.load_checkpoint("small")
    text = (evidence_module.results_folder() / "small.circuit.json").read_text()
    circuit = ri.Circuit.from_json(text, 7)
    batch = small.task.sample(512, split="test")
    score = ri.score_circuit(small.model, small.task, circuit, batch, controls=0)
    ours = {
        name: next(row for row in judge(package, [name]) if row.scale.startswith("small"))
        for name in ("C6", "C7", "C8", "C9")
    }
    recorded = small.training["validation_loss"]
    fresh = small.task.sample(4096, split="test")
    with torch.no_grad():
        loss = float(small.task.loss(small.model(fresh.inputs), fresh))
    assert ours["C6"].ours.startswith(f"{loss:.4f} +- ")
    assert ours["C6"].ours.endswith(f", {recorded:.4f} recorded at step 12000")
    assert ours["C7"].ours.startswith(f"{score.combined_loss:.4f} with 5 of 5 heads replaced")
    costs = [row.ablated_loss for row in score.paths]
    assert ours["C8"].ours == f"{min(costs):.2f} to {max(costs):.2f} ({len(costs)} paths)"
    assert useful_heads(circuit) == 3 and first_joins(circuit)
    assert ours["C9"].ours.startswith("3 useful heads (least possible 3)")
    assert all(row.verdict == "reproduced at smaller scale" for row in ours.values())


def test_every_shipped_result_says_how_it_was_made(package):
    for path in evidence_module.results_folder().glob("*.json"):
        name = path.name
        if name.endswith(".circuit.json"):
            record = json.loads(path.read_text())["record"]
            assert record["command"].startswith("python -m retrieval_interp.ablate --ckpt ")
            assert record["versions"]["torch"] and record["date"]
        elif name.endswith(".emergence.json"):
            series, record = package.series(name.removesuffix(".emergence.json"))
            assert series.snapshots and "retrieval_interp.emergence" in record.command
        else:
            assert package.grid(path.stem)["depths"]


@pytest.mark.slow
def test_the_page_shows_what_the_command_says(monkeypatch):
    """The table in docs/reproduction.md is the one that the command writes.

    Of four transformers of the paper's size one is computed again; all take minutes.
    """
    ship(monkeypatch, "small", "transformer-a")
    page = (Path(__file__).parent.parent / "docs" / "reproduction.md").read_text()
    rows = table_markdown(judge(Evidence(Path("/nowhere")))).splitlines()
    compared = [row for row in rows if "| not run |" not in row]
    assert len(compared) > 12 and sum("transformer-a" in row for row in compared) >= 4
    for row in compared:
        # Folders of runs are the reader's own.
        assert row.replace("/nowhere", "runs") in page.splitlines(), row


def test_what_is_not_there_makes_no_figure(results):
    assert list(figures(Evidence(results.parent / "runs"))) == []
    (results / "section7-ic.json").write_text(json.dumps(grid()))
    (results / "section7-nonic.json").write_text(json.dumps(grid("section7-nonic")))
    made = dict(figures(Evidence(results.parent / "runs")))
    assert set(made) == {"figure-4-left", "figure-4-right"}
    left, right = made["figure-4-left"], made["figure-4-right"]
    assert [list(line.y) for line in left.data] == [pytest.approx([0.7, 0.4333], abs=1e-3)] * 2
    assert [tuple(line.y) for line in right.data] == [(0.6, 0.1), (0.7, 0.4), (0.8, 0.8)]


def test_the_command_prints_and_writes_the_same_rows(tmp_path, capsys, monkeypatch, only_small):
    monkeypatch.chdir(tmp_path)
    main(["--only", "C2", "C7", "--json", "rows.json", "--figures", "figures"])
    printed = capsys.readouterr().out
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["id"] for row in rows] == ["C2", "C7", "C7", "C7", "C7"]
    needed = {"id", "paper", "ours", "scale", "command", "verdict"}
    words = " ".join(printed.split())
    for row in rows:
        assert needed <= row.keys()
        assert " ".join(row["ours"].split()) in words and row["command"] in words
    counted = re.search(r"(\d+) rows: (\d+) reproduced, ", printed)
    assert int(counted[1]) == len(rows)
    assert int(counted[2]) == [row["verdict"] for row in rows].count("reproduced")
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"figure-5-small.html", "figure-5-small.json", "appendix-C-small.html"} <= names


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--only", "C99"], "expected some of C2, C3, .*, found 'C99'"),
        (["--json", "missing/rows.json"], "expected an existing folder"),
        (["--figures", "file"], "expected a folder for the figures, found a file"),
    ],
)
def test_bad_options_are_refused(arguments, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=text):
        main(arguments)
