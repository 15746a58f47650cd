"""Figures of how a circuit's paths appear in training (paper, figures 6 and 7, appendix D).

Curves are Plotly figures with a template of their own; a path has the same colour and dashes in all
of them. The circuit is an SVG.
"""

from typing import Any

import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from retrieval_interp.circuits.draw.svg import draw_circuit
from retrieval_interp.emergence.series import Series
from retrieval_interp.emergence.text import step_text
from retrieval_interp.emergence.times import THRESHOLD, Crossing, paper_epochs, path_emergence

_COLORS = ("#4c78a8", "#e45756", "#54a24b", "#b279a2", "#f58518", "#72b7b2", "#9d755d", "#8a9099")
_DASHES = ("solid", "dash", "dot", "dashdot")
_EARLY_TO_LATE = ["#4c78a8", "#54a24b", "#f2b701", "#e45756"]  # on white and on black
_GREY = "#8a9099"
_DOTTED = {"color": _GREY, "width": 1, "dash": "dot"}


def attention_figure(series: Series) -> go.Figure:
    """Mean attention of every path over training, with its first step above 0.5 (appendix D).

    Diamonds mark the crossings, interpolated as in the paper; an open one means that the first
    measured step is already past it.
    """
    figure = go.Figure()
    for place, row in enumerate(path_emergence(series)):
        values, group = series.attention(row.path), {"legendgroup": row.name}
        curve = {"x": series.steps, "y": values, "line": _style(place), "name": row.name}
        figure.add_scatter(mode="lines+markers", marker={"size": 4}, **curve, **group)
        if row.above is not None:
            past = row.above.after is None
            symbol = "diamond-open" if past else "diamond"
            y = values[0] if past else THRESHOLD
            name = f"{row.name} above {THRESHOLD:g} at step {row.above}"
            _mark(figure, place, row.above, y, symbol, name, showlegend=False, **group)
    figure.add_hline(y=THRESHOLD, line=_DOTTED)
    figure.update_yaxes(title="mean attention", range=[-0.02, 1.03])
    return _styled(figure, 480, series)


def loss_figure(series: Series) -> go.Figure:
    """Losses over training, and when each path's attention goes above 0.5 (figure 6).

    Above, training and validation loss; below, the partial loss of each asked symbol, with a
    triangle for each path on top.
    """
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    task, rows, below = series.recipe.task, series.losses, {"row": 2, "col": 1}
    trained = [(at.step, at.train_loss) for at in rows if at.train_loss is not None]
    for name, points, color in (
        ("training", trained, _GREY),
        ("validation", [(at.step, at.validation_loss) for at in rows], "#f58518"),
    ):
        x, y = zip(*points) if points else ((), ())
        figure.add_scatter(x=x, y=y, name=name, line={"color": color}, row=1, col=1)
    for place, symbol in enumerate(task.asked):
        losses = [at.partial_losses[place] for at in rows]
        curve = {"x": [at.step for at in rows], "y": losses, "line": _style(place)}
        figure.add_scatter(name=f"partial, {symbol}", **curve, **below)
    top = 1.05 * max(max(at.partial_losses) for at in rows)
    for place, row in enumerate(path_emergence(series)):
        if row.above is not None:
            name, line = f"{row.name} {row.above}", {**_DOTTED, "color": _style(place)["color"]}
            _mark(figure, place, row.above, top, "triangle-down", name, **below)
            figure.add_vline(x=row.above.step, line=line)
    figure.add_hline(y=THRESHOLD * task.loss_scale, line=_DOTTED, **below)
    figure.update_yaxes(title=task.loss_name, rangemode="tozero")
    return _styled(figure, 620, series, row=2)


def crossing_figure(series: Series) -> str:
    """The circuit as SVG, each path coloured by when its attention goes above 0.5 (figure 7).

    Grey paths never do. The wider an arrow, the higher the loss when it is cut in the model at the
    last step.
    """
    rows, last = path_emergence(series), series.snapshots[-1]
    steps = [row.above.step for row in rows if row.above is not None] or [0.0]
    first, span = min(steps), max(1.0, max(steps) - min(steps))
    colors = dict.fromkeys(series.paths, _GREY)
    for row in rows:
        if row.above is not None:
            share = (row.above.step - first) / span
            (colors[row.path],) = sample_colorscale(_EARLY_TO_LATE, [share])
    return draw_circuit(
        series.circuit,
        series.recipe.model.layers,
        losses={path: last.paths[str(path)].live_loss for path in series.paths},
        task=series.recipe.task,
        intact=last.baseline_loss,
        uninformed=series.plateau,
        when="cut in the model",
        colors=colors,
        notes={row.path: step_text(row.above) for row in rows},
    )


def necessity_figure(series: Series) -> go.Figure:
    """Attention and necessity, one panel per path: which comes first?

    Necessity is the share of what is learned by a step that is lost without the path
    (`Series.necessity`), cut in the intact model and removed from the circuit.
    """
    names = [row.name for row in path_emergence(series)]
    n_rows = (len(names) + 1) // 2
    figure = make_subplots(
        rows=n_rows,
        cols=min(2, len(names)),
        shared_xaxes=True,
        shared_yaxes=True,
        subplot_titles=names,
        horizontal_spacing=0.05,
        vertical_spacing=min(0.08, 0.25 / n_rows),
    )
    for place, path in enumerate(series.paths):
        where = {"row": place // 2 + 1, "col": place % 2 + 1, "showlegend": place == 0}
        for name, y, line in (
            ("attention", series.attention(path), {"color": "#4c78a8"}),
            ("cut in the model", series.necessity(path), {"color": "#e45756"}),
            (
                "removed from the circuit",
                series.frozen_necessity(path),
                {**_DOTTED, "width": 2},
            ),
        ):
            if y is not None:
                figure.add_scatter(
                    x=series.steps, y=y, name=name, legendgroup=name, line=line, **where
                )
    figure.update_yaxes(range=[-0.08, 1.08])
    figure.update_annotations(font={"size": 12})
    top = {"yref": "container", "y": 1, "yanchor": "top", "xref": "paper", "x": 0}
    figure = _styled(figure, 130 + 150 * n_rows, series, row=n_rows)
    return figure.update_layout(margin={"t": 60}, legend=top)


def _style(place: int) -> dict[str, str]:
    """The colour and dashes of a curve."""
    dash = _DASHES[place // len(_COLORS) % len(_DASHES)]
    return {"color": _COLORS[place % len(_COLORS)], "dash": dash}


def _mark(
    figure: go.Figure, place: int, at: Crossing, y: float, symbol: str, name: str, **options: Any
) -> None:
    marker = {"size": 10, "symbol": symbol, "color": _style(place)["color"]}
    figure.add_scatter(x=[at.step], y=[y], mode="markers", marker=marker, name=name, **options)


def _styled(figure: go.Figure, height: int, series: Series, row: int | None = None) -> go.Figure:
    epochs = " (8 make one of the paper's epochs)" if paper_epochs(series.recipe) else ""
    figure.update_xaxes(title=f"training step{epochs}", row=row)
    legend = {"orientation": "h", "yanchor": "top", "y": -0.16, "font": {"size": 11}}
    margin = {"l": 50, "r": 15, "t": 20, "b": 40}
    return figure.update_layout(
        template="plotly_white", height=height, margin=margin, legend=legend
    )
