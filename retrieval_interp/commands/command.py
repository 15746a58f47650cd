"""What all commands share: options from a dataclass, one-line errors, signals, prose.

Commands import heavy libraries only after their options are read.
"""

import atexit
import contextlib
import difflib
import io
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from runpy import run_path
from typing import Any, TypeVar

from retrieval_interp.storage.files import shipped_checkpoints, writable
from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.structured import check_sampling
from retrieval_interp.views.tables import terminal_width, wrapped

T = TypeVar("T")
_NO_NUMBER = r"(?:no type matching|Could not find valid|could not convert).*?(\[.*?\]|'[^']*').*"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_run_once = cache(run_path)
_MAIN = ("--ckpt", "--run", "--preset", "--prompt", "--model", "--steps")  # what a word alone means


class _Captured(io.StringIO):
    """What is printed, with the colours and characters that standard output can show."""

    encoding = property(lambda self: self.like.encoding)

    def __init__(self) -> None:
        super().__init__()
        self.like = sys.stdout

    def isatty(self) -> bool:
        return self.like.isatty()


def parse_options(cls: type[T], argv: Sequence[str], prog: str, default: T | None = None) -> T:
    """Read a dataclass from the command line; `--help` prints and exits."""
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

    given = {} if default is None else {"default": default}
    # Where a field may be of several classes, it is of the default's.
    more: dict[str, Any] = {"config": (tyro.conf.AvoidSubcommands,), "registry": registry, **given}

    def read(words: Sequence[str]) -> tuple[T | None, str, str]:
        """The options, what the parser printed and what it complained of."""
        printed, errors = _Captured(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            try:
                return tyro.cli(cls, args=words, prog=prog, **more), "", ""
            except SystemExit:
                return None, printed.getvalue(), errors.getvalue()

    options, help_text, box = read(argv)
    if options is None and help_text:
        usage, _, rest = help_text.partition("\n")
        print(*wrapped(_COLOUR.sub("", usage), terminal_width(), 2), rest, sep="\n", end="")
        raise SystemExit(0)
    if options is None:
        names = sorted(set(re.findall(r"--[a-z][\w.-]*", read(["--help"])[1])) - {"--help"})
        raise InputError(f"{_one_line(box, names)}; see {prog} --help")
    return options


def _one_line(box: str, names: Sequence[str]) -> str:
    """The message inside the box that the option parser draws, in colours on a terminal."""
    box = re.sub("-{5,}", "", _COLOUR.sub("", box))
    lines = [line.strip("│╭╮╰╯─ ") for line in box.splitlines() if line.strip("│╭╮╰╯─ \t")]
    text = lines[1:] if len(lines) > 1 and "─" in box.splitlines()[0] else lines
    message = re.split("Argument helptext|For full helptext", " ".join(text[:9]))[0].strip()
    if unknown := re.search(r"Unrecognized options: ([^\s,]+)", message):
        word = unknown[1]
        if not word.startswith("-"):
            given = next((name for name in _MAIN if name in names), "an option before it:")
            return f"expected options, found {word}; write {given} {word}"
        close = difflib.get_close_matches(word, names, 1, 0.65) or names
        return f"expected {', '.join(close) or 'no options'}, found {word}"
    message = re.sub(r"invalid literal.*(?='.*')", "expected a whole number, found ", message)
    message = re.sub(_NO_NUMBER, r"expected a number, found \1", message)
    message = re.sub(r"'None', |, 'None'", "", message).removesuffix(".")
    return re.sub(r"^Error parsing (?:[\w.-]+: (?=\w+: expected))?", "", message)


@dataclass(frozen=True)
class MeasuringOptions:
    """What all commands take that search a model on examples.

    Attributes:
        examples: how many examples to search on, and as many others to measure on.
        seed: which examples.
        time: seconds after which the search ends with the best so far; Ctrl-C ends it likewise.
        device: auto, cpu or cuda.
        json: write the numbers to this file.
        report: write an HTML page that needs no network to this file.
    """

    examples: int = 512
    seed: int = 0
    time: float | None = None
    device: str = "auto"
    json: Path | None = None
    report: Path | None = None

    def check(self, *inputs: Path | None) -> None:
        """Check what can be known before libraries are loaded, which takes seconds."""
        check_sampling(self.examples, self.seed, vars(self).get("tolerance"), "--")
        names = ("json", "report", "save_circuit")
        outputs = {f"--{name.replace('_', '-')}": vars(self).get(name) for name in names}
        check_outputs(outputs, inputs)


def check_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[Path | None]) -> None:
    """Check that files can be written and differ from each other and from those that are read."""
    given = [writable(path).resolve() for path in outputs.values() if path is not None]
    if len(set(given)) < len(given):
        raise InputError(f"expected a different file for each of {', '.join(outputs)}")
    for source in inputs:
        if source is not None and source.resolve() in given:
            raise InputError(f"{source}: expected other files to write than to read")


def load_model(name: str, device: str) -> tuple[Any, Any]:
    """A model by name, and its task or None.

    A shipped checkpoint, a checkpoint file, a run folder, `smollm2`, the folder of a Hugging Face
    model, or one's own, `FILE.py:NAME`.
    """
    import retrieval_interp as ri
    from retrieval_interp.training import check_device, choose_device

    place, folder = choose_device(device), Path(name)
    if ".py:" in name:
        if hasattr(model := named_in(name), "parameters"):
            check_device(model, device)
        return model, None
    if not folder.exists() and name not in (names := [*shipped_checkpoints(), "smollm2"]):
        more = "a checkpoint file, a run folder, the folder of a Hugging Face model or FILE.py:NAME"
        raise InputError(f"model {name!r}: expected {', '.join(names)}, {more}, found none of them")
    foreign = (folder / "config.json").is_file() and any(folder.glob("model*.safetensors"))
    if not foreign and name != "smollm2":
        checkpoint = ri.load_checkpoint(name, place)
        return checkpoint.model, checkpoint.task
    if not sys.stderr.isatty():
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
    if not foreign:
        return ri.smollm2(device=str(place)), None
    from transformer_lens.model_bridge.bridge import TransformerBridge

    try:
        return TransformerBridge.boot_transformers(str(folder), device=str(place)).eval(), None
    except (ValueError, KeyError, OSError) as error:
        raise InputError(
            f"{folder}: expected a causal language model of Hugging Face with its tokenizer that "
            f"TransformerLens knows, found: {error!s:.150}"
        ) from error


def named_in(place: str) -> Any:
    """What a Python file, which is run once, calls so: `FILE.py:NAME`."""
    path, _, name = place.rpartition(":")
    names = _run_once(path) if Path(path).is_file() else {}
    if name not in names:
        raise InputError(f"{place}: expected FILE.py:NAME, found no such name or no such file")
    return names[name]


def say(text: str = "", hanging: int = 0) -> None:
    """Print prose, wrapped to the terminal's width, or to 100 characters in a pipe."""
    print("\n".join(wrapped(text, terminal_width(), hanging)))


def tell_files(**files: Path | None) -> None:
    """Print which files were written, one per line."""
    for what, path in files.items():
        if path is not None:
            print(f"{what + ':':<8} {path}")


@contextlib.contextmanager
def saying(what: str) -> Iterator[None]:
    """Show on a terminal what is being done, for as long as it takes; nothing elsewhere."""
    shown = sys.stderr.isatty()
    if shown:
        print(f"{what} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def run_command(
    main: Callable[[Sequence[str], str], None], prog: str, argv: Sequence[str] | None = None
) -> None:
    """Run a command and exit: 0 done, 2 bad input (one line on stderr), 130 interrupted.

    SIGTERM and SIGHUP interrupt as Ctrl-C does, with 128 + their number. `prog` is how the command
    was called, for `--help` and records.
    """
    name = re.split(r"[ .]", prog)[-1]
    warnings.showwarning = _warn_in_short  # type: ignore[assignment]
    came = [signal.SIGINT]

    def interrupt(number: int, _: Any) -> None:
        came.append(signal.Signals(number))
        raise KeyboardInterrupt

    _on_signals(interrupt)
    # Shutting down takes a second, in which an interrupt would only print a traceback.
    atexit.register(_on_signals, signal.SIG_IGN)
    try:
        main(sys.argv[1:] if argv is None else argv, prog)
        sys.stdout.flush()
    except KeyboardInterrupt as error:
        _on_signals(signal.SIG_IGN)
        said = str(error) or "interrupted; no file is half written"
        with contextlib.suppress(OSError):  # the terminal may be gone
            print(f"\n{name}: {said}", file=sys.stderr, flush=True)
        sys.exit(128 + came[-1])
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except Exception as error:  # of the input or the machine; any other has its traceback
        said = " ".join(str(error).split())
        if isinstance(error, OSError):
            said = f"expected its files, found: {said:.150}"
        elif type(error).__name__ in ("MemoryError", "OutOfMemoryError"):  # Python's and PyTorch's
            said = f"expected a smaller size, memory is short, found: {said:.150}"
        elif not isinstance(error, InputError):
            raise
        print(f"{name}: {said}", file=sys.stderr)
        sys.exit(2)


def _on_signals(handler: Any) -> None:
    """Handle Ctrl-C, `kill` and a closed terminal; signals that nohup ignores stay ignored."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _warn_in_short(message: Warning | str, category: type[Warning], *_: Any) -> None:
    # Warnings of libraries are for developers; commands show this project's own only.
    own = category.__module__.startswith("retrieval_interp")
    if own or (category is UserWarning and str(message).startswith("torch.compile failed")):
        clear = "\r\x1b[K" if sys.stderr.isatty() else ""  # clears a bar's line
        print(f"{clear}note: {message}", file=sys.stderr)
