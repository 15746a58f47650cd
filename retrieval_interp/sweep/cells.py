"""A cell of a grid: train it in its run folder and read off the result."""

import contextlib
import datetime
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from retrieval_interp.config.recipe import Recipe
from retrieval_interp.emergence.crossing import THRESHOLD, first_below, in_order
from retrieval_interp.storage.files import remove_leftovers
from retrieval_interp.training.freed_memory import keep_freed_memory
from retrieval_interp.training.loop import Trained, train_model

CHECKPOINTS = "checkpoints/step-*.safetensors"


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
    return _result(train_model(job.recipe, job.folder, job.device, job.compile))


def _result(trained: Trained) -> dict[str, Any]:
    record, recipe = trained.record, trained.recipe
    task, steps = recipe.task, [row["step"] for row in trained.metrics]
    losses = zip(*(row["partial_losses"] for row in trained.metrics))
    below = {
        name: first_below(steps, values, THRESHOLD * task.loss_scale)
        for name, values in zip(task.asked, losses)
    }
    return {
        "layers": recipe.model.layers,
        "seed": recipe.seed,
        "validation_loss": record["validation_loss"],
        "partial_losses": record["partial_losses"],
        "below_half": [None if at is None else at.step for at in below.values()],
        "order_held": in_order(below, task.steps_between),
        "steps": record["step"],
        "seconds": record["seconds"],
        "seconds_per_step": record["seconds"] / record["step"],
        "device": record["device"],
        "threads": record["threads"],
        "compiled": record["compiled"],
        "versions": {**record["versions"], "python": platform.python_version()},
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "recipe": record["recipe"],
    }


def tidy(folder: Path, checkpoint: bool) -> None:
    """Delete what only an unfinished run needs; it may be called again.

    Config and metrics stay, and if `checkpoint` is true the last checkpoint; the state to resume
    from (three times the weights) and other checkpoints go.
    """
    kept = sorted(folder.glob(CHECKPOINTS))[-1:] if checkpoint else []
    for path in [folder / "state.safetensors", folder / "lock", *folder.glob(CHECKPOINTS)]:
        if path not in kept:
            path.unlink(missing_ok=True)
    if folder.is_dir():
        remove_leftovers(folder)
    if not kept:
        with contextlib.suppress(OSError):
            (folder / "checkpoints").rmdir()
