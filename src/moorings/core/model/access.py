"""Access rights, decided from the key a caller proved to hold, never from what the caller claims to be (law 10)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import DAY_S, Timestamp, add_seconds

SUBJECT_URI = "moorings:subject/"  # in a certificate, before the name of its subject
CONTROLLER_URI = "moorings:controller"  # in the certificate that a controller shows to another controller
# The kinds of owners, and what their prefixes say.
OWNER_KINDS = ("user", "local", "slurm", "kubernetes", "appliance")
USER_OWNER_PREFIX = "user/"  # claims that people made: they end when they are released
RUN_OWNER_PREFIXES = (LOCAL_OWNER_PREFIX, APPLIANCE_OWNER_PREFIX) = ("local/", "appliance/")  # claims of our runs
EXTERNAL_OWNER_PREFIXES = ("slurm/", "kubernetes/")  # jobs of other schedulers; their agents submit the claims
# A claim of Slurm belongs to one start of its job: it cannot resume elsewhere under that claim.
MOVABLE_OWNER_PREFIXES = (LOCAL_OWNER_PREFIX, "kubernetes/")
SUBJECT_CHARS_MAX = 64
LIFETIME_S_MIN = 60.0
LIFETIME_DAYS_MAX = 3660
GRACE_S = DAY_S  # a rotated secret still works for so long: time to distribute the new one
GRACE_S_MAX = 30 * DAY_S
_SUBJECT_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._@+-")


class Role(StrEnum):
    """What the holder of an access key may do."""

    ADMIN = "admin"  # everything
    USER = "user"  # creates and ends its own claims and runs; reads what ``visibility`` shows it
    AGENT = "agent"  # creates and ends claims with the owner prefix of its key; reads these
    VIEWER = "viewer"  # reads pools, the queue and claims, without the names of others


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller, as its access key proves it.

    Attributes:
        subject: the name the key authenticates.
        owner_prefix: it may act for owners with this prefix.
        key_id: public id of the key, for logs.
        key_expires_at: when the presented secret expires; None: never.
        is_key_rotated: whether a rotation has replaced that secret.
        uid: of the person on this machine, as the kernel says it; None: a key proves who it is.
        run: the only run that it may report on, and nothing else: it holds that run's token; None: it holds a key.
    """

    subject: str
    role: Role
    owner_prefix: str
    key_id: str
    key_expires_at: Timestamp | None = None
    is_key_rotated: bool = False
    uid: int | None = None
    run: str | None = None


@dataclass(frozen=True, slots=True)
class Ownership:
    """Whose a record is, as an event says it.

    Attributes:
        subject: that made it; None: none did.
        owner: of the claim, or as the claim of a run is owned; None: it has none.
        project: that it is charged to; None: none.
    """

    subject: str | None = None
    owner: str | None = None
    project: str | None = None


def is_subject(text: str) -> bool:
    """Whether access keys and certificates may carry this subject."""
    return 1 <= len(text) <= SUBJECT_CHARS_MAX and set(text) <= _SUBJECT_CHARS and text not in (".", "..")


def check_subject(subject: str) -> None:
    """Check that access keys and certificates may carry this subject.

    Raises:
        MooringsError: ``key.invalid``.
    """
    if not is_subject(subject):
        raise MooringsError(
            "key.invalid",
            f"subject {subject[:80]!r} is not allowed",
            hint=f"use up to {SUBJECT_CHARS_MAX} letters, digits and . _ @ + -",
        )


@dataclass(frozen=True, slots=True)
class Peer:
    """The identity in a client's certificate, after the TLS layer has verified it.

    Attributes:
        subject: subject of the certificate; empty: it names none.
        is_controller: whether it is a controller's certificate; a controller may forward requests of others.
        expires_at_s: when it expires, in seconds since 1970.
    """

    subject: str
    is_controller: bool
    expires_at_s: float


def default_owner_prefix(role: Role, subject: str) -> str:
    """The owner prefix of a key created without one."""
    return "" if role is Role.ADMIN else f"user/{subject}"


def key_expiry(role: Role, requested_s: float | None, default_s: float, now: Timestamp) -> Timestamp | None:
    """When a new key expires; None: never.

    Args:
        role: of the key. An agent's key expires only on request: an expiry date must not stop a site's jobs.
        requested_s: the requested lifetime, in seconds; 0: unlimited; None: the default.
        default_s: the default lifetime, in seconds; 0: unlimited.
        now: when the key is created.

    Raises:
        MooringsError: ``key.invalid``.
    """
    lifetime_s = requested_s if requested_s is not None else 0.0 if role is Role.AGENT else default_s
    check_lifetime(lifetime_s)
    return add_seconds(now, lifetime_s) if lifetime_s else None


def check_lifetime(lifetime_s: float) -> None:
    """Check the lifetime of a key, in seconds; 0: unlimited.

    Raises:
        MooringsError: ``key.invalid``.
    """
    if lifetime_s and not LIFETIME_S_MIN <= lifetime_s <= LIFETIME_DAYS_MAX * DAY_S:
        raise MooringsError(
            "key.invalid",
            f"a key cannot live for {lifetime_s:g} seconds",
            hint=f"choose 1 minute to {LIFETIME_DAYS_MAX} days, or for ever",
        )


def renewed_expiry(begun: Timestamp, expires_at: Timestamp | None, now: Timestamp) -> Timestamp | None:
    """The expiry of a key rotated now: it gets the same lifetime again, counted from now."""
    return None if expires_at is None else Timestamp(now + expires_at - begun)


def grace_end(expires_at: Timestamp | None, grace_s: float, now: Timestamp) -> Timestamp:
    """When a secret replaced now stops working; never later than its own expiry.

    Raises:
        MooringsError: ``key.invalid``.
    """
    if not 0 <= grace_s <= GRACE_S_MAX:
        raise MooringsError(
            "key.invalid",
            f"a replaced secret cannot work for {grace_s:g} seconds more",
            hint=f"choose 0 to {GRACE_S_MAX / DAY_S:g} days",
        )
    end = add_seconds(now, grace_s)
    return end if expires_at is None else min(end, expires_at)


def check_certificate_binding(caller: Caller, peer: Peer | None, *, is_forwarded: bool = False) -> None:
    """Check that the access key came over a connection with a certificate of the same subject.

    Args:
        caller: holder of the access key.
        peer: identity in the connection's certificate; None: this controller requires no certificates.
        is_forwarded: whether the request says that another controller forwards it. Any client can say so: it counts
            only with a controller's own certificate. The forwarding controller has checked the caller's certificate.

    Raises:
        MooringsError: ``auth.certificate_mismatch``.
    """
    if peer is None or (peer.is_controller and is_forwarded):
        return
    if peer.is_controller or peer.subject != caller.subject:
        named = f"names {peer.subject!r}" if peer.subject else "names no subject"
        raise MooringsError(
            "auth.certificate_mismatch",
            f"the client certificate {named}, and the access key is somebody else's",
            hint="use certificate and access key of the same subject; 'moor pki issue SUBJECT' makes a certificate",
        )


def check_admin(caller: Caller, action: str) -> None:
    """Check that the caller is an admin.

    Raises:
        MooringsError: ``auth.denied``.
    """
    if caller.role is not Role.ADMIN:
        raise MooringsError("auth.denied", f"{caller.subject} ({caller.role}) may not {action}", hint="ask an admin")


def check_owner_access(caller: Caller, owner: str, subject: str, action: str) -> None:
    """Check that the caller may change an object that belongs to ``owner`` and was created by ``subject``.

    An owner prefix matches whole parts: ``user/ann`` covers ``user/ann`` and ``user/ann/x``, not ``user/anna``.

    Raises:
        MooringsError: ``owner.denied``.
    """
    if caller.role is Role.ADMIN:
        return
    if caller.role in (Role.USER, Role.AGENT):
        prefix = caller.owner_prefix.rstrip("/")
        if prefix and (owner == prefix or owner.startswith(prefix + "/")):
            return
        if owner.startswith(RUN_OWNER_PREFIXES) and subject == caller.subject:
            return
    raise MooringsError(
        "owner.denied",
        f"{caller.subject} ({caller.role}) may not {action} for {owner}",
        hint=f"this key acts for {caller.owner_prefix or 'nobody'}",
    )
