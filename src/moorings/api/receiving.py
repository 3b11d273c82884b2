"""Reading a request, on the leader and on a standby: unambiguous headers, a body bounded in size and time.

The leader and a standby both read it here, so that both refuse the same requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from starlette.types import Receive

from moorings.api.limits import ApiLimits, BufferedBody
from moorings.core.errors import MooringsError

_DIGITS_MAX = 18
_SINGLE = frozenset({b"authorization", b"host", b"idempotency-key", b"last-event-id"})


def index_headers(headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """The headers by name.

    Raises:
        MooringsError: ``request.invalid``: a duplicate, of which a proxy before us might read the other one.
    """
    found = dict(headers)
    if len(found) < len(headers):
        names = [name for name, _ in headers]
        twice = next((name for name in sorted(_SINGLE) if names.count(name) > 1), None)
        if twice is not None:
            raise MooringsError(
                "request.invalid", f"the header {twice.decode()} is there twice", hint="send one of each"
            )
    return found


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], limits: ApiLimits, kept: BufferedBody) -> bytes:
    """The whole body; its bytes count in ``kept``, for the caller to release once they are no longer needed.

    Raises:
        MooringsError: ``body.too_large``, ``controller.busy`` (too much is buffered already), ``request.invalid`` (it
            did not arrive in time, or its sender has gone).
    """
    declared = headers.get(b"content-length", b"0")
    if not declared.isdigit() or len(declared) > _DIGITS_MAX or int(declared) > limits.drained_bytes_max:
        raise _too_large(limits)
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            return await _gather(receive, limits, kept)
    except TimeoutError:
        raise MooringsError(
            "request.invalid",
            f"the body did not arrive within {limits.body_timeout_s:g} s",
            hint="send it faster",
            retryable=True,
        ) from None


async def _gather(receive: Receive, limits: ApiLimits, kept: BufferedBody) -> bytes:
    """The body's bytes; one that is too large is read and dropped for a while, so that its sender sees the response."""
    size, parts = 0, []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise MooringsError("request.invalid", "the client has gone before the body was complete")
        part = message.get("body", b"")
        size += len(part)
        if size <= limits.body_bytes_max:
            kept.add(len(part))
            parts.append(part)
        elif size > limits.drained_bytes_max:
            break
        more = message.get("more_body", False)
    if size > limits.body_bytes_max:
        raise _too_large(limits)
    return b"".join(parts) if len(parts) > 1 else parts[0]


def _too_large(limits: ApiLimits) -> MooringsError:
    return MooringsError(
        "body.too_large", f"the body is larger than {limits.body_bytes_max} bytes", hint="put data into files"
    )
