"""The HTML report of `emergence`: one file with its figures and their script, no network."""

import json
from collections.abc import Callable
from html import escape

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
from retrieval_interp.views.page import render_page, render_table
from retrieval_interp.views.score_text import describe_config
from tasks.structured import to_data

# Plotly draws with fixed colours: text and grid follow the page's, also when it changes.
_THEME = """
<script>
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const paint = () => {
    const style = getComputedStyle(document.body);
    const line = "rgba(128,136,144,0.25)";
    for (const figure of document.querySelectorAll(".plotly-graph-div")) {
      const clear = "rgba(0,0,0,0)";
      const change = {paper_bgcolor: clear, plot_bgcolor: clear, "font.color": style.color};
      for (const name of Object.keys(figure._fullLayout)) {
        if (/^[xy]axis[0-9]*$/.test(name)) {
          change[name + ".gridcolor"] = line;
          change[name + ".zerolinecolor"] = line;
        }
      }
      Plotly.relayout(figure, change);
    }
  };
  paint();
  dark.addEventListener("change", paint);
})();
</script>
"""
_FIGURES: tuple[tuple[str, Callable[[Series], go.Figure], str], ...] = (
    (
        "Attention of each path (the paper's appendix D)",
        attention_figure,
        "Mean attention over training. Diamonds: first step above 0.5, interpolated between "
        "measured steps; open where the first measured step is past it already.",
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

    Args:
        series: what was measured.
        command: what was typed, shown at the end.
        examples: how many examples checkpoints were measured on.
        seed: of the examples.
    """
    recipe = series.recipe
    title = f"Emergence of attention paths in {series.run}"
    sections = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(describe_config(recipe.model, recipe.task))}</p>',
        *(f"<p>{escape(line)}</p>" for line in emergence_sentences(series)),
        *(f'<p class="verdict">{escape(note)}</p>' for note in series.notes),
        f"<script>{get_plotlyjs()}</script>",
    ]
    for number, (heading, draw, caption) in enumerate(_FIGURES):
        figure = draw(series).to_html(
            full_html=False,
            include_plotlyjs=False,
            div_id=f"figure-{number}",
            config={"responsive": True, "displayModeBar": False},
        )
        sections += [
            f"<h2>{escape(heading)}</h2>",
            f'<div class="scroll">{figure}</div>',
            f'<p class="soft">{escape(caption)}</p>',
        ]
    classes = ["number" if place in NUMBERS else "nowrap" for place in range(len(HEADER))]
    sections += [
        "<h2>Steps</h2>",
        render_table(HEADER, emergence_rows(series), classes, sortable=True),
        f'<p class="soft">{escape(" ".join(LEGEND))}</p>',
        "<h2>How this was computed</h2>",
        _how(series, command, examples, seed),
        _THEME,
    ]
    return render_page(title, "\n".join(sections), sortable=True)


def _how(series: Series, command: str, examples: int, seed: int) -> str:
    record = provenance(command)
    steps = series.steps
    rows = [
        ["command", command],
        ["date", record["date"]],
        ["examples", f"{examples} of the test split, seed {seed}"],
        ["measured", f"{len(steps)} steps, {steps[0]} to {steps[-1]}"],
        ["circuit", f"{series.circuit_from}; {json.dumps(series.circuit.to_dict()['heads'])}"],
        ["tolerance", f"{series.tolerance:g}"],
        ["versions", ", ".join(f"{name} {text}" for name, text in record["versions"].items())],
        ["recipe", json.dumps(to_data(series.recipe))],
    ]
    return render_table(["", ""], rows, ["nowrap", ""])
