"""Figures of how a circuit's paths appear in training (paper, figures 6 and 7, appendix D).

Each function takes a series and returns a Plotly figure with a template of its own. A path has the
same colour and dashes in all of them.
"""

import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from retrieval_interp.circuits.draw.svg import draw_circuit
from retrieval_interp.emergence.crossing import THRESHOLD
from retrieval_interp.emergence.series import Series
from retrieval_interp.emergence.text import step_text
from retrieval_interp.emergence.times import paper_epochs, path_emergence, symbols

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
        figure.add_scatter(
            x=series.steps,
            y=values,
            mode="lines+markers",
            marker={"size": 4},
            line=line,
            name=row.name,
            legendgroup=row.name,
            hovertemplate=f"{row.name}, {series.recipe.task.path_label(*row.path.path)}<br>"
            "step %{x}: attention %{y:.3f}<extra></extra>",
        )
        if row.above is None:
            continue
        past = row.above.after is None
        symbol = "diamond-open" if past else "diamond"
        figure.add_scatter(
            x=[row.above.step],
            y=[values[0] if past else THRESHOLD],
            mode="markers",
            marker={"size": 10, "symbol": symbol, "color": line["color"]},
            name=f"{row.name} above {THRESHOLD:g}",
            legendgroup=row.name,
            showlegend=False,
            hovertemplate=f"{row.name}<br>above {THRESHOLD:g} at step {row.above}<extra></extra>",
        )
    figure.add_hline(y=THRESHOLD, line=_DOTTED)
    figure.update_xaxes(title=_step_title(series))
    figure.update_yaxes(title="mean attention", range=[-0.02, 1.03])
    return _styled(figure, 480)


def loss_figure(series: Series) -> go.Figure:
    """Losses over training, and when each path's attention goes above 0.5 (figure 6).

    Above, training and validation loss; below, the partial loss of each asked symbol, with a
    triangle for each path on top.
    """
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    above, below = {"row": 1, "col": 1}, {"row": 2, "col": 1}
    steps = [row.step for row in series.losses]
    trained = [row for row in series.losses if row.train_loss is not None]
    if trained:
        figure.add_scatter(
            x=[row.step for row in trained],
            y=[row.train_loss for row in trained],
            name="training",
            line={"color": _GREY, "width": 1.5},
            **above,
        )
    figure.add_scatter(
        x=steps,
        y=[row.validation_loss for row in series.losses],
        name="validation",
        line={"color": "#f58518"},
        **above,
    )
    for i, symbol in enumerate(symbols(series.recipe)):
        losses = [row.partial_losses[i] for row in series.losses]
        figure.add_scatter(x=steps, y=losses, name=f"partial, {symbol}", line=_style(i), **below)
    top = 1.05 * max(max(row.partial_losses) for row in series.losses)
    for place, row in enumerate(path_emergence(series)):
        if row.above is None:
            continue
        color = _style(place)["color"]
        figure.add_scatter(
            x=[row.above.step],
            y=[top],
            mode="markers",
            marker={"size": 9, "symbol": "triangle-down", "color": color},
            name=f"{row.name} {row.above}",
            hovertemplate=f"{row.name}: attention above {THRESHOLD:g} at step {row.above}"
            "<extra></extra>",
            **below,
        )
        figure.add_vline(x=row.above.step, line={"color": color, "width": 0.7, "dash": "dot"})
    figure.add_hline(y=THRESHOLD * series.recipe.task.loss_scale, line=_DOTTED, **below)
    figure.update_xaxes(title=_step_title(series), **below)
    figure.update_yaxes(title=series.recipe.task.loss_name, rangemode="tozero")
    return _styled(figure, 620)


def crossing_figure(series: Series) -> str:
    """The circuit as SVG, each path coloured by when its attention goes above 0.5 (figure 7).

    Grey paths never do. The wider an arrow, the higher the loss when it is cut in the intact model
    at the last step.
    """
    rows = path_emergence(series)
    crossed = {row.path: row.above.step for row in rows if row.above is not None}
    first, last = min(crossed.values(), default=0.0), max(crossed.values(), default=1.0)
    colors = dict.fromkeys(series.paths, _GREY)
    for path, step in crossed.items():
        share = (step - first) / max(1.0, last - first)
        (colors[path],) = sample_colorscale(_EARLY_TO_LATE, [share])
    final = series.snapshots[-1].paths
    return draw_circuit(
        series.circuit,
        series.recipe.model.layers,
        losses={path: final[path].live_loss for path in series.paths},
        intact=series.snapshots[-1].baseline_loss,
        uninformed=series.plateau,
        when="cut in the model",
        colors=colors,
        notes={row.path: step_text(row.above) for row in rows},
        task=series.recipe.task,
    )


def necessity_figure(series: Series) -> go.Figure:
    """Attention beside necessity, one panel per path: which comes first?

    Necessity is the share of what is learned by a step that is lost without the path
    (`Series.necessity`), in the intact model and in the frozen circuit.
    """
    rows = path_emergence(series)
    n_rows, n_columns = (len(rows) + 1) // 2, min(2, len(rows))
    figure = make_subplots(
        rows=n_rows,
        cols=n_columns,
        shared_xaxes=True,
        shared_yaxes=True,
        subplot_titles=[row.name for row in rows],
        horizontal_spacing=0.05,
        vertical_spacing=min(0.08, 0.25 / n_rows),
    )
    for place, row in enumerate(rows):
        curves = {
            "attention": (series.attention(row.path), "#4c78a8", "solid"),
            "necessity, cut live": (series.necessity(row.path), "#e45756", "solid"),
            "necessity, frozen": (series.frozen_necessity(row.path), _GREY, "dot"),
        }
        for name, (values, color, dash) in curves.items():
            if values is None:
                continue
            figure.add_scatter(
                x=series.steps,
                y=values,
                name=name,
                legendgroup=name,
                showlegend=place == 0,
                line={"color": color, "dash": dash, "width": 2},
                hovertemplate=f"{name} %{{y:.3f}} at step %{{x}}<extra></extra>",
                row=place // 2 + 1,
                col=place % 2 + 1,
            )
    figure.update_yaxes(range=[-0.08, 1.08])
    figure.update_annotations(font={"size": 12})
    figure.update_xaxes(title=_step_title(series), row=n_rows)
    figure = _styled(figure, 130 + 150 * n_rows)
    top = {"yref": "container", "y": 1, "yanchor": "top", "xref": "paper", "x": 0}
    return figure.update_layout(margin={"t": 60}, legend=top)


def _style(place: int) -> dict[str, str]:
    """The colour and dashes of a curve."""
    dash = _DASHES[place // len(_COLORS) % len(_DASHES)]
    return {"color": _COLORS[place % len(_COLORS)], "dash": dash}


def _step_title(series: Series) -> str:
    epochs = " (8 make one of the paper's epochs)" if paper_epochs(series.recipe) else ""
    return f"training step{epochs}"


def _styled(figure: go.Figure, height: int) -> go.Figure:
    return figure.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 50, "r": 15, "t": 20, "b": 40},
        legend={"orientation": "h", "yanchor": "top", "y": -0.16, "font": {"size": 11}},
    )
