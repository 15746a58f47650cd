"""Seeing where a search is, and ending it early: by a time limit, by Ctrl-C, or by who watches."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class SearchState:
    """Where a search is.

    Attributes:
        doing: what is being tried.
        scored: number of circuits whose exact loss was measured, on some or all examples.
        cost: cost of the best circuit so far (`circuits.discovery.cost`); None before the first.
        loss: its loss on the examples that decide.
    """

    doing: str
    scored: int
    cost: int | None = None
    loss: float | None = None

    def __str__(self) -> str:
        best = "none holds yet"
        if self.loss is not None:
            best = f"best cost {self.cost}, loss {self.loss:.4f}"
        return f"{self.doing}; {self.scored} scored; {best}"


Watch = Callable[[SearchState], bool | None]
"""Told where a search is after every exact score; if it returns True, the search ends."""


class SearchStopped(UserWarning):
    """A search ended before it was complete."""


class SearchEnded(Exception):
    """Ends a search; says why, and whether someone asked for it."""

    def __init__(self, why: str, cancelled: bool):
        super().__init__(why)
        self.why, self.cancelled = why, cancelled


OUT_OF_TIME = "stopped by its time limit"
CANCELLED = "cancelled"


@contextmanager
def ctrl_c() -> Iterator[Callable[[], bool]]:
    """Tell whether Ctrl-C was pressed, instead of interrupting; the second one interrupts.

    Only in the main thread, which alone gets signals, and not where Ctrl-C is ignored.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: False
        return
    pressed = False

    def press(number: int, frame: object) -> None:
        nonlocal pressed
        if pressed:
            before(number, frame)  # type: ignore[arg-type]
        pressed = True

    signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
