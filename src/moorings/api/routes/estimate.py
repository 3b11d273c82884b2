"""``/v1/estimate``: when a claim would start, without submitting it."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.parse_requests import estimate_spec
from moorings.api.render import estimate_body
from moorings.api.request_context import RequestContext
from moorings.api.route import Route
from moorings.controller.projects import ESTIMATE_S_MAX
from moorings.wire import operations
from moorings.wire.shapes import EstimateRequest


async def estimate(call: RequestContext) -> Response:
    """Estimate when a claim would start that was made now.

    Nobody is asked for anything, and nothing changes. The queue is played on, with everybody running to their time
    limits: claims that end earlier bring the start forward, and only those that come first later put it back.
    """
    spec = estimate_spec(call.parse_body(EstimateRequest))
    work = call.controller.projects.estimate(call.caller, spec)
    return call.respond(estimate_body(await call.wait_for(work, ESTIMATE_S_MAX)))


ROUTES = (Route(operations.ESTIMATE, estimate),)
