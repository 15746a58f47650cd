"""Circuits on any hooked model: mechanisms, hooks, scores and discovery.

A circuit states what each attention head does, by the roles of positions. The method follows
https://arxiv.org/abs/2411.12118, appendix E. Names are imported on first use; `__init__.pyi` lists
them.
"""

from retrieval_interp.tasks import lazy_names  # before PyTorch, as it says how threads wait

__getattr__, __all__ = lazy_names(__name__, __file__)


def __dir__() -> list[str]:
    return __all__
