"""Plain-text tables, laid out by rich: columns aligned, cells wrapped where space is short."""

import io
import math
import shutil
import sys
import textwrap
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Literal

_PIPED = 100  # characters per line where there is no terminal
_GAP = 2  # between columns
_HEAD = 9  # of a column of numbers where space is short: "from the" fits


def terminal_width() -> int:
    """Characters per line of the terminal, or 100 where there is none."""
    return own_terminal_width() or _PIPED


def own_terminal_width() -> int | None:
    """Characters per line of the terminal, None where there is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def wrapped(text: str, width: int | None, hanging: int = 0) -> list[str]:
    """Prose as lines of at most `width` characters, broken at spaces; as it is if None.

    A longer word, such as the name of a file, keeps a line of its own. Lines that go on begin with
    `hanging` blanks.
    """
    if not width:
        return text.splitlines()
    wrapper = textwrap.TextWrapper(
        width,
        subsequent_indent=" " * hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [part for line in text.splitlines() for part in wrapper.wrap(line) or [""]]


def text_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[int] = (),
    width: int | None = None,
) -> list[str]:
    """A table as lines of text: the header, dashes under it, the rows.

    Args:
        header: column names.
        rows: one cell per column each.
        right: columns to align right, such as numbers.
        width: characters per line, beyond which cells wrap, heads of numbers first; by default as
            many as needed.
    """
    from rich.console import Console
    from rich.rule import Rule
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
    columns = list(zip(header, *rows))
    wide = sum(max(map(len, column)) + _GAP for column in columns) - _GAP > (width or math.inf)
    for number, column in enumerate(columns):
        word = max((len(word) for cell in column for word in cell.split()), default=1)
        most = max(word, _HEAD) if wide and all(map(_is_number, column[1:])) else None
        justify: Literal["left", "right"] = "right" if number in right else "left"
        table.add_column(justify=justify, min_width=word, max_width=most)
    table.add_row(*map(Text, header))
    table.add_row(*(Rule(characters="-", style="") for _ in header))
    for row in rows:
        table.add_row(*map(Text, row))
    text = io.StringIO()
    # Without force_jupyter=False, rich displays the table in a notebook instead of writing it.
    Console(
        file=text,
        width=width or 10_000,
        color_system=None,
        force_jupyter=False,
        force_terminal=False,
    ).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def _is_number(cell: str) -> bool:
    with suppress(ValueError):
        return not cell or math.isfinite(float(cell))
    return False
