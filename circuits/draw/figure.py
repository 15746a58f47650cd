"""A circuit as a Plotly figure (paper, figures 5 and 7)."""

import textwrap
from collections.abc import Mapping, Sequence
from html import escape

import plotly.graph_objects as go

from retrieval_interp.circuits.circuit import Circuit, HeadPath
from retrieval_interp.circuits.draw.labels import Enabling, Label
from retrieval_interp.circuits.draw.layout import Arrow, Bundle, Column, lay_out
from retrieval_interp.tasks import Batch, Task

_BESIDE = 0.08  # columns between equal paths of two heads


def circuit_figure(
    circuit: Circuit,
    n_layers: int | None = None,
    order: Sequence[int] | None = None,
    necessity: Mapping[HeadPath, float] | None = None,
    colors: Mapping[HeadPath, str] | None = None,
    notes: Mapping[HeadPath, str] | None = None,
    task: Task | None = None,
    enables: Enabling | None = None,
    batch: Batch | None = None,
) -> go.Figure:
    """Draw a circuit: roles across, layers upwards, an arrow for each path.

    Arrows are dashed where a path only enables, joined by a band where any one of them suffices,
    and wider where a path is needed more: one whose ablation gives the loss `necessity[path]` is
    drawn 1.5 + 4.5 * min(1, necessity[path]) wide.

    Args:
        circuit: what to draw.
        n_layers: layers of the model; by default as many as the circuit needs.
        order: roles from left to right; by default their order in the task's sequence, or without
            a task that of a chain.
        necessity: the loss with each path ablated.
        colors: CSS colour of an arrow; by default one per head of a layer.
        notes: short text beside an arrow.
        task: names the roles, the loss and heads of a common kind; without it
            `circuits.draw.names` names the roles.
        enables: what is known to need each path, to be said beside its head.
        batch: examples that tell the order of the roles and what heads do; by default a few of
            the task's.

    Returns:
        A figure with a template of its own; use `figure.show()` and `figure.write_html(...)`.

    Raises:
        InputError: a head is above the layers, or a path has a role that is not in `order`.

    Examples:
        >>> import retrieval_interp as ri
        >>> task = ri.RetrievalTask(steps=3)
        >>> lines = ["L0.H0 one-hot s4<-s3", "L2.H0 one-hot s0<-s2 s4<-s6", "L4.H0 one-hot s0<-s4"]
        >>> figure = ri.circuit_figure(ri.parse_circuit(lines, task), n_layers=5, task=task)
        >>> len(figure.data)  # one trace per path
        4
    """
    layout, notes = (
        lay_out(circuit, n_layers, order, necessity, colors, task, enables, batch),
        notes or {},
    )
    depth, width = len(layout.labels), len(layout.columns)
    figure = go.Figure()
    for x in range(width):
        figure.add_shape(
            type="line",
            x0=x,
            x1=x,
            y0=0,
            y1=depth,
            line={"color": "rgba(128, 136, 144, 0.35)"},
            layer="below",
        )
    for bundle in layout.bundles:
        _add_bundle(figure, bundle)
    for arrow in layout.arrows:
        _add_arrow(figure, arrow, notes.get(arrow.path))
    figure.update_xaxes(
        title="role, in the order of the sequence",
        tickvals=list(range(width)),
        ticktext=["<br>".join(_column_lines(column)) for column in layout.columns],
        showgrid=False,
        zeroline=False,
    )
    figure.update_yaxes(
        title="layer",
        tickvals=[row + 0.5 for row in range(depth)],
        ticktext=["<br>".join(map(_label, lines)) for lines in layout.labels],
        showgrid=False,
        zeroline=False,
        range=[-0.2, depth + 0.3],
    )
    return figure.update_layout(
        template="plotly_white",
        width=max(420, 180 + 75 * width),
        height=max(320, 130 + 42 * depth),
        margin={"l": 20, "r": 20, "t": 20, "b": 20},
    )


def _add_bundle(figure: go.Figure, bundle: Bundle) -> None:
    """A band behind arrows."""
    row = bundle.arrows[0].row
    beside = [arrow.beside for arrow in bundle.arrows]
    shift = _BESIDE * (min(beside) + max(beside)) / 2
    start, end = bundle.arrows[0].start + shift, bundle.arrows[0].end + shift
    figure.add_shape(
        type="line",
        x0=start,
        x1=end,
        y0=row,
        y1=row + 1,
        line={"color": "rgba(128, 136, 144, 0.25)", "width": 10 + 6 * (max(beside) - min(beside))},
        layer="below",
    )


def _add_arrow(figure: go.Figure, arrow: Arrow, note: str | None) -> None:
    row, (path, *about) = arrow.row, arrow.about
    text = [path, *map(_plain, about)]
    # Equal paths of several heads run side by side.
    start, end = (place + _BESIDE * arrow.beside for place in (arrow.start, arrow.end))
    middle = (start + end) / 2
    if note is not None:
        text.append(_plain(note))
        figure.add_annotation(
            x=middle,
            y=row + 0.5,
            text=_plain(note),
            showarrow=False,
            xanchor="left",
            xshift=6,
            font={"size": 11},
        )
    dash = "dash" if arrow.dashed else "solid"
    figure.add_trace(
        go.Scatter(
            x=[start, middle, end],
            y=[row, row + 0.5, row + 1],
            mode="lines+markers",
            line={"color": arrow.color, "width": arrow.width, "dash": dash},
            marker={
                "symbol": ["circle", "circle", "arrow"],
                "size": [5, 1, 12],
                "angleref": "previous",
                "color": arrow.color,
            },
            hoverinfo="text",
            text="<br>".join(text),
            showlegend=False,
        )
    )


def _column_lines(column: Column) -> list[str]:
    lines = textwrap.wrap(column.symbol, 12, break_on_hyphens=False)
    return [*map(_plain, lines), column.name]


def _label(label: Label) -> str:
    """A line beside a layer, in the colour of the head's arrows."""
    text = _plain(label.text)
    return f'<span style="color: {label.color}">{text}</span>' if label.color else text


def _plain(text: str) -> str:
    """Plotly takes tags in its texts for markup."""
    return escape(text, quote=False)
