"""The five formulations as a task for Inspect (paper, section 4 and appendix A).

    inspect eval retrieval_interp/retrieval --model openai/gpt-4o -T steps=1,2,5

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
_KINDS: list[Any] = [prompts.EquationsPrompt, prompts.LivesWithPrompt, prompts.KingdomsPrompt]
_KINDS += [prompts.FunctionsPrompt, prompts.RelativesPrompt]
_FORMULATIONS = {kind.name: kind for kind in _KINDS}


@task
def retrieval(
    formulation: str = "equations",
    steps: int | Sequence[int | str] = (),
    chains: int = 4,
    questions: int = 500,
    seed: int = 0,
    attempts: int = 20,
) -> Task:
    """Retrieval in words, as in the paper's section 4.

    Args:
        formulation: `equations`, `lives-with`, `kingdoms`, `functions` or `relatives`.
        steps: statements per chain, D, of equations and lives-with (5); several, as in `1,2,5`,
            for several D.
        chains: chains per question; guessing is right once in so many questions.
        questions: for every D.
        seed: of the questions.
        attempts: how often a question is asked at most to get an acceptable answer.
    """
    each = list(steps) if isinstance(steps, Sequence) else [steps]
    try:
        if formulation not in _FORMULATIONS:
            known = ", ".join(_FORMULATIONS)
            raise InputError(f"formulation: expected one of {known}, found {formulation!r:.40}")
        kind = _FORMULATIONS[formulation]
        if len(set(each)) < len(each) or not all(str(n).isdecimal() for n in each):
            raise InputError(f"steps: expected different integers, found {each}")
        if each and formulation not in ("equations", "lives-with"):
            raise InputError(f"steps: expected none for {formulation}, found {each}")
        if min(questions, attempts) < 1:
            raise InputError(f"expected questions and attempts, found {questions} and {attempts}")
        made = [kind(steps=int(n), chains=chains) for n in each] or [kind(chains=chains)]
        # Each index for every D before the next one, so that --limit shortens all D alike.
        samples = [_sample(prompt, index, seed) for index in range(questions) for prompt in made]
    except InputError as error:  # which `inspect eval` would show as a traceback
        raise PrerequisiteError(str(error).replace("[", r"\[")) from None
    return Task(
        name=formulation,  # of the log
        dataset=samples,
        solver=resample(attempts),
        scorer=exact_answer(),
        config=GenerateConfig(temperature=1.0),
        metadata={"formulation": formulation},
    )


def _sample(prompt: prompts.Prompt, index: int, seed: int) -> Sample:
    question = prompt.sample(index, seed, "test")
    steps = vars(prompt).get("steps")
    return Sample(
        input=question.prompt,
        target=question.correct,
        id=f"D{steps}-{index + 1}" if steps else index + 1,
        metadata={"steps": steps, "chance": prompt.chance, "acceptable": list(question.acceptable)},
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
