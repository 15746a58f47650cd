"""A question in words, its answers, and where each of its symbols stands."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Occurrence:
    """One occurrence of a symbol: the word `prompt[start:end]`.

    Attributes:
        chain: 0 for the chain that is asked; the formulation defines the others.
        role: name of what the word does in its chain.
        start: index of its first character.
        end: index after its last character. Grammatical endings belong to the word: `Silvanians`,
            `Doctors`, `Johns`.
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
        occurrences: every symbol of the prompt, from beginning to end; a chain has each role at
            most once.
    """

    prompt: str
    correct: str
    acceptable: tuple[str, ...]
    occurrences: tuple[Occurrence, ...]
