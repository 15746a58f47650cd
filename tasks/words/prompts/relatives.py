"""Relatives: "Engineers live with their mothers. ... Where does Alex live?" (section 4, F5; A.5).

With n chains there are n people, n professions, n relations and n * n relatives, each of whom lives
in a different country.

1. The text says where every relative lives, in random order; then every person's relatives, in
   order; then with whom every profession lives, in random order; then every person's profession,
   in order.
2. The question is a conditional retrieval: the person leads to a profession and that to a relation;
   person and relation together lead to a relative, and that to a country.
3. People and relations are numbered from 0: first the one asked for, then the others in print order
   (for relations, that of the families). Person c's work has chain c, relation c's rule has chain
   c, and the relative of person c by relation k has chain c * n + k. So chain 0 is the graph that
   is asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from retrieval_interp.tasks.errors import InputError
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

_HOME = "{relative@home} lives in {country@home}."
_FAMILY = "{person@family} {relation@family} is {relative@family}."
_RULE = "{profession@rule} live with their {relation@rule}."
_WORK = "{person@work} works as %s {profession@work}."
_QUESTION = (
    "Where does {person@question} live? Say directly only the name, without any other words."
)


@dataclass(frozen=True)
class RelativesPrompt(Prompt):
    """Relatives (F5): in which country somebody lives whose profession says with which relative.

    Attributes:
        chains: number of people, professions and relations, at most 12.
    """

    chains: int = number(4, least=1)

    name: ClassVar[str] = "relatives"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chains > len(names.RELATIONS):
            raise InputError(
                f"{self.name}: expected at most {len(names.RELATIONS)} chains, one per relation "
                f"({', '.join(names.RELATIONS)}), found {self.chains}; ask for fewer"
            )

    @property
    def n_statements(self) -> int:
        return 2 * self.chains * (self.chains + 1)

    @property
    def chance(self) -> float:
        """1 / chains²: one of chains * chains countries."""
        return 1 / self.chains**2

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
        lines.append((_QUESTION, 0, (asked,)))
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
