"""What every command shares: options from a dataclass, one-line errors, progress bars.

Heavy libraries are imported by the commands after their options are read.
"""

import atexit
import contextlib
import io
import math
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from retrieval_interp.cli.interrupts import forget_interrupts, ignore_interrupts, raise_interrupts
from retrieval_interp.cli.process_settings import collect_rarely
from tasks.errors import InputError

T = TypeVar("T")
BAD_INPUT = 2
SIGNALLED = 128


def parse_options(cls: type[T], argv: Sequence[str], prog: str, default: T | None = None) -> T:
    """Read a dataclass from the command line.

    Raises:
        InputError: an option is unknown, missing or of the wrong form.
        SystemExit: help was asked for and printed.
    """
    import tyro
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec

    registry = ConstructorRegistry()

    @registry.primitive_rule
    def as_text(info: Any) -> Any:
        """A class that reads itself from text, such as a retrieval graph."""
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
    # A default says which of several classes a field is of.
    conf = (tyro.conf.AvoidSubcommands,)
    try:
        with contextlib.redirect_stderr(errors):
            given: Any = tyro.MISSING_NONPROP if default is None else default
            options: T = tyro.cli(
                cls, args=argv, prog=prog, default=given, config=conf, registry=registry
            )
            return options
    except SystemExit as stop:
        if not stop.code:
            raise
        raise InputError(_one_line(errors.getvalue(), prog)) from None


def _one_line(box: str, prog: str) -> str:
    """The message inside the box that the option parser draws."""
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
    """Refuse examples, a seed or a tolerance (None: the task's) that no measurement can use.

    Raises:
        InputError: out of range; the option is named.
    """
    if not 2 <= examples <= 1_000_000:
        raise InputError(f"--examples: expected 2 to 1000000, found {examples}")
    if tolerance is not None and not (0 < tolerance < math.inf):
        raise InputError(f"--tolerance: expected a number above 0, found {tolerance}")
    if not 0 <= seed < 2**63:
        raise InputError(f"--seed: expected 0 to 2^63 - 1, found {seed}")


def check_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[Path | None]) -> None:
    """Refuse output files before the work starts rather than after.

    Args:
        outputs: what each option names, if anything.
        inputs: files that are read and must not be replaced.

    Raises:
        InputError: a file cannot be written, is named twice, or is read.
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


def run_command(main: Callable[[Sequence[str]], None], prog: str) -> None:
    """Run a command and exit: 0 done, 2 bad input (one line on stderr), 130 interrupted.

    SIGTERM and SIGHUP interrupt as Ctrl-C does, with 128 + their number.
    """
    warnings.showwarning = _warn_in_one_line  # type: ignore[assignment]
    signals = raise_interrupts()
    collect_rarely()
    try:
        main(sys.argv[1:])
        if sys.stdout is not None:
            sys.stdout.flush()
    except InputError as error:
        message = " ".join(str(error).split())
        print(f"{prog.split()[-1].split('.')[-1]}: {message}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt as error:
        ignore_interrupts()
        # Python remembers an interrupt that met code in a string (dataclasses make some), and would
        # end by the signal instead of with the status; other code in a string lets it forget.
        exec("")
        message = str(error) or "interrupted; no file is half written"
        print(f"\n{prog.split()[-1].split('.')[-1]}: {message}", file=sys.stderr)
        sys.exit(SIGNALLED + (signals[0] if signals else signal.SIGINT))
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except (OSError, MemoryError, RuntimeError) as error:
        text = " ".join(str(error).split())
        if isinstance(error, RuntimeError) and "alloc" not in text and "out of memory" not in text:
            raise
        what = "a smaller size, memory is short" if not isinstance(error, OSError) else "its files"
        print(f"{prog.split('.')[-1]}: expected {what}, found: {text:.150}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    finally:
        forget_interrupts()
        # The work is done, and the interpreter, which takes a second to end, has no more to say.
        atexit.register(ignore_interrupts)


def _warn_in_one_line(message: Warning | str, category: type[Warning], *_: Any) -> None:
    # Libraries' own warnings are for developers; a command shows what this project has to say.
    if category is UserWarning and str(message).startswith("torch.compile failed"):
        print(f"note: {message}", file=sys.stderr)


def progress_bar(items: Iterable[T], what: str) -> Iterable[T]:
    """Show a bar on a terminal and in a notebook, nothing elsewhere."""
    from tqdm.auto import tqdm

    # In a notebook the output is no terminal, and yet someone is looking.
    hidden = False if "ipykernel.zmqshell" in sys.modules else None
    bar: Iterable[T] = tqdm(items, desc=what, leave=False, disable=hidden, dynamic_ncols=True)
    return bar
