"""Private keys as files: checks of owner and mode.

Separate from ``transport``, so that checking a file does not import HTTP and TLS.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from moorings.client.error_text import format_cause
from moorings.core.model.errors import MooringsError


def check_private_key(path: Path) -> None:
    """Check that a private key is safe: this user's with mode 0600, or root's and readable by one group (0640).

    Raises:
        MooringsError: ``credentials.unsafe``; ``config.invalid`` if there is none.
    """
    try:
        status = path.stat()
    except OSError as error:
        hint = "see 'moor config view --show-origin'"
        raise MooringsError("config.invalid", f"{path} cannot be read: {format_cause(error)}", hint=hint) from error
    problem = key_problem(status.st_mode, status.st_uid, os.geteuid())
    if problem:
        raise MooringsError("credentials.unsafe", f"the private key {path} {problem}", hint=f"chmod 600 {path}")


def key_problem(mode: int, owner: int, me: int) -> str:
    """The fault of a private key's owner and mode, as the end of a sentence; empty: none.

    Args:
        mode: from ``stat``.
        owner: its user id.
        me: the user id of the user of the key.
    """
    if owner not in (me, 0):
        return f"belongs to user {owner}, not to you"
    allowed = 0o640 if owner == 0 else 0o600
    if stat.S_IMODE(mode) & ~allowed & 0o177:
        return f"has mode {stat.S_IMODE(mode):04o}: others may use it"
    return ""
