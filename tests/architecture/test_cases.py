"""Cases in a loop: each is run, and each that fails is named with its reason."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from tests.cases import cases


def complaint(test: Callable[[], None]) -> str:
    with pytest.raises(AssertionError) as caught:
        test()
    return str(caught.value)


def test_each_case_runs_once():
    seen: list[dict[str, Any]] = []
    cases("word", ["a", "b"])(seen_by(seen))()
    assert seen == [{"word": "a"}, {"word": "b"}]


def seen_by(seen: list[dict[str, Any]]) -> Callable[..., None]:
    def note(word, number=None):
        seen.append({"word": word} | ({} if number is None else {"number": number}))

    return note


def test_all_that_fail_are_named_with_line_and_reason():
    @cases("number", [1, 2, pytest.param(3, id="three")])
    def is_two(number):
        if number == 3:
            raise ValueError("too\nlarge")
        assert number == 2

    told = complaint(is_two)
    line = inspect.getsourcelines(is_two)[1]
    assert told.startswith(f"2 of 3 cases failed:\n  [1] line {line + 4}: assert 1 == 2")
    assert f"[three] line {line + 3}: ValueError: too\n      large" in told
    assert "[2]" not in told


def test_what_was_expected_and_did_not_come_is_a_failure_and_so_is_a_skip():
    @cases("number", [1, 2])
    def raises_or_skips(number):
        if number == 2:
            pytest.skip("not today")
        with pytest.raises(ValueError):
            pass

    told = complaint(raises_or_skips)
    assert told.startswith("2 of 2 cases failed")
    assert "not today" in told


def test_the_time_limit_of_the_test_ends_it():
    seen = []

    @cases("number", [1, 2])
    def hangs(number):
        seen.append(number)
        pytest.fail("Timeout (>120.0s) from pytest-timeout.")

    with pytest.raises(pytest.fail.Exception, match="Timeout"):
        hangs()
    assert seen == [1]


def test_the_first_that_fails_is_shown_whole():
    @cases("number", [1])
    def fails(number):
        raise ValueError(number)

    with pytest.raises(AssertionError) as caught:
        fails()
    assert isinstance(caught.value.__cause__, ValueError)


def test_two_decorators_give_all_pairs():
    seen: list[dict[str, Any]] = []
    cases("word", ["a", "b"])(cases("number", [1, 2])(seen_by(seen)))()
    assert sorted((each["word"], each["number"]) for each in seen) == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


@pytest.mark.parametrize(
    ("ids", "name"), [(None, "a-1"), (["one"], "one"), (lambda value: f"<{value}>", "<a>-<1>"), (lambda _: None, "a-1")]
)
def test_a_case_has_the_name_that_parametrize_would_give_it(ids, name):
    @cases("word, number", [("a", 1)], ids=ids)
    def fails(word, number):
        raise ValueError

    assert f"[{name}]" in complaint(fails)


@pytest.fixture
def state():
    return []


def test_a_fixture_that_cases_could_change_is_refused():
    @cases("number", [1])
    def takes(number, state): ...

    assert list(inspect.signature(takes).parameters) == ["state"]
    with pytest.raises(AssertionError, match=r"made once for all cases of takes: \['state'\]"):
        takes(state=[])


@cases("number", [1, 2], shared=["state"])
def test_a_fixture_that_is_named_is_shared(number, state):
    state.append(number)
    assert len(state) == number


def test_no_cases_are_a_mistake():
    with pytest.raises(AssertionError, match="no case for number"):
        cases("number", [])


def test_cases_have_the_arguments_and_no_marks():
    with pytest.raises(AssertionError, match="each case is"):
        cases(("one", "two"), [(1,)])
    with pytest.raises(AssertionError, match="without marks"):
        cases("one", [pytest.param(1, marks=pytest.mark.slow)])


def test_an_async_test_is_refused():
    async def later(number): ...

    with pytest.raises(AssertionError, match="later is async"):
        cases("number", [1])(later)  # type: ignore[arg-type]  # mypy says so too
