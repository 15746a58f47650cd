"""Summarize a grid's results as a table and as JSON: figure 4 and section 7.2."""

from statistics import fmean, median
from typing import Any

from retrieval_interp.storage.files import provenance
from retrieval_interp.sweep.grid import Grid
from retrieval_interp.tasks.structured import to_data
from retrieval_interp.views.tables import text_table, wrapped

UNLEARNED = 0.7  # validation MSE above which a run has learned nothing
Result = dict[str, Any]


def summarize(
    grid: Grid, results: dict[str, Result], failed: dict[str, str], command: str
) -> dict[str, Any]:
    """Return the numbers of a grid as JSON data; `failed` says why cells failed, by name."""
    rows, asked = list(results.values()), grid.recipe.task.asked
    layers = {name: recipe.model.layers for name, recipe in grid.cells.items()}
    losses = [row["validation_loss"] for row in rows]
    order = {  # whether the partial losses fell in the order x_1, x_2, ..., in how many runs
        "held": sum(row["order_held"] is True for row in rows),
        "broken": sorted(row["cell"] for row in rows if row["order_held"] is False),
        "fewer_than_two_fell": sum(row["order_held"] is None for row in rows),
    }
    return {
        **provenance(command),
        **to_data(grid),
        "asked": list(asked),
        "cells": len(grid.cells),
        "finished": len(results),
        "failed": failed,
        "share_above_0.7": fmean(loss > UNLEARNED for loss in losses) if losses else None,
        "depths": [
            _depth(depth, [row for name, row in results.items() if layers[name] == depth])
            for depth in sorted({layers[name] for name in results})
        ],
        "order": order if len(asked) > 1 else None,
        "seconds": sum(row["seconds"] for row in rows),
        "devices": sorted({row["device"] for row in rows}),
        "runs": rows,
    }


def _depth(layers: int, rows: list[Result]) -> dict[str, Any]:
    losses = [row["validation_loss"] for row in rows]
    return {
        "layers": layers,
        "runs": len(rows),
        "mean": fmean(losses),
        "min": min(losses),
        "max": max(losses),
        "share_above_0.7": fmean(loss > UNLEARNED for loss in losses),
        "partial_losses": [fmean(column) for column in zip(*(r["partial_losses"] for r in rows))],
        "seconds_per_step": median(row["seconds"] / row["step"] for row in rows),
    }


def summary_text(summary: dict[str, Any], width: int | None = None) -> str:
    """Return the summary as a table and two findings, in lines of at most `width` characters."""
    done, cells, failed = summary["finished"], summary["cells"], summary["failed"]
    title = f"{summary['grid']} at scale {summary['scale']}: {done} of {cells} cells finished"
    lines = wrapped(title + (f", {len(failed)} failed" if failed else ""), width)
    if done:
        title = "final validation MSE (mean of the last 100 steps) and its parts by place"
        header = ["layers", "runs", "mean", "min", "max", "above 0.7"]
        asked = summary["asked"] if len(summary["asked"]) > 1 else []
        rows = [
            [f"{row['layers']}", f"{row['runs']}"]
            + [f"{row[key]:.4f}" for key in ("mean", "min", "max")]
            + [f"{row['share_above_0.7']:.0%}"]
            + [f"{loss:.4f}" for _, loss in zip(asked, row["partial_losses"])]
            for row in summary["depths"]
        ]
        lines += ["", *wrapped(f"{title} (figure 4)", width), ""]
        lines += text_table([*header, *asked], rows, range(len(header) + len(asked)), width)
        lines += ["", above_text(summary)]
    if done and summary["order"]:
        order, fell = summary["order"], "partial losses below 0.5 in the order x_1, x_2, ...: "
        another = f"; another order: {', '.join(order['broken'])}" if order["broken"] else ""
        lines += wrapped(f"{fell}{order_text(order)}{another}", width)
    for name, reason in failed.items():
        lines += wrapped(f"failed: {name}: {reason.strip().splitlines()[-1]:.500}", width)
    return "\n".join(lines)


def above_text(summary: dict[str, Any]) -> str:
    """Say in how many runs nothing was learned."""
    done = summary["finished"]
    return f"{round(summary['share_above_0.7'] * done)} of {done} runs end above {UNLEARNED:g}"


def order_text(order: dict[str, Any]) -> str:
    """Say in how many runs the partial losses fell in order."""
    text = f"{order['held']} of {order['held'] + len(order['broken'])} runs"
    if fewer := order["fewer_than_two_fell"]:
        text += f"; in {fewer} more fewer than two fell below 0.5"
    return text
