"""The tasks: generators of inputs, targets and roles, and the losses of answers.

All are forms of the retrieval problem of https://arxiv.org/abs/2411.12118, section 3. Names are
imported on first use; `__init__.pyi` lists them.
"""

from retrieval_interp.tasks.lazy_names import lazy_names
from retrieval_interp.tasks.threads import wait_asleep

wait_asleep()  # every package here imports this one before PyTorch

__getattr__, __all__ = lazy_names(__name__, __file__)


def __dir__() -> list[str]:
    return __all__
