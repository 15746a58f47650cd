"""Formulations whose steps form a line: equations, lives-with, kingdoms (paper, section 4).

1. A chain is x_0..x_D: the symbol in the question, the one that it leads to, ..., the answer. One
   statement says each pair d, (x_{d-1}, x_d).
2. The statements of every chain's pair D come first, then those of pair D-1, ..., then those of
   pair 1, with a separate order for each step, and finally the question about x_0 of one chain.
3. Roles are the paper's (appendix B): s0 is x_0 in the question, s_{2d-1} and s_{2d} are x_{d-1}
   and x_d in the statement of pair d, whatever their order in the sentence.

Chain 0 is the one asked; the others have no s0.
"""

from collections.abc import Sequence
from random import Random

from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.words.prompts.page import Line, Mark, compose
from retrieval_interp.tasks.words.prompts.prompt import (
    Prompt,
    expect_distinct,
    expect_same,
    shuffled,
)
from retrieval_interp.tasks.words.prompts.question import Question


class LinearPrompt(Prompt):
    """A formulation whose chains are lines; subclasses provide names and sentences."""

    @property
    def steps(self) -> int:
        """Statements per chain, D."""
        raise NotImplementedError

    def _symbols(self) -> Sequence[Sequence[str]]:
        """The names available for each of x_0, x_1, ..., x_D, one per chain."""
        raise NotImplementedError

    def _statement(self, step: int, first: Mark, second: Mark) -> Line:
        """The sentence for a pair."""
        raise NotImplementedError

    def _question(self, query: Mark) -> Line:
        raise NotImplementedError

    def render(self, chains: Sequence[Sequence[str]], orders: Sequence[Sequence[int]]) -> Question:
        """Build the question for given chains.

        Args:
            chains: x_0..x_D of every chain, all distinct; chain 0 is asked.
            orders: orders[d-1] lists the chains in the order of their statements of pair d.

        Raises:
            InputError: the number of chains, symbols or orders does not fit this formulation, a
                symbol is repeated, or an order leaves out a chain.
        """
        for name, found, expected in (
            ("chains", len(chains), self.chains),
            ("orders", len(orders), self.steps),
            *(("symbols a chain", len(chain), self.steps + 1) for chain in chains),
        ):
            if found != expected:
                raise InputError(f"{self.name}: expected {expected} {name}, found {found}")
        expect_distinct(self.name, "symbols", (word for chain in chains for word in chain))
        for step, order in enumerate(orders, start=1):
            expect_same(self.name, f"the order of step {step}", order, range(self.chains))
        lines = [
            self._statement(
                step,
                Mark(chains[chain][step - 1], chain, f"s{2 * step - 1}"),
                Mark(chains[chain][step], chain, f"s{2 * step}"),
            )
            for step in range(self.steps, 0, -1)
            for chain in orders[step - 1]
        ]
        lines.append(self._question(Mark(chains[0][0], 0, "s0")))
        return compose(lines, chains[0][-1], [chain[-1] for chain in chains])

    def _draw(self, rng: Random) -> Question:
        symbols = [shuffled(rng, names) for names in self._symbols()]
        orders = [shuffled(rng, range(self.chains)) for _ in range(self.steps)]
        return self.render(list(zip(*symbols)), orders)
