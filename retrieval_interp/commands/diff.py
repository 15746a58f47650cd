"""Shows what changed between two circuit files: `retrieval-interp diff A B`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from retrieval_interp.commands.command import parse_options, say, saying


@dataclass(frozen=True)
class DiffOptions:
    """Show what changed between two circuits, one change per line.

    Attributes:
        old: a circuit file.
        new: the circuit file to compare it with.
    """

    old: Positional[Path]
    new: Positional[Path]


def main(argv: Sequence[str], prog: str = "retrieval-interp diff") -> None:
    options = parse_options(DiffOptions, argv, prog)

    with saying("loading PyTorch"):
        from retrieval_interp.circuits import Circuit
        from retrieval_interp.circuits.notation import circuit_diff
        from retrieval_interp.storage.files import flatten, read_text
        from retrieval_interp.tasks.errors import InputError

    def read(path: Path) -> Circuit:
        text = read_text(path, "a circuit")
        try:
            return Circuit.from_json(text)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    old, new = read(options.old), read(options.new)
    before, after = flatten(old.task), flatten(new.task)
    changed = [
        f"task: {key}: {before.get(key)} -> {after.get(key)}"
        for key in before | after
        if before.get(key) != after.get(key)
    ]
    say("\n".join([*changed, *circuit_diff(old, new)]) or "no difference", hanging=4)
