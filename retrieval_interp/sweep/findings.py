"""What a grid shows: figure 4 and section 7.2 as tables and as JSON.

1. Figure 4, left: the final validation loss by depth, with mean and range over the seeds, and the
   share of runs that end above 0.7, which in the paper is every run without curriculum (C3).
2. Figure 4, right: the partial losses by depth and place in the chain (C4).
3. Section 7.2: in how many runs the partial losses fell below 0.5 in the order x_1, x_2, ... (C5).
"""

import statistics
from collections.abc import Sequence
from typing import Any

from retrieval_interp.sweep.grid import Cell, Grid
from retrieval_interp.views.tables import text_table, wrapped

UNLEARNED = 0.7
PAPER = {
    "section7-ic": {"order_held": 1.0, "where": "section 7.2, figure 4"},
    "section7-nonic": {"share_above_0.7": 1.0, "where": "section 7.2, figure 4 left"},
}


def summarize(
    grid: Grid, results: dict[Cell, dict[str, Any]], failed: dict[Cell, str], command: str
) -> dict[str, Any]:
    """The numbers of a grid as JSON data.

    Args:
        grid: all cells.
        results: of the finished cells.
        failed: why cells failed.
        command: what made the results.

    Returns:
        Counts, one row per depth, the order of the partial losses, the paper's numbers, and how
        ours were made: command, settings, devices, versions, dates, and total seconds of training.
    """
    rows = list(results.values())
    return {
        "command": command,
        **grid.to_dict(),
        "asked": list(grid.asked),
        "cells": len(grid.cells),
        "finished": len(results),
        "failed": {cell.name: reason for cell, reason in failed.items()},
        "share_above_0.7": _share_above([row["validation_loss"] for row in rows]),
        "depths": [
            _depth(layers, [row for cell, row in results.items() if cell.layers == layers])
            for layers in sorted({cell.layers for cell in results})
        ],
        "order": _order(rows) if len(grid.asked) > 1 else None,
        "paper": PAPER.get(grid.grid),
        "seconds": sum(row["seconds"] for row in rows),
        "devices": sorted({row["device"] for row in rows}),
        "versions": {
            name: sorted({row["versions"][name] for row in rows if name in row["versions"]})
            for name in dict.fromkeys(name for row in rows for name in row["versions"])
        },
        "first_date": min((row["date"] for row in rows), default=None),
        "date": max((row["date"] for row in rows), default=None),
    }


def _order(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """In how many runs the order held; losses that fell at the same step are in no order."""
    undecided = [row for row in rows if row["order_held"] is None]
    tied = [row for row in undecided if sum(at is not None for at in row["below_half"]) > 1]
    return {
        "held": sum(row["order_held"] is True for row in rows),
        "broken": sorted(row["cell"] for row in rows if row["order_held"] is False),
        "fewer_than_two_fell": len(undecided) - len(tied),
        **({"tied": sorted(row["cell"] for row in tied)} if tied else {}),
    }


def _share_above(losses: Sequence[float]) -> float | None:
    return sum(loss > UNLEARNED for loss in losses) / len(losses) if losses else None


def _depth(layers: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    losses = [row["validation_loss"] for row in rows]
    return {
        "layers": layers,
        "runs": len(rows),
        "mean": statistics.fmean(losses),
        "min": min(losses),
        "max": max(losses),
        "share_above_0.7": _share_above(losses),
        "partial_losses": [
            statistics.fmean(column) for column in zip(*(row["partial_losses"] for row in rows))
        ],
        "seconds_per_step": statistics.median(row["seconds_per_step"] for row in rows),
    }


def summary_text(summary: dict[str, Any], width: int | None = None) -> str:
    """The summary as two tables and the conclusions of section 7.2.

    Args:
        summary: what `summarize` returned.
        width: characters per line; by default lines are as long as they need to be.
    """
    done, cells, failed = summary["finished"], summary["cells"], summary["failed"]
    title = f"{summary['grid']} at scale {summary['scale']}: {done} of {cells} cells finished"
    lines = wrapped(title + (f", {len(failed)} failed" if failed else ""), width)
    if done:
        lines += ["", "final validation MSE (mean of the last 100 steps; figure 4, left)", ""]
        lines += text_table(
            ["layers", "runs", "mean", "min", "max", "above 0.7"],
            [
                [
                    str(row["layers"]),
                    str(row["runs"]),
                    *(f"{row[key]:.4f}" for key in ("mean", "min", "max")),
                    f"{row['share_above_0.7']:.0%}",
                ]
                for row in summary["depths"]
            ],
            right=range(6),
            width=width,
        )
        if len(summary["asked"]) > 1:
            lines += ["", "its parts by place in the chain, mean of the runs (figure 4, right)", ""]
            lines += text_table(
                ["layers", *summary["asked"]],
                [
                    [str(row["layers"]), *(f"{loss:.4f}" for loss in row["partial_losses"])]
                    for row in summary["depths"]
                ],
                right=range(len(summary["asked"]) + 1),
                width=width,
            )
        lines += ["", *wrapped("\n".join(_sentences(summary)), width)]
    for name, reason in failed.items():
        lines += wrapped(f"failed: {name}: {reason}", width)
    return "\n".join(lines)


def _sentences(summary: dict[str, Any]) -> list[str]:
    done, order = summary["finished"], summary["order"]
    paper = summary["paper"] or {}
    above = f"{round(summary['share_above_0.7'] * done)} of {done} runs end above 0.7"
    if "share_above_0.7" in paper:
        above += f" (paper: {paper['share_above_0.7']:.0%})"
    if order is None:
        return [f"{above}."]
    judged = order["held"] + len(order["broken"])
    held = f"Below 0.5 in the order x_1, x_2, ...: {order['held']} of {judged} runs"
    if "order_held" in paper:
        held += f" (paper: {paper['order_held']:.0%})"
    if order["fewer_than_two_fell"]:
        held += f"; in {order['fewer_than_two_fell']} more, fewer than two fell below"
    if order.get("tied"):
        held += f"; in {len(order['tied'])} more, two fell below at the same step"
    broken = [f"Another order: {', '.join(order['broken'])}."] if order["broken"] else []
    return [f"{above}.", f"{held}.", *broken]
