"""The HTML report of `ablate`: one file, no network.

Everything that came from a file is escaped. The drawing and the heat maps are SVG and tables; the
only script in the page is circuitsvis's own.
"""

import importlib.metadata
import json
from html import escape

from jaxtyping import Float
from torch import Tensor

from circuits import CircuitScore, mean_attention
from circuits.drawing import draw_circuit, role_order
from circuits.flow import describe_flow
from retrieval_interp.attention_views import attention_view
from retrieval_interp.checkpoint import Checkpoint
from retrieval_interp.page import page, table
from retrieval_interp.summary import (
    HEAD_NOTE,
    PAPER_COMBINED,
    PAPER_PATHS,
    PATH_HEADER,
    describe,
    path_rows,
    scale,
    verdict,
)
from tasks import role_letters, role_name


def render_report(score: CircuitScore, checkpoint: Checkpoint, seed: int, command: str) -> str:
    """The report as one HTML page.

    Args:
        score: what was measured.
        checkpoint: the model, whose attention is shown.
        seed: of the examples.
        command: what was typed, shown at the end.
    """
    task, model = checkpoint.task, checkpoint.model
    device = next(model.parameters()).device
    batch = task.sample(score.examples, seed, device, split="test")
    order = role_order(batch)
    necessity = {row.path: row.ablated_mse for row in score.paths}
    drawing = draw_circuit(score.circuit, checkpoint.config.layers, order, necessity)
    flow = describe_flow(score.circuit, checkpoint.config.layers, checkpoint.config.heads)
    good = score.sufficient and score.minimal
    sections = [
        f"<h1>Attention circuit of {escape(checkpoint.name)}</h1>",
        f'<p class="soft">{escape(describe(checkpoint))}</p>',
        f'<p class="verdict{" good" if good else ""}">{escape(verdict(score, task))}</p>',
        f'<p class="soft">{escape(scale(task))}.</p>',
        "<h2>The circuit</h2>",
        f'<div class="scroll">{drawing}</div>',
        '<p class="soft">Columns are the positions of one chain in the order of the sequence; the '
        "query is the last. An arrow is an attention path of the layer beside it; the number is "
        "the MSE when that path is ablated too, and wider arrows cost more. Dashed arrows only "
        "enable: with attention given, the circuit does without them, but by them the model finds "
        f"where to attend. {escape(flow)}</p>",
        "<h2>What each replacement costs</h2>",
        _head_table(score),
        _path_table(score),
        "<h2>Mean attention by role</h2>",
        '<p class="soft">How much of the attention of a role (row) goes to each role of its own '
        f"chain (column), over {score.examples} examples of the intact model.</p>",
        _heat_maps(mean_attention(model, batch).cpu(), order),
        "<h2>One example</h2>",
        '<p class="soft">Attention of the intact model. B2 is the symbol B of the second chain, '
        "A2? its query. Hover over a head to look closer.</p>",
        f'<div class="views">{attention_view(model, batch, 0).local_src}</div>',
        "<h2>How this was computed</h2>",
        _provenance(score, checkpoint, seed, command),
    ]
    return page(f"Circuit of {checkpoint.name}", sections)


def _head_table(score: CircuitScore) -> str:
    rows = table(
        [("head", False), ("mechanism", False), ("MSE, only this head replaced", True)],
        [[str(row.head), str(row.mechanism), f"{row.mse:.4f}"] for row in score.heads],
    )
    return (
        f"<p>Baseline, nothing replaced: <b>{score.baseline_mse:.4f}</b>. All of these replaced "
        f"together: <b>{score.combined_mse:.4f}</b> (paper: {PAPER_COMBINED}).</p>{rows}"
        f'<p class="soft">{escape(" ".join(HEAD_NOTE))}</p>'
    )


def _path_table(score: CircuitScore) -> str:
    if not score.paths and not score.enabling:
        return ""
    numbers = ("MSE, ablated too", "MSE, cut live")
    rows = table([(name, name in numbers) for name in PATH_HEADER], path_rows(score))
    return (
        "<p>Each path ablated twice: on top of all replacements, as in the paper (there: "
        f"{escape(PAPER_PATHS)}), which shows what it carries; and alone in the intact model, with "
        "all later attention recomputed, which also shows what it enables. In brackets: the side "
        "of the later head that misses it, and that path's mean attention before and "
        f"after.</p>{rows}"
    )


def _heat_maps(attention: Float[Tensor, "layer head dest src"], order: list[int]) -> str:
    figures = []
    for layer, heads in enumerate(attention.tolist()):
        for head, rows in enumerate(heads):
            columns = "".join(
                f'<th title="{escape(role_letters(src))}">{role_name(src)}</th>' for src in order
            )
            body = "".join(
                f'<tr><th title="{escape(role_letters(dest))}">{role_name(dest)}</th>'
                + "".join(_heat_cell(rows[dest][src], dest, src) for src in order)
                + "</tr>"
                for dest in order
            )
            figures.append(
                f"<figure><figcaption>L{layer}.H{head}</figcaption><table><tr><th></th>{columns}"
                f"</tr>{body}</table></figure>"
            )
    return f'<div class="maps">{"".join(figures)}</div>'


def _heat_cell(weight: float, dest: int, src: int) -> str:
    title = f"{role_letters(dest)} from {role_letters(src)}: {weight:.3f}"
    text = f"{weight:.2f}"[1:] if 0.05 <= weight < 0.995 else "1" if weight >= 0.995 else ""
    hot = ' class="hot"' if weight > 0.55 else ""
    style = f"background:rgba(var(--heat),{weight:.2f})"
    return f'<td{hot} title="{escape(title)}" style="{style}">{text}</td>'


def _provenance(score: CircuitScore, checkpoint: Checkpoint, seed: int, command: str) -> str:
    training = checkpoint.training
    recipe = training.get("recipe", {})
    versions = {
        name: importlib.metadata.version(name)
        for name in ("retrieval-interp", "torch", "transformer-lens", "circuitsvis")
    }
    rows = [
        ["command", command],
        [
            "examples",
            f"{score.examples} of the test split, seed {seed}; discovery draws from another split",
        ],
        ["rows without a path", score.circuit.rest],
        ["tolerance", f"{score.tolerance:g}"],
        ["versions", ", ".join(f"{name} {version}" for name, version in versions.items())],
        ["trained", json.dumps({k: v for k, v in training.items() if k != "recipe"})],
        ["recipe", json.dumps(recipe)],
    ]
    return table([("", False), ("", False)], rows)
