"""Frozen dataclasses to and from JSON: one source for the command line, files and sweeps."""

import dataclasses
import types
import typing
from typing import Any, TypeVar

from tasks import InputError

T = TypeVar("T")


def to_dict(config: Any) -> dict[str, Any]:
    """A dataclass as plain JSON data, nested ones included."""
    return dataclasses.asdict(config)


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


def _value(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return from_dict(typing.cast(type, hint), value, where)
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    for option in options:
        if typing.get_origin(option) is typing.Literal:
            if isinstance(value, str) and value in typing.get_args(option):
                return value
        elif option is float and type(value) in (int, float) and not abs(value) >= 1e300:
            return float(value)
        elif option in (bool, int, str, type(None)) and type(value) is option:
            return value
    expected = getattr(hint, "__name__", str(hint)) if not _is_union(hint) else str(hint)
    if typing.get_origin(hint) is typing.Literal:
        expected = " or ".join(map(repr, typing.get_args(hint)))
    raise InputError(f"{where}: expected {expected}, found {value!r:.60}")


def _has_default(field: "dataclasses.Field[Any]") -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)
