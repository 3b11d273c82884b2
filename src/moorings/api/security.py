"""Who calls: the access key in the ``Authorization`` header, and what the controller knows of it.

One function and no framework's security classes: they describe, but do not check. What a caller may do is asked in the
controller's use cases, where the owner of the thing is known (law 10).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from moorings.core.errors import MooringsError

SECRET_CHARS_MAX = 200
STANDBY_HEADER: Final = b"x-moorings-standby"  # on requests and answers of one that stands by; never handed on twice
_HINT = "send the header Authorization: Bearer moor_..."


def parse_bearer(headers: Mapping[bytes, bytes]) -> str:
    """The access key a request carries.

    Raises:
        MooringsError: ``auth.missing``, ``auth.invalid`` (it cannot be a key of ours).
    """
    scheme, _, secret = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"bearer":
        raise MooringsError("auth.missing", "the request carries no access key", hint=_HINT)
    secret = secret.strip()
    if not secret or len(secret) > SECRET_CHARS_MAX or not secret.isascii():
        raise MooringsError("auth.invalid", "the access key is not valid", hint=_HINT)
    return secret.decode("ascii")
