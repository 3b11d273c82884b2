"""Access keys: made once, shown once, stored as a digest.

``moor_<id>_<secret>``: the id finds the record, the secret is 32 random bytes. The digest is HMAC-SHA256 under a pepper
that is kept outside the database, so a stolen database opens nothing. A slow password hash would add nothing: the
secret has 256 bits (and argon2 would cost 190 ms a request).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets

from moorings.core.access import Caller, Role, check_subject, prefix_for
from moorings.core.claims import check_owner
from moorings.core.errors import MooringsError
from moorings.core.events import Event, canonical
from moorings.ports.clock import Clock
from moorings.ports.store import AccessKey, Store

log = logging.getLogger("moorings.controller")

SECRET_CHARS_MAX = 200
CACHE_MAX = 4096
_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"


class Keys:
    """Makes, checks and revokes access keys."""

    def __init__(self, store: Store, clock: Clock, pepper: bytes) -> None:
        self._store = store
        self._clock = clock
        self._pepper = pepper
        self._proved: dict[bytes, Caller] = {}
        self._revocations = 0

    async def authenticate(self, secret: str) -> Caller:
        """Who holds this key.

        A key that was good is remembered by the hash of its text until any key is revoked, so a request costs no read.

        Raises:
            MooringsError: ``auth.invalid``, without saying what is wrong with it.
        """
        known = hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
        caller = self._proved.get(known)
        if caller is None:
            revocations = self._revocations
            caller = await asyncio.to_thread(self._prove, secret)
            if revocations != self._revocations:  # it may have been read before, and revoked since
                return await self.authenticate(secret)
            if len(self._proved) >= CACHE_MAX:
                self._proved.clear()
            self._proved[known] = caller
        return caller

    def _prove(self, secret: str) -> Caller:
        parts = secret.split("_")
        key = self._store.access_key(parts[1]) if len(secret) <= SECRET_CHARS_MAX and len(parts) == 3 else None
        digest = self._digest(secret)
        if key is None or key.revoked_at is not None or not hmac.compare_digest(digest, key.digest):
            raise MooringsError("auth.invalid", "the access key is not valid", hint="ask an admin for a new one")
        return Caller(key.subject, key.role, key.owner_prefix, key.id)

    def _digest(self, secret: str) -> str:
        return hmac.new(self._pepper, secret.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()

    def create(self, subject: str, role: Role, owner_prefix: str | None, by: str) -> tuple[AccessKey, str]:
        """A new key and its secret, which nobody can read again.

        Raises:
            MooringsError: ``key.invalid``, ``owner.invalid``, ``store.unavailable``.
        """
        check_subject(subject)
        if role is Role.AGENT:
            if not owner_prefix:
                raise MooringsError(
                    "key.invalid", "an agent's key names the owners it acts for", hint="--owner-prefix slurm/CLUSTER"
                )
            prefix = check_owner(owner_prefix.rstrip("/"))
        elif owner_prefix:
            raise MooringsError("key.invalid", f"the role {role} takes no owner prefix")
        else:
            prefix = prefix_for(role, subject)
        ident = "".join(secrets.choice(_ALPHABET) for _ in range(10))
        secret = f"moor_{ident}_{secrets.token_hex(32)}"
        now = self._clock.now()
        key = AccessKey(ident, subject, role, prefix, self._digest(secret), now)
        told = canonical({"key": ident, "subject": subject, "role": role, "by": by})
        self._store.add_access_key(key, Event(name="key.created", at=now, data=told))
        log.info("key.created", extra={"key": ident, "subject": subject, "role": role.value, "by": by})
        return key, secret

    def revoke(self, ident: str, by: str) -> None:
        """Make a key worth nothing, at once.

        Raises:
            MooringsError: ``key.unknown``.
        """
        event = Event(name="key.revoked", at=self._clock.now(), data=canonical({"key": ident, "by": by}))
        if not self._store.revoke_access_key(ident, event):
            raise MooringsError("key.unknown", f"there is no valid access key {ident[:40]!r}")
        log.info("key.revoked", extra={"key": ident, "by": by})
        self._revocations += 1
        self._proved.clear()
