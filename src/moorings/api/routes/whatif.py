"""``/v1/whatif``: what another policy would change for the claims that wait now."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.calls import RequestContext
from moorings.api.operations import Operation, object_response
from moorings.api.render import what_if_body
from moorings.controller.projects import WHAT_IF_S_MAX
from moorings.core.policy import parse_policy
from moorings.wire.forecasts import WhatIfBody, WhatIfRequest


async def what_if(call: RequestContext) -> Response:
    """Compare another policy with the one in force, on the queue as it is.

    Nobody is asked for anything, and nothing changes. The queue is played on under both, with everybody running to
    their time limits and nobody coming later; one comparison at a time, beside the turns.
    """
    policy = parse_policy(call.body(WhatIfRequest).policy, source="policy")
    work = call.controller.projects.what_if(call.caller, policy)
    return call.answer(what_if_body(await call.hold(work, WHAT_IF_S_MAX)))


OPERATIONS = (Operation("POST", "/v1/whatif", what_if, object_response("WhatIf", WhatIfBody), body=WhatIfRequest),)
