"""What all commands share: options from a dataclass, one-line errors, signals, progress bars.

Commands import heavy libraries only after their options are read.
"""

import atexit
import contextlib
import io
import math
import os
import re
import shutil
import signal
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from retrieval_interp.tasks.errors import InputError

T = TypeVar("T")
BAD_INPUT = 2
SIGNALLED = 128


def parse_options(cls: type[T], argv: Sequence[str], prog: str, default: T | None = None) -> T:
    """Read a dataclass from the command line.

    Raises:
        InputError: an option is unknown, missing or malformed.
        SystemExit: help was requested and printed.
    """
    import tyro
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec

    registry = ConstructorRegistry()

    @registry.primitive_rule
    def as_text(info: Any) -> Any:
        """A class with a `parse` method, such as a retrieval graph."""
        if not hasattr(info.type, "parse"):
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar=info.type.__name__.upper(),
            instance_from_str=lambda words: info.type.parse(words[0]),
            is_instance=lambda value: isinstance(value, info.type),
            str_from_instance=lambda value: [str(value)],
        )

    errors = io.StringIO()
    given: Any = tyro.MISSING_NONPROP if default is None else default
    # If a field may be of several classes, the default decides which.
    conf = (tyro.conf.AvoidSubcommands,)
    try:
        with contextlib.redirect_stderr(errors):
            options: T = tyro.cli(
                cls, args=argv, prog=prog, default=given, config=conf, registry=registry
            )
        return options
    except SystemExit as stop:
        if not stop.code:
            raise
        raise InputError(_one_line(errors.getvalue(), prog)) from None


def _one_line(box: str, prog: str) -> str:
    """The message inside the box that the option parser draws, in colours on a terminal."""
    box = re.sub(r"\x1b\[[0-9;]*m", "", box)
    lines = [line.strip("│╭╮╰╯─ ") for line in box.splitlines() if line.strip("│╭╮╰╯─ \t")]
    text = lines[1:] if len(lines) > 1 and "─" in box.splitlines()[0] else lines
    ends = ("Argument helptext", "For full helptext")
    kept: list[str] = []
    for line in text:
        if line.startswith(ends) or len(kept) > 8:
            break
        kept.append(line)
    message = re.sub(r"\s+", " ", " ".join(kept))
    message = re.sub(r"^Error parsing [\w.-]+: (?=\w+: expected)", "", message)
    return f"{message}; see {prog} --help"


def check_sampling(examples: int, seed: int, tolerance: float | None) -> None:
    """Check the number of examples, the seed and the tolerance (None for the task's own).

    Raises:
        InputError: an option is out of range.
    """
    if not 2 <= examples <= 1_000_000:
        raise InputError(f"--examples: expected 2 to 1000000, found {examples}")
    if tolerance is not None and not (0 < tolerance < math.inf):
        raise InputError(f"--tolerance: expected a number above 0, found {tolerance}")
    if not 0 <= seed < 2**63:
        raise InputError(f"--seed: expected 0 to 2^63 - 1, found {seed}")


def check_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[Path | None]) -> None:
    """Check output files before the work starts.

    Args:
        outputs: the file that each option names, if any.
        inputs: files that are read and must not be overwritten.

    Raises:
        InputError: a file cannot be written, is named twice, or is an input.
    """
    from retrieval_interp.storage.files import check_writable

    for path in outputs.values():
        check_writable(path)
    given = [path.resolve() for path in outputs.values() if path is not None]
    if len(set(given)) < len(given):
        *names, last = outputs
        raise InputError(f"expected a different file for {', '.join(names)} and {last}")
    for source in inputs:
        if source is not None and source.resolve() in given:
            raise InputError(f"{source}: expected other files to write than to read")


def say(text: str = "", hanging: int = 0) -> None:
    """Print prose, wrapped to the terminal's width, or to 100 characters in a pipe.

    Args:
        text: one or more lines, each of which is wrapped.
        hanging: blanks before the lines that go on.
    """
    from retrieval_interp.views.tables import terminal_width, wrapped

    print("\n".join(wrapped(text, terminal_width(), hanging)))


def tell_files(**files: Path | None) -> None:
    """Print which files were written, one per line."""
    for what, path in files.items():
        if path is not None:
            print(f"{what + ':':<8} {path}")


def run_command(
    main: Callable[[Sequence[str]], None], prog: str, argv: Sequence[str] | None = None
) -> None:
    """Run a command and exit: 0 done, 2 bad input (one line on stderr), 130 interrupted.

    SIGTERM and SIGHUP interrupt as Ctrl-C does, with 128 + their number.

    Args:
        main: the command.
        prog: how it was called, without options.
        argv: its options; by default those of this process.
    """
    name = re.split(r"[ .]", prog)[-1]
    warnings.showwarning = _warn_in_short  # type: ignore[assignment]
    came: list[int] = []

    def interrupt(number: int, _: Any) -> None:
        came.append(number)
        raise KeyboardInterrupt

    _on_signals(interrupt)
    # Shutting down takes a second, in which an interrupt would only print a traceback.
    atexit.register(_on_signals, signal.SIG_IGN)
    try:
        main(sys.argv[1:] if argv is None else argv)
        if sys.stdout is not None:
            sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        # Libraries may have turned the interrupt into another exception.
        if came or isinstance(error, KeyboardInterrupt):
            _on_signals(signal.SIG_IGN)
            said = str(error) if isinstance(error, KeyboardInterrupt) else ""
            with contextlib.suppress(OSError):
                message = said or "interrupted; no file is half written"
                print(f"\n{name}: {message}", file=sys.stderr, flush=True)
            # At once, as after an interrupt in exec'd code Python would end itself by SIGINT.
            os._exit(SIGNALLED + (came[0] if came else signal.SIGINT))
        if isinstance(error, BrokenPipeError):
            sys.stderr.close()
            sys.exit(1)
        print(f"{name}: {_said(error)}", file=sys.stderr)
        sys.exit(BAD_INPUT)


def _said(error: BaseException) -> str:
    """An error of the input or the machine in one line; any other is raised again."""
    text = " ".join(str(error).split())
    if isinstance(error, InputError):
        return text
    if isinstance(error, OSError):
        return f"expected its files, found: {text:.150}"
    if isinstance(error, MemoryError) or "alloc" in text or "out of memory" in text:
        return f"expected a smaller size, memory is short, found: {text:.150}"
    raise error


def _on_signals(handler: Any) -> None:
    """Handle Ctrl-C, `kill` and a closed terminal; signals that nohup ignores stay ignored."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _warn_in_short(message: Warning | str, category: type[Warning], *_: Any) -> None:
    # Warnings of libraries are for developers; commands show this project's own only.
    own = category.__module__.partition(".")[0] in ("tasks", "circuits", "retrieval_interp")
    if own or (category is UserWarning and str(message).startswith("torch.compile failed")):
        note = f"note: {message}"
        if sys.stderr.isatty():  # clears a bar's line
            width = shutil.get_terminal_size().columns
            note = "\r\x1b[K" + "\n".join(textwrap.wrap(note, width, break_on_hyphens=False))
        print(note, file=sys.stderr)


def in_notebook() -> bool:
    """Whether a bar can be seen although stderr is no terminal."""
    return "ipykernel.zmqshell" in sys.modules


@contextlib.contextmanager
def saying(what: str) -> Iterator[None]:
    """Show on a terminal what is being done, for as long as it takes; nothing elsewhere."""
    shown = sys.stderr is not None and sys.stderr.isatty()
    if shown:
        print(f"{what} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def progress_bar(items: Iterable[T], what: str) -> Iterable[T]:
    """Show a bar on a terminal or in a notebook, and nothing elsewhere."""
    from tqdm.auto import tqdm

    hidden = False if in_notebook() else None  # None: shown on a terminal
    bar: Iterable[T] = tqdm(items, desc=what, leave=False, disable=hidden, dynamic_ncols=True)
    return bar
