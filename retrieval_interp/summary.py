"""What a score says: as a table, in a sentence, and as JSON."""

from typing import Any

from circuits import CircuitScore, HeadPath
from circuits.discovery import is_unlearned
from circuits.evaluation import LivePathScore, PathScore, control_summary
from retrieval_interp.checkpoint import Checkpoint
from retrieval_interp.model import ModelConfig
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
                "carries": score.sufficient and row.ablated_mse > score.tolerance,
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
    """The task and the model of a checkpoint in one line."""
    return describe_model(checkpoint.task, checkpoint.config)


def describe_model(task: RetrievalTask, config: ModelConfig) -> str:
    """A task and a model's sizes in one line."""
    return (
        f"retrieval with {_count(task.chains, 'chain')} of {_count(task.steps, 'step')} in "
        f"{task.dim} dimensions, "
        f"{'with' if task.curriculum else 'without'} implicit curriculum; "
        f"{_count(config.layers, 'layer')} of {_count(config.heads, 'head')}, "
        f"d_model {config.d_model}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def scale(task: RetrievalTask) -> str:
    """What the numbers of a task mean."""
    zeros = task.symbol_variance
    return (
        f"MSE is the mean over all asked components: 0 is perfect, {task.plateau:.2g} the plateau "
        f"before anything is learned, {zeros:.2g} answering zeros; +- is the standard error over "
        "examples"
    )


def verdict(score: CircuitScore, task: RetrievalTask) -> str:
    """What the numbers say, in a few sentences."""
    if is_unlearned(score.baseline_mse, task):
        return (
            f"No circuit to find: the model has not learned the task. Its MSE of "
            f"{score.baseline_mse:.4f} is not clearly below the plateau of {task.plateau:.2g}."
        )
    if not score.circuit.mechanisms:
        return (
            "No circuit: no replacement of its heads was found or given (baseline MSE "
            f"{score.baseline_mse:.4f})."
        )
    kinds = sorted({row.mechanism.kind for row in score.heads if row.mechanism.paths})
    useful = sum(bool(row.mechanism.paths) for row in score.heads)
    by_paths = f", {useful} of them by {' and '.join(kinds)} paths" if useful else ""
    word = "Sufficient" if score.sufficient else "Not sufficient"
    text = (
        f"{word}: with {len(score.circuit.mechanisms)} of {len(score.heads)} heads replaced"
        f"{by_paths}, the MSE is {score.combined_mse:.4f}, "
        f"{'below' if score.sufficient else 'not below'} {score.tolerance:g} (intact: "
        f"{score.baseline_mse:.4f}; paper: {PAPER_COMBINED})."
    )
    if score.paths and score.sufficient:
        text += f" {_minimality(score)}"
    if score.tolerance <= score.baseline_mse:
        text += (
            f" The tolerance is not above the intact model's own MSE of {score.baseline_mse:.4f}; "
            f"try --tolerance {max(0.05, 2 * score.baseline_mse):.2g}."
        )
    if score.control:
        text += f" {control_summary(score)}"
    return text


def _minimality(score: CircuitScore) -> str:
    costs = [row.ablated_mse for row in score.paths]
    each = (
        f"each of the {len(costs)} paths, ablated too, gives {min(costs):.2f} to {max(costs):.2f}"
        if len(costs) > 1
        else f"its one path, ablated too, gives {costs[0]:.2f}"
    )
    if score.minimal:
        return f"Minimal, as no path can go without passing that: {each} (paper: {PAPER_PATHS})."
    return f"Not minimal, as {_listed(score.spared)} can go: {each}."


def _listed(paths: tuple[HeadPath, ...]) -> str:
    return f"each of {', '.join(map(str, paths))} alone" if len(paths) > 1 else str(paths[0])


def path_rows(score: CircuitScore) -> list[list[str]]:
    """A row a path: name, letters, frozen and live MSE, and what it does."""
    return [
        [
            str(row.path),
            path_letters(*row.path.path),
            f"{row.ablated_mse:.4f}" if isinstance(row, PathScore) else "",
            f"{row.live_mse:.4f}",
            _does(row, score),
        ]
        for row in (*score.paths, *score.enabling)
    ]


HEAD_NOTE = (
    "A head replaced alone can cost more than all together: later heads that still look for",
    "themselves no longer find what it marked (see what it enables), while replaced ones need not.",
)
PATH_HEADER = ["path", "in letters", "MSE, ablated too", "MSE, cut live", "what it does"]


def _does(row: LivePathScore, score: CircuitScore) -> str:
    later = ", ".join(
        f"{enabled.path} ({enabled.side} {enabled.attention:.2f} to {enabled.when_cut:.2f})"
        for enabled in row.enables
    )
    # In a circuit that does not work, every path left out gives a high loss, whatever it carries.
    carries = isinstance(row, PathScore) and row.path not in score.spared and score.sufficient
    does = ["carries"] if carries else []
    return "; ".join(does + ([f"enables {later}"] if later else []))


def score_table(score: CircuitScore) -> str:
    """Every number of a score as text."""
    lines = [
        f"baseline MSE (nothing replaced)  {score.baseline_mse:.4f} +- {score.baseline_se:.4f}",
        "",
    ]
    lines += columns(
        ["head", "mechanism", "MSE, only this head replaced"],
        [[str(row.head), str(row.mechanism), f"{row.mse:.4f}"] for row in score.heads],
    )
    lines += [
        "",
        *HEAD_NOTE,
        "",
        f"combined MSE (all of them replaced)  {score.combined_mse:.4f} +- {score.combined_se:.4f}",
        "",
    ]
    if score.paths or score.enabling:
        lines += columns(PATH_HEADER, path_rows(score))
        lines.append("")
    return "\n".join(lines)


def columns(header: list[str], rows: list[list[str]]) -> list[str]:
    """The lines of a table for the terminal."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    table = [header, ["-" * width for width in widths], *rows]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in table
    ]
