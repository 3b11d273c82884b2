"""Our values as plain data and back: for data that is written today and read by another release.

A reader ignores unknown fields and takes the default of missing ones; any other mismatch is an error, because half a
record must never pass for a whole one. Devices are in their text form. The codec of ``wire`` was refused: it is a
promise to other machines, in camelCase and without enums, and may change for their sake.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Final, NewType, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from moorings.core.model.errors import MooringsError
from moorings.core.model.topology import Block

RecordT = TypeVar("RecordT")

OMIT_IF_DEFAULT: Final = {"later": True}
"""Marks a field added after the first release: it is not written while it has its default. So data written before it
came has the same bytes when it is written again (law 9)."""


def to_plain(value: object) -> object:
    """``value`` as dictionaries, lists, texts and numbers."""
    kind: type = type(value)
    if kind in _ATOMS:
        return value
    if isinstance(value, Block):
        return str(value)
    names = _names(kind)
    if names:
        later = _later(kind)
        given = ((name, getattr(value, name)) for name in names)
        return {
            name: one if type(one) in _ATOMS else to_plain(one)
            for name, one in given
            if name not in later or not _is_default(value, later[name])
        }
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


def to_plain_without_defaults(value: object) -> object:
    """Like ``to_plain``, without fields that have their default: a field that a later release adds changes nothing."""
    if is_dataclass(value) and not isinstance(value, Block):
        return {
            item.name: to_plain_without_defaults(getattr(value, item.name))
            for item in fields(value)
            if not _is_default(value, item)
        }
    return to_plain(value)


def _is_default(value: object, item: Field[object]) -> bool:
    default = item.default_factory() if item.default_factory is not MISSING else item.default
    return default is not MISSING and getattr(value, item.name) == default


def from_plain(kind: type[RecordT], data: object) -> RecordT:
    """The value of that kind in ``data``.

    Raises:
        ValueError: ``data`` is not such a value.
    """
    return cast("RecordT", _revive(kind, data))


_ATOMS = frozenset({str, int, float, bool, type(None)})


@cache
def _names(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass; empty for any other type."""
    return tuple(item.name for item in fields(kind)) if is_dataclass(kind) else ()


@cache
def _later(kind: type) -> dict[str, Field[object]]:
    return {item.name: item for item in fields(kind) if item.metadata.get("later")} if is_dataclass(kind) else {}


@cache
def _hints(kind: type) -> dict[str, object]:
    return get_type_hints(kind)


def _revive(hint: object, value: object) -> object:
    """``value`` (parsed JSON) as the type ``hint``; raises ValueError if it does not match."""
    if isinstance(hint, NewType):
        return _revive(hint.__supertype__, value)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _revive(next(a for a in get_args(hint) if a is not types.NoneType), value)
    if origin is tuple and isinstance(value, list):
        return tuple(_revive(get_args(hint)[0], item) for item in value)
    if origin is Mapping and isinstance(value, dict):
        return {key: _revive(get_args(hint)[1], item) for key, item in value.items()}
    if isinstance(hint, type):
        return _revive_plain(hint, value)
    raise ValueError(f"{value!r:.80} is not {hint}")


def _revive_plain(hint: type, value: object) -> object:
    if hint is Block and isinstance(value, str):
        return _revive_block(value)
    if is_dataclass(hint) and isinstance(value, dict):
        return _revive_record(hint, value)
    try:
        if issubclass(hint, StrEnum) and isinstance(value, str):
            return hint(value)
        if hint is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
    except (ValueError, OverflowError):
        raise ValueError(f"{value!r:.80} is not a value of {hint.__name__}") from None
    if isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise ValueError(f"{value!r:.80} is not {hint.__name__}")


def _revive_block(text: str) -> Block:
    try:
        return Block.parse(text) if text else Block.of([])  # a foreign partition's devices may be unknown
    except MooringsError as error:
        raise ValueError(error.detail) from error


def _revive_record(kind: type, values: dict[str, object]) -> object:
    hints = _hints(kind)
    known = {}
    for item in fields(kind):
        if item.name in values:
            known[item.name] = _revive(hints[item.name], values[item.name])
        elif item.default is MISSING and item.default_factory is MISSING:
            raise ValueError(f"{item.name} is missing")
    return kind(**known)
