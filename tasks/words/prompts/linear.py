"""Formulations whose steps form a line: equations, lives-with, kingdoms (section 4; A.1 to A.3).

A chain is x_0..x_D, from the symbol in the question to the answer. The statements of every chain's
pair (x_{D-1}, x_D) come first, then those of pair D-1, ..., each step in an order of its own. Roles
are the paper's (appendix B). Chain 0 is the one asked; the others have no s0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from retrieval_interp.tasks.structured import number
from retrieval_interp.tasks.words.prompts import names
from retrieval_interp.tasks.words.prompts.prompt import Draw, Line, Prompt, Question, write

MOST = 1000  # steps, and chains


class LinearPrompt(Prompt):
    """A formulation whose chains are lines; subclasses provide names and sentences."""

    steps: int
    ask: ClassVar[str]  # the question, with the mark {s0}

    def symbols(self) -> Sequence[Sequence[str]]:
        """The names available for each of x_0, x_1, ..., x_D, one per chain."""
        raise NotImplementedError

    def statement(self, step: int, first: str, second: str) -> tuple[str, str, str]:
        """The sentence of a pair, with marks {0} and {1}, and its words as they are written."""
        raise NotImplementedError

    def render(self, chains: Sequence[Sequence[str]], orders: Sequence[Sequence[int]]) -> Question:
        """Write given chains.

        Args:
            chains: x_0..x_D of every chain, all distinct; chain 0 is asked.
            orders: orders[d-1] lists the chains in the order of their statements of pair d.
        """
        lines: list[Line] = []
        for step in range(self.steps, 0, -1):
            roles = [f"{{s{2 * step - 1}}}", f"{{s{2 * step}}}"]
            for chain in orders[step - 1]:
                text, *words = self.statement(step, *chains[chain][step - 1 : step + 1])
                in_print = words if text.startswith("{0}") else words[::-1]
                lines.append((text.format(*roles), chain, in_print))
        lines.append((self.ask, 0, chains[0][:1]))
        return write(lines, chains[0][-1], [chain[-1] for chain in chains])

    def draw(self, rng: Draw) -> Question:
        symbols = [rng.shuffled(names) for names in self.symbols()]
        orders = [rng.shuffled(range(self.chains)) for _ in range(self.steps)]
        return self.render(list(zip(*symbols)), orders)


@dataclass(frozen=True)
class EquationsPrompt(LinearPrompt):
    """Equations (F1): which number a variable holds that was set to a variable that was set to ...

    Attributes:
        steps: equations per chain, D.
        chains: number of chains; they end in the numbers 0 .. chains-1.
        question: `printed`, in whole sentences as in appendix A.1, or `short`, `c = ?`, as in
            section 4.
    """

    steps: int = number(5, least=1, most=MOST)
    chains: int = number(4, least=1, most=MOST)
    question: Literal["printed", "short"] = "printed"

    name: ClassVar[str] = "equations"

    def symbols(self) -> Sequence[Sequence[str]]:
        by_step = names.groups(names.letters(self.steps * self.chains), self.chains)
        return [*reversed(by_step), [str(number) for number in range(self.chains)]]

    def statement(self, step: int, first: str, second: str) -> tuple[str, str, str]:
        return "{0} = {1}", first, second

    @property
    def ask(self) -> str:  # type: ignore[override]
        only = "Say directly only the numeric value, without any other words."
        return "{s0} = ?" if self.question == "short" else f"What is the value of {{s0}}? {only}"


@dataclass(frozen=True)
class LivesWithPrompt(LinearPrompt):
    """Lives-with (F2): in which city somebody lives who lives with somebody who lives with ...

    Attributes:
        steps: statements per chain, D.
        chains: number of chains, each of which ends in a different city.
    """

    steps: int = number(5, least=1, most=MOST)
    chains: int = number(4, least=1, most=MOST)

    name: ClassVar[str] = "lives-with"
    ask = "Where does {s0} live? Say directly only the name of the city, without any other words."

    def symbols(self) -> Sequence[Sequence[str]]:
        by_step = names.groups(names.PEOPLE.take(self.steps * self.chains), self.chains)
        return [*reversed(by_step), names.CITIES.take(self.chains)]

    def statement(self, step: int, first: str, second: str) -> tuple[str, str, str]:
        return f"{{0}} lives {'in' if step == self.steps else 'with'} {{1}}", first, second


_SENTENCES = (  # of pair 1 .. 5: the verb, and the endings of a thing and of its people
    ("causes", "", ""),
    ("contains", "", ""),
    ("eat", "ism", "ists"),
    ("believe in", "a", "ans"),
    ("lives in", "", ""),
)


@dataclass(frozen=True)
class KingdomsPrompt(LinearPrompt):
    """Kingdoms (F3): who has a disease that a substance causes that a food contains that ...

    Attributes:
        chains: number of chains, each of which leads to a different person.
    """

    chains: int = number(4, least=1, most=MOST)

    name: ClassVar[str] = "kingdoms"
    steps = 5
    ask = "Who has {s0}? Say directly the name without other words."

    def symbols(self) -> Sequence[Sequence[str]]:
        return [kind.take(self.chains) for kind in names.OF_KINGDOMS]

    def statement(self, step: int, first: str, second: str) -> tuple[str, str, str]:
        verb, ending, plural = _SENTENCES[step - 1]
        subject = second.removesuffix(ending) + plural
        return f"{{1}} {verb} {{0}}.", first, subject[:1].upper() + subject[1:]
