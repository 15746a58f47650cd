"""Every head and path, one at a time: a heat map of heads, and the paths that cost most."""

from typing import TYPE_CHECKING

from retrieval_interp.circuits.circuit import Head
from retrieval_interp.circuits.scores.ablations import Ablations
from retrieval_interp.tasks import Task
from retrieval_interp.views.page import View, render, unescaped
from retrieval_interp.views.tables import text_table

if TYPE_CHECKING:
    import plotly.graph_objects as go

_ROWS = 30
_HEADS = 5  # that are printed


def ablations_figure(ablations: Ablations, task: Task) -> "go.Figure":
    """Heads by layer, coloured by what the loss rises by without their attention's content."""
    import plotly.graph_objects as go

    cost, names = ablations.head_costs, dict[Head, list[str]]()
    n_layers, n_heads = 1 + max(cost).layer, 1 + max(head.head for head in cost)
    for (head, mechanism), loss in ablations.heads.items():
        names.setdefault(head, []).append(f"{mechanism.kind} {loss:.4f}")
    rows = [[Head(layer, head) for head in range(n_heads)] for layer in range(n_layers)]
    heat = go.Heatmap(
        z=[[cost[head] for head in row] for row in rows],
        x=[f"H{head}" for head in range(n_heads)],
        y=[f"L{layer}" for layer in range(n_layers)],
        customdata=[[f"{head}: {', '.join(names[head])}" for head in row] for row in rows],
        hovertemplate=f"%{{customdata}}<br>{task.loss_name} %{{z:+.4f}}<extra></extra>",
        texttemplate="%{z:+.2~g}" if n_heads <= 12 else None,
        colorscale="RdBu",
        reversescale=True,
        zmid=0,
        colorbar={"title": f"{task.loss_name}<br>rises by"},
    )
    return go.Figure(heat).update_layout(
        template="plotly_white",
        height=120 + 26 * max(4, n_layers),
        width=170 + 44 * max(6, n_heads),
        margin={"l": 50, "r": 15, "t": 20, "b": 40},
    )


def ablations_view(ablations: Ablations, task: Task) -> View:
    """What `ri.ablations` returned as a page or in a notebook."""
    rows = [
        [
            row.path.text(ablations.role_names),
            task.path_label(*row.path.path),
            f"{row.attention:.2f}",
            f"{row.live_loss:.4f}",
            f"{row.live_loss - ablations.baseline_loss:+.4f}",
        ]
        for row in ablations.by_cost[:_ROWS]
    ]
    figure = ablations_figure(ablations, task).to_html(
        full_html=False, include_plotlyjs=True, config={"displayModeBar": False}
    )
    header = ["path", "meaning", "attention", f"{task.loss_name}, cut live", "rises by"]
    html = render(
        "ablations.html",
        figure=unescaped(figure),
        loss=task.loss_name,
        baseline=f"{ablations.baseline_loss:.4f}",
        header=header,
        rows=rows,
        count=len(ablations.paths),
    )
    costs = sorted(ablations.head_costs.items(), key=lambda pair: -pair[1])[:_HEADS]
    heads = ", ".join(f"{head} {cost:+.4f}" for head, cost in costs)
    said = [f"intact loss {ablations.baseline_loss:.4f}", f"heads replaced: {heads}", ""]
    text = "\n".join([*said, *text_table(header, rows)])
    return View("Every head and path, one at a time", html, text, ablations)
