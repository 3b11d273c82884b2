"""Access keys: created once, shown once, stored as a digest; they expire, and rotation gives them a new secret.

``moor_<id>_<secret>``: the id finds the record, the secret is 32 random bytes. The digest is HMAC-SHA256 with a pepper
stored outside the database, so a stolen database opens nothing. A slow password hash would add nothing: the secret has
256 bits (and argon2 would cost 190 ms a request).

A rotation keeps the key and replaces its secret; the old one still works for a grace time. Refused: a second key beside
the first, because an admin revoking "bert's key" would forget one, and one could become many. So a key has at most two
secrets, each rotation ends the one before the last, and only the newest rotates.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
from dataclasses import replace

from moorings.core.model.access import (
    GRACE_S,
    Caller,
    Role,
    check_admin,
    check_subject,
    default_owner_prefix,
    grace_end,
    key_expiry,
    renewed_expiry,
)
from moorings.core.model.claims import check_owner
from moorings.core.model.errors import MooringsError
from moorings.core.model.events import Event, canonical_json
from moorings.core.model.timestamps import Timestamp
from moorings.ports.clock import Clock, random_id
from moorings.ports.store import AccessKey, Store

log = logging.getLogger("moorings.controller")

SECRET_CHARS_MAX = 200
RUN_TOKEN_PREFIX = "moorrun_"  # noqa: S105 - only how one begins
CACHE_MAX = 4096


class AccessKeyManager:
    """Creates, checks, rotates and revokes access keys.

    Args:
        store: stores them.
        clock: decides which have expired.
        pepper: the secret of the digests.
        lifetime_s: default of a new key, in seconds; 0: it never expires.
    """

    def __init__(self, store: Store, clock: Clock, pepper: bytes, lifetime_s: float = 0.0) -> None:
        self._store = store
        self._clock = clock
        self._pepper = pepper
        self._lifetime_s = lifetime_s
        self._callers_by_hash: dict[bytes, Caller] = {}
        self._changes = 0  # keys revoked and rotated
        self._unused_rotations: set[str] = (
            set()
        )  # ids of keys rotated by their holder, whose new secret was not used yet

    async def authenticate(self, secret: str, *, after_expiry: bool = False) -> Caller:
        """The caller that holds this key.

        A valid key is cached by the hash of its text until it is revoked or rotated, so a request costs no read; its
        expiry is checked each time.

        Args:
            secret: the presented secret.
            after_expiry: also accept an expired key, but no replaced secret.

        Raises:
            MooringsError: ``auth.invalid``, without saying what is wrong with it; ``auth.expired``, only for a correct
                secret; ``run.ended``, only for the correct token of a run.
        """
        if secret.startswith(RUN_TOKEN_PREFIX):
            return await asyncio.to_thread(self._prove_run, secret)
        known = hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
        caller = self._callers_by_hash.get(known)
        while caller is None:
            changes = self._changes
            proved = await asyncio.to_thread(self._prove, secret)
            if len(self._callers_by_hash) >= CACHE_MAX:
                self._callers_by_hash.clear()
            self._callers_by_hash[known] = (
                proved  # first: a change not noticed below then finds it here, and removes it
            )
            if changes == self._changes:
                caller = proved
            else:  # it may have been read before it was revoked or rotated
                self._callers_by_hash.pop(known, None)
        if after_expiry and not caller.is_key_rotated:
            return caller
        _check_current(caller, self._clock.now())
        return caller

    def _prove(self, secret: str) -> Caller:
        parts = secret.split("_")
        key = self._store.access_key(parts[1]) if len(secret) <= SECRET_CHARS_MAX and len(parts) == 3 else None
        digest = self._digest(secret)
        if key is not None and key.revoked_at is None:
            caller = Caller(key.subject, key.role, key.owner_prefix, key.id, key.expires_at)
            if hmac.compare_digest(digest, key.digest):
                self._unused_rotations.discard(key.id)
                return caller
            if key.previous_digest is not None and hmac.compare_digest(digest, key.previous_digest):
                return replace(caller, key_expires_at=key.previous_valid_until, is_key_rotated=True)
        raise MooringsError("auth.invalid", "the access key is not valid", hint="ask an admin for a new one")

    def _prove_run(self, token: str) -> Caller:
        """The caller that holds the token of a run: ``moorrun_<run>_<secret>``."""
        ident, _, secret = token[:SECRET_CHARS_MAX].removeprefix(RUN_TOKEN_PREFIX).rpartition("_")
        run = self._store.get_run(ident)
        digest = hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
        if run is None or run.id != ident or run.submitter is None:
            raise _invalid_run_token()
        if not hmac.compare_digest(digest, run.submitter.token_digest):
            raise _invalid_run_token()
        if run.is_ended:
            raise MooringsError("run.ended", f"run {run.id} has ended, and its token with it")
        return Caller(run.subject, Role.USER, "", f"runs-of:{run.subject}", run=run.id)

    def _digest(self, secret: str) -> str:
        return hmac.new(self._pepper, secret.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()

    def create(
        self, subject: str, role: Role, owner_prefix: str | None, by: str, lifetime_s: float | None = None
    ) -> tuple[AccessKey, str]:
        """A new key and its secret, which cannot be read again.

        Args:
            subject: the name it authenticates.
            role: its rights.
            owner_prefix: of an agent: it may act for owners with this prefix.
            by: who creates it.
            lifetime_s: seconds until it expires; 0: never; None: the default of its role.

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
            prefix = default_owner_prefix(role, subject)
        now = self._clock.now()
        expires_at = key_expiry(role, lifetime_s, self._lifetime_s, now)
        ident = random_id(10)
        secret = _new_secret(ident)
        key = AccessKey(ident, subject, role, prefix, self._digest(secret), now, expires_at=expires_at)
        payload = canonical_json({"key": ident, "subject": subject, "role": role, "by": by, "expires_at": expires_at})
        self._store.add_access_key(key, Event(name="key.created", at=now, data=payload))
        log.info("key.created", extra={"key": ident, "subject": subject, "role": role.value, "by": by})
        return key, secret

    def rotate(
        self, ident: str, caller: Caller, shown: str, grace_s: float | None = None, lifetime_s: float | None = None
    ) -> tuple[AccessKey, str]:
        """A key with a new secret, which cannot be read again; it gets the same lifetime again.

        If the response was lost, the holder may ask again with the old secret, until the new one was used.

        Args:
            ident: of the key.
            caller: an admin, or its holder,
            shown: and the secret that proved it.
            grace_s: seconds for which the old secret still works; None: a day.
            lifetime_s: another lifetime, only for admins; 0: it never expires.

        Raises:
            MooringsError: ``auth.denied``, ``key.unknown``, ``key.invalid``, ``key.replaced``, ``store.unavailable``.
        """
        own = caller.key_id == ident
        if not own or lifetime_s is not None:
            check_admin(caller, "rotate others' access keys, or give them another lifetime")
        key = self._store.access_key(ident)
        if key is None or key.revoked_at is not None:
            raise _unknown(ident)
        again = own and self._is_repeated_rotation(key, shown)
        now, secret = self._clock.now(), _new_secret(ident)
        usual = renewed_expiry(key.rotated_at or key.created_at, key.expires_at, now)
        new = replace(
            key,
            digest=self._digest(secret),
            expires_at=usual if lifetime_s is None else key_expiry(key.role, lifetime_s, 0.0, now),
            rotated_at=now,
            previous_digest=key.previous_digest if again else key.digest,
            previous_valid_until=grace_end(
                key.previous_valid_until if again else key.expires_at, GRACE_S if grace_s is None else grace_s, now
            ),
        )
        payload = canonical_json(
            {"key": ident, "by": caller.subject, "expires_at": new.expires_at, "old_until": new.previous_valid_until}
        )
        if not self._store.rotate_access_key(new, key.digest, Event(name="key.rotated", at=now, data=payload)):
            raise _replaced(ident)
        log.info("key.rotated", extra={"key": ident, "subject": key.subject, "by": caller.subject})
        if own:
            self._unused_rotations.add(ident)
        self._invalidate(ident)
        return new, secret

    def _is_repeated_rotation(self, key: AccessKey, shown: str) -> bool:
        """Whether a holder rotates again with the secret before the newest, as it may if the response was lost.

        Looked up now, not when the request began: its secret may have been replaced meanwhile.

        Raises:
            MooringsError: ``key.replaced``.
        """
        digest = self._digest(shown)
        if hmac.compare_digest(digest, key.digest):
            return False
        if (
            key.id in self._unused_rotations
            and key.previous_digest is not None
            and hmac.compare_digest(digest, key.previous_digest)
        ):
            return True
        raise _replaced(key.id)

    def revoke(self, ident: str, by: str) -> None:
        """Revoke a key with all its secrets, at once.

        Raises:
            MooringsError: ``key.unknown``.
        """
        event = Event(name="key.revoked", at=self._clock.now(), data=canonical_json({"key": ident, "by": by}))
        if not self._store.revoke_access_key(ident, event):
            raise _unknown(ident)
        log.info("key.revoked", extra={"key": ident, "by": by})
        self._invalidate(ident)

    def _invalidate(self, ident: str) -> None:
        self._changes += 1
        # Replaced, not changed: another thread looks things up in it.
        self._callers_by_hash = {
            known: caller for known, caller in list(self._callers_by_hash.items()) if caller.key_id != ident
        }


def _new_secret(ident: str) -> str:
    return f"moor_{ident}_{secrets.token_hex(32)}"


def _check_current(caller: Caller, now: Timestamp) -> None:
    if caller.key_expires_at is None or now < caller.key_expires_at:
        return
    if caller.is_key_rotated:
        detail, hint = "this access key's secret was replaced by a new one", "use the new one"
    else:
        detail, hint = "the access key has expired", "what you hold and run goes on"
    hint = f"{hint}; an admin makes you another secret: 'moor rotate key {caller.key_id}'"
    raise MooringsError("auth.expired", detail, hint=hint)


def _unknown(ident: str) -> MooringsError:
    return MooringsError("key.unknown", f"there is no valid access key {ident[:40]!r}")


def _replaced(ident: str) -> MooringsError:
    return MooringsError(
        "key.replaced",
        f"access key {ident} was given a new secret, and only that rotates it",
        hint=f"use the new secret; if it is lost, ask an admin: 'moor rotate key {ident}'",
    )


def _invalid_run_token() -> MooringsError:
    return MooringsError("auth.invalid", "the run's token is not valid", hint="it lies in the folder of that run")
