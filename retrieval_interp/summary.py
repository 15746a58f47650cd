"""What a score says: as a table, in a sentence, and as JSON."""

from typing import Any

from circuits import CircuitScore
from circuits.discovery import is_unlearned
from retrieval_interp.checkpoint import Checkpoint
from tasks import RetrievalTask, path_letters, role_name

PAPER_COMBINED = "below 0.05"
PAPER_PATHS = "0.17 to 0.89 a path, 0.05 to 0.1 in the first useful layer"


def score_to_dict(score: CircuitScore, checkpoint: Checkpoint, seed: int) -> dict[str, Any]:
    """The numbers as JSON data."""
    return {
        "checkpoint": checkpoint.name,
        "task": checkpoint.task.to_dict(),
        "examples": score.examples,
        "seed": seed,
        "tolerance": score.tolerance,
        "baseline_mse": score.baseline_mse,
        "heads": [
            {
                "layer": row.head.layer,
                "head": row.head.head,
                "mechanism": row.mechanism.kind,
                "paths": [[role_name(dest), role_name(src)] for dest, src in row.mechanism.paths],
                "mse": row.mse,
            }
            for row in score.heads
        ],
        "combined_mse": score.combined_mse,
        "paths": [
            {
                "layer": row.path.head.layer,
                "head": row.path.head.head,
                "dest": role_name(row.path.path.dest),
                "src": role_name(row.path.path.src),
                "ablated_mse": row.ablated_mse,
            }
            for row in score.paths
        ],
        "sufficient": score.sufficient,
        "minimal": score.minimal,
        "rest": score.circuit.rest,
    }


def describe(checkpoint: Checkpoint) -> str:
    """The task and the model in one line."""
    task, config = checkpoint.task, checkpoint.config
    return (
        f"retrieval with {task.chains} chains of {task.steps} steps in {task.dim} dimensions, "
        f"{'with' if task.curriculum else 'without'} implicit curriculum; {config.layers} layers "
        f"of {config.heads} head{'s' if config.heads > 1 else ''}, d_model {config.d_model}"
    )


def verdict(score: CircuitScore, task: RetrievalTask) -> str:
    """What the numbers say, in a sentence or two."""
    kinds = sorted({row.mechanism.kind for row in score.heads if row.mechanism.paths})
    useful = sum(bool(row.mechanism.paths) for row in score.heads)
    if not score.circuit.mechanisms:
        reason = (
            f"the model is near the plateau of {task.plateau:.2f} and has not learned the task"
            if is_unlearned(score.baseline_mse, task)
            else "no replacement of its heads was found or given"
        )
        return f"No circuit: {reason} (baseline MSE {score.baseline_mse:.4f})."
    text = (
        f"{'Sufficient' if score.sufficient else 'Not sufficient'}: with "
        f"{len(score.circuit.mechanisms)} of {len(score.heads)} heads replaced, {useful} of them "
        f"by {' and '.join(kinds) or 'no'} paths, the MSE is {score.combined_mse:.4f}, "
        f"{'below' if score.sufficient else 'not below'} {score.tolerance:g} (intact: "
        f"{score.baseline_mse:.4f}; paper: {PAPER_COMBINED})."
    )
    if score.paths:
        costs = [row.ablated_mse for row in score.paths]
        spared = [str(row.path) for row in score.paths if row.ablated_mse <= score.tolerance]
        text += (
            f" {'Minimal' if score.minimal else 'Not minimal'}: each of the {len(costs)} paths, "
            f"ablated too, gives {min(costs):.2f} to {max(costs):.2f} (paper: {PAPER_PATHS})"
        )
        text += f"; {', '.join(spared)} can go." if spared else "."
    return text


def score_table(score: CircuitScore) -> str:
    """Every number of a score as text."""
    lines = [f"baseline MSE (nothing replaced)  {score.baseline_mse:.4f}", ""]
    lines += _columns(
        ["head", "mechanism", "MSE, only this head replaced"],
        [[str(row.head), str(row.mechanism), f"{row.mse:.4f}"] for row in score.heads],
    )
    lines += ["", f"combined MSE (all of them replaced)  {score.combined_mse:.4f}", ""]
    if score.paths:
        lines += _columns(
            ["path", "in letters", "MSE, ablated too"],
            [
                [str(row.path), path_letters(*row.path.path), f"{row.ablated_mse:.4f}"]
                for row in score.paths
            ],
        )
        lines.append("")
    return "\n".join(lines)


def _columns(header: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    table = [header, ["-" * width for width in widths], *rows]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in table
    ]
