from __future__ import annotations

from dataclasses import replace

from tests.guards.guards import GUARDS
from tests.guards.selection import is_near, load_changed, select

OTHERS = {"src/moorings/nowhere.py", "README.md"}


def test_a_seed_draws_about_its_share_and_always_the_same() -> None:
    drawn = select(GUARDS, "a seed", OTHERS)
    assert 0.04 < len(drawn) / len(GUARDS) < 0.18
    assert select(GUARDS, "a seed", OTHERS) == drawn
    assert select(GUARDS, "another seed", OTHERS) != drawn


def test_whether_one_is_drawn_depends_on_no_other() -> None:
    drawn = select(GUARDS, "a seed", OTHERS)
    assert (
        select([replace(GUARDS[0], what="a new one"), *reversed(GUARDS)], "a seed", OTHERS)[-len(drawn) :]
        == drawn[::-1]
    )


def test_all_near_a_changed_source_or_test_are_taken() -> None:
    guard = GUARDS[0]
    for file in (f"src/moorings/{guard.file}", guard.tests[0].partition("::")[0]):
        near = [one for one in GUARDS if is_near(one, {file})]
        assert guard in near
        assert select(GUARDS, "a seed", {file}, share=0) == near


def test_those_near_a_change_come_first_where_there_are_too_many() -> None:
    changed = {f"src/moorings/{GUARDS[0].file}"}
    near = [one for one in GUARDS if is_near(one, changed)]
    assert select(GUARDS, "a seed", changed, share=1, at_most=len(near)) == near
    assert len(select(GUARDS, "a seed", changed, share=1, at_most=len(near) + 5)) == len(near) + 5
    assert select(GUARDS, "a seed", changed, at_most=0) == []


def test_what_has_changed_is_read_from_git() -> None:
    assert all(not path.startswith(("/", " ")) for path in load_changed(1))
