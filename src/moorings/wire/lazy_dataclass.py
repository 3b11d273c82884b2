"""``dataclass``, whose methods are made at the first use of a class.

``dataclasses`` compiles the methods of each class when it is defined. ``shapes`` has a hundred classes, of which a
command uses ten: the rest would cost every ``moor`` a fifth of its time. A module for each resource was refused: the
table of operations names them all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from threading import RLock
from typing import Any, TypeVar

T = TypeVar("T")

_building = RLock()  # several threads of a server may need a class first


def dataclass(**settings: bool) -> Callable[[type[T]], type[T]]:
    """A decorator as ``dataclasses.dataclass``, without ``slots``: a class cannot get them later."""

    def decorate(cls: type[T]) -> type[T]:
        names = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
        return type(cls.__name__, (_Unbuilt,), {**names, "_settings": tuple(settings.items())})

    return decorate


class _Fields:
    """Stands for the fields of a class until they are asked for."""

    def __get__(self, _instance: object, cls: type[_Unbuilt]) -> Any:  # noqa: ANN401 - as ``dataclasses`` has it
        if cls is _Unbuilt:
            return None  # of the base, which ``dataclasses`` asks too
        _build(cls)
        return cls.__dataclass_fields__


class _Unbuilt:
    """What a class has until it is built: both members then stand behind its own."""

    _settings = ()  # without a type, which would make it a field
    __dataclass_fields__ = _Fields()

    def __init__(self, *args: object, **values: object) -> None:
        _build(type(self))
        type(self).__init__(self, *args, **values)


def _build(cls: type[_Unbuilt]) -> None:
    with _building:
        if "__init__" not in vars(cls):  # else another thread was first
            dataclasses.dataclass(**dict(cls._settings))(cls)
