"""What is asked: generators of inputs, targets and roles, and the losses of answers.

Names are loaded when they are first used; `__init__.pyi` lists them.
"""

from tasks.lazy_names import lazy_names

__getattr__, __all__ = lazy_names(__name__, __file__)


def __dir__() -> list[str]:
    return __all__
