"""A cell of a grid: train it in its run folder and read off the result."""

import datetime
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from retrieval_interp.config.recipe import Recipe
from retrieval_interp.emergence.times import THRESHOLD, first_below, in_order
from retrieval_interp.training.freed_memory import keep_freed_memory
from retrieval_interp.training.loop import train_model

_RECORDED = ("validation_loss", "partial_losses", "seconds", "device", "threads", "compiled")


@dataclass(frozen=True)
class Job:
    """What any worker needs to run a cell."""

    name: str
    recipe: Recipe
    folder: Path  # run folder
    device: str = "auto"
    threads: int = 1  # on the CPU
    compile: bool = True  # use torch.compile
    checkpoint: bool = True  # keep the last one


def run_cell(job: Job) -> dict[str, Any]:
    """Train a cell, or go on from what its run folder holds, and return its result as JSON data.

    The result comes from the run's metrics (paper, section 7.2): the final validation loss and
    partial losses, the first step at which each partial loss is below 0.5, and whether these steps
    come in the order x_1, x_2, ...
    """
    keep_freed_memory()
    torch.set_num_threads(job.threads)
    trained = train_model(job.recipe, job.folder, job.device, job.compile)
    record, task = trained.record, job.recipe.task
    steps = [row["step"] for row in trained.metrics]
    curves = zip(task.asked, zip(*(row["partial_losses"] for row in trained.metrics)))
    half = THRESHOLD * task.loss_scale
    below = {symbol: first_below(steps, losses, half) for symbol, losses in curves}
    return {
        "layers": job.recipe.model.layers,
        "seed": job.recipe.seed,
        **{name: record[name] for name in _RECORDED},
        "below_half": [None if at is None else at.step for at in below.values()],
        "order_held": in_order(below, task.steps_between),
        "steps": record["step"],
        "seconds_per_step": record["seconds"] / record["step"],
        "versions": {**record["versions"], "python": platform.python_version()},
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "recipe": record["recipe"],
    }


def tidy(folder: Path, checkpoint: bool) -> None:
    """Delete what only an unfinished run needs; it may be called again.

    Config and metrics stay, and if `checkpoint` is true the last checkpoint; the state to resume
    from (three times the weights) and other checkpoints go.
    """
    checkpoints = sorted(folder.glob("checkpoints/*"))
    kept = checkpoints[-1:] if checkpoint else []
    for path in (folder / "state.safetensors", folder / "lock", *checkpoints):
        if path not in kept:
            path.unlink(missing_ok=True)
