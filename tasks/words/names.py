"""An unlimited supply of names: first listed ones, beginning with the paper's, then generated ones.

A generated name is a stem of two or more syllables plus an ending for its kind, such as Babaland.
All names are different single words.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count as count_from
from itertools import islice, product
from string import ascii_lowercase

_SYLLABLES = tuple(consonant + vowel for vowel in "aeiou" for consonant in "bdlmnrstv")


def _words(parts: Sequence[str], shortest: int) -> Iterator[str]:
    """Yield all words of at least `shortest` parts, shorter ones first."""
    for length in count_from(shortest):
        for word in product(parts, repeat=length):
            yield "".join(word)


def letters(count: int) -> tuple[str, ...]:
    """Return a .. z, then aa, ab, ..."""
    return tuple(islice(_words(ascii_lowercase, 1), count))


def groups(names: Sequence[str], size: int) -> list[Sequence[str]]:
    """Split the names into groups of `size`, in order."""
    return [names[start : start + size] for start in range(0, len(names), size)]


@dataclass(frozen=True)
class Names:
    """Names of one kind of thing: the listed ones, and the ending of generated ones."""

    listed: str
    ending: str
    capital: bool = True

    def take(self, count: int) -> tuple[str, ...]:
        """Return the first `count` names, all different."""
        coined = (stem + self.ending for stem in _words(_SYLLABLES, 2))
        listed = self.listed.split()[:count]
        generated = islice(coined, count - len(listed))
        return (*listed, *(name.capitalize() if self.capital else name for name in generated))


# Appendix A.2.
PEOPLE = Names(
    "Alice Bob Charlie David Eve Frank Grace Henry Isabelle Jack Kate Larry Mary Nick Olivia Peter "
    "Queen Rose Sam Tom Uma Victor Wendy Xavier Yvonne Zach Amy Ben Claire Daniel Emma Felix Gina "
    "Hugo Ida Julia Karl Laura Martin Nina Oscar Paula",
    "lin",
)
CITIES = Names("Amsterdam Berlin Cairo Delhi Edinburgh Florence Geneva Helsinki", "burg")

# Appendix A.3. Kingdoms end in -a, their people in -ans; beliefs in -ism, believers in -ists.
KINGDOMS = Names("Novaria Silvania Aurora Florinia Valdoria Meridia Castoria Brumalia", "stria")
BELIEFS = Names(
    "harmonianism celestianism elysianism luminism solarism veridianism tranquilism umbralism",
    "xism",
    capital=False,
)
FOODS = Names("lamb chicken pork beef fish rice cheese bread", "fruit", capital=False)
SUBSTANCES = Names(
    "Zephyrium Nephryon Virellium Astralyte Oberium Calydrite Tyronine Quintaline", "xium"
)
DISEASES = Names(
    "Chronogy Synthemia Somnosis Aetherflux Photalgia Umbrosis Cryothermia Lethargeny", "xosis"
)

OF_KINGDOMS = (DISEASES, SUBSTANCES, FOODS, BELIEFS, KINGDOMS, PEOPLE)  # x_0 .. x_5

# Appendix A.5. There are only twelve relations, each of a woman or a man.
_PERSONS = "John Chris Diana Eve Simon Rita Tom Vera Walter Zoe Sam Ursula"
_PROFESSIONS = (
    "doctor lawyer teacher engineer baker painter architect farmer singer pilot editor gardener"
)
_RELATIONS = (
    "mother sister father brother aunt daughter uncle son grandmother niece grandfather nephew"
)
PERSONS, PROFESSIONS = tuple(_PERSONS.split()), tuple(_PROFESSIONS.split())
WOMEN = Names("Cathy Dana Isabelle Jane Lily Nancy Olivia Penny", "nella")
MEN = Names("Adam Bob Ed Fred George Hank Kevin Mike", "rick")
RELATIONS = dict(zip(_RELATIONS.split(), [WOMEN, WOMEN, MEN, MEN] * 3))
COUNTRIES = Names(
    "Argentina Brazil Canada Denmark England France Germany Hungary Italy Japan Kenya Laos Mexico "
    "Norway Peru Qatar",
    "land",
)
