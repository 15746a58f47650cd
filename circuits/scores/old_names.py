"""Former attribute names of results, which still work."""

from typing import Any


class OldNames:
    """Resolves the names that losses had when all of them were called MSE."""

    def __getattr__(self, name: str) -> Any:
        if name == "mse" or name.endswith("_mse"):
            return getattr(self, f"{name.removesuffix('mse')}loss")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
