"""A circuit as a Plotly figure and as plain text (paper, figures 5 and 7).

Roles across in the order of the sequence, layers upwards, an arrow a path: wider where it is needed
more, dashed where it only enables.
"""

from collections.abc import Mapping, Sequence
from html import escape

import plotly.graph_objects as go

from circuits.circuit import Circuit, HeadPath
from circuits.draw.names import names_for
from tasks import Task, role_name

_COLORS = ("#4c78a8", "#e45756", "#54a24b", "#b279a2", "#f58518", "#72b7b2", "#9d755d", "#bab0ac")


def circuit_figure(
    circuit: Circuit,
    n_layers: int,
    order: Sequence[int],
    necessity: Mapping[HeadPath, float] | None = None,
    colors: Mapping[HeadPath, str] | None = None,
    notes: Mapping[HeadPath, str] | None = None,
    task: Task | None = None,
) -> go.Figure:
    """Draw a circuit.

    Args:
        circuit: what to draw.
        n_layers: layers of the model.
        order: roles from left to right, as `circuits.draw.svg.role_order` gives them.
        necessity: loss when each path is ablated.
        colors: CSS colour of an arrow, by default one a head.
        notes: short text written beside an arrow.
        task: names the roles; without it `circuits.draw.names` does.

    Returns:
        A figure of its own template; `figure.show()` and `figure.write_html(...)` as usual.
    """
    necessity, colors, notes = necessity or {}, colors or {}, notes or {}
    loss_name = task.loss_name if task else "loss"
    place = {role: x for x, role in enumerate(order)}
    # Plotly takes tags in its texts for markup.
    names, symbols = (
        [escape(name, quote=False) for name in part] for part in names_for(circuit, task)[:2]
    )
    figure = go.Figure()
    for x in range(len(order)):
        figure.add_shape(
            type="line",
            x0=x,
            x1=x,
            y0=0,
            y1=n_layers,
            line={"color": "rgba(128, 136, 144, 0.35)"},
            layer="below",
        )
    enabling = set(circuit.enabling)
    for path in (*circuit.paths(), *circuit.enabling):
        loss = necessity.get(path)
        layer = path.head.layer
        color = colors.get(path, _COLORS[path.head.head % len(_COLORS)])
        start, end = place[path.path.src], place[path.path.dest]
        width = 1.5 if loss is None else 1.5 + 4.5 * min(1.0, loss)
        text = f"{path}<br>{names[path.path.dest]} from {names[path.path.src]}"
        text += "" if loss is None else f"<br>{loss_name} {loss:.3f} when ablated"
        text += "<br>only enables" if path in enabling else ""
        if path in notes:
            text += f"<br>{notes[path]}"
            figure.add_annotation(
                x=(start + end) / 2,
                y=layer + 0.5,
                text=notes[path],
                showarrow=False,
                xanchor="left",
                xshift=6,
                font={"size": 11},
            )
        figure.add_trace(
            go.Scatter(
                x=[start, (start + end) / 2, end],
                y=[layer, layer + 0.5, layer + 1],
                mode="lines+markers",
                line={
                    "color": color,
                    "width": width,
                    "dash": "dash" if path in enabling else "solid",
                },
                marker={
                    "symbol": ["circle", "circle", "arrow"],
                    "size": [5, 1, 12],
                    "angleref": "previous",
                    "color": color,
                },
                hoverinfo="text",
                text=text,
                showlegend=False,
            )
        )
    labels = [
        f"L{layer} " + ", ".join(
            f"H{head.head} {mechanism.kind}"
            for head, mechanism in circuit.mechanisms.items()
            if head.layer == layer
        )
        for layer in range(n_layers)
    ]  # fmt: skip
    figure.update_xaxes(
        title="role, in the order of the sequence",
        tickvals=list(range(len(order))),
        ticktext=[f"{symbols[role]}<br>{role_name(role)}" for role in order],
        showgrid=False,
        zeroline=False,
    )
    figure.update_yaxes(
        title="layer",
        tickvals=[layer + 0.5 for layer in range(n_layers)],
        ticktext=labels,
        showgrid=False,
        zeroline=False,
        range=[-0.2, n_layers + 0.3],
    )
    figure.update_layout(
        template="plotly_white",
        width=max(420, 180 + 75 * len(order)),
        height=max(320, 130 + 42 * n_layers),
        margin={"l": 20, "r": 20, "t": 20, "b": 20},
    )
    return figure
