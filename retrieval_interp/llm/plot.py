"""Figure 2 from our own numbers: accuracy by D and by formulation, one colour per model.

Left, the equations by D; right, every formulation, those with steps at each D asked but the
equations at the paper's D = 5 only. A side without numbers is left out. Error bars are standard
errors.
"""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from retrieval_interp.llm.results import Result

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_EQUATIONS, _PAPER_STEPS = "equations", 5


def accuracy_figure(results: Sequence[Result]) -> "Figure":
    """Accuracy with standard error by model; dashed lines are random guessing (figure 2).

    Args:
        results: at least one, in the order in which formulations are shown.

    Returns:
        A Plotly figure; Plotly's default template is left alone.
    """
    from plotly.colors import qualitative
    from plotly.subplots import make_subplots

    by_steps = [row for row in results if row.formulation == _EQUATIONS]
    by_formulation = [
        row for row in results if row.formulation != _EQUATIONS or row.steps == _PAPER_STEPS
    ]
    sides = [side for side in (by_steps, by_formulation) if side]
    titles = ["equations by D" if side is by_steps else "by formulation" for side in sides]
    figure = make_subplots(cols=len(sides), shared_yaxes=True, subplot_titles=titles)
    models = sorted({row.model for row in results})
    for col, side in enumerate(sides, start=1):
        if side is by_steps:
            places = {_label(row): row.steps or 0 for row in side}
            ticks = sorted(places.values())
            spans = {(ticks[0], ticks[-1], row.chance) for row in side}
            figure.update_xaxes(title="D, equations per chain", tickvals=ticks, col=col)
        else:
            labels = list(dict.fromkeys(_label(row) for row in side))
            places = {label: place for place, label in enumerate(labels)}
            spans = {(places[_label(row)], places[_label(row)], row.chance) for row in side}
            figure.update_xaxes(
                title="formulation", tickvals=list(places.values()), ticktext=labels, col=col
            )
        for number, model in enumerate(models):
            colour = qualitative.D3[number % len(qualitative.D3)]
            own = [row for row in side if row.model == model]
            if own:
                _add_model(figure, own, places, colour, side is by_steps, col)
        _add_chance(figure, sorted(spans), col)
    figure.update_yaxes(title="accuracy", range=[0, 1.05], col=1)
    figure.update_layout(template="plotly_white", barmode="group", hovermode="closest")
    return figure


def _label(row: Result) -> str:
    return row.formulation if row.steps is None else f"{row.formulation}, D = {row.steps}"


def _add_model(
    figure: "Figure",
    own: Sequence[Result],
    places: dict[str, int],
    colour: str,
    line: bool,
    col: int,
) -> None:
    name = escape(own[0].model, quote=False)  # Plotly reads tags as markup
    values = {
        "x": [places[_label(row)] for row in own],
        "y": [row.accuracy for row in own],
        "error_y": {"type": "data", "array": [row.stderr for row in own]},
        "name": name,
        "legendgroup": name,
        "showlegend": name not in {trace.legendgroup for trace in figure.data},
        "customdata": [[_label(row), row.stderr, row.questions] for row in own],
        "hovertemplate": "%{customdata[0]}: %{y:.3f} +- %{customdata[1]:.3f}, "
        "%{customdata[2]} questions",
        "row": 1,
        "col": col,
    }
    if line:
        figure.add_scatter(**values, mode="lines+markers", line={"color": colour})
    else:
        figure.add_bar(**values, marker={"color": colour})


def _add_chance(figure: "Figure", spans: Sequence[tuple[int, int, float]], col: int) -> None:
    """A dashed line for each (first place, last place, chance)."""
    figure.add_scatter(
        x=[x for first, last, _ in spans for x in (first - 0.5, last + 0.5, None)],
        y=[y for _, _, chance in spans for y in (chance, chance, None)],
        mode="lines",
        line={"dash": "dash", "color": "#333333"},
        name="random guessing",
        legendgroup=" chance",
        showlegend=col == 1,
        hovertemplate="random guessing: %{y:.4f}<extra></extra>",
        row=1,
        col=col,
    )
