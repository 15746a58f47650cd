"""Writes lines and records where each symbol ends up, so that no symbol has to be searched for."""

from collections.abc import Iterable, Sequence
from string import Formatter
from typing import NamedTuple

from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.words.prompts.question import Occurrence, Question


class Mark(NamedTuple):
    """A symbol in the text, with its chain and role."""

    word: str
    chain: int
    role: str


Line = Sequence[str | Mark]


def fill(template: str, place: str, chain: int, **words: str) -> Line:
    """A line with a mark for every name in braces; the role of `{node}` is `node@place`."""
    line: list[str | Mark] = []
    for text, node, _, _ in Formatter().parse(template):
        line.append(text)
        if node is not None:
            line.append(Mark(words[node], chain, f"{node}@{place}"))
    return line


def compose(lines: Iterable[Line], correct: str, candidates: Iterable[str]) -> Question:
    """Build a question from its lines.

    Args:
        lines: pieces of text and marks; lines are joined by line breaks.
        correct: the answer.
        candidates: all answers, in any order; numbers are sorted by value, words alphabetically.

    Raises:
        InputError: a symbol is empty or has whitespace around it.
    """
    pieces: list[str] = []
    occurrences: list[Occurrence] = []
    place = 0
    for line in lines:
        for piece in (*line, "\n"):
            word = piece if isinstance(piece, str) else piece.word
            if isinstance(piece, Mark):
                if not word or word != word.strip():
                    raise InputError(f"prompts: expected every symbol to be a word, found {word!r}")
                occurrences.append(
                    Occurrence(piece.chain, piece.role, start=place, end=place + len(word))
                )
            pieces.append(word)
            place += len(word)
    acceptable = sorted(candidates, key=lambda word: (int(word) if word.isdecimal() else 0, word))
    return Question("".join(pieces[:-1]), correct, tuple(acceptable), tuple(occurrences))
