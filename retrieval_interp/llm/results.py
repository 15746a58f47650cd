"""How well models answer the five formulations: rows of files, their table, and figure 2."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from retrieval_interp.storage.files import read_text
from retrieval_interp.tasks.messages import InputError, printable
from retrieval_interp.tasks.structured import from_data, read_json
from retrieval_interp.views.tables import text_table

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

FORMULATIONS = ("equations", "lives-with", "kingdoms", "functions", "relatives")  # F1 to F5
WITH_STEPS = FORMULATIONS[:2]


@dataclass(frozen=True)
class AccuracyRow:
    """How well a model answers the questions of a formulation; None where it is not known."""

    model: str
    formulation: str
    steps: int | None
    questions: int
    accuracy: float  # of the paper's protocol: measured by Inspect, or expected
    stderr: float
    chance: float
    solved: int = 0  # examples before each question
    chat: bool = False  # whether a chat's user asks
    likeliest: float | None = None  # how often the likeliest acceptable answer is right
    likeliest_stderr: float | None = None
    accepted: float | None = None  # probability that an answer is acceptable
    log: str | None = None
    command: str | None = None

    @property
    def label(self) -> str:
        return self.formulation if self.steps is None else f"{self.formulation}, D = {self.steps}"

    @property
    def asked(self) -> str:
        """The model, and how it was asked."""
        solved = f", {self.solved} solved" if self.solved else ""
        return self.model + ", chat" * self.chat + solved


def read_results(paths: Iterable[Path]) -> list[AccuracyRow]:
    """Read results in files, or in the files of folders, by formulation, D and model."""
    by_label: dict[tuple[str, str], tuple[Path, AccuracyRow]] = {}
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: expected a log or a file of llm score, found no such file")
        files = sorted(path.rglob("*.eval")) if path.is_dir() else [path]
        for place, result in ((file, result) for file in files for result in _read(file)):
            first = by_label.setdefault((result.asked, result.label), (place, result))
            if first[1] is not result:
                raise InputError(
                    f"{place}: expected one log per model, formulation and D, found "
                    f"{result.asked}, {result.label} in {first[0]} too; leave one out"
                )
    rows = [row for _, row in by_label.values()]
    return sorted(
        rows, key=lambda row: (FORMULATIONS.index(row.formulation), row.steps or 0, row.asked)
    )


def _read(path: Path) -> Iterable[AccuracyRow]:
    """Read the rows that `--json` wrote, or those of a log."""
    data = read_json(read_text(path, "a log"), f"{path}") if path.suffix == ".json" else None
    if not isinstance(data, dict) or "rows" not in data:
        return _read_log(path)
    return [from_data(AccuracyRow, row, f"{path}: rows") for row in data["rows"]]


def _read_log(path: Path) -> list[AccuracyRow]:
    try:
        from inspect_ai.log import read_eval_log
    except ImportError:
        raise InputError(
            "expected Inspect to be installed; pip install 'retrieval-interp[llm]'"
        ) from None
    try:
        log = read_eval_log(path, header_only=True)
    except Exception as error:  # what Inspect raises depends on where the file stops being a log
        raise InputError(
            f"{path}: expected an Inspect log (.eval or .json), found another file: {error!s:.80}"
        ) from None
    asked = {name: log.metadata.get(name) for name in ("formulation", "steps", "chance")}
    if asked["formulation"] not in FORMULATIONS or log.status != "success" or not log.results:
        raise InputError(
            f"{path}: expected a finished log of {', '.join(FORMULATIONS)}, found one of "
            f"{log.eval.task} with the status {log.status!r}; leave it out, or finish it with "
            "inspect eval-retry"
        )
    measured = {name: metric.value for name, metric in log.results.scores[0].metrics.items()}
    count = log.results.total_samples // (log.eval.config.epochs or 1)
    return [AccuracyRow(model=log.eval.model, questions=count, log=str(path), **asked, **measured)]


def results_table(results: Sequence[AccuracyRow], width: int | None = None) -> str:
    """Return the rows as a text table, in lines of at most `width` characters."""
    header = ["model", "formulation", "D", "questions", "accuracy", "chance"]
    header += ["likeliest", "accepted"]
    rows = []
    for row in results:
        cells = [printable(row.asked), row.formulation, f"{row.steps or '-'}", f"{row.questions}"]
        cells += [f"{row.accuracy:.3f} +- {row.stderr:.3f}", f"{row.chance:.3f}"]
        known = row.likeliest is not None
        cells += [f"{row.likeliest:.3f} +- {row.likeliest_stderr:.3f}" if known else ""]
        rows.append([*cells, f"{row.accepted:.2g}" if known else ""])
    return "\n".join(text_table(header, rows, right=range(2, len(header)), width=width))


def accuracy_figure(results: Sequence[AccuracyRow]) -> "Figure":
    """Draw accuracy by formulation, D and model, with that of guessing (figure 2)."""
    from plotly.graph_objects import Figure

    figure = Figure()
    for model in sorted({row.asked for row in results}):
        rows = [row for row in results if row.asked == model]
        figure.add_bar(
            x=[row.label for row in rows],
            y=[row.accuracy for row in rows],
            error_y={"type": "data", "array": [row.stderr for row in rows]},
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
