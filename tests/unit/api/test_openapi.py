import re
from collections.abc import Iterator
from pathlib import Path

from moorings.api import openapi
from moorings.api.routes import ROUTES
from moorings.wire.operations import OPERATIONS

COMMITTED = Path(__file__).resolve().parents[3] / "docs" / "reference" / "openapi.json"


def test_the_committed_document_is_what_the_source_says() -> None:
    assert COMMITTED.read_text() == openapi.document_text(), "write it anew: make docs"


def test_every_operation_is_in_the_document_under_its_own_name() -> None:
    paths = openapi.document()["paths"]
    found = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert found == {(operation.method, operation.path) for operation in OPERATIONS}
    names = [operation["operationId"] for methods in paths.values() for operation in methods.values()]
    assert len(set(names)) == len(names)


def test_every_operation_is_served_once_by_the_function_of_its_name() -> None:
    assert sorted(route.serve.__name__ for route in ROUTES) == sorted(operation.name for operation in OPERATIONS)
    assert all(route.operation.name == route.serve.__name__ for route in ROUTES)


def test_every_operation_says_what_it_does_and_how_it_fails() -> None:
    for methods in openapi.document()["paths"].values():
        for operation in methods.values():
            assert operation["summary"]
            assert "application/problem+json" in operation["responses"]["default"]["content"]
            assert "422" not in operation["responses"], "FastAPI's own validation takes no part"


def refs(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        for name, value in node.items():
            if name == "$ref":
                yield value
            else:
                yield from refs(value)
    elif isinstance(node, list):
        for value in node:
            yield from refs(value)


def test_every_reference_leads_somewhere_and_every_shape_is_used() -> None:
    document = openapi.document()
    used = {ref.removeprefix("#/components/schemas/") for ref in refs(document)}
    assert used == set(document["components"]["schemas"])


def test_values_in_addresses_are_described() -> None:
    for path, methods in openapi.document()["paths"].items():
        for operation in methods.values():
            told = [item["name"] for item in operation["parameters"] if item["in"] == "path"]
            assert told == re.findall(r"\{(\w+)\}", path)


def test_limits_of_bodies_are_told_and_answers_may_grow() -> None:
    schemas = openapi.document()["components"]["schemas"]
    assert schemas["ClaimRequest"]["additionalProperties"] is False
    assert schemas["ClaimRequest"]["properties"]["project"]["maxLength"] == 200
    assert schemas["ClaimRequest"]["properties"]["checkpoint"]["default"]["warnS"] == 120.0
    assert "additionalProperties" not in schemas["ClaimBody"]
    assert schemas["ClaimBody"]["properties"]["position"] == {"type": "integer"}
