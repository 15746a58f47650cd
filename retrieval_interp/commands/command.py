"""What all commands share: options from a dataclass, one-line errors, signals, prose.

Commands import heavy libraries only after their options are read.
"""

import argparse
import atexit
import contextlib
import dataclasses
import inspect
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from runpy import run_path
from typing import Annotated, Any, NoReturn, TypeVar, cast, get_args, get_origin, get_type_hints

from retrieval_interp.storage.files import find_checkpoint, shipped_checkpoints, writable
from retrieval_interp.storage.packaged_models import PACKAGED
from retrieval_interp.tasks.messages import InputError, InputWarning, nearest
from retrieval_interp.tasks.structured import check_sampling
from retrieval_interp.views.tables import terminal_width, wrapped

T = TypeVar("T")


_OWN_FOLDERS = set[Path]()  # of the Python files that were run


@cache
def _run_once(path: str) -> dict[str, Any]:
    """The names of a Python file, which may import from its own folder, as `python FILE.py`."""
    folder = Path(path).resolve().parent
    _OWN_FOLDERS.add(folder)
    sys.path.insert(0, str(folder))
    return run_path(path)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message.removeprefix('argument ')}; see {self.prog} --help")


def parse_options(cls: type[T], argv: Sequence[str], prog: str) -> T:
    """Read a dataclass from the command line; `--help` prints its docstring and exits.

    `--save-circuit` sets the field `save_circuit`. Strings in `Annotated` are the option's names
    instead, for an alias; one without dashes is set by its place.
    """
    (options,) = parse_parts([("", cls)], argv, prog)
    return cast(T, options)


def parse_parts(parts: Sequence[tuple[str, Any]], argv: Sequence[str], prog: str) -> list[Any]:
    """Read several dataclasses; the docstring of the first is the help.

    Each is a class, or an instance to change, with what its options begin with: `--task.steps 2`
    sets the field `steps` of the part `task.`.
    """
    about = inspect.cleandoc(parts[0][1].__doc__).partition("Attributes:")[0]
    parser = _Parser(prog, "%(prog)s [-h] [OPTIONS]", about, allow_abbrev=False)
    names = [name for prefix, part in parts for name in _add_options(parser, prefix, part)]
    given, unknown = parser.parse_known_intermixed_args(argv)
    if unknown:
        word = unknown[0].partition("=")[0]
        if not word.startswith("-"):
            write = f"; write {names[0]} {word}" * names[0].startswith("-")
            parser.error(f"expected options, found {word}{write}")
        parser.error(f"expected {nearest(word, names, 'one of its options')}, found {word}")
    made = []
    for prefix, part in parts:
        keys = {field.name: prefix + field.name for field in dataclasses.fields(part)}
        values = {name: getattr(given, key) for name, key in keys.items() if key in given}
        values |= {name: tuple(value) for name, value in values.items() if type(value) is list}
        make = part if isinstance(part, type) else partial(dataclasses.replace, part)
        made.append(make(**values))
    return made


def _add_options(parser: Any, prefix: str, part: Any) -> list[str]:
    """Add an option for each field, a class's own before those of its bases; returns the names."""
    cls, names = part if isinstance(part, type) else type(part), list[str]()
    types, texts = get_type_hints(cls, include_extras=True), _attributes(cls)
    group = parser.add_argument_group(prefix.rstrip(".")) if prefix else parser
    order, fields = list(cls.__annotations__), dataclasses.fields(cls)
    for field in sorted(fields, key=lambda field: [*order, field.name].index(field.name)):
        kind = types[field.name]
        default: Any = getattr(part, field.name, dataclasses.MISSING)
        if dataclasses.is_dataclass(default) and not hasattr(default, "parse"):
            continue  # a part of its own
        word = field.name.replace("_", "-")
        called, help = [f"--{prefix}{word}"], texts.get(field.name, "")
        if get_origin(kind) is Annotated:
            kind, *called = get_args(kind)
        many, optional = get_origin(kind) is tuple, type(None) in get_args(kind)
        kind = get_args(kind)[0] if many or optional else kind
        required = default is dataclasses.MISSING
        how: dict[str, Any] = {"default": None if required else default}
        if called[0].startswith("-"):
            how |= {"dest": prefix + field.name, "required": required}
        elif not required:
            how["nargs"] = "?"
        if default not in (None, "", dataclasses.MISSING):
            help += f" (default: {' '.join(map(str, default)) if many else default})"
        if kind is bool:
            called.append(f"--{prefix}no-{word}")
            group.add_argument(called[0], **how, action="store_true", help=help)
            help = f"switch {called[0]} off."
            group.add_argument(called[1], **how, action="store_false", help=help)
        elif choices := get_args(kind):
            group.add_argument(*called, **how, choices=choices, help=help)
        else:
            how |= {"nargs": "*"} if many else {}
            how |= {"type": partial(_value, kind), "metavar": kind.__name__.upper()}
            group.add_argument(*called, **how, help=help)
        names += called
    return names


def _value(kind: Any, word: str) -> Any:
    """A word of the command line as a value."""
    try:
        return getattr(kind, "parse", kind)(word)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    except ValueError:
        expected = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"expected {expected}, found {word!r}") from None


def _attributes(cls: type) -> dict[str, str]:
    """What the docstrings of a class and its bases say of its attributes."""
    texts: dict[str, str] = {}
    for base in cls.__mro__:
        section = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2]
        for entry in section.replace("\n" + " " * 8, " ").splitlines():
            name, _, text = entry.strip().partition(": ")
            texts.setdefault(name, text.replace("%", "%%"))  # argparse fills in after %
    return texts


@dataclass(frozen=True)
class ExampleOptions:
    """What all commands take that measure a model on examples.

    Attributes:
        examples: how many examples to measure on.
        seed: which examples.
        device: auto, cpu or cuda.
    """

    examples: int = 512
    seed: int = 0
    device: str = "auto"

    def check(self, *inputs: Path | None) -> None:
        """Check what can be known before libraries are loaded, which takes seconds."""
        check_sampling(self.examples, self.seed, vars(self).get("tolerance"), "--")
        names = ("json", "report", "save_circuit", "graph")
        outputs = {f"--{name.replace('_', '-')}": vars(self).get(name) for name in names}
        check_outputs(outputs, inputs)


@dataclass(frozen=True)
class MeasuringOptions(ExampleOptions):
    """What all commands take that search a model.

    Attributes:
        examples: how many examples to search on, and as many others to measure on.
        time: seconds after which the search ends with the best so far; Ctrl-C ends it likewise.
        json: write the numbers to this file.
        report: write an HTML page that needs no network to this file.
    """

    time: float | None = None
    json: Path | None = None
    report: Path | None = None


def check_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[Path | None]) -> None:
    """Check that files can be written and differ from each other and from those that are read."""
    given = [writable(path).resolve() for path in outputs.values() if path is not None]
    if len(set(given)) < len(given):
        names = [name for name, path in outputs.items() if path is not None]
        raise InputError(f"expected a different file for each of {', '.join(names)}")
    for source in inputs:
        if source is not None and source.resolve() in given:
            raise InputError(f"{source}: expected other files to write than to read")


def check_model(name: str, add: str = "") -> None:
    """Raise InputError if there is no model of this name, before libraries are loaded.

    Also if it has no task, and `add` names options that would give it one.
    """
    if not _has_task(name):
        if add:
            raise InputError(f"{name}: expected a task for a model without one; add {add}")
        return
    if Path(name).exists() or name in shipped_checkpoints() or "-step-" in name:
        find_checkpoint(name)
        return
    kinds = (
        "a shipped name (retrieval-interp list shows them), smollm2, gemma3, a checkpoint file, a "
        f"run folder, a folder of Hugging Face, FILE.py:NAME, or hf:{name} for what its hub has"
    )
    expected = nearest(name, [*shipped_checkpoints(), *PACKAGED], kinds)
    raise InputError(f"model {name!r}: expected {expected}, found none")


def _has_task(name: str) -> bool:
    """Whether a name can only be a checkpoint's, which has its task."""
    folder = Path(name)
    hugging = (folder / "config.json").is_file() and any(folder.glob("model*.safetensors"))
    return not (hugging or name in PACKAGED or name.startswith("hf:") or ".py:" in name)


def load_model(name: str, device: str, task: str | None = None) -> tuple[Any, Any]:
    """A model by name, and its task, or None if it has none; or another, `FILE.py:NAME`.

    A shipped checkpoint, a checkpoint file, a run folder, `smollm2` or `gemma3`, the folder of a
    Hugging Face model, `hf:NAME` for one of its hub, which alone may load from the network, or
    one's own, `FILE.py:NAME`.
    """
    check_model(name)
    import retrieval_interp as ri
    from retrieval_interp.model import check_device, choose_device

    if task is not None:
        return load_model(name, device)[0], own_task(task)
    place = choose_device(device)
    if ".py:" in name:
        model = named_in(name)
        if callable(model) and not hasattr(model, "cfg"):
            model = model()
        if not hasattr(model, "run_with_hooks"):
            raise InputError(f"{name}: expected a hooked model, found {type(model).__name__}")
        check_device(model, device)
        return model, None
    if _has_task(name):
        checkpoint = ri.load_checkpoint(name, place)
        return checkpoint.model, checkpoint.task
    if not sys.stderr.isatty():
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
    if name in PACKAGED:
        return PACKAGED[name](str(place)), None
    from transformer_lens.model_bridge.bridge import TransformerBridge

    try:
        booted = TransformerBridge.boot_transformers(name.removeprefix("hf:"), device=str(place))
        return booted.eval(), None
    except (ValueError, KeyError, OSError) as error:
        raise InputError(
            f"{name}: expected a causal language model of Hugging Face with its tokenizer that "
            f"TransformerLens knows, found: {error!s:.150}"
        ) from error


def named_in(place: str) -> Any:
    """Run a Python file, once per process, and return what it calls so (`FILE.py:NAME`)."""
    path, _, name = place.rpartition(":")
    names = _run_once(path) if Path(path).is_file() else {}
    if name not in names:
        raise InputError(f"{place}: expected FILE.py:NAME, found no such name or no such file")
    return names[name]


def own_task(place: str) -> Any:
    """Return the task at `FILE.py:NAME`, or what calling the class or function there returns."""
    from retrieval_interp.tasks import Task

    task = named_in(place)
    if callable(task) and not isinstance(task, Task):
        task = task()
    if not isinstance(task, Task):
        raise InputError(f"{place}: expected an ri.Task, found {type(task).__name__}")
    return task


def say(text: str = "", hanging: int = 0) -> None:
    """Print prose, wrapped to the terminal's width, or to 100 characters in a pipe."""
    print("\n".join(wrapped(text, terminal_width(), hanging)))


def tell_files(**files: Path | None) -> None:
    """Print which files were written, one per line."""
    for what, path in files.items():
        if path is not None:
            print(f"{what + ':':<8} {path}")


@contextlib.contextmanager
def saying(action: str) -> Iterator[None]:
    """Show on a terminal what is being done, for as long as it takes; nothing elsewhere."""
    shown = sys.stderr.isatty()
    if shown:
        print(f"{action} ...", end="", file=sys.stderr, flush=True)
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
    if called := _own_call(error):
        return f"{called} to run, found {type(error).__name__}: {text:.150}"
    return f"expected its files, found: {text:.150}" if isinstance(error, OSError) else ""


def _own_call(error: Exception) -> str:
    """Say what was called of a user's own file, and which line of it failed; empty if none did."""
    own = [
        (frame.f_code, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if Path(frame.f_code.co_filename).resolve().parent in _OWN_FOLDERS
    ]
    if not own:
        return ""
    (called, _), (failed, line) = own[0], own[-1]
    name = "the file" if called.co_name == "<module>" else called.co_name
    return f"{Path(failed.co_filename).name}, line {line}: expected {name}"


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
