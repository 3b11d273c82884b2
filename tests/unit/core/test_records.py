"""Values as plain data and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.serialization import from_plain, to_plain, to_plain_without_defaults
from moorings.core.model.topology import Block
from tests.cases import cases


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Inner:
    block: Block
    colour: Colour = Colour.RED


@dataclass(frozen=True, slots=True)
class Outer:
    number: int
    share: float = 0.5
    text: str | None = None
    inner: Inner | None = None
    several: tuple[int | None, ...] = ()
    named: Mapping[str, Block] = field(default_factory=dict)


blocks = st.lists(st.integers(0, 63), unique=True).map(Block.of)
outers = st.builds(
    Outer,
    number=st.integers(),
    share=st.floats(allow_nan=False),
    text=st.none() | st.text(),
    inner=st.none() | st.builds(Inner, block=blocks),
    several=st.lists(st.none() | st.integers()).map(tuple),
    named=st.dictionaries(st.text(), blocks),
)


@given(outers)
def test_what_was_written_is_read_back(outer: Outer) -> None:
    assert from_plain(Outer, json.loads(json.dumps(to_plain(outer)))) == outer


def test_fields_that_are_not_known_or_missing_are_another_releases() -> None:
    assert from_plain(Outer, {"number": 1, "invented": True}) == Outer(1)


@cases(
    "data",
    [
        {},
        {"number": "1"},
        {"number": True},
        {"number": 1.5},
        {"number": 1, "text": 5},
        {"number": 1, "several": {}},
        {"number": 1, "inner": {"block": "9-1"}},
        {"number": 1, "inner": {"block": 7}},
        {"number": 1, "inner": {"block": "0", "colour": "green"}},
        {"number": 1, "named": {"x": "y"}},
        [],
        None,
    ],
)
def test_what_is_not_as_expected_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_plain(Outer, data)


def test_a_field_that_a_later_release_adds_changes_nothing_that_was_said() -> None:
    later = make_dataclass("Later", [("number", int), ("share", float, 0.5), ("added", str, "usual")])
    assert to_plain_without_defaults(Outer(3)) == to_plain_without_defaults(later(3)) == {"number": 3}
    assert to_plain_without_defaults(Outer(3, text="x", inner=Inner(Block.parse("0-3")))) == {
        "number": 3,
        "text": "x",
        "inner": {"block": "0-3"},
    }
