"""How results are printed: views register here, by the name of a class, so data need no views."""

from collections.abc import Callable, Sequence
from typing import Any

SHOWN_BY: dict[str, Callable[[Any], str]] = {}


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
