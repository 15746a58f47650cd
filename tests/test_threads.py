"""OpenMP's threads sleep while they wait, unless the user says otherwise."""

import re
import subprocess
import sys

import pytest


def spins(**variables):
    """How often a thread looks for work before it sleeps, as OpenMP says that it read it."""
    command = [sys.executable, "-c", "import retrieval_interp as ri; ri.RetrievalTask"]
    env = {"OMP_DISPLAY_ENV": "VERBOSE", **variables}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    if (said := re.search(r"GOMP_SPINCOUNT = '(\w+)'", done.stderr)) is None:
        pytest.skip("PyTorch has another OpenMP here")
    return said[1]


def test_threads_sleep_while_they_wait_unless_the_user_has_set_something_else():
    assert spins() == "0" and spins(OMP_WAIT_POLICY="ACTIVE") != "0"
