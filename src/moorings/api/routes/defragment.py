"""``/v1/defragment``: claims go on elsewhere, so that there is room."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.calls import Call
from moorings.api.demands import room_order
from moorings.api.operations import Operation, one
from moorings.api.render import moves_body
from moorings.wire.forecasts import DefragmentBody, DefragmentRequest


async def defragment(call: Call) -> Response:
    """Have claims go on elsewhere, so that a block becomes free, whatever the policy does by itself.

    With `dryRun` nobody is asked, and the answer says who would be. Only claims that go on from a checkpoint are moved,
    and no more in an hour than the policy allows; with `costMaxS` only if that loses no more device-seconds. The block
    is then for whoever comes first.
    """
    request = call.body(DefragmentRequest)
    order = room_order(request)
    return call.answer(
        moves_body(await call.controller.projects.make_room(call.caller, order, dry_run=request.dry_run))
    )


OPERATIONS = (
    Operation("POST", "/v1/defragment", defragment, one("Defragment", DefragmentBody), body=DefragmentRequest),
)
