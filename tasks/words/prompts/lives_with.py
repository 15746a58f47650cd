"""Lives-with: "Alice lives in Switzerland. Bob lives with Alice. ..." (section 4, F2; A.2).

The pair (x_{d-1}, x_d) says that x_{d-1} lives with x_d, or, for d = D, in x_d. People's names are
assigned in the order of the steps, as the letters of the equations are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from retrieval_interp.tasks.words.prompts.linear import LinearPrompt
from retrieval_interp.tasks.words.prompts.names import CITIES, PEOPLE, groups
from retrieval_interp.tasks.words.prompts.page import Line, Mark
from retrieval_interp.tasks.words.prompts.prompt import expect_count, expect_statements


@dataclass(frozen=True)
class LivesWithPrompt(LinearPrompt):
    """In which city somebody lives who lives with somebody who lives with ...

    Attributes:
        steps: statements per chain, D.
        chains: number of chains, each of which ends in a different city.

    Raises:
        InputError: a parameter is below 1, or steps * chains is above 10,000.
    """

    steps: int = 5
    chains: int = 4

    name: ClassVar[str] = "lives-with"

    def __post_init__(self) -> None:
        expect_count(self.name, "steps", self.steps)
        expect_count(self.name, "chains", self.chains)
        expect_statements(self.name, "steps * chains", self.steps * self.chains)

    def _symbols(self) -> Sequence[Sequence[str]]:
        by_step = groups(PEOPLE.take(self.steps * self.chains), self.chains)
        return [*reversed(by_step), CITIES.take(self.chains)]

    def _statement(self, step: int, first: Mark, second: Mark) -> Line:
        return first, f" lives {'in' if step == self.steps else 'with'} ", second

    def _question(self, query: Mark) -> Line:
        return (
            *("Where does ", query),
            " live? Say directly only the name of the city, without any other words.",
        )
