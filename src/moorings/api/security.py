"""The caller: the access key in the ``Authorization`` header, and its entry in the controller.

One function and no framework's security classes: they describe, but do not check. The controller's use cases check the
caller's rights, where the owner of the resource is known (law 10).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from moorings.core.errors import MooringsError

SECRET_CHARS_MAX = 200
STANDBY_HEADER: Final = b"x-moorings-standby"  # on a standby's requests and responses; never forwarded twice
_HINT = "send the header Authorization: Bearer moor_..."


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
