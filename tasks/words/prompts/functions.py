"""Functions: "f(2) = 3. g = f. a = 2. g(a) = ?" (paper, section 4, F4, and appendix A.4).

With n chains there are n functions on 0 .. n-1, each a permutation, n aliases for them and n
variables for their arguments, named by 3n letters in order.

1. The tables are printed function by function, then the aliases, then the variables, each in
   order; only their contents are random, and independent of each other.
2. The question f(i) is a conditional retrieval: the alias f leads to its function, the variable i
   to its argument, and both together to a value.
3. Functions and arguments are numbered from 0: first the one asked for, then the others in print
   order. The alias of function c and the variable of argument c have chain c; the value of function
   c at argument k has chain c * n + k. So chain 0 is the graph that is asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from retrieval_interp.tasks.structured import number
from retrieval_interp.tasks.words.prompts.names import groups, letters
from retrieval_interp.tasks.words.prompts.prompt import (
    Draw,
    Line,
    Prompt,
    Question,
    asked_first,
    write,
)

_VALUE = "{function@table}({argument@table}) = {value@table}"
_ALIAS = "{alias@definition} = {function@definition}"
_VARIABLE = "{variable@definition} = {argument@definition}"
_QUESTION = (
    "What is the value of {alias@question}({variable@question})? "
    "Say directly only the numeric value, without any other words."
)


@dataclass(frozen=True)
class FunctionsPrompt(Prompt):
    """Functions (F4): which value an alias of a function takes at a variable.

    Attributes:
        chains: number of functions, aliases, variables and values.
    """

    chains: int = number(4, least=1)

    name: ClassVar[str] = "functions"

    @property
    def n_statements(self) -> int:
        return self.chains * (self.chains + 2)

    def render(
        self,
        tables: Sequence[Sequence[int]],
        aliases: Sequence[int],
        variables: Sequence[int],
        asked: tuple[int, int],
    ) -> Question:
        """Write given tables.

        Args:
            tables: the values of each function at 0 .. chains-1, a permutation of these.
            aliases: the number of the function that each alias stands for, a permutation.
            variables: the argument that each variable holds, a permutation.
            asked: the numbers of the alias and the variable in the question.
        """
        n = self.chains
        f_names, alias_names, variable_names = groups(letters(3 * n), n)
        function, argument = aliases[asked[0]], variables[asked[1]]
        f_chain, k_chain = asked_first(range(n), function), asked_first(range(n), argument)
        lines: list[Line] = [
            (_VALUE, f_chain[f] * n + k_chain[k], (f_names[f], str(k), str(value)))
            for f, table in enumerate(tables)
            for k, value in enumerate(table)
        ]
        lines += [(_ALIAS, f_chain[f], (x, f_names[f])) for x, f in zip(alias_names, aliases)]
        lines += [(_VARIABLE, k_chain[k], (x, str(k))) for x, k in zip(variable_names, variables)]
        lines.append((_QUESTION, 0, (alias_names[asked[0]], variable_names[asked[1]])))
        return write(lines, str(tables[function][argument]), map(str, range(n)))

    def draw(self, rng: Draw) -> Question:
        n = self.chains
        tables = [rng.shuffled(range(n)) for _ in range(n)]
        aliases, variables = rng.shuffled(range(n)), rng.shuffled(range(n))
        return self.render(tables, aliases, variables, (rng.pick(n), rng.pick(n)))
