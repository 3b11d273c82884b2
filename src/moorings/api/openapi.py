"""The OpenAPI document: made from the routes' own table, and committed, so a change is seen in review.

FastAPI assembles the paths (and only that: it carries no request); the shapes come from ``bodies``, which checks them
too. ``docs/reference/openapi.json`` is ``document_text()``; a test compares them.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from fastapi import FastAPI
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema
from starlette.requests import Request
from starlette.responses import Response

import moorings
from moorings.api.bodies import type_adapter
from moorings.api.routes import OPERATIONS
from moorings.wire.codec import encode
from moorings.wire.shapes import ProblemBody

_ABOUT = """\
The controller's API. Every error is `application/problem+json` with a stable `code`; lists come in pages of `limit`
items that `continue` joins; calls that take `wait` are held until something has happened, so nobody polls. Requests
are checked strictly: an unknown field or query value is refused, and so is a whole number written as `4.0`. Answers
may gain fields: pass over those you do not know. A resource tells its `apiVersion` and `kind`; which kind of hardware
it is about stands in `accelerator`.
"""
_TAGS = {
    "claims": "Somebody's wish for a partition, and then their lease on it.",
    "runs": "Jobs that were started here, and what is tracked of them.",
    "appliance": "Jobs of wafer-scale appliances, in short; each is a run, too.",
    "partitions": "Blocks of devices that are configured and isolated.",
    "events": "Everything that happened, in order.",
    "projects": "Who pays: what is guaranteed to whom, and who may hold how much.",
    "quotas": "What projects hold, borrow and wait for.",
    "estimate": "When a claim would start.",
    "defragment": "Room that is made by moving claims.",
    "whatif": "What another policy would change.",
    "queues": "What waits in other schedulers, and what these may start now.",
    "pools": "Devices of one kind behind one driver.",
    "devices": "Single accelerators.",
    "keys": "Access keys; for admins.",
    "doctor": "What the controller finds when it looks at itself; for admins.",
    "controller": "The controller itself; open to all.",
}


class _Plain(GenerateJsonSchema):
    """Without a title for each field, which would only repeat its name; with defaults in their JSON form."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False

    def dict_schema(self, schema: core_schema.DictSchema) -> dict[str, Any]:
        """A mapping with a pattern for its names takes no others; pydantic checks that, but does not describe it."""
        made = super().dict_schema(schema)
        return {**made, "additionalProperties": False} if "patternProperties" in made else made

    def encode_default(self, dft: object) -> object:
        return encode(dft)  # pydantic would use Python's names


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document."""
    described = FastAPI(
        title="Moorings",
        version=moorings.__version__,
        description=_ABOUT,
        openapi_tags=[{"name": name, "description": text} for name, text in _TAGS.items()],
    )
    for operation in OPERATIONS:
        described.add_api_route(operation.path, _unserved, **operation.described())
    made: dict[str, Any] = described.openapi()
    made["components"] = {
        "schemas": _schemas(),
        "securitySchemes": {
            "accessKey": {"type": "http", "scheme": "bearer", "description": "an access key, `moor_...`"}
        },
    }
    return made


async def _unserved(request: Request) -> Response:
    # FastAPI needs a callable, and would publish its docstring; requests never reach it.
    raise NotImplementedError(request.url)


def _schemas() -> dict[str, Any]:
    shapes: dict[type, None] = {ProblemBody: None}
    for operation in OPERATIONS:
        shapes |= dict.fromkeys(operation.answer.shapes)
        if operation.body is not None:
            shapes[operation.body] = None
    _, made = TypeAdapter.json_schemas(
        [(shape.__name__, "validation", type_adapter(shape)) for shape in shapes],
        ref_template="#/components/schemas/{model}",
        schema_generator=_Plain,
    )
    schemas: dict[str, Any] = made["$defs"]
    for name, schema in schemas.items():
        if name.endswith("Body"):
            _describe_answer(schema)
    return dict(sorted(schemas.items()))


def _describe_answer(schema: dict[str, Any]) -> None:
    """A response may gain fields, and an absent one has no default."""
    schema.pop("additionalProperties", None)
    for each in schema["properties"].values():
        each.pop("default", None)


def document_text() -> str:
    """The document as it is committed and served."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


@cache
def document_bytes() -> bytes:
    """The document's bytes; made once, at the first request for it."""
    return document_text().encode()
