"""Scores as tables, sentences and JSON."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from retrieval_interp.circuits import CircuitScore, HeadPath
from retrieval_interp.circuits.mechanisms import ORIGINAL
from retrieval_interp.circuits.scores.enabling import LEAST_DROP, Enabled
from retrieval_interp.circuits.scores.score import (
    NOT_SHOWN,
    LivePathScore,
    PathScore,
    RedundantScore,
    control_summary,
)
from retrieval_interp.circuits.scores.scorer import is_unlearned
from retrieval_interp.circuits.scores.tolerance import KEPT, tolerance_of
from retrieval_interp.config.model_config import ModelConfig
from retrieval_interp.tasks import Task, path_letters
from retrieval_interp.tasks.training_task import counted
from retrieval_interp.views.tables import text_table, wrapped


@dataclass(frozen=True)
class Reported:
    """What others report for the same measurements, shown beside ours.

    Attributes:
        citation: the source in full.
        source: the source in one word.
        combined: their loss with all heads replaced, in words; empty if they give none.
        paths: their losses with single paths also ablated; empty if they give none.
    """

    citation: str
    source: str = "paper"
    combined: str = ""
    paths: str = ""


NOTHING_REPORTED = Reported("")


def _named(name: str, loss: float) -> dict[str, float]:
    """A loss under its key, and under the one from when every loss was called an MSE."""
    return {f"{name}loss": loss, f"{name}mse": loss}


def score_to_dict(score: CircuitScore, name: str, task: Task, seed: int) -> dict[str, Any]:
    """The numbers as JSON data."""
    names = score.circuit.role_names
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
                "paths": [list(path.ends(names)) for path in row.mechanism.paths],
                **_named("", row.loss),
                "se": row.se,
            }
            for row in score.heads
        ],
        **_named("combined_", score.combined_loss),
        "combined_se": score.combined_se,
        "excess_se": score.excess_se,
        "uninformed_loss": score.uninformed_loss,
        "uninformed": score.uninformed,
        "kept": score.kept if math.isfinite(score.kept) else None,
        "paths": [
            {
                **_place(row.path, names),
                **_named("ablated_", row.ablated_loss),
                "se": row.se,
                "carries": score.sufficient and row.path not in score.spared,
                **_live(row, names),
            }
            for row in score.paths
        ],
        "enabling": [{**_place(row.path, names), **_live(row, names)} for row in score.enabling],
        "redundant": [
            {
                "paths": [path.text(names) for path in row.paths],
                "live_loss": row.live_loss,
                "live_se": row.live_se,
                "left_losses": list(row.left_losses),
                "shares": list(row.shares),
                "needed": row.needed,
                "one_suffices": row.one_suffices,
                "enables": _enabled(row.enables, names),
            }
            for row in score.redundant
        ],
        "control": list(score.control),
        "better_than_intact": score.better,
        "notes": list(score.notes),
        "sufficient": score.sufficient,
        "minimal": score.minimal,
        "unfinished": score.circuit.unfinished or None,
    }


def _place(path: HeadPath, names: Sequence[str]) -> dict[str, Any]:
    dest, src = path.path.ends(names)
    return {**path.head._asdict(), "dest": dest, "src": src}


def _live(row: LivePathScore, names: Sequence[str]) -> dict[str, Any]:
    return {
        "attention": row.attention,
        **_named("live_", row.live_loss),
        "live_se": row.live_se,
        "needed": row.needed,
        "enables": _enabled(row.enables, names),
    }


def _enabled(enables: Sequence[Enabled], names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            **_place(later.path, names),
            "attention": later.attention,
            "when_cut": later.when_cut,
            "by_query": later.by_query,
            "by_key": later.by_key,
        }
        for later in enables
    ]


def describe(model: Any, task: Task) -> str:
    """The task and the sizes of a hooked model in one line."""
    return _described(task, model.cfg.n_layers, model.cfg.n_heads, model.cfg.d_model)


def describe_config(config: ModelConfig, task: Task) -> str:
    """The task and a model's sizes in one line."""
    return _described(task, config.layers, config.heads, config.d_model)


def _described(task: Task, layers: int, heads: int, d_model: int) -> str:
    sizes = f"{counted(layers, 'layer')} of {counted(heads, 'head')}, d_model {d_model}"
    return f"{task.description}; {sizes}"


def scale(task: Task) -> str:
    """What the losses of a task mean."""
    return task.loss_meaning


def unlearned_text(loss: float, task: Task) -> str:
    """That a model with this loss has not learned the task."""
    return (
        f"No circuit to find: the model has not learned the task. Its {task.loss_name} of "
        f"{loss:.4f} is not clearly below the plateau of {task.plateau:.2g}."
    )


def verdict(score: CircuitScore, task: Task, reported: Reported = NOTHING_REPORTED) -> str:
    """What the numbers say, in a few sentences.

    Args:
        score: the numbers.
        task: what they were measured on.
        reported: numbers that others report, to be quoted beside ours.
    """
    if is_unlearned(score.baseline_loss, task):
        return unlearned_text(score.baseline_loss, task)
    said = [_verdict(score, reported), *score.notes]
    if not score.reachable:
        said.append(_out_of_reach(score, task))
    if score.circuit.unfinished:
        said.append(f"Unfinished: {score.circuit.unfinished}.")
    return " ".join(said)


def _out_of_reach(score: CircuitScore, task: Task) -> str:
    """That the intact model does not keep the tolerance, by how much, and what that hides."""
    loss, above = score.loss_name, score.baseline_loss - score.tolerance
    left_out = len(score.enabling) + len(score.redundant)
    text = (
        f"The tolerance is out of reach on these examples: the intact model's own {loss} of "
        f"{score.baseline_loss:.4g} +- {score.baseline_se:.2g} is {above:.2g} above "
        f"{score.tolerance:.4g}."
    )
    if left_out:
        text += (
            f" So it cannot be told what the intact model needs, and {counted(left_out, 'row')} "
            "about that are left out."
        )
    return f"{text} Try a tolerance of {_within_reach(score, task):.3g}."


def _within_reach(score: CircuitScore, task: Task) -> float:
    """The task's own tolerance or, where the model misses that too, what keeps 95%."""
    intact, uninformed = score.baseline_loss, score.uninformed_loss
    own = tolerance_of(task, intact, uninformed)
    return own if own > intact else uninformed - KEPT * (uninformed - intact)


def _verdict(score: CircuitScore, reported: Reported) -> str:
    loss = score.loss_name
    if not score.circuit.mechanisms:
        return (
            "No circuit: no head can be replaced, or none was given "
            f"({loss} {score.baseline_loss:.4f}, limit {score.limit:.4g}; knowing nothing "
            f"{score.uninformed_loss:.4g}, {score.uninformed})."
        )
    useful = [row.mechanism.kind for row in score.heads if row.mechanism.paths]
    kinds = " and ".join(sorted(set(useful)))
    by_paths = f", {len(useful)} of them by {kinds} paths" if useful else ""
    left = len(score.heads) - len(score.circuit.mechanisms)
    word = "Sufficient" if score.sufficient else "Not sufficient"
    if left and score.sufficient:
        them = "it is" if left == 1 else "they are"
        word = f"Holds so far ({counted(left, 'head')} left as {them})"
    theirs = f"; {reported.source}: {reported.combined}" if reported.combined else ""
    text = (
        f"{word}: with {len(score.circuit.mechanisms)} of "
        f"{counted(len(score.heads), 'head')} replaced"
        f"{by_paths}, the {loss} is {score.combined_loss:.4f}, "
        f"{_compared(score)} (intact: "
        f"{score.baseline_loss:.4f}{theirs})."
    )
    if score.paths and score.sufficient:
        text += f" {_minimality(score, reported)}"
    if score.control:
        text += f" {control_summary(score)}"
    return text


def kept_text(score: CircuitScore) -> str:
    """How much of what was learned the circuit keeps; empty where that has no meaning."""
    if not math.isfinite(score.kept):
        return ""
    return (
        f", {score.kept:.1%} of what was learned (knowing nothing: {score.uninformed_loss:.4f}, "
        f"{score.uninformed})"
    )


def _compared(score: CircuitScore) -> str:
    if score.tolerance > score.combined_loss >= score.uninformed_loss:
        return f"no better than knowing nothing, {score.uninformed_loss:.4g}"
    below = "below" if score.combined_loss < score.tolerance else "not below"
    return f"{below} {score.tolerance:.4g}"


def _minimality(score: CircuitScore, reported: Reported) -> str:
    costs = [row.ablated_loss for row in score.paths]
    each = (
        f"each of the {len(costs)} paths, ablated too, gives {min(costs):.2f} to {max(costs):.2f}"
        if len(costs) > 1
        else f"its one path, ablated too, gives {costs[0]:.2f}"
    )
    if score.minimal:
        theirs = f" ({reported.source}: {reported.paths})" if reported.paths else ""
        return f"Minimal, as no path can go without exceeding that: {each}{theirs}."
    spared = ", ".join(path.text(score.circuit.role_names) for path in score.spared)
    if len(score.spared) > 1:
        spared = f"each of {spared} alone"
    return f"Not minimal, as {spared} can go: {each}."


def path_rows(score: CircuitScore, task: Task | None = None) -> list[list[str]]:
    """One row per path: name, letters, frozen and live loss, and what it does.

    Paths of which any one suffices share a row; there the live loss is that of cutting them all.
    What the intact model needs is left out where it does not keep the tolerance itself.
    """
    enabling = score.enabling if score.reachable else ()
    redundant = score.redundant if score.reachable else ()
    label = task.path_label if task else path_letters
    names = score.circuit.role_names
    return [
        [
            row.path.text(names),
            label(*row.path.path),
            f"{row.ablated_loss:.4f}" if isinstance(row, PathScore) else "",
            f"{row.live_loss:.4f}",
            _does(row, score),
        ]
        for row in (*score.paths, *enabling)
    ] + [
        [
            row.text(names),
            label(*row.paths[0].path),
            "",
            f"{row.live_loss:.4f}",
            "; ".join([_suffices(row, score), *_enables(row.enables, names)]),
        ]
        for row in redundant
    ]


def head_note(score: CircuitScore) -> str:
    """Why one head replaced can cost more than all of them; empty where none does."""
    if all(row.loss <= score.combined_loss for row in score.heads):
        return ""
    return (
        "Replacing one head can cost more than replacing all of them: later heads that still look "
        "for themselves no longer find what it marked (see what it enables); replaced ones need "
        "not look."
    )


def head_header(score: CircuitScore) -> list[str]:
    return ["head", "mechanism", f"{score.loss_name}, only this head replaced"]


def path_header(score: CircuitScore) -> list[str]:
    loss = score.loss_name
    return ["path", "meaning", f"{loss}, ablated too", f"{loss}, cut live", "what it does"]


def _does(row: LivePathScore, score: CircuitScore) -> str:
    # In a circuit that does not work, leaving out any path gives a high loss, whatever it carries.
    carries = isinstance(row, PathScore) and row.path not in score.spared and score.sufficient
    does = [*(["carries"] if carries else []), *_enables(row.enables, score.circuit.role_names)]
    return "; ".join(does) or _unexplained(row, score)


def _unexplained(row: LivePathScore, score: CircuitScore) -> str:
    """What is known of a path that neither carries nor enables another one that is listed."""
    if not score.reachable:
        return ""
    if not row.needed:
        unclear = "not clear on these examples whether the intact model needs it"
        return unclear if row.needed is None else "the intact model does without it"
    needed = f"needed by the intact model (intact: {score.baseline_loss:.4f})"
    if any(note.startswith(NOT_SHOWN) for note in score.notes):
        return f"{needed}; what it enables cannot be told"
    if row.nearly is None:
        return f"{needed}; no later path listed here loses attention without it"
    most, name = row.nearly, row.nearly.path.text(score.circuit.role_names)
    return (
        f"{needed}; no later path listed here loses {LEAST_DROP:g} of attention without it "
        f"(most: {name}, {most.attention:.2f} to {most.when_cut:.2f})"
    )


def _enables(later: Sequence[Enabled], names: Sequence[str]) -> list[str]:
    paths = [
        f"{row.path.text(names)} ({row.side} {row.attention:.2f} to {row.when_cut:.2f})"
        for row in later
    ]
    return [f"enables {', '.join(paths)}"] if paths else []


def _suffices(row: RedundantScore, score: CircuitScore) -> str:
    """What the numbers of paths that are said to be redundant show."""
    if row.one_suffices:
        said = "any one suffices"
    elif row.needed is None or None in row.suffice:
        said = "not clear on these examples whether any one suffices"
    elif not row.needed:
        said = "none is needed on these examples"
    elif not any(row.suffice):
        said = "no single one suffices"
    else:
        enough = [str(path.head) for path, alone in zip(row.paths, row.suffice) if alone]
        said = f"only {' or '.join(enough)} suffices"
    left = ", ".join(
        f"{path.head} {loss:.4f}" + ("" if math.isnan(share) else f", which is {share:.0%}")
        for path, loss, share in zip(row.paths, row.left_losses, row.shares)
    )
    return f"{said} (one left: {left})"


def head_rows(score: CircuitScore) -> list[list[str]]:
    """One row per replaced head: name, mechanism, loss with it alone replaced; one for the rest."""
    replaced = [row for row in score.heads if row.mechanism != ORIGINAL]
    rows = [
        [str(row.head), row.mechanism.text(score.circuit.role_names), f"{row.loss:.4f}"]
        for row in replaced
    ]
    left = len(score.heads) - len(replaced)
    if left:
        rows.append(
            ["others" if replaced else "all", f"original ({left})", f"{score.baseline_loss:.4f}"]
        )
    return rows


def score_table(score: CircuitScore, task: Task | None = None, width: int | None = None) -> str:
    """Every number of a score as text.

    Args:
        score: what `ri.score_circuit` returned.
        task: names the roles; by default they are letters.
        width: characters per line; by default lines are as long as they need to be.
    """
    loss = score.loss_name
    lines = [
        f"baseline {loss} (nothing replaced)  {score.baseline_loss:.4f} +- {score.baseline_se:.4f}",
        "",
        *text_table(head_header(score), head_rows(score), width=width),
        "",
        *([*wrapped(note, width), ""] if (note := head_note(score)) else []),
        *wrapped(
            f"combined {loss} (all of them replaced)  {score.combined_loss:.4f} +- "
            f"{score.combined_se:.4f}{kept_text(score)}",
            width,
            4,
        ),
        "",
    ]
    if rows := path_rows(score, task):
        lines += [*text_table(path_header(score), rows, width=width), ""]
    return "\n".join(lines)
