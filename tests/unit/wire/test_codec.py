"""JSON and back: every shape survives the way, newer peers are understood, wrong types are named."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp
from moorings.wire import forecasts, shapes
from moorings.wire.codec import decode, encode, format_time, parse_time, to_camel_case
from moorings.wire.shapes import AcceleratorsShape, ClaimRequest, EventBody, JobShape, RunBody, RunRequest
from tests.cases import cases
from tests.sampling import examples

SHAPES: list[type] = [
    value for value in {**vars(shapes), **vars(forecasts)}.values() if isinstance(value, type) and is_dataclass(value)
]
YEAR_10000 = 253_402_300_800_000_000

shape_by_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
each_shape = cases("shape", SHAPES)

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of the type of a field; every type the shapes use, and no other."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return st.one_of(*(values_of(option) for option in arguments))
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(st.text(max_size=5), values_of(arguments[1]), max_size=3)
    if is_dataclass(kind):
        return shapes_of(kind)  # type: ignore[arg-type]
    return {
        str: st.text(max_size=8),
        int: st.integers(),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        type(None): st.none(),
        object: anything,
    }[kind]


def shapes_of(cls: type) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls)
    return st.builds(cls, **{item.name: values_of(hints[item.name]) for item in fields(cls)})


def over_the_wire(value: object) -> Any:
    return json.loads(json.dumps(encode(value), allow_nan=False))


def required(cls: type) -> list[str]:
    return [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]


def complaint(cls: type, data: object, where: str = "body") -> str:
    with pytest.raises(MooringsError) as caught:
        decode(cls, data, where=where)
    assert caught.value.code == "body.invalid"
    return str(caught.value)


def least(cls: type) -> dict[str, Any]:
    """The least an object of that shape holds."""
    hints = get_type_hints(cls)
    empty: dict[Any, Any] = {str: "", int: 0, float: 0.0, bool: False}
    made: dict[str, Any] = {}
    for name in required(cls):
        kind = hints[name]
        if kind in empty:
            made[to_camel_case(name)] = empty[kind]
        elif is_dataclass(kind):
            made[to_camel_case(name)] = least(kind)  # type: ignore[arg-type]
        else:
            made[to_camel_case(name)] = [] if get_origin(kind) is tuple else {}
    return made


# -- there and back ------------------------------------------------------------------------------------------------


@shape_by_shape
def test_a_shape_comes_back_as_it_was_sent(shape):
    @settings(max_examples=examples(50))
    @given(shapes_of(shape))
    def comes_back(value):
        assert decode(shape, over_the_wire(value)) == value

    comes_back()


@shape_by_shape
def test_unknown_fields_of_a_newer_peer_are_passed_over(shape):
    @settings(max_examples=examples(50))
    @given(shapes_of(shape), anything)
    def is_understood(value, news):
        sent = over_the_wire(value) | {"fieldOfTheFuture": news, "another": {"a": [news]}}
        assert decode(shape, sent) == value

    is_understood()


@each_shape
def test_no_object_is_no_shape(shape):
    wrong: tuple[object, ...] = ("text", 1, True, None, [], [{}])
    for data in wrong:
        assert complaint(shape, data).startswith("body must be an object, not ")


@each_shape
def test_each_missing_field_is_named(shape):
    whole = least(shape)
    assert decode(shape, whole)
    for name in required(shape):
        rest = {key: value for key, value in whole.items() if key != to_camel_case(name)}
        assert complaint(shape, rest) == f"body.{to_camel_case(name)} is missing"


@each_shape
def test_each_field_of_a_wrong_type_is_named(shape):
    for name, kind in get_type_hints(shape).items():
        wrong = 1 if str in (kind, *get_args(kind)) else "text"
        told = complaint(shape, least(shape) | {to_camel_case(name): wrong})
        assert told.startswith(f"body.{to_camel_case(name)} must be ")
        assert told.endswith(f"not {type(wrong).__name__}")


# -- the details ---------------------------------------------------------------------------------------------------


def test_absent_optional_fields_are_left_out_and_others_are_not():
    assert encode(AcceleratorsShape()) == {"kind": "ipu", "size": 1}
    assert encode(AcceleratorsShape(replicas=0, pool="")) == {"kind": "ipu", "size": 1, "replicas": 0, "pool": ""}


def test_none_is_as_good_as_absent():
    assert decode(ClaimRequest, {"size": 1, "pool": None, "timeLimitS": None}) == ClaimRequest(size=1)


def test_what_has_a_default_may_be_left_out():
    assert decode(ClaimRequest, {"size": 4}) == ClaimRequest(size=4)


def test_a_none_among_the_data_is_data():
    assert encode(EventBody(seq=1, name="x", at="", data={"a": None}))["data"] == {"a": None}
    assert decode(RunBody, least(RunBody) | {"taskCodes": [0, None]}).task_codes == (0, None)


def test_a_whole_number_is_a_number_with_a_point_but_not_the_other_way_round():
    asked = decode(ClaimRequest, {"size": 1, "leaseS": 30})
    assert (asked.lease_s, type(asked.lease_s)) == (30.0, float)
    assert complaint(ClaimRequest, {"size": 1.0}) == "body.size must be int, not float"


def test_true_is_no_number_and_one_is_not_true():
    assert complaint(ClaimRequest, {"size": True}) == "body.size must be int, not bool"
    assert complaint(ClaimRequest, {"size": 1, "leaseS": True}) == "body.leaseS must be float, not bool"
    assert complaint(ClaimRequest, {"size": 1, "preemptible": 1}) == "body.preemptible must be bool, not int"


def test_a_number_too_large_for_its_field_is_named():
    assert complaint(ClaimRequest, {"size": 1, "leaseS": 10**400}) == "body.leaseS is too large"


def test_a_complaint_leads_to_the_innermost_place():
    def run(**job: object) -> dict[str, object]:
        return {"job": {"name": "x", "command": ["x"], "workdir": "/"} | job}

    assert complaint(RunRequest, run(command=["a", 1])) == "body.job.command[1] must be str, not int"
    assert complaint(RunRequest, run(environment={"A": 1})) == "body.job.environment.A must be str, not int"
    assert complaint(RunRequest, run(accelerators={"size": "4"})) == "body.job.accelerators.size must be int, not str"
    assert complaint(RunRequest, {"job": {"name": "x"}}, where="items[3]") == "items[3].job.command is missing"


def test_a_text_is_no_list_of_letters():
    assert complaint(JobShape, {"name": "x", "command": "ls", "workdir": "/"}) == "body.command must be a list, not str"


def test_what_has_no_wire_form_is_a_fault_of_ours():
    with pytest.raises(TypeError, match="set has no wire form"):
        encode({"a": {1, 2}})
    with pytest.raises(TypeError, match="type has no wire form"):
        encode(ClaimRequest)


@pytest.mark.parametrize(
    ("name", "json_name"),
    [("size", "size"), ("time_limit_s", "timeLimitS"), ("gcds", "gcds"), ("class_", "class"), ("hint", "hint")],
)
def test_names_are_camel_case(name, json_name):
    assert to_camel_case(name) == json_name


def test_a_trailing_underscore_is_not_seen_on_the_wire():
    @dataclass(frozen=True)
    class Odd:
        from_: str

    assert encode(Odd("x")) == {"from": "x"}


# -- times ---------------------------------------------------------------------------------------------------------


@given(st.integers(-62_135_596_800_000_000, YEAR_10000 - 1))
def test_a_time_comes_back_to_the_microsecond(at):
    assert parse_time(format_time(Timestamp(at))) == at


@given(st.integers(0, YEAR_10000 - 1), st.integers(0, YEAR_10000 - 1))
def test_times_sort_as_text_as_they_sort_as_times(one, other):
    assert (format_time(Timestamp(one)) < format_time(Timestamp(other))) is (one < other)


def test_a_time_is_utc_with_all_its_digits():
    assert format_time(Timestamp(1_700_000_000_000_000)) == "2023-11-14T22:13:20.000000Z"


@pytest.mark.parametrize(
    "text",
    ["2023-11-14T22:13:20Z", "2023-11-14T23:13:20+01:00", "2023-11-14T22:13:20.000Z", "2023-11-14 17:13:20-05:00"],
)
def test_the_same_moment_in_other_spellings(text):
    assert parse_time(text) == 1_700_000_000_000_000


@cases(
    "text",
    [
        *["", "now", "1700000000", "2023-11-14", "2023-11-14T22:13:20", "2023-02-30T00:00:00Z", "2023-11-14T25:00:00Z"],
        *["10000-01-01T00:00:00Z", "2023-11-14T22:13:20+99:00", "9" * 5000, "\0"],
    ],
    ids=lambda text: repr(text[:20]),
)
def test_what_is_no_moment_is_refused_with_an_example(text):
    with pytest.raises(MooringsError) as caught:
        parse_time(text)
    assert caught.value.code == "body.invalid"
    assert "2026-01-31T12:00:00Z" in caught.value.hint
    assert len(str(caught.value)) < 100


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_the_edges_of_the_calendar_do_not_break_it(text):
    assert isinstance(parse_time(text), int)
