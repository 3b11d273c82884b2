"""``/v1/defragment``: moves claims to make a larger block free."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.parse_requests import defragment_input
from moorings.api.render import moves_body
from moorings.api.request_context import RequestContext
from moorings.api.route import Route
from moorings.wire import operations
from moorings.wire.forecasts import DefragmentRequest


async def defragment(call: RequestContext) -> Response:
    """Have claims go on elsewhere, so that a block becomes free, whatever the policy does by itself.

    With `dryRun` nobody is asked, and the answer says who would be. Only claims that go on from a checkpoint are moved,
    and no more in an hour than the policy allows; with `costMaxS` only if that loses no more device-seconds. The block
    is then for whoever comes first.
    """
    request = call.parse_body(DefragmentRequest)
    order = defragment_input(request)
    return call.respond(
        moves_body(await call.controller.projects.defragment(call.caller, order, dry_run=request.dry_run))
    )


ROUTES = (Route(operations.DEFRAGMENT, defragment),)
