"""The formulations whose steps form a line: equations, lives-with, kingdoms (paper, section 4).

1. A chain is x_0..x_D: the symbol asked for, the one that it leads to, ..., the answer. Pair d is
   (x_{d-1}, x_d), and one statement says it.
2. The statements of every chain's pair D come first, then those of pair D-1, ..., then those of
   pair 1, in an order of its own within each step, and at last the question about x_0 of one chain.
3. Roles are the paper's (appendix B): s0 is x_0 in the question, s_{2d-1} and s_{2d} are x_{d-1}
   and x_d in the statement of pair d, in whatever order the sentence puts them.

Chain 0 is the one asked; the others have no s0.
"""

from collections.abc import Sequence
from random import Random

from tasks.errors import InputError
from tasks.words.prompts.page import Line, Mark, compose
from tasks.words.prompts.prompt import Prompt, expect_distinct, expect_same, shuffled
from tasks.words.prompts.question import Question


class LinearPrompt(Prompt):
    """A formulation whose chains are lines; subclasses give names and sentences."""

    @property
    def steps(self) -> int:
        """Statements a chain, D."""
        raise NotImplementedError

    def _symbols(self) -> Sequence[Sequence[str]]:
        """The names that x_0, x_1, ..., x_D are taken from, one a chain."""
        raise NotImplementedError

    def _statement(self, step: int, first: Mark, second: Mark) -> Line:
        """The sentence of a pair."""
        raise NotImplementedError

    def _question(self, query: Mark) -> Line:
        raise NotImplementedError

    def render(self, chains: Sequence[Sequence[str]], orders: Sequence[Sequence[int]]) -> Question:
        """The question of given chains.

        Args:
            chains: x_0..x_D of every chain, all distinct; chain 0 is asked.
            orders: orders[d-1] lists the chains as their statements of pair d are printed.

        Raises:
            InputError: a number of chains, symbols or orders is not this formulation's, a symbol
                comes twice, or an order leaves out a chain.
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
