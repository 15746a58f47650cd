"""What commands cost as a user meets them, each run a process of its own.

    python benchmarks/whole_process.py [--runs 3] [--quick]

Seconds until the first character of output and until the end (medians), the greatest resident
memory, and, from one more run, how many modules are loaded when the first character is written and
which of the heavy ones. `ablate` prints when all is measured, so both times are nearly one there.
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
COMMANDS = {
    "ablate --ckpt small": ("ablate", "--ckpt", "small"),
    "ablate --help": ("ablate", "--help"),
    "ablate --ckpt missing": ("ablate", "--ckpt", "missing"),
    "train --help": ("train", "--help"),
    "train --preset missing": ("train", "--preset", "missing"),
    "emergence --help": ("emergence", "--help"),
    "emergence --run missing": ("emergence", "--run", "missing"),
    "sweep --help": ("sweep", "--help"),
    "reproduce --help": ("reproduce", "--help"),
    "bound --help": ("bound", "--help"),
    "llm --help": ("llm", "--help"),
}
# Runs a command as `python -m` does and keeps what was loaded when it first wrote something.
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
    """The modules that a command has loaded when it first writes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "loaded.json"
        run_process([sys.executable, "-c", PROBE, str(file), *command], ROOT)
        return set(json.loads(file.read_text()))


def measure(name: str, arguments: Sequence[str], runs: int) -> dict[str, Any]:
    """A row of the table."""
    module = f"retrieval_interp.{arguments[0]}"
    command = [sys.executable, "-m", module, *arguments[1:]]
    done = [run_process(command, ROOT) for _ in range(runs)]
    loaded = loaded_at_first_output([module, *arguments[1:]])
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
    parser.add_argument("--commands", nargs="+", default=list(COMMANDS), choices=list(COMMANDS))
    options = parser.parse_args(argv)
    rows = [
        measure(name, COMMANDS[name], 1 if options.quick else options.runs)
        for name in (options.commands[:1] if options.quick else options.commands)
    ]
    report(rows, options, argv)


if __name__ == "__main__":
    main()
