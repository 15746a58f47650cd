"""The results in logs of the benchmark: one row per log and number of steps, and their table."""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval_interp.tasks.errors import InputError, printable
from retrieval_interp.views.tables import text_table

FORMULATIONS = ("equations", "lives-with", "kingdoms", "functions", "relatives")  # F1 to F5
_LETTERS = ("C", "I")  # Inspect's correct and incorrect
_UNREAD = {"messages", "events", "store", "attachments", "output"}  # no number here needs them


@dataclass(frozen=True)
class Result:
    """How well a model answers the questions of a formulation.

    Attributes:
        log: the file it was read from.
        model: Inspect's name of the model.
        formulation: its name in the paper.
        steps: D; None for the formulations of conditional retrieval.
        questions: number of questions with a score.
        accuracy: share of correct answers, averaged over epochs first if there are several.
        stderr: standard error of the accuracy over the questions, as Inspect computes it.
        chance: accuracy of picking one of the acceptable answers at random.
        attempts: how often a question was asked on average.
        unanswered: number of questions (counted in each epoch) that never got an acceptable answer;
            they count as wrong.
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


def read_results(paths: Iterable[Path]) -> list[Result]:
    """The results in these logs, by formulation, D and model.

    Args:
        paths: Inspect's log files, or folders of them.

    Raises:
        InputError: a file is not a log of this benchmark, is unfinished or has no scores; a folder
            has no logs; or two logs have the same model, formulation and D.
    """
    found: dict[tuple[Any, ...], Result] = {}
    for result in (result for path in _log_files(paths) for result in _read_log(path)):
        first = found.setdefault((result.model, result.formulation, result.steps), result)
        if first is not result:
            steps = "" if result.steps is None else f", D = {result.steps}"
            raise InputError(
                f"{result.log}: expected one log per model, formulation and D, found "
                f"{result.model}, {result.formulation}{steps} in {first.log} too; leave one out"
            )
    return sorted(
        found.values(),
        key=lambda row: (FORMULATIONS.index(row.formulation), row.steps or 0, row.model),
    )


def _log_files(paths: Iterable[Path]) -> Iterator[Path]:
    from inspect_ai.log import list_eval_logs

    for path in dict.fromkeys(paths):
        if path.is_dir():
            logs = [
                Path(log.name.removeprefix("file://"))
                for log in list_eval_logs(str(path), descending=False)
            ]
            if not logs:
                raise InputError(
                    f"{path}: expected a folder with Inspect logs, found none in it; give the "
                    "--log-dir of inspect eval"
                )
            yield from logs
        elif path.is_file():
            yield path
        else:
            raise InputError(f"{path}: expected an Inspect log or a folder of them, found nothing")


def _read_log(path: Path) -> Iterator[Result]:
    from inspect_ai.log import read_eval_log

    try:
        log = read_eval_log(path, exclude_fields=_UNREAD)
    except Exception as error:  # what Inspect raises depends on where the file stops being a log
        raise InputError(
            f"{path}: expected an Inspect log (.eval or .json), found a file that cannot be read "
            f"as one: {error!s:.80}; give the files that inspect eval wrote"
        ) from None
    formulation = log.metadata.get("formulation")
    if formulation not in FORMULATIONS:
        raise InputError(
            f"{path}: expected a log of {', '.join(FORMULATIONS)}, found one of the task "
            f"{log.eval.task}; leave it out"
        )
    if log.status != "success":
        raise InputError(
            f"{path}: expected a finished log, found the status {log.status!r}; finish it with "
            "inspect eval-retry, or leave it out"
        )
    scored = [sample for sample in log.samples or [] if _score(sample) is not None]
    if not scored:
        raise InputError(
            f"{path}: expected a log with scored samples, found none; run without --no-log-samples "
            "and --no-score"
        )
    if not all(map(_is_own, scored)):
        raise InputError(
            f"{path}: expected samples with the steps, chance, attempts and value that this "
            "benchmark gives them, found others; give the files that inspect eval wrote"
        )
    for steps in dict.fromkeys(sample.metadata.get("steps") for sample in scored):
        samples = [sample for sample in scored if sample.metadata.get("steps") == steps]
        yield _result(str(path), log.eval.model, formulation, steps, samples)


def _score(sample: Any) -> Any:
    scores = sample.scores or {}
    # The scorer's name has a package only if the task was installed.
    return scores.get("exact_answer", scores.get("retrieval_interp/exact_answer"))


def _is_own(sample: Any) -> bool:
    """Whether a sample has the metadata and score that this benchmark gives."""
    score = _score(sample)
    known = score.metadata or {}
    steps, chance = sample.metadata.get("steps"), sample.metadata.get("chance")
    return (
        (steps is None or (type(steps) is int and 0 < steps < 2**31))
        and (type(chance) in (int, float) and 0 < chance <= 1)
        and (type(known.get("attempts")) is int and 0 < known["attempts"] < 2**31)
        and type(known.get("unanswered")) is bool
        and (score.value in _LETTERS if isinstance(score.value, str) else score.value in (0, 1))
    )


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
    header = ["model", "formulation", "D", "questions", "accuracy", "chance"]
    header += ["attempts", "unanswered"]
    rows = [
        [
            printable(row.model),
            row.formulation,
            "-" if row.steps is None else str(row.steps),
            str(row.questions),
            f"{row.accuracy:.3f} +- {row.stderr:.3f}",
            f"{row.chance:.3f}",
            f"{row.attempts:.2f}",
            str(row.unanswered),
        ]
        for row in results
    ]
    return "\n".join(text_table(header, rows, right=range(2, len(header)), width=width))
