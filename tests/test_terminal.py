"""What commands print fits: 80 columns on a terminal, 100 in a pipe, and no word is broken."""

import re
import sys

import pytest

from retrieval_interp import __main__ as cli
from retrieval_interp.storage.find_checkpoint import shipped_checkpoints
from retrieval_interp.views.tables import wrapped
from tests import tiny_run
from tests.terminal import COLUMNS, lines_of, on_terminal, run

PIPED = 100
RESULTS = shipped_checkpoints()["small"].parent.parent / "results"
SMALL = RESULTS / "small.circuit.json"
TINY = ["--steps", 6, "--log-every", 2, "--checkpoint-every", 2, "--model.layers", 5]
TINY += ["--model.d-model", 8, "--batch", 4, "--no-compile"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run, a sweep and a log, made by the commands themselves."""
    folder = tmp_path_factory.mktemp("shown")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run(patch, "train", "--out", "run", *TINY)[0] == 0
        sweep = ["--grid", "section7-ic", "--scale", "smoke", "--device", "cpu", "--threads", 1]
        assert run(patch, "sweep", *sweep, "--out", "sweep")[0] == 0
    return folder


COMMANDS = {
    "list": ["list"],
    "bound": ["bound", "--steps", 1, 2, 128],
    "bound drawn": ["bound", "--draw", 25],
    "bound without mask": ["bound", "--draw", 5, "--no-mask"],
    "diff": ["diff", SMALL, RESULTS / "transformer-a.circuit.json"],
    "ablate": ["ablate", "--circuit", SMALL, "--examples", 16],
    "cross entropy": [
        *["ablate", "--ckpt", "k-hop", "--circuit", RESULTS / "k-hop.circuit.json"],
        *["--examples", 8, "--json", "numbers.json"],
    ],
    "scan": ["scan", "--examples", 8],
    "train": ["train", "--out", "run", *TINY],
    "emergence": ["emergence", "--run", "run", "--circuit", SMALL, "--examples", 4],
    "sweep": ["sweep", "--out", "sweep"],
    "summary": ["sweep", "--out", "sweep", "--summary"],
    "reproduce": ["reproduce", "--only", "C2", "C3", "C4", "C5"],
    "llm": ["llm", "plot", "log.json"],
}


@pytest.fixture
def shown(folder, monkeypatch):
    """Shows a command of `COMMANDS` on a terminal of so many columns, or through a pipe."""
    monkeypatch.chdir(folder)
    if not (folder / "log.json").exists():
        import json

        (folder / "log.json").write_text(json.dumps(tiny_run.log_data()[0]))

    def show(name, columns):
        status, out, errors = run(monkeypatch, *COMMANDS[name], columns=columns)
        assert status == 0, out + errors
        return out

    return show


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_fits_a_terminal_and_a_pipe(name, shown):
    narrow, piped = shown(name, COLUMNS), shown(name, None)
    assert [line for line in lines_of(narrow) if len(line) > COLUMNS] == []
    assert [line for line in piped.splitlines() if len(line) > PIPED] == []
    assert "\x1b" not in piped and "\r" not in piped
    # No word is broken: both have the same words, dashes of tables and drawings aside.
    words = {word for word in piped.split() if word.strip("-─╭╮╰╯")}
    assert words <= {word for line in lines_of(narrow) for word in line.split()}


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_help_fits_a_terminal(name, monkeypatch):
    status, out, _ = run(monkeypatch, name, "--help", columns=COLUMNS)
    assert status == 0 and [line for line in lines_of(out) if len(line) > COLUMNS] == []


def test_a_command_asks_the_terminal_for_its_width():
    status, text = on_terminal([sys.executable, "-m", "retrieval_interp", "list"], 60)
    longest = max(map(len, lines_of(text)))
    assert status == 0 and 50 < longest <= 60


def test_reproduce_ends_with_a_table_of_verdicts(shown):
    *_, table, counts = shown("reproduce", None).strip().split("\n\n")
    header, _, *rows = table.splitlines()
    assert header.split() == ["claim", "run", "verdict"]
    assert [row.split()[0] for row in rows if re.match(r"C\d", row)] == ["C2", "C3", "C4", "C5"]
    verdicts = re.findall(r"(not reproduced|reproduced at smaller scale|reproduced|not run)", table)
    assert counts.startswith(f"{len(verdicts)} rows: ")
    for verdict in set(verdicts):
        assert f"{verdicts.count(verdict)} {verdict}" in counts


def test_prose_is_broken_at_spaces_alone():
    text = "a-very-long-name/of/a/file.json was read\n\nL0.H0 s0<-s2 follows"
    assert wrapped(text, 12) == [
        "a-very-long-name/of/a/file.json", "was read", "", "L0.H0 s0<-s2", "follows",
    ]  # fmt: skip
    assert wrapped(text, None) == text.splitlines()
    assert wrapped("one two three", 8, 2) == ["one two", "  three"]
