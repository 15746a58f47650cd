"""The claims with our numbers as text and as JSON."""

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
            verdict = f"{row.verdict}: {row.why}" if row.why else row.verdict
            items += [f"{scale}: {row.ours or '-'}", f"{verdict}  [{row.command}]"]
        for item in items:
            lines += [f"    {line}" for line in wrapped(item, width - 4, 4)]
        lines.append("")
        heads = [[name, claim.claim]] + [["", ""]] * (len(found) - 1)
        cells += [[*head, row.run, row.verdict] for head, row in zip(heads, found)]
    lines += text_table(["", "claim", "run", "verdict"], cells, width=width)
    verdicts = Counter(row[-1] for row in cells)
    counts = ", ".join(f"{verdicts[name]} {name}" for name in get_args(Verdict) if verdicts[name])
    return "\n".join([*lines, "", f"{len(cells)} rows: {counts}"])


def table_data(judged: Judged) -> list[dict[str, Any]]:
    """A row for each of our numbers, for JSON."""
    keys = ["claim", "where", "paper", "rule"]
    return [
        {"id": name, **{key: getattr(CLAIMS[name], key) for key in keys}, **row._asdict()}
        for name, found in judged.items()
        for row in found
    ]
