"""Who may have jobs: people with an account that works."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from moorings.privileged.refusals import Refused

SHADOW = Path("/etc/shadow")
LOGIN_DEFS = Path("/etc/login.defs")
UID_MIN = 1000  # of people, where login.defs has no UID_MIN (shadow-utils)
OVERFLOW_UIDS = (65534, 65535, 4294967295)  # nobody, and what stands for "no user"
_CLOSED_SHELLS = ("/usr/sbin/nologin", "/sbin/nologin", "/usr/bin/false", "/bin/false")


@dataclass(frozen=True, slots=True)
class PersonAccount:
    """A person's account."""

    name: str
    uid: int
    gid: int
    home: str
    shell: str


def find_account(uid: int, shadow: Path = SHADOW, login_defs: Path = LOGIN_DEFS) -> PersonAccount:
    """The account with that uid, if jobs may run as it.

    Raises:
        Refused: ``account.refused``.
    """
    if uid == 0:
        raise Refused("account.refused", "root's jobs are not started here", "run it as yourself")
    if uid in OVERFLOW_UIDS:
        raise Refused("account.refused", f"user {uid} is nobody", "run it as yourself")
    try:
        found = pwd.getpwuid(uid)
    except KeyError:
        raise Refused("account.refused", f"there is no account with uid {uid}", "ask the machine's admin") from None
    account = PersonAccount(found.pw_name, found.pw_uid, found.pw_gid, found.pw_dir, found.pw_shell)
    fault = account_fault(account, _password_field(shadow, account.name), uid_min(_text(login_defs)))
    if fault:
        raise Refused("account.refused", f"{account.name} {fault}", "ask the machine's admin")
    return account


def account_fault(account: PersonAccount, password: str, least_uid: int) -> str:
    """Why no job may run as an account; empty: one may.

    Args:
        account: the account.
        password: its field in the shadow file; empty: it has none there, or an empty one.
        least_uid: of people.
    """
    if account.uid < least_uid:
        return f"is a system account (uid {account.uid}, people begin with {least_uid})"
    if account.gid == 0:
        return "has the group root"
    if account.shell in _CLOSED_SHELLS:
        return f"has no login ({account.shell})"
    if len(password) > 1 and password.startswith("!"):  # alone it says that there is no password: a key may log in
        return "is locked"
    return ""


def uid_min(login_defs: str) -> int:
    """The least uid of people, of the text of login.defs(5)."""
    for line in login_defs.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == "UID_MIN" and words[1].isdecimal():
            return max(1, int(words[1]))
    return UID_MIN


def groups_of(account: PersonAccount) -> list[int]:
    """The groups of an account, its own among them."""
    return os.getgrouplist(account.name, account.gid)


def _password_field(shadow: Path, name: str) -> str:
    """The second field of a name's line in shadow(5); empty: the name is not there, as that of a directory service."""
    for line in _text(shadow).splitlines():
        fields = line.split(":")
        if fields[0] == name and len(fields) > 1:
            return fields[1]
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""
