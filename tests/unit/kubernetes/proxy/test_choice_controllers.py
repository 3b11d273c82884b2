"""Controllers under two names, controllers that left the list, and strangers at a controller's address."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moorings.kubernetes.proxy.plan import (
    RETIRED_S,
    ObservedController,
    check_installation,
    find_aliases,
    is_complete,
    is_retired,
)

ONE = ObservedController("pod1:8090", installation="i-1")
TWO = ObservedController("pod2:8090", installation="i-2")
SAME = replace(ONE, name="alias:8090")


def test_the_first_entry_of_an_installation_is_used() -> None:
    assert find_aliases([ONE, TWO, SAME]) == {ONE.name: "", TWO.name: "", SAME.name: ONE.name}
    assert find_aliases([SAME, TWO, ONE]) == {SAME.name: "", TWO.name: "", ONE.name: SAME.name}


def test_a_listed_entry_is_used_before_a_removed_one() -> None:
    assert find_aliases([replace(ONE, is_configured=False), SAME]) == {ONE.name: SAME.name, SAME.name: ""}


def test_unknown_installations_are_never_aliases() -> None:
    unknown = [replace(ONE, installation=""), replace(SAME, installation="")]
    assert set(find_aliases(unknown).values()) == {""}


@pytest.mark.parametrize(
    ("one", "complete"),
    [
        (ONE, True),
        (replace(ONE, was_listed=False), False),
        (replace(ONE, is_reachable=False), False),
        (replace(ONE, is_reachable=False, is_quiet=True), False),
        (replace(ONE, is_reachable=False, is_quiet=True, is_configured=False), True),
        (replace(ONE, is_reachable=False, is_configured=False), False),
        (replace(ONE, is_reachable=False, is_quiet=True, is_configured=False, was_listed=False), False),
    ],
)
def test_all_claims_are_known_if_no_controller_can_hide_one(one: ObservedController, complete: bool) -> None:
    assert is_complete([TWO, one]) is complete


LEFT = replace(ONE, is_configured=False)
SILENT = replace(LEFT, is_reachable=False)


@pytest.mark.parametrize(
    ("one", "away_s", "has_claims", "disowned", "retired"),
    [
        (LEFT, 0.0, False, False, True),
        (LEFT, 0.0, True, False, False),
        (LEFT, 0.0, True, True, False),  # it still responds
        (SILENT, 1e9, True, False, False),  # it may return
        (SILENT, 0.0, True, True, True),
        (SILENT, 0.0, False, False, True),
        (replace(SILENT, was_listed=False), RETIRED_S, False, False, False),
        (replace(SILENT, was_listed=False), RETIRED_S + 1, False, False, True),
        (replace(SILENT, was_listed=False), RETIRED_S + 1, True, False, False),
    ],
)
def test_a_removed_controller_retires_without_claims_or_when_disowned(
    one: ObservedController, away_s: float, has_claims: bool, disowned: bool, retired: bool
) -> None:
    assert is_retired(one, away_s, has_claims=has_claims, disowned=disowned) is retired


def test_another_installation_is_refused_where_claims_are() -> None:
    assert check_installation(ONE, "i-1", has_claims=True) == ""
    assert check_installation(ONE, "i-2", has_claims=False) == ""
    assert check_installation(replace(ONE, installation=""), "i-2", has_claims=True) == ""
    why = check_installation(ONE, "i-2", has_claims=True)
    assert f"put !{ONE.name} into the list" in why
