"""The commands as a user runs them: exit status, one-line errors, files written or not."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from retrieval_interp.circuits import Circuit, parse_circuit
from retrieval_interp.tasks import RepeatedTokensTask
from retrieval_interp.views.tables import with_error
from tests.tiny_run import save_run

REPEATED = ["--ckpt", "repeated", "--examples", "64"]
SMALL_RUN = ["--model.layers", "2", "--model.d-model", "8", "--batch", "4", "--no-compile"]

# What is refused: the command, its options, and what the one line on stderr says.
EARLY = [
    ("why", "--pairs half.json", "pairs: expected JSON"),
    ("why", "--prompt a --tokenizer b", "--tokenizer: expected --pairs with it"),
    ("why", "--pairs alike.json", "pairs of different prompts .* found none in 1"),
    ("scan", "--model smollm2", "expected text .* add --text FILE"),
]
PAIR = {"clean": "a b", "corrupt": "a b", "answers": ["c"], "wrong_answers": ["d"]}

BAD = [
    ("ablate", "--tolerance nan", "--tolerance: expected a number above 0, found 'nan'"),
    ("ablate", "--json x --report x", "different file for each of --json, --report$"),
    ("ablate", "--json missing/out.json", "existing folder"),
    ("explore", "--ckpt hf:gpt2", "expected a task .* --task FILE.py:NAME, or --prompt TEXT"),
    ("explore", "--prompt a --task x.py:y", "expected one of --prompt and --task, found both"),
    ("ablate", "--onehot", "expected --one-hot or --no-one-hot, found --onehot"),
    ("ablate", "--circuit empty.json --json empty.json", "other files to write than to read"),
    ("scan", "--task own.py:Task --json own.py", "other files to write than to read"),
    ("ablate", "--circuit empty.json --one-hot", "--one-hot, .* expected a search"),
    ("ablate", "--circuit other.json", "steps = 3, as small was trained on, found one for 5"),
    ("scan", "--text half.json --task x", "expected one of --text and --task, found both"),
    ("reproduce", "--only C99", "expected some of C1, C2, .*, found 'C99'"),
    ("llm", "plot", "found none"),
    ("why", "--prompt a --counterfactual b", "expected --answer and --wrong"),
    ("emergence", "--run fresh", "with checkpoints/.*, found none; train"),
    ("emergence", "--run unlearned", "at least one path to follow, found none; train on"),
    ("why", "--task x", "--task: expected indirect-objects or FILE.py:NAME, found 'x'"),
    ("ablate", "--task x.py:y", "x.py:y: expected FILE.py:NAME, found no such name or no"),
    ("ablate", "--task own.py:number", "own.py:number: expected an ri.Task, found int"),
    ("scan", "--model own.py:number --task own.py:Task", "own.py:number: expected a hooked model"),
    ("why", "", "expected one of --prompt, --pairs and --task, found none of them"),
    ("scan", "--model gpt2", "'gpt2': expected a shipped name .*, or hf:gpt2 for what its hub has"),
    ("why", "--model equations --prompt xy --answer 1 --wrong 2", "tokenizer knows, found 'xy'"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the table of bad input names."""
    folder = tmp_path_factory.mktemp("bad")
    for name, text in {
        "empty": '{"heads": []}',
        "half": "{",
        "alike": json.dumps({"prompts": [PAIR]}),
        "other": json.dumps({"heads": [], "task": {"name": "retrieval", "steps": 5}}),
    }.items():
        (folder / f"{name}.json").write_text(text)
    (folder / "own.py").write_text("from retrieval_interp import RetrievalTask as Task\nnumber = 3")
    save_run(folder / "fresh")
    save_run(folder / "unlearned", 10)
    return folder


@pytest.fixture
def refused(folder, run_command_in_process):
    """Checks that a command says what is wrong in one line, with status 2, and writes nothing."""

    def check(command, options, message):
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
        done = run_command_in_process(command, *options.split(), cwd=folder)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert re.search(f"^{command}: .*{message}", done.stderr), done.stderr
        assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before

    return check


@pytest.mark.parametrize("row", BAD, ids=" ".join)
def test_bad_input_is_refused(refused, row):
    refused(*row)


@pytest.mark.parametrize("row", EARLY, ids=" ".join)
def test_bad_input_is_refused_before_a_model_is_loaded(refused, row, monkeypatch):
    monkeypatch.delattr("retrieval_interp.storage.models_by_name.load_model")
    refused(*row)


# What else ends a command


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "\nablate: interrupted; no file is half written\n"),
        (MemoryError("9 GiB"), 2, "ablate: expected a smaller size, memory .* 9 GiB\n"),
        (OSError(28, "No space"), 2, r"ablate: expected its files, found: \[Errno 28\] No space\n"),
    ],
)
def test_what_the_machine_refuses_is_one_line(
    error, status, said, monkeypatch, run_command_in_process
):
    def work(argv, prog):
        raise error

    monkeypatch.setattr("retrieval_interp.commands.ablate.main", work)
    done = run_command_in_process("ablate")
    assert done.returncode == status and re.fullmatch(said, done.stderr)


def test_an_error_of_ours_has_its_traceback(monkeypatch, run_command_in_process):
    monkeypatch.setattr("retrieval_interp.commands.ablate.main", lambda argv, prog: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_command_in_process("ablate")


FAULTY_FILE = """
import retrieval_interp as ri

class Losses(ri.RepeatedTokensTask):
    def example_losses(self, outputs, batch):
        return halved(outputs)

def halved(outputs):
    raise ValueError("an odd\\nnumber")

def rule():
    ri.rule("odd-one", lambda tokens: 1 / 0)
    return ri.RepeatedTokensTask()
"""
FAULTS = {
    "Losses": "own.py, line 9: expected example_losses to run, found ValueError: an odd number",
    "rule": "own.py, line 12: expected <lambda> to run, found ZeroDivisionError: division by zero",
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_ones_own_code_raises_is_one_line(name, tmp_path, rules_reset, run_command_in_process):
    (tmp_path / "own.py").write_text(FAULTY_FILE)
    task = ["--model", "repeated", "--task", tmp_path / f"own.py:{name}"]
    done = run_command_in_process("scan", *task, "--examples", "8")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(f"scan: {FAULTS[name]}\n", done.stderr), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_training_in_one_line_and_the_same_command_goes_on(number, tmp_path):
    train = [sys.executable, "-m", "retrieval_interp", "train", "--out", "run", *SMALL_RUN]
    every = ["--log-every", "10", "--checkpoint-every", "10"]
    process = subprocess.Popen(
        [*train, "--steps", "100000", *every], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    while not list(tmp_path.glob("run/checkpoints/*0020*")) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == 128 + number
    assert re.fullmatch(r"\ntrain: interrupted; the same command goes on from step \d+0\n", errors)


@pytest.mark.slow
def test_a_closed_pipe_ends_a_command_without_a_word(tmp_path):
    command = [sys.executable, "-m", "retrieval_interp", "list"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


# ablate


@pytest.fixture(scope="module")
def done(tmp_path_factory, run_command_in_process):
    """One real run, with every output."""
    folder = tmp_path_factory.mktemp("ablate")
    files = ["--json", "out.json", "--report", "out.html", "--save-circuit", "circuit.json"]
    result = run_command_in_process("ablate", *REPEATED, *files, cwd=folder)
    assert (result.returncode, result.stderr) == (0, "")
    return folder


@pytest.fixture
def ablate(run_command_in_process, tmp_path):
    """Runs it in a folder; gives what it printed, and its JSON."""

    def run(*options):
        done = run_command_in_process("ablate", *options, "--json", "out.json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout, json.loads((tmp_path / "out.json").read_text())

    return run


def test_the_main_job_finds_a_sufficient_and_minimal_circuit(done, undocumented):
    data = json.loads((done / "out.json").read_text())
    assert not undocumented(data, "ablate") and data["schema"] == "retrieval-interp/ablate/2"
    assert data["intact_loss"] < 0.01 and data["combined_loss"] < data["tolerance"]
    assert data["sufficient"] and data["minimal"]
    assert min(row["removed_loss"] for row in data["paths"]) > data["tolerance"]
    assert len(data["control"]) == 20 and data["control"][0] > 10 * data["combined_loss"]
    assert (data["checkpoint"], data["examples"], data["seed"]) == ("repeated", 64, 0)
    shown = with_error(data["combined_loss"], data["combined_se"])
    assert shown in (done / "out.html").read_text()


def test_the_saved_circuit_gives_the_same_numbers_with_and_without_a_path(done, ablate, tmp_path):
    first = json.loads((done / "out.json").read_text())
    assert ablate(*REPEATED, "--circuit", done / "circuit.json")[1] == first
    circuit = Circuit.from_json((done / "circuit.json").read_text(), 3)
    (tmp_path / "worse.json").write_text(circuit.without(next(circuit.paths())).to_json())
    _, found = ablate(*REPEATED, "--circuit", "worse.json")
    assert found["combined_loss"] == pytest.approx(first["paths"][0]["removed_loss"], abs=1e-5)


def test_a_path_that_can_go_is_not_said_to_carry(done, ablate, tmp_path):
    lines = ["L0.H0 uniform", "L1.H0 s0<-s2", "L1.H0 s1<-s1"]
    circuit = parse_circuit(lines, RepeatedTokensTask())
    (tmp_path / "richer.json").write_text(circuit.to_json())
    printed, data = ablate(*REPEATED, "--circuit", "richer.json")
    (row,) = [row for row in printed.splitlines() if row.startswith("L1.H0 s1<-s1 ")]
    assert "carries" not in row and "Not minimal, as L1.H0 s1<-s1 can go" in printed
    assert [row["carries"] for row in data["paths"]].count(False) == 1 and not data["minimal"]


# train


def test_training_and_ablating_a_run_folder(run_command_in_process, ablate, tmp_path):
    options = ["--steps", "6", "--log-every", "2", "--checkpoint-every", "2", *SMALL_RUN]
    done = run_command_in_process("train", "--out", "run", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"run: 6 steps in 0.0 min, validation MSE \d\.\d{4}", done.stdout)
    printed, data = ablate("--ckpt", "run", "--examples", "16")
    assert "has not learned the task" in printed
    assert not data["sufficient"] and data["paths"] == []


OWN_FILE = """
import retrieval_interp as ri
from beside import sizes

def make_task():
    return ri.RetrievalTask(chains=2, steps=1, dim=2)

model = ri.build_model(sizes, make_task()).eval()
"""


SHOWN = {
    "ablate": "own.py:model: retrieval with 2 chains",
    "scan": "own.py:model: retrieval with 2 chains",
    "explore": "RetrievalTask model",
    "why": "there is nothing to recover",  # from an untrained model
}


@pytest.mark.parametrize("command", SHOWN)
def test_models_and_tasks_of_ones_own(command, tmp_path, monkeypatch, run_command_in_process):
    """From a file that imports from its folder; a function makes the task."""
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    (tmp_path / "own.py").write_text(OWN_FILE)
    beside = "import retrieval_interp as ri\nsizes = ri.ModelConfig(layers=1, heads=1, d_model=4)"
    (tmp_path / "beside.py").write_text(beside)
    served = "retrieval_interp.explorer.server.serve_explorer"
    monkeypatch.setattr(served, lambda bench, *_: print(bench.name))  # until Ctrl-C
    own = [f"--model={tmp_path}/own.py:model", f"--task={tmp_path}/own.py:make_task"]
    done = run_command_in_process(command, *own, "--examples", "8")
    assert done.returncode == (2 if command == "why" else 0)
    assert SHOWN[command] in " ".join((done.stdout + done.stderr).split())
