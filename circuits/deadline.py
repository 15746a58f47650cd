"""The time limit of a search."""

import math
from collections.abc import Iterator
from time import monotonic
from typing import Any

from retrieval_interp.circuits.hooks import HookedModel


class OutOfTime(Exception):
    """Raised where the time of a search is over."""


class Deadline:
    """When the time of a search is over, in seconds of `time.monotonic`.

    `steps_until` sets an end for its steps; after them there is none.
    """

    def __init__(self, end: float = math.inf):
        self.end, self.passed = end, False

    def check(self, *_: Any) -> None:
        """Raise OutOfTime if the time is over."""
        if monotonic() > self.end:
            raise OutOfTime

    def steps_until(self, end: float, steps: Iterator[str], model: HookedModel) -> Iterator[str]:
        """Take steps until they are done or the time is over; then `passed` is true.

        The time is also checked before every block of the model, as a single run may take long.
        """
        self.passed = False
        while not self.passed:
            self.end = end
            checks = [block.register_forward_pre_hook(self.check) for block in model.blocks]
            try:
                self.check()
                step = next(steps, None)
            except OutOfTime:
                step, self.passed = None, True
            finally:
                self.end = math.inf
                for check in checks:
                    check.remove()
            if step is None:
                return
            yield step
