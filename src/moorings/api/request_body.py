"""Reading a request, on the leader and on a standby: unambiguous headers, the access key, a bounded body.

The leader and a standby both read it here, so that both refuse the same requests. The controller's use cases check the
caller's rights, where the owner of the resource is known (law 10).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from starlette.types import Receive

from moorings.api.limits import ApiLimits
from moorings.controller.keys import SECRET_CHARS_MAX
from moorings.core.model.errors import MooringsError
from moorings.net import bodies
from moorings.net.bodies import BodyBounds
from moorings.net.limits import BufferedBody

STANDBY_HEADER: Final = b"x-moorings-standby"  # on a standby's requests and responses; never forwarded twice
_HINT = "send the header Authorization: Bearer moor_..."
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


def parse_bearer(headers: Mapping[bytes, bytes]) -> str:
    """The access key of a request.

    Raises:
        MooringsError: ``auth.missing``, ``auth.invalid`` (it does not have our keys' form).
    """
    scheme, _, secret = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"bearer":
        raise MooringsError("auth.missing", "the request carries no access key", hint=_HINT)
    secret = secret.strip()
    if not secret or len(secret) > SECRET_CHARS_MAX or not secret.isascii():
        raise MooringsError("auth.invalid", "the access key is not valid", hint=_HINT)
    return secret.decode("ascii")


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], limits: ApiLimits, kept: BufferedBody) -> bytes:
    """The whole body, as ``bodies.read_body``."""
    bounds = BodyBounds(
        limits.body_bytes_max, limits.drained_bytes_max, limits.body_timeout_s, hint="put data into files"
    )
    return await bodies.read_body(receive, headers, bounds, kept)


async def wait_for_disconnect(receive: Receive) -> None:
    """Return once the client has gone; what it sends is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass
