"""Check frozen dataclasses, and convert them to and from JSON data.

Types are strict: `"3"` is not an integer, and 1 is not a boolean. A class with a `parse` method,
such as a retrieval graph, is stored as text; one with `from_dict` and `to_dict` is stored by these.
A class with `reads_part = True` ignores keys that are not its fields.
"""

import dataclasses
import json
import math
import operator
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from retrieval_interp.tasks.messages import InputError

T = TypeVar("T")
Limits = Mapping[str, int | float]  # of a number: minimum, maximum, above or below
_TYPES = {int: "an integer", float: "a number", str: "text", bool: "true or false"}
_TYPES |= {tuple: "a list", dict: "an object"}
_LIMITS: dict[str, tuple[str, Any]] = {
    "minimum": ("of at least", operator.ge),
    "maximum": ("at most", operator.le),
    "above": ("above", operator.gt),
    "below": ("below", operator.lt),
}
EXAMPLES = {"minimum": 2, "maximum": 10**6}
SEED = {"minimum": 0, "maximum": 2**62}


def number_field(default: Any, **limits: int | float) -> Any:
    """Return a dataclass field for a finite number within `Limits`, which `check_fields` checks."""
    return dataclasses.field(default=default, metadata={"limits": limits})


def check_sampling(examples: Any, seed: Any, tolerance: Any = None) -> None:
    """Check a number of examples, their seed and a tolerance (None for the task's own)."""
    for name, value, limits in (("examples", examples, EXAMPLES), ("seed", seed, SEED)):
        right, expected = value_fits(value, int, limits)
        if not right:
            raise InputError(f"{name}: expected {expected}, found {value!r:.40}")
    check_tolerance(tolerance)


def check_tolerance(value: Any, where: str = "") -> None:
    """Check a tolerance; None is allowed."""
    if value is not None and not (isinstance(value, (int, float)) and 0 < value < math.inf):
        raise InputError(f"{where}tolerance: expected a number above 0, found {value!r:.40}")


def check_fields(value: Any, where: str) -> None:
    """Check the types and ranges of a dataclass's fields; errors start with `where`."""
    hints = typing.get_type_hints(type(value))
    for field in dataclasses.fields(value):
        given = getattr(value, field.name)
        right, kind = value_fits(given, hints[field.name], field.metadata.get("limits"))
        if not right:
            raise InputError(f"{where}: expected {field.name} to be {kind}, found {given!r:.60}")


def to_data(value: Any) -> Any:
    """Convert a value to JSON data, with nested dataclasses."""
    if hasattr(value, "parse"):
        return str(value)
    if hasattr(value, "from_dict"):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        return fields_data(value)
    if isinstance(value, dict):
        return {key: to_data(item) for key, item in value.items()}
    return [to_data(item) for item in value] if isinstance(value, (tuple, list)) else value


def fields_data(value: Any) -> dict[str, Any]:
    """Convert the fields of a dataclass to JSON data."""
    return {f.name: to_data(getattr(value, f.name)) for f in dataclasses.fields(value)}


def from_data(kind: Any, data: Any, where: str) -> Any:
    """Build what `to_data` wrote; keys with a default may be missing, errors start with `where`."""
    kinds, origin = typing.get_args(kind), typing.get_origin(kind)
    if kind is Any or (data is None and type(None) in kinds):
        return data
    if type(None) in kinds:
        return from_data(kinds[0], data, where)
    if origin is tuple and isinstance(data, list) and (kinds[-1] is ... or len(kinds) == len(data)):
        members = kinds[:1] * len(data) if kinds[-1] is ... else kinds
        items = zip(members, data)
        return tuple(from_data(of, item, f"{where}[{i}]") for i, (of, item) in enumerate(items))
    if origin is dict and isinstance(data, dict):
        return {key: from_data(kinds[1], item, f"{where}: {key}") for key, item in data.items()}
    try:
        if hasattr(kind, "from_dict"):
            return kind.from_dict(data)
        if dataclasses.is_dataclass(kind) and not hasattr(kind, "parse"):
            return read_fields(kind, data)
        right, expected = value_fits(data, str if hasattr(kind, "parse") else kind)
        if not right:
            raise InputError(f"expected {expected}, found {data!r:.60}")
        if hasattr(kind, "parse"):
            return kind.parse(data)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return float(data) if kind is float else data


def read_fields(kind: Any, data: Any) -> Any:
    """Build a dataclass from what `fields_data` wrote."""
    if not isinstance(data, dict):
        raise InputError(f"expected an object, found {data!r:.60}")
    hints, fields = typing.get_type_hints(kind), dataclasses.fields(kind)
    names = [field.name for field in fields]
    if getattr(kind, "reads_part", False):
        data = {name: data[name] for name in names if name in data}
    if unknown := [key for key in data if key not in names]:
        raise InputError(f"expected the keys {', '.join(names)}, found {unknown[0]!r:.60}")
    for field in fields:
        if field.name not in data and field.default is field.default_factory:
            raise InputError(f"expected the key {field.name!r}, which is missing")
    return kind(**{key: from_data(hints[key], item, key) for key, item in data.items()})


def from_json(kind: type[T], text: str, where: str) -> T:
    """Build a value from JSON text; errors start with `where`."""
    return typing.cast(T, from_data(kind, read_json(text, where), where))


def read_json(text: str, where: str) -> Any:
    """Parse JSON text; errors start with `where`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: expected JSON, found {error!s:.80}") from None


def value_fits(value: Any, kind: Any, limits: Limits | None = None) -> tuple[bool, str]:
    """Return whether a value is of a type and within limits, and what is expected in words."""
    if typing.get_origin(kind) is Literal:
        options = typing.get_args(kind)
        return value in options, " or ".join(map(repr, options))
    if type(None) in typing.get_args(kind):
        return (True, "") if value is None else value_fits(value, typing.get_args(kind)[0], limits)
    kind = typing.get_origin(kind) or kind
    if kind not in _TYPES:
        return isinstance(value, kind), f"a {kind.__name__}"
    right = type(value) is kind or (kind is float and type(value) is int)
    if not limits:
        return right, _TYPES[kind]
    words = " and ".join(f"{_LIMITS[name][0]} {limit}" for name, limit in limits.items())
    tests = (_LIMITS[name][1](value, limit) for name, limit in limits.items())
    return right and value < math.inf and all(tests), f"{_TYPES[kind]} {words}"
