"""A question in words, its answers, and where every symbol of it stands."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Occurrence:
    """One place where a symbol is printed: the word `prompt[start:end]`.

    Attributes:
        chain: 0 for the chain that is asked; the formulation says what the others are.
        role: what the word does in its chain, by name.
        start: its first character.
        end: the character after its last. An ending that the sentence calls for belongs to the
            word: `Silvanians`, `Doctors`, `Johns`.
    """

    chain: int
    role: str
    start: int
    end: int


@dataclass(frozen=True)
class Question:
    """A prompt and what may be answered (paper, section 4 and appendix A).

    Attributes:
        prompt: what the model reads, without a line break at its end.
        correct: the answer, a word.
        acceptable: all words that count as an answer, sorted; anything else asks for another try.
        occurrences: every symbol of the prompt, from its beginning to its end; a chain has each
            role at most once.
    """

    prompt: str
    correct: str
    acceptable: tuple[str, ...]
    occurrences: tuple[Occurrence, ...]
