"""Whose jobs are started: those of people with an account that works."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from moorings.privileged.accounts import PersonAccount, account_fault, find_account, uid_min
from moorings.privileged.refusals import Refused
from tests.cases import cases

ANN = PersonAccount("ann", 1000, 1000, "/home/ann", "/bin/bash")


@cases(
    ("changed", "password", "fault"),
    [
        ({}, "$y$j9T$hash", ""),
        ({}, "", ""),  # of a directory service
        ({}, "!", ""),  # she logs in with a key
        ({}, "*", ""),
        ({}, "!$y$j9T$hash", "is locked"),
        ({}, "!!", "is locked"),
        ({"uid": 999}, "*", "is a system account (uid 999, people begin with 1000)"),
        ({"gid": 0}, "*", "has the group root"),
        ({"shell": "/usr/sbin/nologin"}, "*", "has no login (/usr/sbin/nologin)"),
        ({"shell": "/bin/false"}, "*", "has no login (/bin/false)"),
    ],
    ids=str,
)
def test_who_may_have_jobs(changed: dict[str, object], password: str, fault: str) -> None:
    assert account_fault(replace(ANN, **changed), password, 1000) == fault  # type: ignore[arg-type]


@pytest.mark.parametrize("uid", [0, 1, 65534, 4294967295, 61_234])
def test_no_jobs_run_as_root_or_the_system_or_nobody_or_no_one(uid: int, tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        find_account(uid, tmp_path / "no-shadow", tmp_path / "no-defs")
    assert refused.value.code == "account.refused"


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("", 1000),
        ("UID_MIN 500\n", 500),
        ("# UID_MIN 5\nSYS_UID_MIN 100\nUID_MIN\t\t2000\n", 2000),
        ("UID_MIN x\n", 1000),
    ],
)
def test_where_people_begin(text: str, least: int) -> None:
    assert uid_min(text) == least


def test_a_locked_password_is_found_in_the_shadow_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ("ann", "x", 1000, 1000, "", "/home/ann", "/bin/bash")
    import pwd

    monkeypatch.setattr(pwd, "getpwuid", lambda _: pwd.struct_passwd(entry))
    shadow = tmp_path / "shadow"
    shadow.write_text("root:*:1::::::\nannx:!x:1::::::\nann:$y$h:1::::::\n")
    assert find_account(1000, shadow, tmp_path / "none").name == "ann"
    shadow.write_text("ann:!$y$h:1::::::\n")
    with pytest.raises(Refused, match="ann is locked"):
        find_account(1000, shadow, tmp_path / "none")
