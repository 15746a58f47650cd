"""What the logs of the benchmark say: a row a log and number of steps, and a table of them."""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval_interp.views.tables import text_table
from tasks.errors import InputError, printable

FORMULATIONS = ("equations", "lives-with", "kingdoms", "functions", "relatives")  # F1 to F5
# What no number here needs is left on the disk.
_LETTERS = ("C", "I")  # Inspect's correct and incorrect
_UNREAD = {"messages", "events", "store", "attachments", "output"}


@dataclass(frozen=True)
class Result:
    """How well a model answers the questions of a formulation.

    Attributes:
        log: the file it was read from.
        model: as Inspect names it.
        formulation: its name in the paper.
        steps: D; None for the formulations of conditional retrieval.
        questions: how many have a score.
        accuracy: the share of right answers; with several epochs, of a question's mean score.
        stderr: the standard error of the accuracy over the questions, as Inspect computes it.
        chance: the accuracy of picking one of the acceptable answers blindly.
        attempts: how often a question was asked, on average.
        unanswered: to how many no acceptable answer came (in an epoch each); they count as wrong.
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
        paths: Inspect's log files, or folders of such.

    Raises:
        InputError: a file is no log of this benchmark, unfinished, or has no scores; a folder has
            no logs; or two logs hold the same model, formulation and D.
    """
    results = [result for path in _log_files(paths) for result in _read_log(path)]
    found: dict[tuple[Any, ...], Result] = {}
    for result in results:
        first = found.setdefault((result.model, result.formulation, result.steps), result)
        if first is not result:
            steps = "" if result.steps is None else f", D = {result.steps}"
            raise InputError(
                f"{result.log}: expected one log a model, formulation and D, found "
                f"{result.model}, {result.formulation}{steps} in {first.log} too; leave one out"
            )
    return sorted(
        results, key=lambda row: (FORMULATIONS.index(row.formulation), row.steps or 0, row.model)
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
    by_steps: dict[int | None, list[Any]] = {}
    for sample in log.samples or []:
        if _score(sample) is not None:
            steps = sample.metadata.get("steps")
            by_steps.setdefault(steps if type(steps) is int else None, []).append(sample)
    if not by_steps:
        raise InputError(
            f"{path}: expected a log with scored samples, found none; run without --no-log-samples "
            "and --no-score"
        )
    if not all(_is_own(sample) for samples in by_steps.values() for sample in samples):
        raise InputError(
            f"{path}: expected samples with the steps, chance, attempts and value that this "
            "benchmark gives them, found others; give the files that inspect eval wrote"
        )
    for steps, samples in by_steps.items():
        yield _result(str(path), log.eval.model, formulation, steps, samples)


def _score(sample: Any) -> Any:
    scores = sample.scores or {}
    # Of a task that is not installed the scorer has no package in its name.
    return scores.get("exact_answer", scores.get("retrieval_interp/exact_answer"))


def _is_own(sample: Any) -> bool:
    """Whether a sample has what the rows are made of."""
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


def results_table(results: Sequence[Result]) -> str:
    """The rows as a table for people."""
    header = ["model", "formulation", "D", "questions", "accuracy", "chance", "attempts"]
    header += ["unanswered"]
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
    return "\n".join(text_table(header, rows, right=range(2, len(header))))
