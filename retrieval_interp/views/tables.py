"""Plain-text tables: columns aligned, cells wrapped where space is short."""

import itertools
import math
import shutil
import sys
import textwrap
from collections.abc import Collection, Sequence

_GAP = 2  # between columns


def terminal_width(piped: int = 100) -> int:
    """Return the characters per line of the terminal, or `piped` where there is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else piped


def wrapped(text: str, width: int | None, hanging: int = 0) -> list[str]:
    """Break prose at spaces into lines of at most `width` characters, or not at all if None.

    A longer word, such as the name of a file, keeps a line of its own. Lines that go on begin with
    `hanging` blanks.
    """
    if not width:
        return text.splitlines()
    wrapper = textwrap.TextWrapper(
        width, subsequent_indent=" " * hanging, break_long_words=False, break_on_hyphens=False
    )
    return [part for line in text.splitlines() for part in wrapper.wrap(line) or [""]]


def to_error(value: float, se: float) -> str:
    """Write a signed number with the digits that its standard error allows, up to its first.

    Without an error it has the first two that are not zero. Of NaN there is no text.
    """
    if math.isnan(value):
        return ""
    digits = _digits(se if se > 0 else abs(value) / 10)
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def with_error(loss: float, se: float) -> str:
    """Write a loss and its standard error, with four digits, or more if that would be zero."""
    digits = max(4, _digits(se))
    return f"{loss:.{digits}f} +- {se:.{digits}f}"


def range_text(within: tuple[float, float]) -> str:
    """Write a range: `0.17 to 0.89`."""
    return f"{within[0]:g} to {within[1]:g}"


def _digits(error: float) -> int:
    """Count the digits after the decimal point up to the first of an error."""
    return max(0, -math.floor(math.log10(error))) if error > 0 else 1


def text_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[int] = (),
    width: int | None = None,
) -> list[str]:
    """Write a table as lines of text: the header, dashes under it, the rows.

    Columns in `right` are aligned right. Where lines would have more than `width` characters,
    headers wrap, and then the longest cells; words are never cut.
    """
    sizes = _column_sizes(list(zip(header, *rows)), width)
    lines = []
    for row in (header, ["-" * size for size in sizes], *rows):
        cells = [wrapped(cell, size) for cell, size in zip(row, sizes)]
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            placed = [
                part.rjust(size) if column in right else part.ljust(size)
                for column, (part, size) in enumerate(zip(parts, sizes))
            ]
            lines.append((" " * _GAP).join(placed).rstrip())
    return lines


def _column_sizes(columns: Sequence[Sequence[str]], width: int | None) -> list[int]:
    """Return the characters of each column: as needed, or less where that is too wide."""

    def size(texts: Sequence[str]) -> int:
        return max([1, *map(len, texts)])

    sizes = [size(column) for column in columns]
    room = math.inf if width is None else width - _GAP * (len(columns) - 1)
    for least_sizes in (  # what may shrink: headers, which break at spaces, and only then cells
        [size([*name.split(), *cells]) for name, *cells in columns],
        [size(" ".join(column).split()) for column in columns],
    ):
        while sum(sizes) > room and (
            able := [p for p in range(len(sizes)) if sizes[p] > least_sizes[p]]
        ):
            sizes[max(able, key=sizes.__getitem__)] -= 1
    return sizes
