"""Conditional formulations: functions and relatives (paper, section 4, F4 and F5; A.4 and A.5).

Functions and arguments, or people and relations, are numbered from 0: the one asked for, then the
others in print order. What belongs to number c alone has chain c, and what belongs to numbers c and
k of both kinds has chain c * n + k, so chain 0 is the graph that is asked. A role names a symbol
and its statement, such as `alias@question` or `country@home`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

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
