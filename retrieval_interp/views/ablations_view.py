"""Every head and path, one at a time: a heat map of heads, and the paths that cost most."""

from retrieval_interp.circuits.circuit import Head
from retrieval_interp.circuits.scores.ablations import Ablations
from retrieval_interp.tasks import Task
from retrieval_interp.views.page import View, render
from retrieval_interp.views.tables import text_table

_ROWS = 30
_HEADS = 5  # that are printed


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
    cost, losses = ablations.head_costs, dict[Head, list[str]]()
    for (head, mechanism), loss in ablations.heads.items():
        losses.setdefault(head, []).append(f"{mechanism.kind} {loss:.4f}")
    cells = [{"cost": cost[h], "title": f"{h}: {', '.join(losses[h])}"} for h in sorted(cost)]
    header = ["path", "meaning", "attention", f"{task.loss_name}, cut live", "rises by"]
    html = render(
        "ablations.html",
        cells=cells,
        across=1 + max(cost).head,
        most=max(max(cost.values()), 1e-9),
        loss=task.loss_name,
        baseline=f"{ablations.baseline_loss:.4f}",
        header=header,
        rows=rows,
        count=len(ablations.paths),
    )
    costs = sorted(cost.items(), key=lambda pair: -pair[1])[:_HEADS]
    heads = ", ".join(f"{head} {value:+.4f}" for head, value in costs)
    said = [f"intact loss {ablations.baseline_loss:.4f}", f"heads replaced: {heads}", ""]
    text = "\n".join([*said, *text_table(header, rows)])
    return View("Every head and path, one at a time", html, text, ablations)
