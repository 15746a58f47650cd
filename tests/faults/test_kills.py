"""Commands that are killed, interrupted or robbed of their files, and the defects found by that."""

import ast
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from retrieval_interp.circuits import parse_circuit
from retrieval_interp.commands.sweep import list_jobs
from retrieval_interp.emergence.watch import Watch
from retrieval_interp.storage.files import write_whole
from retrieval_interp.storage.run_folder import RunFolder, watch_path
from retrieval_interp.sweep.cells import tidy
from retrieval_interp.sweep.folder import SweepFolder, read_grid
from retrieval_interp.sweep.grid import make_grid
from retrieval_interp.training.loop import train_model
from tests.faults import kill
from tests.faults.kill import COMMANDS, WAYS, half_written
from tests.test_cells import run_job
from tests.test_training import TINY, Stop, metrics, same, state

ROOT = Path(__file__).parent.parent.parent
# How often each command is ended in every way; workers of a sweep load libraries, which takes long.
TIMES = {"train": 50, "sweep": 6, "sweep-seeds": 6, "emergence": 20, "ablate": 20}


def harness(*arguments):
    """In a process of its own, as it forks; gives how often each way ended a command."""
    command = [sys.executable, "-m", "tests.faults.kill", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line[-1:].isdigit()]
    assert all(row[-1] == "0" for row in rows)  # wrong
    return {row[1]: int(row[2]) for row in rows}


@pytest.mark.slow
def test_killed_commands_end_with_the_same_files():
    ended = harness("--command", "train", "--how", "kill", "files", "full", "--times", 2)
    assert ended["files"] == 2 and ended.keys() == {"kill", "files", "full"}


@pytest.mark.faults
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_can_be_ended_at_any_moment(command):
    ended = harness("--command", command, "--times", TIMES[command])
    assert ended.keys() == WAYS.keys() and ended["kill"] + ended["files"] > TIMES[command]


def test_what_a_kill_leaves_is_compared(tmp_path):
    """To the bit; losses of seeds in common steps to 1e-5, and their weights not at all."""
    for other, exactly, nearly in (
        ({"loss": [1.0], "weights": "a"}, True, True),
        ({"loss": [1.000001], "weights": "b"}, False, True),
        ({"loss": [1.001], "weights": "a"}, False, False),
        ({"loss": [], "weights": "a"}, False, False),
        ({"weights": "a"}, False, False),
    ):
        one = {"loss": [1.0], "weights": "a"}
        assert (kill.same(one, other, 0.0), kill.same(one, other, 1e-5)) == (exactly, nearly)
    for name, half in {"a.json": '{"a"', "b.jsonl": "{}\n{\n{}", "c.html": "<html>"}.items():
        (tmp_path / name).write_text(half)
        assert [line.split(":")[0] for line in half_written(tmp_path)] == [str(tmp_path / name)]
        (tmp_path / name).unlink()
    (tmp_path / "log.jsonl").write_text("{}\n{")  # the last line may be being written
    assert half_written(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_in_one_line_while_it_loads(number):
    """The module that takes long to load sends it."""
    script = f"""
import os, runpy, signal, sys
for each in (signal.SIGTERM, signal.SIGHUP):  # nohup and background shells ignore some
    signal.signal(each, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
class Loading:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            os.kill(os.getpid(), {int(number)})
sys.meta_path.insert(0, Loading())
sys.argv = ["train"]
runpy.run_module("retrieval_interp.commands.train", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 128 + number
    assert (done.stdout, done.stderr) == ("", "\ntrain: interrupted; no file is half written\n")


WORKING = """
import atexit, os, signal, sys, time
from retrieval_interp.commands.command import run_command

def turned(work):
    try:
        work()
    except KeyboardInterrupt:
        return True

def nobody_reads(number):
    read, write = os.pipe()
    os.dup2(write, number), os.close(read), os.close(write)

cases = {
    "SIGTERM": (lambda: None, lambda: os.kill(os.getpid(), signal.SIGTERM)),
    "SIGHUP": (lambda: None, lambda: os.kill(os.getpid(), signal.SIGHUP)),
    "SIGINT turned into another exception": (
        lambda: None, lambda: int("x" if turned(lambda: os.kill(os.getpid(), signal.SIGINT)) else 0)
    ),
    "SIGTERM at the end": (
        lambda: atexit.register(os.kill, os.getpid(), signal.SIGTERM),
        lambda: sys.exit(7),
    ),
    "SIGHUP ignored": (
        lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        lambda: os.kill(os.getpid(), signal.SIGHUP) or sys.exit(7),
    ),
    "closed stdout": (lambda: nobody_reads(1), lambda: print("x" * 100_000)),
    "closed stderr": (lambda: nobody_reads(2), lambda: print("x" * 100_000, file=sys.stderr)),
}
for name, (before, work) in cases.items():
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(write, 1), os.dup2(write, 2), os.close(read), os.close(write)
        before()
        run_command(lambda argv: (work(), time.sleep(5)), "python -m retrieval_interp.train")
        sys.exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        print([name, said.read(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])], flush=True)
"""


def test_signals_and_closed_pipes_end_a_command_that_is_at_work_without_a_traceback():
    """Also where foreign code turns them into errors; what is ignored from outside stays so."""
    done = subprocess.run([sys.executable, "-c", WORKING], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    line = "\ntrain: interrupted; no file is half written\n"
    assert [ast.literal_eval(row) for row in done.stdout.splitlines()] == [
        ["SIGTERM", line, 143],
        ["SIGHUP", line, 129],
        ["SIGINT turned into another exception", line, 130],
        ["SIGTERM at the end", "", 7],
        ["SIGHUP ignored", "", 7],
        ["closed stdout", "", 1],
        ["closed stderr", "", 1],
    ]


def test_an_interrupt_in_code_made_from_text_ends_with_the_status(tmp_path):
    """Run by -m, as commands are: only then Python ends by the signal."""
    (tmp_path / "interrupted.py").write_text(
        "from retrieval_interp.commands.command import run_command\n"
        "run_command(lambda argv: exec('raise KeyboardInterrupt'), 'interrupted')\n"
    )
    command = [sys.executable, "-m", "interrupted"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 130
    assert done.stderr == "\ninterrupted: interrupted; no file is half written\n"


def test_a_run_killed_while_its_config_was_written_can_start_again(tmp_path):
    (tmp_path / "lock").touch()
    (tmp_path / ".writing-config.json-abc").write_text('{"st')
    RunFolder(tmp_path, TINY).close()
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "checkpoints", "config.json"}


def test_a_sweeps_folder_is_known_as_one_from_its_first_file_on(tmp_path, monkeypatch):
    grid, there = make_grid("section7-ic", "smoke"), []

    def writing(path, content):
        there.append({child.name for child in path.parent.iterdir()})
        write_whole(path, content)

    (tmp_path / ".writing-grid.json-abc").write_text('{"gr')
    monkeypatch.setattr("retrieval_interp.storage.files.write_whole", writing)
    SweepFolder(tmp_path, grid).close()
    assert there == [{"lock"}] and read_grid(tmp_path) == grid


def test_a_run_killed_between_state_and_checkpoint_writes_the_checkpoint(tmp_path, monkeypatch):
    def killed(*_):
        raise Stop

    train_model(TINY, tmp_path / "whole", compile=False)
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr("retrieval_interp.storage.run_folder.RunFolder.save_checkpoint", killed)
            with pytest.raises(Stop):
                train_model(TINY, tmp_path / "run", compile=False)
    train_model(TINY, tmp_path / "run", compile=False)
    names = [sorted(p.name for p in (tmp_path / run).rglob("step-*")) for run in ("run", "whole")]
    assert names[0] == names[1] and len(names[0]) == 3
    assert same(state(tmp_path / "run"), state(tmp_path / "whole"))


def test_config_and_metrics_that_are_deleted_under_a_run_are_written_anew(tmp_path):
    def delete(done, row):
        if done == 25:
            (tmp_path / "run" / "config.json").unlink()
            (tmp_path / "run" / "metrics.jsonl").unlink()

    train_model(TINY, tmp_path / "whole", compile=False)
    train_model(TINY, tmp_path / "run", compile=False, on_step=delete)
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    config = [json.loads((tmp_path / run / "config.json").read_text()) for run in ("run", "whole")]
    assert config[0] == config[1]


def test_a_cell_whose_result_is_removed_is_run_again(tmp_path):
    grid = make_grid("section7-ic", "smoke")
    folder = SweepFolder(tmp_path, grid)
    job = list_jobs(folder, {}, device="cpu")[-1]
    first = run_job(job)
    tidy(Path(job.folder), checkpoint=True)  # as it is when its result is written
    assert len(list_jobs(folder, {}, device="cpu")) == len(grid.cells)
    again = run_job(job)
    folder.close()
    assert again["validation_loss"] == first["validation_loss"] and again["steps"] == 240


def test_a_watch_that_is_deleted_under_a_run_is_written_anew(tmp_path):
    circuit = parse_circuit(["L0.H0 one-hot s0<-s2"], TINY.task)

    def delete(done, row):
        if done == 25:
            watch_path(tmp_path / "run").unlink()

    train_model(TINY, tmp_path / "whole", compile=False, watch=Watch(circuit))
    train_model(TINY, tmp_path / "run", compile=False, on_step=delete, watch=Watch(circuit))
    written = [watch_path(tmp_path / run).read_text() for run in ("run", "whole")]
    assert written[0] == written[1] and written[0].count("\n") == 1 + 1 + TINY.steps // 5


def test_what_a_killed_process_was_writing_is_removed_and_a_running_ones_stays(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    mine = [tmp_path / f".writing-out.json-{gone.pid}-1", tmp_path / ".writing-out.json-x"]
    others = [
        tmp_path / f".writing-out.json-{os.getpid()}-2",
        tmp_path / f".writing-b-{gone.pid}-3",
    ]
    for path in (*mine, *others):
        path.write_text("half")
    write_whole(tmp_path / "out.json", "{}")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"out.json", mine[1].name, *(path.name for path in others)}
