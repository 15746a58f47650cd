"""What a score says: as a table, in a sentence, and as JSON."""

from typing import Any

from circuits import CircuitScore, HeadPath
from circuits.scores.circuit_score import LivePathScore, PathScore, control_summary
from circuits.scores.scorer import is_unlearned
from retrieval_interp.config.model_config import ModelConfig
from tasks import RetrievalTask, Task, VectorTask, path_letters, role_name

PAPER_COMBINED = "below 0.05"
PAPER_PATHS = "0.17 to 0.89 a path, 0.05 to 0.1 in the first useful layer"


def _named(name: str, loss: float) -> dict[str, float]:
    """A loss under its key, and under the one that it had while all were called an MSE."""
    return {f"{name}loss": loss, f"{name}mse": loss}


def score_to_dict(score: CircuitScore, name: str, task: Task, seed: int) -> dict[str, Any]:
    """The numbers as JSON data."""
    return {
        "checkpoint": name,
        "task": task.to_dict(),
        "examples": score.examples,
        "seed": seed,
        "tolerance": score.tolerance,
        "loss_name": score.loss_name,
        **_named("baseline_", score.baseline_loss),
        "baseline_se": score.baseline_se,
        "heads": [
            {
                **row.head._asdict(),
                "mechanism": row.mechanism.kind,
                "paths": [[role_name(dest), role_name(src)] for dest, src in row.mechanism.paths],
                **_named("", row.loss),
                "se": row.se,
            }
            for row in score.heads
        ],
        **_named("combined_", score.combined_loss),
        "combined_se": score.combined_se,
        "paths": [
            {
                **_place(row.path),
                **_named("ablated_", row.ablated_loss),
                "se": row.se,
                "carries": score.sufficient and row.ablated_loss > score.tolerance,
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
        **_named("live_", row.live_loss),
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


def describe(model: Any, task: Task) -> str:
    """The task and a hooked model in one line."""
    return _described(task, model.cfg.n_layers, model.cfg.n_heads, model.cfg.d_model)


def describe_config(config: ModelConfig, task: Task) -> str:
    """The task and a model's sizes in one line."""
    return _described(task, config.layers, config.heads, config.d_model)


def _described(task: Task, layers: int, heads: int, d_model: int) -> str:
    return (
        f"{task.description}; {counted(layers, 'layer')} of {counted(heads, 'head')}, "
        f"d_model {d_model}"
    )


def counted(number: int, noun: str) -> str:
    """`1 head`, `2 heads`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def scale(task: Task) -> str:
    """What the numbers of a task mean."""
    if not isinstance(task, VectorTask):
        plateau = (
            f"{task.plateau:.3g} the plateau before anything is learned"
            if task.plateau is not None
            else "lower is better"
        )
        return f"{task.loss_name} is the task's own, {plateau}; +- is its standard error"
    return (
        f"MSE is the mean over all asked components: 0 is perfect, {task.plateau:.2g} the plateau "
        f"before anything is learned, {task.loss_scale:.2g} answering zeros; +- is the "
        "standard error over examples"
    )


def verdict(score: CircuitScore, task: Task) -> str:
    """What the numbers say, in a few sentences."""
    loss = score.loss_name
    if is_unlearned(score.baseline_loss, task):
        return (
            f"No circuit to find: the model has not learned the task. Its {loss} of "
            f"{score.baseline_loss:.4f} is not clearly below the plateau of {task.plateau:.2g}."
        )
    if not score.circuit.mechanisms:
        return (
            "No circuit: no replacement of its heads was found or given (baseline "
            f"{loss} {score.baseline_loss:.4f})."
        )
    kinds = sorted({row.mechanism.kind for row in score.heads if row.mechanism.paths})
    useful = sum(bool(row.mechanism.paths) for row in score.heads)
    by_paths = f", {useful} of them by {' and '.join(kinds)} paths" if useful else ""
    left = len(score.heads) - len(score.circuit.mechanisms)
    word = "Sufficient" if score.sufficient else "Not sufficient"
    if left and score.sufficient:
        word = (
            f"Holds so far ({counted(left, 'head')} left as {'it is' if left == 1 else 'they are'})"
        )
    papers = isinstance(task, RetrievalTask) and task.tokens == "gaussian"
    text = (
        f"{word}: with {len(score.circuit.mechanisms)} of "
        f"{counted(len(score.heads), 'head')} replaced"
        f"{by_paths}, the {loss} is {score.combined_loss:.4f}, "
        f"{'below' if score.sufficient else 'not below'} {score.tolerance:g} (intact: "
        f"{score.baseline_loss:.4f}{f'; paper: {PAPER_COMBINED}' if papers else ''})."
    )
    if score.paths and score.sufficient:
        text += f" {_minimality(score, papers)}"
    if score.tolerance <= score.baseline_loss:
        text += (
            f" The tolerance is not above the intact model's own {loss} of "
            f"{score.baseline_loss:.4f}; try a tolerance of "
            f"{max(0.05, 2 * score.baseline_loss):.2g}."
        )
    if score.control:
        text += f" {control_summary(score)}"
    return text


def _minimality(score: CircuitScore, papers: bool) -> str:
    costs = [row.ablated_loss for row in score.paths]
    each = (
        f"each of the {len(costs)} paths, ablated too, gives {min(costs):.2f} to {max(costs):.2f}"
        if len(costs) > 1
        else f"its one path, ablated too, gives {costs[0]:.2f}"
    )
    if score.minimal:
        paper = f" (paper: {PAPER_PATHS})" if papers else ""
        return f"Minimal, as no path can go without passing that: {each}{paper}."
    return f"Not minimal, as {_listed(score.spared)} can go: {each}."


def _listed(paths: tuple[HeadPath, ...]) -> str:
    return f"each of {', '.join(map(str, paths))} alone" if len(paths) > 1 else str(paths[0])


def path_rows(score: CircuitScore, task: Task | None = None) -> list[list[str]]:
    """A row a path: name, letters, frozen and live loss, and what it does."""
    label = task.path_label if task else path_letters
    return [
        [
            str(row.path),
            label(*row.path.path),
            f"{row.ablated_loss:.4f}" if isinstance(row, PathScore) else "",
            f"{row.live_loss:.4f}",
            _does(row, score),
        ]
        for row in (*score.paths, *score.enabling)
    ]


HEAD_NOTE = (
    "A head replaced alone can cost more than all together: later heads that still look for",
    "themselves no longer find what it marked (see what it enables), while replaced ones need not.",
)


def head_header(score: CircuitScore) -> list[str]:
    return ["head", "mechanism", f"{score.loss_name}, only this head replaced"]


def path_header(score: CircuitScore) -> list[str]:
    loss = score.loss_name
    return ["path", "in letters", f"{loss}, ablated too", f"{loss}, cut live", "what it does"]


def _does(row: LivePathScore, score: CircuitScore) -> str:
    later = ", ".join(
        f"{enabled.path} ({enabled.side} {enabled.attention:.2f} to {enabled.when_cut:.2f})"
        for enabled in row.enables
    )
    # In a circuit that does not work, every path left out gives a high loss, whatever it carries.
    carries = isinstance(row, PathScore) and row.path not in score.spared and score.sufficient
    does = ["carries"] if carries else []
    return "; ".join(does + ([f"enables {later}"] if later else []))


def head_rows(score: CircuitScore) -> list[list[str]]:
    """A row a replaced head: name, mechanism, the loss with it alone replaced; one for the rest."""
    replaced = [row for row in score.heads if row.mechanism.kind != "original"]
    rows = [[str(row.head), str(row.mechanism), f"{row.loss:.4f}"] for row in replaced]
    left = len(score.heads) - len(replaced)
    if left:
        rows.append(
            ["others" if replaced else "all", f"original ({left})", f"{score.baseline_loss:.4f}"]
        )
    return rows


def score_table(score: CircuitScore, task: Task | None = None) -> str:
    """Every number of a score as text; the task names the roles, by default in letters."""
    loss = score.loss_name
    lines = [
        f"baseline {loss} (nothing replaced)  {score.baseline_loss:.4f} +- {score.baseline_se:.4f}",
        "",
        *columns(head_header(score), head_rows(score)),
        "",
        *HEAD_NOTE,
        "",
        f"combined {loss} (all of them replaced)  {score.combined_loss:.4f} +- "
        f"{score.combined_se:.4f}",
        "",
    ]
    if score.paths or score.enabling:
        lines += [*columns(path_header(score), path_rows(score, task)), ""]
    lines += [f"{note}\n" for note in score.notes]
    return "\n".join(lines)


def columns(header: list[str], rows: list[list[str]]) -> list[str]:
    """A table in plain text."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    table = [header, ["-" * width for width in widths], *rows]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in table
    ]
