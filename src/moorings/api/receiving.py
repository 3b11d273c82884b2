"""How a request's body is taken in: bounded in size and time, whoever serves it afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.types import Receive

from moorings.api.limits import Limits
from moorings.core.errors import MooringsError

_DIGITS_MAX = 18


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], limits: Limits) -> bytes:
    """The whole body.

    Raises:
        MooringsError: ``body.too_large``, ``request.invalid`` (it did not arrive in time, or its sender has gone).
    """
    declared = headers.get(b"content-length", b"0")
    if not declared.isdigit() or len(declared) > _DIGITS_MAX or int(declared) > limits.drained_bytes_max:
        raise _too_large(limits)
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            return await _gather(receive, limits)
    except TimeoutError:
        raise MooringsError(
            "request.invalid",
            f"the body did not arrive within {limits.body_timeout_s:g} s",
            hint="send it faster",
            retryable=True,
        ) from None


async def _gather(receive: Receive, limits: Limits) -> bytes:
    """The body's bytes; one that is too large is read away for a while, so that its sender sees the answer."""
    size, parts = 0, []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise MooringsError("request.invalid", "the client has gone before the body was complete")
        part = message.get("body", b"")
        size += len(part)
        if size <= limits.body_bytes_max:
            parts.append(part)
        elif size > limits.drained_bytes_max:
            break
        more = message.get("more_body", False)
    if size > limits.body_bytes_max:
        raise _too_large(limits)
    return b"".join(parts) if len(parts) > 1 else parts[0]


def _too_large(limits: Limits) -> MooringsError:
    return MooringsError(
        "body.too_large", f"the body is larger than {limits.body_bytes_max} bytes", hint="put data into files"
    )
