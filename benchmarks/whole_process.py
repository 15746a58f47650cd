"""What commands cost a user, each run in a new process.

    python benchmarks/whole_process.py [--runs 3] [--quick]

Seconds until the first character of output and until the end (medians), and peak resident memory.
`ablate` prints when everything is measured, so both times are nearly the same there. For the memory
of larger work:

    python benchmarks/whole_process.py --runs 1 \\
        --commands "ablate --ckpt transformer-a --examples 4096"
"""

import argparse
import statistics
import sys
from typing import Any

from measure import Rows, benchmark, run_process

COMMANDS = (
    *("ablate --ckpt small", "ablate --help", "ablate --ckpt missing"),
    *("train --help", "train --preset missing", "emergence --help", "emergence --run missing"),
    *("sweep --help", "reproduce --help", "bound --help", "llm --help"),
)


def row(name: str, runs: int) -> dict[str, Any]:
    command = f"retrieval_interp {name}".split()
    done = [run_process([sys.executable, "-m", *command]) for _ in range(runs)]
    return {
        "command": name,
        "status": done[0].status,
        "first output s": statistics.median(run.first for run in done),
        "total s": statistics.median(run.seconds for run in done),
        "peak MB": round(max(run.peak for run in done) / 1e6),
    }


def rows(options: argparse.Namespace) -> Rows:
    return [row(name, options.runs) for name in options.commands]


main = benchmark(__doc__, rows, {"runs": 3, "commands": COMMANDS}, quick={"runs": 1}, device=False)

if __name__ == "__main__":
    main()
