"""Print the tables of docs/reproduction.md: python docs/claims.py [C7 C8 ...]"""

import sys
from collections.abc import Sequence
from pathlib import Path

from retrieval_interp.reproduce.claims import CLAIMS, Judged, judge
from retrieval_interp.reproduce.evidence import Evidence


def table_markdown(judged: Judged) -> str:
    """Two tables for a page: claims with the paper's number, ours and the verdict; then every run
    with its scale and commands.
    """
    lines = ["| | claim | paper | run | ours | verdict |", "|---|---|---|---|---|---|"]
    runs: dict[tuple[str, str], dict[str, None]] = {}
    for name, rows in judged.items():
        claim = CLAIMS[name]
        rule = f"; {claim.rule}" if claim.rule else ""
        head = [name, f"{claim.claim} ({claim.where}){rule}", claim.paper]
        for row in rows:
            verdict = f"{row.verdict}: {row.why}" if row.why else row.verdict
            lines.append(_cells([*head, row.run, row.ours or "-", verdict]))
            head = ["", "", ""]
            command = row.command.removeprefix("python -m retrieval_interp").lstrip(". ")
            runs.setdefault((row.run, row.scale), {})[f"`{command}`"] = None
    lines += ["", "| run | scale | commands |", "|---|---|---|"]
    lines += [_cells([run, scale, ", ".join(said)]) for (run, scale), said in runs.items()]
    return "\n".join(lines) + "\n"


def _cells(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    print(table_markdown(judge(Evidence(Path("runs")), sys.argv[1:] or list(CLAIMS))))
