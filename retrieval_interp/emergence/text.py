"""An emergence series as a table, in sentences, as JSON and as CSV."""

import csv
import io
import json

from retrieval_interp.circuits import HeadPath
from retrieval_interp.emergence.crossing import (
    THRESHOLD,
    Crossing,
    in_order,
    interpolated_pairs,
)
from retrieval_interp.emergence.series import Series
from retrieval_interp.emergence.times import (
    PathEmergence,
    loss_emergence,
    paper_epochs,
    path_emergence,
    symbols,
)
from retrieval_interp.storage.provenance import provenance
from retrieval_interp.tasks.structured import to_data
from retrieval_interp.views.tables import text_table, wrapped

HEADER = [
    "path",
    "meaning",
    "attention",
    f"above {THRESHOLD:g}",
    "half of it",
    "necessity",
    "half of it",
    "frozen",
    "half of it",
    "first",
]
NUMBERS = range(2, 9)
LEGEND = (
    "Attention is a path's mean attention. Necessity is the share of what the model has learned so "
    "far that is lost if the path is cut in the intact model (1: all of it, back to the plateau); "
    "frozen is the same if it is left out of the circuit, all other attention being replaced. Each "
    "is given at the last step, with the step at which it is first above 0.5 or above half of its "
    "final value, interpolated between measured steps (never: also where cutting the path costs no "
    "more than the tolerance at the end). First: attention or necessity, whichever reaches half "
    "first; unresolved if both do between the same two measured steps. ~ marks paths that only "
    "enable."
)


def emergence_table(series: Series, width: int | None = None) -> str:
    """When each path and each asked symbol appears, as text in lines of at most `width` characters.

    By default the table is as wide as it needs to be, and prose has 100 characters per line.
    """
    prose = "\n".join([LEGEND, "", *emergence_sentences(series)])
    return "\n".join(
        [
            *text_table(HEADER, emergence_rows(series), width=width),
            "",
            *wrapped(prose, width or 100),
        ]
    )


def emergence_rows(series: Series) -> list[list[str]]:
    """One row per path; `HEADER` names the columns."""
    return [
        [
            row.name,
            series.recipe.task.path_label(*row.path.path),
            f"{row.attention:.2f}",
            step_text(row.above),
            step_text(row.attention_half),
            f"{row.necessity:.2f}",
            step_text(row.necessity_half),
            "" if row.frozen_necessity is None else f"{row.frozen_necessity:.2f}",
            "" if row.frozen_necessity is None else step_text(row.frozen_half),
            row.leads or "",
        ]
        for row in path_emergence(series)
    ]


def step_text(crossing: Crossing | None) -> str:
    """A step, `<= 1000` if the first measured one is already past, or `never`."""
    return "never" if crossing is None else str(crossing)


def emergence_sentences(series: Series) -> list[str]:
    """The order in which paths and losses appear, and what leads."""
    rows = path_emergence(series)
    lines = [_order_of_paths(rows, paper_epochs(series.recipe)), _order_of_losses(series)]
    led = [row.leads for row in rows if row.leads is not None]
    if led:
        counts = {name: led.count(name) for name in ("attention", "necessity", "unresolved")}
        lines.append(
            f"Of {len(led)} paths that have attention and are necessary at the end, attention "
            f"reaches half first in {counts['attention']}, necessity in {counts['necessity']}; in "
            f"{counts['unresolved']} both do between the same two measured steps."
        )
    return lines


def _order_of_paths(rows: list[PathEmergence], epochs: bool) -> str:
    together: dict[tuple[float, str], list[str]] = {}
    for row in rows:
        if row.above is not None:
            together.setdefault((row.above.step, str(row.above)), []).append(str(row.path))
    if not together:
        return f"No path's attention goes above {THRESHOLD:g}."
    listed = ", then ".join(
        f"{' and '.join(names)} ({when}{f', epoch {step / 8:.0f}' if epochs else ''})"
        for (step, when), names in sorted(together.items())
    )
    ending = "; epochs are the paper's, 8 steps each" if epochs else ""
    return f"Attention goes above {THRESHOLD:g} first in {listed}{ending}."


def _order_of_losses(series: Series) -> str:
    losses, pairs = loss_emergence(series), series.recipe.task.steps_between
    listed = ", ".join(f"{symbol} {step_text(crossing)}" for symbol, crossing in losses.items())
    order = {
        True: "; in the order of the steps",
        False: "; not in the order of the steps",
        None: "",
    }[in_order(losses, pairs)]
    if close := interpolated_pairs(losses, pairs):
        named = ", ".join(f"{first} and {second}" for first, second in close)
        order += f" (by interpolation alone: {named} cross between the same two measured steps)"
    threshold = THRESHOLD * series.recipe.task.loss_scale
    measured = "" if any(row.logged for row in series.losses) else " (measured, not logged)"
    return f"Partial losses{measured} first below {threshold:g}: {listed}{order}."


def emergence_json(series: Series, command: str, examples: int, seed: int) -> str:
    """A series and what follows from it, as JSON text with one line per measured step.

    `command` is what was typed; `examples` and their `seed` are those of the checkpoints.
    `read_series` reads the text back.
    """
    losses = loss_emergence(series)
    data = {
        **provenance(command),
        "examples": examples,
        "seed": seed,
        "attention_threshold": THRESHOLD,
        "loss_threshold": THRESHOLD * series.recipe.task.loss_scale,
        "paths": [row.to_dict() for row in path_emergence(series)],
        "partial_losses": to_data(losses),
        "in_order": in_order(losses, series.recipe.task.steps_between),
        **series.to_dict(),
    }
    parts = []
    for key, value in data.items():
        text = json.dumps(value)
        if key in ("paths", "snapshots", "losses"):
            rows = ",\n".join(f"    {json.dumps(row)}" for row in value)
            text = f"[\n{rows}\n  ]"
        parts.append(f'  "{key}": {text}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def emergence_csv(series: Series) -> str:
    """Everything measured in long form: step, quantity, path (possibly empty), value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["step", "quantity", "path", "value"])

    def write(step: int, quantity: str, value: float | None, path: HeadPath | str = "") -> None:
        if value is not None:
            writer.writerow([step, quantity, path, f"{value:.7g}"])

    for row in series.losses:
        write(row.step, "train_loss", row.train_loss)
        write(row.step, "validation_loss", row.validation_loss)
        for symbol, loss in zip(symbols(series.recipe), row.partial_losses):
            write(row.step, f"partial_loss_{symbol}", loss)
    for at in series.snapshots:
        write(at.step, "baseline_loss", at.baseline_loss)
        write(at.step, "combined_loss", at.combined_loss)
        for path, measured in at.paths.items():
            write(at.step, "attention", measured.attention, path)
            write(at.step, "live_loss", measured.live_loss, path)
            write(at.step, "frozen_loss", measured.frozen_loss, path)
    for path in series.paths:
        for step, value in zip(series.steps, series.necessity(path)):
            write(step, "necessity", value, path)
        for step, value in zip(series.steps, series.frozen_necessity(path) or ()):
            write(step, "frozen_necessity", value, path)
    return text.getvalue()
