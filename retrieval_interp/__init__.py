"""Which attention paths of a transformer do the work.

>>> import retrieval_interp as ri

Names are loaded when they are first used, so that commands start without the heavy libraries;
`__init__.pyi` lists them.
"""

from pathlib import Path

if (Path(__file__).parent / "tasks").is_file():  # a checkout without symbolic links
    __path__.append(str(Path(__file__).parent.parent))

from retrieval_interp.tasks import lazy_names
from retrieval_interp.views.page import register_displays

__getattr__, __all__ = lazy_names(__name__, __file__)

register_displays()


def __dir__() -> list[str]:
    return __all__
