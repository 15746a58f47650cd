"""`retrieval-interp COMMAND`: all commands under one name.

Most also run as a module, such as `python -m retrieval_interp.ablate`.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from retrieval_interp.cli.command import run_command
from tasks.errors import InputError

COMMANDS = {
    "ablate": ("retrieval_interp.ablate", "find which attention paths of a model do the work"),
    "explore": ("retrieval_interp.cli.explore", "build circuits by clicking, in a browser"),
    "scan": (
        "retrieval_interp.cli.scan",
        "say what every head looks at, and which are needed",
    ),
    "train": ("retrieval_interp.train", "train a transformer from a preset, or resume a run"),
    "bound": ("retrieval_interp.bound", "show how many layers the retrieval problem needs"),
    "emergence": (
        "retrieval_interp.emergence.__main__",
        "show when each attention path appears in a training run",
    ),
    "sweep": ("retrieval_interp.sweep.__main__", "train a grid of models (paper, section 7)"),
    "reproduce": (
        "retrieval_interp.reproduce.__main__",
        "compare the paper's claims with our numbers",
    ),
    "llm": (
        "retrieval_interp.llm.__main__",
        "plot how well language models answer (paper, figure 2)",
    ),
    "list": ("retrieval_interp.cli.listing", "list checkpoints, presets, grids and tasks"),
    "diff": ("retrieval_interp.cli.difference", "show what changed between two circuit files"),
}


def run() -> None:
    """The console script: run the command named by the first argument."""
    called = Path(sys.argv[0])
    module = "retrieval_interp.cli" if called.parent.name == "cli" else "retrieval_interp"
    prog = "retrieval-interp" if called.stem == "retrieval-interp" else f"python -m {module}"
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name not in COMMANDS:
        run_command(lambda argv: _overview(argv, prog), prog)
    else:
        module, own = COMMANDS[name][0], f"{prog} {name}"
        run_command(lambda argv: import_module(module).main(argv, own), own, sys.argv[2:])


def _overview(argv: Sequence[str], prog: str) -> None:
    if argv and argv[0] not in ("--help", "-h"):
        raise InputError(
            f"expected one of: {', '.join(COMMANDS)}, found {argv[0]!r:.60}; see {prog} --help"
        )
    print(f"usage: {prog} COMMAND [OPTIONS]\n")
    for name, (_, about) in COMMANDS.items():
        print(f"  {name:<10} {about}")
    print(f"\n{prog} COMMAND --help shows the options of a command.")


if __name__ == "__main__":
    run()
