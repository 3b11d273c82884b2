"""Errors as RFC 9457 ``application/problem+json``: a stable code, a sentence, a hint, the request's id.

Status and title come from the one table in ``wire.errors``.
"""

from __future__ import annotations

import json

from starlette.responses import Response

from moorings.core.model.errors import MooringsError
from moorings.wire.codec import encode
from moorings.wire.errors import error_kind
from moorings.wire.shapes import ProblemBody

PROBLEM_TYPE = "application/problem+json"
RETRY_AFTER_S = 1
# After these the rest of the request may still be on its way, so the connection cannot be reused.
_CLOSING_CODES = frozenset({"body.too_large", "request.invalid", "request.not_private"})


def build_problem(error: MooringsError, request_id: str = "", *, status: int | None = None) -> ProblemBody:
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


def encode_problem(body: ProblemBody) -> bytes:
    """The JSON of a problem."""
    return json.dumps(encode(body), ensure_ascii=False).encode("utf-8", "backslashreplace")


def problem_response(
    error: MooringsError, request_id: str = "", *, status: int | None = None, allow: str = ""
) -> Response:
    """The response for ``error``; ``allow`` lists the methods of the address."""
    body = build_problem(error, request_id, status=status)
    headers = {}
    if body.status == 401:
        invalid = ', error="invalid_token"' if error.code in ("auth.invalid", "auth.expired") else ""
        headers["www-authenticate"] = f'Bearer realm="moorings"{invalid}'
    if body.status == 503 or error.retryable:
        headers["retry-after"] = str(RETRY_AFTER_S)
    if allow:
        headers["allow"] = allow
    if error.code in _CLOSING_CODES:
        headers["connection"] = "close"
    return Response(encode_problem(body), body.status, headers, PROBLEM_TYPE)


def build_bad_request(detail: str, hint: str = "") -> bytes:
    """The whole response to bytes that are no request."""
    content = encode_problem(build_problem(MooringsError("request.invalid", detail, hint=hint)))
    return (
        b"HTTP/1.1 400 Bad Request\r\ncontent-type: %b\r\ncontent-length: %d\r\ncache-control: no-store\r\n"
        b"x-content-type-options: nosniff\r\nconnection: close\r\n\r\n%b"
    ) % (PROBLEM_TYPE.encode(), len(content), content)
