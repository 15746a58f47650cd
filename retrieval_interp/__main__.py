"""All commands: `retrieval-interp COMMAND` or `python -m retrieval_interp COMMAND`."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from retrieval_interp.commands.command import run_command
from retrieval_interp.tasks.messages import InputError, nearest

COMMANDS = {
    "ablate": "find which attention paths of a model do the work",
    "explore": "build circuits by clicking, in a browser",
    "scan": "say what every head looks at and writes, and what it costs to lose",
    "why": "say which heads and paths a language model's answer comes from",
    "train": "train a transformer from a preset, or resume a run",
    "bound": "show how many layers the retrieval problem needs",
    "emergence": "show when each attention path appears in a training run",
    "sweep": "train a grid of models (paper, section 7)",
    "reproduce": "compare the paper's claims with our numbers",
    "llm": "compute or plot how well language models answer (paper, figure 2)",
    "list": "list checkpoints, presets, grids and tasks",
}


def run() -> None:
    """Run the command named by the first argument."""
    script = Path(sys.argv[0]).stem == "retrieval-interp"
    prog = "retrieval-interp" if script else "python -m retrieval_interp"
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name not in COMMANDS:
        run_command(_overview, prog, sys.argv[1:])
    else:
        main = import_module(f"retrieval_interp.commands.{name}").main
        run_command(main, f"{prog} {name}", sys.argv[2:])


def _overview(argv: Sequence[str], prog: str) -> None:
    if argv == ["--version"]:
        print(f"retrieval-interp {version('retrieval-interp')}")
        return
    if argv and argv[0] not in ("--help", "-h"):
        expected = nearest(argv[0], COMMANDS, ", ".join(COMMANDS))
        raise InputError(f"expected {expected}, found {argv[0]!r:.60}; see {prog} --help")
    print(f"usage: {prog} COMMAND [OPTIONS]\n")
    for name, about in COMMANDS.items():
        print(f"  {name:<10} {about}")
    print(f"\n{prog} COMMAND --help shows the options of a command.")


if __name__ == "__main__":
    run()
