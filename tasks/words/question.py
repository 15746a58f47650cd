"""Questions in words: a prompt, its answers, and where every symbol stands."""

from collections.abc import Iterable, Sequence
from random import Random
from string import Formatter
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Occurrence(NamedTuple):
    """One occurrence of a symbol: the word `prompt[start:end]`, with its grammatical ending."""

    role: str  # in the chain that is asked, which has it at most once; empty in other chains
    start: int
    end: int


class Question(NamedTuple):
    """A prompt and its possible answers (paper, section 4 and appendix A)."""

    prompt: str  # what the model reads, without a final line break
    correct: str  # the answer, a word
    acceptable: tuple[str, ...]  # all words that count as an answer, sorted
    occurrences: tuple[Occurrence, ...]  # every symbol of the prompt, from beginning to end


class Line(NamedTuple):
    """A line of a prompt: text with roles as marks, and a word for every mark."""

    text: str
    words: Sequence[str]
    is_asked: bool = True  # whether it belongs to the chain that is asked


class Draw(Random):
    """Random choices by `random()` alone, which is the same in every Python version."""

    def pick(self, count: int) -> int:
        """A random integer from 0 .. count-1."""
        return int(self.random() * count)

    def shuffled(self, items: Iterable[T]) -> list[T]:
        """The items in uniformly random order."""
        rest = list(items)
        return [rest.pop(self.pick(len(rest))) for _ in range(len(rest))]


def write(lines: Iterable[Line], correct: str, candidates: Iterable[str]) -> Question:
    """Write a question's lines; answers are sorted, numbers by value and words by alphabet."""
    prompt = ""
    occurrences: list[Occurrence] = []
    for line in lines:
        words = iter(line.words)
        for text, role, _, _ in Formatter().parse(line.text + "\n"):
            prompt += text
            if role is not None:
                start, prompt = len(prompt), prompt + next(words)
                role = role if line.is_asked else ""
                occurrences.append(Occurrence(role, start, len(prompt)))
    acceptable = sorted(candidates, key=lambda word: (int(word) if word.isdecimal() else 0, word))
    return Question(prompt[:-1], correct, tuple(acceptable), tuple(occurrences))
