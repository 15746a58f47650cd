"""Kingdoms: who lives where people believe what makes them eat what ... (section 4, F3; A.3).

The question asks for a person by a disease, so the chain runs from the last statements to the
first: disease, substance, food, belief, kingdom, person. Every sentence puts x_d before x_{d-1}:
"Lamb contains Zephyrium" is the pair (Zephyrium, lamb).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.words.prompts.linear import LinearPrompt
from retrieval_interp.tasks.words.prompts.names import (
    BELIEFS,
    DISEASES,
    FOODS,
    KINGDOMS,
    PEOPLE,
    SUBSTANCES,
)
from retrieval_interp.tasks.words.prompts.page import Line, Mark
from retrieval_interp.tasks.words.prompts.prompt import expect_count, expect_statements

_KINDS = (DISEASES, SUBSTANCES, FOODS, BELIEFS, KINGDOMS, PEOPLE)  # of x_0 .. x_5
_VERBS = ("causes", "contains", "eat", "believe in", "lives in")  # of pair 1 .. 5


@dataclass(frozen=True)
class KingdomsPrompt(LinearPrompt):
    """Who has a disease that a substance causes that a food contains that ...

    Attributes:
        chains: number of chains, each of which leads to a different person.

    Raises:
        InputError: chains is below 1 or above 2,000.
    """

    chains: int = 4

    name: ClassVar[str] = "kingdoms"
    steps: ClassVar[int] = 5

    def __post_init__(self) -> None:
        expect_count(self.name, "chains", self.chains)
        expect_statements(self.name, "5 * chains", 5 * self.chains)

    def _symbols(self) -> Sequence[Sequence[str]]:
        return [kind.take(self.chains) for kind in _KINDS]

    def _statement(self, step: int, first: Mark, second: Mark) -> Line:
        word = second.word
        if step == 3:
            word = _people_of(word, "a belief", "ism", "ists")
        elif step == 4:
            word = _people_of(word, "a kingdom", "a", "ans")
        subject = second._replace(word=word[:1].upper() + word[1:])
        return subject, f" {_VERBS[step - 1]} ", first, "."

    def _question(self, query: Mark) -> Line:
        return "Who has ", query, "? Say directly the name without other words."


def _people_of(word: str, kind: str, ending: str, plural: str) -> str:
    if not word.endswith(ending):
        raise InputError(
            f"kingdoms: expected {kind} to end in {ending!r}, found {word!r}; rename it"
        )
    return word.removesuffix(ending) + plural
