"""Frozen dataclasses to and from JSON, for files, the command line and sweeps.

cattrs reads and writes the dataclasses; this module registers what JSON lacks:

1. Types are strict: `"3"` is not an integer, and 1 is not a boolean.
2. A class with a `parse` method, such as a retrieval graph, is stored as text.
3. A field that may hold one of several dataclasses, such as a recipe's task, stores the class's
   `name`. The first class of the union is stored without one, as in older files.
4. Every error becomes one line: where, what was expected, what was found.
"""

import dataclasses
import json
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from retrieval_interp.tasks.errors import InputError

if TYPE_CHECKING:
    from cattrs import Converter

_HUGE = 1e300  # larger numbers are refused
_MISSING = "expected the key "


def to_data(value: Any) -> Any:
    """A dataclass as JSON data, nested ones included."""
    return _converter().unstructure(value)


def from_data(cls: Any, data: Any, where: str) -> Any:
    """Build a (nested) dataclass from JSON data; its own checks apply.

    Args:
        cls: a dataclass, or a union of dataclasses that have a `name`.
        data: what `to_data` returned.
        where: what to call the data in errors.

    Raises:
        InputError: the data is not an object, a key is unknown, of the wrong type, or missing
            without a default (older files lack newer keys), or the class refuses a value.
    """
    from cattrs import BaseValidationError, transform_error

    try:
        return _converter().structure(data, cls)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except (BaseValidationError, TypeError, ValueError, RecursionError, OverflowError) as error:
        first = transform_error(error, path="", format_exception=_said)[0]
        said, _, path = first.rpartition(" @ ")
        if said.startswith(_MISSING):
            path = path.rpartition(".")[0]
        at = path.lstrip(".")
        raise InputError(f"{where}: {at}{': ' if at else ''}{said}") from None


def from_json(cls: Any, text: str, where: str) -> Any:
    """Build a dataclass from JSON text.

    Raises:
        InputError: the text is not JSON, or as `from_data`.
    """
    return from_data(cls, read_json(text, where), where)


def read_json(text: str, where: str) -> Any:
    """Parse JSON text.

    Raises:
        InputError: the text is not JSON, or an object has the same key twice.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"the key {twice!r:.40} twice")
        return found

    try:
        return json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: expected JSON, found {str(error)[:80]}") from None


def is_number(value: Any) -> bool:
    """Whether JSON data is a usable number; NaN is, since a loss can diverge."""
    return type(value) in (int, float) and not abs(value) >= _HUGE


@cache
def _converter() -> "Converter":
    from cattrs import Converter
    from cattrs.gen import make_dict_structure_fn

    converter = Converter(forbid_extra_keys=True, unstruct_collection_overrides={tuple: list})
    for kind, named in ((int, "an integer"), (str, "text"), (bool, "true or false")):
        converter.register_structure_hook(kind, _exactly(kind, named))
    converter.register_structure_hook(float, _number)

    def read_dataclass(cls: Any) -> Callable[[Any, Any], Any]:
        read = make_dict_structure_fn(cls, converter, _cattrs_forbid_extra_keys=True)

        def structure(data: Any, kind: Any) -> Any:
            return read(_object(data, kind), kind)

        return structure

    def read_named(data: Any, union: Any) -> Any:
        options = typing.get_args(union)
        if not isinstance(data, dict) or "name" not in data:
            return converter.structure(data, options[0])
        for option in options:
            if data["name"] == option.name:
                return converter.structure({k: v for k, v in data.items() if k != "name"}, option)
        names = " or ".join(repr(option.name) for option in options)
        raise InputError(f"expected the name {names}, found {data['name']!r:.60}")

    def write_named(union: Any) -> Callable[[Any], Any]:
        first = typing.get_args(union)[0]
        return lambda value: {
            **({} if type(value) is first else {"name": value.name}),
            **converter.unstructure(value, type(value)),
        }

    def read_tuple(data: Any, hint: Any) -> tuple[Any, ...]:
        kinds = typing.get_args(hint)
        if not isinstance(data, list):
            raise InputError(f"expected a list, found {data!r:.60}")
        if kinds[-1] is Ellipsis:
            return tuple(converter.structure(data, list[kinds[0]]))  # type: ignore[valid-type]
        if len(data) != len(kinds):
            raise InputError(f"expected a list of {len(kinds)}, found {data!r:.60}")
        return tuple(converter.structure(value, kind) for value, kind in zip(data, kinds))

    converter.register_structure_hook_func(_is_tuple, read_tuple)

    def read_dict(data: Any, hint: Any) -> dict[str, Any]:
        kind = typing.get_args(hint)[1]
        if kind is Any:
            return _object(data, hint)
        return {key: converter.structure(part, kind) for key, part in _object(data, hint).items()}

    converter.register_structure_hook_func(_is_dict, read_dict)
    converter.register_structure_hook_factory(dataclasses.is_dataclass, read_dataclass)
    converter.register_structure_hook_func(_is_named_union, read_named)
    converter.register_unstructure_hook_factory(_is_named_union, write_named)
    converter.register_structure_hook_func(_is_literal, _one_of)
    converter.register_structure_hook_func(_is_text, lambda text, cls: cls.parse(_text(text)))
    converter.register_unstructure_hook_func(_is_text, str)
    return converter


def _is_named_union(hint: Any) -> bool:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return union and all(map(dataclasses.is_dataclass, typing.get_args(hint)))


def _is_literal(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Literal


def _is_tuple(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple


def _is_dict(hint: Any) -> bool:
    return typing.get_origin(hint) is dict


def _object(data: Any, _: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise InputError(f"expected an object, found {type(data).__name__}")
    return data


def _is_text(hint: Any) -> bool:
    return hasattr(hint, "parse")


def _exactly(kind: type, named: str) -> Callable[[Any, Any], Any]:
    def structure(value: Any, _: Any) -> Any:
        if type(value) is not kind:
            raise InputError(f"expected {named}, found {value!r:.60}")
        return value

    return structure


def _text(value: Any) -> Any:
    return _exactly(str, "text")(value, str)


def _number(value: Any, _: Any) -> float:
    if not is_number(value):
        raise InputError(f"expected a number, found {value!r:.60}")
    return float(value)


def _one_of(value: Any, hint: Any) -> Any:
    options = typing.get_args(hint)
    if not any(type(value) is type(option) and value == option for option in options):
        raise InputError(f"expected {' or '.join(map(repr, options))}, found {value!r:.60}")
    return value


def _said(error: BaseException, _: Any) -> str:
    """The message for an exception from cattrs."""
    from cattrs import ForbiddenExtraKeysError

    if isinstance(error, ForbiddenExtraKeysError):
        keys = ", ".join(field.name for field in dataclasses.fields(error.cl))
        return f"expected the keys {keys}, found {sorted(error.extra_fields)[0]!r:.60}"
    if isinstance(error, KeyError):
        return f"{_MISSING}{error.args[0]!r}, which is missing"
    return str(error)
