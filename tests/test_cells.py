"""One cell, and the processes that run cells."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from retrieval_interp.storage.checkpoint import load_checkpoint
from retrieval_interp.sweep.cells import Job, run_jobs, tidy
from retrieval_interp.sweep.grid import Cell, make_grid
from retrieval_interp.sweep.local import Done, Failed, Progress, environments, run_local
from retrieval_interp.tasks.structured import to_data

GRID = make_grid("section7-ic", "smoke")


FIRST = Cell(1, 0)


def job(folder, cell=FIRST):
    recipe = to_data(GRID.cell_recipe(cell))
    return Job(cell.name, "section7-ic", "smoke", 1, recipe, str(folder), "cpu", 1, False)


def run_job(job, on_step=lambda done: None):
    """The result of one cell."""
    (ended,) = run_jobs([job], lambda cell, done: on_step(done))
    assert isinstance(ended, dict), ended
    return ended


def test_the_result_is_read_off_the_metrics(tmp_path):
    steps = []
    result = run_job(job(tmp_path / "run"), steps.append)
    assert steps == list(range(1, 241))
    assert json.loads(json.dumps(result)) == result
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    tail = [row["validation_loss"] for row in rows if row["step"] > 140]
    assert len(tail) == 100
    assert result["validation_loss"] == pytest.approx(sum(tail) / 100)
    assert (result["steps"], result["seed"], result["layers"]) == (240, 0, 1)
    assert result["seconds_per_step"] == pytest.approx(result["seconds"] / 240)
    assert result["recipe"] == to_data(GRID.cell_recipe(Cell(1, 0)))
    again = run_job(job(tmp_path / "run"))
    assert {**again, "date": 0} == {**result, "date": 0}


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_finished_cell_is_small(tmp_path, checkpoint):
    run_job(job(tmp_path / "run"))
    (tmp_path / "run" / ".writing-abc").write_text("cut short")
    for _ in range(2):
        tidy(tmp_path / "run", checkpoint)
        kept = {"config.json", "metrics.jsonl"}
        kept |= {"step-000240.safetensors"} if checkpoint else set()
        assert {path.name for path in (tmp_path / "run").rglob("*") if path.is_file()} == kept
    if checkpoint:
        assert load_checkpoint(tmp_path / "run").training["step"] == 240
    tidy(tmp_path / "none", checkpoint)
    assert not (tmp_path / "none").exists()


def test_a_worker_process_answers_with_its_result(tmp_path):
    events = list(run_local([[job(tmp_path / "run")]], environments(1, 1, 0)))
    assert isinstance(events[-1], Done) and events[-1].result["steps"] == 240
    assert all(isinstance(event, Progress) for event in events[:-1])
    other = run_job(job(tmp_path / "other"))
    assert events[-1].result["validation_loss"] == other["validation_loss"]


def test_a_worker_process_reports_its_error(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("")
    (event,) = run_local([[job(tmp_path / "run")]], environments(1, 1, 0))
    assert isinstance(event, Failed)
    assert "found a folder with other files" in event.reason and "\n" not in event.reason
    assert "Traceback" in event.detail and "run_folder.py" in event.detail


# What workers do here, instead of training


def kill_self():
    os.kill(os.getpid(), signal.SIGKILL)


def killed_once(jobs, on_step):
    (one,) = jobs
    mark = Path(one.folder) / "mark"
    if not mark.exists():
        mark.touch()
        on_step(one.cell, 3)
        kill_self()
    yield {"cell": one.cell, "result": {"loss": 1}}


def killed_always(jobs, on_step):
    (one,) = jobs
    if one.cell == "layers-1-seed-0":
        print("last words", file=sys.stderr, flush=True)
        kill_self()
    yield {"cell": one.cell, "result": {"cell": one.cell, "gpu": os.environ["GPU"]}}


def never_done(jobs, on_step):
    on_step(jobs[0].cell, os.getpid())
    time.sleep(600)


def test_a_killed_worker_is_started_once_more(tmp_path):
    events = list(run_local([[job(tmp_path)]], [{}], killed_once))
    assert events == [Progress(job(tmp_path), 3), Done(job(tmp_path), {"loss": 1}, {})]


@pytest.mark.slow
def test_a_worker_that_is_killed_twice_is_reported_and_the_rest_goes_on(tmp_path):
    jobs = [job(tmp_path, Cell(1, seed)) for seed in range(4)]
    events = list(run_local([[one] for one in jobs], [{"GPU": "0"}, {"GPU": "1"}], killed_always))
    failed = [event for event in events if isinstance(event, Failed)]
    done = [event for event in events if isinstance(event, Done)]
    assert [event.job.cell for event in failed] == ["layers-1-seed-0"]
    assert "ended without a result (killed by SIGKILL), 2 times" in failed[0].reason
    assert failed[0].detail == "last words\n"
    assert sorted(event.result["cell"] for event in done) == [one.cell for one in jobs[1:]]
    assert {event.result["gpu"] for event in done} <= {"0", "1"}


def test_an_abandoned_stream_leaves_no_process(tmp_path):
    before = threading.active_count()
    with closing(run_local([[job(tmp_path)]], [{}], never_done)) as events:
        pid = next(events).step
    assert threading.active_count() == before
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
def test_a_worker_ends_with_its_sweep(tmp_path):
    script = """
from retrieval_interp.sweep.cells import Job
from retrieval_interp.sweep.local import run_local
from tests.test_cells import never_done
for event in run_local([[Job("cell", "", "", 1, {}, "")]], [{}], never_done):
    print(event.step, flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as sweep:
        pid = int(sweep.stdout.readline())
        os.kill(pid, 0)
        sweep.kill()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_worker_has_its_environment_before_torch_and_leaves_nothing_behind(tmp_path):
    """In a process of its own, whose main module loads nothing heavy.

    A lock stands for what torch.compile makes: Python warns of those that are not taken down.
    """
    script = """
from retrieval_interp.sweep.cells import Job
from retrieval_interp.sweep.local import run_local
import worker_job
(event,) = run_local([[Job("cell", "", "", 1, {}, "")]], [{}], worker_job.work)
print(event.result)
"""
    (tmp_path / "worker_job.py").write_text(
        "import multiprocessing, sys\n"
        "locks = []\n"
        "def work(jobs, on_step):\n"
        "    locks.append(multiprocessing.Lock())\n"
        "    yield {'cell': jobs[0].cell, 'result': {'torch': 'torch' in sys.modules}}\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), str(tmp_path)])}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("{'torch': False}\n", "")


def test_gpus_are_dealt_out_in_turn(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    dealt = [one["CUDA_VISIBLE_DEVICES"] for one in environments(4, 1, 2)]
    assert dealt == ["0", "1", "0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    dealt = [one["CUDA_VISIBLE_DEVICES"] for one in environments(3, 1, 2)]
    assert dealt == ["5", "7", "5"]
    assert [one["OMP_NUM_THREADS"] for one in environments(2, 3, 0)] == ["3", "3"]
    assert "CUDA_VISIBLE_DEVICES" not in environments(2, 1, 1)[0]
