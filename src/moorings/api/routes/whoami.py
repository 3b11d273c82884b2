"""``/v1/whoami``: the caller, as the controller knows it. A client cannot read it from an access key."""

from __future__ import annotations

from starlette.responses import Response

from moorings.api.render import caller_body
from moorings.api.request_context import RequestContext
from moorings.api.route import Route
from moorings.wire import operations


async def who_am_i(call: RequestContext) -> Response:
    """Tell the caller its own subject and role."""
    return call.respond(caller_body(call.caller, call.controller.personal_runs.engines))


ROUTES = (Route(operations.WHO_AM_I, who_am_i),)
