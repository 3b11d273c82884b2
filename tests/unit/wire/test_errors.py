"""The one table of errors: codes that can be relied on, and statuses and exit codes that agree."""

from __future__ import annotations

import re

import pytest

from moorings.wire.errors import ERRORS, ErrorKind, ExitCode, error_kind
from tests.cases import cases

each_code = cases("code", sorted(ERRORS))


@each_code
def test_a_code_is_a_noun_and_a_problem(code):
    assert re.fullmatch(r"[a-z]+\.[a-z]+(_[a-z0-9]+)*", code)


@each_code
def test_a_status_is_one_of_http(code):
    assert 400 <= ERRORS[code].status <= 599


@each_code
def test_a_title_is_a_sentence_for_humans(code):
    assert 10 <= len(ERRORS[code].title) <= 80
    assert not ERRORS[code].title.endswith(".")


def test_titles_tell_codes_apart():
    assert len({kind.title for kind in ERRORS.values()}) == len(ERRORS)


@each_code
def test_an_exit_code_says_the_same_as_the_status(code):
    kind = ERRORS[code]
    assert kind.exit is not ExitCode.OK
    assert (kind.exit is ExitCode.DENIED) is (kind.status in (401, 403))
    assert (kind.exit is ExitCode.NOT_FOUND) is (kind.status == 404)
    assert (kind.exit is ExitCode.UNREACHABLE) is (kind.status == 503)


def test_exit_codes_are_what_scripts_rely_on():
    assert {known.name: known.value for known in ExitCode} == {
        "OK": 0,
        "FAILED": 1,
        "USAGE": 2,
        "NOT_FOUND": 3,
        "DENIED": 4,
        "CONFLICT": 5,
        "NO_ROOM": 6,
        "UNREACHABLE": 7,
        "FINDINGS": 8,
        "TIMEOUT": 124,
    }


def test_no_exit_code_looks_like_a_signal():
    assert max(ExitCode) < 126


@each_code
def test_a_known_code_is_what_the_table_says(code):
    assert error_kind(code) is ERRORS[code]


@pytest.mark.parametrize("code", ["", "claim.of_the_future", "CLAIM.UNKNOWN", "\0"])
def test_a_code_of_a_newer_peer_is_a_plain_failure(code):
    assert error_kind(code) == ErrorKind(500, ExitCode.FAILED, code)
