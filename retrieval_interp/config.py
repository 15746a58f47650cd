"""Frozen dataclasses to and from JSON: one source for the command line, files and sweeps.

Where a field may be of several dataclasses, such as a recipe's task, its data has the `name` of the
class, but for the first of them: older files know no other. A class with `parse`, such as a
retrieval graph, is text.
"""

import dataclasses
import types
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

from tasks import InputError

T = TypeVar("T")


def to_dict(config: Any) -> dict[str, Any]:
    """A dataclass as plain JSON data, nested ones included."""
    hints = typing.get_type_hints(type(config))
    return {
        field.name: _plain(getattr(config, field.name), hints[field.name])
        for field in dataclasses.fields(config)
    }


def _plain(value: Any, hint: Any) -> Any:
    if hasattr(value, "parse"):
        return str(value)
    if not dataclasses.is_dataclass(value):
        return value
    cls: Any = type(value)
    return {**({} if cls is _options(hint)[0] else {"name": cls.name}), **to_dict(value)}


def from_dict(cls: type[T], data: Any, where: str) -> T:
    """Build a (nested) dataclass from JSON data; its own checks apply.

    Args:
        cls: a dataclass.
        data: what `to_dict` gave.
        where: what to call it in errors.

    Raises:
        InputError: not an object, a key that is unknown, of the wrong type, or missing and without
            a default (older files lack newer keys), or a value that the class refuses.
    """
    if not isinstance(data, dict):
        raise InputError(f"{where}: expected an object, found {type(data).__name__}")
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    unknown = data.keys() - fields.keys()
    if unknown:
        raise InputError(
            f"{where}: expected the keys {', '.join(fields)}, found {sorted(unknown)[0]!r:.60}"
        )
    hints = typing.get_type_hints(cls)
    values = {}
    for name in fields:
        if name in data:
            values[name] = _value(hints[name], data[name], f"{where}.{name}")
        elif not _has_default(fields[name]):
            raise InputError(f"{where}: expected the key {name!r}, which is missing")
    return cls(**values)


def named_from_dict(classes: Sequence[type[T]], data: Any, where: str) -> T:
    """Build the dataclass whose `name` the data has, the first where it has none.

    Raises:
        InputError: no such name, or as `from_dict`.
    """
    if not isinstance(data, dict) or "name" not in data:
        return from_dict(classes[0], data, where)
    for cls in classes:
        if data["name"] == getattr(cls, "name", None):
            return from_dict(cls, {key: data[key] for key in data if key != "name"}, where)
    names = " or ".join(repr(getattr(cls, "name", None)) for cls in classes)
    raise InputError(f"{where}: expected the name {names}, found {data['name']!r:.60}")


def _value(hint: Any, value: Any, where: str) -> Any:
    options = _options(hint)
    if hasattr(hint, "parse") and isinstance(value, str):
        try:
            return hint.parse(value)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
    if len(options) > 1 and all(map(dataclasses.is_dataclass, options)):
        return named_from_dict(options, value, where)
    if dataclasses.is_dataclass(hint):
        return from_dict(typing.cast(type, hint), value, where)
    for option in options:
        if typing.get_origin(option) is typing.Literal:
            if isinstance(value, str) and value in typing.get_args(option):
                return value
        elif option is float and is_number(value):
            return float(value)
        elif option in (bool, int, str, type(None)) and type(value) is option:
            return value
    expected = str(hint) if len(options) > 1 else getattr(hint, "__name__", str(hint))
    if typing.get_origin(hint) is typing.Literal:
        expected = " or ".join(map(repr, typing.get_args(hint)))
    raise InputError(f"{where}: expected {expected}, found {value!r:.60}")


def is_number(value: Any) -> bool:
    """Whether JSON data is a number that computing can use; NaN is, of a loss that went astray."""
    return type(value) in (int, float) and not abs(value) >= 1e300


def _has_default(field: "dataclasses.Field[Any]") -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def _options(hint: Any) -> tuple[Any, ...]:
    """The members of a union; of anything else itself."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)
