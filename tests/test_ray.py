"""Cells on a Ray cluster: bad addresses, and a real cluster of two nodes that loses one."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from retrieval_interp.commands.sweep import main as sweep
from retrieval_interp.sweep.grid import make_grid
from retrieval_interp.tasks import InputError
from tests.test_cells import job as cell_job
from tests.test_cells import run_job

VARYING = ("date", "seconds", "seconds_per_step", "grid", "layers")
GRID = make_grid("section7-ic", "smoke")


def error_of(address, out, capsys):
    arguments = ["--grid", "section7-ic", "--scale", "smoke", "--out", str(out)]
    with pytest.raises(InputError) as caught:
        sweep([*arguments, "--address", address])
    assert capsys.readouterr().out == "" and not out.exists()
    return " ".join(str(caught.value).split())


def test_without_ray_the_command_that_installs_it_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    found = error_of("auto", tmp_path / "out", capsys)
    assert found.endswith("found none; pip install 'retrieval-interp[cluster]'")


@pytest.fixture
def ray():
    return pytest.importorskip("ray")


@pytest.mark.parametrize("address", ["localhost", "ray://127.0.0.1:1", "127.0.0.1:0", "host:x"])
def test_addresses_of_another_form_are_refused(ray, address, tmp_path, capsys):
    found = error_of(address, tmp_path / "out", capsys)
    assert f"--address: expected auto or host:port, found '{address}'" in found


def test_an_address_where_nothing_listens_is_refused(ray, tmp_path, capsys):
    found = error_of(f"127.0.0.1:{free_port()}", tmp_path / "out", capsys)
    assert "expected a Ray cluster that answers, found Connection refused; start" in found


def test_an_address_where_something_else_listens_is_refused(ray, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("retrieval_interp.sweep.ray_cluster._HEALTH_SECONDS", 4)
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = error_of(f"127.0.0.1:{server.getsockname()[1]}", tmp_path / "out", capsys)
    assert "expected a Ray cluster that answers, found" in found


def test_no_cluster_on_this_machine_is_said(ray, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # where a running cluster would be noted
    found = error_of("auto", tmp_path / "out", capsys)
    assert "--address auto: expected a Ray cluster that answers, found" in found


# A real cluster


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
def cluster(ray):
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
    arguments = ["--grid", "section7-ic", "--scale", "smoke", "--out", out, "--device", "cpu"]
    command = [sys.executable, "-m", "retrieval_interp", "sweep"]
    driver = subprocess.Popen(
        [*command, *arguments, "--address", address, "--group", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    written = {}

    def watch():
        """Which versions of a result there ever were."""
        while driver.poll() is None:
            for path in out.glob("results/layers-*.json"):
                written.setdefault(path.name, set()).add(path.stat().st_mtime_ns)
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        pattern = "retrieval-interp-*/*/*/*/metrics.jsonl"
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
        watcher.join()
    assert driver.returncode == 0, printed
    assert "4 of 4 cells finished\n" in printed and ": failed: " not in printed
    assert unfinished.name in {cell.name for cell in GRID.cells}
    assert {name: len(times) for name, times in written.items()} == {
        f"{cell.name}.json": 1 for cell in GRID.cells
    }
    for cell in GRID.cells:
        result = json.loads((out / "results" / f"{cell.name}.json").read_text())
        expected = run_job(cell_job(tmp_path / cell.name, cell))
        for key in result.keys() - set(VARYING):
            assert result[key] == expected[key], key
        kept = {path.name for path in (out / "cells" / cell.name).rglob("*") if path.is_file()}
        assert kept == {"config.json", "metrics.jsonl", "step-000240.safetensors"}
