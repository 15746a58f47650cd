"""Running the cells of a grid: in worker processes of this machine.

1. As many threads as workers each take the next group of jobs and start a process for it alone
   (multiprocessing, spawned), in a session of its own, so that Ctrl-C reaches the sweep only.
2. What the processes send through their pipes becomes events, in one stream.
3. A process that ends without an answer (killed, or out of memory) is started once more and goes on
   from its run folders; after that its cells are reported. An error that it reports is not retried:
   it would come again.
4. When the stream is closed, by an interrupt too, every process is killed, and each ends by itself
   when the sweep is killed. Run folders can be resumed from at any moment.

A pool of `concurrent.futures` cannot be killed, nor asked how its process ended, before Python
3.14; hence a process per group. `retrieval_interp.sweep.ray_cluster` gives the same events from a
Ray cluster.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

from retrieval_interp.sweep.cells import Job, answers_of, reason_of

ATTEMPTS = 2
OnStep = Callable[[str, int], None]
Work = Callable[[Sequence[Job], OnStep], Iterable[dict[str, Any]]]
_KEPT_OF_PRINTED = 20_000
_SECONDS_BETWEEN_WORDS = 0.5
_SPAWN = multiprocessing.get_context("spawn")


class Progress(NamedTuple):
    """A cell has done so many steps."""

    job: Job
    step: int


class Done(NamedTuple):
    """A cell has ended; `files` of its run folder are given where they are not on this disk."""

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
        groups: jobs that train together in a process; started in this order.
        environments: what to add to the environment of each worker; as many workers as there are.
        work: what a worker process does with a group: its answers, as of `answers_of`.

    Yields:
        Progress, and Done or Failed once per job.
    """
    pool = _Pool(groups, work)
    threads = [
        threading.Thread(target=pool.serve, args=(environment,), daemon=True)
        for environment in environments[: len(groups)]
    ]
    try:
        for thread in threads:
            thread.start()
        left = sum(map(len, groups))
        while left:
            event = pool.events.get()
            left -= not isinstance(event, Progress)
            yield event
    finally:
        pool.kill()
        for thread in threads:
            thread.join()


class _Pool:
    """Jobs that wait, processes that run, and what they say."""

    def __init__(self, groups: Sequence[Sequence[Job]], work: Work):
        self.waiting, self.work = deque(groups), work
        self.events: Queue[Event] = Queue()
        self._running: set[Any] = set()
        self._stopped = False
        self._lock = threading.Lock()

    def serve(self, environment: dict[str, str]) -> None:
        """Run jobs until none waits."""
        while not self._stopped:
            try:
                left = {job.cell: job for job in self.waiting.popleft()}
            except IndexError:
                return
            try:
                with tempfile.TemporaryDirectory() as folder:
                    self._run(left, environment, Path(folder) / "printed")
            except Exception as error:
                for job in left.values():
                    self.events.put(Failed(job, reason_of(error), repr(error)))

    def _run(self, left: dict[str, Job], environment: dict[str, str], file: Path) -> None:
        """Run jobs by cell; those that have ended are taken out."""
        for _ in range(ATTEMPTS):
            answers, status = self._attempt(list(left.values()), environment, file)
            printed = file.read_text(errors="replace") if file.exists() else ""
            for answer in answers:
                job = left.pop(answer["cell"])
                if "result" in answer:
                    self.events.put(Done(job, answer["result"], {}))
                else:
                    detail = answer["detail"] + printed[-_KEPT_OF_PRINTED:]
                    self.events.put(Failed(job, answer["error"], detail))
            if not left or self._stopped:
                break
        ending = f"exit status {status}"
        if status < 0:
            ending = f"killed by {signal.Signals(-status).name}"
        reason = (
            f"its process ended without a result ({ending}), {ATTEMPTS} times; if memory is short, "
            "use fewer --workers or a smaller --group"
        )
        for job in left.values():
            self.events.put(Failed(job, reason, printed[-_KEPT_OF_PRINTED:]))

    def _attempt(
        self, jobs: list[Job], environment: dict[str, str], printed: Path
    ) -> tuple[list[dict[str, Any]], int]:
        """What a process says of the cells that have ended, and its exit status."""
        reader, writer = _SPAWN.Pipe(duplex=False)
        process = _SPAWN.Process(
            target=_serve, args=(self.work, jobs, environment, writer, printed)
        )
        with self._lock:
            if self._stopped:
                return [], 1
            process.start()
            self._running.add(process)
        writer.close()
        by_cell, answers = {job.cell: job for job in jobs}, []
        with suppress(EOFError, OSError), reader:
            while True:
                answer = reader.recv()
                if "step" in answer:
                    self.events.put(Progress(by_cell[answer["cell"]], answer["step"]))
                else:
                    answers.append(answer)
        process.join()
        with self._lock:
            self._running.discard(process)
        return answers, process.exitcode or 0

    def kill(self) -> None:
        """End every process, with those that it started, and start no other."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                if hasattr(os, "killpg"):
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(process.pid, signal.SIGKILL)
                process.kill()


def environments(workers: int, threads: int, gpus: int) -> list[dict[str, str]]:
    """What each local worker adds to its environment.

    Args:
        workers: how many.
        threads: CPU threads of each.
        gpus: GPUs of this machine that are used; the workers are dealt out to them in turn.
    """
    common = {"OMP_NUM_THREADS": str(threads)}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(index) for index in range(gpus)]
    return [
        {**common, **({"CUDA_VISIBLE_DEVICES": names[i % len(names)]} if gpus > 1 else {})}
        for i in range(workers)
    ]


# In the worker process, which loads torch only when its environment is set


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
    spoken: dict[str, float] = {}

    def on_step(cell: str, done: int) -> None:
        now = time.monotonic()
        if now - spoken.get(cell, 0.0) > _SECONDS_BETWEEN_WORDS:
            spoken[cell] = now
            answers.send({"cell": cell, "step": done})

    for answer in work(jobs, on_step):
        answers.send(answer)
    sys.stderr.flush()
    os._exit(0)  # the interpreter takes a second to end, and has no more to say


def _end_with_parent() -> None:
    """End this process and what it started as soon as the sweep has ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
