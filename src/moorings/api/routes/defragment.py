"""``/v1/defragment``: moves claims to make a larger block free."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.calls import RequestContext
from moorings.api.demands import defragment_input
from moorings.api.operations import Operation, object_response
from moorings.api.render import moves_body
from moorings.wire.forecasts import DefragmentBody, DefragmentRequest


async def defragment(call: RequestContext) -> Response:
    """Have claims go on elsewhere, so that a block becomes free, whatever the policy does by itself.

    With `dryRun` nobody is asked, and the answer says who would be. Only claims that go on from a checkpoint are moved,
    and no more in an hour than the policy allows; with `costMaxS` only if that loses no more device-seconds. The block
    is then for whoever comes first.
    """
    request = call.body(DefragmentRequest)
    order = defragment_input(request)
    return call.answer(
        moves_body(await call.controller.projects.make_room(call.caller, order, dry_run=request.dry_run))
    )


OPERATIONS = (
    Operation(
        "POST", "/v1/defragment", defragment, object_response("Defragment", DefragmentBody), body=DefragmentRequest
    ),
)
