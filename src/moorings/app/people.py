"""The people of a machine as callers: who is connected to the controller's Unix socket."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from moorings.core.model.access import Caller, Role, check_subject, default_owner_prefix
from moorings.core.model.errors import MooringsError
from moorings.privileged.accounts import PersonAccount, find_account
from moorings.privileged.refusals import Refused

FRESH_S = 30.0  # after which an account is looked up again
KNOWN_MAX = 4096
ROOT = Caller("root", Role.ADMIN, "", "uid-0", uid=0)


class MachinePeople:
    """Finds callers by their uid. Root is an admin, people are users, and all others are refused.

    A directory service may be slow: it is asked in a thread, and its answer is kept for a while. Whether an account is
    locked is for root to read: the root daemon looks when a job is handed in, and when it starts.

    Args:
        account_of: finds a person's account.
    """

    def __init__(self, account_of: Callable[[int], PersonAccount] | None = None) -> None:
        self._account_of = account_of or _find_readable
        self._known: dict[int, tuple[Caller, float]] = {}

    async def find_caller(self, uid: int) -> Caller:
        """The caller.

        Raises:
            MooringsError: ``auth.denied``.
        """
        if uid == 0:
            return ROOT
        caller, until_s = self._known.get(uid, (None, 0.0))
        if caller is None or time.monotonic() > until_s:
            caller = await asyncio.to_thread(self._look_up, uid)
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[uid] = (caller, time.monotonic() + FRESH_S)
        return caller

    def _look_up(self, uid: int) -> Caller:
        try:
            account = self._account_of(uid)
            check_subject(account.name)
        except Refused as refused:
            raise MooringsError("auth.denied", refused.detail, hint=refused.hint) from refused
        except MooringsError as error:
            raise MooringsError("auth.denied", error.detail, hint="ask the machine's admin") from error
        return Caller(account.name, Role.USER, default_owner_prefix(Role.USER, account.name), f"uid-{uid}", uid=uid)


def _find_readable(uid: int) -> PersonAccount:
    return find_account(uid, shadow=Path(os.devnull))
