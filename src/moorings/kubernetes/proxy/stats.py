"""``/stats`` and ``/query``: used and available IPUs, in the shapes of the vendor's proxy."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping

from moorings.client.client import Client
from moorings.core.errors import MooringsError
from moorings.kubernetes.proxy.answers import ServerResponse, json_response
from moorings.kubernetes.proxy.asking import IPUS_MAX
from moorings.kubernetes.proxy.keeper import PartitionManager
from moorings.kubernetes.proxy.links import ControllerConnection
from moorings.wire.shapes import PoolBody

FRESH_S = 1.0  # both are open to all: least time between two requests to the controllers
KIND = "ipu"


class ProxyStats:
    """Used and free IPUs."""

    def __init__(self, keeper: PartitionManager) -> None:
        self._keeper = keeper
        self._pools: tuple[PoolBody, ...] | None = None
        self._fresh_until = 0.0
        self._asking: asyncio.Task[tuple[PoolBody, ...] | None] | None = None

    async def stats(self) -> dict[str, dict[str, int]]:
        """Used IPUs by namespace, beside those still available to it; ``total`` is of all namespaces."""
        free = sum(pool.free for pool in await self._all_pools() or ())
        used: Mapping[str, int] = self._keeper.usage.used
        found = {name: {"used": count, "available": free} for name, count in sorted(used.items())}
        found["total"] = {"used": sum(used.values()), "available": free}
        return found

    async def query(self, body: bytes) -> ServerResponse:
        """How many partitions of a size could be made now."""
        try:
            size = _parse_size(body)
        except ValueError as error:
            return json_response({"available": False, "numOfPartitions": 0, "message": str(error)}, 400)
        pools = await self._all_pools()
        if pools is None:
            return json_response(
                {"available": False, "numOfPartitions": 0, "message": "no V-IPU controller answers"}, 503
            )
        count = sum(pool.available.get(str(size), 0) for pool in pools)
        return json_response({"available": True, "numOfPartitions": count, "message": ""})

    async def _all_pools(self) -> tuple[PoolBody, ...] | None:
        """The pools of all controllers that respond; None: none does."""
        if time.monotonic() < self._fresh_until:
            return self._pools
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
            self._asking.add_done_callback(self._asked)
        return await asyncio.shield(self._asking)

    def _asked(self, task: asyncio.Task[tuple[PoolBody, ...] | None]) -> None:
        self._asking = None
        if not task.cancelled() and task.exception() is None:
            self._pools, self._fresh_until = task.result(), time.monotonic() + FRESH_S

    async def _ask(self) -> tuple[PoolBody, ...] | None:
        links = [link for link in self._keeper.links.values() if link.asked and link.answers and not link.alias_of]
        found = [pools for pools in await asyncio.gather(*map(_pools_of, links)) if pools is not None]
        if not found:
            return None
        return tuple(pool for pools in found for pool in pools if pool.accelerator == KIND)


async def _pools_of(link: ControllerConnection) -> tuple[PoolBody, ...] | None:
    try:
        return await link(Client.pools)
    except MooringsError:
        return None


def _parse_size(body: bytes) -> int:
    """The requested size; a ValueError has the problem."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    size = found.get("size") if isinstance(found, dict) else None
    if not isinstance(size, int) or isinstance(size, bool):
        raise ValueError('the body must be {"size": n} with a whole number n')  # noqa: TRY004 - it is the message
    if not 1 <= size <= IPUS_MAX:
        raise ValueError(f"size must be from 1 to {IPUS_MAX}")
    return size
