"""``/v1/partitions``: the partitions in hardware, and making one without a job."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.calls import RequestContext
from moorings.api.demands import partition_spec
from moorings.api.operations import Operation, list_response, object_response
from moorings.api.parameters import FOR, PAGING, POOL, WAIT
from moorings.api.render import claim_body, partition_body
from moorings.controller.views import PartitionView
from moorings.wire.shapes import ClaimBody, PartitionBody, PartitionRequest


def _place(view: PartitionView) -> str:
    return f"{view.partition.pool}:{view.partition.block.start:07}:{view.partition.id}"


async def list_partitions(call: RequestContext) -> Response:
    """List partitions, by pool and address."""
    wanted, pool = call.wanted("partitions"), call.query(POOL)
    if pool is not None:
        call.controller.get_pool(pool)  # raises if there is no such pool
    views = [view for view in call.controller.list_partitions() if pool in (None, view.partition.pool)]
    shown, after = wanted.choose(views, _place)
    return await call.answer_list(map(partition_body, shown), after)


async def create_partition(call: RequestContext) -> Response:
    """Make a partition by hand.

    It is made by a claim of the same name that belongs to the caller; the answer is that claim, as the partition
    exists only once there is room. Deleting the partition releases the claim.
    """
    request = call.body(PartitionRequest)
    wait_s = call.query(WAIT)
    view = await call.hold(
        call.controller.create_claim(
            call.caller,
            partition_spec(request),
            name=request.name,
            owner=f"user/{call.caller.subject}",
            key=call.idempotency_key(),
            wait_s=wait_s,
            until=call.query(FOR),
        ),
        wait_s,
    )
    return call.answer(claim_body(view), location=f"/v1/claims/{view.claim.id}")


async def get_partition(call: RequestContext) -> Response:
    """Show a partition."""
    return call.answer(partition_body(call.controller.get_partition(call.path("id"))))


async def delete_partition(call: RequestContext) -> Response:
    """Release the claim that holds a partition; the answer is the claim."""
    view = call.controller.get_partition(call.path("id"))
    wait_s = call.query(WAIT)
    work = call.controller.release_claim(call.caller, view.partition.claim, wait_s=wait_s)
    return call.answer(claim_body(await call.hold(work, wait_s)))


async def reset_partition(call: RequestContext) -> Response:
    """Reset a partition's devices; it is not usable meanwhile."""
    return call.answer(partition_body(await call.controller.reset_partition(call.caller, call.path("id"))))


OPERATIONS = (
    Operation(
        "GET", "/v1/partitions", list_partitions, list_response("Partition", PartitionBody), query=(POOL, *PAGING)
    ),
    Operation(
        "POST",
        "/v1/partitions",
        create_partition,
        object_response("Claim", ClaimBody, status=201),
        body=PartitionRequest,
        query=(WAIT, FOR),
        keyed=True,
    ),
    Operation("GET", "/v1/partitions/{id}", get_partition, object_response("Partition", PartitionBody)),
    Operation("DELETE", "/v1/partitions/{id}", delete_partition, object_response("Claim", ClaimBody), query=(WAIT,)),
    Operation("POST", "/v1/partitions/{id}/reset", reset_partition, object_response("Partition", PartitionBody)),
)
