"""`retrieval-interp COMMAND`: every command under one name, and `list` and `diff`.

`python -m retrieval_interp.ablate` and its siblings are the same commands.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from retrieval_interp.cli.command import run_command
from tasks.errors import InputError

COMMANDS = {
    "ablate": ("retrieval_interp.ablate", "find which attention paths of a model do the work"),
    "train": ("retrieval_interp.train", "train a transformer by a preset, or go on with a run"),
    "bound": ("retrieval_interp.bound", "say how many layers the retrieval problem needs"),
    "emergence": (
        "retrieval_interp.emergence.__main__",
        "say when each attention path appears in a training run",
    ),
    "sweep": ("retrieval_interp.sweep.__main__", "train a grid of models (paper, section 7)"),
    "reproduce": ("retrieval_interp.reproduce.__main__", "put the paper's claims beside ours"),
    "llm": (
        "retrieval_interp.llm.__main__",
        "draw how well language models answer (paper, figure 2)",
    ),
    "list": ("retrieval_interp.cli.listing", "list checkpoints, presets, grids and tasks"),
    "diff": ("retrieval_interp.cli.difference", "say what changed between two circuit files"),
}


def run() -> None:
    """Run the command that is named first, as `retrieval-interp`."""
    installed = Path(sys.argv[0]).stem == "retrieval-interp"
    prog = "retrieval-interp" if installed else "python -m retrieval_interp.cli"
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in COMMANDS:
        run_command(_command(name, f"{prog} {name}"), f"{prog} {name}", sys.argv[2:])
    else:
        run_command(lambda argv: _overview(argv, prog), prog)


def _command(name: str, prog: str) -> Callable[[Sequence[str]], None]:
    def main(argv: Sequence[str]) -> None:
        import_module(COMMANDS[name][0]).main(argv, prog)

    return main


def _overview(argv: Sequence[str], prog: str) -> None:
    if argv and argv[0] not in ("--help", "-h"):
        raise InputError(
            f"expected one of: {', '.join(COMMANDS)}, found {argv[0]!r:.60}; see {prog} --help"
        )
    print(f"usage: {prog} COMMAND [OPTIONS]\n")
    for name, (_, about) in COMMANDS.items():
        print(f"  {name:<10} {about}")
    print(f"\n{prog} COMMAND --help says what a command takes.")


if __name__ == "__main__":
    run()
