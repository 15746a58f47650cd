"""Figures of how a circuit's paths appear in training (paper, figures 6 and 7, appendix D).

Curves are Plotly figures; a path has the same colour and dashes in all of them. The circuit is SVG.
"""

from itertools import cycle
from statistics import fmean
from typing import Any

import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from retrieval_interp.circuits.draw.svg import draw_circuit
from retrieval_interp.emergence.series import (
    THRESHOLD,
    Crossing,
    Series,
    paper_epochs,
    path_emergence,
)

_COLORS = ("#4c78a8", "#e45756", "#54a24b", "#b279a2", "#f58518", "#72b7b2", "#9d755d", "#8a9099")
_DASHES = ("solid", "dash", "dot", "dashdot")
_STYLES = [{"color": color, "dash": dash} for dash in _DASHES for color in _COLORS]
_EARLY_TO_LATE = ["#4c78a8", "#54a24b", "#f2b701", "#e45756"]  # on white and on black
_GREY = "#8a9099"
_DOTTED = {"color": _GREY, "width": 1, "dash": "dot"}


def attention_figure(series: Series) -> go.Figure:
    """Mean attention of every path over training, with its first step above 0.5 (appendix D).

    Diamonds mark the crossings, interpolated as in the paper; an open one means that the first
    measured step is already past it.
    """
    figure = go.Figure()
    for row, style in zip(path_emergence(series), cycle(_STYLES)):
        values, group = series.attention(row.path), {"legendgroup": row.name}
        curve = {"x": series.steps, "y": values, "line": style, "marker": {"size": 4}}
        figure.add_scatter(mode="lines+markers", name=row.name, **curve, **group)
        if row.above is not None:
            past = row.above.after is None
            symbol, y = ("diamond-open", values[0]) if past else ("diamond", THRESHOLD)
            marker = {"symbol": symbol, "color": style["color"]}
            name = f"{row.name} above {THRESHOLD:g} at step {row.above}"
            _mark(figure, row.above, y, marker, name, showlegend=False, **group)
    figure.add_hline(y=THRESHOLD, line=_DOTTED)
    figure.update_yaxes(title="mean attention", range=[-0.02, 1.03])
    return _styled(figure, 480, series)


def loss_figure(series: Series) -> go.Figure:
    """Losses over training, and when each path's attention goes above 0.5 (figure 6).

    Above, training and validation loss; below, the partial loss of each asked symbol, with a
    triangle for each path on top.
    """
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    task, below = series.recipe.task, {"row": 2, "col": 1}
    steps = [at.step for at in series.losses]
    partial = list(zip(*(at.partial_losses for at in series.losses)))
    for name, values, color in (
        ("training", [at.train_loss for at in series.losses], _GREY),
        ("validation", [at.validation_loss for at in series.losses], "#f58518"),
    ):
        figure.add_scatter(x=steps, y=values, name=name, line={"color": color}, row=1, col=1)
    for symbol, losses, style in zip(task.asked, partial, cycle(_STYLES)):
        figure.add_scatter(x=steps, y=losses, name=f"partial, {symbol}", line=style, **below)
    top = 1.05 * max(map(max, partial))
    for row, style in zip(path_emergence(series), cycle(_STYLES)):
        if row.above is not None:
            marker = {"symbol": "triangle-down", "color": style["color"]}
            _mark(figure, row.above, top, marker, f"{row.name} {row.above}", **below)
            figure.add_vline(x=row.above.step, line={**_DOTTED, "color": style["color"]})
    figure.add_hline(y=THRESHOLD * task.loss_scale, line=_DOTTED, **below)
    figure.update_yaxes(title=task.loss_name, rangemode="tozero")
    return _styled(figure, 620, series, row=2)


def crossing_figure(series: Series) -> str:
    """The circuit as SVG, each path coloured by when its attention goes above 0.5 (figure 7).

    Grey paths never do. The wider an arrow, the higher the loss when it is cut in the model at the
    last step.
    """
    rows, last = path_emergence(series), series.snapshots[-1]
    steps = {row.path: row.above.step for row in rows if row.above is not None}
    first = min(steps.values(), default=0.0)
    span = max(1.0, max(steps.values(), default=0.0) - first)
    shares = [(step - first) / span for step in steps.values()]
    colors = dict(zip(steps, sample_colorscale(_EARLY_TO_LATE, shares)))
    return draw_circuit(
        series.circuit,
        series.recipe.model.layers,
        losses={path: fmean(last.paths[str(path)].live_losses) for path in series.paths},
        task=series.recipe.task,
        intact=fmean(last.partial_losses),
        uninformed=series.plateau,
        when="cut in the model",
        colors={path: colors.get(path, _GREY) for path in series.paths},
        notes={row.path: str(row.above or "never") for row in rows},
    )


def _mark(figure: go.Figure, at: Crossing, y: float, marker: Any, name: str, **where: Any) -> None:
    marker = {"size": 10, **marker}
    figure.add_scatter(x=[at.step], y=[y], mode="markers", marker=marker, name=name, **where)


def _styled(figure: go.Figure, height: int, series: Series, row: int | None = None) -> go.Figure:
    epochs = " (8 make one of the paper's epochs)" if paper_epochs(series.recipe) else ""
    figure.update_xaxes(title=f"training step{epochs}", row=row)
    legend = {"orientation": "h", "yanchor": "top", "y": -0.16, "font": {"size": 11}}
    margin = {"l": 50, "r": 15, "t": 20, "b": 40}
    return figure.update_layout(
        template="plotly_white", height=height, margin=margin, legend=legend
    )
