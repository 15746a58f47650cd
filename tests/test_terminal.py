"""What commands print fits: 80 columns on a terminal, 100 in a pipe, and no word is broken."""

import json

import pytest

from retrieval_interp import __main__ as cli
from retrieval_interp.storage.files import shipped_checkpoints
from tests import tiny_run
from tests.terminal import COLUMNS, lines_of, run

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
    (folder / "log.json").write_text(json.dumps(tiny_run.log_data()[0]))
    return folder


COMMANDS = {
    "list": ["list"],
    "bound": ["bound", "--steps", 1, 2, 128],
    "ablate": ["ablate", "--model", "small", "--circuit", SMALL, "--examples", 16],
    "cross entropy": [
        *["ablate", "--ckpt", "k-hop", "--circuit", RESULTS / "k-hop.circuit.json"],
        *["--examples", 8, "--json", "numbers.json"],
    ],
    "scan": ["scan", "--ckpt", "small", "--examples", 8],
    "why": ["why", "--ckpt", "small", "--examples", 16, "--controls", 2],
    "train": ["train", "--out", "run", *TINY],
    "emergence": ["emergence", "--run", "run", "--circuit", SMALL, "--examples", 4],
    "sweep": ["sweep", "--out", "sweep"],
    "reproduce": ["reproduce", "--only", "C2", "C3", "C4", "C5"],
    "llm": ["llm", "plot", "log.json"],
}


@pytest.fixture
def shown(folder, monkeypatch):
    """Shows a command of `COMMANDS` on a terminal of so many columns, or through a pipe."""
    monkeypatch.chdir(folder)

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
