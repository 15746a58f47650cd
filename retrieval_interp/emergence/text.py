"""An emergence series as a table and as JSON."""

import json

from retrieval_interp.emergence.series import Series
from retrieval_interp.emergence.times import (
    THRESHOLD,
    Crossing,
    in_order,
    interpolated_pairs,
    loss_emergence,
    path_emergence,
)
from retrieval_interp.storage.provenance import provenance
from retrieval_interp.tasks.structured import to_data
from retrieval_interp.views.tables import text_table, wrapped

HEADER = ["path", "means", "attention", f"above {THRESHOLD:g}", "half of it"]
HEADER += ["necessity", "half of it", "removed", "half of it", "first"]
LEGEND = (
    "Attention is a path's mean attention. Necessity is the share of what the model has learned so "
    "far that is lost if the path is cut in the model (1: all of it, back to the plateau); removed "
    "is the same if it is removed from the circuit. Each is given at the last step, with the step "
    "at which it is first above 0.5 or above half of its final value, interpolated between "
    "measured steps (never: also where cutting the path costs no more than the tolerance at the "
    "end). First: attention or necessity, whichever reaches half first; unresolved if both do "
    "between the same two measured steps. ~ marks paths that only enable."
)


def emergence_table(series: Series, width: int | None = None) -> str:
    """When each path and each asked symbol appears, as text in lines of at most `width` characters.

    By default the table is as wide as it needs to be, and prose has 100 characters per line.
    """
    table = text_table(HEADER, emergence_rows(series), width=width)
    prose = f"{LEGEND}\n\n{losses_text(series)}"
    return "\n".join([*table, "", *wrapped(prose, width or 100)])


def emergence_rows(series: Series) -> list[list[str]]:
    """One row per path; `HEADER` names the columns."""
    rows = []
    for row in path_emergence(series):
        meaning = series.recipe.task.path_label(*row.path.path)
        attention = f"{row.attention:.2f}", step_text(row.above), step_text(row.attention_half)
        necessity = f"{row.necessity:.2f}", step_text(row.necessity_half)
        removed = ["", ""]
        if row.frozen_necessity is not None:
            removed = [f"{row.frozen_necessity:.2f}", step_text(row.frozen_half)]
        rows.append([row.name, meaning, *attention, *necessity, *removed, row.leads or ""])
    return rows


def step_text(crossing: Crossing | None) -> str:
    """A step, `<= 1000` if the first measured one is already past, or `never`."""
    return "never" if crossing is None else str(crossing)


def losses_text(series: Series) -> str:
    """When each partial loss falls, and whether they do so in order."""
    losses, task = loss_emergence(series), series.recipe.task
    fell = ", ".join(f"{symbol} {step_text(crossing)}" for symbol, crossing in losses.items())
    held = in_order(losses, task.steps_between)
    order = "" if held is None else f"; {'' if held else 'not '}in the order of the steps"
    if close := interpolated_pairs(losses, task.steps_between):
        named = ", ".join(map(" and ".join, close))
        order += f" (by interpolation alone: {named} cross between the same two measured steps)"
    measured = "" if any(row.logged for row in series.losses) else " (measured, not logged)"
    below = THRESHOLD * task.loss_scale
    return f"Partial losses{measured} first below {below:g}: {fell}{order}."


def emergence_json(series: Series, command: str, examples: int, seed: int) -> str:
    """A series and what follows from it, as JSON text with one line per measured step.

    `command` is what was typed; `examples` and their `seed` are those of the checkpoints.
    `read_series` reads the text back.
    """
    losses, task = loss_emergence(series), series.recipe.task
    data = {
        **provenance(command),
        "examples": examples,
        "seed": seed,
        "attention_threshold": THRESHOLD,
        "loss_threshold": THRESHOLD * task.loss_scale,
        "paths": [row.to_dict() for row in path_emergence(series)],
        "partial_losses": to_data(losses),
        "in_order": in_order(losses, task.steps_between),
        **series.to_dict(),
    }
    parts = []
    for key, value in data.items():
        text = json.dumps(value)
        if key in ("paths", "snapshots", "losses"):
            text = "[\n    " + ",\n    ".join(map(json.dumps, value)) + "\n  ]"
        parts.append(f'  "{key}": {text}')
    return "{\n" + ",\n".join(parts) + "\n}\n"
