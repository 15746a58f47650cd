"""Options of a command: a dataclass, read from the command line.

`parse_options` makes an option of each field. Below it are the options that several commands share,
and their checks, which take no heavy library.
"""

import argparse
import dataclasses
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, cast, get_args, get_origin, get_type_hints

from retrieval_interp.storage.files import writable
from retrieval_interp.tasks.messages import InputError, nearest
from retrieval_interp.tasks.structured import EXAMPLES, SEED, Limits, number_field, value_fits

T = TypeVar("T")
OUTPUT = {"output": True}  # metadata of the fields that name files to write


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
            write = f"; write {names[0]} {word}" if names[0].startswith("-") else ""
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
    """Add an option for each field, a class's own before those of its bases; return their names."""
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
        if default not in (None, "", (), dataclasses.MISSING):
            help += f" (default: {' '.join(map(str, default)) if many else default})"
        if kind is bool:
            called.append(f"--{prefix}no-{word}")
            group.add_argument(called[0], **how, action="store_true", help=help)
            help = f"switch {called[0]} off."
            group.add_argument(called[1], **how, action="store_false", help=help)
        elif choices := get_args(kind):
            group.add_argument(*called, **how, choices=choices, help=help)
        else:
            how |= {"nargs": "+" if "dest" in how else "*"} if many else {}
            read = partial(_value, kind, field.metadata.get("limits"))
            how |= {"type": read, "metavar": kind.__name__.upper()}
            group.add_argument(*called, **how, help=help)
        names += called
    return names


def _value(kind: Any, limits: Limits | None, word: str) -> Any:
    """Read a word of the command line as a value, a number within its limits."""
    try:
        value = getattr(kind, "parse", kind)(word)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    except ValueError:
        value = None
    right, expected = value_fits(value, kind, limits)
    if not right:
        raise argparse.ArgumentTypeError(f"expected {expected}, found {word!r}")
    return value


def _attributes(cls: type) -> dict[str, str]:
    """Return what the docstrings of a class and its bases say of its attributes."""
    texts: dict[str, str] = {}
    for base in cls.__mro__:
        section = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2]
        for entry in section.replace("\n" + " " * 8, " ").splitlines():
            name, _, text = entry.strip().partition(": ")
            texts.setdefault(name, text.replace("%", "%%"))  # argparse fills in after %
    return texts


@dataclass(frozen=True)
class ExampleOptions:
    """The options of all commands that measure a model on examples.

    Attributes:
        examples: how many examples to measure on.
        seed: which examples.
        device: auto, cpu or cuda.
    """

    examples: int = number_field(512, **EXAMPLES)
    seed: int = number_field(0, **SEED)
    device: str = "auto"


@dataclass(frozen=True)
class SearchCommandOptions(ExampleOptions):
    """The options of all commands that search a model.

    Attributes:
        examples: how many examples to search on, and as many others to measure on.
        time: seconds after which the search ends with the best so far; Ctrl-C ends it likewise.
        json: write the numbers to this file.
        report: write an HTML page that needs no network to this file.
    """

    time: float | None = number_field(None, above=0)
    json: Path | None = dataclasses.field(default=None, metadata=OUTPUT)
    report: Path | None = dataclasses.field(default=None, metadata=OUTPUT)


def check_outputs(options: Any, *inputs: str | Path | None) -> None:
    """Check that files can be written and differ from each other and from those that are read.

    The files to write are those in fields with `OUTPUT`; an input may be FILE.py:NAME.
    """
    names = [field.name for field in dataclasses.fields(options) if "output" in field.metadata]
    files = {name: path for name in names if (path := getattr(options, name)) is not None}
    resolved = [writable(path).resolve() for path in files.values()]
    if len(set(resolved)) < len(resolved):
        given = ", ".join(f"--{name.replace('_', '-')}" for name in files)
        raise InputError(f"expected a different file for each of {given}")
    for source in inputs:
        if source is not None and Path(re.sub(r":\w+$", "", f"{source}")).resolve() in resolved:
            raise InputError(f"{source}: expected other files to write than to read")
