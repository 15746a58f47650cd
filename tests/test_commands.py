"""The commands as a user runs them: exit status, one-line errors, files written or not."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retrieval_interp.circuits import Circuit, parse_circuit
from retrieval_interp.commands.command import run_command
from retrieval_interp.tasks import RetrievalTask
from tests.tiny_run import save_run

QUICK = ["--examples", "64", "--tolerance", "0.06"]
TINY = ["--model.layers", "2", "--model.d-model", "8", "--batch", "4", "--no-compile"]

EARLY = [  # before a model is loaded
    ("why", "--pairs half.json", "pairs: expected JSON"),
    ("why", "--pairs empty.json", "pairs: prompts: expected a list"),
    ("why", "--pairs alike.json", "pairs of different prompts .* found none in 1"),
    ("why", "--task indirect-objects --keep 2", "--keep: expected a share above 0 and below"),
    ("scan", "--model smollm2", "expected text .* add --text FILE"),
]
PAIR = {"clean": "a b", "corrupt": "a b", "answers": ["c"], "wrong_answers": ["d"]}

# What is refused: the command, its options, and what the one line on stderr says.
BAD = [
    ("ablate", "--ckpt smal", "'smal': expected a file, .* one of: .*small"),
    ("ablate", "--examples 0", "expected 2 to 1000000, found 0"),
    ("ablate", "--tolerance nan", "expected a number above 0, found nan"),
    ("ablate", "--time 0", "expected more than 0 seconds"),
    ("ablate", "--json missing/out.json", "existing folder"),
    ("ablate", "--json x --report x", "different file"),
    ("ablate", "--circuit empty.json --json empty.json", "other files to write than to read"),
    ("ablate", "--circuit empty.json --one-hot", "--one-hot, .* expected a search"),
    ("ablate", "--circuit far.json", "heads from L0.H0 to L4.H0, .* L9.H0"),
    ("ablate", "--circuit later.json", "a source before its destination"),
    ("ablate", "--circuit other.json", "steps = 3, as small was trained on, found one for 5"),
    ("ablate", "--device gpu", "expected auto, cpu or cuda, found 'gpu'"),
    ("ablate", "--example 5", "--example"),
    ("train", "--preset smal", "expected one of: small, transformer-a"),
    ("train", "--steps 0", "steps to be an integer of at least 1, found 0"),
    ("train", "--device mps", "mps"),
    ("train", "--out taken", "other files"),
    ("explore", "--port 70000", "--port"),
    ("scan", "--text none.txt", "none.txt: expected text"),
    ("bound", "--steps 0", "--steps"),
    ("emergence", "--run nowhere", "nowhere/config.json: expected a run's config"),
    ("emergence", "--run fresh", "with checkpoints/.*, found none; train"),
    ("emergence", "--run unlearned --circuit other.json", "as unlearned was trained on"),
    ("emergence", "--run unlearned", "at least one path to follow, found none; train on"),
    ("sweep", "--out sweep", "--grid: expected one of: section7-ic, section7-nonic, found none"),
    ("sweep", "--out sweep --grid section7-ic --scale big", "full, laptop, laptop-5, smoke"),
    ("sweep", "--out sweep --grid section7-ic --workers 0", "--workers"),
    ("sweep", "--out taken --grid section7-ic", "found other files"),
    ("why", "--examples 1.5", "--examples: expected a whole number, found '1.5'; see"),
    ("why", "--task x", "--task: .*'x' .*indirect-objects.*; see"),
    ("why", "", "expected one of --prompt, --pairs and --task, found none of them"),
    ("why", "--prompt a --counterfactual b", "expected --answer and --wrong"),
    ("why", "--prompt a --answer b --wrong b", "--wrong: expected another answer"),
    ("scan", "--model gpt2", "'gpt2': expected .*smollm2, gemma3, a checkpoint file"),
    ("reproduce", "--runs nowhere", "--runs: expected a folder of runs, found no folder nowhere"),
    ("why", "--model equations --prompt xy --answer 1 --wrong 2", "tokenizer knows, found 'xy'"),
    ("why", "--model small --controls -1", "--controls: expected at least 0"),
    ("reproduce", "--only C99", "expected some of C1, C2, .*, found 'C99'"),
    ("llm", "plot", "found none"),
    *EARLY,
    ("ablate", "--circuit none.json", "none.json: expected a circuit"),
    ("ablate", "--circuit half.json", "half.json: circuit: expected JSON"),
]


def circuit_of(*path, layer=0, **more):
    row = {"layer": layer, "head": 0, "mechanism": "one-hot", "paths": [list(path)]}
    return json.dumps({"heads": [row], **more})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the table of bad input names."""
    folder = tmp_path_factory.mktemp("bad")
    (folder / "taken").mkdir()
    (folder / "taken" / "notes").write_text("")
    for name, text in {
        "empty": '{"heads": []}',
        "half": "{",
        "alike": json.dumps({"prompts": [PAIR]}),
        "far": circuit_of("s0", "s2", layer=9),
        "later": circuit_of("s5", "s0"),
        "other": circuit_of("s0", "s2", task={"name": "retrieval", "steps": 5}),
    }.items():
        (folder / f"{name}.json").write_text(text)
    save_run(folder / "fresh")
    save_run(folder / "unlearned", 10)
    return folder


@pytest.mark.parametrize(("command", "options", "message"), BAD, ids=lambda text: text)
def test_bad_input_is_one_line_and_status_2_and_nothing_is_written(
    command, options, message, folder, run_command_in_process, monkeypatch
):
    if (command, options, message) in EARLY:
        monkeypatch.delattr("retrieval_interp.commands.command.load_model")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    done = run_command_in_process(command, *options.split(), cwd=folder)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.startswith(f"{command}: ") and re.search(message, done.stderr), done.stderr
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


# What else ends a command


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "\nablate: interrupted; no file is half written\n"),
        (MemoryError("9 GiB"), 2, "ablate: expected a smaller size, memory .* 9 GiB\n"),
        (OSError(28, "No space"), 2, r"ablate: expected its files, found: \[Errno 28\] No space\n"),
    ],
)
def test_what_the_machine_refuses_is_one_line(error, status, said, capsys, process_settings_kept):
    def work(argv, prog):
        raise error

    with pytest.raises(SystemExit) as stop:
        run_command(work, "retrieval-interp ablate", [])
    assert stop.value.code == status and re.fullmatch(said, capsys.readouterr().err)


def test_an_error_of_ours_has_its_traceback(process_settings_kept):
    with pytest.raises(ZeroDivisionError):
        run_command(lambda argv, prog: 1 / 0, "retrieval-interp ablate", [])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_training_in_one_line_and_the_same_command_goes_on(number, tmp_path):
    train = [sys.executable, "-m", "retrieval_interp", "train", "--out", "run", *TINY]
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
    """One real run of the main job."""
    folder = tmp_path_factory.mktemp("ablate")
    files = ["--json", "out.json", "--report", "out.html", "--save-circuit", "circuit.json"]
    result = run_command_in_process("ablate", *files, cwd=folder)
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


def test_the_main_job_finds_a_sufficient_and_minimal_circuit(done):
    data = json.loads((done / "out.json").read_text())
    assert data["baseline_loss"] < 0.01 and data["combined_loss"] < 0.05 and data["sufficient"]
    assert data["minimal"] and min(row["ablated_loss"] for row in data["paths"]) > 0.05
    assert len(data["control"]) == 20 and data["control"][0] > 10 * data["combined_loss"]
    assert 0 < data["combined_se"] < data["combined_loss"] / 10
    assert (data["checkpoint"], data["examples"], data["seed"]) == ("small", 512, 0)


def test_the_saved_circuit_gives_the_same_numbers_with_and_without_a_path(done, ablate, tmp_path):
    first = json.loads((done / "out.json").read_text())
    assert ablate("--circuit", done / "circuit.json")[1] == first
    circuit = Circuit.from_json((done / "circuit.json").read_text(), 7)
    (tmp_path / "worse.json").write_text(circuit.without(next(circuit.paths())).to_json())
    _, found = ablate("--circuit", "worse.json")
    assert found["combined_loss"] == pytest.approx(first["paths"][0]["ablated_loss"], abs=1e-5)


def test_a_path_that_can_go_is_not_said_to_carry(done, ablate, tmp_path):
    circuit = Circuit.from_json((done / "circuit.json").read_text(), 7)
    lines = [f"{head} {mechanism}" for head, mechanism in circuit.mechanisms.items()]
    circuit = parse_circuit([*lines, "L2.H0 s6<-s6"], RetrievalTask())
    (tmp_path / "richer.json").write_text(circuit.to_json())
    printed, data = ablate(*QUICK, "--circuit", "richer.json")
    (row,) = [row for row in printed.splitlines() if row.startswith("L2.H0 s6<-s6 ")]
    assert "carries" not in row and "Not minimal, as L2.H0 s6<-s6 can go" in printed
    assert [row["carries"] for row in data["paths"]].count(False) == 1 and not data["minimal"]


# train


def test_training_and_ablating_a_run_folder(run_command_in_process, ablate, tmp_path):
    options = ["--steps", "6", "--log-every", "2", "--checkpoint-every", "2", *TINY]
    done = run_command_in_process("train", "--out", "run", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"run: 6 steps in 0.0 min, validation MSE \d\.\d{4}", done.stdout)
    printed, data = ablate("--ckpt", "run", "--examples", "16")
    assert "has not learned the task" in printed
    assert not data["sufficient"] and data["paths"] == []
    assert Path(tmp_path, "run", "config.json").exists()
