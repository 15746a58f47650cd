"""OpenMP's threads sleep while they wait, unless the user says otherwise.

OpenMP itself says what it read, where OMP_DISPLAY_ENV is set.
"""

import os
import re
import subprocess
import sys

import pytest

OWN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def spins(code, **variables):
    """How often a thread looks for work before it sleeps, as OpenMP read it in a run of this."""
    kept = {name: value for name, value in os.environ.items() if name not in OWN}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, "OMP_DISPLAY_ENV": "VERBOSE", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"GOMP_SPINCOUNT = '(\w+)'", done.stderr)
    if found is None:
        pytest.skip("PyTorch has another OpenMP here")
    return found[1]


def test_threads_sleep_while_they_wait_unless_the_user_has_set_something_else():
    code = "import retrieval_interp as ri; ri.RetrievalTask"
    assert spins(code) == "0" and spins(code, OMP_WAIT_POLICY="ACTIVE") != "0"
