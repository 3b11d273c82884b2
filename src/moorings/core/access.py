"""Who may do what: decided from the key a caller proved to hold, never from what the caller says it is (law 10)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from moorings.core.errors import MooringsError


class Role(StrEnum):
    """What the holder of an access key may do."""

    ADMIN = "admin"  # everything
    USER = "user"  # reads all; makes and ends its own claims and runs
    AGENT = "agent"  # reads all; makes and ends claims of the owner prefix its key names
    VIEWER = "viewer"  # reads all


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, as the access key proves it.

    Attributes:
        subject: who the key speaks for.
        owner_prefix: owners it may act for begin with it.
        key_id: public id of the key, for logs.
    """

    subject: str
    role: Role
    owner_prefix: str
    key_id: str


def prefix_for(role: Role, subject: str) -> str:
    """The owner prefix of a role that does not choose its own."""
    return "" if role is Role.ADMIN else f"user/{subject}"


def check_admin(caller: Caller, what: str) -> None:
    """Nothing, if the caller is an admin.

    Raises:
        MooringsError: ``auth.denied``.
    """
    if caller.role is not Role.ADMIN:
        raise MooringsError("auth.denied", f"{caller.subject} ({caller.role}) may not {what}", hint="ask an admin")


def check_may_act(caller: Caller, owner: str, subject: str, what: str) -> None:
    """Nothing, if the caller may change something that belongs to ``owner`` and was made by ``subject``.

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
        if owner.startswith("local/") and subject == caller.subject:
            return
    raise MooringsError(
        "owner.denied",
        f"{caller.subject} ({caller.role}) may not {what} for {owner}",
        hint=f"this key acts for {caller.owner_prefix or 'nobody'}",
    )
