"""What the explorer's page is given, live or as a static part of a report."""

from collections.abc import Iterable, Sequence
from typing import Any

from retrieval_interp.circuits import Circuit, CircuitScore, Head, HeadPath
from retrieval_interp.circuits.hooks.points import is_causal
from retrieval_interp.tasks import Task
from retrieval_interp.views.score_text import Row, describe, finite, shown_paths


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
    }


def heads_data(circuit: Circuit, heads: Iterable[Head]) -> dict[str, dict[str, Any]]:
    """The mechanism of every head, and its paths where it attends along them."""
    return {
        str(head): {
            "kind": circuit[head].kind,
            "paths": [list(path) for path in circuit[head].paths if circuit[head].follows_paths],
        }
        for head in heads
    }


def path_row(path: HeadPath, task: Task, attention: float) -> Row:
    """A path by name and in words, and its mean attention in the intact model."""
    return {
        "name": path.text(task.role_names),
        "meaning": task.path_label(*path.path),
        "attention": attention,
    }


def scored_rows(score: CircuitScore, task: Task) -> list[Row]:
    """The rows of a score's table, with a row for each path of a redundant set."""
    rows = [row for row in shown_paths(score, task) if "attention" in row]
    known = {row["name"] for row in rows}
    for together in score.redundant if score.reachable else ():
        does = f"any one of {len(together.paths)}: {together.live_loss:.4g} without all"
        for path in together.paths:
            if path.text(task.role_names) not in known and score.attention is not None:
                attention = float(score.attention[path.head][path.path])
                rows.append(path_row(path, task, attention) | {"does": does})
    data: list[Row] = finite(rows)
    return data
