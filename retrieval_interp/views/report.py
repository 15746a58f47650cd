"""The HTML report of a scored circuit: one file that needs no network.

It is the explorer's page, frozen, with sentences and tables around it. Everything that came from a
file is escaped.
"""

import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from retrieval_interp.circuits import CircuitScore, mean_attention
from retrieval_interp.circuits.draw.layout import role_order
from retrieval_interp.circuits.draw.svg import draw_circuit
from retrieval_interp.tasks import Batch, Task
from retrieval_interp.views.attention import attention_view
from retrieval_interp.views.explorer_data import finite, heads_data, model_info, path_rows_data
from retrieval_interp.views.finding import example_sequence, finding, task_words
from retrieval_interp.views.page import EXPLORER_SCRIPTS, render, unescaped
from retrieval_interp.views.role_maps import role_maps_html
from retrieval_interp.views.score_text import (
    NOTHING_REPORTED,
    Reported,
    head_header,
    head_note,
    head_rows,
    kept_text,
    path_header,
    path_rows,
    verdict,
)

_MOST_EXAMPLES = 8
_MOST_NUMBERS = 1_000_000  # attention weights in the page; large models show fewer examples


def render_report(
    score: CircuitScore,
    model: Any,
    task: Task,
    *,
    name: str,
    seed: int,
    command: str,
    training: Mapping[str, Any] | None = None,
    batch: Batch | None = None,
    reported: Reported = NOTHING_REPORTED,
) -> str:
    """The report as one HTML page.

    Args:
        score: what was measured.
        model: the model, whose attention is shown.
        task: what it was measured on.
        name: what the model is called.
        seed: of the examples.
        command: what was typed, shown at the end.
        training: the model's training record, if there is one.
        batch: the examples of the score; by default they are drawn again from the seed.
        reported: numbers that others report, shown beside these.
    """
    if batch is None:
        device = next(model.parameters()).device
        batch = task.sample(score.examples, seed, device, split="test")
    attention = mean_attention(model, batch) if score.attention is None else score.attention
    order = role_order(batch)
    paths = list(score.circuit.every_path())
    each = model.cfg.n_layers * model.cfg.n_heads * batch.inputs.shape[1] ** 2
    shown = max(1, min(_MOST_EXAMPLES, len(batch), _MOST_NUMBERS // each))
    parts = score_parts(score, model, task, order, batch, reported)
    page = render(
        "report.html",
        title=f"Circuit of {name}",
        sentences=task_words(model, task, batch),
        sequence=example_sequence(model, task, batch, order),
        scale=task.loss_meaning,
        parts=parts,
        maps=role_maps_html(attention.cpu(), task, order, paths),
        framed=bool(paths),
        shown=shown,
        position_note=task.position_note,
        attention=unescaped(
            attention_view(model, task, batch, range(shown), name="examples-view").html
        ),
        scripts=EXPLORER_SCRIPTS,
        frozen=_frozen(score, model, task, name, order, batch[:shown], str(parts["drawing"]))
        | {"by_role": attention.mul(1000).round().int().tolist()},
        record=_record(score, seed, command, training or {}, reported),
    )
    return str(page)


def _frozen(
    score: CircuitScore,
    model: Any,
    task: Task,
    name: str,
    order: Sequence[int],
    batch: Batch,
    drawing: str,
) -> dict[str, Any]:
    """What the explorer's page needs where nothing answers it; attention comes from circuitsvis's
    part of the page."""
    circuit = score.circuit
    heads = [row.head for row in score.heads]
    info = model_info(name, model, task, order)
    return {
        "model_info": info | {"frozen": True, "examples": len(batch), "tolerance": score.tolerance},
        "state": {
            "loss": finite(score.combined_loss),
            "intact": finite(score.baseline_loss),
            "heads": heads_data(circuit, heads),
            "drawing": drawing,
            "rows": path_rows_data(score, task),
            "json": circuit.to_json(),
        },
        "chains": batch.roles.tolist(),
    }


def score_drawing(
    score: CircuitScore, n_layers: int, task: Task, order: Sequence[int], batch: Batch
) -> str:
    """A scored circuit as SVG: what each path is worth, and which heads it enables."""
    losses = {row.path: row.ablated_loss for row in score.paths}
    enables = {row.path: row.enables for row in (*score.paths, *score.enabling)}
    learned = score.baseline_loss, score.uninformed_loss
    return draw_circuit(score.circuit, n_layers, order, losses, task, enables, batch, *learned)


def score_parts(
    score: CircuitScore,
    model: Any,
    task: Task,
    order: Sequence[int],
    batch: Batch,
    reported: Reported = NOTHING_REPORTED,
) -> dict[str, Any]:
    """What the macros of `score.html` show.

    Args:
        score: what was measured.
        model: the model.
        task: what it was measured on.
        order: of the roles, from left to right.
        batch: examples, which tell what heads do.
        reported: numbers that others report, shown below these.
    """
    n_layers, n_heads = model.cfg.n_layers, model.cfg.n_heads
    return {
        "score": score,
        "reported": reported,
        "verdict": verdict(score, task),
        "finding": finding(score, task, batch, n_layers, n_heads),
        "good": score.minimal and len(score.circuit.mechanisms) == len(score.heads),
        "drawing": unescaped(score_drawing(score, n_layers, task, order, batch)),
        "head_header": head_header(score),
        "head_rows": head_rows(score),
        "head_note": head_note(score),
        "path_header": path_header(score),
        "path_rows": path_rows(score, task),
        "path_keys": [
            path.text(task.role_names)
            for path in (
                *(row.path for row in (*score.paths, *score.enabling)),
                *(row.paths[0] for row in score.redundant),
            )
        ],
        "kept": kept_text(score),
    }


def _record(
    score: CircuitScore, seed: int, command: str, training: Mapping[str, Any], reported: Reported
) -> list[list[str]]:
    """How the numbers were computed, one fact per row."""
    packages = ("retrieval-interp", "torch", "transformer-lens", "circuitsvis")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    record = {key: value for key, value in training.items() if key != "recipe"}
    rows = {
        "command": command,
        "examples": f"{score.examples} of the test split, seed {seed}; discovery draws from "
        "another split",
        "tolerance": f"{score.loss_name} below {score.tolerance:g}",
        "versions": f"{', '.join(versions)}; Python {platform.python_version()}",
        "trained": _words(record),
        "recipe": _words(training.get("recipe", {})),
        "method": reported.citation,
    }
    return [[what, text] for what, text in rows.items() if text]


def _words(data: Any) -> str:
    """Nested settings as `key value, key value`."""
    if isinstance(data, Mapping):
        known = {key: value for key, value in data.items() if value is not None}
        return ", ".join(f"{str(key).replace('_', ' ')} {_words(v)}" for key, v in known.items())
    if isinstance(data, (list, tuple)):
        return " / ".join(_words(value) for value in data)
    return f"{data:.5g}" if isinstance(data, float) else str(data)
