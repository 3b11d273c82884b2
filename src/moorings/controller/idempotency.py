"""Idempotency keys: their form, and the digest that recognises the same request."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from moorings.core.model.claims import KEY_CHARS_MAX
from moorings.core.model.errors import MooringsError
from moorings.core.model.events import canonical_json


def check_idempotency_key(key: str) -> str:
    """``key``, if it is valid.

    Raises:
        MooringsError: ``key.invalid``.
    """
    if not 1 <= len(key) <= KEY_CHARS_MAX or not key.isprintable() or not key.isascii():
        raise MooringsError(
            "key.invalid",
            "the Idempotency-Key is not allowed",
            hint=f"use 1 to {KEY_CHARS_MAX} printable ASCII characters, a UUID for example",
        )
    return key


def request_digest(asked: Mapping[str, object]) -> str:
    """A digest that is equal for equal requests."""
    return hashlib.sha256(canonical_json(asked).encode()).hexdigest()
