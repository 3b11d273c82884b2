"""``/v1/pools``: the devices, and how many of them are free."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.parameters import PAGING, SIZE
from moorings.api.render import capacity_body, pool_body
from moorings.api.request_context import RequestContext
from moorings.api.route import Route
from moorings.wire import operations


async def list_pools(call: RequestContext) -> Response:
    """List pools, in the order of the pools file."""
    views = call.controller.list_pools()
    place = {view.pool.name: f"{index:04}" for index, view in enumerate(views)}
    shown, after = call.page_request("pools").page_of(views, lambda view: place[view.pool.name])
    return await call.respond_list(map(pool_body, shown), after)


async def get_pool(call: RequestContext) -> Response:
    """Show a pool."""
    return call.respond(pool_body(call.controller.get_pool(call.path_value("pool"))))


async def get_capacity(call: RequestContext) -> Response:
    """Count the partitions of one size that could be formed now."""
    pool, size = call.path_value("pool"), call.query_value(SIZE)
    assert size is not None, "required"
    partitions = call.controller.count_partitions(pool, size)
    return call.respond(capacity_body(call.controller.get_pool(pool), size, partitions))


ROUTES = (
    Route(operations.LIST_POOLS, list_pools, PAGING),
    Route(operations.GET_POOL, get_pool),
    Route(operations.GET_CAPACITY, get_capacity, (SIZE,)),
)
