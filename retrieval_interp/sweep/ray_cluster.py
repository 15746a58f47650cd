"""Run the cells of a grid as tasks of a Ray cluster (optional extra `[cluster]`).

1. The address is first tried in another process with a time limit, as Ray itself would wait for
   minutes and then end the process that waits.
2. Every group of cells that train together (often a single cell) is a task with a share of a GPU,
   or with CPUs if the cluster has no GPU. A task whose node dies runs again on another one.
3. Nodes share no disk: a task trains in its node's temporary directory and returns results and kept
   files through Ray. If it runs again on the same node it resumes, elsewhere it starts over.

Every node needs this package. No usage statistics are sent, and no dashboard is started.
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
from retrieval_interp.tasks.errors import InputError

MAX_RETRIES = 4
INSTALL = "pip install 'retrieval-interp[cluster]'"
_SOCKET_SECONDS = 5
_HEALTH_SECONDS = 40


def import_ray() -> Any:
    """The Ray library, without usage statistics.

    Raises:
        InputError: it is not installed; the message says how to install it.
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
        InputError: Ray is not installed, the address is malformed, or no cluster answers there
            within 45 seconds.
    """
    ray = import_ray()
    fault = (address != "auto" and _socket_fault(address)) or _health_fault(address)
    if not fault:
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            return ray
        except Exception as error:
            fault = reason_of(error)
    raise InputError(
        f"--address {address:.80}: expected a Ray cluster that answers, found {fault:.200}; start "
        "one with `ray start --head`, or leave out --address"
    )


def _socket_fault(address: str) -> str:
    """Why no connection can be made; empty if it can."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not (port.isdecimal() and 0 < int(port) < 65536):
        raise InputError(f"--address: expected auto or host:port, found {address!r:.80}")
    try:
        with closing(socket.create_connection((host.strip("[]"), int(port)), _SOCKET_SECONDS)):
            return ""
    except (OSError, UnicodeError) as error:
        return str(getattr(error, "strerror", None) or error)


def _health_fault(address: str) -> str:
    """Why no cluster answers, asked in a process of its own; empty if one does."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check"]
    if address != "auto":
        command += ["--address", address]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_HEALTH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer in {_HEALTH_SECONDS} seconds"
    if not done.returncode:
        return ""
    return "none on this machine" if address == "auto" else "something else there"


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
        groups: the jobs of each task; started in this order. Their `folder` is replaced by one on
            the node.
        where: folder of the sweep; with this machine's name it distinguishes the sweep's folders on
            the nodes from those of other sweeps.
        gpus_per_cell: share of a GPU per task; 0 if the cluster has none.
        at_most: tasks at once; by default as many as the cluster has room for.

    Yields:
        Done or Failed once per job. Tasks that still run end with the connection.
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
    """How many tasks the connected cluster can run at once, and whether on GPUs."""
    resources = ray.cluster_resources()
    gpus = resources.get("GPU", 0) if device != "cpu" and gpus_per_cell > 0 else 0
    tasks = gpus / gpus_per_cell if gpus else resources.get("CPU", 1) / threads
    return max(1, int(tasks)), gpus > 0


def run_on_node(jobs: Sequence[Job], sweep: str) -> list[tuple[dict[str, Any], dict[str, bytes]]]:
    """The task: run jobs that train together on a node.

    Args:
        jobs: their `folder` is replaced by one on the node.
        sweep: name of the sweep's folder on the node.

    Returns:
        For each job its answer (`answers_of`) and, if it has a result, the kept files of its run
        folder by path.
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
