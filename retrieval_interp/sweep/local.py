"""Run the cells of a grid in worker processes of this machine.

1. Each worker trains one group of jobs in a process of its own (multiprocessing, spawned), in its
   own session, so that Ctrl-C reaches the sweep only.
2. What the processes send through their pipes becomes one stream of events.
3. A process that ends without an answer (killed, or out of memory) is started once more and goes on
   from its run folders; after that its cells are reported as failed. Errors that a process reports
   are not retried, as they would only come again.
4. When the stream is closed, also by an interrupt, every process is killed; and each ends by itself
   if the sweep is killed. Run folders can be resumed from at any moment.

A pool of `concurrent.futures` cannot be killed, nor asked how its process ended, before Python
3.14; hence one process per group. `retrieval_interp.sweep.ray_cluster` gives the same events from a
Ray cluster.
"""

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from retrieval_interp.sweep.cells import Job, answers_of

ATTEMPTS = 2
OnStep = Callable[[str, int], None]
Work = Callable[[Sequence[Job], OnStep], Iterable[dict[str, Any]]]
_KEPT_OF_PRINTED = 20_000
_SECONDS_BETWEEN_STEPS = 0.5
_SPAWN = multiprocessing.get_context("spawn")


class Progress(NamedTuple):
    """A cell has done so many steps."""

    job: Job
    step: int


class Done(NamedTuple):
    """A cell has ended; `files` of its run folder are given if they are not on this disk."""

    job: Job
    result: dict[str, Any]
    files: dict[str, bytes]


class Failed(NamedTuple):
    """A cell has failed: why in one line, and everything that is known."""

    job: Job
    reason: str
    detail: str


Event = Progress | Done | Failed


def run_local(
    groups: Sequence[Sequence[Job]],
    environments: Sequence[dict[str, str]],
    work: Work = answers_of,
) -> Iterator[Event]:
    """Run jobs in worker processes.

    Args:
        groups: jobs that train together in one process; started in this order.
        environments: variables to set in each worker; there are as many workers as environments.
        work: what a worker process does with a group; gives answers like `answers_of`.

    Yields:
        Progress, and Done or Failed once per job.
    """
    waiting = deque((list(group), 1) for group in groups)
    free = list(environments)
    running: dict[Any, _Worker] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            while waiting or running:
                while waiting and free:
                    jobs, attempt = waiting.popleft()
                    printed = Path(folder) / f"{jobs[0].cell}-{attempt}"
                    worker = _Worker(jobs, attempt, free.pop(0), work, printed)
                    running[worker.pipe] = worker
                for pipe in wait(list(running)):
                    worker = running[pipe]
                    try:
                        answer = worker.pipe.recv()
                    except (EOFError, OSError):
                        worker.process.join()
                        del running[pipe]
                        free.append(worker.environment)
                        yield from worker.events()
                        if worker.left and worker.attempt < ATTEMPTS:
                            waiting.appendleft((worker.left, worker.attempt + 1))
                        continue
                    if "step" in answer:
                        yield Progress(worker.jobs[answer["cell"]], answer["step"])
                    else:
                        worker.answers[answer["cell"]] = answer
        finally:
            for worker in running.values():
                worker.kill()


class _Worker:
    """A process that trains a group of jobs, and the answers it has sent."""

    def __init__(
        self,
        jobs: list[Job],
        attempt: int,
        environment: dict[str, str],
        work: Work,
        printed: Path,
    ):
        self.jobs = {job.cell: job for job in jobs}
        self.attempt, self.environment, self.printed = attempt, environment, printed
        self.answers: dict[str, dict[str, Any]] = {}
        self.pipe, writer = _SPAWN.Pipe(duplex=False)
        self.process: Any = _SPAWN.Process(
            target=_serve, args=(work, jobs, environment, writer, printed)
        )
        self.process.start()
        writer.close()

    @property
    def left(self) -> list[Job]:
        """Jobs without an answer."""
        return [job for cell, job in self.jobs.items() if cell not in self.answers]

    def events(self) -> Iterator[Event]:
        """What has become of its jobs, once the process has ended."""
        printed = self.printed.read_text(errors="replace") if self.printed.exists() else ""
        printed = printed[-_KEPT_OF_PRINTED:]
        for cell, answer in self.answers.items():
            if "result" in answer:
                yield Done(self.jobs[cell], answer["result"], {})
            else:
                yield Failed(self.jobs[cell], answer["error"], answer["detail"] + printed)
        if self.attempt == ATTEMPTS:
            status = self.process.exitcode or 0
            ending = f"exit status {status}"
            if status < 0:
                ending = f"killed by {signal.Signals(-status).name}"
            reason = (
                f"its process ended without a result ({ending}), {ATTEMPTS} times; if memory is "
                "short, use fewer --workers or a smaller --group"
            )
            yield from (Failed(job, reason, printed) for job in self.left)

    def kill(self) -> None:
        """End the process and those that it started."""
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()


def environments(workers: int, threads: int, gpus: int) -> list[dict[str, str]]:
    """The environment variables that each local worker sets.

    Args:
        workers: how many there are.
        threads: CPU threads per worker.
        gpus: GPUs of this machine to use, dealt out to the workers in turn.
    """
    common = {"OMP_NUM_THREADS": str(threads)}
    if gpus < 2:
        return [common] * workers
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(index) for index in range(gpus)]
    return [{**common, "CUDA_VISIBLE_DEVICES": names[i % len(names)]} for i in range(workers)]


# In the worker process, which must not load torch before its environment is set


def _serve(
    work: Work,
    jobs: Sequence[Job],
    environment: dict[str, str],
    answers: "Connection[dict[str, Any], Any]",
    printed: Path,
) -> None:
    """Send steps and answers; what libraries print goes to a file."""
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "setsid"):
        os.setsid()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    file = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1), os.dup2(file, 2)
    sent: dict[str, float] = {}

    def on_step(cell: str, done: int) -> None:
        now = time.monotonic()
        if now - sent.get(cell, 0.0) > _SECONDS_BETWEEN_STEPS:
            sent[cell] = now
            answers.send({"cell": cell, "step": done})

    for answer in work(jobs, on_step):
        answers.send(answer)


def _end_with_parent() -> None:
    """End this process and its children as soon as the sweep has ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
