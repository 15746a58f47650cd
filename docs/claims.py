"""Print the tables of docs/reproduction.md: python docs/claims.py [C7 C8 ...]"""

import sys
from collections.abc import Iterable
from pathlib import Path

from retrieval_interp.reproduce.claims import CLAIMS, Judged, counts_text, judge, why_not
from retrieval_interp.reproduce.evidence import Evidence


def tables_markdown(judged: Judged) -> str:
    """Three tables: the claims, our number from each run, and the scale and commands of runs."""
    claims, ours = list[list[str]](), list[list[str]]()
    runs: dict[tuple[str, str], dict[str, None]] = {}
    for name, rows in judged.items():
        claim = CLAIMS[name]
        rule = f"; {claim.rule}" if claim.rule else ""
        says = f"{claim.claim} ({claim.where}){rule}"
        claims.append([name, says, claim.paper, counts_text(rows), why_not(name, rows)])
        for first, row in zip([name] + [""] * len(rows), rows):
            ours.append([first, row.run, row.ours or "-", row.verdict])
            for command in row.commands:
                short = command.removeprefix("python -m retrieval_interp").lstrip(". ")
                runs.setdefault((row.run, row.scale), {})[f"`{short}`"] = None
    return "\n".join(
        [
            *_table(["", "claim", "paper", "our runs", "why not"], claims),
            *_table(["", "run", "ours", "verdict"], ours),
            *_table(
                ["run", "scale", "commands"],
                ([*run, ", ".join(commands)] for run, commands in runs.items()),
            ),
        ]
    )


def _table(heads: list[str], rows: Iterable[list[str]]) -> list[str]:
    whole = [heads, ["---"] * len(heads), *rows]
    lines = (" | ".join(cell.replace("|", "\\|") for cell in cells) for cells in whole)
    return [*(f"| {line} |" for line in lines), ""]


if __name__ == "__main__":
    print(tables_markdown(judge(Evidence(Path("runs")), sys.argv[1:] or list(CLAIMS))))
