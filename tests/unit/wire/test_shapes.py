"""The shapes themselves: what a client written today relies on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import get_args, get_type_hints

import pytest

from moorings.core.model.claims import AUTO_SIGNAL, CheckpointContract, ClaimSpec, QueueMode
from moorings.wire import forecasts, shapes
from moorings.wire.codec import to_camel_case
from moorings.workloads.jobs import Accelerators, JobSpec, Resources
from tests.cases import cases

SHAPES: list[type] = [
    value for value in {**vars(shapes), **vars(forecasts)}.values() if isinstance(value, type) and is_dataclass(value)
]

each_shape = cases("shape", SHAPES, ids=lambda shape: shape.__name__)


def names(cls: type) -> set[str]:
    return {item.name for item in fields(cls)}


def defaults(cls: type) -> dict[str, object]:
    """The defaults of the plain fields; those that are shapes themselves have tests of their own."""
    found: dict[str, object] = {}
    for item in fields(cls):
        made: Callable[[], object] | object = item.default_factory
        value = item.default if item.default is not MISSING else made() if callable(made) else MISSING
        if value is not MISSING and not is_dataclass(value):
            found[item.name] = value
    return found


def test_there_are_shapes():
    assert len(SHAPES) > 20


@each_shape
def test_a_name_says_which_way_a_shape_goes(shape):
    assert shape.__name__.endswith(("Request", "Body", "Shape"))


@each_shape
def test_no_two_fields_have_one_name_on_the_wire(shape):
    assert len({to_camel_case(name) for name in names(shape)}) == len(names(shape))


@each_shape
def test_what_may_be_absent_is_none_if_it_is(shape):
    # The codec leaves None out, so a field that may be None must become None again.
    hints = get_type_hints(shape)
    optional = [item for item in fields(shape) if type(None) in get_args(hints[item.name])]
    assert [item.name for item in optional if item.default is not None] == []


@each_shape
def test_a_shape_is_a_value(shape):
    assert shape.__dataclass_params__.frozen


@pytest.mark.parametrize(
    ("shape", "ours"),
    [
        (shapes.CheckpointShape, CheckpointContract),
        (shapes.AcceleratorsShape, Accelerators),
        (shapes.ResourcesShape, Resources),
        (shapes.JobShape, JobSpec),
    ],
)
def test_a_shape_of_a_record_has_its_fields_and_defaults(shape, ours):
    assert names(shape) == names(ours)
    kept = defaults(ours)
    unset = {name for name, value in kept.items() if value in (0, "", {}, (), AUTO_SIGNAL)}
    sent = {name: kept[name] if value is None and name in unset else value for name, value in defaults(shape).items()}
    assert sent == kept  # what says nothing is left out: an earlier release does not know the field


def test_a_claim_request_asks_what_a_specification_holds():
    # On the wire `kind` would be taken for the kind of object; only runs need the machine beside their devices.
    ours = names(ClaimSpec) - {"kind", "machine", "person"} | {"accelerator"}
    assert names(shapes.ClaimRequest) == ours | {"name", "owner", "waiting_since", "person"}
    shared = {name: value for name, value in defaults(ClaimSpec).items() if name in ours}
    assert {name: value for name, value in defaults(shapes.ClaimRequest).items() if name in shared} == shared
    assert shared["queue"] in set(QueueMode)
