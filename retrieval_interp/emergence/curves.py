"""Figures of how a circuit's paths appear in training (paper, figures 6 and 7, appendix D).

Curves are Plotly figures with a template of their own; a path has the same colour and dashes in all
of them. The circuit is an SVG.
"""

import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from retrieval_interp.circuits.draw.svg import draw_circuit
from retrieval_interp.emergence.crossing import THRESHOLD
from retrieval_interp.emergence.series import Series
from retrieval_interp.emergence.text import step_text
from retrieval_interp.emergence.times import paper_epochs, path_emergence

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
        line, values = _style(place), series.attention(row.path)
        words = series.recipe.task.path_label(*row.path.path)
        figure.add_scatter(
            x=series.steps,
            y=values,
            mode="lines+markers",
            marker={"size": 4},
            line=line,
            name=row.name,
            legendgroup=row.name,
            hovertemplate=f"{row.name}, {words}<br>step %{{x}}: attention %{{y:.3f}}<extra></extra>",
        )
        if row.above is not None:
            past = row.above.after is None
            figure.add_scatter(
                x=[row.above.step],
                y=[values[0] if past else THRESHOLD],
                mode="markers",
                marker={
                    "size": 10,
                    "symbol": "diamond-open" if past else "diamond",
                    "color": line["color"],
                },
                name=f"{row.name} above {THRESHOLD:g} at step {row.above}",
                legendgroup=row.name,
                showlegend=False,
            )
    figure.add_hline(y=THRESHOLD, line=_DOTTED)
    figure.update_yaxes(title="mean attention", range=[-0.02, 1.03])
    return _styled(figure, 480, series)


def loss_figure(series: Series) -> go.Figure:
    """Losses over training, and when each path's attention goes above 0.5 (figure 6).

    Above, training and validation loss; below, the partial loss of each asked symbol, with a
    triangle for each path on top.
    """
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    task, steps = series.recipe.task, [row.step for row in series.losses]
    partial = dict(zip(task.asked, zip(*(row.partial_losses for row in series.losses))))
    above = {
        "training": ([row.train_loss for row in series.losses], {"color": _GREY, "width": 1.5}),
        "validation": ([row.validation_loss for row in series.losses], {"color": "#f58518"}),
    }
    for name, (losses, line) in above.items():
        figure.add_scatter(x=steps, y=losses, name=name, line=line, connectgaps=True, row=1, col=1)
    for place, (symbol, losses) in enumerate(partial.items()):
        name = f"partial, {symbol}"
        figure.add_scatter(x=steps, y=losses, name=name, line=_style(place), row=2, col=1)
    top = 1.05 * max(map(max, partial.values()))
    for place, row in enumerate(path_emergence(series)):
        if row.above is not None:
            color = _style(place)["color"]
            figure.add_scatter(
                x=[row.above.step],
                y=[top],
                mode="markers",
                marker={"size": 9, "symbol": "triangle-down", "color": color},
                name=f"{row.name} {row.above}",
                row=2,
                col=1,
            )
            figure.add_vline(x=row.above.step, line={**_DOTTED, "color": color, "width": 0.7})
    figure.add_hline(y=THRESHOLD * task.loss_scale, line=_DOTTED, row=2, col=1)
    figure.update_yaxes(title=task.loss_name, rangemode="tozero")
    return _styled(figure, 620, series, row=2)


def crossing_figure(series: Series) -> str:
    """The circuit as SVG, each path coloured by when its attention goes above 0.5 (figure 7).

    Grey paths never do. The wider an arrow, the higher the loss when it is cut in the intact model
    at the last step.
    """
    rows, last = path_emergence(series), series.snapshots[-1].paths
    steps = [row.above.step for row in rows if row.above is not None]
    first, span = min(steps, default=0.0), max(1.0, max(steps, default=0) - min(steps, default=0))
    colors = dict.fromkeys(series.paths, _GREY)
    for row in rows:
        if row.above is not None:
            share = (row.above.step - first) / span
            (colors[row.path],) = sample_colorscale(_EARLY_TO_LATE, [share])
    return draw_circuit(
        series.circuit,
        series.recipe.model.layers,
        losses={path: last[str(path)].live_loss for path in series.paths},
        colors=colors,
        notes={row.path: step_text(row.above) for row in rows},
        task=series.recipe.task,
    )


def necessity_figure(series: Series) -> go.Figure:
    """Attention and necessity, one panel per path: which comes first?

    Necessity is the share of what is learned by a step that is lost without the path
    (`Series.necessity`), cut in the intact model and removed from the circuit.
    """
    rows = path_emergence(series)
    n_rows = (len(rows) + 1) // 2
    figure = make_subplots(
        rows=n_rows,
        cols=min(2, len(rows)),
        shared_xaxes=True,
        shared_yaxes=True,
        subplot_titles=[row.name for row in rows],
        horizontal_spacing=0.05,
        vertical_spacing=min(0.08, 0.25 / n_rows),
    )
    for place, row in enumerate(rows):
        for name, values, color, dash in (
            ("attention", series.attention(row.path), "#4c78a8", "solid"),
            ("necessity, cut live", series.necessity(row.path), "#e45756", "solid"),
            ("necessity, frozen", series.frozen_necessity(row.path), _GREY, "dot"),
        ):
            if values is not None:
                figure.add_scatter(
                    x=series.steps,
                    y=values,
                    name=name,
                    legendgroup=name,
                    showlegend=place == 0,
                    line={"color": color, "dash": dash, "width": 2},
                    row=place // 2 + 1,
                    col=place % 2 + 1,
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


def _styled(figure: go.Figure, height: int, series: Series, row: int | None = None) -> go.Figure:
    epochs = " (8 make one of the paper's epochs)" if paper_epochs(series.recipe) else ""
    figure.update_xaxes(title=f"training step{epochs}", row=row)
    return figure.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 50, "r": 15, "t": 20, "b": 40},
        legend={"orientation": "h", "yanchor": "top", "y": -0.16, "font": {"size": 11}},
    )
