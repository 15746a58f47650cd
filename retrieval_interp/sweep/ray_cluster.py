"""Cells on a Ray cluster (optional extra `[cluster]`), which every node needs to have installed.

A cell is a task with a share of a GPU, or with CPUs if the cluster has none. If its node dies, it
runs again on another one. Nodes share no disk: a task trains in its node's temporary directory and
returns its result with the files to keep.
"""

import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from retrieval_interp.sweep.cells import Job, run_cell, tidy
from retrieval_interp.tasks.errors import InputError

MAX_RETRIES = 4
HEALTH_SECONDS = 40


def connect(address: str) -> Any:
    """The Ray library, connected to the cluster with its head node at host:port, or `auto`."""
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
    # Asked in a process of its own, as Ray would wait for minutes and then end the process.
    asked = [] if address == "auto" else ["--address", address]
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", *asked]
    try:
        if place[1]:
            socket.create_connection((place[1], int(place[2])), 5).close()
        subprocess.run(command, capture_output=True, timeout=HEALTH_SECONDS, check=True)
    except (OSError, OverflowError, subprocess.SubprocessError):
        raise InputError(
            f"--address {address:.80}: expected a Ray cluster that answers, found none; start one "
            "with `ray start --head`, or leave out --address"
        ) from None
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    return ray


def on_nodes(ray: Any, where: Path, threads: int, gpus: float) -> Callable[[Job], Any]:
    """A function that runs a cell on some node, and writes here what is kept of its run folder.

    Nodes tell the cells of this sweep from those of others by its folder, `where`.
    """
    task = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=MAX_RETRIES)(run_on_node)
    sweep = hashlib.sha256(f"{socket.gethostname()}:{where.resolve()}".encode()).hexdigest()[:16]

    def run(job: Job) -> Any:
        result, files = ray.get(task.remote(job, sweep))
        for name, content in files.items():
            (job.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (job.folder / name).write_bytes(content)
        return result

    return run


def run_on_node(job: Job, sweep: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The task: the result of a cell, and the files to keep by path."""
    user = f"retrieval-interp-{os.getuid()}"
    folder = Path(tempfile.gettempdir()) / user / sweep / job.name
    result = run_cell(replace(job, folder=folder))
    tidy(folder, job.checkpoint)
    paths = [path for path in folder.rglob("*") if path.is_file()]
    files = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    shutil.rmtree(folder)
    return result, files
