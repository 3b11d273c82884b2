"""Callers that wait for something to change: what changes it wakes them, never a timer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Generic, TypeVar

IdT = TypeVar("IdT", bound=str)


class Wakeup:
    """Wakes all current waiters, in their order; unlike an ``asyncio.Event`` it is never left set.

    It may be made before a loop runs, and outlives it.
    """

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}  # a set would wake them in another order each time

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def wake_all(self) -> None:
        """Wake them."""
        for future in tuple(self._waiting):
            if not future.done():  # cancelled a moment ago; its waiter has not run yet
                future.set_result(None)

    async def wait(self) -> None:
        """Return at the next wakeup."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            await future
        finally:
            del self._waiting[future]


class Waiters(Generic[IdT]):
    """The waiting callers, by the id of the record."""

    def __init__(self) -> None:
        self._wakeups: dict[IdT, Wakeup] = {}

    def __len__(self) -> int:
        """How many records have waiting callers."""
        return len(self._wakeups)

    def wake(self, idents: Iterable[IdT] | None = None) -> None:
        """Wake the callers that wait for one of these; None: all."""
        for ident in list(self._wakeups) if idents is None else idents:
            if ident in self._wakeups:
                self._wakeups.pop(ident).wake_all()

    async def wait(self, ident: IdT) -> None:
        """Return the next time that ``ident`` is woken."""
        joined = self._wakeups.setdefault(ident, Wakeup())
        try:
            await joined.wait()
        finally:
            if not joined and self._wakeups.get(ident) is joined:  # a turn may have begun a new one meanwhile
                del self._wakeups[ident]
