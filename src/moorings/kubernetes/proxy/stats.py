"""``/stats`` and ``/query``: used and available IPUs, in the shapes of the vendor's proxy."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from moorings.client.client import Client
from moorings.core.model.errors import MooringsError
from moorings.kubernetes.proxy.answers import json_response
from moorings.kubernetes.proxy.claims import IPUS_MAX
from moorings.kubernetes.proxy.controllers import ControllerConnection
from moorings.kubernetes.proxy.partition_manager import PartitionManager
from moorings.wire.shapes import PoolBody

if TYPE_CHECKING:
    from starlette.responses import Response

FRESH_S = 1.0  # both are open to all: least time between two requests to the controllers
KIND = "ipu"


class ProxyStats:
    """Used and free IPUs."""

    def __init__(self, keeper: PartitionManager) -> None:
        self._keeper = keeper
        self._pools: tuple[PoolBody, ...] | None = None
        self._fresh_until = 0.0
        self._query: asyncio.Task[tuple[PoolBody, ...] | None] | None = None

    async def stats(self) -> dict[str, dict[str, int]]:
        """Used IPUs by namespace, beside those still available to it; ``total`` is of all namespaces."""
        free = sum(pool.free for pool in await self._all_pools() or ())
        used: Mapping[str, int] = self._keeper.usage.used
        found = {name: {"used": count, "available": free} for name, count in sorted(used.items())}
        found["total"] = {"used": sum(used.values()), "available": free}
        return found

    async def query(self, body: bytes) -> Response:
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
        if self._query is None:
            self._query = asyncio.create_task(self._query_pools())
            self._query.add_done_callback(self._on_pools)
        return await asyncio.shield(self._query)

    def _on_pools(self, task: asyncio.Task[tuple[PoolBody, ...] | None]) -> None:
        self._query = None
        if not task.cancelled() and task.exception() is None:
            self._pools, self._fresh_until = task.result(), time.monotonic() + FRESH_S

    async def _query_pools(self) -> tuple[PoolBody, ...] | None:
        links = [
            link
            for link in self._keeper.links.values()
            if link.is_configured and link.is_reachable and not link.alias_of
        ]
        found = [pools for pools in await asyncio.gather(*map(_pools_of, links)) if pools is not None]
        if not found:
            return None
        return tuple(pool for pools in found for pool in pools if pool.accelerator == KIND)


async def _pools_of(link: ControllerConnection) -> tuple[PoolBody, ...] | None:
    try:
        return await link(Client.list_pools)
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
