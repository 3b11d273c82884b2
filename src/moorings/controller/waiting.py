"""Callers that wait for a record to change: the turn that changes it wakes them, never a timer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Generic, TypeVar

IdT = TypeVar("IdT", bound=str)


class Waiters(Generic[IdT]):
    """The waiting callers, by the id of the record."""

    def __init__(self) -> None:
        self._futures: dict[IdT, list[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        """How many records have waiting callers."""
        return len(self._futures)

    def wake(self, idents: Iterable[IdT] | None = None) -> None:
        """Wake the callers that wait for one of these; None: all."""
        named = list(self._futures) if idents is None else idents
        for future in [one for ident in named for one in self._futures.pop(ident, ())]:
            if not future.done():
                future.set_result(None)

    async def next(self, ident: IdT) -> None:
        """Return the next time that ``ident`` is woken."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        joined = self._futures.setdefault(ident, [])
        joined.append(future)
        try:
            await future
        finally:
            joined.remove(future)
            if not joined and self._futures.get(ident) is joined:  # a turn may have begun a new list meanwhile
                del self._futures[ident]
