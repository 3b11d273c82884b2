"""Each law's test fails when its guard is removed: seen here, guard by guard, at every ``make test``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.guards.guard import LAWS, Guard
from tests.guards.guards import GUARDS
from tests.guards.mutants import Copy, GuardMovedError
from tests.guards.page import PAGE, page

HARMLESS = Guard(
    law="1",
    what="nothing: a comment in its place",
    file="core/access.py",
    old='"""Who may do what',
    new='"""Who may do what',
    tests=("tests/unit/core/test_access.py::test_a_prefix_may_end_in_a_slash",),
)


@pytest.fixture(scope="session")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("package"))


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: f"{guard.law}-{guard.slug}")
def test_a_guard_is_missed(guard: Guard, copy: Copy) -> None:
    with copy.without(guard):
        outcome = copy.test(*guard.tests)
    survived = [test for test in guard.tests if not outcome.misses(test)]
    assert survived == [], f"without this guard these do not fail as they should:\n{outcome.output}"


def test_a_guard_that_is_not_missed_is_told(copy: Copy) -> None:
    with copy.without(HARMLESS):
        outcome = copy.test(*HARMLESS.tests)
    assert outcome.status == 0, outcome.output
    assert not outcome.misses(HARMLESS.tests[0])


def test_a_package_that_cannot_be_imported_proves_nothing(copy: Copy) -> None:
    with copy.without(replace(HARMLESS, new='import nothing_of_this_name\n"""')):
        outcome = copy.test(*HARMLESS.tests)
    assert outcome.status != 0
    assert not outcome.misses(HARMLESS.tests[0])


def test_a_name_that_is_missing_proves_nothing(copy: Copy) -> None:
    nonsense = replace(HARMLESS, old='prefix = caller.owner_prefix.rstrip("/")', new="prefix = no_such_name")
    with copy.without(nonsense):
        outcome = copy.test(*HARMLESS.tests)
    assert outcome.status == 1, outcome.output
    assert not outcome.misses(HARMLESS.tests[0])


@pytest.mark.parametrize("old", ["these words are nowhere in the source", "caller"])
def test_a_guard_that_moved_is_told(old: str, copy: Copy) -> None:
    with pytest.raises(GuardMovedError, match="the guard moved"), copy.without(replace(HARMLESS, old=old)):
        pytest.fail("it was changed all the same")


def test_every_law_has_guards() -> None:
    assert [law for law in LAWS if not any(guard.law == law for guard in GUARDS)] == []
    assert {guard.law for guard in GUARDS} <= set(LAWS)


def test_every_guard_has_a_name_of_its_own_and_takes_something_away() -> None:
    slugs = [guard.slug for guard in GUARDS]
    assert sorted(slugs) == sorted(set(slugs))
    assert [guard.what for guard in GUARDS if guard.old == guard.new or not guard.tests] == []


def test_the_page_is_what_the_table_says() -> None:
    text = PAGE.read_text("utf-8") if PAGE.exists() else ""
    assert text == page(GUARDS), f"run `python -m tests.guards` and commit {PAGE.relative_to(Path.cwd())}"
