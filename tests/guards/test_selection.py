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


def test_where_too_many_are_near_a_change_those_drawn_are_not_crowded_out() -> None:
    drawn = select(GUARDS, "a seed", OTHERS)
    everything = {f"src/moorings/{guard.file}" for guard in GUARDS}
    some = select(GUARDS, "a seed", everything, at_most=len(drawn) + 5)
    assert len(some) == len(drawn) + 5
    assert {guard.slug for guard in drawn} < {guard.slug for guard in some}
    assert select(GUARDS, "a seed", everything, at_most=0) == []


def test_what_has_changed_is_read_from_git() -> None:
    assert all(not path.startswith(("/", " ")) for path in load_changed(1))
