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
        width: characters per line, beyond which headers wrap, and then the longest cells; words
            are never cut. By default as many as needed.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    sizes = _column_sizes(list(zip(header, *rows)), width)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
    for number, size in enumerate(sizes):
        table.add_column(justify="right" if number in right else "left", width=size)
    for row in (header, ["-" * size for size in sizes], *rows):
        table.add_row(*map(Text, row))
    text = io.StringIO()
    # Without force_jupyter=False, rich displays the table in a notebook instead of writing it.
    Console(
        file=text,
        width=sum(sizes) + _GAP * len(sizes),
        color_system=None,
        force_jupyter=False,
        force_terminal=False,
    ).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def _column_sizes(columns: Sequence[Sequence[str]], width: int | None) -> list[int]:
    """Characters of each column: as needed, or less where that is too wide."""
    from rich.cells import cell_len

    def size(texts: Iterable[str]) -> int:
        return max(1, *map(cell_len, texts))

    sizes = [size(column) for column in columns]
    room = math.inf if width is None else width - _GAP * (len(columns) - 1)
    for least in (  # what may shrink: headers, which break at spaces, and only then cells
        [size([*name.split(), *cells]) for name, *cells in columns],
        [size(word for cell in column for word in cell.split()) for column in columns],
    ):
        while sum(sizes) > room and (able := [p for p in range(len(sizes)) if sizes[p] > least[p]]):
            sizes[max(able, key=sizes.__getitem__)] -= 1
    return sizes
