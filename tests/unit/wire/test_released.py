"""Messages of earlier releases: each is read as it was meant, and written again as the same JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from moorings.wire.codec import decode, encode
from moorings.wire.errors import ERRORS, error_kind
from moorings.wire.operations import OPERATIONS, Operation
from moorings.wire.shapes import ProblemBody
from tests.cases import cases

RELEASED = Path(__file__).parents[2] / "released"
NAMES = sorted(path.stem.removeprefix("wire-") for path in RELEASED.glob("wire-*.json"))
ENVELOPE = {"apiVersion", "kind"}
BY_ADDRESS = {f"{one.method} {one.path}": one for one in OPERATIONS}


@cache
def told(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RELEASED / f"wire-{name}.json").read_text())
    return found


def shape_of(operation: Operation[Any]) -> type:
    assert operation.response.shape is not None
    return operation.response.shape


def bodies(exchange: dict[str, Any]) -> Iterator[tuple[type, dict[str, Any]]]:
    """Each body of an exchange that has a shape, and that shape."""
    operation, answer = BY_ADDRESS.get(exchange["operation"]), exchange["answer"]
    if exchange["type"].startswith("application/problem+json"):
        yield ProblemBody, answer
        return
    assert operation is not None, exchange["operation"]
    if exchange["request"] is not None and operation.body is not None:
        yield operation.body, exchange["request"]
    if exchange["type"].startswith("text/event-stream"):
        lines = [line.removeprefix("data: ") for line in answer.splitlines() if line.startswith("data: ")]
        assert lines
        yield from ((shape_of(operation), json.loads(line)) for line in lines)
    elif isinstance(answer, dict) and operation.response.shape:
        found = answer["items"] if answer.get("kind", "").endswith("List") else [answer]
        yield from ((shape_of(operation), item) for item in found)


def test_a_release_was_recorded() -> None:
    assert NAMES


@cases("name", NAMES, ids=str)
def test_every_operation_that_a_release_had_is_served(name: str) -> None:
    asked = {one["operation"] for one in told(name)["exchanges"] if one["status"] < 300}
    assert asked == set(told(name)["whole"]) - {"errors"}, "all of them were asked"
    assert asked <= set(BY_ADDRESS)


@cases("name", NAMES, ids=str)
def test_bodies_of_a_release_are_read_and_written_as_they_were(name: str) -> None:
    checked = 0
    for exchange in told(name)["exchanges"]:
        for shape, body in bodies(exchange):
            again = encode(decode(shape, body))
            known = {key: value for key, value in body.items() if key not in ENVELOPE or key in again}
            if body is exchange["request"]:  # what was left out has its default by now
                again = within(again, known)
            assert again == known, (exchange["operation"], shape)
            checked += 1
    assert checked > 100


def within(whole: Any, part: Any) -> Any:
    """Of a JSON value what another one has, too."""
    if isinstance(whole, dict) and isinstance(part, dict):
        return {key: within(value, part[key]) for key, value in whole.items() if key in part}
    if isinstance(whole, list) and isinstance(part, list) and len(whole) == len(part):
        return [within(one, other) for one, other in zip(whole, part, strict=True)]
    return whole


@cases("name", NAMES, ids=str)
def test_no_field_of_a_release_is_lost(name: str) -> None:
    """Every field that a message could have, and one that nobody knows: it is passed over."""
    for address, messages in told(name)["whole"].items():
        for part, body in messages.items():
            if address == "errors":
                shape: type | None = ProblemBody
            else:
                operation = BY_ADDRESS[address]
                shape = operation.body if part == "request" else shape_of(operation)
            assert shape is not None, address
            again = within(encode(decode(shape, {**body, "laterField": [1]})), body)
            assert again == body, (address, part)


@cases("name", NAMES, ids=str)
def test_errors_of_a_release_have_their_codes_and_statuses(name: str) -> None:
    refused = [one for one in told(name)["exchanges"] if one["type"].startswith("application/problem+json")]
    assert len({one["answer"]["code"] for one in refused}) > 5
    codes = {code: [ERRORS[code].status, int(ERRORS[code].exit)] for code in told(name)["codes"]}
    assert codes == told(name)["codes"]
    for one in refused:
        assert error_kind(one["answer"]["code"]).status == one["status"] == one["answer"]["status"]
