"""Ctrl-C, a closed terminal and `kill` end a command in one line, from its first moment on.

1. While libraries are loaded nothing is written yet: the process says so and ends at once. An
   exception would pass through foreign code, which may swallow it or turn it into another.
2. From then on they raise KeyboardInterrupt, and the command leaves what it had finished. One that
   is raised where Python ignores exceptions (a finalizer) is raised again a moment later.

A signal that is ignored from outside, as by nohup, stays ignored. This module loads nothing heavy.
"""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
_AGAIN = 0.01  # seconds


def end_at_once(name: str) -> None:
    """From now on a signal ends the process with one line and exit status 128 + its number.

    Args:
        name: of the command, for the line.
    """

    def end(number: int, _: FrameType | None) -> None:
        os.write(2, f"\n{name}: interrupted before it began\n".encode())
        os._exit(128 + number)

    _install(end)


def raise_interrupts() -> list[int]:
    """From now on a signal raises KeyboardInterrupt.

    Returns:
        The numbers of the signals that came so far, filled as they come.
    """
    came: list[int] = []

    def interrupt(number: int, _: FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt

    def ignored(what: Any) -> None:
        if issubclass(what.exc_type, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)
        else:
            sys.__unraisablehook__(what)

    _install(interrupt)
    signal.signal(signal.SIGALRM, interrupt)
    sys.unraisablehook = ignored
    return came


def ignore_interrupts() -> None:
    """From now on the process can end in its own way."""
    _install(signal.SIG_IGN)
    forget_interrupts()


def forget_interrupts() -> None:
    """What was ignored in a finalizer is not raised again: the work is done."""
    signal.setitimer(signal.ITIMER_REAL, 0)


def _install(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in (getattr(signal, name) for name in _SIGNALS):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)
