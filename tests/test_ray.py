"""Cells on a real Ray cluster of two nodes that loses one."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from retrieval_interp.sweep.cells import run_cell
from tests.test_grid_sweep import GRID, VARYING, command, job, smoke


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Node:
    """A node on loopback with one CPU: `ray start` and every process of its session."""

    def __init__(self, arguments, temporary):
        self.temporary = temporary
        environment = {
            **os.environ,
            "TMPDIR": str(temporary),
            "PYTHONPATH": os.getcwd(),
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            "RAY_USAGE_STATS_ENABLED": "0",
            # The death of a node is seen in two seconds instead of twenty.
            "RAY_health_check_initial_delay_ms": "1000",
            "RAY_health_check_period_ms": "500",
            "RAY_health_check_failure_threshold": "4",
        }
        common = ["--node-ip-address=127.0.0.1", "--num-cpus=1", "--object-store-memory=100000000"]
        self.log = open(temporary / "log", "w")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", *common, *arguments],
            env=environment,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def wait(self):
        status = self.process.wait(timeout=90)
        assert status == 0, (self.temporary / "log").read_text()

    def pids(self):
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                pid = int(entry.name)
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if os.getsid(pid) == self.process.pid and state != "Z":
                    found.append(pid)
        return found

    def kill(self):
        deadline = time.monotonic() + 30
        while pids := self.pids():
            assert time.monotonic() < deadline, f"processes {pids} do not end"
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        self.process.wait()
        self.log.close()


@pytest.fixture
def cluster():
    ray = pytest.importorskip("ray")
    if not sys.platform.startswith("linux"):
        pytest.skip("finds the processes of a node in /proc")
    if tuple(map(int, ray.__version__.split(".")[:2])) < (2, 60):
        pytest.skip("with Ray 2.40 and older the sweep sometimes uses the node that is lost")
    port, nodes = free_port(), []
    # Short, since the names of Ray's sockets are: at most 107 characters.
    root = Path(tempfile.mkdtemp(prefix="rr", dir="/tmp"))
    try:
        head = ["--head", f"--port={port}", f"--temp-dir={root / '0'}", "--disable-usage-stats"]
        joins = [f"--address=127.0.0.1:{port}"]
        for number, arguments in enumerate([[*head, "--include-dashboard=false"], joins]):
            (root / str(number)).mkdir()
            nodes.append(Node(arguments, root / str(number)))
            nodes[-1].wait()
        yield f"127.0.0.1:{port}", nodes
    finally:
        for node in reversed(nodes):
            node.kill()
        shutil.rmtree(root, ignore_errors=True)


@pytest.mark.cluster
def test_a_cluster_that_loses_a_node_still_finishes_every_cell_once(cluster, tmp_path):
    address, (_, lost) = cluster
    out = tmp_path / "out"
    driver = subprocess.Popen(
        command(*smoke(out), "--address", address),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        pattern = "retrieval-interp-*/*/*/metrics.jsonl"
        while not (running := list(lost.temporary.glob(pattern))):
            assert driver.poll() is None, driver.stdout.read()
            time.sleep(0.01)
        lost.kill()
        unfinished = running[0].parent
        steps = [json.loads(line)["step"] for line in running[0].read_text().splitlines()[:-1]]
        assert max(steps, default=0) < GRID.recipe.steps, "the cell was over before its node died"
        printed = driver.communicate(timeout=120)[0]
    finally:
        driver.kill()
        driver.wait()
    assert driver.returncode == 0, printed
    assert "4 of 4 cells finished\n" in printed and ": failed: " not in printed
    assert unfinished.name in {cell.name for cell in GRID.cells}
    for cell in GRID.cells:
        result = json.loads((out / "results" / f"{cell.name}.json").read_text())
        expected = run_cell(job(tmp_path / cell.name, cell))
        for key in expected.keys() - set(VARYING):
            assert result[key] == expected[key], key
        kept = {path.name for path in (out / "cells" / cell.name).rglob("*") if path.is_file()}
        assert kept == {"config.json", "metrics.jsonl", "step-000240.safetensors"}
