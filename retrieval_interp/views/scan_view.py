"""A scan to look at: a heat map of heads coloured by rule, a table, and patterns on a click."""

import uuid
from importlib.resources import files
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.hooks.points import is_causal
from retrieval_interp.circuits.mechanisms import Where
from retrieval_interp.circuits.runs.patterns import read_patterns
from retrieval_interp.circuits.scan.scan import Scan
from retrieval_interp.tasks import InputError
from retrieval_interp.views.attention import position_labels
from retrieval_interp.views.page import View, render, unescaped
from retrieval_interp.views.scan_text import HEADER, NOTE, scan_rows, scan_text, scan_verdict

MOST_POSITIONS = 48  # of patterns; longer ones make the page large


def scan_view(scan: Scan, model: Any, example: int = 0) -> View:
    """A scan as a page or in a notebook.

    A heat map has a cell per head, coloured by its rule and framed where the head has to stay; a
    click on a cell or a row shows the head's mean pattern, and circuitsvis its attention on one
    example.

    Args:
        scan: what `ri.scan` returned.
        model: the model that was scanned, for the patterns of the example.
        example: which of the examples of `scan.batch`.

    Raises:
        InputError: no such example.
    """
    if not 0 <= example < len(scan.batch):
        raise InputError(f"example: expected 0 to {len(scan.batch) - 1}, found {example}")
    some = scan.batch.take([example])
    patterns = torch.stack(read_patterns(model, some, lambda pattern: pattern[0].float().cpu()))
    shown = min(MOST_POSITIONS, int(some.roles.max()) + 1, patterns.shape[-1])
    n_heads, causal = patterns.shape[1], is_causal(model)
    heads = []
    for row in scan.heads:
        kind = "paths" if row.rule.paths else row.rule.kind
        # A mean by role is drawn as it falls on this example.
        mean = scan.means[row.head].pattern(
            Where(some.roles, patterns.shape[-1], causal, real=some.attention_mask)
        )
        heads.append(
            {
                "name": str(row.head),
                "kind": kind,
                "color": row.rule.color,
                "share": round(row.share, 2),
                "stays": row.replaced is None and scan.learned,
                "mean": _percent(mean[0, :shown, :shown]),
                "attention": _percent(patterns[row.head.layer, row.head.head, :shown, :shown]),
            }
        )
    script = files("circuitsvis").joinpath("dist/cdn/iife.js").read_text(encoding="utf-8")
    rows = [heads[at : at + n_heads] for at in range(0, len(heads), n_heads)]
    html = render(
        "scan.html",
        name=f"scan-{uuid.uuid4().hex[:12]}",
        verdict=scan_verdict(scan),
        good=scan.learned,
        layers=list(enumerate(rows))[::-1],
        legend=list(dict.fromkeys((head["kind"], head["color"]) for head in heads)),
        header=HEADER,
        rows=scan_rows(scan),
        note=NOTE,
        circuitsvis=unescaped(script.replace("</script", "<\\/script")),
        data={
            "tokens": position_labels(model, scan.task, some, 0)[:shown],
            "causal": causal,
            "heads": {
                head["name"]: {"mean": head["mean"], "attention": head["attention"]}
                for head in heads
            },
        },
    )
    return View(f"What the heads do: {scan.task.description}", html, scan_text(scan), scan)


def _percent(pattern: Float[Tensor, "dest src"]) -> list[list[int]]:
    """Whole percent, without the zeros at the end of rows."""
    rows: list[list[int]] = pattern.mul(100).round().int().tolist()
    for row in rows:
        while row and not row[-1]:
            row.pop()
    return rows
