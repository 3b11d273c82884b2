"""Dataclasses to JSON and back: camelCase names, absent optional fields left out.

Our own rather than a library: msgspec and pydantic cost 25 to 200 ms of start-up that every ``moor`` would pay, and the
shapes need little.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp

T = TypeVar("T")

WHERE_CHARS_MAX = 200  # keys of a mapping may be anything

_PLAIN = frozenset({str, int, float, bool, type(None)})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_camel_case(name: str) -> str:
    """``time_limit_s`` as ``timeLimitS``; a trailing underscore (a Python keyword) is dropped."""
    head, *rest = name.rstrip("_").split("_")
    return head + "".join(part.capitalize() for part in rest)


def format_time(at: Timestamp) -> str:
    """A timestamp as RFC 3339 in UTC, to the microsecond."""
    second, micros = divmod(at, 1_000_000)
    return f"{_second_text(second)}.{micros:06d}Z"


@lru_cache(maxsize=1024)
def _second_text(second: int) -> str:
    """Cached, as the times of one response share their seconds, and formatting is costly."""
    return (_EPOCH + timedelta(seconds=second)).isoformat()[:19]


def parse_time(text: str) -> Timestamp:
    """The timestamp in an RFC 3339 text.

    Raises:
        MooringsError: ``body.invalid``.
    """
    try:
        since = datetime.fromisoformat(text) - _EPOCH
    except (ValueError, TypeError, OverflowError):  # TypeError: without a zone it is not a timestamp
        raise MooringsError("body.invalid", f"{text[:40]!r} is not a time", hint="write 2026-01-31T12:00:00Z") from None
    return Timestamp(since // timedelta(microseconds=1))


@lru_cache(maxsize=256)
def _field_plan(cls: type) -> tuple[tuple[str, str, Any, bool], ...]:
    """(field, JSON name, type, required) of each field; resolved once a class."""
    hints = get_type_hints(cls)
    return tuple(
        (
            item.name,
            to_camel_case(item.name),
            hints[item.name],
            item.default is MISSING and item.default_factory is MISSING,
        )
        for item in fields(cls)
    )


def field_types(cls: type) -> dict[str, Any]:
    """The types of a shape's fields by their JSON names; for an optional field, the type without None."""
    return {json_name: _present(kind) for _, json_name, kind, _ in _field_plan(cls)}


def _present(kind: Any) -> Any:  # noqa: ANN401 - type expressions
    options = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else ()
    return next((option for option in options if option is not type(None)), kind)


def encode(value: object) -> Any:  # noqa: ANN401 - JSON is any of several types
    """``value`` in a form for ``json.dumps``; ``None`` fields of dataclasses are left out."""
    if type(value) in _PLAIN:  # most are, and the checks below take ten times as long
        return value
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        coded = {}
        for name, json_name, _, _ in _field_plan(type(value)):
            item = getattr(value, name)
            if item is not None:
                coded[json_name] = encode(item)
        return coded
    raise TypeError(f"{type(value).__name__} has no wire form")


def decode(cls: type[T], data: object, *, where: str = "body") -> T:
    """The ``cls`` in ``data`` (parsed JSON). Unknown fields are ignored: newer peers may send them.

    Raises:
        MooringsError: ``body.invalid``, with the field.
    """
    return typing.cast("T", _decode(cls, data, where))


def _decode(kind: Any, data: object, where: str) -> object:  # noqa: ANN401 - a type expression
    origin = get_origin(kind)
    if kind is typing.Any or kind is object:
        return data
    if origin in (Union, types.UnionType):
        options = get_args(kind)
        if data is None and type(None) in options:
            return None
        return _decode(next(option for option in options if option is not type(None)), data, where)
    if origin is tuple:
        if not isinstance(data, list):
            raise _type_error(where, "a list", data)
        return tuple(_decode(get_args(kind)[0], item, f"{where}[{index}]") for index, item in enumerate(data))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(data, dict):
            raise _type_error(where, "an object", data)
        return {key: _decode(get_args(kind)[1], item, f"{where}.{key}") for key, item in data.items()}
    if is_dataclass(kind):
        return _decode_record(typing.cast("type", kind), data, where)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        try:
            return float(data)
        except OverflowError:
            raise MooringsError("body.invalid", f"{where[:WHERE_CHARS_MAX]} is too large") from None
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise _type_error(where, kind.__name__, data)
    return data


def _decode_record(cls: type, data: object, where: str) -> object:
    if not isinstance(data, dict):
        raise _type_error(where, "an object", data)
    values = {}
    for name, json_name, kind, required in _field_plan(cls):
        if json_name in data:
            item = data[json_name]
            # Most are plain, and the rest takes ten times as long.
            values[name] = item if type(item) is kind else _decode(kind, item, f"{where}.{json_name}")
        elif required:
            raise MooringsError("body.invalid", f"{where}.{json_name} is missing")
    return cls(**values)


def _type_error(where: str, wanted: str, data: object) -> MooringsError:
    return MooringsError("body.invalid", f"{where[:WHERE_CHARS_MAX]} must be {wanted}, not {type(data).__name__}")
