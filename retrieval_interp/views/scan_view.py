"""A scan as rows, from which come its table of text, its page and JSON."""

import math
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from retrieval_interp.circuits import HeadPath
from retrieval_interp.circuits.draw.layout import head_kind
from retrieval_interp.circuits.hooks import is_causal, where_by_layer
from retrieval_interp.circuits.mechanisms import Mechanism
from retrieval_interp.circuits.scan import HeadScan, Scan
from retrieval_interp.circuits.tolerance import is_better, unlearned_text
from retrieval_interp.tasks.shown import counted
from retrieval_interp.views.attention import patterns_on, position_labels, thousandths
from retrieval_interp.views.page import View, record_rows, render
from retrieval_interp.views.score_text import mechanism_words
from retrieval_interp.views.tables import text_table, wrapped

_CALLED = {"previous": "previous-token", "same": "duplicate-token", "after-same": "induction"}
COLORS = {  # of rules, by kind
    "uniform": "#9aa0a6",
    "identity": "#72b7b2",
    "one-hot": "#b279a2",
    "shared": "#b279a2",
    "first": "#4c78a8",
    "previous": "#54a24b",
    "same": "#f58518",
    "after-same": "#e45756",
}
OTHER_RULES = "#9aa0a6"
MOST_ROWS = 30
MOST_POSITIONS = 48  # of patterns; longer ones make the page large
HEADER = ("head", "rule", "share", "mean", "loss alone", "change", "together")
NOTE = (
    "rule: what covers most of the head's attention; the rest may still be what matters. "
    "share: how much of that attention the rule covers; mean: how much its mean pattern on other "
    "examples covers. "
    "loss alone, change: when the rule takes the head's place. "
    "together: what replaces it in the joint circuit; a dash means that no trial could replace it."
)


def _name(mechanism: Mechanism | None, names: Sequence[str], most: int) -> str:
    """A rule in a word or two; of more than so many, paths are counted."""
    if mechanism is None:
        return "-"
    many = mechanism.follows_paths and len(mechanism.paths) > most
    return f"{len(mechanism.paths)} paths" if many else mechanism.text(names)


def _called(row: HeadScan, scan: Scan, most: int) -> str:
    """A head's rule, and what a head of such a rule or such paths is called."""
    name, paths = _name(row.rule, scan.circuit.role_names, most), row.rule.paths
    called = head_kind([HeadPath(row.head, path) for path in paths], scan.batch)
    called = f"{_CALLED[row.rule.kind]} head" if row.rule.kind in _CALLED else called
    return f"{name}, {called}" if called else name


def scan_cells(scan: Scan, most: int = 2) -> list[list[str]]:
    """The cells of the table under `HEADER`; heads that cost most when replaced alone first.

    Those that were not measured come last.

    Where a rule has more than `most` paths, they are counted.
    """
    names, intact = scan.circuit.role_names, scan.intact_loss

    def text(value: float, form: str) -> str:
        return "" if math.isnan(value) else f"{value:{form}}"

    def together(row: HeadScan) -> str:
        return _name(row.replaced, names, most) if row.head in scan.tried else "not tried"

    return [
        [
            str(row.head),
            _called(row, scan, most),
            f"{row.share:.2f}",
            text(row.mean_share, ".2f"),
            text(row.loss, ".4f") or "not measured",
            text(row.loss - intact, "+.4f"),
            together(row),
        ]
        for row in sorted(scan.heads, key=lambda row: (math.isnan(row.loss), -row.loss))
    ]


def scan_to_dict(scan: Scan) -> dict[str, Any]:
    """All numbers as JSON data; mean patterns are left out."""
    keys = "intact_loss uninformed_loss uninformed learned tolerance joint_loss kept joint_se"
    names = scan.circuit.role_names
    heads = [
        {
            **row.head._asdict(),
            "rule": row.rule.text(names),
            **{key: getattr(row, key) for key in ("share", "mean_share", "loss")},
            "change": row.loss - scan.intact_loss,
            "measured": not math.isnan(row.loss),
            "tried": row.head in scan.tried,
            "replaced": row.replaced and row.replaced.text(names),
        }
        for row in scan.heads
    ]
    return {
        "schema": "retrieval-interp/scan/1",
        "task": scan.task.to_dict(),
        "description": scan.task.description,
        "examples": len(scan.batch),
        **{key: getattr(scan, key) for key in [*keys.split(), "finished"]},
        "tried": len(scan.tried),
        "heads": heads,
    }


def scan_verdict(scan: Scan) -> str:
    """What the joint circuit shows, in sentences."""
    loss, count, heads = scan.task.loss_name, len(scan.circuit.mechanisms), len(scan.heads)
    nothing = f"{scan.uninformed_loss:.4f} ({scan.uninformed})"
    if not scan.learned:
        known = unlearned_text(scan.intact_loss, scan.uninformed_loss, scan.uninformed, loss)
        return f"{known} There is nothing that heads could keep."
    known = f"intact {scan.intact_loss:.4f}, knowing nothing {nothing}"
    limit = f"(limit {scan.tolerance:.4f})"
    replaced = [row.replaced for row in scan.heads if row.replaced is not None]
    kinds = Counter("with paths" if each.follows_paths else each.kind for each in replaced)
    tried = f"of {counted(len(scan.tried), 'head')} tried, none" if scan.tried else "none was tried"
    said = [f"No head is replaced ({tried}): {known} {limit}."]
    if count:
        by = ", ".join(f"{number} {name}" for name, number in kinds.most_common(6))
        together = f"{count} of {counted(heads, 'head')} can be replaced together ({by})"
        kept = f"{scan.kept:.1%} of what the model knows is kept {limit}"
        said = [f"{together}: {loss} {scan.joint_loss:.4f}, {known}; {kept}."]
    stake = scan.uninformed_loss - scan.intact_loss
    by_rule = [row for row in scan.heads if row.replaced == row.rule]
    costly = [row for row in by_rule if row.loss > scan.joint_loss + stake / 10]
    if costly:
        one = max(costly, key=lambda row: row.loss)
        said.append(
            f"{one.head} replaced alone costs {one.loss - scan.intact_loss:+.2f}, but not here: it "
            "helps others find where to attend (it enables), and their rules know that already."
        )
    if is_better(scan.joint_loss, scan.joint_se, scan.intact_loss, scan.uninformed_loss):
        said.append("The joint circuit beats the intact model, so it is not what the model does.")
    unmeasured = sum(math.isnan(row.loss) for row in scan.heads)
    if unmeasured:
        said.append(
            f"The time was over before {counted(unmeasured, 'head')} could be replaced alone, "
            "those that are estimated to matter least: what they cost is not known."
        )
    if untried := heads - len(scan.tried):
        why = "several in a row could not be replaced" if scan.finished else "the time was over"
        said.append(f"In the joint circuit {counted(untried, 'head')} stayed untried, as {why}.")
    return " ".join(said)


def scan_text(scan: Scan, width: int | None = None) -> str:
    """The table of heads, those that cost most alone first, and the verdict."""
    cells = scan_cells(scan)
    lines = text_table(HEADER, cells[:MOST_ROWS], right=range(2, 6), width=width)
    hidden = ["not measured" in row for row in cells[MOST_ROWS:]]
    for what, count in (("cost less", hidden.count(False)), ("were not measured", sum(hidden))):
        if count:
            lines.append(f"... and {counted(count, 'head')} that {what}")
    for text in (NOTE, scan_verdict(scan)):
        lines += ["", *wrapped(text, width)]
    return "\n".join(lines)


def scan_view(scan: Scan, model: Any, record: Mapping[str, Any] | None = None) -> View:
    """A scan as a page or in a notebook; `record` says how it was made.

    A heat map has a cell per head, coloured by its rule, framed where the head has to stay and
    dashed where that was not tried; a
    click on a cell or a row shows the head's mean pattern, and its attention on the first example.
    """
    some = scan.batch[:1]
    patterns = torch.stack([layer[0] for layer in patterns_on(model, some)])
    size, where = patterns.shape[-1], where_by_layer(model, some)
    shown = min(MOST_POSITIONS, int(some.roles.max()) + 1, size)
    # A mean by role is drawn as it falls on this example.
    rules = [row.rule for row in scan.heads]
    means = [row.mean.pattern(where[row.head.layer])[0] for row in scan.heads]
    both = {row.head: (mean, patterns[row.head]) for row, mean in zip(scan.heads, means)}
    html = render(
        "scan.html",
        colors=COLORS,
        other_rules=OTHER_RULES,
        name=f"scan-{uuid.uuid4().hex[:12]}",
        verdict=scan_verdict(scan),
        scan=scan,
        across=patterns.shape[1],
        legend={"paths" if rule.paths else rule.kind: rule for rule in rules}.items(),
        mechanism_words=mechanism_words,
        rules=rules,
        header=HEADER,
        rows=scan_cells(scan, most=1000),
        record=record_rows({**(record or {}), "examples": f"{len(scan.batch)}"}),
        note=NOTE,
        data={
            "tokens": position_labels(model, scan.task, some, 0)[:shown],
            "causal": is_causal(model, some),
            "heads": {
                str(head): [thousandths(each[:shown, :shown]) for each in two]
                for head, two in both.items()
            },
        },
    )
    return View(f"What the heads do: {scan.task.description}", html, scan_text(scan), scan)
