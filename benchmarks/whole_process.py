"""What commands cost a user, each run in a new process.

    python benchmarks/whole_process.py [--runs 3] [--quick]

Seconds until the first character of output and until the end (medians), and peak resident memory.
`ablate` prints when everything is measured, so both times are nearly the same there. For the memory
of larger work:

    python benchmarks/whole_process.py --runs 1 \\
        --commands "ablate --ckpt transformer-a --examples 4096"
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from measure import ROOT, Rows, benchmark, peak_bytes

COMMANDS = (
    *("ablate --ckpt small", "ablate --help", "ablate --ckpt missing"),
    *("train --help", "emergence --help", "emergence --run missing"),
    *("sweep --help", "reproduce --help", "bound --help", "llm --help"),
)


def measured(command: Sequence[str]) -> tuple[int, float, float, int]:
    """Run a process.

    Returns:
        Its exit status, seconds until it first wrote and until it ended, and its peak memory in
        bytes, or that of a process it waited for.
    """
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    with process.stdout as output:
        output.read(1)
        first = time.perf_counter() - start
        output.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, first, time.perf_counter() - start, peak_bytes(usage)


def row(name: str, runs: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "retrieval_interp", *name.split()]
    status, first, total, peak = zip(*(measured(command) for _ in range(runs)))
    return {
        "command": name,
        "status": status[0],
        "first output s": statistics.median(first),
        "total s": statistics.median(total),
        "peak MB": round(max(peak) / 1e6),
    }


def rows(options: argparse.Namespace) -> Rows:
    return [row(name, options.runs) for name in options.commands]


main = benchmark(__doc__, rows, {"runs": 3, "commands": COMMANDS}, quick={"runs": 1}, device=False)

if __name__ == "__main__":
    main()
