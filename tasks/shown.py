"""How results are printed. Data knows no views, so who shows a class registers here by its name."""

from collections.abc import Callable
from typing import Any

SHOWN_BY: dict[str, Callable[[Any], str]] = {}


def shown(result: Any) -> str:
    """A result as text."""
    return SHOWN_BY.get(type(result).__name__, object.__repr__)(result)
