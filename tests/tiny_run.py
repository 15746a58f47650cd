"""A tiny run and a log of Inspect, to be damaged by tests, and the smoke grid."""

import json
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import retrieval_interp as ri
from retrieval_interp.config import Recipe
from retrieval_interp.emergence.series import LogRow, Series, measure
from retrieval_interp.sweep.cells import Job, read_results
from retrieval_interp.sweep.grid import make_grid
from retrieval_interp.tasks.structured import to_data

TASK = ri.RetrievalTask(chains=2, steps=1, dim=2)
SIZES = ri.ModelConfig(layers=2, heads=1, d_model=4)
TINY = ri.Recipe(
    task=TASK,
    model=ri.ModelConfig(layers=1, heads=1, d_model=8),
    steps=60,
    batch=8,
    examples=64,
    log_every=5,
    checkpoint_every=20,
    validation_examples=16,
    schedule="cosine",
    warmup=3,
)


@cache
def run() -> Series:
    """A series of two measured steps."""
    model = ri.build_model(SIZES, TASK).eval()
    parsed = ri.parse_circuit(["L0.H0 uniform", "L1.H0 one-hot s0<-s2"], TASK)
    circuit = replace(parsed, enabling=(ri.parse_head_path("L0.H0 s2<-s1", 3),))
    batch = TASK.sample(4)
    snapshots = tuple(measure(model, TASK, batch, circuit, step) for step in (10, 20))
    losses = tuple(LogRow(at.step, 0.5, at.partial_losses, None) for at in snapshots)
    recipe = Recipe(TASK, SIZES, steps=20, batch=4, examples=16, log_every=10, checkpoint_every=10)
    return Series("run", recipe, circuit, "made up", 0.05, snapshots, losses)


def save_run(folder: Path, *steps: int) -> None:
    """The folder of this run, with checkpoints of an untrained model."""
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(to_data(run().recipe)))
    for step in steps:
        path = folder / "checkpoints" / f"step-{step:06d}.safetensors"
        ri.save_checkpoint(path, ri.build_model(SIZES, TASK), TASK, SIZES, {"step": step})


def log_data() -> list[Any]:
    """What Inspect writes of two questions, as JSON data."""
    from inspect_ai import log as logs

    spec = {"created": "2026-01-01T00:00:00+00:00", "task": "retrieval_interp/equations"}
    about = {"formulation": "equations", "steps": 1, "chance": 0.25}
    named = {"model": "mockllm/model", "metadata": about}
    metrics = {name: logs.EvalMetric(name=name, value=0.5) for name in ("accuracy", "stderr")}
    scores = [logs.EvalScore(name="match", scorer="match", metrics=metrics)]
    log = logs.EvalLog(
        status="success",
        eval=logs.EvalSpec(**spec, **named, dataset=logs.EvalDataset(), config=logs.EvalConfig()),
        results=logs.EvalResults(total_samples=2, completed_samples=2, scores=scores),
    )
    return [json.loads(log.model_dump_json(exclude_none=True))]


GRID = make_grid("section7-ic", "smoke")


def job(folder, name):
    return Job(name, GRID.cells[name], folder, "cpu", 1, compile=False)


def command(*arguments):
    return [sys.executable, "-m", "retrieval_interp", "sweep", *map(str, arguments)]


def smoke(out, grid="section7-ic"):
    return ["--grid", grid, "--scale", "smoke", "--out", out, "--device", "cpu", "--threads", 1]


def results(out):
    """What the cells say, but for the seconds they took."""
    found = read_results(out, GRID)
    return {cell: {**result, "seconds": 0.0} for cell, result in found.items()}
