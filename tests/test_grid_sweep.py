"""The sweep command as a user runs it, on the smoke grids."""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time

import pytest

from retrieval_interp.commands.sweep import main as sweep
from retrieval_interp.storage.checkpoint import load_checkpoint
from retrieval_interp.storage.files import lock_folder
from retrieval_interp.sweep.grid import make_grid
from retrieval_interp.sweep.progress import SweepProgress
from retrieval_interp.tasks import InputError
from tests.test_cells import job as cell_job
from tests.test_cells import run_job

NAMES = [f"layers-{layers}-seed-{seed}" for layers in (1, 2) for seed in (0, 1)]
VARYING = ("date", "seconds", "seconds_per_step")


def command(*arguments):
    return [sys.executable, "-m", "retrieval_interp", "sweep", *map(str, arguments)]


def run(*arguments):
    return subprocess.run(command(*arguments), capture_output=True, text=True)


def smoke(out, grid="section7-ic"):
    """Cells one by one: in groups they would agree up to rounding only (tests/test_seeds.py)."""
    alone = ["--device", "cpu", "--threads", 1, "--group", 1]
    return ["--grid", grid, "--scale", "smoke", "--out", out, *alone]


def results(out):
    found = {}
    for name in NAMES:
        result = json.loads((out / "results" / f"{name}.json").read_text())
        found[name] = {key: value for key, value in result.items() if key not in VARYING}
    return found


def contents(out):
    return {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def stamps(out):
    return {path: path.stat().st_mtime_ns for path in contents(out)}


def copy_without(whole, out, *names):
    """An undisturbed sweep of which some cells were never started."""
    subprocess.run(["cp", "-r", "--preserve=timestamps", whole, out], check=True)
    for name in names:
        (out / "results" / f"{name}.json").unlink()
        subprocess.run(["rm", "-r", out / "cells" / name], check=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An undisturbed sweep."""
    out = tmp_path_factory.mktemp("sweep") / "whole"
    done = run(*smoke(out), "--workers", 2)
    assert done.returncode == 0, done.stderr
    return out, done


def test_a_sweep_runs_every_cell_and_keeps_little(whole):
    out, done = whole
    assert {path.stem for path in (out / "results").iterdir()} == set(NAMES)
    assert list((out / "errors").iterdir()) == []
    for name in NAMES:
        kept = {path.name for path in (out / "cells" / name).rglob("*") if path.is_file()}
        assert kept == {"config.json", "metrics.jsonl", "step-000240.safetensors"}
        assert load_checkpoint(out / "cells" / name).training["step"] == 240
    assert done.stderr == ""
    assert len(re.findall(r"(?m)^layers-\d-seed-\d: validation MSE \d\.\d{4}; ", done.stdout)) == 4
    assert "4 of 4 cells finished" in done.stdout


def losses(out, name):
    """Steps, validation losses and partial losses of a run, from its metrics alone."""
    lines = (out / "cells" / name / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    last = rows[-100:]
    assert [row["step"] for row in last] == list(range(141, 241))
    final = statistics.fmean(row["validation_loss"] for row in last)
    partial = [statistics.fmean(row["partial_losses"][i] for row in last) for i in (0, 1)]
    crossings = []
    for i in (0, 1):
        below = [k for k, row in enumerate(rows) if row["partial_losses"][i] < 0.5]
        if not below:
            crossings.append(None)
            continue
        (a, b) = rows[below[0] - 1], rows[below[0]]
        high, low = a["partial_losses"][i], b["partial_losses"][i]
        assert high >= 0.5
        crossings.append(a["step"] + (b["step"] - a["step"]) * (high - 0.5) / (high - low))
    return final, partial, crossings


def test_the_summary_says_what_the_metrics_say(whole):
    out, done = whole
    summary = json.loads((out / "summary.json").read_text())
    measured = {name: losses(out, name) for name in NAMES}
    held = 0
    for name, (final, partial, crossings) in measured.items():
        result = json.loads((out / "results" / f"{name}.json").read_text())
        assert result["validation_loss"] == pytest.approx(final)
        assert result["partial_losses"] == pytest.approx(partial)
        assert result["below_half"] == pytest.approx(crossings)
        if None not in crossings:
            assert result["order_held"] is (crossings[0] < crossings[1])
            held += crossings[0] < crossings[1]
    assert held == summary["order"]["held"] > 0
    for row in summary["depths"]:
        own = [measured[f"layers-{row['layers']}-seed-{seed}"] for seed in (0, 1)]
        assert row["mean"] == pytest.approx(statistics.fmean(final for final, _, _ in own))
        assert (row["min"], row["max"]) == pytest.approx(sorted(final for final, _, _ in own))
        assert row["share_above_0.7"] == sum(final > 0.7 for final, _, _ in own) / 2
        means = [statistics.fmean(partial[i] for _, partial, _ in own) for i in (0, 1)]
        assert row["partial_losses"] == pytest.approx(means)
        line = f"     {row['layers']}     2  {row['mean']:.4f}  {row['min']:.4f}  {row['max']:.4f}"
        assert line in done.stdout
        assert "  ".join([f"     {row['layers']}", *(f"{x:.4f}" for x in means)]) in done.stdout
    made_by = f"sweep --grid section7-ic --scale smoke --out {out}"
    assert summary["command"].endswith(made_by)
    assert summary["versions"].keys() >= {"torch", "transformer-lens", "python"}
    assert summary["devices"] == ["cpu"] and re.match(r"\d{4}-\d\d-\d\dT", summary["date"])


def test_a_finished_sweep_is_not_run_again(whole, capsys):
    out, done = whole
    kept = ("cells", "results")
    before = [(stamps(out / name), contents(out / name)) for name in kept]
    sweep(["--out", str(out)])
    printed = capsys.readouterr().out
    assert "4 cells of 240 steps, 4 of them finished before" in " ".join(printed.split())
    sweep(["--out", str(out), "--summary"])
    assert capsys.readouterr().out in printed and printed.splitlines()[-1] in done.stdout
    assert before == [(stamps(out / name), contents(out / name)) for name in kept]


@pytest.mark.slow
def test_a_killed_sweep_goes_on_where_it_was(whole, tmp_path):
    out = tmp_path / "killed"
    process = subprocess.Popen(command(*smoke(out)), stdout=subprocess.DEVNULL)
    # Killed in the second cell, after its first checkpoint.
    second = out / "cells" / "layers-1-seed-0" / "state.safetensors"
    while not second.exists():
        assert process.poll() is None, "the sweep was over before it was killed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished, first = stamps(out / "results"), contents(out / "cells" / "layers-2-seed-0")
    assert [path.stem for path in finished] == ["layers-2-seed-0"]
    done = run(*smoke(out))
    assert done.returncode == 0, done.stderr
    assert "4 cells of 240 steps, 1 of them finished before" in done.stdout
    assert stamps(out / "results").items() >= finished.items()
    assert contents(out / "cells" / "layers-2-seed-0") == first
    assert results(out) == results(whole[0])
    assert not list(out.rglob(".writing-*")) and not list(out.rglob("state.safetensors"))


@pytest.mark.slow
def test_an_interrupted_sweep_says_so_in_one_line_and_goes_on(whole, tmp_path):
    out, name = tmp_path / "interrupted", "layers-2-seed-1"
    copy_without(whole[0], out, name)
    process = subprocess.Popen(
        command(*smoke(out)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not (out / "cells" / name / "metrics.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    message = "sweep: interrupted with 3 of 4 cells finished; the same command goes on"
    assert errors.strip() == message
    lock_folder(out / "cells" / name, "a free folder").release()  # the worker is gone
    assert run(*smoke(out), "--no-keep-checkpoints").returncode == 0
    assert results(out) == results(whole[0])
    assert not list(out.rglob("*.safetensors"))


@pytest.mark.slow
def test_a_failing_cell_is_reported_and_the_rest_goes_on(whole, tmp_path):
    out, name = tmp_path / "failing", "layers-2-seed-1"
    copy_without(whole[0], out, name, "layers-1-seed-1")
    blocked = out / "cells" / name
    blocked.mkdir()
    (blocked / "thesis.tex").write_text("x")
    done = run(*smoke(out))
    assert done.returncode == 1 and done.stderr == ""
    assert {path.stem for path in (out / "results").iterdir()} == set(NAMES) - {name}
    error = (out / "errors" / f"{name}.txt").read_text()
    assert "found a folder with other files" in error.splitlines()[0] and "Traceback" in error
    said = " ".join(done.stdout.split())
    assert f"{name}: failed: {error.splitlines()[0]}" in said
    assert "3 of 4 cells finished, 1 failed" in said
    assert [*json.loads((out / "summary.json").read_text())["failed"]] == [name]
    assert (blocked / "thesis.tex").read_text() == "x"
    (blocked / "thesis.tex").unlink()
    again = run("--out", out, "--device", "cpu", "--threads", "1")
    assert again.returncode == 0
    assert "failed" not in again.stdout and list((out / "errors").iterdir()) == []
    assert results(out) == results(whole[0])


@pytest.mark.slow
def test_a_result_that_was_not_written_down_is_taken_from_the_run(whole, tmp_path):
    """The sweep is killed between the end of a cell and its result."""
    out, name = tmp_path / "out", "layers-1-seed-0"
    copy_without(whole[0], out, name)
    run_job(cell_job(out / "cells" / name))
    metrics = (out / "cells" / name / "metrics.jsonl").read_bytes()
    assert run("--out", out, "--device", "cpu", "--threads", "1").returncode == 0
    assert results(out) == results(whole[0])
    assert (out / "cells" / name / "metrics.jsonl").read_bytes() == metrics


def error_of(arguments, capsys):
    with pytest.raises(InputError) as caught:
        sweep([str(argument) for argument in arguments])
    assert capsys.readouterr().out == ""
    return " ".join(str(caught.value).split())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--grid", "section8", "--out", "new"], "grid 'section8': expected one of: section7-ic,"),
        (
            ["--grid", "section7-ic", "--scale", "big", "--out", "new"],
            "scale 'big': expected one of: full, gpu-hour, paper-sizes, laptop, laptop-5, smoke",
        ),
        (["--out", "new"], "--grid: expected one of: section7-ic, section7-nonic, found none"),
        (["--grid", "section7-ic"], "--out"),
        (["--grid", "section7-ic", "--out", "file"], "file: .* a sweep's, found a file"),
        (["--grid", "section7-ic", "--out", "file/x"], "expected a folder that can be written"),
        (["--grid", "section7-ic", "--out", "taken"], "found a folder with other files and no"),
        (["--out", "new", "--summary"], "new: expected a sweep's folder, found no grid.json"),
        (["--out", "new", "--grid", "section7-ic", "--workers", "0"], "--workers: expected 1 to"),
        (["--out", "new", "--grid", "section7-ic", "--workers", "999"], "found 999"),
        (["--out", "new", "--grid", "section7-ic", "--threads", "0"], "--threads: expected 1"),
        (["--out", "new", "--grid", "section7-ic", "--gpus-per-cell", "2"], "at most 1, found 2"),
        (["--out", "new", "--grid", "section7-ic", "--gpus-per-cell", "nan"], "found nan"),
        (["--out", "new", "--grid", "section7-ic", "--device", "gpu"], "found 'gpu'"),
        (["--out", "new", "--grid", "section7-ic", "--group", "0"], "--group: expected auto or 1"),
        (["--out", "new", "--grid", "section7-ic", "--group", "all"], "--group"),
    ],
)
def test_bad_options(arguments, text, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes").write_text("y")
    assert re.search(text, error_of(arguments, capsys))
    assert {path.name for path in tmp_path.rglob("*")} == {"file", "taken", "notes"}


@pytest.mark.parametrize(
    ("damage", "arguments", "text"),
    [
        (None, ["--grid", "section7-nonic"], "with grid = section7-nonic, found .* section7-ic"),
        (None, ["--scale", "laptop"], "with scale = laptop, found one with scale = smoke; give an"),
        (
            lambda out: change(out / "grid.json", '"batch": 8', '"batch": 16'),
            ["--scale", "smoke"],
            "with recipe.batch = 8, found one with recipe.batch = 16",
        ),
        (lambda out: (out / "grid.json").write_text("{"), [], "grid.json: expected JSON, found"),
        (
            lambda out: (out / "results" / "layers-1-seed-0.json").write_text("[]"),
            [],
            "layers-1-seed-0.json: expected an object, found list; remove",
        ),
        (
            lambda out: change(out / "results" / "layers-1-seed-0.json", '"batch": 8', '"batch":9'),
            [],
            "expected the result of layers-1-seed-0 of this grid, found one of another",
        ),
    ],
)
def test_other_settings_and_damage_are_refused(damage, arguments, text, whole, tmp_path, capsys):
    out = tmp_path / "out"
    subprocess.run(["cp", "-r", whole[0], out], check=True)
    if damage is not None:
        damage(out)
    before = contents(out)
    assert re.search(text, error_of(["--out", out, *arguments], capsys))
    assert contents(out) == before


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_two_sweeps_in_one_folder_are_refused(whole, capsys):
    with lock_folder(whole[0], "a free folder"):
        found = error_of(["--out", whole[0]], capsys)
    assert "expected a sweep that no other process is running, found one that is" in found


def test_errors_are_one_line_with_exit_status_2(tmp_path):
    done = run("--grid", "nope", "--out", tmp_path / "new")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("sweep: grid 'nope'") and done.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_the_time_left_counts_layers_and_this_sweeps_own_work(monkeypatch, capsys):
    """A step with two layers counts 2.3, one with one layer 1.3."""
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    grid = make_grid("section7-ic", "smoke")
    one, two = grid.cells[1], grid.cells[0]
    jobs = [cell_job("x", cell) for cell in grid.cells if cell != one]
    progress = SweepProgress(grid, jobs)
    assert progress.seconds_left() is None and progress.finished == 1
    progress.step(two, 120)  # found in its run folder, not done in this sweep
    assert progress.seconds_left() is None
    clock[0] += 11.5
    progress.step(two, 240)
    progress.done(two, 0.5)
    # 120 * 2.3 in 11.5 seconds; left are 240 * (1.3 + 2.3).
    assert progress.seconds_left() == pytest.approx(36)
    assert "2 of 4 cells finished, about 36 s left" in capsys.readouterr().out
    clock[0] += 301
    progress.step(grid.cells[2], 10)
    assert "2 of 4 cells finished, about" in capsys.readouterr().out
    progress.close()
