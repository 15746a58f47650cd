"""Package names that are imported on first use, so that commands start without torch.

A package lists its names once, in `__init__.pyi`, where type checkers also find them. The library
lazy_loader does the same, but rejects names from other packages, which `retrieval_interp`
re-exports.
"""

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], list[str]]:
    """Build the `__getattr__` and `__all__` of a package (PEP 562).

    Args:
        package: its name, for messages.
        file: its `__init__.py`; the stub is next to it.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    homes = {
        name.name: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom) and node.module
        for name in node.names
    }

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return get, sorted(homes)
