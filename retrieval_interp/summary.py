"""What a score says: as a table, in a sentence, and as JSON."""

from typing import Any

from circuits import CircuitScore, HeadPath
from circuits.discovery import is_unlearned
from circuits.evaluation import LivePathScore, PathScore, control_summary
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
        "baseline_se": score.baseline_se,
        "heads": [
            {
                **row.head._asdict(),
                "mechanism": row.mechanism.kind,
                "paths": [[role_name(dest), role_name(src)] for dest, src in row.mechanism.paths],
                "mse": row.mse,
                "se": row.se,
            }
            for row in score.heads
        ],
        "combined_mse": score.combined_mse,
        "combined_se": score.combined_se,
        "paths": [
            {
                **_place(row.path),
                "ablated_mse": row.ablated_mse,
                "se": row.se,
                "carries": row.ablated_mse > score.tolerance,
                **_live(row),
            }
            for row in score.paths
        ],
        "enabling": [{**_place(row.path), **_live(row)} for row in score.enabling],
        "control": list(score.control),
        "sufficient": score.sufficient,
        "minimal": score.minimal,
        "rest": score.circuit.rest,
    }


def _place(path: HeadPath) -> dict[str, Any]:
    names = {"dest": role_name(path.path.dest), "src": role_name(path.path.src)}
    return {**path.head._asdict(), **names}


def _live(row: LivePathScore) -> dict[str, Any]:
    return {
        "attention": row.attention,
        "live_mse": row.live_mse,
        "live_se": row.live_se,
        "enables": [
            {
                **_place(later.path),
                "attention": later.attention,
                "when_cut": later.when_cut,
                "by_query": later.by_query,
                "by_key": later.by_key,
            }
            for later in row.enables
        ],
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
    if score.tolerance <= score.baseline_mse:
        note = (
            f" The tolerance is not above the intact model's own MSE of {score.baseline_mse:.4f}; "
            f"try --tolerance {max(0.05, 2 * score.baseline_mse):.2g}."
        )
    else:
        note = ""
    text = (
        f"{'Sufficient' if score.sufficient else 'Not sufficient'}: with "
        f"{len(score.circuit.mechanisms)} of {len(score.heads)} heads replaced, {useful} of them "
        f"by {' and '.join(kinds) or 'no'} paths, the MSE is {score.combined_mse:.4f}, "
        f"{'below' if score.sufficient else 'not below'} {score.tolerance:g} (intact: "
        f"{score.baseline_mse:.4f}; paper: {PAPER_COMBINED})."
    )
    if score.paths:
        costs = [row.ablated_mse for row in score.paths]
        text += (
            f" {'Minimal' if score.minimal else 'Not minimal'}: each of the {len(costs)} paths, "
            f"ablated too, gives {min(costs):.2f} to {max(costs):.2f} (paper: {PAPER_PATHS})"
        )
        text += f"; {', '.join(map(str, score.spared))} can go." if score.spared else "."
    text += note
    if score.control:
        text += f" {control_summary(score)}"
    return text


def path_rows(score: CircuitScore) -> list[list[str]]:
    """A row a path: name, letters, frozen and live MSE, and what it does."""
    return [
        [
            str(row.path),
            path_letters(*row.path.path),
            f"{row.ablated_mse:.4f}" if isinstance(row, PathScore) else "",
            f"{row.live_mse:.4f}",
            _does(row),
        ]
        for row in (*score.paths, *score.enabling)
    ]


PATH_HEADER = ["path", "in letters", "MSE, ablated too", "MSE, cut live", "what it does"]


def _does(row: LivePathScore) -> str:
    later = ", ".join(
        f"{enabled.path} ({enabled.side} {enabled.attention:.2f} to {enabled.when_cut:.2f})"
        for enabled in row.enables
    )
    does = ["carries"] if isinstance(row, PathScore) else []
    return "; ".join(does + ([f"enables {later}"] if later else []))


def score_table(score: CircuitScore) -> str:
    """Every number of a score as text."""
    lines = [
        f"baseline MSE (nothing replaced)  {score.baseline_mse:.4f} +- {score.baseline_se:.4f}",
        "",
    ]
    lines += _columns(
        ["head", "mechanism", "MSE, only this head replaced"],
        [[str(row.head), str(row.mechanism), f"{row.mse:.4f}"] for row in score.heads],
    )
    lines += [
        "",
        f"combined MSE (all of them replaced)  {score.combined_mse:.4f} +- {score.combined_se:.4f}",
        "",
    ]
    if score.paths:
        lines += _columns(PATH_HEADER, path_rows(score))
        lines.append("")
    return "\n".join(lines)


def _columns(header: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    table = [header, ["-" * width for width in widths], *rows]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in table
    ]
