"""Figure 2 from Inspect's logs: `python -m retrieval_interp llm plot logs --out figure.html`.

Inspect itself asks the questions: `inspect eval retrieval_interp/retrieval --model ...`.
"""

import math
import shlex
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from retrieval_interp.commands.command import check_outputs, parse_options, saying, tell_files
from retrieval_interp.storage.files import provenance, write_json, write_whole
from retrieval_interp.tasks.errors import InputError, printable
from retrieval_interp.views.tables import terminal_width, text_table

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

FORMULATIONS = ("equations", "lives-with", "kingdoms", "functions", "relatives")  # F1 to F5
_UNREAD = {"messages", "events", "store", "attachments", "output"}  # no number here needs them


@dataclass(frozen=True)
class LlmOptions:
    """Show how well language models solve the problem in words (paper, figure 2).

    Attributes:
        command: plot prints a table and draws figure 2.
        logs: Inspect's log files, or folders of them.
        out: write the figure as an HTML page that works offline to this file.
        json: write the numbers to this file.
    """

    command: Annotated[Literal["plot"], "command"]
    logs: Annotated[tuple[Path, ...], "logs"]
    out: Annotated[Path | None, "--out", "--html"] = None
    json: Path | None = None


def main(argv: Sequence[str], prog: str = "retrieval-interp llm") -> None:
    options = parse_options(LlmOptions, argv, prog)
    check_outputs({"--out": options.out, "--json": options.json}, options.logs)
    with saying("loading Inspect"):
        try:
            import inspect_ai.log  # noqa: F401
        except ImportError:
            raise InputError(
                "expected Inspect to be installed; pip install 'retrieval-interp[llm]'"
            ) from None
    results = read_results(options.logs)
    if not results:
        raise InputError("expected logs of inspect eval, found none; name files or their folder")
    print(results_table(results, terminal_width()))
    if options.json is not None:
        made = provenance(f"{prog} {shlex.join(argv)}")
        write_json(options.json, {**made, "rows": [asdict(row) for row in results]})
    if options.out is not None:
        page = accuracy_figure(results).to_html(include_plotlyjs=True, div_id="accuracy")
        write_whole(options.out, page)
    tell_files(numbers=options.json, figure=options.out)


@dataclass(frozen=True)
class Result:
    """How well a model answers the questions of a formulation."""

    log: str
    model: str
    formulation: str
    steps: int | None
    questions: int
    accuracy: float
    stderr: float  # over questions, after the mean over epochs
    chance: float
    attempts: float  # to get an acceptable answer, on average
    unanswered: int  # questions without one

    @property
    def label(self) -> str:
        return self.formulation if self.steps is None else f"{self.formulation}, D = {self.steps}"


def read_results(paths: Iterable[Path]) -> list[Result]:
    """The results in log files, or in the `.eval` files of folders, by formulation, D and model."""
    found: dict[tuple[str, str], Result] = {}
    for path in paths:
        logs = sorted(path.rglob("*.eval")) if path.is_dir() else [path]
        for result in (result for log in logs for result in _read_log(log)):
            first = found.setdefault((result.model, result.label), result)
            if first is not result:
                raise InputError(
                    f"{result.log}: expected one log per model, formulation and D, found "
                    f"{result.model}, {result.label} in {first.log} too; leave one out"
                )
    rows = sorted(found.values(), key=lambda row: (row.steps or 0, row.model))
    return sorted(rows, key=lambda row: FORMULATIONS.index(row.formulation))


def _read_log(path: Path) -> Iterator[Result]:
    from inspect_ai.log import read_eval_log

    try:
        log = read_eval_log(path, exclude_fields=_UNREAD)
    except Exception as error:  # what Inspect raises depends on where the file stops being a log
        raise InputError(
            f"{path}: expected an Inspect log (.eval or .json), found another file: {error!s:.80}"
        ) from None
    scored = [sample for sample in log.samples or [] if sample.scores]
    formulation = log.metadata.get("formulation")
    if formulation not in FORMULATIONS or log.status != "success" or not scored:
        raise InputError(
            f"{path}: expected a finished log of {', '.join(FORMULATIONS)} with scored samples, "
            f"found one of {log.eval.task} with the status {log.status!r} and {len(scored)} scored "
            "samples; leave it out, or finish it with inspect eval-retry"
        )
    for steps in dict.fromkeys(sample.metadata.get("steps") for sample in scored):
        samples = [sample for sample in scored if sample.metadata.get("steps") == steps]
        epochs: dict[int | str, list[bool]] = {}
        tries: list[dict[str, Any]] = []
        for sample in samples:
            (score,) = sample.scores.values()
            epochs.setdefault(sample.id, []).append(score.value == "C")
            tries.append(score.metadata)
        values = [statistics.fmean(right) for right in epochs.values()]
        yield Result(
            str(path),
            log.eval.model,
            formulation,
            steps,
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
    """Accuracy by formulation, D and model with standard errors, and of guessing (figure 2)."""
    from plotly.graph_objects import Figure

    figure = Figure()
    for model in sorted({row.model for row in results}):
        own = [row for row in results if row.model == model]
        figure.add_bar(
            x=[row.label for row in own],
            y=[row.accuracy for row in own],
            error_y={"type": "data", "array": [row.stderr for row in own]},
            name=escape(model, quote=False),  # Plotly reads tags as markup
        )
    chances = {row.label: row.chance for row in results}
    figure.add_scatter(
        x=list(chances),
        y=list(chances.values()),
        mode="markers",
        marker={"symbol": "line-ew-open", "size": 40, "color": "#333333"},
        name="random guessing",
    )
    figure.update_xaxes(title="formulation, and D, steps per chain", categoryarray=list(chances))
    figure.update_yaxes(title="accuracy", range=[0, 1.05])
    return figure.update_layout(template="plotly_white", barmode="group")
