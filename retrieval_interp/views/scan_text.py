"""The numbers of a scan as text and as data."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from retrieval_interp.circuits.mechanisms import Mechanism
from retrieval_interp.circuits.scan.scan import HeadScan, Scan
from retrieval_interp.tasks.training_task import counted
from retrieval_interp.views.tables import text_table, wrapped

MOST_ROWS = 30
HEADER = ("head", "rule", "share", "mean", "estimate", "loss alone", "change", "together")
NOTE = (
    "share: how much of the head's attention the rule has; mean: how much its mean pattern has. "
    "loss alone, change: when the rule takes the head's place (or its mean, if asked for); "
    "estimate: the same from gradients. together: what replaces it in "
    "the joint circuit; a dash means that it was not replaced."
)


def rule_name(mechanism: Mechanism, names: Sequence[str] = ()) -> str:
    """A rule in a word or two; paths are counted."""
    if mechanism.follows_paths:
        many = len(mechanism.paths) > 2
        return f"{len(mechanism.paths)} paths" if many else mechanism.text(names)
    return mechanism.label


def scan_rows(scan: Scan) -> list[list[str]]:
    """One row per head: those that cost most alone first."""
    rows, names = sorted(scan.heads, key=lambda row: -_cost(row, scan)), scan.circuit.role_names
    return [
        [
            str(row.head),
            rule_name(row.rule, names),
            f"{row.share:.2f}",
            f"{row.mean_share:.2f}",
            _number(row.estimate),
            "" if math.isnan(row.loss) else f"{row.loss:.4f}",
            _number(row.loss - scan.alone_intact_loss),
            "-" if row.replaced is None else rule_name(row.replaced, names),
        ]
        for row in rows
    ]


def _cost(row: HeadScan, scan: Scan) -> float:
    """The exact change of the loss, or what is known of it."""
    cost = row.loss - scan.alone_intact_loss if not math.isnan(row.loss) else row.estimate
    return -math.inf if math.isnan(cost) else cost


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:+.4f}"


def scan_verdict(scan: Scan) -> str:
    """What the joint circuit shows, in sentences."""
    loss = scan.task.loss_name
    if not scan.learned:
        return (
            f"The model knows nothing here: its {loss} is {scan.intact_loss:.4f}, where knowing "
            f"nothing gives {scan.uninformed_loss:.4f} ({scan.uninformed}). There is nothing that "
            "heads could keep."
        )
    together = Counter(
        "with paths" if row.replaced.follows_paths else row.replaced.label
        for row in scan.heads
        if row.replaced is not None
    )
    kinds = ", ".join(f"{count} {name}" for name, count in together.most_common(6))
    text = _joint(scan, kinds)
    if not math.isnan(scan.random_loss):
        text += f" The same in as many other heads, drawn at random: {scan.random_loss:.4f}."
    elif len(scan.circuit.mechanisms) == len(scan.heads):
        text += " There is no control, as all heads are replaced alike."
    if scan.joint_loss + 2 * scan.joint_se < scan.intact_loss:
        text += (
            " The joint circuit does better than the intact model, so it is not what the model "
            "does."
        )
    if scan.tolerance <= scan.intact_loss:
        text += " The limit is not above the intact model's own loss."
    if not scan.finished:
        untried = len(scan.heads) - len(scan.tried)
        text += f" The time was over before {counted(untried, 'head')} could be tried."
    if 0 < (measured := sum(not math.isnan(row.loss) for row in scan.heads)) < len(scan.heads):
        text += f" {counted(measured, 'head')} {'was' if measured == 1 else 'were'} replaced alone."
    if not math.isnan(scan.rank_correlation):
        text += f" Rank correlation of estimates and exact changes: {scan.rank_correlation:.2f}."
    return text


def _joint(scan: Scan, kinds: str) -> str:
    """What the joint circuit is, and what it keeps."""
    loss, count = scan.task.loss_name, len(scan.circuit.mechanisms)
    known = (
        f"{loss} {scan.joint_loss:.4f}, intact {scan.intact_loss:.4f}, knowing nothing "
        f"{scan.uninformed_loss:.4f} ({scan.uninformed})"
    )
    if not count:
        tried = f"of {counted(len(scan.tried), 'head')} tried" if scan.tried else "was tried"
        found = f"No head {tried}" + (" can be replaced" if scan.tried else "")
        return f"{found}: intact {known.partition('intact ')[2]} (limit {scan.tolerance:.4f})."
    return (
        f"{count} of {counted(len(scan.heads), 'head')} can be replaced together ({kinds}): "
        f"{known}; {scan.kept:.1%} of what the model knows is kept (limit {scan.tolerance:.4f})."
    )


def scan_text(scan: Scan, width: int | None = None) -> str:
    """The table of heads, those that cost most alone first, and the verdict."""
    rows = scan_rows(scan)
    lines = text_table(HEADER, rows[:MOST_ROWS], right=range(2, 7), width=width)
    if len(rows) > MOST_ROWS:
        lines.append(f"... and {len(rows) - MOST_ROWS} heads that cost less")
    for text in (NOTE, scan_verdict(scan)):
        lines += ["", *wrapped(text, width)]
    return "\n".join(lines)


def scan_to_dict(scan: Scan) -> dict[str, Any]:
    """All numbers as JSON data; mean patterns are left out."""
    return {
        "task": scan.task.to_dict(),
        "description": scan.task.description,
        "examples": len(scan.batch),
        "intact_loss": scan.intact_loss,
        "alone_intact_loss": scan.alone_intact_loss,
        "uninformed_loss": scan.uninformed_loss,
        "uninformed": scan.uninformed,
        "tolerance": scan.tolerance,
        "joint_loss": scan.joint_loss,
        "kept": _finite(scan.kept),
        "joint_se": scan.joint_se,
        "random_loss": _finite(scan.random_loss),
        "tried": len(scan.tried),
        "finished": scan.finished,
        "rank_correlation": _finite(scan.rank_correlation),
        "heads": [
            {
                **row.head._asdict(),
                "rule": row.rule.text(scan.circuit.role_names),
                "share": row.share,
                "mean_share": row.mean_share,
                "estimate": _finite(row.estimate),
                "loss": _finite(row.loss),
                "replaced": None
                if row.replaced is None
                else row.replaced.text(scan.circuit.role_names),
            }
            for row in scan.heads
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
