"""Tables in plain text, laid out by rich: columns aligned, cells wrapped where space is short."""

import io
from collections.abc import Collection, Sequence


def text_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[int] = (),
    width: int | None = None,
) -> list[str]:
    """A table as lines of text: the header, dashes under it, the rows.

    Args:
        header: names of the columns.
        rows: as many cells each.
        right: columns whose cells stand on the right, such as numbers.
        width: characters per line, beyond which cells wrap; by default as many as are needed.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    needed = [
        max(cell_len(row[column]) for row in [header, *rows]) for column in range(len(header))
    ]
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for column in range(len(header)):
        table.add_column(justify="right" if column in right else "left")
    table.add_row(*map(Text, header))
    table.add_row(*(Text("-" * size, overflow="crop", no_wrap=True) for size in needed))
    for row in rows:
        table.add_row(*map(Text, row))
    natural = sum(needed) + 2 * len(header)
    text = io.StringIO()
    # In a notebook rich would display the table instead of writing it.
    Console(
        file=text,
        width=min(width or natural, natural),
        color_system=None,
        force_jupyter=False,
        force_terminal=False,
    ).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]
