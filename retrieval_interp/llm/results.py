"""The results in logs of the benchmark, one row per log and number of steps."""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrieval_interp.tasks.errors import InputError, printable
from retrieval_interp.views.tables import text_table

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

FORMULATIONS = ("equations", "lives-with", "kingdoms", "functions", "relatives")  # F1 to F5
_UNREAD = {"messages", "events", "store", "attachments", "output"}  # no number here needs them


@dataclass(frozen=True)
class Result:
    """How well a model answers the questions of a formulation.

    The accuracy is averaged over epochs first, its standard error is over the questions. `attempts`
    is how often a question was asked on average, `unanswered` how many got no acceptable answer.
    """

    log: str
    model: str
    formulation: str
    steps: int | None
    questions: int
    accuracy: float
    stderr: float
    chance: float
    attempts: float
    unanswered: int

    @property
    def label(self) -> str:
        return self.formulation if self.steps is None else f"{self.formulation}, D = {self.steps}"


def read_results(paths: Iterable[Path]) -> list[Result]:
    """The results in log files or folders, by formulation, D and model."""
    found: dict[tuple[str, str], Result] = {}
    for result in (result for path in _log_files(paths) for result in _read_log(path)):
        first = found.setdefault((result.model, result.label), result)
        if first is not result:
            raise InputError(
                f"{result.log}: expected one log per model, formulation and D, found "
                f"{result.model}, {result.label} in {first.log} too; leave one out"
            )
    return sorted(
        found.values(),
        key=lambda row: (FORMULATIONS.index(row.formulation), row.steps or 0, row.model),
    )


def _log_files(paths: Iterable[Path]) -> Iterator[Path]:
    from inspect_ai.log import list_eval_logs

    for path in dict.fromkeys(paths):
        if path.is_file():
            yield path
        elif logs := list_eval_logs(str(path), descending=False) if path.is_dir() else []:
            yield from (Path(log.name.removeprefix("file://")) for log in logs)
        else:
            raise InputError(f"{path}: expected an Inspect log or a folder of them, found nothing")


def _read_log(path: Path) -> Iterator[Result]:
    from inspect_ai.log import read_eval_log

    try:
        log = read_eval_log(path, exclude_fields=_UNREAD)
    except Exception as error:  # what Inspect raises depends on where the file stops being a log
        raise InputError(
            f"{path}: expected an Inspect log (.eval or .json), found another file: {error!s:.80}"
        ) from None
    scored = [sample for sample in log.samples or [] if _score(sample) is not None]
    formulation = log.metadata.get("formulation")
    if formulation not in FORMULATIONS or log.status != "success" or not scored:
        raise InputError(
            f"{path}: expected a finished log of {', '.join(FORMULATIONS)} with scored samples, "
            f"found one of {log.eval.task} with the status {log.status!r} and {len(scored)} scored "
            "samples; leave it out, or finish it with inspect eval-retry"
        )
    for steps in dict.fromkeys(sample.metadata.get("steps") for sample in scored):
        samples = [sample for sample in scored if sample.metadata.get("steps") == steps]
        yield _result(str(path), log.eval.model, formulation, steps, samples)


def _score(sample: Any) -> Any:
    scores = sample.scores or {}
    # The scorer's name has a package only if the task was installed.
    return scores.get("exact_answer", scores.get("retrieval_interp/exact_answer"))


def _result(
    log: str, model: str, formulation: str, steps: int | None, samples: Sequence[Any]
) -> Result:
    from inspect_ai.scorer import value_to_float

    to_float = value_to_float()
    epochs: dict[int | str, list[float]] = {}
    for sample in samples:
        epochs.setdefault(sample.id, []).append(to_float(_score(sample).value))
    values = [statistics.fmean(scores) for scores in epochs.values()]
    tries = [_score(sample).metadata for sample in samples]
    return Result(
        log=log,
        model=model,
        formulation=formulation,
        steps=steps,
        questions=len(values),
        accuracy=statistics.fmean(values),
        stderr=statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0,
        chance=samples[0].metadata["chance"],
        attempts=statistics.fmean(row["attempts"] for row in tries),
        unanswered=sum(row["unanswered"] for row in tries),
    )


def results_table(results: Sequence[Result], width: int | None = None) -> str:
    """The rows as a text table, in lines of at most `width` characters."""
    header = ["model", "formulation", "D", "questions"]
    header += ["accuracy", "chance", "attempts", "unanswered"]
    rows = []
    for row in results:
        asked = [printable(row.model), row.formulation, f"{row.steps or '-'}", f"{row.questions}"]
        right = [f"{row.accuracy:.3f} +- {row.stderr:.3f}", f"{row.chance:.3f}"]
        rows.append([*asked, *right, f"{row.attempts:.2f}", f"{row.unanswered}"])
    return "\n".join(text_table(header, rows, right=range(2, len(header)), width=width))


def accuracy_figure(results: Sequence[Result]) -> "Figure":
    """Accuracy with standard errors by model, and of random guessing (figure 2).

    Left the equations by D, right every formulation; there, of the equations, the paper's D = 5.
    """
    from plotly.colors import qualitative
    from plotly.subplots import make_subplots

    by_steps = [row for row in results if row.formulation == "equations"]
    others = [row for row in results if row.formulation != "equations" or row.steps == 5]
    sides = [side for side in (by_steps, others) if side]
    figure = make_subplots(cols=len(sides), shared_yaxes=True)
    models = sorted({row.model for row in results})
    for col, side in enumerate(sides, start=1):
        lines = side is by_steps
        for model in sorted({row.model for row in side}):
            own = [row for row in side if row.model == model]
            name = escape(model, quote=False)  # Plotly reads tags as markup
            (figure.add_scatter if lines else figure.add_bar)(
                x=[row.steps if lines else row.label for row in own],
                y=[row.accuracy for row in own],
                error_y={"type": "data", "array": [row.stderr for row in own]},
                name=name,
                legendgroup=name,
                showlegend=col == 1 or not any(row.model == model for row in sides[0]),
                marker={"color": qualitative.D3[models.index(model) % 10]},
                row=1,
                col=col,
            )
        chances = {row.steps if lines else row.label: row.chance for row in side}
        figure.add_scatter(
            x=list(chances),
            y=list(chances.values()),
            mode="markers",
            marker={"symbol": "line-ew-open", "size": 40, "color": "#333333"},
            name="random guessing",
            legendgroup=" chance",
            showlegend=col == 1,
            row=1,
            col=col,
        )
        figure.update_xaxes(title="D, equations per chain" if lines else "formulation", col=col)
    figure.update_yaxes(title="accuracy", range=[0, 1.05], col=1)
    return figure.update_layout(template="plotly_white", barmode="group")
