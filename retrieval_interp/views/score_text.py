"""Scores as rows, from which come tables of text, pages, JSON, and the explorer's list."""

import inspect
import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any

from retrieval_interp.circuits import CircuitScore, HeadPath, Mechanism
from retrieval_interp.circuits.circuit import interchangeable
from retrieval_interp.circuits.hooks import HookedModel
from retrieval_interp.circuits.scores.enabling import Enabled
from retrieval_interp.circuits.scores.score import QUICK, LivePathScore, PathScore, RedundantScore
from retrieval_interp.circuits.tolerance import unlearned_text
from retrieval_interp.config import ModelConfig
from retrieval_interp.paper import FIRST_LAYER, PATHS, SUFFICIENT
from retrieval_interp.tasks import RetrievalTask, Task
from retrieval_interp.tasks.messages import counted, listed
from retrieval_interp.views.tables import range_text, text_table, with_error, wrapped

JsonRow = dict[str, Any]


def describe(model: HookedModel, task: Task) -> str:
    """Describe the task and the sizes of a hooked model in one line."""
    cfg = model.cfg
    return describe_config(ModelConfig(cfg.n_layers, cfg.n_heads, cfg.d_model, cfg.d_head), task)


def describe_config(config: ModelConfig, task: Task) -> str:
    """Describe the task and a model's sizes in one line."""
    sizes = f"{counted(config.layers, 'layer')} of {counted(config.heads, 'head')}"
    return f"{task.description}; {sizes}, d_model {config.d_model}"


def _fields(row: Any, keys: str) -> JsonRow:
    return {key: getattr(row, key) for key in keys.split()}


def _path_rows(score: CircuitScore, task: Task | None) -> dict[str, list[JsonRow]]:
    kinds = ("paths", "enabling", "redundant")
    return {kind: [_path_row(row, score, task) for row in getattr(score, kind)] for kind in kinds}


_NEEDED = {
    True: "needed by the intact model",
    False: "the intact model does without it",
    None: "not clear on these examples whether the intact model needs it",
}


def _path_row(
    row: LivePathScore | RedundantScore, score: CircuitScore, task: Task | None
) -> JsonRow:
    """Say what a path is worth and does, or a set of paths of which one is needed."""
    does = serves(row.enables)
    path = row.paths[0] if isinstance(row, RedundantScore) else row.path
    data = {
        "name": str(path),
        "meaning": task.path_label(*path.path) if task else "",
        **_fields(row, "live_loss live_se needed"),
        "enables": _enabled_rows(row.enables),
    }
    if isinstance(row, RedundantScore):
        data |= _fields(row, "left_losses one_suffices")
        data |= {"name": row.text(), "paths": list(map(str, row.paths))}
        return data | {"does": "; ".join([_which_suffice(row, score), *does])}
    data |= _path_ends(path) | _fields(row, "attention")
    if isinstance(row, PathScore):
        # In a circuit that does not work, leaving out any path gives a high loss.
        carries = score.sufficient and path not in score.spared
        data |= _fields(row, "removed_loss se") | {"carries": carries}
        does = ["carries", *does] if carries else does
    if not does and score.reachable:
        does = [_NEEDED[row.needed]]
    return data | {"does": "; ".join(does)}


def _which_suffice(row: RedundantScore, score: CircuitScore) -> str:
    """Say whether any of some paths suffices, and what each does alone."""
    if row.one_suffices:
        sets = interchangeable(score.circuit.redundant, score.circuit.role_names)
        suffices = next(text for text, paths in sets.items() if set(row.paths) <= set(paths))
    elif row.needed is None or None in row.suffice:
        suffices = "not clear on these examples whether any one suffices"
    else:
        suffices = "not any one suffices" if row.needed else "none is needed on these examples"
    alone = ", ".join(f"{path.head} {loss:.4f}" for path, loss in zip(row.paths, row.left_losses))
    return f"{suffices} (one left: {alone})"


def _enabled_rows(enables: Sequence[Enabled]) -> list[JsonRow]:
    keys = "side attention when_cut by_query by_key by_value"
    return [
        {"name": str(later.path), **_path_ends(later.path), **_fields(later, keys)}
        for later in enables
    ]


def _path_ends(path: HeadPath) -> JsonRow:
    dest, src = path.path.ends()
    return {**path.head._asdict(), "dest": dest, "src": src}


def serves(enables: Sequence[Enabled]) -> list[str]:
    """Say which later paths are enabled, and which carry it on, by the side that loses most."""
    said: dict[str, list[str]] = {}
    for later in enables:
        how = "passed on by" if later.side == "value" else "enables"
        said.setdefault(how, []).append(f"{later.path} ({later.text})")
    return [f"{how} {', '.join(said[how])}" for how in sorted(said)]


def score_to_dict(score: CircuitScore, name: str, task: Task, seed: int) -> JsonRow:
    """Return all numbers as JSON data."""
    numbers = (
        "examples tolerance loss_name intact_loss intact_se combined_loss combined_se "
        "excess_se uninformed_loss uninformed_model learned kept control notes sufficient minimal "
        "rest_zero_ablated_loss"
    )
    heads = [
        {
            **row.head._asdict(),
            "mechanism": row.mechanism.kind,
            "paths": [list(path.ends()) for path in row.mechanism.paths],
            **_fields(row, "loss se needed"),
            "zero_ablated_loss": row.zero_ablated and row.zero_ablated.mean,
            "zero_ablated_se": row.zero_ablated and row.zero_ablated.se,
            "enables": _enabled_rows(row.enables),
        }
        for row in score.heads
    ]
    return {
        "schema": "retrieval-interp/ablate/2",
        "checkpoint": name,
        "task": task.to_dict(),
        "seed": seed,
        **_fields(score, numbers),
        "better_than_intact": score.better,
        "unfinished": score.circuit.unfinished or None,
        "heads": heads,
        **_path_rows(score, task),
    }


def shown_paths(score: CircuitScore, task: Task | None = None) -> list[JsonRow]:
    """Return the rows of paths; none on what the intact model needs if that cannot be told."""
    rows = _path_rows(score, task)
    return rows["paths"] + (rows["enabling"] + rows["redundant"] if score.reachable else [])


def path_table(score: CircuitScore, task: Task | None = None) -> tuple[list[str], list[list[str]]]:
    """List paths, what they cost and do; those of which any one suffices share a row."""
    loss = score.loss_name
    header = ["path", "meaning", f"{loss}, removed from the circuit", f"{loss}, cut live"]
    header.append("what it does")
    rows = [
        [
            row["name"],
            row["meaning"],
            f"{row['removed_loss']:.4f}" if "removed_loss" in row else "",
            f"{row['live_loss']:.4f}",
            row["does"],
        ]
        for row in shown_paths(score, task)
    ]
    if task is None:
        for cells in (header, *rows):
            del cells[1]  # the meaning
    return header, rows


def head_table(score: CircuitScore) -> tuple[list[str], list[list[str]]]:
    """List replaced heads, replaced alone and zero-ablated in the circuit; one row for the rest."""
    rows = [
        [
            str(row.head),
            str(row.mechanism),
            f"{row.loss:.4f}",
            f"{row.zero_ablated.mean:.4f}" if row.zero_ablated else "",
        ]
        for row in score.heads
        if row.head in score.circuit.mechanisms
    ]
    if left := len(score.heads) - len(rows):
        what = "others" if rows else "all"
        rows.append([what, f"original ({left})", f"{score.intact_loss:.4f}", ""])
    loss = score.loss_name
    header = ["head", "mechanism", f"{loss}, only this head replaced"]
    return [*header, f"{loss}, zero-ablated in the circuit"], rows


def loss_lines(score: CircuitScore) -> tuple[str, str]:
    """State the intact model's loss, and that of the circuit with what it keeps."""
    loss, kept = score.loss_name, ""
    if math.isfinite(score.kept):
        nothing = f"knowing nothing: {score.uninformed_loss:.4f}, {score.uninformed_model}"
        kept = f", {score.kept:.1%} of what was learned ({nothing})"
    intact = with_error(score.intact_loss, score.intact_se)
    combined = with_error(score.combined_loss, score.combined_se)
    return (
        f"intact {loss} (nothing replaced)  {intact}",
        f"combined {loss} (all of them replaced)  {combined}{kept}",
    )


def score_table(score: CircuitScore, task: Task | None = None, width: int | None = None) -> str:
    """Write every number of a score as text, in lines of at most `width` characters.

    The task says what paths mean; without it they only have their names.
    """
    intact, combined = (wrapped(line, width, 4) for line in loss_lines(score))
    lines = [*intact, "", *text_table(*head_table(score), width=width), "", *combined, ""]
    header, rows = path_table(score, task)
    if rows:
        lines += [*text_table(header, rows, width=width), ""]
    return "\n".join(lines)


def finding(score: CircuitScore) -> str:
    """Say in one sentence what a circuit of all heads shows; empty if it does not work."""
    paths, heads = list(score.circuit.paths()), len(score.heads)
    useful = len({path.head for path in paths} | {row.head for row in score.needed_as_such})
    all_replaced = len(score.circuit.mechanisms) == heads
    if not paths or not all_replaced or not score.sufficient or not math.isfinite(score.kept):
        return ""
    fixed = [f"{row.head} by its {row.mechanism.kind} pattern" for row in score.needed_as_such]
    work = f"{useful} of {counted(heads, 'head')}" + (f" ({listed(fixed, 'and')})" if fixed else "")
    at_least = "" if score.rest_zero_ablated_loss < score.limit else "At least "
    kept = f"with all else replaced, the model keeps {score.kept:.1%} of what it learned"
    return f"{at_least}{work} and {counted(len(paths), 'attention path')} do the work: {kept}."


def mechanism_words(mechanisms: Iterable[Mechanism]) -> str:
    """Say what each kind of these mechanisms is, as its class does."""
    kinds = {each.kind: (inspect.getdoc(each) or "").split("\n")[0] for each in mechanisms}
    return " ".join(f"{kind}: {said[:1].lower()}{said[1:]}" for kind, said in kinds.items())


def verdict(score: CircuitScore, task: Task) -> str:
    """Say what the numbers mean; the paper's stand next to those of its own task."""
    if not score.learned:
        known = score.intact_loss, score.uninformed_loss, score.uninformed_model
        return f"No circuit to find. {unlearned_text(*known, task.loss_name)}"
    papers = isinstance(task, RetrievalTask) and task.tokens == "gaussian"
    said = [_sufficiency(score, papers)]
    if score.paths and score.sufficient:
        said.append(_minimality(score, papers))
    if score.sufficient:
        said += _zero_ablated(score, papers)
    if control := score.control:
        better, differ = sum(loss <= score.combined_loss for loss in control), len(set(control))
        said.append(
            f"{better} of {len(control)} random circuits of the same size and mechanisms do as "
            f"well: they give {control[0]:.2f} at best, {median(control):.2f} at the median."
        )
        if score.examples > QUICK:
            said.append(f"Those that look much worse are measured on {QUICK} examples alone.")
        if differ < len(control) / 2:
            said.append(f"There are few such circuits: only {differ} of these differ.")
    said += score.notes
    if not score.reachable:
        said.append(
            "The tolerance is out of reach on these examples: the intact model's own "
            f"{score.loss_name} of {with_error(score.intact_loss, score.intact_se)} is not "
            f"below {score.limit:.4g}, so it cannot be told what it needs."
        )
    if score.circuit.unfinished:
        said.append(f"Unfinished: {score.circuit.unfinished}.")
    return " ".join(said)


def _sufficiency(score: CircuitScore, papers: bool) -> str:
    loss, replaced = score.loss_name, len(score.circuit.mechanisms)
    if not replaced:
        nothing = f"knowing nothing {score.uninformed_loss:.4g}, {score.uninformed_model}"
        known = f"{loss} {score.intact_loss:.4f}, limit {score.limit:.4g}; {nothing}"
        why = "no head can be replaced, or none was given"
        why = "none was found" if score.circuit.unfinished else why
        return f"No circuit: {why} ({known})."
    below = "below" if score.combined_loss < score.limit else "not below"
    word = "Sufficient" if score.sufficient else "Not sufficient"
    left = len(score.heads) - replaced
    if left and score.sufficient:
        word = f"Holds so far ({counted(left, 'head')} not replaced)"
    heads = f"{replaced} of {counted(len(score.heads), 'head')}"
    result = f"{score.combined_loss:.4f}, {below} {score.limit:.4g}"
    known = f"intact: {score.intact_loss:.4f}"
    known += f"; paper: below {SUFFICIENT:g}" if papers else ""
    return f"{word}: with {heads} replaced, the {loss} is {result} ({known})."


def _zero_ablated(score: CircuitScore, papers: bool) -> Iterator[str]:
    """Say which heads with a fixed pattern a circuit that works needs as such."""
    needed, heads = score.needed_as_such, []
    for row in needed:
        served = "".join(f", {text}" for text in serves(row.enables))
        cost = f"{with_error(*row.zero_ablated)} when zero-ablated" if row.zero_ablated else ""
        heads.append(f"{row.head} {row.mechanism.writes} ({row.mechanism.kind}; {cost}{served})")
    if heads:
        paper = ", though the paper does not count such heads as useful" if papers else ""
        yield f"Needed as such, along no path{paper}: {'; '.join(heads)}."
    fixed = [row for row in score.heads if row.mechanism.is_one_unit]
    if unclear := [str(row.head) for row in fixed if row.needed is None]:
        yield f"Whether {listed(unclear, 'or')} can be zero-ablated is not clear on these examples."
    if len(fixed) > len(needed):
        side = "below" if score.rest_zero_ablated_loss < score.limit else "not below"
        heads_named = "all other heads" if needed else "all heads"
        rest = f"{score.rest_zero_ablated_loss:.4f}, {side} the limit"
        yield f"With {heads_named} with a fixed pattern zero-ablated at once, it is {rest}."


def _minimality(score: CircuitScore, papers: bool) -> str:
    costs = [row.removed_loss for row in score.paths]
    losses_text = f"without one of its paths it is {min(costs):.2f} to {max(costs):.2f}"
    losses_text = losses_text if len(costs) > 1 else f"without its path it is {costs[0]:.2f}"
    if score.minimal:
        theirs = f" (paper: {range_text(PATHS)} per path, {range_text(FIRST_LAYER)} in the first "
        theirs = theirs + "useful layer)" if papers else ""
        return f"Minimal, as no path can go without exceeding that: {losses_text}{theirs}."
    clear = [row.path for row in score.paths if row.removed_loss + 2 * row.se < score.limit]
    names = ", ".join(map(str, clear or score.spared))
    if not clear:
        doubt = f"not clear on these examples, as {names} might go"
        return f"Whether it is minimal is {doubt}: {losses_text}."
    return f"Not minimal, as {names} can go, one at a time: {losses_text}."
