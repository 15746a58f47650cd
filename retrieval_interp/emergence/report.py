"""An emergence series as a table, as JSON, and as an HTML page with figures and their script."""

import json
from typing import Any

from plotly.offline import get_plotlyjs

from retrieval_interp.emergence import curves
from retrieval_interp.emergence.series import (
    THRESHOLD,
    Series,
    in_order,
    interpolated_pairs,
    loss_emergence,
    path_emergence,
)
from retrieval_interp.storage.files import provenance
from retrieval_interp.tasks.structured import to_data
from retrieval_interp.views.page import render, unescaped
from retrieval_interp.views.score_text import describe_config
from retrieval_interp.views.tables import text_table, wrapped

HEADER = ["path", "means", "attention", f"above {THRESHOLD:g}", "half of it"]
HEADER += ["necessity", "half of it", "first"]
LEGEND = (
    "Attention is a path's mean attention. Necessity is the share of what the model has learned so "
    "far that is lost if the path is cut in the model (1: all of it, back to the plateau). Each is "
    "given at the last step, with the step at which it is first above 0.5 or above half of its "
    "final value, interpolated between measured steps (never: also where cutting the path costs no "
    "more than the tolerance at the end). First: attention or necessity, whichever reaches half "
    "first; unresolved if both do between the same two measured steps. ~ marks paths that only "
    "enable."
)
_FIGURES = {
    "Attention of each path (the paper's appendix D)": (
        curves.attention_figure,
        "Mean attention over training. Diamonds: first step above 0.5, interpolated between "
        "measured steps; open where the first measured step is already past it.",
    ),
    "Losses (figure 6)": (
        curves.loss_figure,
        "Validation loss and the partial loss of each asked symbol; a triangle and a dotted line "
        "where a path's attention goes above 0.5.",
    ),
    "The circuit, by when its paths appear (figure 7)": (
        curves.crossing_figure,
        "Colour and number: the first step with attention above 0.5, from early (blue) to late "
        "(red); grey: never. Wider arrows cost more when cut at the end; dashed ones only enable.",
    ),
}


def emergence_table(series: Series, width: int | None = None) -> str:
    """When each path and each asked symbol appears, as text in lines of at most `width` characters.

    By default the table is as wide as it needs to be, and prose has 100 characters per line.
    """
    table = text_table(HEADER, _rows(series), width=width)
    prose = f"{LEGEND}\n\n{_losses_text(series)}"
    return "\n".join([*table, "", *wrapped(prose, width or 100)])


def _rows(series: Series) -> list[list[str]]:
    label = series.recipe.task.path_label
    return [
        [row.name, label(*row.path.path), f"{row.attention:.2f}"]
        + [str(at or "never") for at in (row.above, row.attention_half)]
        + [f"{row.necessity:.2f}", str(row.necessity_half or "never"), row.leads or ""]
        for row in path_emergence(series)
    ]


def _losses_text(series: Series) -> str:
    """When each partial loss falls, and whether they do so in order."""
    losses, task = loss_emergence(series), series.recipe.task
    fell = ", ".join(f"{symbol} {crossing or 'never'}" for symbol, crossing in losses.items())
    held = in_order(losses, task.steps_between)
    order = "" if held is None else f"; {'' if held else 'not '}in the order of the steps"
    if close := interpolated_pairs(losses, task.steps_between):
        named = ", ".join(map(" and ".join, close))
        order += f" (by interpolation alone: {named} cross between the same two measured steps)"
    measured = "" if any(row.logged for row in series.losses) else " (measured, not logged)"
    below = THRESHOLD * task.loss_scale
    return f"Partial losses{measured} first below {below:g}: {fell}{order}."


def emergence_json(series: Series, command: str, examples: int, seed: int) -> str:
    """A series and what follows from it, as JSON text with one line per measured step.

    `command` is what was typed; `examples` and their `seed` are those of the checkpoints.
    `read_series` reads the text back.
    """
    losses, task = loss_emergence(series), series.recipe.task
    data: dict[str, Any] = {
        **provenance(command),
        "examples": examples,
        "seed": seed,
        "attention_threshold": THRESHOLD,
        "loss_threshold": THRESHOLD * task.loss_scale,
        "paths": [row.to_dict() for row in path_emergence(series)],
        "partial_losses": to_data(losses),
        "in_order": in_order(losses, task.steps_between),
        **series.to_dict(),
    }
    parts = []
    for key, value in data.items():
        text = json.dumps(value)
        if key in ("paths", "snapshots", "losses"):
            text = "[\n    " + ",\n    ".join(map(json.dumps, value)) + "\n  ]"
        parts.append(f'  "{key}": {text}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def render_emergence(series: Series, command: str, examples: int, seed: int) -> str:
    """The report as one HTML page of about 5 MB, nearly all of it Plotly's script."""
    figures = []
    for heading, (draw, caption) in _FIGURES.items():
        html = draw(series)
        if not isinstance(html, str):
            config = {"responsive": True, "displayModeBar": False}
            html = html.to_html(full_html=False, include_plotlyjs=False, config=config)
        figures.append({"heading": heading, "html": unescaped(html), "caption": caption})
    recipe, steps, made = series.recipe, series.steps, provenance(command)
    record = {
        "command": command,
        "date": made["date"],
        "examples": f"{examples} of the test split, seed {seed}",
        "measured": f"{len(steps)} steps, {steps[0]} to {steps[-1]}",
        "circuit": f"{series.circuit_from}; {json.dumps(series.circuit.to_dict()['heads'])}",
        "tolerance": f"{series.tolerance:g}",
        "versions": ", ".join(f"{name} {text}" for name, text in made["versions"].items()),
        "recipe": json.dumps(to_data(recipe)),
    }
    page = render(
        "emergence.html",
        title=f"Emergence of attention paths in {series.run}",
        description=describe_config(recipe.model, recipe.task),
        sentences=[_losses_text(series)],
        notes=series.notes,
        plotly=unescaped(get_plotlyjs()),
        figures=figures,
        header=HEADER,
        rows=_rows(series),
        classes=["nowrap", "nowrap", *["number"] * 5, "nowrap"],
        legend=LEGEND,
        record=list(record.items()),
    )
    return str(page)
