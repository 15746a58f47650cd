"""`retrieval-interp` and its own subcommands; the others are tested where they are."""

import re
import subprocess
import sys
from importlib import import_module

import pytest

from retrieval_interp import __main__ as cli
from retrieval_interp.circuits import parse_circuit
from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.commands import list as listing
from retrieval_interp.commands.diff import main as diff
from retrieval_interp.commands.list import main as list_
from retrieval_interp.config.presets import PRESETS
from retrieval_interp.storage.checkpoint import load_checkpoint, shipped_checkpoints
from retrieval_interp.sweep.grid import GRIDS, SCALES, make_grid
from retrieval_interp.tasks import InputError, RetrievalTask
from retrieval_interp.views.tables import text_table
from tests.terminal import on_terminal

TASK = RetrievalTask()


def run(monkeypatch, capsys, *arguments, prog="retrieval-interp"):
    """What the console script does: exit status, standard output, standard error."""
    monkeypatch.setattr(sys, "argv", [prog, *arguments])
    monkeypatch.setattr("retrieval_interp.commands.command._on_signals", lambda handler: None)
    status = 0
    try:
        cli.run()
    except SystemExit as stop:
        status = stop.code or 0
    printed = capsys.readouterr()
    return status, printed.out, printed.err


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_the_overview_has_every_command_in_a_line(arguments, monkeypatch, capsys):
    status, out, err = run(monkeypatch, capsys, *arguments)
    assert (status, err) == (0, "")
    assert out.startswith("usage: retrieval-interp COMMAND [OPTIONS]\n")
    listed = dict(line.split(maxsplit=1) for line in out.splitlines()[2:-2])
    names = "ablate, explore, scan, train, bound, emergence, sweep, reproduce, llm, list, diff"
    assert ", ".join(listed) == names and all(listed.values())


def test_an_unknown_command_is_refused_with_the_known_ones(monkeypatch, capsys):
    status, out, err = run(monkeypatch, capsys, "ablat")
    assert (status, out) == (2, "")
    assert err == (
        "retrieval-interp: expected one of: ablate, explore, scan, train, bound, emergence, "
        "sweep, reproduce, llm, list, diff, found 'ablat'; see retrieval-interp --help\n"
    )


def test_the_overview_is_a_module_too():
    command = [sys.executable, "-m", "retrieval_interp"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.startswith("usage: python -m retrieval_interp COMMAND [OPTIONS]\n")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_speaks_under_the_name_that_was_typed(name, monkeypatch, capsys):
    status, out, err = run(monkeypatch, capsys, name, "--nothing-of-that-name")
    assert (status, out) == (2, "") and err.count("\n") == 1
    assert err.startswith(f"retrieval-interp {name}: ")
    assert err.endswith(f"; see retrieval-interp {name} --help\n")
    status, out, err = run(monkeypatch, capsys, name, "--help", prog="retrieval_interp/__main__.py")
    assert status == 0 and out.startswith(f"usage: python -m retrieval_interp {name} [-h]")


def test_the_module_runs_as_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "retrieval_interp", "list", "grids"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "") and "section7-ic " in done.stdout


def test_options_of_one_name_mean_the_same_in_every_command():
    """Word by word for those that are of a run or a file; the others name what they measure."""
    texts = {}
    for name in cli.COMMANDS:
        module = import_module(f"retrieval_interp.commands.{name}")
        if name == "train":
            module = import_module("retrieval_interp.commands.train_options")
        (options,) = (
            value for key, value in vars(module).items() if re.fullmatch(r"[A-Z]\w+Options", key)
        )
        for option in ("json", "report", "seed", "device"):
            found = re.search(
                rf"(?s)\n        {option}: (.*?)\n(        \w|    ?\Z|\n)", options.__doc__
            )
            if found:
                texts.setdefault(option, {})[name] = " ".join(found[1].split())
    assert {option: set(by_command.values()) for option, by_command in texts.items()} == {
        "json": {"write the numbers to this file."},
        "report": {"write an HTML page that needs no network to this file."},
        "seed": {"which examples."},
        "device": {"auto, cpu or cuda."},
    }
    assert set(texts["json"]) == {"ablate", "scan", "bound", "emergence", "reproduce", "llm"}
    assert set(texts["device"]) == {"ablate", "explore", "scan", "train", "emergence", "sweep"}


@pytest.mark.parametrize(
    "arguments",
    [["bound", "--draw"], ["ablate", "--ckptt", "small"], ["scan", "--by", "x"], ["lst"]],
    ids=lambda arguments: arguments[0],
)
def test_a_usage_error_is_one_plain_line_on_a_terminal_too(arguments):
    """The option parser writes in colours where standard output is a terminal."""
    command = [sys.executable, "-m", "retrieval_interp", *arguments]
    piped = subprocess.run(command, capture_output=True, text=True)
    status, shown = on_terminal(command)
    assert status == piped.returncode == 2 and piped.stdout == ""
    assert shown == piped.stderr
    assert piped.stderr.count("\n") == 1 and piped.stderr[:-1].isprintable()


@pytest.mark.parametrize("width", [60, 80, 100])
def test_tables_keep_to_a_width_and_break_no_word_of_it(width):
    header = ["path", "meaning", "MSE, ablated too", "what it does"]
    cells = [["L0.H0 s2<-s1", "B <- A of A->B", "0.0797", "carries; enables L4.H0 s0<-s4 " * 3]]
    lines = text_table(header, cells, right=(2,), width=width)
    assert max(map(len, lines)) <= width
    words = {word for line in lines for word in line.split()}
    assert words - {word for word in words if not word.strip("-")} == {
        word for text in (*header, *cells[0]) for word in text.split()
    }
    assert text_table(header, cells) == text_table(header, cells, width=500)
    assert text_table(header, [], width=10)[0].split()[0] == "path"


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


def test_presets_grids_and_tasks_are_listed_as_they_are(capsys):
    assert [row[0] for row in rows(capsys, "presets")[2:]] == list(PRESETS) == list(listing.PRESETS)
    for name, said in listing.PRESETS.items():
        recipe = PRESETS[name]
        layers = re.search(r"(\d+) layers|layers: (\d+)", said)
        assert layers is None or recipe.model.layers == int(layers[1] or layers[2]), name
        steps = re.search(r"D = (\d+)", said)
        assert steps is None or recipe.task.steps == int(steps[1]), name
    assert [row[0] for row in rows(capsys, "grids")[2:]] == [*GRIDS, *SCALES]
    for name, said in GRIDS.items():
        assert f"D = {make_grid(name, 'full').recipe.task.steps}," in said
    names = [row[0] for row in rows(capsys, "tasks")[2:]]
    trained = {type(recipe.task).__name__ for recipe in PRESETS.values()}
    assert set(names) == trained | {"PromptTask", "TemplateTask", "IndirectObjectTask"}


def test_all_of_them_are_listed_without_an_argument(capsys):
    parts = []
    for kind in ("checkpoints", "presets", "grids", "tasks"):
        list_([kind])
        parts.append(capsys.readouterr().out)
    list_([])
    assert capsys.readouterr().out == "\n".join(parts)
    with pytest.raises(InputError, match="invalid choice 'models'"):
        list_(["models"])


def test_listing_loads_no_torch():
    script = "import sys; from retrieval_interp.commands.list import main; main([])\n"
    script += "assert not {'torch', 'transformer_lens', 'plotly'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


# diff


@pytest.fixture
def files(tmp_path):
    lines = ["L0.H0 one-hot s2<-s1 s4<-s3", "L1.H0 uniform"]
    old = parse_circuit(lines, TASK)
    new = parse_circuit(["L0.H0 one-hot s2<-s1", "L2.H0 shared s0<-s2 s0<-s6"], TASK)
    (tmp_path / "old.json").write_text(old.to_json())
    (tmp_path / "new.json").write_text(new.to_json())
    return tmp_path


def test_a_circuit_does_not_differ_from_itself(files, capsys):
    diff([str(files / "old.json"), str(files / "old.json")])
    assert capsys.readouterr().out == "no difference\n"


def test_changes_are_one_line_each(files, capsys):
    diff([str(files / "old.json"), str(files / "new.json")])
    assert capsys.readouterr().out.splitlines() == [
        "L0.H0: one-hot s2<-s1 s4<-s3 -> one-hot s2<-s1",
        "L1.H0: uniform -> original",
        "L2.H0: original -> shared s0<-s2 s0<-s6",
    ]


def test_circuits_of_other_tasks_say_so(files, capsys):
    other = Circuit({}, 11, task=RetrievalTask(steps=5).to_dict())
    (files / "other.json").write_text(other.to_json())
    (files / "hand.json").write_text('{"heads": []}')
    diff([str(files / "hand.json"), str(files / "other.json")])
    assert "task: steps: None -> 5" in capsys.readouterr().out.splitlines()
    diff([str(files / "other.json"), str(files / "old.json")])
    assert capsys.readouterr().out.splitlines()[0] == "task: steps: 5 -> 3"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "bad.json: circuit: expected JSON, found"),
        ('{"heads": [{"layer": 0}]}', r"bad.json: circuit: heads\[0\]: expected the key"),
        (None, "bad.json: expected a circuit, found: No such file"),
    ],
)
def test_what_is_no_circuit_is_refused_by_name(text, expected, files):
    if text is not None:
        (files / "bad.json").write_text(text)
    with pytest.raises(InputError, match=expected):
        diff([str(files / "old.json"), str(files / "bad.json")])
