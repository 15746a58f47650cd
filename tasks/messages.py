"""What users are told: errors and warnings, the words of sentences, and how results are printed."""

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any

# How a result is printed, by the name of its class: views register here, so data need no views.
SHOWN_BY: dict[str, Callable[[Any], str]] = {}


class InputError(ValueError):
    """Invalid user input: one line with what was expected, what was found and how to fix it.

    Commands print the line and exit with status 2; any other exception is a bug.
    """

    def __init__(self, text: str):
        super().__init__(printable(" ".join(text.split())))


def nearest(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the known words spelt most like this one, joined by `or`; else `otherwise`."""
    by_letters = {name.lower(): name for name in known}
    close = get_close_matches(word.lower(), by_letters, 2, 0.6)
    return " or ".join(by_letters[name] for name in close) or otherwise


def check_type(value: object, kind: type, name: str, hint: str = "") -> None:
    """Refuse an argument of another type; `hint` says how to get one."""
    if not isinstance(value, kind):
        raise InputError(
            f"{name}: expected an ri.{kind.__name__}{hint}, found {type(value).__name__}"
        )


class InputWarning(UserWarning):
    """Something is left out, or not done as the user asked; commands print it as a note."""


def printable(text: str) -> str:
    """Escape unprintable characters, such as terminal control codes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shown(result: Any) -> str:
    """Return a result as text, by the view that registered for its class."""
    return SHOWN_BY.get(type(result).__name__, object.__repr__)(result)


def counted(number: int, noun: str) -> str:
    """Return a number and its noun: `1 chain`, `2 chains`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(words: Sequence[str], conjunction: str) -> str:
    """Join words as in `A, B and C`."""
    *others, last = words or [""]
    return f"{', '.join(others)} {conjunction} {last}" if others else last
