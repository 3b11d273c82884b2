"""``/v1/whatif``: what another policy would change for the claims that wait now."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.render import what_if_body
from moorings.api.request_context import RequestContext
from moorings.api.route import Route
from moorings.controller.projects import WHAT_IF_S_MAX
from moorings.core.model.policy import parse_policy
from moorings.wire import operations
from moorings.wire.forecasts import WhatIfRequest


async def what_if(call: RequestContext) -> Response:
    """Compare another policy with the one in force, on the queue as it is.

    Nobody is asked for anything, and nothing changes. The queue is played on under both, with everybody running to
    their time limits and nobody coming later; one comparison at a time, beside the turns.
    """
    policy = parse_policy(call.parse_body(WhatIfRequest).policy, source="policy")
    work = call.controller.projects.what_if(call.caller, policy)
    return call.respond(what_if_body(await call.wait_for(work, WHAT_IF_S_MAX)))


ROUTES = (Route(operations.WHAT_IF, what_if),)
