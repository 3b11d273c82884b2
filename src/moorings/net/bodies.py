"""Reading a request's body, bounded in size, in time, and in what the bodies of all requests hold."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moorings.core.model.errors import MooringsError
from moorings.net.limits import BufferedBody

if TYPE_CHECKING:
    from starlette.types import Receive

_DIGITS_MAX = 18


class ClientGoneError(MooringsError):
    """The client has closed its connection before its body was complete."""


@dataclass(frozen=True, slots=True)
class BodyBounds:
    """The bounds of a body.

    Attributes:
        bytes_max: its size.
        drained_bytes_max: how much of one that is too large is read and dropped, so that its sender sees the response.
        timeout_s: how long it may take to arrive; None: the server bounds that.
        what: its name in errors.
        hint: what to do if it is too large.
    """

    bytes_max: int
    drained_bytes_max: int
    timeout_s: float | None = None
    what: str = "body"
    hint: str = ""


async def read_body(
    receive: Receive, headers: Mapping[bytes, bytes], bounds: BodyBounds, kept: BufferedBody | None = None
) -> bytes:
    """The whole body; its bytes count in ``kept``, for the caller to release once they are no longer needed.

    Raises:
        MooringsError: ``body.too_large``, ``controller.busy`` (too much is buffered already), ``request.invalid`` (it
            did not arrive in time).
        ClientGoneError: ``request.invalid``.
    """
    declared = headers.get(b"content-length", b"0")
    if not declared.isdigit() or len(declared) > _DIGITS_MAX or int(declared) > bounds.drained_bytes_max:
        raise _too_large(bounds)
    try:
        async with asyncio.timeout(bounds.timeout_s):
            return await _gather(receive, bounds, kept)
    except TimeoutError:
        detail = f"the {bounds.what} did not arrive within {bounds.timeout_s:g} s"
        raise MooringsError("request.invalid", detail, hint="send it faster", retryable=True) from None


async def _gather(receive: Receive, bounds: BodyBounds, kept: BufferedBody | None) -> bytes:
    size, parts = 0, []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError("request.invalid", f"the client has gone before the {bounds.what} was complete")
        part = message.get("body", b"")
        size += len(part)
        if size <= bounds.bytes_max:
            if kept is not None:
                kept.add(len(part))
            parts.append(part)
        elif size > bounds.drained_bytes_max:
            break
        more = message.get("more_body", False)
    if size > bounds.bytes_max:
        raise _too_large(bounds)
    return b"".join(parts) if len(parts) > 1 else parts[0]


def _too_large(bounds: BodyBounds) -> MooringsError:
    detail = f"the {bounds.what} is larger than {bounds.bytes_max} bytes"
    return MooringsError("body.too_large", detail, hint=bounds.hint)
