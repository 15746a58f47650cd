"""Cells of a grid: train each in its run folder and read off the result.

1. `run_jobs` trains one cell, or in common steps several that differ only in their seed, each in
   its run folder, and resumes what the folders hold.
2. The result comes from the run's metrics (paper, section 7.2): the final validation loss and
   partial losses (means over the last 100 steps), the first step at which each partial loss is
   below 0.5, and whether these steps come in the order x_1, x_2, ...
   (`retrieval_interp.emergence.crossing`).
3. `answers_of` is what worker processes (`retrieval_interp.sweep.local`) and cluster nodes call: it
   also turns errors into answers.
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
from retrieval_interp.tasks.errors import InputError
from retrieval_interp.training.freed_memory import keep_freed_memory

if TYPE_CHECKING:
    from retrieval_interp.training.loop import Trained

FORMAT = 1
CHECKPOINTS = "checkpoints/step-*.safetensors"


@dataclass(frozen=True)
class Job:
    """What any worker needs to run a cell."""

    cell: str  # names of the cell, its grid and its scale
    grid: str
    scale: str
    layers: int
    recipe: dict[str, Any]  # as JSON data, which needs no torch to be unpickled
    folder: str  # run folder
    device: str = "auto"
    threads: int = 1  # on the CPU
    compile: bool = True  # use torch.compile
    checkpoint: bool = True  # keep the last one


def run_jobs(
    jobs: Sequence[Job], on_step: Callable[[str, int], None] = lambda cell, done: None
) -> list[dict[str, Any] | InputError]:
    """Train cells that differ only in their seed in common steps.

    Args:
        jobs: one or more, which differ only in cell, seed and folder.
        on_step: called with a cell's name and its number of steps done.

    Returns:
        The result of each cell as JSON data, or why it failed, which does not stop the others. Run
        folders keep everything; see `tidy`.

    Raises:
        InputError: as `train_model`.
    """
    import torch

    from retrieval_interp.config.recipe import Recipe
    from retrieval_interp.tasks.structured import from_data
    from retrieval_interp.training.loop import train_model

    first = jobs[0]
    torch.set_num_threads(first.threads)
    recipes = [from_data(Recipe, job.recipe, f"{job.cell}: recipe") for job in jobs]
    ended: list[dict[str, Any] | InputError] = []
    for job, recipe in zip(jobs, recipes):

        def told(done: int, row: dict[str, Any] | None, cell: str = job.cell) -> None:
            on_step(cell, done)

        try:
            one = train_model(recipe, job.folder, job.device, job.compile, told)
            ended.append(_result(job, one))
        except InputError as error:
            ended.append(error)
        finally:
            if job.compile:
                torch.compiler.reset()  # type: ignore[no-untyped-call, unused-ignore]
    return ended


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
    """Delete what only an unfinished run needs, once the cell's result is written.

    Config and metrics stay, and if `checkpoint` is true the last checkpoint; the state to resume
    from (three times the weights) and other checkpoints go. It may be called again.
    """
    kept = sorted(folder.glob(CHECKPOINTS))[-1:] if checkpoint else []
    for path in [folder / "state.safetensors", folder / "lock", *folder.glob(CHECKPOINTS)]:
        if path not in kept:
            path.unlink(missing_ok=True)
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
    """Run jobs that train together in this process, as `run_jobs`, and catch errors.

    Returns:
        For each job JSON data with the name of its `cell` and its `result`, or the `error` in one
        line and in `detail`.
    """
    keep_freed_memory()
    ended: Sequence[dict[str, Any] | Exception]
    try:
        ended = run_jobs(jobs, on_step)
    except Exception as error:
        ended = [error] * len(jobs)
    answers = []
    for job, one in zip(jobs, ended):
        if isinstance(one, dict):
            answers.append({"cell": job.cell, "result": one})
        else:
            detail = "".join(traceback.format_exception(one))
            answers.append({"cell": job.cell, "error": reason_of(one), "detail": detail})
    return answers
