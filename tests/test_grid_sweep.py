"""Which cells a grid has, its summary, the sweep command, and a Ray cluster that loses a node."""

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

import retrieval_interp as ri
from retrieval_interp.commands.sweep import main as sweep
from retrieval_interp.emergence.series import first_below
from retrieval_interp.presets import PAPER
from retrieval_interp.storage.files import lock_folder
from retrieval_interp.sweep.cells import in_process, read_results, run_jobs
from retrieval_interp.sweep.grid import GRIDS, make_grid

GRID = make_grid("section7-ic", "smoke")
NAMES = [*GRID.cells]


@pytest.mark.parametrize("name", GRIDS)
def test_the_full_grid_is_the_papers(name):
    grid = make_grid(name, "full")
    assert grid.cells == {
        f"layers-{layers}-seed-{seed}": replace(PAPER[f"{name}-{layers}"], seed=seed)
        for layers in range(1, 9)
        for seed in range(8)
    }


def smoke(out):
    grid = ["--grid", "section7-ic", "--scale", "smoke"]
    return [*grid, "--out", out, "--device", "cpu", "--threads", 1]


def command(*options):
    return [sys.executable, "-m", "retrieval_interp", "sweep", *map(str, options)]


def results(out):
    """What the cells say, but for the seconds they took."""
    found = read_results(out, GRID)
    return {cell: {**result, "seconds": 0.0} for cell, result in found.items()}


def stamps(out):
    return {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}


def copy_without(whole, out, *names):
    """An undisturbed sweep of which some cells were never started."""
    shutil.copytree(whole, out)
    for name in names:
        shutil.rmtree(out / "cells" / name)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, run_command_in_process):
    """An undisturbed sweep, whose cells run in this process, which saves loading libraries."""
    out = tmp_path_factory.mktemp("sweep") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("retrieval_interp.sweep.cells.in_process", lambda work: work)
        done = run_command_in_process("sweep", *smoke(out))
    assert done.returncode == 0, done.stderr
    return out, done


def kill_one(name):
    if name == "bad":
        os.kill(os.getpid(), signal.SIGKILL)
    return name


def test_a_process_that_is_killed_fails_alone():
    ended = dict(run_jobs(["bad", "good"], in_process(kill_one), workers=1))
    with pytest.raises(ri.InputError, match="ended without a result"):
        ended["bad"].result()
    assert ended["good"].result() == "good"


def test_a_sweep_runs_every_cell_and_keeps_little(whole):
    out, done = whole
    for name in NAMES:
        kept = {path.name for path in (out / "cells" / name).rglob("*") if path.is_file()}
        assert kept == {"config.json", "metrics.jsonl", "step-000240.safetensors"}
        assert ri.load_checkpoint(out / "cells" / name).training["step"] == 240
    assert done.stderr == ""
    assert len(re.findall(r"(?m)^layers-\d-seed-\d: validation MSE \d\.\d{4}; ", done.stdout)) == 4


def losses(out, name):
    """Final validation loss, partial losses and crossings of a run, from its metrics alone."""
    lines = (out / "cells" / name / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    last = rows[-100:]
    assert [row["step"] for row in last] == list(range(141, 241))
    final = statistics.fmean(row["validation_loss"] for row in last)
    partial = [statistics.fmean(row["partial_losses"][i] for row in last) for i in (0, 1)]
    steps = [row["step"] for row in rows]
    fallen = [first_below(steps, [row["partial_losses"][i] for row in rows], 0.5) for i in (0, 1)]
    crossings = [crossing and crossing.step for crossing in fallen]
    return final, partial, crossings


def test_the_results_say_what_the_metrics_say(whole):
    out, done = whole
    summary = json.loads((out / "summary.json").read_text())
    assert [row["cell"] for row in summary["runs"]] == NAMES
    for result in summary["runs"]:
        final, partial, crossings = losses(out, result["cell"])
        assert result["validation_loss"] == pytest.approx(final)
        assert result["partial_losses"] == pytest.approx(partial)
        assert result["below_half"] == pytest.approx(crossings)
    held = [result["order_held"] for result in summary["runs"]]
    assert summary["order"]["held"] == held.count(True) > 0
    poor = [result["validation_loss"] > 0.7 for result in summary["runs"]]
    assert summary["share_above_0.7"] == sum(poor) / len(poor)
    printed = [line.split()[:4] for line in done.stdout.splitlines()]
    for row in summary["depths"]:
        assert [str(row["layers"]), "2", f"{row['mean']:.4f}", f"{row['min']:.4f}"] in printed
    assert summary["command"].endswith(f"sweep --grid section7-ic --scale smoke --out {out}")


def test_a_finished_sweep_is_not_run_again(whole, capsys):
    out = whole[0]
    before = stamps(out / "cells")
    sweep(["--out", str(out)])
    said = " ".join(capsys.readouterr().out.split())
    assert "4 cells of 240 steps, 4 of them finished before" in said
    assert before == stamps(out / "cells")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_that_is_stopped_goes_on_where_it_was(how, whole, tmp_path):
    out, name = tmp_path / "stopped", "layers-2-seed-1"
    copy_without(whole[0], out, name)
    process = subprocess.Popen(
        command(*smoke(out)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not (out / "cells" / name / "state.safetensors").exists():
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(how)
    _, errors = process.communicate()
    if how == signal.SIGINT:
        said = "sweep: interrupted with 3 of 4 cells finished; the same command goes on"
        assert (process.returncode, errors.strip()) == (130, said)
    # The worker ends with its sweep.
    FileLock(out / "cells" / name / "lock", timeout=20).acquire().lock.release()
    assert len(results(out)) == 3
    finished = stamps(out / "cells/layers-1-seed-0")
    done = subprocess.run(command(*smoke(out)), capture_output=True, text=True)
    assert done.returncode == 0 and "3 of them finished" in " ".join(done.stdout.split())
    assert stamps(out / "cells/layers-1-seed-0") == finished
    assert results(out) == results(whole[0])
    assert len(list(out.rglob("*.safetensors"))) == 4 and not list(out.rglob(".writing-*"))


@pytest.mark.slow
def test_a_failing_cell_is_reported_and_the_rest_goes_on(whole, tmp_path, run_command_in_process):
    out, name = tmp_path / "failing", "layers-2-seed-1"
    copy_without(whole[0], out, name, "layers-1-seed-1")
    blocked = out / "cells" / name
    blocked.mkdir()
    (blocked / "thesis.tex").write_text("x")
    done = run_command_in_process("sweep", *smoke(out))
    assert done.returncode == 1 and done.stderr == ""
    assert set(results(out)) == set(NAMES) - {name}
    error = json.loads((out / "summary.json").read_text())["failed"][name]
    last, printed = error.splitlines()[-1], " ".join(done.stdout.split())
    assert "Traceback" in error and "other files" in last and last in printed
    assert "3 of 4 cells finished, 1 failed" in printed
    (blocked / "thesis.tex").unlink()
    again = run_command_in_process("sweep", "--out", out, "--device", "cpu", "--threads", 1)
    assert again.returncode == 0 and "failed" not in again.stdout
    assert results(out) == results(whole[0])


def error_of(arguments, capsys):
    with pytest.raises(ri.InputError) as caught:
        sweep([str(argument) for argument in arguments])
    assert capsys.readouterr().out == ""
    return " ".join(str(caught.value).split())


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("localhost", "expected auto or host:port"),
        ("127.0.0.1:9", "expected a Ray cluster that answers"),
        ("auto", "pip install 'retrieval-interp[cluster]'"),
    ],
)
def test_a_cluster_that_is_none_is_refused(address, text, capsys, tmp_path, monkeypatch):
    if address == "auto":
        monkeypatch.setitem(sys.modules, "ray", None)
    else:
        pytest.importorskip("ray")
    assert text in error_of([*smoke(tmp_path / "out"), "--address", address], capsys)
    assert not list(tmp_path.iterdir())


def test_other_settings_are_refused(whole, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(whole[0], out)
    before = stamps(out)
    for option, value in (("grid", "section7-nonic"), ("scale", "laptop")):
        said = error_of(["--out", out, f"--{option}", value], capsys)
        assert f"{option} = {value}, found" in said
    assert stamps(out) == before
    grid = (out / "grid.json").read_text()
    (out / "grid.json").write_text(grid.replace('"batch": 8', '"batch": 16', 1))
    assert "found another; remove it" in error_of(["--out", out], capsys)


def test_two_sweeps_in_one_folder_are_refused(whole, capsys):
    with lock_folder(whole[0], "a free folder"):
        assert "a sweep that no other process" in error_of(["--out", whole[0]], capsys)


@pytest.fixture
def cluster(monkeypatch):
    """Two nodes on this machine with a CPU each; a death is seen in two seconds instead of 20."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    settings = {
        "PYTHONPATH": os.getcwd(),
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "90",
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "500",
        "RAY_health_check_failure_threshold": "4",
    }
    node = {"num_cpus": 1, "object_store_memory": 100_000_000}
    # Short, since the names of Ray's sockets are: at most 107 characters.
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as root:
        for name, value in {**settings, "TMPDIR": root}.items():
            monkeypatch.setenv(name, value)
        cluster = Cluster(True, head_node_args={**node, "include_dashboard": False})
        try:
            yield cluster, cluster.add_node(**node), Path(root)
        finally:
            cluster.shutdown()


@pytest.mark.cluster
def test_a_cluster_that_loses_a_node_still_finishes_every_cell_once(cluster, whole, tmp_path):
    cluster, lost, root = cluster
    out = tmp_path / "out"
    driver = subprocess.Popen(
        command(*smoke(out), "--address", cluster.address),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        while len(running := list(root.glob("retrieval-interp-*/*/*/metrics.jsonl"))) < 2:
            assert driver.poll() is None, driver.stdout.read()
            time.sleep(0.01)
        cluster.remove_node(lost, allow_graceful=False)
        for log in running:  # one of them was on the node that is lost
            steps = [json.loads(line)["step"] for line in log.read_text().splitlines()[:-1]]
            assert max(steps, default=0) < GRID.recipe.steps, "a cell was over before the node died"
        printed = driver.communicate(timeout=240)[0]
    finally:
        driver.kill()
        driver.wait()
    assert driver.returncode == 0, printed
    assert "4 of 4 cells finished\n" in printed and ": failed: " not in printed
    assert results(out) == results(whole[0])
    folders = (out / "cells", whole[0] / "cells")
    kept, expected = ({path.relative_to(f) for path in f.rglob("*")} for f in folders)
    assert kept == expected
