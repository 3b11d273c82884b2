"""HTTP responses: JSON, and errors as RFC 9457 problems with the codes of ``wire.errors``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from moorings.core.errors import MooringsError
from moorings.wire.codec import encode
from moorings.wire.errors import error_kind
from moorings.wire.shapes import ProblemBody

JSON = b"application/json"
PROBLEM = b"application/problem+json"


@dataclass(frozen=True, slots=True)
class ServerResponse:
    """A whole response."""

    status: int
    body: bytes = b""
    media: bytes = JSON
    headers: Mapping[bytes, bytes] = field(default_factory=dict)

    def head(self, request_id: str) -> list[tuple[bytes, bytes]]:
        """Its headers."""
        found = [(b"x-request-id", request_id.encode()), (b"cache-control", b"no-store")]
        found.append((b"x-content-type-options", b"nosniff"))
        if self.status != 204:
            found += [(b"content-type", self.media), (b"content-length", str(len(self.body)).encode())]
        return found + list(self.headers.items())


def json_response(value: object, status: int = 200) -> ServerResponse:
    """A response of a shape, or plain data, as JSON."""
    return ServerResponse(status, json.dumps(encode(value), separators=(",", ":"), ensure_ascii=False).encode())


def problem_response(error: MooringsError, request_id: str, status: int = 0) -> ServerResponse:
    """The response for an error."""
    kind = error_kind(error.code)
    body = ProblemBody(
        title=kind.title,
        status=status or kind.status,
        code=error.code,
        detail=error.detail,
        hint=error.hint,
        retryable=error.retryable,
        request_id=request_id,
    )
    headers = {}
    if body.status == 401:
        headers[b"www-authenticate"] = b'Bearer realm="moorings"'
    if body.status == 503 or error.retryable:
        headers[b"retry-after"] = b"1"
    if error.code in ("body.too_large", "request.invalid", "request.not_private"):
        headers[b"connection"] = b"close"  # the rest of the request may still arrive
    data = json.dumps(encode(body), ensure_ascii=False).encode("utf-8", "backslashreplace")
    return ServerResponse(body.status, data, PROBLEM, headers)
