"""Every head and path, one at a time: a heat map of heads, and the paths that cost most."""

from retrieval_interp.circuits.paths import Head
from retrieval_interp.circuits.scores.ablations import Ablations
from retrieval_interp.tasks import Task
from retrieval_interp.tasks.messages import counted
from retrieval_interp.views.page import View, render
from retrieval_interp.views.tables import text_table

_ROWS = 30
_HEADS = 5  # that are printed
_LEAST = 0.00005  # what less is shown as +0.0000


def ablations_view(ablations: Ablations, task: Task) -> View:
    """Show what `ri.ablations` returned, without paths that cost nothing."""
    intact = ablations.intact_loss
    costly = [row for row in ablations.by_rise if abs(row.live_loss - intact) >= _LEAST]
    rows = [
        [
            str(row.path),
            task.path_label(*row.path.path),
            f"{row.attention:.2f}",
            f"{row.live_loss:.4f}",
            f"{row.live_loss - intact:+.4f}",
        ]
        for row in costly[:_ROWS]
    ]
    losses: dict[Head, list[tuple[float, str]]] = {}
    for (head, mechanism), loss in ablations.heads.items():
        losses.setdefault(head, []).append((loss, mechanism.kind))
    rises = ablations.head_rises
    highest, layers = max(*rises.values(), 1e-9), dict[str, list[tuple[str, float, str]]]()
    for head, rise in sorted(rises.items()):
        by_kind = ", ".join(f"{kind} {loss:.4f}" for loss, kind in losses[head])
        cell = f"{rise:+.3f}", rise / highest, f"{head}: {by_kind}"
        layers.setdefault(f"L{head.layer}", []).append(cell)
    header = ["path", "meaning", "attention", f"{task.loss_name}, cut live", "rises by"]
    html = render(
        "ablations.html",
        heads=[f"H{number}" for number in range(1 + max(rises).head)],
        layers=[*layers.items()][::-1],
        loss=task.loss_name,
        baseline=f"{intact:.4f}",
        header=header,
        rows=rows,
        count=len(ablations.paths),
    )
    costs = sorted(rises.items(), key=lambda pair: -pair[1])[:_HEADS]
    heads = ", ".join(f"{head} {min(losses[head])[1]} {value:+.4f}" for head, value in costs)
    lines = [f"intact loss {intact:.4f}", f"heads replaced by what costs least: {heads}", ""]
    left_out = len(ablations.paths) - len(rows)
    cheaper = [f"... and {counted(left_out, 'path')} that cost less"] if left_out else []
    text = "\n".join([*lines, *text_table(header, rows), *cheaper])
    return View("Every head and path, one at a time", html, text, ablations)
