"""What commands print: the overview, help, lists and tables."""

import math
import re
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_interp import tasks
from retrieval_interp.__main__ import COMMANDS
from retrieval_interp.commands.list import main as list_
from retrieval_interp.presets import PRESETS
from retrieval_interp.storage.checkpoint import load_checkpoint, shipped_checkpoints
from retrieval_interp.views.tables import text_table, to_error, with_error


def test_the_overview_has_every_command_in_a_line(run_command_in_process):
    done = run_command_in_process("--help")
    assert (done.returncode, done.stderr) == (0, "")
    listed = dict(line.split(maxsplit=1) for line in done.stdout.splitlines()[2:-2])
    assert list(listed) == list(COMMANDS) and all(listed.values())
    assert run_command_in_process("--version").stdout.startswith("retrieval-interp 0.")


def test_an_unknown_command_is_refused_with_the_known_ones(run_command_in_process):
    done = run_command_in_process("ablat")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "expected ablate, found 'ablat'" in done.stderr
    assert ", ".join(COMMANDS) in run_command_in_process("xyz").stderr


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_says_how_it_was_called(name, run_command_in_process):
    done = run_command_in_process(name, "--nothing-of-that-name")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"{name}: ")
    assert done.stderr.endswith(f"; see retrieval-interp {name} --help\n")
    done = run_command_in_process(name, "--help", prog="retrieval_interp/__main__.py")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: python -m retrieval_interp {name} [-h]")


@pytest.mark.slow
@pytest.mark.parametrize("module", ["retrieval_interp.ablate", "retrieval_interp.train"])
def test_modules_that_are_commands(module):
    done = subprocess.run([sys.executable, "-m", module, "-h"], capture_output=True, text=True)
    assert done.stdout.startswith(f"usage: python -m {module}")
    assert (done.returncode, done.stderr) == (0, "")


def rows(capsys, *arguments):
    list_(list(arguments))
    return [re.split(r"  +", line) for line in capsys.readouterr().out.splitlines()[2:]]


def test_checkpoints_presets_and_tasks_are_listed_as_they_are(capsys):
    listed = {row[0]: row[1:] for row in rows(capsys, "checkpoints")}
    assert listed.keys() == shipped_checkpoints().keys()
    for name in ("small", "conditional"):
        checkpoint = load_checkpoint(name)
        task, sizes, loss = listed[name]
        assert task.startswith(f"{checkpoint.task.name}, ")
        assert sizes == f"{checkpoint.config.layers} x {checkpoint.config.heads}"
        assert loss == f"{checkpoint.training['validation_loss']:.4f}"
    listed = {row[0]: row[1:] for row in rows(capsys, "presets")}
    assert list(listed) == list(PRESETS)
    assert listed["small"] == ["retrieval, steps 3", "5 x 1", "12000 x 128"]
    names = {row[0] for row in rows(capsys, "tasks") if row[0]}
    assert {"RetrievalTask", "TemplateTask"} < names
    assert all(issubclass(getattr(tasks, name), tasks.Task) for name in names)


def test_numbers_have_the_digits_that_their_error_allows():
    assert [to_error(0.01234, se) for se in (0.0004, 0.04, 3.0)] == ["+0.0123", "+0.01", "+0"]
    assert [to_error(-0.00004, 0.001), to_error(0.0123, 0.0)] == ["+0.000", "+0.012"]
    assert [to_error(0.0, 0.0), to_error(-2.345, math.nan)] == ["+0.0", "-2.3"]
    assert with_error(0.0008, 0.00003) == "0.00080 +- 0.00003"
    assert with_error(0.25, 0.01) == "0.2500 +- 0.0100"


cells = st.lists(st.text("ab.", min_size=1, max_size=9), max_size=4).map(" ".join)
tables = st.integers(1, 4).flatmap(lambda n: st.lists(st.tuples(*[cells] * n), min_size=1))


@given(tables, st.integers(1, 60))
def test_a_table_keeps_its_width_and_every_word(table, width):
    """It is wider only where each column is as narrow as its longest word."""
    lines = text_table(*table[:1], table[1:], right=[0], width=width)
    words = Counter(word for row in table for cell in row for word in cell.split())
    assert Counter(word for line in lines for word in line.split() if word.strip("-")) == words
    longest = [max([1, *map(len, " ".join(column).split())]) for column in zip(*table)]
    assert max(map(len, lines)) <= max(width, sum(longest) + 2 * (len(longest) - 1))
