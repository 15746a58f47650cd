"""What the explorer's page is given, live or frozen in a report."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from retrieval_interp.circuits import Circuit, CircuitScore, Head, HeadPath
from retrieval_interp.circuits.hooks.points import is_causal
from retrieval_interp.circuits.scores.score import PathScore
from retrieval_interp.tasks import Task
from retrieval_interp.views.score_text import describe, path_rows


def model_info(name: str, model: Any, task: Task, order: Sequence[int]) -> dict[str, Any]:
    """What never changes: the model and its task, and the names and order of the roles."""
    return {
        "name": name,
        "description": describe(model, task),
        "causal": is_causal(model),
        "layers": model.cfg.n_layers,
        "heads": model.cfg.n_heads,
        "roles": list(task.role_names),
        "labels": list(task.role_labels),
        "symbols": list(task.role_symbols),
        "order": list(order),
        "loss_name": task.loss_name,
        "loss_meaning": task.loss_meaning,
        "frozen": False,
    }


def heads_data(circuit: Circuit, heads: Iterable[Head]) -> dict[str, dict[str, Any]]:
    """The mechanism of every head, and its paths where it has any to show."""
    return {
        str(head): {
            "kind": circuit[head].kind,
            "paths": [list(path) for path in circuit[head].paths if circuit[head].follows_paths],
        }
        for head in heads
    }


def path_data(path: HeadPath, task: Task, attention: float) -> dict[str, Any]:
    """A path by name and in words, and its mean attention in the intact model."""
    return {
        "name": path.text(task.role_names),
        "ends": list(path.path),
        "label": task.path_label(*path.path),
        "attention": round(attention, 4),
    }


def path_rows_data(score: CircuitScore, task: Task) -> list[dict[str, Any]]:
    """The paths of a score, in the order of its table, with all that was measured."""
    does = {name: text for name, *_, text in path_rows(score, task)}
    rows = []
    needed, redundant = (score.enabling, score.redundant) if score.reachable else ((), ())
    for row in (*score.paths, *needed):
        carrying = isinstance(row, PathScore)
        rows.append(
            {
                **path_data(row.path, task, row.attention),
                "present": carrying,
                **({"ablated": finite(row.ablated_loss)} if isinstance(row, PathScore) else {}),
                "live": finite(row.live_loss),
                "does": does[row.path.text(score.circuit.role_names)],
                "note": "",
            }
        )
    known = {row["name"] for row in rows}
    for together in redundant:
        said = f"any one of {len(together.paths)}: {finite(together.live_loss):.4g} without all"
        for path in together.paths:
            name = path.text(task.role_names)
            if name not in known and score.attention is not None:
                attention = float(score.attention[path.head][path.path])
                rows.append(path_data(path, task, attention) | {"does": said, "note": ""})
    return rows


def finite(loss: float) -> float | None:
    """JSON has no infinity."""
    return loss if math.isfinite(loss) else None
