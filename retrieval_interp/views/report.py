"""The HTML report of a scored circuit, one file that needs no network."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from retrieval_interp.circuits import CircuitScore, mean_attention
from retrieval_interp.circuits.draw.layout import role_order, worth_of_paths
from retrieval_interp.circuits.draw.svg import draw_circuit
from retrieval_interp.circuits.flow import describe_flow
from retrieval_interp.circuits.hooks import HookedModel
from retrieval_interp.storage.files import provenance
from retrieval_interp.tasks import Batch, Task
from retrieval_interp.tasks.messages import counted, listed
from retrieval_interp.views import score_text
from retrieval_interp.views.attention import attention_view, position_labels, role_maps
from retrieval_interp.views.page import View, record_rows, render
from retrieval_interp.views.tables import terminal_width, wrapped

_MOST_EXAMPLES = 8
_MOST_NUMBERS = 1_000_000  # attention weights in the page; large models show fewer examples
_LONGEST = 160  # positions of the example shown


def render_report(
    score: CircuitScore,
    model: HookedModel,
    task: Task,
    batch: Batch,
    training: Mapping[str, Any],
    *,
    name: str,
    seed: int,
    command: str,
    beside: Sequence[str] = (),
) -> str:
    """Write the report of a score, measured on these examples, as one HTML page.

    `training` is the model's record, possibly empty; `command`, what was typed, is shown at the
    end, with the seed of the examples. `beside` describes other circuits that do as well, one
    paragraph each.
    """
    attention, order = mean_attention(model, batch).cpu(), role_order(batch)
    paths = list(score.circuit.every_path())
    weights_each = model.cfg.n_layers * model.cfg.n_heads * batch.inputs.shape[1] ** 2
    shown = max(1, min(_MOST_EXAMPLES, len(batch), _MOST_NUMBERS // weights_each))
    record = {
        **provenance(command),
        "examples": f"{score.examples} of the test split, seed {seed}; searches draw from another "
        "split",
        "tolerance": f"{score.loss_name} below {score.tolerance:g}",
        "trained": re.sub(r'[{}"]', "", json.dumps(training)).replace("_", " "),
    }
    return render(
        "report.html",
        title=f"Circuit of {name}",
        task_words=task_words(model, task, batch),
        sequence=example_sequence(model, task, batch, order),
        parts=score_parts(score, model, task, batch),
        beside=beside,
        maps=Markup(role_maps(attention, task, order, paths).html),
        shown=shown,
        position_note=task.position_note,
        attention=Markup(attention_view(model, task, batch, range(shown)).html),
        json=score.circuit.to_json(),
        record=record_rows(record),
    )


def score_view(
    score: CircuitScore, model: HookedModel, task: Task, batch: Batch, title: str, note: str = ""
) -> View:
    """Show a score with its verdict, or with `note` in its place; notebooks draw it."""
    width = terminal_width(piped=0) or None
    prose = wrapped(note or score_text.verdict(score, task), width or 80)
    text = "\n".join([score_text.score_table(score, task, width), *prose])
    parts = score_parts(score, model, task, batch)
    return View(title, render("scored.html", parts=parts, note=note), text, score)


def score_drawing(score: CircuitScore, n_layers: int, task: Task, batch: Batch) -> str:
    """Draw a scored circuit as SVG: what each path is worth, and which heads it enables."""
    losses = {row.path: row.removed_loss for row in score.paths}
    arrows = worth_of_paths(losses, score.intact_loss, score.uninformed_loss, task.loss_name)
    return draw_circuit(
        score.circuit, n_layers, task=task, batch=batch, enables=score.enables, arrows=arrows
    )


def score_parts(
    score: CircuitScore, model: HookedModel, task: Task, batch: Batch
) -> dict[str, Any]:
    """Collect what the macros of `score.html` show."""
    n_layers, sentences = model.cfg.n_layers, [score_text.verdict(score, task)]
    if task.graph is not None and score.circuit.mechanisms:
        sentences.append(describe_flow(score.circuit, n_layers, model.cfg.n_heads))
    return {
        "score": score,
        "finding": score_text.finding(score),
        "scale": f"{task.loss_meaning}; measured on {score.examples} examples",
        "mechanisms": score_text.mechanism_words(row.mechanism for row in score.heads),
        "verdict": " ".join(sentences),
        "good": score.minimal and len(score.circuit.mechanisms) == len(score.heads),
        "drawing": Markup(score_drawing(score, n_layers, task, batch)),
        "losses": score_text.loss_lines(score),
        "heads": score_text.head_table(score),
        "paths": score_text.path_table(score, task),
        "path_keys": [
            row.get("paths", [row["name"]])[0] for row in score_text.shown_paths(score, task)
        ],
    }


def task_words(model: HookedModel, task: Task, batch: Batch) -> str:
    """Describe the task in two sentences."""
    description = score_text.describe(model, task)
    labelled = zip(task.role_labels, task.role_names)
    roles = [f"{label} ({name})" if label != name else name for label, name in labelled]
    n_chains, n_positions = batch.roles.shape[1], batch.inputs.shape[1]
    asks = f"{counted(n_positions, 'position')} and asks {counted(n_chains, 'question')}"
    begins = f"{description[:1].upper()}{description[1:]}. An example has {asks}"
    return f"{begins}; the roles of a question are {listed(roles, 'and')}."


def example_sequence(
    model: HookedModel, task: Task, batch: Batch, order: Sequence[int]
) -> list[dict[str, str]]:
    """List the positions of the first example, with their roles in its first question."""
    chain = batch.roles[0, 0].tolist()
    labels = position_labels(model, task, batch[:1], 0)
    last = min(len(labels), max(_LONGEST, 1 + max(chain)))
    return [
        {
            "text": re.sub(r" \(.*\)$", "", labels[position]),  # `role` has what it does
            "role": " ".join(task.role_names[role] for role in order if chain[role] == position),
        }
        for position in range(last)
    ]
