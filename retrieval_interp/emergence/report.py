"""The HTML report of `emergence`: one file with figures and their script, no network needed."""

import json
from collections.abc import Callable

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from retrieval_interp.emergence.curves import (
    attention_figure,
    crossing_figure,
    loss_figure,
    necessity_figure,
)
from retrieval_interp.emergence.series import Series
from retrieval_interp.emergence.text import (
    HEADER,
    LEGEND,
    NUMBERS,
    emergence_rows,
    emergence_sentences,
)
from retrieval_interp.storage.provenance import provenance
from retrieval_interp.tasks.structured import to_data
from retrieval_interp.views.page import render, unescaped
from retrieval_interp.views.score_text import describe_config

_FIGURES: tuple[tuple[str, Callable[[Series], go.Figure | str], str], ...] = (
    (
        "Attention of each path (the paper's appendix D)",
        attention_figure,
        "Mean attention over training. Diamonds: first step above 0.5, interpolated between "
        "measured steps; open where the first measured step is already past it.",
    ),
    (
        "Losses (figure 6)",
        loss_figure,
        "Validation loss and the partial loss of each asked symbol; a triangle and a dotted line "
        "where a path's attention goes above 0.5.",
    ),
    (
        "The circuit, by when its paths appear (figure 7)",
        crossing_figure,
        "An arrow is an attention path of the layer beside it, between positions of one chain in "
        "the order of the sequence. Colour and number: the first step with attention above 0.5; "
        "grey: never. Wider arrows cost more when cut at the end; dashed ones only enable.",
    ),
    (
        "Attention beside necessity",
        necessity_figure,
        "Necessity: the share of what the model has learned so far that is lost without the path, "
        "cut in the intact model, or left out of the circuit with all other attention replaced.",
    ),
)


def render_emergence(series: Series, command: str, examples: int, seed: int) -> str:
    """The report as one HTML page of about 5 MB, nearly all of it Plotly's script.

    `command` is what was typed; `examples` and their `seed` are those of the checkpoints.
    """
    recipe, figures = series.recipe, []
    for number, (heading, draw, caption) in enumerate(_FIGURES):
        html = draw(series)
        if not isinstance(html, str):
            html = html.to_html(
                full_html=False,
                include_plotlyjs=False,
                div_id=f"figure-{number}",
                config={"responsive": True, "displayModeBar": False},
            )
        figures.append({"heading": heading, "html": unescaped(html), "caption": caption})
    page = render(
        "emergence.html",
        title=f"Emergence of attention paths in {series.run}",
        description=describe_config(recipe.model, recipe.task),
        sentences=emergence_sentences(series),
        notes=series.notes,
        plotly=unescaped(get_plotlyjs()),
        figures=figures,
        header=HEADER,
        rows=emergence_rows(series),
        classes=["number" if place in NUMBERS else "nowrap" for place in range(len(HEADER))],
        legend=LEGEND,
        record=_record(series, command, examples, seed),
    )
    return str(page)


def _record(series: Series, command: str, examples: int, seed: int) -> list[list[str]]:
    """How the numbers were computed, one fact per row."""
    record, steps = provenance(command), series.steps
    return [
        ["command", command],
        ["date", record["date"]],
        ["examples", f"{examples} of the test split, seed {seed}"],
        ["measured", f"{len(steps)} steps, {steps[0]} to {steps[-1]}"],
        ["circuit", f"{series.circuit_from}; {json.dumps(series.circuit.to_dict()['heads'])}"],
        ["tolerance", f"{series.tolerance:g}"],
        ["versions", ", ".join(f"{name} {text}" for name, text in record["versions"].items())],
        ["recipe", json.dumps(to_data(series.recipe))],
    ]
