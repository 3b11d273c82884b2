"""``/v1/partitions``: the partitions in hardware, and making one without a job."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.parameters import FOR, PAGING, POOL, WAIT
from moorings.api.parse_requests import partition_spec
from moorings.api.render import claim_body, partition_body
from moorings.api.request_context import RequestContext
from moorings.api.route import Route
from moorings.controller.views import PartitionView
from moorings.wire import operations
from moorings.wire.shapes import PartitionRequest


def _place(view: PartitionView) -> str:
    return f"{view.partition.pool}:{view.partition.block.start:07}:{view.partition.id}"


async def list_partitions(call: RequestContext) -> Response:
    """List partitions, by pool and address."""
    wanted, pool = call.page_request("partitions"), call.query_value(POOL)
    if pool is not None:
        call.controller.get_pool(pool)  # raises if there is no such pool
    views = [view for view in call.controller.list_partitions(call.caller) if pool in (None, view.partition.pool)]
    shown, after = wanted.page_of(views, _place)
    return await call.respond_list(map(partition_body, shown), after)


async def create_partition(call: RequestContext) -> Response:
    """Make a partition by hand.

    It is made by a claim of the same name that belongs to the caller; the answer is that claim, as the partition
    exists only once there is room. Deleting the partition releases the claim.
    """
    request = call.parse_body(PartitionRequest)
    wait_s = call.query_value(WAIT)
    view = await call.wait_for(
        call.controller.create_claim(
            call.caller,
            partition_spec(request),
            name=request.name,
            owner=f"user/{call.caller.subject}",
            key=call.idempotency_key(),
            wait_s=wait_s,
            until=call.query_value(FOR),
        ),
        wait_s,
    )
    return call.respond(claim_body(view), location=f"/v1/claims/{view.claim.id}")


async def get_partition(call: RequestContext) -> Response:
    """Show a partition."""
    return call.respond(partition_body(call.controller.get_partition(call.caller, call.path_value("id"))))


async def delete_partition(call: RequestContext) -> Response:
    """Release the claim that holds a partition; the answer is the claim."""
    view = call.controller.get_partition(call.caller, call.path_value("id"))
    wait_s = call.query_value(WAIT)
    work = call.controller.release_claim(call.caller, view.partition.claim, wait_s=wait_s)
    return call.respond(claim_body(await call.wait_for(work, wait_s)))


async def reset_partition(call: RequestContext) -> Response:
    """Reset a partition's devices; it is not usable meanwhile."""
    return call.respond(partition_body(await call.controller.reset_partition(call.caller, call.path_value("id"))))


ROUTES = (
    Route(operations.LIST_PARTITIONS, list_partitions, (POOL, *PAGING)),
    Route(operations.CREATE_PARTITION, create_partition, (WAIT, FOR)),
    Route(operations.GET_PARTITION, get_partition),
    Route(operations.DELETE_PARTITION, delete_partition, (WAIT,)),
    Route(operations.RESET_PARTITION, reset_partition),
)
