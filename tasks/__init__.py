"""The tasks: generators of inputs, targets and roles, and the losses of answers.

All are forms of the retrieval problem of https://arxiv.org/abs/2411.12118, section 3. Names are
imported on first use; `__init__.pyi` lists them.
"""

import os

from retrieval_interp.tasks.lazy_names import lazy_names

# OpenMP's threads spin while they wait, which slows every process that shares the cores. OpenMP
# reads this once, when PyTorch is loaded, and every package here imports this one before PyTorch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__getattr__, __all__ = lazy_names(__name__, __file__)


def __dir__() -> list[str]:
    return __all__
