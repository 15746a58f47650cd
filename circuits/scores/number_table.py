"""Named numbers as plain text, for what `print` shows of scores and sweeps."""

import math
import shutil
from collections.abc import Sequence

_PRINTED = 20  # rows of a table
_NUMBER = 12  # characters of a number's column


def number_table(
    what: str, header: Sequence[str], rows: Sequence[tuple[str, Sequence[float]]]
) -> list[str]:
    """Lines of a table of named numbers, no wider than the terminal; the first rows alone.

    Args:
        what: the header above the names.
        header: the headers above the numbers.
        rows: a name and its numbers each; NaN leaves a cell empty.
    """
    shown = [(what, list(header))]
    for name, numbers in rows[:_PRINTED]:
        shown.append((name, ["" if math.isnan(each) else f"{each:.4f}" for each in numbers]))
    room = shutil.get_terminal_size().columns - _NUMBER * len(header)
    width = max(8, min(room, max(len(name) for name, _ in shown)))
    lines = [
        (name if len(name) <= width else f"{name[: width - 1]}…").ljust(width)
        + "".join(cell.rjust(_NUMBER) for cell in cells)
        for name, cells in shown
    ]
    if len(rows) > _PRINTED:
        lines.append(f"and {len(rows) - _PRINTED} more")
    return ["", *lines] if rows else []
