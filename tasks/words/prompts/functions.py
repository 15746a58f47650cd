"""Functions: "f(2) = 3. g = f. a = 2. g(a) = ?" (paper, section 4, F4, and appendix A.4).

With n chains there are n functions on 0 .. n-1, each a permutation, n aliases for them and n
variables for their arguments, named by 3n letters in order.

1. The tables are printed function by function, then the aliases, then the variables, each in
   order; only their contents are random.
2. The question f(i) is a conditional retrieval: the alias f leads to its function, the variable i
   to its argument, and both together to a value.
3. A role names a symbol and its statement: `alias@question`, `variable@question`;
   `alias@definition`, `function@definition` (f = a);
   `variable@definition`, `argument@definition` (i = 0);
   `function@table`, `argument@table`, `value@table` (a(0) = 3).
4. Functions and arguments are numbered from 0: first the one asked for, then the others in print
   order. The alias of function c and the variable of argument c have chain c; the value of function
   c at argument k has chain c * n + k. So chain 0 is the graph that is asked.

As in the paper, the tables are drawn independently of each other. A model that finds the argument
but not the function may guess the most frequent of n values, which is right more often than 1/n.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.words.prompts.names import groups, letters
from retrieval_interp.tasks.words.prompts.page import compose, fill
from retrieval_interp.tasks.words.prompts.prompt import (
    Prompt,
    asked_first,
    expect_count,
    expect_same,
    expect_statements,
    pick,
    shuffled,
)
from retrieval_interp.tasks.words.prompts.question import Question


@dataclass(frozen=True)
class FunctionsPrompt(Prompt):
    """Which value an alias of a function takes at a variable.

    Attributes:
        chains: number of functions, aliases, variables and values.

    Raises:
        InputError: chains is below 1 or above 99.
    """

    chains: int = 4

    name: ClassVar[str] = "functions"

    def __post_init__(self) -> None:
        expect_count(self.name, "chains", self.chains)
        expect_statements(self.name, "chains * (chains + 2)", self.chains * (self.chains + 2))

    def render(
        self,
        tables: Sequence[Sequence[int]],
        aliases: Sequence[int],
        variables: Sequence[int],
        asked: tuple[int, int],
    ) -> Question:
        """Build the question for given tables.

        Args:
            tables: the values of each function at 0 .. chains-1, a permutation of these.
            aliases: the number of the function that each alias stands for, a permutation.
            variables: the argument that each variable holds, a permutation.
            asked: the numbers of the alias and the variable in the question.

        Raises:
            InputError: something is not a permutation of 0 .. chains-1, or not in that range.
        """
        n, numbers = self.chains, range(self.chains)
        if len(tables) != n:
            raise InputError(f"{self.name}: expected {n} tables, found {len(tables)}")
        for name, found in (
            ("aliases", aliases),
            ("variables", variables),
            *((f"table {number}", table) for number, table in enumerate(tables)),
        ):
            expect_same(self.name, name, found, numbers)
        for name, number in zip(("alias", "variable"), asked):
            if number not in numbers:
                raise InputError(
                    f"{self.name}: expected the {name} asked from 0 to {n - 1}, found {number}"
                )
        function_letters, alias_letters, variable_letters = groups(letters(3 * n), n)
        function, argument = aliases[asked[0]], variables[asked[1]]
        function_number, argument_number = asked_first(n, function), asked_first(n, argument)
        lines = [
            fill(
                "{function}({argument}) = {value}",
                "table",
                function_number[f] * n + argument_number[k],
                function=function_letters[f],
                argument=str(k),
                value=str(value),
            )
            for f, table in enumerate(tables)
            for k, value in enumerate(table)
        ]
        for letter, f in zip(alias_letters, aliases):
            chain, held = function_number[f], function_letters[f]
            lines.append(
                fill("{alias} = {function}", "definition", chain, alias=letter, function=held)
            )
        for letter, k in zip(variable_letters, variables):
            chain, held = argument_number[k], str(k)
            lines.append(
                fill("{variable} = {argument}", "definition", chain, variable=letter, argument=held)
            )
        lines.append(
            fill(
                "What is the value of {alias}({variable})? "
                "Say directly only the numeric value, without any other words.",
                "question",
                chain=0,
                alias=alias_letters[asked[0]],
                variable=variable_letters[asked[1]],
            )
        )
        return compose(lines, str(tables[function][argument]), map(str, numbers))

    def _draw(self, rng: Random) -> Question:
        n = self.chains
        return self.render(
            [shuffled(rng, range(n)) for _ in range(n)],
            shuffled(rng, range(n)),
            shuffled(rng, range(n)),
            (pick(rng, n), pick(rng, n)),
        )
