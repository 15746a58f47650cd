"""The HTML report of `emergence`: one file with figures and their script, no network needed."""

import json

from plotly.offline import get_plotlyjs

from retrieval_interp.emergence import curves
from retrieval_interp.emergence.series import Series
from retrieval_interp.emergence.text import HEADER, LEGEND, emergence_rows, losses_text
from retrieval_interp.storage.provenance import provenance
from retrieval_interp.tasks.structured import to_data
from retrieval_interp.views.page import render, unescaped
from retrieval_interp.views.score_text import describe_config

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
    "Attention and necessity": (
        curves.necessity_figure,
        "Necessity: the share of what the model has learned so far that is lost without the path, "
        "cut in the intact model, or removed from the circuit.",
    ),
}
_PLOTLY = {"responsive": True, "displayModeBar": False}


def render_emergence(series: Series, command: str, examples: int, seed: int) -> str:
    """The report as one HTML page of about 5 MB, nearly all of it Plotly's script.

    `command` is what was typed; `examples` and their `seed` are those of the checkpoints.
    """
    figures = []
    for heading, (draw, caption) in _FIGURES.items():
        html = draw(series)
        if not isinstance(html, str):
            html = html.to_html(full_html=False, include_plotlyjs=False, config=_PLOTLY)
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
        sentences=[losses_text(series)],
        notes=series.notes,
        plotly=unescaped(get_plotlyjs()),
        figures=figures,
        header=HEADER,
        rows=emergence_rows(series),
        classes=["nowrap", "nowrap", *["number"] * 7, "nowrap"],
        legend=LEGEND,
        record=list(record.items()),
    )
    return str(page)
