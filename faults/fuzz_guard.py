"""What a reader may do with an input, and a judge of what it did.

Allowed are a value, or an `InputError` whose message is one line of printable characters, of
bounded length. Everything else is a finding: another exception, a warning, more than `SLOW` seconds
of a core, more than `LARGE` bytes of memory, a file written or removed, a process, a connection,
code that is run. What is slow or runs code is tried again: libraries are imported late.
"""

import contextlib
import gc
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tasks import InputError

SLOW = 2.0
LARGE = 300 * 2**20
HANGING = 20  # seconds after which an input is given up
LONGEST = 1000  # characters of a message
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FORBIDDEN = {
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"),
    *("os.chmod", "shutil.rmtree", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"),
    *("os.fork", "socket.connect", "socket.getaddrinfo", "socket.bind", "pickle.find_class"),
    "exec",
}


class Outcome(NamedTuple):
    """What came of an input: `text` is the message, or what is wrong."""

    kind: Literal["accepted", "refused", "finding"]
    text: str = ""


class _Hangs(BaseException):
    """Not caught by the readers' own `except Exception`."""


_armed = False
_events: list[str] = []


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _armed:
        return
    if event == "open" and isinstance(args[2], int) and args[2] & _WRITING:
        _events.append(f"open({args[0]!r:.80}) to write")
    elif event in _FORBIDDEN:
        _events.append(f"{event}{args!r:.80}")


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    """Note forbidden events, and give up after `HANGING` seconds."""
    global _armed

    def give_up(*_: Any) -> None:
        raise _Hangs

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, HANGING)
    _events.clear()
    _armed = True
    try:
        yield
    finally:
        _armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def install() -> None:
    """Begin to listen to what the interpreter does; this cannot be undone, but it idles."""
    sys.dont_write_bytecode = True
    sys.addaudithook(_audit)


def peak_memory() -> int:
    """Bytes that this process held at most."""
    # Not getrusage's, which begins with the parent's peak.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def judge(read: Callable[[Any], object], value: Any) -> Outcome:
    """Read one input.

    Args:
        read: returns, or raises what it likes.
        value: the input.
    """
    for _ in range(2):
        outcome, seconds, grown = _once(read, value)
        if grown > LARGE and outcome.kind != "finding":
            return Outcome("finding", f"memory grew by {grown >> 20} MiB")
        if _events:
            outcome = Outcome("finding", f"did {'; '.join(dict.fromkeys(_events))}")
        elif outcome.kind == "finding" or seconds <= SLOW:
            return outcome
        else:
            outcome = Outcome("finding", f"took {seconds:.1f} s")
    return outcome


def _once(read: Callable[[Any], object], value: Any) -> tuple[Outcome, float, int]:
    held, start = peak_memory(), time.process_time()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with _watched():
                read(value)
            outcome = Outcome("accepted")
        except InputError as error:
            outcome = _judge_message(str(error))
        except _Hangs:
            outcome = Outcome("finding", f"gave up after {HANGING} s")
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(last.filename)}:{last.name}"
            outcome = Outcome("finding", f"{type(error).__name__} in {place}: {error!s:.200}")
            del error
    seconds, grown = time.process_time() - start, peak_memory() - held
    # What the garbage collector finds unclosed belongs to no input in particular.
    own = [row for row in warned if not issubclass(row.category, ResourceWarning)]
    if own and outcome.kind != "finding":
        outcome = Outcome("finding", f"{own[0].category.__name__}: {own[0].message!s:.200}")
    if grown > LARGE:
        gc.collect()
    return outcome, seconds, grown


def _judge_message(text: str) -> Outcome:
    if not text:
        return Outcome("finding", "an empty message")
    if len(text) > LONGEST:
        return Outcome("finding", f"a message of {len(text)} characters: {text!r:.100}")
    if not text.isprintable():
        return Outcome("finding", f"a message with control characters: {text!r:.200}")
    return Outcome("refused", text)
