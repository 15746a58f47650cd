"""`retrieval-interp`: the overview, and the command list."""

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from retrieval_interp import __main__ as cli
from retrieval_interp import tasks
from retrieval_interp.circuits import parse_circuit
from retrieval_interp.circuits.circuit import circuit_diff
from retrieval_interp.commands.list import main as list_
from retrieval_interp.config import PRESETS
from retrieval_interp.storage.checkpoint import load_checkpoint, shipped_checkpoints
from retrieval_interp.tasks import RetrievalTask
from tests.terminal import run

TASK = RetrievalTask()


def test_the_overview_has_every_command_in_a_line(monkeypatch):
    status, out, err = run(monkeypatch, "--help")
    assert (status, err) == (0, "")
    assert out.startswith("usage: retrieval-interp COMMAND [OPTIONS]\n")
    listed = dict(line.split(maxsplit=1) for line in out.splitlines()[2:-2])
    assert list(listed) == list(cli.COMMANDS) and all(listed.values())


def test_an_unknown_command_is_refused_with_the_known_ones(monkeypatch):
    status, out, err = run(monkeypatch, "ablat")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "expected ablate, found 'ablat'" in err
    assert ", ".join(cli.COMMANDS) in run(monkeypatch, "xyz")[2]


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_says_how_it_was_called(name, monkeypatch):
    status, out, err = run(monkeypatch, name, "--nothing-of-that-name")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"{name}: ") and err.endswith(f"; see retrieval-interp {name} --help\n")
    status, out, err = run(monkeypatch, name, "--help", prog="retrieval_interp/__main__.py")
    assert status == 0 and out.startswith(f"usage: python -m retrieval_interp {name} [-h]")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "start"),
    [
        (["retrieval_interp"], "usage: python -m retrieval_interp COMMAND"),
        (["retrieval_interp.ablate", "--help"], "usage: python -m retrieval_interp.ablate"),
        (["retrieval_interp.train", "--help"], "usage: python -m retrieval_interp.train"),
    ],
)
def test_modules_that_are_commands(module, start):
    done = subprocess.run([sys.executable, "-m", *module], capture_output=True, text=True)
    assert done.stdout.startswith(start) and (done.returncode, done.stderr) == (0, "")


# list


def rows(capsys, *arguments):
    list_(list(arguments))
    return [re.split(r"  +", line) for line in capsys.readouterr().out.splitlines()]


def test_checkpoints_are_listed_with_their_record(capsys):
    header, _, *found = rows(capsys, "checkpoints")
    assert header == ["checkpoint", "task", "layers x heads", "loss"]
    assert {row[0] for row in found} == set(shipped_checkpoints())
    for name in ("small", "conditional"):
        checkpoint = load_checkpoint(name)
        (row,) = (row for row in found if row[0] == name)
        assert row[1].startswith(f"{checkpoint.task.name}, ")
        assert row[2] == f"{checkpoint.config.layers} x {checkpoint.config.heads}"
        assert row[3] == f"{checkpoint.training['validation_loss']:.4f}"


def test_presets_and_tasks_are_listed_as_they_are(capsys):
    listed = {row[0]: row for row in rows(capsys, "presets")[2:]}
    assert list(listed) == list(PRESETS)
    assert listed["small"] == ["small", "retrieval, steps 3", "5 x 1", "12000 x 128"]
    names = [row[0] for row in rows(capsys, "tasks")[2:] if row[0]]
    assert set(names) <= set(dir(tasks)) and {"RetrievalTask", "TemplateTask"} < set(names)
    assert all(issubclass(getattr(tasks, name), tasks.Task) for name in names)


def test_presets_of_any_task_are_listed(monkeypatch, capsys):
    model = SimpleNamespace(layers=2, heads=1)
    for task, said in (({"words": 5, "name": "own"}, "own, words 5"), ({"name": "own"}, "own")):
        own = SimpleNamespace(to_dict=lambda task=task: task)
        recipe = SimpleNamespace(task=own, model=model, steps=7, batch=8)
        monkeypatch.setattr("retrieval_interp.config.PRESETS", {"own": recipe})
        assert rows(capsys, "presets")[2:] == [["own", said, "2 x 1", "7 x 8"]]


def test_changes_of_circuits_are_one_line_each():
    old = parse_circuit(["L0.H0 one-hot s2<-s1 s4<-s3", "L1.H0 uniform"], TASK)
    new = parse_circuit(["L0.H0 one-hot s2<-s1", "L2.H0 shared s0<-s2 s0<-s6"], TASK)
    assert circuit_diff(old, old) == []
    assert circuit_diff(old, new) == [
        "L0.H0: one-hot s2<-s1 s4<-s3 -> one-hot s2<-s1",
        "L1.H0: uniform -> original",
        "L2.H0: original -> shared s0<-s2 s0<-s6",
    ]
