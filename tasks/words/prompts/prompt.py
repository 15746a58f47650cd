"""What the five formulations share: their random numbers and limits.

1. Each question has its own generator, seeded with the text "name seed split index", so it does
   not depend on how many are drawn or on the process.
2. Only `random()` of Python's generator is used: for a text seed it gives the same numbers in every
   Python version, which is not guaranteed for `shuffle`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import ClassVar, TypeVar, get_args

from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.split import Split
from retrieval_interp.tasks.words.prompts.question import Question

MAX_STATEMENTS = 10_000
T = TypeVar("T")


class Prompt:
    """A formulation of the retrieval problem in words (paper, section 4).

    Attributes:
        name: the formulation's name in the paper.
        chains: number of interleaved chains.
    """

    name: ClassVar[str]
    chains: int

    @property
    def chance(self) -> float:
        """The accuracy of picking one of the acceptable answers at random."""
        return 1 / self.chains

    def sample(self, index: int, seed: int = 0, split: Split = "train") -> Question:
        """Draw one question of a seed.

        Args:
            index: number of the question, at least 0.
            seed: in [0, 2^64); the same seed and index give the same question.
            split: `train`, `validation`, `discovery` and `test` share no random numbers.

        Raises:
            InputError: an argument is out of range.
        """
        if index < 0:
            raise InputError(f"sample: expected an index of at least 0, found {index}")
        if not 0 <= seed < 2**64:
            raise InputError(f"sample: expected a seed from 0 to 2^64 - 1, found {seed}")
        if split not in get_args(Split):
            raise InputError(
                f"sample: expected a split of {sorted(get_args(Split))}, found {split!r}"
            )
        return self._draw(Random(f"{self.name} {seed} {split} {index}"))

    def _draw(self, rng: Random) -> Question:
        raise NotImplementedError


def shuffled(rng: Random, items: Iterable[T]) -> list[T]:
    """The items in uniformly random order."""
    rest = list(items)
    return [rest.pop(pick(rng, len(rest))) for _ in range(len(rest))]


def pick(rng: Random, count: int) -> int:
    """A random integer from 0 .. count-1."""
    return int(rng.random() * count)


def asked_first(count: int, asked: int) -> list[int]:
    """Numbers for 0 .. count-1: 0 for the one asked, then 1, 2, ... for the others in order."""
    return [0 if item == asked else item + (item < asked) for item in range(count)]


def expect_count(where: str, name: str, value: object) -> None:
    """Raise InputError unless the value is an integer from 1 to 2^31 - 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(
            f"{where}: expected {name} to be an integer of at least 1, found {value!r}"
        )
    if value >= 2**31:
        raise InputError(f"{where}: expected {name} to be below 2^31, found {value}")


def expect_statements(where: str, formula: str, count: int) -> None:
    """Raise InputError if a question would have more than MAX_STATEMENTS statements."""
    if count > MAX_STATEMENTS:
        raise InputError(
            f"{where}: expected at most {MAX_STATEMENTS} statements per question ({formula}), "
            f"found {count}; ask for fewer"
        )


def expect_same(where: str, name: str, found: Iterable[object], each: Sequence[object]) -> None:
    """Raise InputError unless `found` holds exactly the items of `each`, once each."""
    listed = list(found)
    if len(listed) != len(each) or set(listed) != set(each):
        raise InputError(
            f"{where}: expected {name} to hold each of {list(each)!r:.80} once, "
            f"found {listed!r:.80}; list each of them once"
        )


def expect_distinct(where: str, name: str, words: Iterable[str]) -> None:
    """Raise InputError if a word is repeated."""
    (word, times), *_ = Counter(words).most_common(1)
    if times > 1:
        raise InputError(
            f"{where}: expected {name} to be distinct, found {word!r} {times} times; rename them"
        )
