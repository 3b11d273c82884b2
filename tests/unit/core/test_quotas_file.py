"""The quotas file: who may hold how much, and which line is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.errors import MooringsError
from moorings.core.model.projects import USER_LIMITS_MAX, UserLimit
from moorings.core.model.quotas import DeviceQuotas, parse_quotas
from tests.cases import cases

GROUPS = {
    "students": ("ann", "bob"),
    "staff": ("bob", "eve"),
    "domain users": ("eve",),
    "all": tuple(f"u{number}" for number in range(USER_LIMITS_MAX + 1)),
}
ACCOUNTS = {"ann": "ann", "bob": "bob", "eve": "eve", "Eve": "eve", "a.b": "a.b", "O'Neil": "O'Neil"}


def parse(text: str) -> DeviceQuotas:
    return parse_quotas(text, source="q.toml", find_account=ACCOUNTS.get, list_members=GROUPS.get)


def limits(text: str) -> dict[str, int]:
    return {limit.subject: limit.devices_max for limit in parse(f"[devices]\n{text}").user_limits}


@cases(
    ("text", "found"),
    [
        ("", {}),
        ("ann = 8", {"ann": 8}),
        ("Eve = 8", {"eve": 8}),
        ('"a.b" = 1', {"a.b": 1}),
        ('"@students" = 2', {"ann": 2, "bob": 2}),
        ("'@domain users' = 2", {"eve": 2}),
        ('ann = 1\n"@students" = 2', {"ann": 1, "bob": 2}),
        ('"@students" = 2\nann = 0', {"ann": 0, "bob": 2}),
        ('"@students" = 2\n"@staff" = 5', {"ann": 2, "bob": 5, "eve": 5}),
        ('"@staff" = 5\n"@students" = 2', {"ann": 2, "bob": 5, "eve": 5}),
    ],
)
def test_a_persons_line_counts_before_groups_and_the_highest_group_counts(text: str, found: dict[str, int]) -> None:
    assert limits(text) == found


def test_everyone_is_the_limit_of_all_others() -> None:
    assert parse("[devices]\neveryone = 0\nann = 3 # more\n") == DeviceQuotas(0, (UserLimit("ann", 3),))
    assert parse("") == parse("[devices]\n") == DeviceQuotas(None, ())


@cases(
    ("text", "detail", "hint"),
    [
        ("devices = 4", "q.toml:1: devices must be a table, not a number", ""),
        ("[device]\nann = 1", "q.toml:1: 'device' is not known here", "known: devices"),
        ("[devices]\n\nann = -1", "q.toml:3: ann = -1 is not between 0 and ", ""),
        ("[devices]\nann = 1099511627776", "q.toml:2: ann = 1099511627776 is not between", ""),
        ("[devices]\nann = 1.5", "q.toml:2: ann must be a whole number", ""),
        ("[devices]\nann = true", "q.toml:2: ann must be a whole number", ""),
        ('[devices]\neveryone = "4"', "q.toml:2: everyone must be a whole number", ""),
        ("[devices]\na.b = 1", "q.toml:2: a must be a number, not a table", "in quotes"),
        ("[devices]\neveryone = 4\nan = 1", "q.toml:3: there is no account 'an' on this machine", "remove the line"),
        ('[devices]\neveryone = 4\n"@studs" = 1', "q.toml:3: there is no group 'studs' on this machine", "correct it"),
        ("[devices]\n'@no such' = 1", "q.toml:2: there is no group 'no such'", "correct it"),
        ('[devices]\n"@all" = 1', "q.toml:1: 4097 people have a limit of their own; at most 4096", "set everyone"),
        ("[devices]\n@students = 1", "q.toml:2: Invalid", "not valid TOML"),
        ("[devices]\nann = 1\nann = 2\n", "q.toml:3: ", "not valid TOML"),
        ("[devices]\n" + "x" * 3000 + " = 1", "q.toml:2: there is no account 'xxx", "correct it"),
    ],
)
def test_a_file_that_cannot_be_used_names_its_line(text: str, detail: str, hint: str) -> None:
    with pytest.raises(MooringsError) as caught:
        parse(text)
    assert caught.value.code == "quotas.invalid"
    assert caught.value.detail.startswith(detail)
    assert len(caught.value.detail) < 700
    assert hint in caught.value.hint


lines = st.dictionaries(
    st.sampled_from(["everyone", *ACCOUNTS, *(f"@{name}" for name in GROUPS if name != "all")]), st.integers(0, 9)
)


@given(lines)
def test_each_person_has_the_limit_that_the_rules_give(said: dict[str, int]) -> None:
    found = parse("[devices]\n" + "".join(f'"{key}" = {most}\n' for key, most in said.items()))
    known = {limit.subject: limit.devices_max for limit in found.user_limits}
    assert found.user_devices_max == said.get("everyone")
    for person in set(ACCOUNTS.values()):
        own = [most for key, most in said.items() if ACCOUNTS.get(key) == person]
        groups = [most for key, most in said.items() if person in GROUPS.get(key[1:], ()) and key[0] == "@"]
        assert known.get(person) == (own[-1] if own else max(groups, default=None))
