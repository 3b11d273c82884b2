import dataclasses
import json
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.api.bodies import parse_body
from moorings.api.render import topology_shape
from moorings.core.model.errors import MooringsError
from moorings.core.model.topology import AnySubset, Block, Catalogue, PowerOfTwo
from moorings.wire import forecasts, shapes
from moorings.wire.codec import encode
from moorings.wire.operations import OPERATIONS
from moorings.wire.shapes import ClaimRequest, RunRequest

requests = st.builds(
    ClaimRequest,
    size=st.integers(-(1 << 53) + 1, (1 << 53) - 1),
    name=st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=200),
    resources=st.dictionaries(st.sampled_from(["memory", "cpus"]), st.integers(0, 1 << 40)),
    priority=st.integers(-1000, 1000),
    time_limit_s=st.none() | st.floats(0, 1e9),
    preemptible=st.booleans(),
    queue=st.sampled_from(["wait", "never"]),
)


@given(requests)
def test_what_a_client_encodes_is_what_the_route_gets(request: ClaimRequest) -> None:
    body = json.dumps(encode(request)).encode()
    parsed = parse_body(ClaimRequest, body)
    assert isinstance(parsed, ClaimRequest)
    assert encode(parsed) == encode(request)


anything = st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(json.dumps).map(str.encode)


@given(st.binary(max_size=200) | anything)
def test_bytes_that_are_no_run_have_a_code(body: bytes) -> None:
    with pytest.raises(MooringsError) as refused:
        parse_body(RunRequest, body)
    assert refused.value.code in ("body.not_json", "body.not_utf8", "body.invalid")


def test_every_request_shape_has_a_route() -> None:
    declared = {
        shape
        for name, shape in {**vars(shapes), **vars(forecasts)}.items()
        if name.endswith("Request") and dataclasses.is_dataclass(shape)
    }
    assert declared == {operation.body for operation in OPERATIONS if operation.body}


def test_every_answer_shape_has_a_route() -> None:
    def parts(shape: object) -> set[object]:
        found: set[object] = {shape}
        for hint in typing.get_type_hints(shape).values():
            for each in (hint, *typing.get_args(hint)):
                if dataclasses.is_dataclass(each):
                    found |= parts(each)
        return found

    used = {part for operation in OPERATIONS if operation.response.shape for part in parts(operation.response.shape)}
    declared = {
        shape
        for name, shape in {**vars(shapes), **vars(forecasts)}.items()
        if name.endswith("Body") and dataclasses.is_dataclass(shape)
    }
    assert declared - used == {shapes.ProblemBody}


@pytest.mark.parametrize(
    ("topology", "told"),
    [
        (PowerOfTwo(2, 64, 128), ("power-of-two", 2, 64, 128, ())),
        (AnySubset(8, 4), ("any-subset", 1, 8, 4, ())),
        (Catalogue(4, (Block.parse("0-1"), Block.parse("0,3"))), ("catalogue", 1, 4, 2, ("0-1", "0,3"))),
    ],
)
def test_topologies_are_told_in_the_words_of_the_pools_file(
    topology: PowerOfTwo | AnySubset | Catalogue, told: tuple[object, ...]
) -> None:
    shape = topology_shape(topology)
    assert (shape.type, shape.domains, shape.domain_size, shape.max_block, shape.blocks) == told
