"""Each law's test fails when its guard is removed: seen here, guard by guard; ``selection`` says for which guards."""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.guards.guard import LAWS, Guard
from tests.guards.guards import GUARDS
from tests.guards.page import PAGE, page
from tests.guards.selection import drawn, selected
from tests.mutation import keeper
from tests.mutation.copies import PACKAGE, Copy
from tests.mutation.source import ChangeMovedError, apply, locate
from tests.waiting import patient

HARMLESS = Guard(
    law="1",
    what="nothing: the same in its place",
    file="core/model/access.py",
    at="check_admin",
    cut="caller.role is not Role.ADMIN",
    put="caller.role is not Role.ADMIN",
    tests=("tests/unit/core/test_access.py::test_a_prefix_may_end_in_a_slash",),
)


@pytest.fixture(scope="session")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    with Copy(tmp_path_factory.mktemp("package")) as made:
        yield made


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "guard" in metafunc.fixturenames:
        metafunc.parametrize("guard", selected(), ids=lambda guard: f"{guard.law}-{guard.slug}")


def test_a_guard_is_missed(guard: Guard, copy: Copy) -> None:
    with copy.changed(guard.change):
        outcome = copy.test(*guard.tests)
    assert outcome.status != keeper.TOO_LONG, f"it took too long:\n{outcome.output}"
    survived = [test for test in guard.tests if not outcome.misses(test)]
    assert survived == [], f"without this guard these do not fail as they should:\n{outcome.output}"


@pytest.mark.timeout(600)
def test_with_all_guards_in_place_their_tests_pass(tmp_path: Path) -> None:
    """Else they would seem to miss whatever is taken out."""
    tests = sorted({test for guard in drawn() for test in guard.tests})
    with Copy(tmp_path, {"MOORINGS_TESTS_PATIENCE": "1"}) as copy:  # no wait here fails
        outcome = copy.test(*tests, limit_s=patient(600), cpu_s=patient(600), options=("--timeout=240",))
    assert outcome.status == 0, outcome.output


def test_the_source_has_every_guard() -> None:
    broken = []
    for guard in sorted(GUARDS, key=lambda guard: guard.file):  # a file is parsed once for all its guards
        try:
            change = locate(PACKAGE, guard.change)
            changed = apply((PACKAGE / change.file).read_text("utf-8"), change)
            if change.file.endswith(".py"):
                compile(changed, change.file, "exec")
        except (ChangeMovedError, SyntaxError) as error:
            broken.append(f"{guard.law}, {guard.what}: {error}")
    assert broken == [], "\n".join(broken)


def test_what_stands_in_a_guards_place_names_only_what_there_is(tmp_path: Path) -> None:
    """A test that fails of a name that is gone proves nothing."""
    known = {word for path in PACKAGE.rglob("*.py") for word in re.findall(r"\w+", path.read_text("utf-8"))}
    known |= {*dir(ssl), *dir(ssl.SSLContext)}
    unknown = {guard.what: set(re.findall(r"(?<=\.)[A-Za-z_]\w*", guard.put)) - known for guard in GUARDS}
    assert {what: names for what, names in unknown.items() if names} == {}
    for number, guard in enumerate(GUARDS):
        change = locate(PACKAGE, guard.change)
        if change.file.endswith(".py"):
            (tmp_path / f"g{number}.py").write_text(apply((PACKAGE / change.file).read_text("utf-8"), change), "utf-8")
    undefined = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select=F821", str(tmp_path)]
    done = subprocess.run(undefined, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_guard_that_is_not_missed_is_told(copy: Copy) -> None:
    with copy.changed(HARMLESS.change):
        outcome = copy.test(*HARMLESS.tests)
    assert outcome.status == 0, outcome.output
    assert not outcome.misses(HARMLESS.tests[0])


def test_a_package_that_cannot_be_imported_proves_nothing(copy: Copy) -> None:
    with copy.changed(
        replace(HARMLESS.change, at="", cut="from enum import StrEnum", put="import nothing_of_this_name")
    ):
        outcome = copy.test(*HARMLESS.tests)
    assert outcome.status != 0
    assert not outcome.misses(HARMLESS.tests[0])


def test_a_name_that_is_missing_proves_nothing(copy: Copy) -> None:
    nonsense = replace(HARMLESS, at="check_may_act", cut='caller.owner_prefix.rstrip("/")', put="no_such_name")
    with copy.changed(nonsense.change):
        outcome = copy.test(*HARMLESS.tests)
    assert outcome.status == 1, outcome.output
    assert not outcome.misses(HARMLESS.tests[0])


def test_a_name_that_is_missing_proves_nothing_to_a_loop_of_cases_either(copy: Copy) -> None:
    loop = "tests/unit/core/test_access.py::test_an_access_key_goes_with_its_subjects_certificate"
    nonsense = replace(HARMLESS, at="check_bound", cut="peer.subject != caller.subject", put="no_such_name")
    with copy.changed(nonsense.change):
        outcome = copy.test(loop)
    assert outcome.status == 1, outcome.output
    assert not outcome.misses(loop)


@pytest.mark.parametrize("cut", ["these_words(are, nowhere)", "caller"])
def test_a_guard_that_moved_is_told(cut: str, copy: Copy) -> None:
    moved = replace(HARMLESS, at="check_may_act", cut=cut)
    with pytest.raises(ChangeMovedError, match=r"Correct the\sentry"), copy.changed(moved.change):
        pytest.fail("it was changed all the same")


def test_every_law_has_guards() -> None:
    assert [law for law in LAWS if not any(guard.law == law for guard in GUARDS)] == []
    assert {guard.law for guard in GUARDS} <= set(LAWS)


def test_every_guard_has_a_name_of_its_own_and_takes_something_away() -> None:
    slugs = [guard.slug for guard in GUARDS]
    assert sorted(slugs) == sorted(set(slugs))
    assert [guard.what for guard in GUARDS if guard.cut == guard.put or not guard.tests] == []


def test_the_page_is_what_the_table_says() -> None:
    text = PAGE.read_text("utf-8") if PAGE.exists() else ""
    assert text == page(GUARDS), f"run `python -m tests.guards` and commit {PAGE.relative_to(Path.cwd())}"
