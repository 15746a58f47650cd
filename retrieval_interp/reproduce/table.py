"""The claims with our numbers as text, as Markdown and as JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from retrieval_interp.reproduce.claims import CLAIMS, Found, Verdict
from retrieval_interp.views.tables import text_table, wrapped

Judged = Mapping[str, Sequence[Found]]  # as `claims.judge` gives it


def table_text(judged: Judged, width: int = 100) -> str:
    """The claims with the paper's number and ours, one block per claim; then all verdicts."""
    lines, cells = list[str](), list[list[str]]()
    for name, found in judged.items():
        claim = CLAIMS[name]
        lines += wrapped(f"{name}  {claim.claim} ({claim.where})", width, 4)
        items = [f"paper: {claim.paper}", *([f"judged: {claim.rule}"] if claim.rule else [])]
        for row in found:
            # A command is broken at spaces alone, so that it can be copied.
            scale = f"{row.run}: {row.scale}" if row.scale else row.run
            items += [f"{scale}: {row.ours or '-'}", f"{row.verdict}  [{row.command}]"]
        for item in items:
            lines += [f"    {line}" for line in wrapped(item, width - 4, 4)]
        lines.append("")
        heads = [[name, claim.claim]] + [["", ""]] * (len(found) - 1)
        cells += [[*head, row.run, row.verdict] for head, row in zip(heads, found)]
    lines += text_table(["", "claim", "run", "verdict"], cells, width=width)
    verdicts = Counter(row[-1] for row in cells)
    counts = ", ".join(f"{verdicts[name]} {name}" for name in get_args(Verdict) if verdicts[name])
    return "\n".join([*lines, "", f"{len(cells)} rows: {counts}"])


def table_markdown(judged: Judged) -> str:
    """Two tables for a page: claims with the paper's number, ours and the verdict; then every run
    with its scale and commands.
    """
    lines = ["| | claim | paper | run | ours | verdict |", "|---|---|---|---|---|---|"]
    runs: dict[tuple[str, str], dict[str, None]] = {}
    for name, found in judged.items():
        claim = CLAIMS[name]
        rule = f"; {claim.rule}" if claim.rule else ""
        head = [name, f"{claim.claim} ({claim.where}){rule}", claim.paper]
        for row in found:
            lines.append(_cells([*head, row.run, row.ours or "-", row.verdict]))
            head = ["", "", ""]
            command = row.command.removeprefix("python -m retrieval_interp").lstrip(". ")
            runs.setdefault((row.run, row.scale), {})[f"`{command}`"] = None
    lines += ["", "| run | scale | commands |", "|---|---|---|"]
    lines += [_cells([run, scale, ", ".join(said)]) for (run, scale), said in runs.items()]
    return "\n".join(lines) + "\n"


def _cells(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def table_data(judged: Judged) -> list[dict[str, Any]]:
    """A row for each of our numbers, for JSON."""
    keys = ["claim", "where", "paper", "rule"]
    return [
        {"id": name, **{key: getattr(CLAIMS[name], key) for key in keys}, **row._asdict()}
        for name, found in judged.items()
        for row in found
    ]
