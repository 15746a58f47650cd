"""Cells of a grid: train each in its run folder and say how it ended.

1. `run_jobs` trains recipes that differ in their seed alone in common steps, or a single one, each
   in its run folder, or goes on with what the folders hold.
2. Its result is read off the run's metrics (paper, section 7.2): the final validation loss and
   partial losses (means over the last 100 steps), the first step at which each partial loss is
   below 0.5, and whether these steps come in the order x_1, x_2, ...
   (`retrieval_interp.emergence.crossing`).
3. `answers_of` is what a worker process (`retrieval_interp.sweep.local`) or a node of a cluster
   does: it runs jobs that train together and says of each what became of it.
"""

import contextlib
import datetime
import platform
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrieval_interp.emergence.crossing import THRESHOLD, first_below, in_order
from retrieval_interp.storage.files import remove_leftovers
from tasks.errors import InputError

if TYPE_CHECKING:
    from retrieval_interp.training.loop import Trained

FORMAT = 1
CHECKPOINTS = "checkpoints/step-*.safetensors"


@dataclass(frozen=True)
class Job:
    """What a worker needs to run a cell, anywhere.

    Attributes:
        cell: its name.
        grid: name of its grid.
        scale: name of its scale.
        layers: its depth.
        recipe: what it trains, as JSON data.
        folder: its run folder.
        device: auto, cpu or cuda.
        threads: CPU threads.
        compile: use torch.compile.
        checkpoint: keep the last checkpoint.
    """

    cell: str
    grid: str
    scale: str
    layers: int
    recipe: dict[str, Any]
    folder: str
    device: str = "auto"
    threads: int = 1
    compile: bool = True
    checkpoint: bool = True


def run_jobs(
    jobs: Sequence[Job], on_step: Callable[[str, int], None] = lambda cell, done: None
) -> list[dict[str, Any] | InputError]:
    """Train cells that differ in their seed alone in common steps
    (`retrieval_interp.training.seeds`).

    Args:
        jobs: one or more, alike in all but cell, seed and folder.
        on_step: called with a cell's name and its number of steps done.

    Returns:
        The result of each as JSON data, or why it failed, which stops no other. The run folders are
        left as they are; see `tidy`.

    Raises:
        InputError: as `train_seeds`.
    """
    import torch

    from retrieval_interp.config.recipe import Recipe
    from retrieval_interp.training.loop import train_seeds
    from tasks.structured import from_data

    first = jobs[0]
    torch.set_num_threads(first.threads)
    recipes = [from_data(Recipe, job.recipe, f"{job.cell}: recipe") for job in jobs]
    try:
        ended = train_seeds(
            recipes,
            [job.folder for job in jobs],
            first.device,
            first.compile,
            lambda place, done: on_step(jobs[place].cell, done),
        )
    finally:
        if first.compile:
            torch.compiler.reset()  # type: ignore[no-untyped-call, unused-ignore]
    return [
        one if isinstance(one, InputError) else _result(job, one) for job, one in zip(jobs, ended)
    ]


def _result(job: Job, trained: "Trained") -> dict[str, Any] | InputError:
    record = trained.record
    if "validation_loss" not in record:
        return InputError(
            f"{job.folder}: expected metrics of the last steps, found none; remove that folder to "
            "run the cell again"
        )
    task, steps = trained.recipe.task, [row["step"] for row in trained.metrics]
    losses = zip(*(row["partial_losses"] for row in trained.metrics))
    below = {
        name: first_below(steps, values, THRESHOLD * task.loss_scale)
        for name, values in zip(task.asked, losses)
    }
    return {
        "format": FORMAT,
        "status": "done",
        "cell": job.cell,
        "grid": job.grid,
        "scale": job.scale,
        "layers": job.layers,
        "seed": trained.recipe.seed,
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
    """Delete what only an unfinished run needs, once a cell's result is written.

    Its config and metrics stay, and on request its last checkpoint; the state to resume from (three
    times the weights) and the other checkpoints go. Doing it again does nothing.
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


def reason_of(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())[:500]
    return text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"


def answers_of(
    jobs: Sequence[Job], on_step: Callable[[str, int], None] = lambda cell, done: None
) -> list[dict[str, Any]]:
    """Run jobs that train together; what became of each, as JSON data.

    Returns:
        With the cell's name its `result`, or its `error` in one line and all `detail`.
    """
    ended: Sequence[dict[str, Any] | Exception]
    try:
        ended = run_jobs(jobs, on_step)
    except Exception as error:
        ended = [error] * len(jobs)
    return [
        {"cell": job.cell, "result": one}
        if isinstance(one, dict)
        else {
            "cell": job.cell,
            "error": reason_of(one),
            "detail": "".join(traceback.format_exception(one)),
        }
        for job, one in zip(jobs, ended)
    ]
