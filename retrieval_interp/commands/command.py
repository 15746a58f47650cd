"""Run a command: one-line errors, signals and warnings, and what it says on the terminal.

Commands import heavy libraries only after their options are read.
"""

import atexit
import contextlib
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from retrieval_interp.storage.models_by_name import own_call
from retrieval_interp.tasks.messages import InputError, InputWarning
from retrieval_interp.views.tables import terminal_width, wrapped


def run_command(
    main: Callable[[Sequence[str], str], None], prog: str, argv: Sequence[str] | None = None
) -> None:
    """Run a command and exit: 0 done, 2 bad input (one line on stderr), 130 interrupted.

    SIGTERM and SIGHUP interrupt as Ctrl-C does, with 128 + their number. `prog` is how the command
    was called, for `--help` and records.
    """
    name = re.split(r"[ .]", prog)[-1]
    warnings.showwarning = _warn_in_short  # type: ignore[assignment]
    last_signal = signal.SIGINT

    def interrupt(number: int, _: Any) -> None:
        nonlocal last_signal
        last_signal = signal.Signals(number)
        raise KeyboardInterrupt

    _on_signals(interrupt)
    # Shutting down takes a second, in which an interrupt would only print a traceback.
    atexit.register(_on_signals, signal.SIG_IGN)
    try:
        main(sys.argv[1:] if argv is None else argv, prog)
        sys.stdout.flush()
    except KeyboardInterrupt as error:
        _on_signals(signal.SIG_IGN)
        reason = str(error) or "interrupted; no file is half written"
        with contextlib.suppress(OSError):  # the terminal may be gone
            print(f"\n{name}: {reason}", file=sys.stderr, flush=True)
        sys.exit(128 + last_signal)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except Exception as error:
        text = _in_one_line(error)
        if not text:
            raise
        print(f"{name}: {text}", file=sys.stderr)
        sys.exit(2)


def _in_one_line(error: Exception) -> str:
    """Describe an error of the input, a user's own code or the machine; empty for any other."""
    text = " ".join(str(error).split())
    if isinstance(error, InputError):
        return text
    if type(error).__name__ in ("MemoryError", "OutOfMemoryError"):  # Python's and PyTorch's
        return f"expected a smaller size, memory is short, found: {text:.150}"
    if called := own_call(error):
        return f"{called} to run, found {type(error).__name__}: {text:.150}"
    return f"expected its files, found: {text:.150}" if isinstance(error, OSError) else ""


def _on_signals(handler: Any) -> None:
    """Handle Ctrl-C, `kill` and a closed terminal; signals that nohup ignores stay ignored."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _warn_in_short(message: Warning | str, category: type[Warning], *_: Any) -> None:
    # Warnings of libraries are for developers; commands show this project's own only.
    if issubclass(category, InputWarning):
        clear = "\r\x1b[K" if sys.stderr.isatty() else ""  # clears a bar's line
        print(f"{clear}note: {message}", file=sys.stderr)


def say(text: str) -> None:
    """Print prose, wrapped to the terminal's width, or to 100 characters in a pipe."""
    print("\n".join(wrapped(text, terminal_width())))


def tell_files(**files: Path | None) -> None:
    """Print which files were written, one per line."""
    for what, path in files.items():
        if path is not None:
            print(f"{what + ':':<8} {path}")


@contextlib.contextmanager
def status(action: str) -> Iterator[None]:
    """Show on a terminal what is being done, for as long as it takes; nothing elsewhere."""
    shown = sys.stderr.isatty()
    if shown:
        print(f"{action} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
