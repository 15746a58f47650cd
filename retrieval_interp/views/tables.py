"""Plain-text tables, laid out by rich: columns aligned, cells wrapped where space is short."""

import io
import math
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence

_PIPED = 100  # characters per line where there is no terminal
_GAP = 2  # between columns


def terminal_width() -> int:
    """Characters per line of the terminal, or 100 where there is none."""
    return own_terminal_width() or _PIPED


def own_terminal_width() -> int | None:
    """Characters per line of the terminal, None where there is none."""
    shown = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size().columns if shown else None


def wrapped(text: str, width: int | None, hanging: int = 0) -> list[str]:
    """Prose as lines of at most `width` characters, broken at spaces; as it is if None.

    A longer word, such as the name of a file, keeps a line of its own.

    Args:
        text: one or more lines, each of which is wrapped.
        width: characters per line.
        hanging: blanks before the lines that go on.
    """
    if not width:
        return text.splitlines()
    return [
        part
        for line in text.splitlines()
        for part in textwrap.wrap(
            line,
            width,
            subsequent_indent=" " * hanging,
            break_long_words=False,
            break_on_hyphens=False,
        )
        or [""]
    ]


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
        width: characters per line, beyond which headers wrap, and then the longest cells; by
            default as many as needed.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    sizes = _column_sizes(header, rows, width)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
    for column, size in enumerate(sizes):
        table.add_column(justify="right" if column in right else "left", width=size)
    table.add_row(*map(Text, header))
    table.add_row(*(Text("-" * size, overflow="crop", no_wrap=True) for size in sizes))
    for row in rows:
        table.add_row(*map(Text, row))
    text = io.StringIO()
    # Without force_jupyter=False, rich displays the table in a notebook instead of writing it.
    Console(
        file=text,
        width=sum(sizes) + _GAP * len(header),
        color_system=None,
        force_jupyter=False,
        force_terminal=False,
    ).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def _column_sizes(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None
) -> list[int]:
    """Characters of each column: as needed, or less where that is too wide."""
    from rich.cells import cell_len

    def size(cells: Iterable[str]) -> int:
        return max(map(cell_len, cells), default=0)

    columns = list(zip(header, *rows))
    sizes = [max(1, size(column)) for column in columns]
    room = math.inf if width is None else width - _GAP * (len(header) - 1)
    for least in (  # what may shrink: headers, which break at spaces, and only then cells
        [max(1, size([*name.split(), *cells])) for name, *cells in columns],
        [max(1, size(word for cell in column for word in cell.split())) for column in columns],
    ):
        while sum(sizes) > room and (able := [p for p in range(len(sizes)) if sizes[p] > least[p]]):
            sizes[max(able, key=sizes.__getitem__)] -= 1
    return sizes
