"""The open routes: whether the controller is alive, whether it is ready, and its version."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

import moorings
from moorings.api.request_context import RequestContext
from moorings.api.route import Route
from moorings.core.model.errors import MooringsError
from moorings.net.problems import problem_response
from moorings.wire import operations
from moorings.wire.shapes import API_VERSION, VersionBody


async def get_health(call: RequestContext) -> Response:
    """Tell that the controller lives: it answers."""
    return JSONResponse({"status": "alive"})


async def get_liveness(call: RequestContext) -> Response:
    """Tell that the controller lives; the name Kubernetes' users look for."""
    return await get_health(call)


async def get_readiness(call: RequestContext) -> Response:
    """Tell whether the controller can do its work.

    If not, the answer is 503 and says why.
    """
    reason = call.controller.not_ready_reason()
    if reason is None:
        return JSONResponse({"status": "ready"})
    error = MooringsError(reason.code, reason.message, hint=reason.hint, retryable=True)
    return problem_response(error, call.request_id, status=503)


async def get_version(call: RequestContext) -> Response:
    """Tell the version of the controller and of its API."""
    body = VersionBody(version=moorings.__version__, api_version=API_VERSION, installation=call.controller.installation)
    return call.respond(body)


async def get_document(call: RequestContext) -> Response:
    """Give this document."""
    return Response(call.service.document(), media_type="application/json")


_STATUS = {
    "application/json": {
        "schema": {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}
    }
}


ROUTES = (
    Route(operations.GET_HEALTH, get_health, content=_STATUS),
    Route(operations.GET_LIVENESS, get_liveness, content=_STATUS),
    Route(operations.GET_READINESS, get_readiness, content=_STATUS),
    Route(operations.GET_VERSION, get_version),
    Route(operations.GET_DOCUMENT, get_document, content={"application/json": {"schema": {"type": "object"}}}),
)
