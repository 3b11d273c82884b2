"""Leadership: which of several controllers on one database schedules. The others forward API requests to it.

Leadership only saves useless work: what keeps two leaders from harm is the store's fencing epoch, which ``Store.lead``
raises and every save checks. So losing it late is safe, and gaining it early is.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Leadership(Protocol):
    """This controller's leadership among the controllers on the same database."""

    is_exclusive: bool
    """Whether no other controller can ever use this database."""

    async def acquire(self) -> None:
        """Return once this controller may lead; waits while another one does, or the database is away."""
        ...

    async def wait_until_lost(self) -> str:
        """Return once it may lead no longer: the reason, as a sentence."""
        ...

    async def release(self) -> None:
        """Give up the leadership at once. May be called at any time, also twice."""
        ...


class SingleController:
    """The leadership of a controller whose database can have no other: SQLite, under the lock of the data folder."""

    is_exclusive = True

    async def acquire(self) -> None:
        return

    async def wait_until_lost(self) -> str:
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    async def release(self) -> None:
        return
