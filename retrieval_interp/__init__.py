"""Which attention paths of a transformer do the work.

>>> import retrieval_interp as ri

Names are loaded when they are first used, so that commands start without the heavy libraries;
`__init__.pyi` lists them.
"""

from retrieval_interp.notebook.display import register_displays
from tasks.lazy_names import lazy_names

__getattr__, __all__ = lazy_names(__name__, __file__)

register_displays()


def __dir__() -> list[str]:
    return __all__
