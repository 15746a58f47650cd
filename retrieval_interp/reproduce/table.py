"""The table of claims as text, as Markdown and as JSON."""

import json
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import get_args

from retrieval_interp.reproduce.claims import Row, Verdict


def table_text(rows: Sequence[Row], width: int = 100) -> str:
    """The claims with the paper's number and ours, one block per claim.

    Args:
        rows: as `claims.judge` gives them.
        width: columns of the terminal.
    """
    lines: list[str] = []
    for _, group in groupby(rows, key=lambda row: row.id):
        own = list(group)
        claim = own[0]
        lines.append(f"{claim.id}  {claim.claim} ({claim.where})")
        lines += _item("paper: ", claim.paper, width)
        if claim.rule:
            lines += _item("judged: ", claim.rule, width)
        for row in own:
            lines += _item(f"{row.scale}: ", row.ours or "-", width)
            lines += _item("", f"{row.verdict}  [{row.command}]", width)
        lines.append("")
    return "\n".join([*lines, _counts(rows)])


def _item(label: str, text: str, width: int) -> list[str]:
    # A command breaks at spaces alone, so that it can be copied.
    return textwrap.wrap(
        text,
        width,
        initial_indent=f"    {label}",
        subsequent_indent=" " * 8,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _counts(rows: Sequence[Row]) -> str:
    """How many rows have which verdict."""
    found = Counter(row.verdict for row in rows)
    listed = ", ".join(f"{found[v]} {v}" for v in get_args(Verdict) if found[v])
    return f"{len(rows)} rows: {listed}"


def table_markdown(rows: Sequence[Row]) -> str:
    """A table for a page: claim, the paper's number, ours, the scale, the verdict, the command."""
    lines = [
        "| | claim | paper | ours | scale | verdict | command |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        rule = f"; {row.rule}" if row.rule else ""
        cells = [row.id, f"{row.claim} ({row.where}){rule}", row.paper, row.ours or "-", row.scale]
        cells += [row.verdict, f"`{row.command.removeprefix('python -m retrieval_interp.')}`"]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def table_json(rows: Sequence[Row]) -> str:
    """A list of rows, one per line."""
    lines = ",\n".join("  " + json.dumps(asdict(row), ensure_ascii=False) for row in rows)
    return f"[\n{lines}\n]\n"
