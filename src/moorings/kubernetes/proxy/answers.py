"""HTTP responses of the proxy."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from starlette.responses import Response

from moorings.wire.codec import encode

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


def json_response(value: object, status: int = 200) -> Response:
    """A response of a shape, or plain data, as JSON."""
    data = json.dumps(encode(value), separators=(",", ":"), ensure_ascii=False).encode()
    return Response(data, status, media_type="application/json")


async def send_response(answer: Response, request_id: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Send a response, with the headers that all have."""
    answer.headers.update(
        {"x-request-id": request_id, "cache-control": "no-store", "x-content-type-options": "nosniff"}
    )
    await answer(scope, receive, send)
