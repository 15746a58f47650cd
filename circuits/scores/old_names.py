"""The names that results had before; whoever reads them goes on reading."""

from typing import Any


class OldNames:
    """Answers to the names that losses had while all of them were called an MSE."""

    def __getattr__(self, name: str) -> Any:
        if name == "mse" or name.endswith("_mse"):
            return getattr(self, f"{name.removesuffix('mse')}loss")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
