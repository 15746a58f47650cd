"""The loop over cells: a thread for each waits for a process here, or for a node of a cluster."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import (
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    as_completed,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from retrieval_interp.tasks.errors import InputError

Run = Callable[[Any], Any]
Ended = tuple[Any, Future[Any]]


def run_jobs(jobs: Sequence[Any], run: Run, workers: int) -> Generator[Ended, None, None]:
    """Every job with its future, as they end. When left, it kills the processes that still run.

    Args:
        jobs: started in this order.
        run: what a thread does with one of them; returns its result or raises what went wrong.
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
