"""The tasks: generators of inputs, targets and roles, and the losses of answers.

Most are forms of the retrieval problem of https://arxiv.org/abs/2411.12118, section 3. Names are
imported on first use, so that commands start without torch; `__init__.pyi` lists them.
"""

import ast
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

# OpenMP's threads spin while they wait, which slows every process that shares the cores. OpenMP
# reads this once, when PyTorch is loaded, and every package here imports this one before PyTorch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], list[str]]:
    """Return `__getattr__` and `__all__` of a package that lists its names in a stub (PEP 562)."""
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    homes = {name.name: node.module or "" for node in imports for name in node.names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = import_module(homes[name])
        # A name may also be a module of its home, as `ri.mechanisms`.
        return getattr(home, name, None) or import_module(f"{homes[name]}.{name}")

    return get, sorted(homes)


__getattr__, __all__ = lazy_names(__name__, __file__)


def __dir__() -> list[str]:
    return __all__
