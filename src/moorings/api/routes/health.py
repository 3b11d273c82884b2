"""The open routes: whether the controller is alive, whether it is ready, and its version."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

import moorings
from moorings.api.calls import RequestContext
from moorings.api.operations import Operation, ResponseSpec, Schema, object_response
from moorings.api.problems import problem_response
from moorings.core.errors import MooringsError
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
    reason = call.controller.readiness()
    if reason is None:
        return JSONResponse({"status": "ready"})
    error = MooringsError(reason.code, reason.message, hint=reason.hint, retryable=True)
    return problem_response(error, call.request_id, status=503)


async def get_version(call: RequestContext) -> Response:
    """Tell the version of the controller and of its API."""
    body = VersionBody(version=moorings.__version__, api_version=API_VERSION, installation=call.controller.installation)
    return call.answer(body)


async def get_document(call: RequestContext) -> Response:
    """Give this document."""
    return Response(call.service.document(), media_type="application/json")


def _plain(description: str, schema: Schema) -> ResponseSpec:
    return ResponseSpec(200, description, content={"application/json": {"schema": schema}})


_STATUS: Schema = {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}

OPERATIONS = (
    Operation("GET", "/healthz", get_health, _plain("it lives", _STATUS), open=True),
    Operation("GET", "/livez", get_liveness, _plain("it lives", _STATUS), open=True),
    Operation("GET", "/readyz", get_readiness, _plain("it is ready", _STATUS), open=True),
    Operation("GET", "/version", get_version, object_response("Version", VersionBody), open=True),
    Operation("GET", "/openapi.json", get_document, _plain("the document", {"type": "object"}), open=True),
)
