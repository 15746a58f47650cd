"""The five formulations as tasks for Inspect (paper, section 4 and appendix A).

    inspect eval retrieval_interp/equations --model openai/gpt-4o -T steps=1,2,5

Every task asks `questions` questions (500, as in the paper) drawn with `seed` for every number of
steps D. The log holds the question, the answers, D and the accuracy of guessing (`chance`).
"""

from collections.abc import Callable, Sequence
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import accuracy, grouped, stderr

from retrieval_interp.llm.scorer import exact_answer
from retrieval_interp.llm.solver import (
    ATTEMPTS,
    TEMPERATURE,
    TaskRefused,
    expect_temperature,
    resample,
)
from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.words.prompts import (
    EquationsPrompt,
    FunctionsPrompt,
    KingdomsPrompt,
    LivesWithPrompt,
    Prompt,
    RelativesPrompt,
)
from retrieval_interp.tasks.words.prompts.prompt import expect_count

QUESTIONS = 500


@task
def equations(
    steps: int | Sequence[int | str] = 5,
    chains: int = 4,
    questions: int = QUESTIONS,
    seed: int = 0,
    attempts: int = ATTEMPTS,
) -> Task:
    """Which number is a variable set to, via a chain of other variables? (section 4, F1)

    Args:
        steps: equations per chain, D, at least 1; several, as in `1,2,5`, for several D.
        chains: chains per question, at least 1; guessing is right once in so many questions.
        questions: number for every D, at least 1.
        seed: which questions, in [0, 2^64).
        attempts: how often a question is asked at most to get an acceptable answer, at least 1.

    Raises:
        TaskRefused: a parameter is out of range, or the temperature is 0.
    """
    return _benchmark(
        lambda: [EquationsPrompt(n, chains) for n in _each(steps)],
        questions,
        seed,
        attempts,
    )


@task
def lives_with(
    steps: int | Sequence[int | str] = 5,
    chains: int = 4,
    questions: int = QUESTIONS,
    seed: int = 0,
    attempts: int = ATTEMPTS,
) -> Task:
    """In which city does somebody live who lives with somebody who ...? (section 4, F2)

    Args and errors: as for `equations`; steps are statements per chain.
    """
    return _benchmark(
        lambda: [LivesWithPrompt(n, chains) for n in _each(steps)],
        questions,
        seed,
        attempts,
    )


@task
def kingdoms(
    chains: int = 4, questions: int = QUESTIONS, seed: int = 0, attempts: int = ATTEMPTS
) -> Task:
    """Who has a disease caused by a substance that is in a food ...? (section 4, F3; D = 5)

    Args and errors: as for `equations`.
    """
    return _benchmark(lambda: [KingdomsPrompt(chains)], questions, seed, attempts)


@task
def functions(
    chains: int = 4, questions: int = QUESTIONS, seed: int = 0, attempts: int = ATTEMPTS
) -> Task:
    """Which value does an alias of a function take at a variable? (section 4, F4)

    Args and errors: as for `equations`; chains is the number of functions, aliases and variables.
    """
    return _benchmark(lambda: [FunctionsPrompt(chains)], questions, seed, attempts)


@task
def relatives(
    chains: int = 4, questions: int = QUESTIONS, seed: int = 0, attempts: int = ATTEMPTS
) -> Task:
    """In which country does somebody live who lives with a relative ...? (section 4, F5)

    Args and errors: as for `equations`; chains is the number of people, at most 12, and guessing is
    right once in chains * chains questions.
    """
    return _benchmark(lambda: [RelativesPrompt(chains)], questions, seed, attempts)


def _each(steps: object) -> list[int]:
    """The numbers of steps; Inspect passes `1,2,5` as a list of strings."""
    listed = list(steps) if isinstance(steps, list | tuple) else [steps]
    counts: list[Any] = [
        int(count) if isinstance(count, str) and count.isdecimal() else count for count in listed
    ]
    for count in counts:
        expect_count("steps", "every number", count)
    if not counts or len(set(counts)) < len(counts):
        raise InputError(f"steps: expected different numbers, at least one, found {listed}")
    return counts


def _benchmark(
    make: Callable[[], Sequence[Prompt]], questions: int, seed: int, attempts: int
) -> Task:
    """The task of the prompts that `make` makes; what it refuses is shown in one line."""
    expect_temperature()
    try:
        made = make()
        name = made[0].name
        expect_count(name, "questions", questions)
        expect_count(name, "attempts", attempts)
        if not isinstance(seed, int):
            raise InputError(f"{name}: expected seed to be an integer, found {seed!r}")
        # Each index for every D before the next one, so that --limit shortens all D alike.
        samples = [_sample(prompt, index, seed) for index in range(questions) for prompt in made]
    except InputError as error:
        raise TaskRefused(str(error)) from None
    metrics = [accuracy(), stderr()]
    if "steps" in samples[0].metadata:
        metrics += [
            grouped(metric, "steps", all=False, name_template=f"{label} D={{group_name}}")
            for label, metric in (("accuracy", accuracy()), ("stderr", stderr()))
        ]
    return Task(
        dataset=samples,
        solver=resample(attempts),
        scorer=exact_answer(),
        metrics=metrics,
        config=GenerateConfig(temperature=TEMPERATURE),
        metadata={"formulation": name, "chance": made[0].chance},
    )


def _sample(prompt: Prompt, index: int, seed: int) -> Sample:
    question = prompt.sample(index, seed, "test")
    steps = getattr(prompt, "steps", None)
    return Sample(
        input=question.prompt,
        target=question.correct,
        id=index + 1 if steps is None else f"D{steps}-{index + 1}",
        metadata={
            "formulation": prompt.name,
            **({} if steps is None else {"steps": steps}),
            "chains": prompt.chains,
            "chance": prompt.chance,
            "acceptable": list(question.acceptable),
        },
    )
