"""What the five formulations share: how questions are written, and their random numbers.

Each question has a generator of its own, seeded with the text "name seed split index".
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from string import Formatter
from typing import ClassVar, TypeVar

from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.split import Split, check_draw
from retrieval_interp.tasks.structured import check_fields

Line = tuple[str, int, Sequence[str]]  # text with roles as marks, its chain, a word per mark
T = TypeVar("T")


@dataclass(frozen=True)
class Occurrence:
    """One occurrence of a symbol: the word `prompt[start:end]`, with its grammatical ending.

    The chain that is asked is 0; a chain has each role at most once.
    """

    chain: int
    role: str
    start: int
    end: int


@dataclass(frozen=True)
class Question:
    """A prompt and its possible answers (paper, section 4 and appendix A).

    Attributes:
        prompt: what the model reads, without a final line break.
        correct: the correct answer, a word.
        acceptable: all words that count as an answer, sorted; any other reply is asked again.
        occurrences: every symbol of the prompt, from beginning to end.
    """

    prompt: str
    correct: str
    acceptable: tuple[str, ...]
    occurrences: tuple[Occurrence, ...]


class Draw(Random):
    """Random choices by `random()` alone, which is the same in every Python version."""

    def pick(self, count: int) -> int:
        """A random integer from 0 .. count-1."""
        return int(self.random() * count)

    def shuffled(self, items: Iterable[T]) -> list[T]:
        """The items in uniformly random order."""
        rest = list(items)
        return [rest.pop(self.pick(len(rest))) for _ in range(len(rest))]


class Prompt:
    """A formulation of the retrieval problem in words (paper, section 4): a frozen dataclass.

    Attributes:
        name: the formulation's name in the paper.
        chains: number of interleaved chains.
    """

    name: ClassVar[str]
    chains: int

    def __post_init__(self) -> None:
        check_fields(self, self.name)

    @property
    def chance(self) -> float:
        """The accuracy of picking one of the acceptable answers at random."""
        return 1 / self.chains

    def sample(self, index: int, seed: int = 0, split: Split = "train") -> Question:
        """One question of a seed and split."""
        if index < 0:
            raise InputError(f"sample: expected an index of at least 0, found {index}")
        check_draw(seed, split)
        return self.draw(Draw(f"{self.name} {seed} {split} {index}"))

    def draw(self, rng: Draw) -> Question:
        raise NotImplementedError


def write(lines: Iterable[Line], correct: str, candidates: Iterable[str]) -> Question:
    """Write a question's lines; answers are sorted, numbers by value and words by alphabet."""
    pieces: list[str] = []
    occurrences: list[Occurrence] = []
    place = 0
    for template, chain, words in lines:
        filling = iter(words)
        for text, role, _, _ in Formatter().parse(template + "\n"):
            pieces.append(text)
            place += len(text)
            if role is not None:
                pieces.append(next(filling))
                start, place = place, place + len(pieces[-1])
                occurrences.append(Occurrence(chain, role, start, place))
    acceptable = sorted(candidates, key=lambda word: (int(word) if word.isdecimal() else 0, word))
    return Question("".join(pieces)[:-1], correct, tuple(acceptable), tuple(occurrences))


def asked_first(items: Iterable[T], asked: T) -> dict[T, int]:
    """Numbers for the items: 0 for the one asked, then 1, 2, ... for the others in order."""
    return {asked: 0, **{item: n for n, item in enumerate((i for i in items if i != asked), 1)}}
