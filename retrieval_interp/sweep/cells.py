"""The cells of a grid: what one does, and the loop over them.

In the loop a thread for each cell waits for a process here, or for a node of a cluster.
"""

import datetime
import multiprocessing
import os
import platform
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from retrieval_interp.config import Recipe
from retrieval_interp.emergence.series import THRESHOLD, first_below, in_order
from retrieval_interp.tasks.errors import InputError
from retrieval_interp.training import keep_freed_memory, train_model

_RECORDED = ("validation_loss", "partial_losses", "seconds", "device", "threads", "compiled")

Run = Callable[[Any], Any]


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


def run_jobs(
    jobs: Sequence[Any], run: Run, workers: int
) -> Generator[tuple[Any, Future[Any]], None, None]:
    """Every job with its future, as they end. When left, it kills the processes that still run.

    Args:
        jobs: started in this order.
        run: what a thread does with one of them.
        workers: how many run at once.
    """
    pool = ThreadPoolExecutor(workers)
    futures = {pool.submit(run, job): job for job in jobs}
    try:
        for future in as_completed(futures):
            yield futures[future], future
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        if left := multiprocessing.active_children():
            for process in left:
                process.kill()
            wait(futures, timeout=10)


def in_process(work: Run) -> Run:
    """A function in a new process for every call, so that one that is killed fails alone."""

    def run(job: Any) -> Any:
        spawn = multiprocessing.get_context("spawn")
        try:
            with ProcessPoolExecutor(1, spawn, _prepare) as process:
                return process.submit(work, job).result()
        except BrokenProcessPool:
            raise InputError(
                "its process ended without a result; if memory is short, use fewer --workers"
            ) from None

    return run


def _prepare() -> None:
    """Leave Ctrl-C and the terminal to the sweep, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1), os.dup2(nowhere, 2)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
