"""Frozen dataclasses: their checks, and to and from JSON with cattrs.

Types are strict: `"3"` is not an integer, and 1 is not a boolean. A class with a `parse` method,
such as a retrieval graph, is stored as text. A field of a class with a `named` method, such as a
recipe's task, holds one of its subclasses and stores its `name`.
"""

import dataclasses
import json
import typing
from functools import cache
from typing import TYPE_CHECKING, Any

from retrieval_interp.tasks.errors import InputError

if TYPE_CHECKING:
    from cattrs import Converter

_TYPES = {int: "an integer", float: "a number", str: "text", bool: "true or false"}


def number(default: int, least: int, most: int | None = None) -> Any:
    """A field of a dataclass that holds an integer, which `check_fields` checks."""
    return dataclasses.field(default=default, metadata={"least": least, "most": most})


def check_fields(value: Any, where: str) -> None:
    """Check the types of a dataclass's fields; `where` names it in errors."""
    hints = typing.get_type_hints(type(value))
    for field in dataclasses.fields(value):
        found, limits = getattr(value, field.name), field.metadata
        right, expected = _fits(found, hints[field.name])
        if (least := limits.get("least")) is not None:
            right, expected = right and found >= least, f"{expected} of at least {least}"
        if (most := limits.get("most")) is not None:
            right, expected = right and found <= most, f"{expected} and at most {most}"
        if not right:
            raise InputError(
                f"{where}: expected {field.name} to be {expected}, found {found!r:.60}"
            )


def to_data(value: Any) -> Any:
    """A dataclass as JSON data, nested ones included."""
    return _converter().unstructure(value)


def from_data(cls: Any, data: Any, where: str) -> Any:
    """Build what `to_data` wrote; keys with a default may be missing, `where` begins errors."""
    from cattrs import BaseValidationError, transform_error

    if dataclasses.is_dataclass(cls) and not isinstance(data, dict):
        raise InputError(f"{where}: expected an object, found {type(data).__name__}")
    try:
        return _converter().structure(data, cls)
    except (BaseValidationError, InputError) as error:
        first = transform_error(error, path="", format_exception=_said)[0]
        said, _, at = first.rpartition(" @ ")
        at = at.rpartition(".")[0] if said.endswith("which is missing") else at
        raise InputError(": ".join(filter(None, (where, at.lstrip("."), said)))) from None


def from_json(cls: Any, text: str, where: str) -> Any:
    return from_data(cls, read_json(text, where), where)


def read_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"{where}: expected JSON, found {error!s:.80}") from None


@cache
def _converter() -> "Converter":
    from cattrs import Converter

    converter = Converter(forbid_extra_keys=True, unstruct_collection_overrides={tuple: list})

    def is_literal(hint: Any) -> bool:
        return typing.get_origin(hint) is typing.Literal

    def is_tuple(hint: Any) -> bool:
        return typing.get_origin(hint) is tuple

    def read_tuple(data: Any, hint: Any) -> tuple[Any, ...]:
        kinds = typing.get_args(hint)
        if not isinstance(data, list) or (kinds[-1] is not ... and len(data) != len(kinds)):
            raise InputError(f"expected a list, found {data!r:.60}")
        if kinds[-1] is ...:
            return tuple(converter.structure(data, list[kinds[0]]))  # type: ignore[valid-type]
        return tuple(map(converter.structure, data, kinds))

    def is_text(hint: Any) -> bool:
        return hasattr(hint, "parse")

    def is_named(hint: Any) -> bool:
        return "named" in getattr(hint, "__dict__", ())

    def read_named(data: Any, base: Any) -> Any:
        rest = dict(data)
        return converter.structure(rest, base.named(rest.pop("name", None)))

    def write_named(value: Any) -> dict[str, Any]:
        return {"name": value.name, **converter.unstructure(value)}

    for kind in _TYPES:
        converter.register_structure_hook(kind, _strictly)
    converter.register_structure_hook_func(is_literal, _strictly)
    converter.register_structure_hook_func(is_tuple, read_tuple)
    converter.register_structure_hook_func(is_text, lambda text, cls: cls.parse(text))
    converter.register_unstructure_hook_func(is_text, str)
    converter.register_structure_hook_func(is_named, read_named)
    converter.register_unstructure_hook_func(is_named, write_named)
    return converter


def _strictly(value: Any, kind: Any) -> Any:
    right, expected = _fits(value, kind)
    if not right:
        raise InputError(f"expected {expected}, found {value!r:.60}")
    return float(value) if kind is float else value


def _fits(value: Any, kind: Any) -> tuple[bool, str]:
    """Whether a value has exactly this type, and what to call the type."""
    if options := typing.get_args(kind):  # of a Literal
        return value in options, " or ".join(map(repr, options))
    if kind is float:
        return type(value) in (int, float), _TYPES[float]
    return type(value) is kind, _TYPES.get(kind, f"a {kind.__name__}")


def _said(error: BaseException, _: Any) -> str:
    """The message for an exception from cattrs."""
    from cattrs import ForbiddenExtraKeysError

    if isinstance(error, ForbiddenExtraKeysError):
        keys = ", ".join(field.name for field in dataclasses.fields(error.cl))
        return f"expected the keys {keys}, found {min(error.extra_fields)!r:.60}"
    if isinstance(error, KeyError):
        return f"expected the key {error}, which is missing"
    if isinstance(error, (TypeError, AttributeError)):  # 3 has no keys, for example
        return f"expected an object ({error})"
    return str(error)
