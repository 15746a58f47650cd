"""Asks until an acceptable answer comes (paper, section 4: "I repeat sampling until ...").

1. Every attempt is a new conversation: the model sees the question only, not its earlier outputs.
2. Inspect's cache is off, since it would repeat the first output. For the same reason a temperature
   of 0 is refused, and `--seed` grows by 1 with each attempt.
3. After `attempts` attempts the last output stands, and the scorer finds no answer in it.

The paper states neither a temperature nor a maximum number of attempts.
"""

from inspect_ai._util.error import PrerequisiteError
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.model._generate_config import active_generate_config
from inspect_ai.solver import Generate, Solver, TaskState, solver

from retrieval_interp.llm.scorer import read_answer
from retrieval_interp.tasks.errors import InputError

TEMPERATURE = 1.0
ATTEMPTS = 20


class TaskRefused(InputError, PrerequisiteError):
    """Bad input that `inspect eval` shows as one line instead of a traceback."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.message = text.replace("[", r"\[")  # shown as rich markup


@solver
def resample(attempts: int = ATTEMPTS) -> Solver:
    """Ask until the output is an acceptable answer.

    The number of times the model was asked is kept in the sample's store as `attempts`.

    Args:
        attempts: maximum per question, at least 1.
    """

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        expect_temperature()
        model, question = get_model(), list(state.messages)
        seed = active_generate_config().seed
        for attempt in range(attempts):
            state.store.set("attempts", attempt + 1)
            config = GenerateConfig(seed=None if seed is None else seed + attempt)
            state.output = await model.generate(question, config=config, cache=False)
            if read_answer(state.output.completion, state.metadata["acceptable"]) is not None:
                break
        state.messages.append(state.output.message)
        return state

    return solve


def expect_temperature() -> None:
    """Refuse a temperature of 0, at which the same answer would come every time.

    Raises:
        TaskRefused: it is 0.
    """
    temperature = active_generate_config().temperature
    if temperature is not None and temperature <= 0:
        raise TaskRefused(
            f"--temperature: expected a number above 0, found {temperature}; answers that are not "
            "acceptable are sampled again, and at 0 they would always be the same"
        )
