"""The exception for invalid user input, and the warning where something is left out."""

from collections.abc import Iterable
from difflib import get_close_matches


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
