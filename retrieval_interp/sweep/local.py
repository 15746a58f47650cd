"""Running the cells of a grid: in worker processes of this machine.

1. As many threads as workers each take the next group of jobs and start a process for it alone
   (`retrieval_interp.sweep.cells`), in a session of its own, so that Ctrl-C reaches the sweep only.
2. What the processes answer becomes events, in one stream.
3. A process that ends without an answer (killed, or out of memory) is started once more and goes on
   from its run folders; after that its cells are reported. An error that it reports is not retried:
   it would come again.
4. When the stream is closed, by an interrupt too, every process is killed. Run folders can be
   resumed from at any moment.

`retrieval_interp.sweep.ray_cluster` gives the same events from a Ray cluster.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from queue import Queue
from typing import IO, Any, NamedTuple

from retrieval_interp.sweep.cells import Job, reason_of

ATTEMPTS = 2
WORKER = (sys.executable, "-m", "retrieval_interp.sweep.cells")
_KEPT_OF_STDERR = 20_000


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
    command: Sequence[str] = WORKER,
) -> Iterator[Event]:
    """Run jobs in worker processes.

    Args:
        groups: jobs that train together in a process; started in this order.
        environments: what to add to the environment of each worker; as many workers as there are.
        command: what a worker process runs.

    Yields:
        Progress, and Done or Failed once a job.
    """
    pool = _Pool(groups, command)
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

    def __init__(self, groups: Sequence[Sequence[Job]], command: Sequence[str]):
        self.waiting = deque(groups)
        self.command = command
        self.events: Queue[Event] = Queue()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False
        self._lock = threading.Lock()

    def serve(self, environment: dict[str, str]) -> None:
        """Run jobs until none waits."""
        while not self._stopped:
            try:
                jobs = {job.cell: job for job in self.waiting.popleft()}
            except IndexError:
                return
            try:
                self._run(jobs, environment)
            except Exception as error:
                for job in jobs.values():
                    self.events.put(Failed(job, reason_of(error), repr(error)))

    def _run(self, left: dict[str, Job], environment: dict[str, str]) -> None:
        """Run jobs by cell; those that have ended are taken out."""
        for _ in range(ATTEMPTS):
            with tempfile.TemporaryFile() as stderr:
                answers, status = self._attempt(left, environment, stderr)
                stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _KEPT_OF_STDERR))
                printed = stderr.read().decode(errors="replace")
            for cell, answer in answers.items():
                job = left.pop(cell)
                if "result" in answer:
                    self.events.put(Done(job, answer["result"], {}))
                else:
                    self.events.put(Failed(job, answer["error"], answer["detail"] + printed))
            if not left:
                return
            if self._stopped:
                break
        reason = (
            f"its process ended without a result ({_ending(status)}), {ATTEMPTS} times; if memory "
            "is short, use fewer --workers or a smaller --group"
        )
        for job in left.values():
            self.events.put(Failed(job, reason, printed))

    def _attempt(
        self, jobs: dict[str, Job], environment: dict[str, str], stderr: IO[bytes]
    ) -> tuple[dict[str, dict[str, Any]], int]:
        """A process's last word on each cell that has ended, and its exit status."""
        with self._lock:
            if self._stopped:
                return {}, -signal.SIGKILL
            process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, **environment},
                start_new_session=True,
            )
            self._running.add(process)
        answers: dict[str, dict[str, Any]] = {}
        assert process.stdin is not None and process.stdout is not None
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps([asdict(job) for job in jobs.values()]) + "\n")
                process.stdin.flush()
            for line in process.stdout:
                with suppress(ValueError):  # a line cut short by a kill
                    answer = json.loads(line)
                    if "step" in answer:
                        self.events.put(Progress(jobs[answer["cell"]], answer["step"]))
                    else:
                        answers[answer["cell"]] = answer
        finally:
            process.stdout.close()
            with suppress(BrokenPipeError):
                process.stdin.close()
            status = process.wait()
            with self._lock:
                self._running.discard(process)
        return answers, status

    def kill(self) -> None:
        """End every process and start no other."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    return f"killed by {signal.Signals(-status).name}"


def environments(workers: int, threads: int, gpus: int) -> list[dict[str, str]]:
    """What each local worker adds to its environment.

    Args:
        workers: how many.
        threads: CPU threads of each.
        gpus: GPUs of this machine that are used; the workers are dealt out to them in turn.
    """
    common = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(index) for index in range(gpus)]
    return [
        {**common, **({"CUDA_VISIBLE_DEVICES": names[i % len(names)]} if gpus > 1 else {})}
        for i in range(workers)
    ]
