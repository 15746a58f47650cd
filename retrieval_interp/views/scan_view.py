"""A scan as rows, from which come its table of text, its page and JSON."""

import base64
import math
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from retrieval_interp.circuits.hooks import HookedModel, is_causal
from retrieval_interp.circuits.mechanisms import Mechanism
from retrieval_interp.circuits.scan import HeadScan, Scan
from retrieval_interp.circuits.tolerance import is_better, unlearned_text
from retrieval_interp.tasks.messages import counted
from retrieval_interp.views.attention import patterns_on, position_labels
from retrieval_interp.views.page import View, record_rows, render
from retrieval_interp.views.score_text import mechanism_words
from retrieval_interp.views.tables import text_table, to_error, wrapped

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
MOST_ROWS = 30
MOST_PATHS = 4  # of a rule that are named
MOST_POSITIONS = 48  # of patterns on the page, ...
MOST_WEIGHTS = 700_000  # ... or fewer, if there are many heads
COLUMNS = {  # of the table, and what they hold
    "head": "",
    "looks at": "the rule that covers most of its attention; the rest may still be what matters",
    "share": "how much of its attention the rule covers",
    "kind": "what a head is called by where at least 0.4 of its attention goes, beyond uniform",
    "copies": "share of the text's tokens whose own logit its OV circuit raises most",
    "direct": "what it adds by itself to the logit of the next token",
    "replaced": "what the rule in its place adds to the loss",
    "zero-ablated": "what is added if it writes nothing",
    "together": "whether the joint circuit replaces it by its rule",
}
NUMBERS = {"share", "copies", "direct", "replaced", "zero-ablated"}


def rule_words(mechanism: Mechanism, names: Sequence[str]) -> str:
    """Describe a rule in a few words: its paths between roles, and whether others stay."""
    if not mechanism.follows_paths:
        return mechanism.text(names)
    between = [path.text(names) for path in mechanism.paths if path.dest != path.src]
    count = len(between) - MOST_PATHS
    shown = [*between[:MOST_PATHS], *([f"and {counted(count, 'other')}"] if count > 0 else [])]
    itself = len(between) < len(mechanism.paths)
    return " ".join([*shown, *(["and itself" if shown else "itself"] if itself else [])])


def scan_cells(scan: Scan) -> tuple[list[str], list[list[str]]]:
    """Return the table's header and cells, without columns that say nothing of this model.

    Heads that cost most when replaced alone come first, those that were not measured last.
    """
    names = scan.circuit.role_names

    def cells(row: HeadScan) -> list[str]:
        together = "yes" if row.replaced else "no" if row.head in scan.tried else "not tried"
        return [
            str(row.head),
            rule_words(row.rule, names),
            f"{row.share:.2f}",
            row.kind.removesuffix(" head"),
            "" if math.isnan(row.copies) else f"{row.copies:.2f}",
            to_error(*row.direct),
            to_error(*row.change) or "not measured",
            to_error(*row.zero_ablated),
            together if scan.joint else "",
        ]

    by_cost = sorted(scan.heads, key=lambda row: (math.isnan(row.change.mean), -row.change.mean))
    columns = [(name, *column) for name, *column in zip(COLUMNS, *map(cells, by_cost))]
    header, *rows = zip(*(column for column in columns if any(column[1:])))
    return list(header), [list(row) for row in rows]


def scan_note(header: Sequence[str]) -> str:
    """Say what the columns hold."""
    said = " ".join(f"{name}: {COLUMNS[name]}." for name in header[1:])
    return f"{said} Numbers have the digits that their standard error allows."


def scan_to_dict(scan: Scan) -> dict[str, Any]:
    """Return all numbers as JSON data."""
    keys = "intact_loss uninformed_loss uninformed_model learned "
    keys += "joint tolerance joint_loss joint_se kept"
    names, measured = scan.circuit.role_names, ("direct", "change", "zero_ablated")
    heads = [
        {
            **row.head._asdict(),
            "rule": row.rule.text(names),
            **{key: getattr(row, key) for key in ("share", "kind", "copies")},
            "attention": dict(row.attention),
            **{key: getattr(row, key).mean for key in measured},
            **{f"{key}_se": getattr(row, key).se for key in measured},
            "measured": not math.isnan(row.change.mean),
            "tried": row.head in scan.tried,
            "replaced": row.replaced and row.replaced.text(names),
        }
        for row in scan.heads
    ]
    return {
        "schema": "retrieval-interp/scan/2",
        "task": scan.task.to_dict(),
        "description": scan.task.description,
        "examples": len(scan.batch),
        **{key: getattr(scan, key) for key in [*keys.split(), "finished"]},
        "tried": len(scan.tried),
        "heads": heads,
    }


def scan_verdict(scan: Scan) -> str:
    """Say what heads cost alone, and what the joint circuit shows."""
    loss, heads = scan.task.loss_name, len(scan.heads)
    if not scan.learned:
        known = unlearned_text(scan.intact_loss, scan.uninformed_loss, scan.uninformed_model, loss)
        return f"{known} There is nothing that heads could keep."
    nothing = f"knowing nothing {scan.uninformed_loss:.4f} ({scan.uninformed_model})"
    clauses = []
    for how, name in (("replaced by their rule", "change"), ("zero-ablated", "zero_ablated")):
        costs = {row.head: getattr(row, name) for row in scan.heads}
        clear = [head for head, cost in costs.items() if cost.mean > 2 * cost.se]
        if clear and len(scan.batch) > 1:
            worst = max(clear, key=lambda head: costs[head].mean)
            clauses.append(
                f"{how}, {len(clear)} of {heads} (most {worst}: {to_error(*costs[worst])})"
            )
    said = [f"The {loss} is {scan.intact_loss:.4f}, {nothing}."]
    if clauses:
        said.append(f"One at a time, heads that clearly raise it: {'; '.join(clauses)}.")
    said += _joint_sentences(scan) if scan.joint else []
    unmeasured = sum(math.isnan(row.change.mean) for row in scan.heads)
    if unmeasured == len(scan.heads):
        said.append("The time was over before any head could be replaced or zero-ablated.")
    elif unmeasured:
        said.append(
            f"The time was over before {counted(unmeasured, 'head')} could be replaced alone, "
            "those that are estimated to matter least: what they cost is not known."
        )
    return " ".join(said)


def _joint_sentences(scan: Scan) -> list[str]:
    """Say what the joint circuit shows."""
    loss, count, heads = scan.task.loss_name, len(scan.circuit.mechanisms), len(scan.heads)
    limit = f"(limit {scan.tolerance:.4f})"
    replaced = [row.replaced for row in scan.heads if row.replaced is not None]
    kinds = Counter("with paths" if rule.follows_paths else rule.kind for rule in replaced)
    tried = f"of {counted(len(scan.tried), 'head')} tried, none" if scan.tried else "none was tried"
    said = [f"No head is replaced ({tried}) {limit}."]
    if count:
        by = ", ".join(f"{number} {name}" for name, number in kinds.most_common(6))
        together = f"{count} of {counted(heads, 'head')} can be replaced together ({by})"
        kept = f"{scan.kept:.1%} of what the model knows is kept {limit}"
        said = [f"{together}: {loss} {scan.joint_loss:.4f}; {kept}."]
    stake, lost = scan.uninformed_loss - scan.intact_loss, scan.joint_loss - scan.intact_loss
    costly = [row for row in scan.heads if row.replaced and row.change.mean > lost + stake / 10]
    if costly:
        row = max(costly, key=lambda row: row.change.mean)
        said.append(
            f"{row.head} replaced alone costs {to_error(*row.change)}, but not here: it helps "
            "others find where to attend (it enables), and their rules know that already."
        )
    if is_better(scan.joint_loss, scan.joint_se, scan.intact_loss, scan.uninformed_loss):
        said.append("The joint circuit beats the intact model, so it is not what the model does.")
    if untried := heads - len(scan.tried):
        why = "several in a row could not be replaced" if scan.finished else "the time was over"
        said.append(f"In the joint circuit {counted(untried, 'head')} stayed untried, as {why}.")
    return said


def scan_text(scan: Scan, width: int | None = None) -> str:
    """Write the table of heads, those that cost most alone first, and the verdict."""
    header, cells = scan_cells(scan)
    numbers = [n for n, name in enumerate(header) if name in NUMBERS]
    lines = text_table(header, cells[:MOST_ROWS], right=numbers, width=width)
    hidden = ["not measured" in row for row in cells[MOST_ROWS:]]
    for what, count in (("cost less", hidden.count(False)), ("were not measured", sum(hidden))):
        if count:
            lines.append(f"... and {counted(count, 'head')} that {what}")
    for text in (scan_note(header), scan_verdict(scan)):
        lines += ["", *wrapped(text, width)]
    return "\n".join(lines)


def scan_view(scan: Scan, model: HookedModel, record: Mapping[str, Any] | None = None) -> View:
    """Show a scan as a page or in a notebook; `record` says how it was made.

    A table of layers by heads shows what each head's rule costs in its place: the colour stands for
    the rule, and is stronger the more it costs. With a joint circuit, heads that have to stay are
    framed (dashed if that was not tried). Click a head, there or in the table that sorts and
    filters, to see its attention on the first example.
    """
    first = scan.batch[:1]
    patterns = torch.stack([layer[0] for layer in patterns_on(model, first)])
    fitting = math.isqrt(2 * MOST_WEIGHTS // len(scan.heads))
    shown = min(MOST_POSITIONS, fitting, int(first.roles.max()) + 1, patterns.shape[-1])
    causal = is_causal(model, first)
    weights = patterns[:, :, :shown, :shown].mul(255).round().byte()
    drawn = torch.ones(shown, shown).bool()
    packed = weights[:, :, drawn.tril() if causal else drawn]  # [layer head weight]
    header, rows = scan_cells(scan)
    html = render(
        "scan.html",
        name=f"scan-{uuid.uuid4().hex[:12]}",
        verdict=scan_verdict(scan),
        scan=scan,
        across=model.cfg.n_heads,
        colors={row.rule.kind: COLORS.get(row.rule.kind, COLORS["uniform"]) for row in scan.heads},
        highest=max([1e-9, *(row.change.mean for row in scan.heads if row.change.mean > 0)]),
        cells={row[0]: dict(zip(header, row)) for row in rows},
        mechanism_words=mechanism_words(row.rule for row in scan.heads),
        header=header,
        classes=["number" if name in NUMBERS else "" for name in header],
        rows=rows,
        record=record_rows({**(record or {}), "examples": f"{len(scan.batch)}"}),
        note=scan_note(header),
        data={
            "tokens": position_labels(model, scan.task, first, 0)[:shown],
            "causal": causal,
            "heads": {
                str(row.head): {
                    "weights": base64.b64encode(bytes(of_head.tolist())).decode(),
                    "about": ", ".join(
                        f"{k} {v:.2f}" for k, v in row.attention.items() if not math.isnan(v)
                    ),
                }
                for row, of_head in zip(scan.heads, packed.flatten(0, 1))
            },
        },
    )
    return View(f"What the heads do: {scan.task.description}", html, scan_text(scan), scan)
