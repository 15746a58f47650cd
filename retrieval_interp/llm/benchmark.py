"""The five formulations as tasks for Inspect (paper, section 4 and appendix A).

    inspect eval retrieval_interp/equations --model openai/gpt-4o -T steps=1,2,5

As in the paper, a question is asked again until an acceptable answer comes, each time in a new
conversation and without a cache. The paper states neither a temperature nor a maximum number of
attempts.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from inspect_ai import Task, task
from inspect_ai._util.error import PrerequisiteError
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import Score, Scorer, Target, accuracy, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver

from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.words import prompts

_AROUND = " \t\n.\"'`“”‘’«»"  # an answer
Steps = int | Sequence[int | str]  # Inspect passes `1,2,5` as a list of strings


@task
def equations(steps: Steps = 5, chains: int = 4, **how: int) -> Task:
    """Which number is a variable set to, via a chain of other variables? (F1)

    Args:
        steps: equations per chain, D; several, as in `1,2,5`, for several D.
        chains: chains per question; guessing is right once in so many questions.
        how: `questions` for every D (500); `seed` (0); `attempts`, how often a question is asked at
            most to get an acceptable answer (20).
    """
    return _benchmark(prompts.EquationsPrompt, chains, steps, **how)


@task
def lives_with(steps: Steps = 5, chains: int = 4, **how: int) -> Task:
    """In which city does somebody live who lives with somebody who ...? (F2; see `equations`)"""
    return _benchmark(prompts.LivesWithPrompt, chains, steps, **how)


@task
def kingdoms(chains: int = 4, **how: int) -> Task:
    """Who has a disease caused by a substance in a food ...? (F3, D = 5; see `equations`)"""
    return _benchmark(prompts.KingdomsPrompt, chains, **how)


@task
def functions(chains: int = 4, **how: int) -> Task:
    """Which value does an alias of a function take at a variable? (F4; see `equations`)"""
    return _benchmark(prompts.FunctionsPrompt, chains, **how)


@task
def relatives(chains: int = 4, **how: int) -> Task:
    """In which country does somebody live who lives with a relative ...? (F5; see `equations`)"""
    return _benchmark(prompts.RelativesPrompt, chains, **how)


def _benchmark(
    kind: Any,
    chains: int,
    steps: Steps = (),
    questions: int = 500,
    seed: int = 0,
    attempts: int = 20,
) -> Task:
    each = list(steps) if isinstance(steps, Sequence) else [steps]
    try:
        if len(set(each)) < len(each) or not all(str(n).isdecimal() for n in each):
            raise InputError(f"steps: expected different integers, found {each}")
        if min(questions, attempts) < 1:
            raise InputError(f"expected questions and attempts, found {questions} and {attempts}")
        made = [kind(steps=int(n), chains=chains) for n in each] or [kind(chains=chains)]
        # Each index for every D before the next one, so that --limit shortens all D alike.
        samples = [_sample(prompt, index, seed) for index in range(questions) for prompt in made]
    except InputError as error:  # which `inspect eval` would show as a traceback
        raise PrerequisiteError(str(error).replace("[", r"\[")) from None
    return Task(
        dataset=samples,
        solver=resample(attempts),
        scorer=exact_answer(),
        config=GenerateConfig(temperature=1.0),
        metadata={"formulation": kind.name, "chance": made[0].chance},
    )


def _sample(prompt: prompts.Prompt, index: int, seed: int) -> Sample:
    question = prompt.sample(index, seed, "test")
    steps = vars(prompt).get("steps")
    return Sample(
        input=question.prompt,
        target=question.correct,
        id=f"D{steps}-{index + 1}" if steps else index + 1,
        metadata={
            "formulation": prompt.name,
            **({"steps": steps} if steps else {}),
            "chance": prompt.chance,
            "acceptable": list(question.acceptable),
        },
    )


@solver
def resample(attempts: int = 20) -> Solver:
    """Ask until the output is an acceptable answer, and keep the number of `attempts`."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        model, question = get_model(), list(state.messages)
        for attempt in range(attempts):
            state.store.set("attempts", attempt + 1)
            state.output = await model.generate(question, cache=False)
            if read_answer(state.output.completion, state.metadata["acceptable"]) is not None:
                break
        state.messages.append(state.output.message)
        return state

    return solve


def read_answer(text: str, acceptable: Iterable[str]) -> str | None:
    """The acceptable answer that an output is, without blanks, stops, quotation marks and case.

    A sentence around it is no answer.
    """
    bare = text.strip(_AROUND).casefold()
    return next((answer for answer in acceptable if answer.casefold() == bare), None)


@scorer(metrics=[accuracy(), stderr()])
def exact_answer() -> Scorer:
    """Correct if the last output is the correct answer (paper, section 4)."""

    async def score(state: TaskState, target: Target) -> Score:
        answer = read_answer(state.output.completion, state.metadata["acceptable"])
        attempts = state.store.get("attempts", 1)
        return Score(
            value="C" if answer == target.text else "I",
            answer=answer,
            explanation=f"no acceptable answer in {attempts} attempts" if answer is None else None,
            metadata={"attempts": attempts, "unanswered": answer is None},
        )

    return score
