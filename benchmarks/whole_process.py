"""What commands cost a user, each run in a new process.

    python benchmarks/whole_process.py [--runs 3] [--quick]

Seconds until the first character of output and until the end (medians), peak resident memory, and,
from one more run, how many modules are loaded when the first character is written, and which of the
heavy ones. `ablate` prints when everything is measured, so both times are nearly the same there.
"""

import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measure import arguments, report, run_process

ROOT = Path(__file__).parent.parent
HEAVY = (
    *("torch", "torch._dynamo", "torch._inductor", "transformer_lens", "transformers"),
    *("datasets", "pandas", "numpy", "scipy", "sklearn", "matplotlib", "plotly", "circuitsvis"),
    *("IPython", "anywidget", "ipywidgets", "wandb", "sympy", "tyro", "ray", "inspect_ai"),
)
COMMANDS = (
    *("ablate --ckpt small", "ablate --help", "ablate --ckpt missing"),
    *("train --help", "train --preset missing", "emergence --help", "emergence --run missing"),
    *("sweep --help", "reproduce --help", "bound --help", "llm --help"),
)
# Runs a command as `python -m` does and saves which modules were loaded when it first wrote.
PROBE = """
import json, runpy, sys
file, module, *given = sys.argv[1:]
class Probe:
    def __init__(self, stream): self.stream = stream
    def __getattr__(self, name): return getattr(self.stream, name)
    def write(self, text):
        if text and not loaded: loaded.extend(sys.modules)
        return self.stream.write(text)
loaded = []
sys.stdout, sys.stderr, sys.argv = Probe(sys.stdout), Probe(sys.stderr), [module, *given]
try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
finally:
    with open(file, "w") as out: json.dump(loaded, out)
"""


def loaded_at_first_output(command: Sequence[str]) -> set[str]:
    """The modules that a command has loaded when it first writes something."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "loaded.json"
        run_process([sys.executable, "-c", PROBE, str(file), *command], ROOT)
        return set(json.loads(file.read_text()))


def measure(name: str, runs: int) -> dict[str, Any]:
    """A row of the table."""
    command = f"retrieval_interp {name}".split()
    done = [run_process([sys.executable, "-m", *command], ROOT) for _ in range(runs)]
    loaded = loaded_at_first_output(command)
    return {
        "command": name,
        "status": done[0].status,
        "first output s": statistics.median(run.first for run in done),
        "total s": statistics.median(run.seconds for run in done),
        "peak MB": round(max(run.peak for run in done) / 1e6),
        "modules": len(loaded),
        "heavy ones loaded": " ".join(module for module in HEAVY if module in loaded),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__, device=False)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--commands", nargs="+", default=COMMANDS, choices=COMMANDS)
    options = parser.parse_args(argv)
    if options.quick:
        options.commands, options.runs = options.commands[:1], 1
    report([measure(name, options.runs) for name in options.commands], options, argv)


if __name__ == "__main__":
    main()
