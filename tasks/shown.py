"""How results are printed. Data knows no views, so who shows a class registers here by its name."""

from collections.abc import Callable, Sequence
from typing import Any

SHOWN_BY: dict[str, Callable[[Any], str]] = {}


def shown(result: Any) -> str:
    """A result as text."""
    return SHOWN_BY.get(type(result).__name__, object.__repr__)(result)


def counted(number: int, noun: str) -> str:
    """`1 chain`, `2 chains`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(words: Sequence[str], conjunction: str) -> str:
    """`A, B and C`."""
    *others, last = words or [""]
    return f"{', '.join(others)} {conjunction} {last}" if others else last
