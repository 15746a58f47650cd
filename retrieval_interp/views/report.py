"""The HTML report of a scored circuit: one file, no network, to be sent to a colleague.

The drawing and the heat maps are SVG and tables; the only scripts in the page are circuitsvis's own
and the one that sorts tables. Everything that came from a file is escaped.
"""

import importlib.metadata
import platform
from collections.abc import Mapping
from html import escape
from typing import Any

from circuits import CircuitScore, mean_attention
from circuits.draw.layout import role_order
from circuits.draw.svg import draw_circuit
from circuits.flow.delivery import describe_flow
from retrieval_interp.views.attention import attention_view
from retrieval_interp.views.page import render_page, render_table
from retrieval_interp.views.role_maps import role_maps_html
from retrieval_interp.views.score_text import (
    HEAD_NOTE,
    PAPER_COMBINED,
    PAPER_PATHS,
    describe,
    head_header,
    head_rows,
    path_header,
    path_rows,
    scale,
    verdict,
)
from tasks import Batch, RetrievalTask, Task, VectorTask

# Numbers of attention in the page: 8 examples of most models, fewer of large ones.
_MOST_NUMBERS = 1_000_000
_MOST_EXAMPLES = 8
PAPER = (
    "T. Mușat, Mechanism and Emergence of Stacked Attention Heads in Multi-Layer Transformers, "
    "appendix E"
)


def render_report(
    score: CircuitScore,
    model: Any,
    task: Task,
    *,
    name: str,
    seed: int,
    command: str,
    training: Mapping[str, Any] | None = None,
) -> str:
    """The report as one HTML page.

    Args:
        score: what was measured.
        model: the model, whose attention is shown.
        task: what it was measured on.
        name: what the model is called.
        seed: of the examples.
        command: what was typed, shown at the end.
        training: the model's training record, where there is one.
    """
    device = next(model.parameters()).device
    batch = task.sample(score.examples, seed, device, split="test")
    paths = [*score.circuit.paths(), *score.circuit.enabling]
    maps = role_maps_html(mean_attention(model, batch).cpu(), task, role_order(batch), paths)
    framed = " Framed: the circuit's paths." if paths else ""
    sections = [
        f"<h1>Attention circuit of {escape(name)}</h1>",
        f'<p class="soft">{escape(describe(model, task))}</p>',
        verdict_html(score, task),
        f'<p class="soft">{escape(scale(task))}.</p>',
        "<h2>The circuit</h2>",
        drawing_html(score, model, task, batch),
        "<h2>What each replacement costs</h2>",
        tables_html(score, task, sortable=True),
        "<h2>Mean attention by role</h2>",
        '<p class="soft">How much of the attention of a role (row) goes to each role of its own '
        f"chain (column), over {score.examples} examples of the intact model.{framed}</p>",
        maps,
        "<h2>Examples</h2>",
        _examples_html(model, task, batch),
        "<h2>How this was computed</h2>",
        _provenance(score, task, seed, command, training or {}),
    ]
    return render_page(f"Circuit of {name}", "\n".join(sections), sortable=True)


def verdict_html(score: CircuitScore, task: Task) -> str:
    whole = len(score.circuit.mechanisms) == len(score.heads)
    good = " good" if score.minimal and whole else ""
    return f'<p class="verdict{good}">{escape(verdict(score, task))}</p>'


def drawing_html(score: CircuitScore, model: Any, task: Task, batch: Batch) -> str:
    """The circuit with the necessity of its paths, and what the picture means."""
    n_layers, n_heads = model.cfg.n_layers, model.cfg.n_heads
    necessity = {row.path: row.ablated_loss for row in score.paths}
    drawing = draw_circuit(score.circuit, n_layers, role_order(batch), necessity, task)
    flow = (
        f" {describe_flow(score.circuit, n_layers, n_heads)}"
        if isinstance(task, VectorTask)
        else ""
    )
    return (
        f'<div class="scroll">{drawing}</div>'
        '<p class="soft">Columns are the roles of one chain in the order of the sequence. An arrow '
        "is an attention path of the layer beside it; the number is the "
        f"{escape(score.loss_name)} when that path is ablated too, and wider arrows cost more. "
        "Dashed arrows only enable: with attention given, the circuit does without them, but by "
        f"them the model finds where to attend.{escape(flow)}</p>"
    )


def tables_html(score: CircuitScore, task: Task, sortable: bool = False) -> str:
    """The tables of heads and paths, with a word on how to read them."""
    paper = f" (paper: {PAPER_COMBINED})" if isinstance(task, RetrievalTask) else ""
    parts = [
        f"<p>Baseline, nothing replaced: <b>{score.baseline_loss:.4f}</b> ± "
        f"{score.baseline_se:.4f}. All of these replaced together: "
        f"<b>{score.combined_loss:.4f}</b> ± {score.combined_se:.4f}{paper}.</p>",
        render_table(head_header(score), head_rows(score), ["nowrap", "", "number"], sortable),
        f'<p class="soft">{escape(" ".join(HEAD_NOTE))}</p>',
    ]
    if score.paths or score.enabling:
        there = f" (there: {escape(PAPER_PATHS)})" if isinstance(task, RetrievalTask) else ""
        parts += [
            "<p>Each path ablated twice: on top of all replacements, as in the paper"
            f"{there}, which shows what it carries; and alone in the intact model, with all later "
            "attention recomputed, which also shows what it enables. In brackets: the side of the "
            "later head that misses it, and that path's mean attention before and after.</p>",
            render_table(
                path_header(score),
                path_rows(score, task),
                ["nowrap", "nowrap", "number", "number", "wide"],
                sortable,
            ),
        ]
    parts += [f'<p class="soft">{escape(note)}</p>' for note in score.notes]
    return "".join(parts)


def _examples_html(model: Any, task: Task, batch: Batch) -> str:
    each = model.cfg.n_layers * model.cfg.n_heads * batch.inputs.shape[1] ** 2
    count = max(1, min(_MOST_EXAMPLES, len(batch), _MOST_NUMBERS // each))
    shown = f"{count} examples" if count > 1 else "one example"
    letters = (
        " B2 is the symbol B of the second chain, A2? its query."
        if isinstance(task, RetrievalTask)
        else ""
    )
    return (
        f'<p class="soft">Attention of the intact model on {shown}.{letters} Hover over a head to '
        f"look closer.</p>{attention_view(model, task, batch, range(count)).html}"
    )


def _provenance(
    score: CircuitScore, task: Task, seed: int, command: str, training: Mapping[str, Any]
) -> str:
    packages = ("retrieval-interp", "torch", "transformer-lens", "circuitsvis")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    rows = [
        ["command", command],
        [
            "examples",
            f"{score.examples} of the test split, seed {seed}; discovery draws from another split",
        ],
        ["positions without a path", f"{score.circuit.rest} (in one-hot and shared heads)"],
        ["tolerance", f"{score.loss_name} below {score.tolerance:g}"],
        ["versions", f"{', '.join(versions)}; Python {platform.python_version()}"],
    ]
    recipe = training.get("recipe", {})
    record = {key: value for key, value in training.items() if key != "recipe"}
    rows += [[what, _words(value)] for what, value in (("trained", record), ("recipe", recipe))
             if value]  # fmt: skip
    if isinstance(task, RetrievalTask):
        rows.append(["method", PAPER])
    return render_table(["", ""], rows, ["nowrap", ""])


def _words(data: Any) -> str:
    """Nested settings as `key value, key value`."""
    if isinstance(data, Mapping):
        known = {key: value for key, value in data.items() if value is not None}
        return ", ".join(f"{str(key).replace('_', ' ')} {_words(v)}" for key, v in known.items())
    if isinstance(data, (list, tuple)):
        return " / ".join(_words(value) for value in data)
    return f"{data:.5g}" if isinstance(data, float) else str(data)
