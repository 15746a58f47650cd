"""Reads the answer from a model's output and scores it.

1. White space around the text and one full stop at its end are dropped, then one pair of quotation
   marks around the rest, and inside them white space and a full stop again.
2. What is left must be one of the acceptable answers, ignoring case. Anything else is no answer: a
   sentence around it, `s = 1`, `1.0`, or emphasis.
"""

from collections.abc import Iterable

from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, accuracy, scorer, stderr
from inspect_ai.solver import TaskState

_QUOTES = ('""', "''", "``", "“”", "‘’", "«»")


def read_answer(text: str, acceptable: Iterable[str]) -> str | None:
    """The acceptable answer that a text stands for, as the question writes it, or None.

    Args:
        text: the whole output of the model.
        acceptable: as `Question.acceptable`.
    """
    bare = _without_stop(text)
    if len(bare) > 1 and bare[0] + bare[-1] in _QUOTES:
        bare = _without_stop(bare[1:-1])
    return next((answer for answer in acceptable if answer.casefold() == bare.casefold()), None)


def _without_stop(text: str) -> str:
    return text.strip().removesuffix(".").strip()


@scorer(metrics=[accuracy(), stderr()])
def exact_answer() -> Scorer:
    """Correct if the last output is the correct answer (paper, section 4).

    If the solver has given up and the output is no acceptable answer, it is wrong, and `unanswered`
    is set in the score's metadata; `attempts` there says how often the model was asked.
    """

    async def score(state: TaskState, target: Target) -> Score:
        answer = read_answer(state.output.completion, state.metadata["acceptable"])
        attempts = state.store.get("attempts", 1)
        return Score(
            value=CORRECT if answer == target.text else INCORRECT,
            answer=answer,
            explanation=f"no acceptable answer in {attempts} attempts" if answer is None else None,
            metadata={"attempts": attempts, "unanswered": answer is None},
        )

    return score
