"""The five formulations as a task for Inspect (paper, section 4 and appendix A).

    inspect eval retrieval_interp/retrieval --model openai/gpt-4o -T steps=2

As in the paper, a question is asked again until an acceptable answer comes, each time in a new
conversation and without a cache. The paper states neither a temperature nor a maximum number of
attempts.
"""

from collections.abc import Iterable

from inspect_ai import Task, task
from inspect_ai._util.error import PrerequisiteError
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import match
from inspect_ai.solver import Generate, Solver, TaskState, solver

from retrieval_interp.llm.results import WITH_STEPS
from retrieval_interp.tasks.messages import InputError
from retrieval_interp.tasks.words import prompts

_AROUND = " \t\n.\"'`“”‘’«»"  # an answer


@task
def retrieval(
    formulation: str = "equations",
    steps: int | None = None,
    chains: int = 4,
    questions: int = 500,
    seed: int = 0,
    attempts: int = 20,
) -> Task:
    """Make the task of retrieval in words, as in the paper's section 4.

    Args:
        formulation: `equations`, `lives-with`, `kingdoms`, `functions` or `relatives`.
        steps: statements per chain, D, of equations and lives-with (5).
        chains: chains per question; guessing is right once in so many questions.
        questions: how many.
        seed: of the questions.
        attempts: how often to ask a question, at most, to get an acceptable answer.
    """
    try:
        if formulation not in prompts.FORMULATIONS:
            known = ", ".join(prompts.FORMULATIONS)
            raise InputError(f"formulation: expected one of {known}, found {formulation!r:.40}")
        if steps is not None and formulation not in WITH_STEPS:
            raise InputError(f"steps: expected none for {formulation}, found {steps}")
        if min(questions, attempts) < 1:
            raise InputError(f"expected questions and attempts, found {questions} and {attempts}")
        given = {"chains": chains} if steps is None else {"chains": chains, "steps": steps}
        prompt = prompts.FORMULATIONS[formulation](**given)
        asked = [prompt.sample(index, seed, "test") for index in range(questions)]
    except InputError as error:  # which `inspect eval` would show as a traceback
        raise PrerequisiteError(str(error).replace("[", r"\[")) from None
    about = {"steps": vars(prompt).get("steps"), "chance": prompt.chance}
    return Task(
        name=formulation,  # of the log
        dataset=[
            Sample(input=q.prompt, target=q.correct, metadata={"acceptable": [*q.acceptable]})
            for q in asked
        ],
        solver=resample(attempts),
        scorer=match("exact"),
        config=GenerateConfig(temperature=1.0),
        metadata={"formulation": formulation, **about},
    )


@solver
def resample(attempts: int = 20) -> Solver:
    """Ask until the output is an acceptable answer, and keep the number of `attempts`."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        model, question = get_model(), list(state.messages)
        for attempt in range(attempts):
            state.store.set("attempts", attempt + 1)
            state.output = await model.generate(question, cache=False)
            answer = read_answer(state.output.completion, state.metadata["acceptable"])
            if answer is not None:
                state.output.completion = answer
                break
        state.messages.append(state.output.message)
        return state

    return solve


def read_answer(text: str, acceptable: Iterable[str]) -> str | None:
    """Return the acceptable answer that an output is, but for blanks, stops, quotes and case.

    A sentence around it is no answer.
    """
    bare = text.strip(_AROUND).casefold()
    return next((answer for answer in acceptable if answer.casefold() == bare), None)
