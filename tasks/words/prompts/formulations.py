"""Formulations whose steps form a line: equations, lives-with, kingdoms (section 4; A.1 to A.3).

A chain is x_0..x_D, from the symbol in the question to the answer. The statements of every chain's
pair (x_{D-1}, x_D) come first, then those of pair D-1, ..., each step in an order of its own. Roles
are the paper's (appendix B). Chain 0 is the one asked; the others have no s0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from retrieval_interp.tasks.structured import number
from retrieval_interp.tasks.words.prompts import names
from retrieval_interp.tasks.words.prompts.prompt import (
    Draw,
    Line,
    Prompt,
    Question,
    asked_first,
    write,
)

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


_VALUE = "{function@table}({argument@table}) = {value@table}"
_ALIAS = "{alias@definition} = {function@definition}"
_VARIABLE = "{variable@definition} = {argument@definition}"
_VALUE_OF = (
    "What is the value of {alias@question}({variable@question})? "
    "Say directly only the numeric value, without any other words."
)


@dataclass(frozen=True)
class FunctionsPrompt(Prompt):
    """Functions (F4): which value an alias of a function takes at a variable.

    "f(2) = 3. g = f. a = 2. g(a) = ?" With n chains there are n functions on 0 .. n-1, each a
    permutation, n aliases for them and n variables for their arguments, named by 3n letters.

    Attributes:
        chains: number of functions, aliases, variables and values.
    """

    chains: int = number(4, least=1, most=100)

    name: ClassVar[str] = "functions"

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
        f_names, alias_names, variable_names = names.groups(names.letters(3 * n), n)
        function, argument = aliases[asked[0]], variables[asked[1]]
        f_chain, k_chain = asked_first(range(n), function), asked_first(range(n), argument)
        lines: list[Line] = [
            (_VALUE, f_chain[f] * n + k_chain[k], (f_names[f], str(k), str(value)))
            for f, table in enumerate(tables)
            for k, value in enumerate(table)
        ]
        lines += [(_ALIAS, f_chain[f], (x, f_names[f])) for x, f in zip(alias_names, aliases)]
        lines += [(_VARIABLE, k_chain[k], (x, str(k))) for x, k in zip(variable_names, variables)]
        lines.append((_VALUE_OF, 0, (alias_names[asked[0]], variable_names[asked[1]])))
        return write(lines, str(tables[function][argument]), map(str, range(n)))

    def draw(self, rng: Draw) -> Question:
        n = self.chains
        tables = [rng.shuffled(range(n)) for _ in range(n)]
        aliases, variables = rng.shuffled(range(n)), rng.shuffled(range(n))
        return self.render(tables, aliases, variables, (rng.pick(n), rng.pick(n)))


_HOME = "{relative@home} lives in {country@home}."
_FAMILY = "{person@family} {relation@family} is {relative@family}."
_RULE = "{profession@rule} live with their {relation@rule}."
_WORK = "{person@work} works as %s {profession@work}."
_LIVES = "Where does {person@question} live? Say directly only the name, without any other words."


@dataclass(frozen=True)
class RelativesPrompt(Prompt):
    """Relatives (F5): in which country somebody lives whose profession says with which relative.

    "Engineers live with their mothers. ... Where does Alex live?" With n chains there are n people,
    n professions, n relations and n * n relatives, each of whom lives in a different country.

    Attributes:
        chains: number of people, professions and relations, at most 12.
    """

    chains: int = number(4, least=1, most=len(names.RELATIONS))

    name: ClassVar[str] = "relatives"

    @property
    def chance(self) -> float:
        return 1 / self.chains**2  # of as many countries

    @property
    def relations(self) -> tuple[str, ...]:
        """The relations of a person, in print order."""
        return tuple(names.RELATIONS)[: self.chains]

    def render(
        self,
        homes: Mapping[str, str],
        families: Mapping[str, Sequence[str]],
        rules: Mapping[str, str],
        works: Mapping[str, str],
        asked: str,
    ) -> Question:
        """Write a given world; each mapping is printed in its own order.

        Args:
            homes: the country of every relative.
            families: every person's relatives, in the order of `relations`.
            rules: the relation that every profession lives with, in the singular.
            works: the profession of every person.
            asked: the person in the question.
        """
        kind = rules[works[asked]]
        person_chain, kind_chain = asked_first(families, asked), asked_first(self.relations, kind)
        kin = {
            relative: (person, kind, person_chain[person] * self.chains + kind_chain[kind])
            for person, family in families.items()
            for kind, relative in zip(self.relations, family)
        }
        lines: list[Line] = [(_HOME, kin[name][2], (name, home)) for name, home in homes.items()]
        for relative, (person, relation, chain) in kin.items():
            lines.append((_FAMILY, chain, (f"{person}s", relation, relative)))
        for work, relation in rules.items():
            lines.append((_RULE, kind_chain[relation], (f"{work.capitalize()}s", f"{relation}s")))
        for person, work in works.items():
            article = "an" if work[0] in "aeiou" else "a"
            lines.append((_WORK % article, person_chain[person], (person, work)))
        lines.append((_LIVES, 0, (asked,)))
        correct = homes[families[asked][self.relations.index(kind)]]
        return write(lines, correct, homes.values())

    def draw(self, rng: Draw) -> Question:
        n, relations = self.chains, self.relations
        kinds = [names.RELATIONS[relation] for relation in relations]
        women = n * kinds.count(names.WOMEN)
        sizes = {names.WOMEN: women, names.MEN: n * n - women}
        left = {kind: iter(rng.shuffled(kind.take(size))) for kind, size in sizes.items()}
        people, professions = names.PERSONS[:n], names.PROFESSIONS[:n]
        families = {person: [next(left[kind]) for kind in kinds] for person in people}
        relatives = [relative for family in families.values() for relative in family]
        return self.render(
            dict(zip(rng.shuffled(relatives), rng.shuffled(names.COUNTRIES.take(n * n)))),
            families,
            dict(zip(rng.shuffled(professions), rng.shuffled(relations))),
            dict(zip(people, rng.shuffled(professions))),
            people[rng.pick(n)],
        )
