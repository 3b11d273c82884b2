"""Who is connected to the socket of a shared machine, as a caller."""

from __future__ import annotations

import time

import pytest

from moorings.app.people import FRESH_S, MachinePeople
from moorings.core.model.access import Caller, Role
from moorings.core.model.errors import MooringsError
from moorings.privileged.accounts import PersonAccount
from moorings.privileged.refusals import Refused

ANN = PersonAccount("ann", 61001, 61001, "/home/ann", "/bin/sh")


class Directory:
    """Accounts, and how often they were asked for."""

    def __init__(self, *accounts: PersonAccount) -> None:
        self.accounts = {account.uid: account for account in accounts}
        self.asked = 0

    def __call__(self, uid: int) -> PersonAccount:
        self.asked += 1
        if uid not in self.accounts:
            raise Refused("account.refused", f"there is no account with uid {uid}", "ask the machine's admin")
        return self.accounts[uid]


async def test_root_is_an_admin_and_people_are_users() -> None:
    known = MachinePeople(Directory(ANN))
    assert (await known.find_caller(0)).role is Role.ADMIN
    assert await known.find_caller(61001) == Caller("ann", Role.USER, "user/ann", "uid-61001", uid=61001)


async def test_who_has_no_account_is_refused() -> None:
    with pytest.raises(MooringsError) as refused:
        await MachinePeople(Directory()).find_caller(61002)
    assert (refused.value.code, refused.value.hint) == ("auth.denied", "ask the machine's admin")


async def test_a_name_that_no_key_could_have_is_refused() -> None:
    odd = PersonAccount("LAB\\ann", 61003, 61003, "/", "/bin/sh")
    with pytest.raises(MooringsError) as refused:
        await MachinePeople(Directory(odd)).find_caller(61003)
    assert refused.value.code == "auth.denied"


async def test_an_account_is_looked_up_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = Directory(ANN)
    known = MachinePeople(directory)
    for _ in range(3):
        await known.find_caller(61001)
    assert directory.asked == 1
    now = time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: now + FRESH_S + 1)
    directory.accounts.clear()
    with pytest.raises(MooringsError):
        await known.find_caller(61001)


async def test_those_of_this_machine_are_found_without_its_passwords() -> None:
    for uid in (1, 65534):  # daemon and nobody are on every machine, and no people
        with pytest.raises(MooringsError) as refused:
            await MachinePeople().find_caller(uid)
        assert refused.value.code == "auth.denied"
