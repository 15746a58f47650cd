"""Run the cells of a grid: each is a training run, in a process here or on a Ray cluster.

In `run_jobs` a thread for each cell waits for a process (`in_process`), or for a node of a Ray
cluster (`on_nodes`; extra `[cluster]`). There a cell is a task with a share of a GPU, or with CPUs
if there are no GPUs. If its node dies, it runs again on another one. Nodes share no disk: a task
trains in its node's temporary directory and returns its files. A sweep's folder:

grid.json                            grid, scale and settings
cells/layers-4-seed-0/               run folder (retrieval_interp.storage.checkpoint); the cell is
                                     finished if it has the checkpoint of the last step
summary.json                         the results of all cells
"""

import hashlib
import multiprocessing
import os
import re
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from filelock import BaseFileLock

from retrieval_interp.config import Recipe
from retrieval_interp.emergence.series import in_order, loss_crossings
from retrieval_interp.storage import files
from retrieval_interp.storage.checkpoint import read_metrics, read_tensors
from retrieval_interp.sweep.grid import Grid
from retrieval_interp.tasks.messages import InputError
from retrieval_interp.tasks.structured import from_json, to_data
from retrieval_interp.training import keep_freed_memory, train_model

MAX_RETRIES = 4  # times that a cell is run again if its node dies
Run = Callable[[Any], Any]


@dataclass(frozen=True)
class Job:
    """What a worker needs to run a cell."""

    name: str
    recipe: Recipe
    folder: Path  # run folder
    device: str = "auto"
    threads: int = 1  # on the CPU
    compile: bool = True  # use torch.compile


def run_cell(job: Job) -> float:
    """Train a cell, or resume it from its run folder; return its validation loss."""
    keep_freed_memory()
    torch.set_num_threads(job.threads)
    trained = train_model(job.recipe, job.folder, job.device, job.compile)
    tidy(job.folder)
    return float(trained.record["validation_loss"])


def tidy(folder: Path) -> None:
    """Delete what only an unfinished run needs, if it is still there.

    Config, metrics and the last checkpoint stay; the state to resume from (three times the size of
    the weights) and other checkpoints are deleted.
    """
    earlier = sorted(folder.glob("checkpoints/*"))[:-1]
    for path in (folder / "state.safetensors", folder / "lock", *earlier):
        path.unlink(missing_ok=True)


def run_jobs(
    jobs: Sequence[Any], run: Run, workers: int
) -> Generator[tuple[Any, Future[Any]], None, None]:
    """Run jobs, and yield each with its future as it ends; on leaving, kill those still running."""
    pool = ThreadPoolExecutor(workers)
    futures = {pool.submit(run, job): job for job in jobs}
    try:
        for future in as_completed(futures):
            yield futures[future], future
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        if running := multiprocessing.active_children():
            for process in running:
                process.kill()
            wait(futures, timeout=10)


def in_process(work: Run) -> Run:
    """Run a function in a new process for every call, so that one that is killed fails alone."""

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
    """Prepare a worker: leave Ctrl-C and the terminal to the sweep, and end when it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1), os.dup2(nowhere, 2)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def read_grid(path: Path) -> Grid | None:
    """Read the grid of a sweep's folder; None if the folder is new or empty."""
    if not files.check_own(path, "grid.json", "a sweep's"):
        return None
    file = path / "grid.json"
    return from_json(Grid, files.read_text(file, "a sweep's grid"), str(file))


def lock_sweep(path: Path, grid: Grid) -> BaseFileLock:
    """Lock the folder of a grid; make it if missing."""
    lock = files.lock_folder(path, "a sweep that no other process is running")
    # First, as this file marks the folder as a sweep's should the process be killed.
    if not (path / "grid.json").exists():
        files.write_json(path / "grid.json", to_data(grid))
    return lock


def jobs_left(path: Path, grid: Grid, device: str, threads: int) -> list[Job]:
    """Return the cells to run; tidy finished ones, in case a sweep was killed before it did."""
    finished, jobs = read_results(path, grid), list[Job]()
    for name, recipe in grid.cells.items():
        folder = path / "cells" / name
        if name in finished:
            tidy(folder)
        else:
            jobs.append(Job(name, recipe, folder, device, threads, grid.compile))
    return jobs


def read_results(path: Path, grid: Grid) -> dict[str, dict[str, Any]]:
    """Read the results of a sweep's finished cells by name, as JSON data (paper, section 7.2).

    These are the final validation loss and partial losses, the first step at which each partial
    loss is below 0.5, and whether these steps come in the order x_1, x_2, ...
    """
    results = {}
    for name, recipe in grid.cells.items():
        folder = path / "cells" / name
        last = folder / f"checkpoints/step-{recipe.steps:06d}.safetensors"
        if not last.exists():
            continue
        record = read_tensors(last, "a checkpoint")[1]["training"]
        if record["recipe"] != to_data(recipe):
            raise InputError(
                f"{folder}: expected a run of this grid, found another; remove it to have the cell "
                "run again"
            )
        rows = [(row["step"], row["partial_losses"]) for row in read_metrics(folder)]
        below = loss_crossings(recipe.task, rows)
        results[name] = {
            "cell": name,
            **{key: value for key, value in record.items() if key != "recipe"},
            "below_half": [crossing and crossing.step for crossing in below.values()],
            "order_held": in_order(below, recipe.task.steps_between),
        }
    return results


def connect(address: str) -> Any:
    """Connect Ray to the cluster with its head node at host:port, or `auto`, and return it."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError:
        raise InputError(
            "--address: expected Ray to be installed, found none; "
            "pip install 'retrieval-interp[cluster]'"
        ) from None
    place = re.fullmatch(r"auto|([^/]+):(\d{1,5})", address)
    if place is None:
        raise InputError(f"--address: expected auto or host:port, found {address!r:.80}")
    try:
        if place[1]:  # Ray itself would wait for minutes and then end the process
            socket.create_connection((place[1], int(place[2])), 5).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, OverflowError):
        raise InputError(
            f"--address {address:.80}: expected a Ray cluster that answers, found none; start one "
            "with `ray start --head`, or leave out --address"
        ) from None
    return ray


def on_nodes(ray: Any, where: Path, threads: int, gpus: float) -> Callable[[Job], Any]:
    """Return a function that runs a cell on some node, and writes its files into its folder here.

    Nodes tell this sweep's cells from those of other sweeps by its folder, `where`.
    """
    task = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=MAX_RETRIES)(run_on_node)
    sweep = hashlib.sha256(f"{socket.gethostname()}:{where.resolve()}".encode()).hexdigest()[:16]

    def run(job: Job) -> Any:
        loss, kept = ray.get(task.remote(job, sweep))
        for name, content in sorted(kept.items(), reverse=True):  # the checkpoint last
            (job.folder / name).parent.mkdir(parents=True, exist_ok=True)
            files.write_whole(job.folder / name, content)
        return loss

    return run


def run_on_node(job: Job, sweep: str) -> tuple[float, dict[str, bytes]]:
    """Train a cell on a node; return its validation loss, and the files to keep by path."""
    folder = Path(tempfile.gettempdir()) / f"retrieval-interp-{os.getuid()}" / sweep / job.name
    loss = run_cell(replace(job, folder=folder))
    paths = [path for path in folder.rglob("*") if path.is_file()]
    kept = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    shutil.rmtree(folder)
    return loss, kept
