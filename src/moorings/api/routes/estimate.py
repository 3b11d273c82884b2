"""``/v1/estimate``: when a claim would start, without submitting it."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.calls import RequestContext
from moorings.api.demands import estimate_spec
from moorings.api.operations import Operation, object_response
from moorings.api.render import estimate_body
from moorings.controller.projects import ESTIMATE_S_MAX
from moorings.wire.shapes import EstimateBody, EstimateRequest


async def estimate(call: RequestContext) -> Response:
    """Estimate when a claim would start that was made now.

    Nobody is asked for anything, and nothing changes. The queue is played on, with everybody running to their time
    limits: claims that end earlier bring the start forward, and only those that come first later put it back.
    """
    spec = estimate_spec(call.body(EstimateRequest))
    work = call.controller.projects.estimate(call.caller, spec)
    return call.answer(estimate_body(await call.hold(work, ESTIMATE_S_MAX)))


OPERATIONS = (
    Operation("POST", "/v1/estimate", estimate, object_response("Estimate", EstimateBody), body=EstimateRequest),
)
