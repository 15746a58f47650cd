"""A package's names, loaded when they are first used, so that commands start without torch."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], list[str]]:
    """What a package's `__init__` needs: its `__getattr__` and its `__all__` (PEP 562).

    Args:
        package: its name, for messages.
        homes: the names that every module gives.
    """
    module_of = {name: module for module, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module_of[name]), name)

    return get, sorted(module_of)
