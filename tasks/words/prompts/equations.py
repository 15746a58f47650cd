"""Equations: "a = 3. b = a. c = b. c = ?" (paper, section 4, F1, and appendix A.1).

The pair (x_{d-1}, x_d) is the equation x_{d-1} = x_d. Letters are assigned in the order of the
steps, a, b, c, ... to the equations that come first; after z come aa, ab, ...
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.words.prompts.linear import LinearPrompt
from retrieval_interp.tasks.words.prompts.names import groups, letters
from retrieval_interp.tasks.words.prompts.page import Line, Mark
from retrieval_interp.tasks.words.prompts.prompt import expect_count, expect_statements


@dataclass(frozen=True)
class EquationsPrompt(LinearPrompt):
    """Which number a variable holds that was set to a variable that was set to ...

    Attributes:
        steps: equations per chain, D.
        chains: number of chains; they end in the numbers 0 .. chains-1.
        question: `printed`, in whole sentences as in appendix A.1, or `short`, `c = ?`, as in
            section 4.

    Raises:
        InputError: a parameter is below 1 or unknown, or steps * chains is above 10,000.
    """

    steps: int = 5
    chains: int = 4
    question: Literal["printed", "short"] = "printed"

    name: ClassVar[str] = "equations"

    def __post_init__(self) -> None:
        expect_count(self.name, "steps", self.steps)
        expect_count(self.name, "chains", self.chains)
        expect_statements(self.name, "steps * chains", self.steps * self.chains)
        if self.question not in ("printed", "short"):
            raise InputError(
                f"{self.name}: expected question 'printed' or 'short', found {self.question!r:.40}"
            )

    def _symbols(self) -> Sequence[Sequence[str]]:
        numbers = [str(number) for number in range(self.chains)]
        by_step = groups(letters(self.steps * self.chains), self.chains)
        return [*reversed(by_step), numbers]

    def _statement(self, step: int, first: Mark, second: Mark) -> Line:
        return first, " = ", second

    def _question(self, query: Mark) -> Line:
        if self.question == "short":
            return query, " = ?"
        return (
            *("What is the value of ", query),
            "? Say directly only the numeric value, without any other words.",
        )
