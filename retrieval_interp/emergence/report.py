"""A series as figures (paper, figures 6 and 7, appendix D), as a table and as JSON.

Curves are Plotly figures; a path has the same colour and dashes in all of them. The circuit is SVG.
"""

import json
from dataclasses import replace
from itertools import cycle
from statistics import fmean

import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from retrieval_interp.circuits.draw.layout import worth_of_paths
from retrieval_interp.circuits.draw.svg import draw_circuit
from retrieval_interp.emergence.series import (
    THRESHOLD,
    Series,
    in_order,
    loss_emergence,
    path_emergence,
)
from retrieval_interp.storage.files import provenance
from retrieval_interp.views.score_text import describe_config
from retrieval_interp.views.tables import text_table, wrapped

_COLORS = ("#4c78a8", "#e45756", "#54a24b", "#b279a2", "#f58518", "#72b7b2", "#9d755d", "#8a9099")
_DASHES = ("solid", "dash", "dot", "dashdot")
_STYLES = [{"color": color, "dash": dash} for dash in _DASHES for color in _COLORS]
_EARLY_TO_LATE = ["#4c78a8", "#54a24b", "#f2b701", "#e45756"]  # on white and on black
_GREY = "#8a9099"
_DOTTED = {"color": _GREY, "width": 1, "dash": "dot"}

LEGEND = (
    "Attention is a path's mean attention. Necessity is the share of what the model has learned so "
    "far that is lost if the path is cut in the model (1: all of it, back to the plateau). Each is "
    "given at the last step, with the step at which it is first above 0.5 or above half of its "
    "final value, interpolated between measured steps (never: also where cutting the path costs no "
    "more than the tolerance at the end). ~ marks paths that only enable."
)


def attention_figure(series: Series) -> go.Figure:
    """Draw the mean attention of every path over training (appendix D)."""
    figure = go.Figure()
    for row, line in zip(path_emergence(series), cycle(_STYLES)):
        values = series.attention(row.path)
        figure.add_scatter(x=series.steps, y=values, mode="lines+markers", name=row.name, line=line)
    figure.add_hline(y=THRESHOLD, line=_DOTTED)
    figure.update_yaxes(title="mean attention", range=[-0.02, 1.03])
    return _styled(figure, 480)


def loss_figure(series: Series) -> go.Figure:
    """Draw losses over training, and when each path's attention goes above 0.5 (figure 6).

    Above, training and validation loss; below, the partial loss of each asked symbol, with a
    triangle for each path on top.
    """
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    task, below = series.recipe.task, {"row": 2, "col": 1}
    steps = [logged.step for logged in series.losses]
    partial = list(zip(*(logged.partial_losses for logged in series.losses)))
    for name, values, color in (
        ("training", [logged.train_loss for logged in series.losses], _GREY),
        ("validation", [logged.validation_loss for logged in series.losses], "#f58518"),
    ):
        figure.add_scatter(x=steps, y=values, name=name, line={"color": color}, row=1, col=1)
    for symbol, losses, style in zip(task.asked, partial, cycle(_STYLES)):
        figure.add_scatter(x=steps, y=losses, name=f"partial, {symbol}", line=style, **below)
    top = 1.05 * max(map(max, partial))
    for row, style in zip(path_emergence(series), cycle(_STYLES)):
        if row.above is not None:
            marker = {"symbol": "triangle-down", "color": style["color"], "size": 10}
            mark = {"x": [row.above.step], "y": [top], "mode": "markers", "marker": marker}
            figure.add_scatter(name=f"{row.name} {row.above}", **mark, **below)
            figure.add_vline(x=row.above.step, line={**_DOTTED, "color": style["color"]})
    figure.add_hline(y=THRESHOLD * task.loss_scale, line=_DOTTED, **below)
    figure.update_yaxes(title=task.loss_name, rangemode="tozero")
    return _styled(figure, 620, row=2)


def crossing_figure(series: Series) -> str:
    """Draw the circuit, each path coloured by when its attention goes above 0.5 (figure 7).

    Grey paths never do. The wider an arrow, the higher the loss when it is cut in the model at the
    last step.
    """
    rows, last = path_emergence(series), series.snapshots[-1]
    steps = {row.path: row.above.step for row in rows if row.above is not None}
    first = min(steps.values(), default=0.0)
    span = max(1.0, max(steps.values(), default=0.0) - first)
    shares = [(step - first) / span for step in steps.values()]
    colors = dict(zip(steps, sample_colorscale(_EARLY_TO_LATE, shares)))
    notes = {row.path: str(row.above or "never") for row in rows}
    arrows = worth_of_paths(
        {path: fmean(last.paths[str(path)].live_losses) for path in series.paths},
        intact=fmean(last.partial_losses),
        uninformed=series.plateau,
        loss_name=series.recipe.task.loss_name,
        when="cut in the model",
    )
    arrows = {
        path: replace(arrow, note=notes[path], color=colors.get(path, _GREY))
        for path, arrow in arrows.items()
    }
    circuit, n_layers = series.circuit, series.recipe.model.layers
    return draw_circuit(circuit, n_layers, task=series.recipe.task, arrows=arrows)


def _styled(figure: go.Figure, height: int, row: int | None = None) -> go.Figure:
    figure.update_xaxes(title="training step", row=row)
    legend = {"orientation": "h", "yanchor": "top", "y": -0.16, "font": {"size": 11}}
    sides = {"l": 50, "r": 15, "t": 20, "b": 40}
    return figure.update_layout(template="plotly_white", height=height, margin=sides, legend=legend)


def emergence_table(series: Series, width: int | None = None) -> str:
    """Say when each path and asked symbol appears, in lines of at most `width` characters.

    By default the table is as wide as it needs to be, and prose has 100 characters per line.
    """
    header = ["path", "means", "attention", "above 0.5", "half of it", "necessity", "half of it"]
    label = series.recipe.task.path_label
    rows = [
        [row.name, label(*row.path.path), f"{row.attention:.2f}"]
        + [str(crossing or "never") for crossing in (row.above, row.attention_half)]
        + [f"{row.necessity:.2f}", str(row.necessity_half or "never")]
        for row in path_emergence(series)
    ]
    losses, task = loss_emergence(series), series.recipe.task
    fell = ", ".join(f"{symbol} {crossing or 'never'}" for symbol, crossing in losses.items())
    held = in_order(losses, task.steps_between)
    order = "" if held is None else f"; {'' if held else 'not '}in the order of the steps"
    below = f"Partial losses first below {THRESHOLD * task.loss_scale:g}: {fell}{order}."
    prose = f"{LEGEND}\n\n{below}"
    return "\n".join([*text_table(header, rows, width=width), "", *wrapped(prose, width or 100)])


def summary(series: Series) -> list[str]:
    """Say what was measured; one of the sentences says if the circuit does not hold."""
    recipe, steps, last = series.recipe, series.steps, series.snapshots[-1]
    lines = [
        f"{series.run}: {describe_config(recipe.model, recipe.task)}",
        f"circuit {series.circuit_from}, {len(series.paths)} paths",
        f"{len(steps)} steps measured, {steps[0]} to {steps[-1]}",
    ]
    if (combined := fmean(last.combined_losses)) > series.tolerance:
        loss = f"the {recipe.task.loss_name} at step {last.step} is {combined:.4f}"
        limit = f"not below {series.tolerance:g} (intact: {fmean(last.partial_losses):.4f})"
        lines.append(f"note: the circuit does not hold: with all of it in place {loss}, {limit}")
    return lines


def emergence_json(series: Series, command: str, examples: int, seed: int) -> str:
    """Write a series as JSON with a line per measured step; `read_series` reads it back."""
    data = {**provenance(command), "examples": examples, "seed": seed, **series.to_dict()}
    return json.dumps(data).replace('{"step": ', '\n{"step": ') + "\n"
