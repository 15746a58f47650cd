"""A judge of what a reader does with an input.

Allowed are a value, or an `InputError` whose message is one printable line of bounded length. All
else is wrong: another exception, a warning, more than `SLOW` seconds of a core, more than `LARGE`
bytes of memory, a file written or removed, a process, a connection, code that is run.
"""

import contextlib
import gc
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from retrieval_interp.tasks import InputError

SLOW = 2.0
LARGE = 300 * 2**20
HANGING = 20.0  # seconds after which an input is given up
LONGEST = 1000  # characters of a message
_ROOM = 8 * 2**30  # bytes of address space beyond what is mapped at the start
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FORBIDDEN = {
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"),
    *("os.chmod", "shutil.rmtree", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"),
    *("os.fork", "socket.connect", "socket.getaddrinfo", "socket.bind", "pickle.find_class"),
    "exec",
}


class _Hangs(BaseException):
    """Not caught by the readers' own `except Exception`."""


_armed, _installed = False, False
_events: list[str] = []


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _armed:
        return
    if event == "open" and isinstance(args[2], int) and args[2] & _WRITING:
        _events.append(f"open({args[0]!r:.80}) to write")
    elif event in _FORBIDDEN and not (event == "exec" and _checks_types()):
        _events.append(f"{event}{args!r:.80}")


def _checks_types() -> bool:
    """Whether the code is the tests' own type checks, which functions in functions get anew."""
    frame = sys._getframe(2)
    while frame and not str(frame.f_globals.get("__name__")).startswith("jaxtyping."):
        frame = frame.f_back
    return bool(frame)


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    """Note forbidden events, and give up after `HANGING` seconds."""
    global _armed, _installed
    if not _installed:  # this cannot be undone, but it idles
        sys.addaudithook(_audit)
        _installed = True

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


@contextlib.contextmanager
def limited_memory() -> Iterator[None]:
    """Let a blow-up fail here instead of taking the machine along."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + _ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _peak() -> int:
    """Bytes that this process held at most."""
    # Not getrusage's, which begins with the parent's peak.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def judge(read: Callable[[Any], object], value: Any) -> str | None:
    """Read one input.

    Args:
        read: returns, or raises what it likes.
        value: the input.

    Returns:
        The line that refused it, None if it was accepted.

    Raises:
        AssertionError: what was done is not allowed.
    """
    for _ in range(2):  # a first use may import a library, which takes time and runs code
        refused, seconds = _read(read, value)
        if not _events and seconds <= SLOW:
            return refused
    raise AssertionError(f"did {'; '.join(dict.fromkeys(_events))} in {seconds:.1f} s")


def _read(read: Callable[[Any], object], value: Any) -> tuple[str | None, float]:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    held, start, refused = _peak(), time.process_time(), None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with _watched():
                read(value)
        except InputError as error:
            refused = str(error)
        except _Hangs:
            raise AssertionError(f"gave up after {HANGING} s") from None
        except Exception as error:
            raise AssertionError(f"raised {error!r:.300}") from error
    seconds, grown = time.process_time() - start, _peak() - held
    # What the garbage collector finds unclosed belongs to no input in particular.
    own = [row for row in warned if not issubclass(row.category, ResourceWarning)]
    assert not own, f"warned {own[0].category.__name__}: {own[0].message!s:.200}"
    if refused is not None:
        assert 0 < len(refused) <= LONGEST, f"a message of {len(refused)} characters"
        assert refused.isprintable(), f"a message with control characters: {refused!r:.200}"
    if grown > LARGE:
        gc.collect()
        raise AssertionError(f"memory grew by {grown >> 20} MiB")
    return refused, seconds
