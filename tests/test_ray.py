"""Cells on a real Ray cluster of two nodes that loses one."""

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from retrieval_interp.sweep.cells import read_results, run_cell
from tests.tiny_run import GRID, command, job, results, smoke


@pytest.fixture
def cluster(monkeypatch):
    """Two nodes on this machine with a CPU each; a death is seen in two seconds instead of 20."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    settings = {
        "PYTHONPATH": os.getcwd(),
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "90",
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "500",
        "RAY_health_check_failure_threshold": "4",
    }
    node = {"num_cpus": 1, "object_store_memory": 100_000_000}
    # Short, since the names of Ray's sockets are: at most 107 characters.
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as root:
        for name, value in {**settings, "TMPDIR": root}.items():
            monkeypatch.setenv(name, value)
        cluster = Cluster(True, head_node_args={**node, "include_dashboard": False})
        try:
            yield cluster, cluster.add_node(**node), Path(root)
        finally:
            cluster.shutdown()


@pytest.mark.cluster
def test_a_cluster_that_loses_a_node_still_finishes_every_cell_once(cluster, tmp_path):
    cluster, lost, root = cluster
    out = tmp_path / "out"
    driver = subprocess.Popen(
        command(*smoke(out), "--address", cluster.address),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        while len(running := list(root.glob("retrieval-interp-*/*/*/metrics.jsonl"))) < 2:
            assert driver.poll() is None, driver.stdout.read()
            time.sleep(0.01)
        cluster.remove_node(lost, allow_graceful=False)
        for log in running:  # one of them was on the node that is lost
            steps = [json.loads(line)["step"] for line in log.read_text().splitlines()[:-1]]
            assert max(steps, default=0) < GRID.recipe.steps, "a cell was over before the node died"
        printed = driver.communicate(timeout=240)[0]
    finally:
        driver.kill()
        driver.wait()
    assert driver.returncode == 0, printed
    assert "4 of 4 cells finished\n" in printed and ": failed: " not in printed
    for cell, result in read_results(out, GRID).items():
        run_cell(job(tmp_path / "cells" / cell.name, cell))
        assert result["threads"] == 1
        kept = {path.name for path in (out / "cells" / cell.name).rglob("*") if path.is_file()}
        assert kept == {"config.json", "metrics.jsonl", "step-000240.safetensors"}
    assert results(out) == results(tmp_path)
