"""``/v1/pools``: the devices, and how many of them are free."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.calls import RequestContext
from moorings.api.operations import Operation, list_response, object_response
from moorings.api.parameters import PAGING, SIZE
from moorings.api.render import capacity_body, pool_body
from moorings.wire.shapes import CapacityBody, PoolBody


async def list_pools(call: RequestContext) -> Response:
    """List pools, in the order of the pools file."""
    views = call.controller.list_pools()
    place = {view.pool.name: f"{index:04}" for index, view in enumerate(views)}
    shown, after = call.wanted("pools").choose(views, lambda view: place[view.pool.name])
    return await call.answer_list(map(pool_body, shown), after)


async def get_pool(call: RequestContext) -> Response:
    """Show a pool."""
    return call.answer(pool_body(call.controller.get_pool(call.path("pool"))))


async def get_capacity(call: RequestContext) -> Response:
    """Count the partitions of one size that could be formed now."""
    pool, size = call.path("pool"), call.query(SIZE)
    assert size is not None, "required"
    partitions = call.controller.capacity(pool, size)
    return call.answer(capacity_body(call.controller.get_pool(pool), size, partitions))


OPERATIONS = (
    Operation("GET", "/v1/pools", list_pools, list_response("Pool", PoolBody), query=PAGING),
    Operation("GET", "/v1/pools/{pool}", get_pool, object_response("Pool", PoolBody)),
    Operation(
        "GET", "/v1/pools/{pool}/capacity", get_capacity, object_response("Capacity", CapacityBody), query=(SIZE,)
    ),
)
