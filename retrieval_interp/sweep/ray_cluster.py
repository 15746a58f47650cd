"""Running the cells of a grid: as tasks of a Ray cluster (optional extra `[cluster]`).

1. The address is tried in a process of its own, with a time limit, before this process connects:
   Ray itself waits for minutes, and ends the process that waits.
2. Every group of cells that train together (often a single cell) is a task with a share of a GPU,
   or one CPU where the cluster has no GPU. A task whose node dies runs again on another.
3. Nodes share no disk: a task trains in folders of its node's temporary directory and returns its
   results and what is kept of these folders through Ray. A task that comes back to a node that it
   was on before goes on from there; elsewhere it starts over.

Every node needs this package. Nothing is sent to Ray's makers, and no dashboard is started.
"""

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from retrieval_interp.sweep.cells import Job, answers_of, reason_of, tidy
from retrieval_interp.sweep.local import Done, Event, Failed
from tasks.errors import InputError

MAX_RETRIES = 4
INSTALL = "pip install 'retrieval-interp[cluster]'"
_SOCKET_SECONDS = 5
_HEALTH_SECONDS = 40


def import_ray() -> Any:
    """The Ray library, told to send nothing anywhere.

    Raises:
        InputError: it is not installed; the command that installs it is named.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError:
        raise InputError(
            f"--address: expected Ray to be installed, found none; {INSTALL}"
        ) from None
    return ray


def connect(address: str) -> Any:
    """Connect to a running cluster; never starts one.

    Args:
        address: host:port of its head node, or `auto` for the one this machine belongs to.

    Returns:
        The Ray library, connected.

    Raises:
        InputError: Ray is not installed, the address has another form, or nothing answers there
            (within 30 seconds).
    """
    ray = import_ray()
    if address != "auto":
        _try_socket(address)
    _try_health(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        raise _unanswered(address, reason_of(error)) from None
    return ray


def _unanswered(address: str, found: str) -> InputError:
    return InputError(
        f"--address {address:.80}: expected a Ray cluster that answers, found {found:.200}; start "
        "one with `ray start --head`, or leave --address away"
    )


def _try_socket(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not (port.isdecimal() and 0 < int(port) < 65536):
        raise InputError(f"--address: expected auto or host:port, found {address!r:.80}")
    try:
        with closing(socket.create_connection((host.strip("[]"), int(port)), _SOCKET_SECONDS)):
            pass
    except (OSError, UnicodeError) as error:
        raise _unanswered(address, str(getattr(error, "strerror", None) or error)) from None


def _try_health(address: str) -> None:
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check"]
    if address != "auto":
        command += ["--address", address]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_HEALTH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise _unanswered(address, f"no answer in {_HEALTH_SECONDS} seconds") from None
    if done.returncode:
        found = "none on this machine" if address == "auto" else "something else there"
        raise _unanswered(address, found)


def run_on_ray(
    ray: Any,
    groups: Sequence[Sequence[Job]],
    where: Path,
    gpus_per_cell: float,
    at_most: int | None = None,
) -> Iterator[Event]:
    """Run jobs as tasks of the connected cluster.

    Args:
        ray: what `connect` returned.
        groups: jobs that are one task; started in this order; their `folder` is replaced by one of
            the node's.
        where: folder of the sweep: with this machine's name it tells its nodes' folders from those
            of other sweeps.
        gpus_per_cell: share of a GPU per task; 0 where the cluster has none.
        at_most: tasks at once; by default as many as the cluster has room for.

    Yields:
        Done or Failed once per job. Whatever still runs ends with the connection.
    """
    sweep = hashlib.sha256(f"{socket.gethostname()}:{where.resolve()}".encode()).hexdigest()[:16]
    waiting = list(groups)
    threads = waiting[0][0].threads if waiting else 1
    task = ray.remote(run_on_node).options(
        num_cpus=threads, num_gpus=gpus_per_cell, max_retries=MAX_RETRIES
    )
    running: dict[Any, Sequence[Job]] = {}
    while waiting or running:
        while waiting and (at_most is None or len(running) < at_most):
            jobs = waiting.pop(0)
            running[task.remote(jobs, sweep)] = jobs
        (ended,), _ = ray.wait(list(running), num_returns=1)
        jobs = running.pop(ended)
        try:
            answers = ray.get(ended)
        except Exception as error:
            reason = reason_of(getattr(error, "cause", None) or error)
            yield from (Failed(job, reason, str(error)) for job in jobs)
            continue
        for job, (answer, files) in zip(jobs, answers):
            if "result" in answer:
                yield Done(job, answer["result"], files)
            else:
                yield Failed(job, answer["error"], answer["detail"])


def room(ray: Any, gpus_per_cell: float, threads: int, device: str) -> tuple[int, bool]:
    """How many tasks the connected cluster runs at once, and whether on GPUs."""
    resources = ray.cluster_resources()
    gpus = resources.get("GPU", 0) if device != "cpu" and gpus_per_cell > 0 else 0
    tasks = gpus / gpus_per_cell if gpus else resources.get("CPU", 1) / threads
    return max(1, int(tasks)), gpus > 0


def run_on_node(jobs: Sequence[Job], sweep: str) -> list[tuple[dict[str, Any], dict[str, bytes]]]:
    """Run jobs that train together on a node; this is the task.

    Args:
        jobs: their folders are replaced by some of the node's.
        sweep: name of the sweep's folder on the node.

    Returns:
        For each job its answer (`answers_of`) and, if it has a result, what is kept of its run
        folder, by path.
    """
    import ray

    node = ray.get_runtime_context().get_node_id()
    root = Path(tempfile.gettempdir()) / f"retrieval-interp-{os.getuid()}" / sweep / node
    told = []
    for answer in answers_of([replace(job, folder=str(root / job.cell)) for job in jobs]):
        folder, files = root / answer["cell"], {}
        if "result" in answer:
            tidy(folder, jobs[0].checkpoint)
            files = {
                str(path.relative_to(folder)): path.read_bytes()
                for path in sorted(folder.rglob("*"))
                if path.is_file()
            }
            shutil.rmtree(folder)
        told.append((answer, files))
    for empty in (root, root.parent, root.parent.parent):
        try:
            empty.rmdir()
        except OSError:
            break
    return told
