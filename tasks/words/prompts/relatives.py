"""Relatives: "Engineers live with their mothers. ... Where does Alex live?" (section 4, F5; A.5).

With n chains there are n people, n professions, n relations and n * n relatives, each of whom lives
in a different country.

1. The text says where every relative lives, in random order; then every person's relatives, in
   order; then with whom every profession lives, in random order; then every person's profession,
   in order.
2. The question is a conditional retrieval: the person leads to a profession and that to a relation;
   person and relation together lead to a relative, and that to a country.
3. A role names a symbol and its statement: `person@question`; `person@work`, `profession@work`;
   `profession@rule`, `relation@rule`; `person@family`, `relation@family`, `relative@family`;
   `relative@home`, `country@home`.
4. People and relations are numbered from 0: first the one asked for, then the others in print order
   (for relations, that of the families). Person c's work has chain c, relation c's rule has chain
   c, and the relative of person c by relation k has chain c * n + k. So chain 0 is the graph that
   is asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.words.prompts.names import (
    COUNTRIES,
    MEN,
    PERSONS,
    PROFESSIONS,
    RELATIONS,
    WOMEN,
)
from retrieval_interp.tasks.words.prompts.page import compose, fill
from retrieval_interp.tasks.words.prompts.prompt import (
    Prompt,
    asked_first,
    expect_count,
    expect_distinct,
    expect_same,
    pick,
    shuffled,
)
from retrieval_interp.tasks.words.prompts.question import Question


@dataclass(frozen=True)
class RelativesPrompt(Prompt):
    """In which country somebody lives whose profession says with which relative.

    Attributes:
        chains: number of people, professions and relations, at most 12.

    Raises:
        InputError: chains is below 1 or above 12.
    """

    chains: int = 4

    name: ClassVar[str] = "relatives"

    def __post_init__(self) -> None:
        expect_count(self.name, "chains", self.chains)
        if self.chains > len(RELATIONS):
            raise InputError(
                f"{self.name}: expected at most {len(RELATIONS)} chains, one per relation "
                f"({', '.join(RELATIONS)}), found {self.chains}; ask for fewer"
            )

    @property
    def chance(self) -> float:
        """1 / chains²: one of chains * chains countries."""
        return 1 / self.chains**2

    @property
    def relations(self) -> tuple[str, ...]:
        """The relations of a person, in print order."""
        return tuple(RELATIONS)[: self.chains]

    def render(
        self,
        homes: Mapping[str, str],
        families: Mapping[str, Sequence[str]],
        rules: Mapping[str, str],
        works: Mapping[str, str],
        asked: str,
    ) -> Question:
        """Build the question for a given world; each mapping is printed in its own order.

        Args:
            homes: the country of every relative.
            families: every person's relatives, in the order of `relations`.
            rules: the relation that every profession lives with, in the singular.
            works: the profession of every person.
            asked: the person in the question.

        Raises:
            InputError: a person, relative, profession or relation is missing, unknown or repeated.
        """
        n, people = self.chains, list(families)
        relatives = [relative for family in families.values() for relative in family]
        sizes = [len(family) for family in families.values()]
        if sizes != [n] * n:
            raise InputError(
                f"{self.name}: expected {n} families of {n} relatives each, found sizes {sizes}"
            )
        expect_distinct(
            self.name, "people, relatives and countries", [*people, *relatives, *homes.values()]
        )
        expect_same(self.name, "homes", homes, relatives)
        expect_same(self.name, "rules", rules.values(), self.relations)
        expect_same(self.name, "works", works, people)
        expect_same(self.name, "professions at work", works.values(), list(rules))
        if asked not in works:
            raise InputError(f"{self.name}: expected one of {people} to be asked, found {asked!r}")
        relation = rules[works[asked]]
        person_number = dict(zip(people, asked_first(n, people.index(asked))))
        relation_number = dict(zip(self.relations, asked_first(n, self.relations.index(relation))))
        chain_of = {
            relative: person_number[person] * n + relation_number[kind]
            for person, family in families.items()
            for kind, relative in zip(self.relations, family)
        }
        lines = [
            fill(
                "{relative} lives in {country}.",
                "home",
                chain_of[relative],
                relative=relative,
                country=country,
            )
            for relative, country in homes.items()
        ]
        for person, family in families.items():
            for kind, relative in zip(self.relations, family):
                lines.append(
                    fill(
                        "{person} {relation} is {relative}.",
                        "family",
                        chain_of[relative],
                        person=f"{person}s",
                        relation=kind,
                        relative=relative,
                    )
                )
        for profession, kind in rules.items():
            lines.append(
                fill(
                    "{profession} live with their {relation}.",
                    "rule",
                    relation_number[kind],
                    profession=f"{profession.capitalize()}s",
                    relation=f"{kind}s",
                )
            )
        for person, profession in works.items():
            article = "an" if profession[:1] in "aeiou" else "a"
            lines.append(
                fill(
                    f"{{person}} works as {article} {{profession}}.",
                    "work",
                    person_number[person],
                    person=person,
                    profession=profession,
                )
            )
        lines.append(
            fill(
                "Where does {person} live? Say directly only the name, without any other words.",
                "question",
                chain=0,
                person=asked,
            )
        )
        correct = homes[families[asked][self.relations.index(relation)]]
        return compose(lines, correct, homes.values())

    def _draw(self, rng: Random) -> Question:
        n, relations = self.chains, self.relations
        women = n * sum(RELATIONS[relation] is WOMEN for relation in relations)
        names = {
            WOMEN: iter(shuffled(rng, WOMEN.take(women))),
            MEN: iter(shuffled(rng, MEN.take(n * n - women))),
        }
        people, professions = PERSONS[:n], PROFESSIONS[:n]
        families = {
            person: [next(names[RELATIONS[relation]]) for relation in relations]
            for person in people
        }
        relatives = [relative for family in families.values() for relative in family]
        return self.render(
            dict(zip(shuffled(rng, relatives), shuffled(rng, COUNTRIES.take(n * n)))),
            families,
            dict(zip(shuffled(rng, professions), shuffled(rng, relations))),
            dict(zip(people, shuffled(rng, professions))),
            people[pick(rng, n)],
        )
