"""Who of several controllers on one database schedules. The others serve the API through the one that does.

Leadership only saves useless work: what keeps two leaders from harm is the store's fencing epoch, which ``Store.lead``
raises and every save checks. So losing it late is safe, and gaining it early is.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Leadership(Protocol):
    """This controller's standing among those on the same database."""

    alone: bool
    """Whether no other controller can ever use this database."""

    async def gain(self) -> None:
        """Returns once this controller may lead; waits as long as another one does, or the database is away."""
        ...

    async def lost(self) -> str:
        """Returns once it may lead no longer: why, as a sentence."""
        ...

    async def resign(self) -> None:
        """Let another one lead, at once. May be called at any time, also twice."""
        ...


class SingleController:
    """The standing of a controller whose database can have no other: SQLite, under the lock of the data folder."""

    alone = True

    async def gain(self) -> None:
        return

    async def lost(self) -> str:
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    async def resign(self) -> None:
        return
