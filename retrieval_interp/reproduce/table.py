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
        claim, *more = group
        lines += wrapped(f"{claim.id}  {claim.claim} ({claim.where})", width, 4)
        items = [f"paper: {claim.paper}", *([f"judged: {claim.rule}"] if claim.rule else [])]
        for row in (claim, *more):
            # A command is broken at spaces alone, so that it can be copied.
            items += [f"{row.scale}: {row.ours or '-'}", f"{row.verdict}  [{row.command}]"]
        for item in items:
            lines += [f"    {line}" for line in wrapped(item, width - 4, 4)]
        lines.append("")
    claims = [row.id for row in rows]
    cells = [
        [
            *((row.id, row.claim) if place == claims.index(row.id) else ("", "")),
            _run(row),
            row.verdict,
        ]
        for place, row in enumerate(rows)
    ]
    lines += text_table(["", "claim", "run", "verdict"], cells, width=width)
    found = Counter(row.verdict for row in rows)
    counts = ", ".join(f"{found[name]} {name}" for name in get_args(Verdict) if found[name])
    return "\n".join([*lines, "", f"{len(rows)} rows: {counts}"])


def table_markdown(rows: Sequence[Row]) -> str:
    """Two tables for a page: claims with the paper's number, ours and the verdict; then every run
    with its scale and commands.
    """
    lines = ["| | claim | paper | run | ours | verdict |", "|---|---|---|---|---|---|"]
    runs: dict[tuple[str, str], dict[str, None]] = {}
    for _, group in groupby(rows, key=lambda row: row.id):
        for place, row in enumerate(group):
            rule = f"; {row.rule}" if row.rule else ""
            claim = [row.id, f"{row.claim} ({row.where}){rule}", row.paper]
            cells = [*(claim if place == 0 else ["", "", ""]), _run(row)]
            lines.append(_cells([*cells, row.ours or "-", row.verdict]))
            scale = row.scale.removeprefix(_run(row)).lstrip(":;, ")
            command = re.sub("^python -m retrieval_interp[. ]", "", row.command)
            runs.setdefault((_run(row), scale), {})[f"`{command}`"] = None
    lines += ["", "| run | scale | commands |", "|---|---|---|"]
    lines += [_cells([run, scale, ", ".join(said)]) for (run, scale), said in runs.items()]
    return "\n".join(lines) + "\n"


def _run(row: Row) -> str:
    """What a row's number comes from, in short."""
    return re.split("[:,;] ", row.scale)[0]


def _cells(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def table_json(rows: Sequence[Row]) -> str:
    """A list of rows, one per line."""
    lines = [json.dumps(asdict(row), ensure_ascii=False) for row in rows]
    return "[\n  " + ",\n  ".join(lines) + "\n]\n"
