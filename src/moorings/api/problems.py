"""Errors as RFC 9457 ``application/problem+json``: a stable code, a sentence, a hint, the request's id.

Status and title come from the one table in ``wire.errors``. An unexpected error becomes ``internal.error`` without
internal details; the log has those under the same request id.
"""

from __future__ import annotations

import json

from starlette.responses import Response

from moorings.core.errors import MooringsError
from moorings.wire.codec import encode
from moorings.wire.errors import error_kind
from moorings.wire.shapes import ProblemBody

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1
# After these the rest of the request may still be on its way, so the connection cannot be reused.
_CLOSING_CODES = frozenset({"body.too_large", "request.invalid"})


def problem_body(error: MooringsError, request_id: str, *, status: int | None = None) -> ProblemBody:
    """The problem for ``error``; ``status`` overrides the table's."""
    kind = error_kind(error.code)
    return ProblemBody(
        title=kind.title,
        status=status or kind.status,
        code=error.code,
        detail=error.detail,
        hint=error.hint,
        retryable=error.retryable,
        request_id=request_id,
    )


def problem_response(error: MooringsError, request_id: str, *, status: int | None = None, allow: str = "") -> Response:
    """The response for ``error``; ``allow`` lists the methods of the address."""
    body = problem_body(error, request_id, status=status)
    response = Response(json.dumps(encode(body), ensure_ascii=False), body.status, media_type=MEDIA_TYPE)
    if body.status == 401:
        invalid = ', error="invalid_token"' if error.code in ("auth.invalid", "auth.expired") else ""
        response.headers["WWW-Authenticate"] = f'Bearer realm="moorings"{invalid}'
    if body.status == 503 or error.retryable:
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    if allow:
        response.headers["Allow"] = allow
    if error.code in _CLOSING_CODES:
        response.headers["Connection"] = "close"
    return response


def internal_error_response(request_id: str) -> Response:
    """The response to a request in which our own code failed."""
    error = MooringsError(
        "internal.error",
        "the controller met a fault of its own while it served this request",
        hint=f"its log tells more under the request id {request_id}",
    )
    return problem_response(error, request_id)
