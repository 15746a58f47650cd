"""The table of claims as text, as Markdown and as JSON."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import get_args

from retrieval_interp.reproduce.claims import Row, Verdict
from retrieval_interp.views.tables import text_table, wrapped


def table_text(rows: Sequence[Row], width: int = 100) -> str:
    """The claims with the paper's number and ours, one block per claim; then all verdicts.

    Args:
        rows: as `claims.judge` gives them.
        width: characters per line.
    """
    lines: list[str] = []
    for _, group in groupby(rows, key=lambda row: row.id):
        own = list(group)
        claim = own[0]
        lines += wrapped(f"{claim.id}  {claim.claim} ({claim.where})", width, 4)
        items = [f"paper: {claim.paper}"]
        if claim.rule:
            items.append(f"judged: {claim.rule}")
        for row in own:
            # A command is broken at spaces alone, so that it can be copied.
            items += [f"{row.scale}: {row.ours or '-'}", f"{row.verdict}  [{row.command}]"]
        for item in items:
            lines += [f"    {line}" for line in wrapped(item, width - 4, 4)]
        lines.append("")
    return "\n".join([*lines, *verdict_table(rows, width), "", _counts(rows)])


def verdict_table(rows: Sequence[Row], width: int | None = None) -> list[str]:
    """One line per row: the claim, what was run, and the verdict."""
    claims = [row.id for row in rows]
    cells = [
        [
            *((row.id, row.claim) if place == claims.index(row.id) else ("", "")),
            re.split("[:,;] ", row.scale)[0],
            row.verdict,
        ]
        for place, row in enumerate(rows)
    ]
    return text_table(["", "claim", "run", "verdict"], cells, width=width)


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
