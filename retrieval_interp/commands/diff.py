"""Shows what changed between two circuit files: `retrieval-interp diff A B`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

import retrieval_interp as ri
from retrieval_interp.commands.command import parse_options, say, saying
from retrieval_interp.storage.files import flatten, read_text


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
        old, new = (_read(path) for path in (options.old, options.new))
    before, after = flatten(old.task), flatten(new.task)
    changed = [
        f"task: {key}: {before.get(key)} -> {after.get(key)}"
        for key in before | after
        if before.get(key) != after.get(key)
    ]
    say("\n".join([*changed, *ri.circuit_diff(old, new)]) or "no difference", hanging=4)


def _read(path: Path) -> "ri.Circuit":
    try:
        return ri.Circuit.from_json(read_text(path, "a circuit"))
    except ri.InputError as error:
        raise ri.InputError(f"{path}: {error}") from None
