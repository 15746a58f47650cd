"""A scan as rows, from which come its table of text, its page and JSON."""

import math
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from retrieval_interp.circuits.hooks import is_causal
from retrieval_interp.circuits.mechanisms import Mechanism, Where
from retrieval_interp.circuits.scan import Scan
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.training_task import counted
from retrieval_interp.views.attention import patterns_on, position_labels, thousandths
from retrieval_interp.views.page import View, circuitsvis_script, render
from retrieval_interp.views.score_text import finite
from retrieval_interp.views.tables import text_table, wrapped

MOST_ROWS = 30
MOST_POSITIONS = 48  # of patterns; longer ones make the page large
HEADER = ("head", "rule", "share", "mean", "estimate", "loss alone", "change", "together")
NOTE = (
    "share: how much of the head's attention the rule has; mean: how much its mean pattern has. "
    "loss alone, change: when the rule takes the head's place (or its mean, if asked for); "
    "estimate: the same from gradients. together: what replaces it in "
    "the joint circuit; a dash means that it was not replaced."
)


def rule_name(mechanism: Mechanism, names: Sequence[str] = ()) -> str:
    """A rule in a word or two; many paths are counted."""
    many = mechanism.follows_paths and len(mechanism.paths) > 2
    return f"{len(mechanism.paths)} paths" if many else mechanism.text(names)


def scan_rows(scan: Scan) -> list[dict[str, Any]]:
    """What was measured of each head, those that cost most when replaced alone first."""
    names = scan.circuit.role_names
    rows = [
        {
            **row.head._asdict(),
            "rule": row.rule.text(names),
            "short": rule_name(row.rule, names),
            "share": row.share,
            "mean_share": row.mean_share,
            "estimate": row.estimate,
            "loss": row.loss,
            "change": row.loss - scan.alone_intact_loss,
            "replaced": row.replaced and row.replaced.text(names),
            "replaced_short": rule_name(row.replaced, names) if row.replaced else "-",
        }
        for row in scan.heads
    ]

    def cost(row: dict[str, Any]) -> float:
        known = row["estimate"] if math.isnan(row["change"]) else row["change"]
        return -math.inf if math.isnan(known) else known

    return sorted(rows, key=cost, reverse=True)


def scan_cells(scan: Scan) -> list[list[str]]:
    """The cells of the table under `HEADER`."""

    def text(value: float, form: str) -> str:
        return "" if math.isnan(value) else f"{value:{form}}"

    return [
        [
            f"L{row['layer']}.H{row['head']}",
            row["short"],
            f"{row['share']:.2f}",
            f"{row['mean_share']:.2f}",
            text(row["estimate"], "+.4f"),
            text(row["loss"], ".4f"),
            text(row["change"], "+.4f"),
            row["replaced_short"],
        ]
        for row in scan_rows(scan)
    ]


def scan_to_dict(scan: Scan) -> dict[str, Any]:
    """All numbers as JSON data; mean patterns are left out."""
    keys = (
        "intact_loss alone_intact_loss uninformed_loss uninformed tolerance joint_loss kept "
        "joint_se random_loss finished rank_correlation"
    )
    data: dict[str, Any] = finite(
        {
            "task": scan.task.to_dict(),
            "description": scan.task.description,
            "examples": len(scan.batch),
            **{key: getattr(scan, key) for key in keys.split()},
            "tried": len(scan.tried),
            "heads": sorted(scan_rows(scan), key=lambda row: (row["layer"], row["head"])),
        }
    )
    return data


def scan_verdict(scan: Scan) -> str:
    """What the joint circuit shows, in sentences."""
    loss, count, heads = scan.task.loss_name, len(scan.circuit.mechanisms), len(scan.heads)
    nothing = f"{scan.uninformed_loss:.4f} ({scan.uninformed})"
    if not scan.learned:
        return (
            f"The model knows nothing here: its {loss} is {scan.intact_loss:.4f}, where knowing "
            f"nothing gives {nothing}. There is nothing that heads could keep."
        )
    known = f"intact {scan.intact_loss:.4f}, knowing nothing {nothing}"
    limit = f"(limit {scan.tolerance:.4f})"
    replaced = [row.replaced for row in scan.heads if row.replaced is not None]
    kinds = Counter("with paths" if each.follows_paths else each.label for each in replaced)
    if count:
        said = [
            f"{count} of {counted(heads, 'head')} can be replaced together "
            f"({', '.join(f'{number} {name}' for name, number in kinds.most_common(6))}): "
            f"{loss} {scan.joint_loss:.4f}, {known}; {scan.kept:.1%} of what the model knows is "
            f"kept {limit}."
        ]
    elif scan.tried:
        tried = counted(len(scan.tried), "head")
        said = [f"No head of {tried} tried can be replaced: {known} {limit}."]
    else:
        said = [f"No head was tried: {known} {limit}."]
    if not math.isnan(scan.random_loss):
        said.append(f"The same in as many other heads, drawn at random: {scan.random_loss:.4f}.")
    elif count == heads:
        said.append("There is no control, as all heads are replaced alike.")
    if scan.joint_loss + 2 * scan.joint_se < scan.intact_loss:
        said.append("The joint circuit does better than the intact model: it is not what it does.")
    if not scan.finished:
        untried = counted(heads - len(scan.tried), "head")
        said.append(f"The time was over before {untried} could be tried.")
    if 0 < (measured := sum(not math.isnan(row.loss) for row in scan.heads)) < heads:
        said.append(f"{counted(measured, 'head')} were replaced alone.")
    if not math.isnan(scan.rank_correlation):
        said.append(
            f"Estimates and exact changes correlate in rank by {scan.rank_correlation:.2f}."
        )
    return " ".join(said)


def scan_text(scan: Scan, width: int | None = None) -> str:
    """The table of heads, those that cost most alone first, and the verdict."""
    cells = scan_cells(scan)
    lines = text_table(HEADER, cells[:MOST_ROWS], right=range(2, 7), width=width)
    if len(cells) > MOST_ROWS:
        lines.append(f"... and {len(cells) - MOST_ROWS} heads that cost less")
    for text in (NOTE, scan_verdict(scan)):
        lines += ["", *wrapped(text, width)]
    return "\n".join(lines)


def scan_view(scan: Scan, model: Any, example: int = 0) -> View:
    """A scan as a page or in a notebook.

    A heat map has a cell per head, coloured by its rule and framed where the head has to stay; a
    click on a cell or a row shows the head's mean pattern, and its attention on one example.

    Args:
        scan: what `ri.scan` returned.
        model: the model that was scanned.
        example: which of the examples of `scan.batch`.
    """
    if not 0 <= example < len(scan.batch):
        raise InputError(f"example: expected 0 to {len(scan.batch) - 1}, found {example}")
    some = scan.batch[[example]]
    patterns = torch.stack([layer[0] for layer in patterns_on(model, some)])
    size, causal = patterns.shape[-1], is_causal(model)
    shown = min(MOST_POSITIONS, int(some.roles.max()) + 1, size)
    where = Where(some.roles, size, causal, real=some.attention_mask)
    heads, data = [], {}
    for row in scan.heads:
        # A mean by role is drawn as it falls on this example.
        mean, real = row.mean.pattern(where)[0], patterns[row.head]
        heads.append(
            {
                "name": str(row.head),
                "kind": "paths" if row.rule.paths else row.rule.kind,
                "color": row.rule.color,
                "stays": row.replaced is None and scan.learned,
                "share": round(row.share, 2),
            }
        )
        data[str(row.head)] = [thousandths(each[:shown, :shown]) for each in (mean, real)]
    across = patterns.shape[1]
    layers = [heads[at : at + across] for at in range(0, len(heads), across)]
    html = render(
        "scan.html",
        name=f"scan-{uuid.uuid4().hex[:12]}",
        verdict=scan_verdict(scan),
        good=scan.learned,
        layers=list(enumerate(layers))[::-1],
        legend={head["kind"]: head["color"] for head in heads}.items(),
        header=HEADER,
        rows=scan_cells(scan),
        note=NOTE,
        circuitsvis=circuitsvis_script(),
        data={
            "tokens": position_labels(model, scan.task, some, 0)[:shown],
            "causal": causal,
            "heads": data,
        },
    )
    return View(f"What the heads do: {scan.task.description}", html, scan_text(scan), scan)
