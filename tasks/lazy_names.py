"""A package's names, loaded when they are first used, so that commands start without torch.

A package lists its names once, in `__init__.pyi`, where type checkers look for them, too. This is
what the library lazy_loader does; that one refuses names of other packages, which
`retrieval_interp` passes on.
"""

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], list[str]]:
    """What a package's `__init__` needs: its `__getattr__` and its `__all__` (PEP 562).

    Args:
        package: its name, for messages.
        file: the `__init__.py`, beside which the stub stands.
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
