"""The OpenAPI document: made from the table of operations and the routes, and committed, so a change is seen in review.

FastAPI assembles the paths (and only that: it carries no request); the shapes come from ``bodies``, which checks them
too. ``docs/reference/openapi.json`` is ``document_text()``; a test compares them.
"""

from __future__ import annotations

import inspect
import json
import re
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
from moorings.api.parameters import VALUES_MAX, Parameter
from moorings.api.route import Route
from moorings.api.routes import ROUTES
from moorings.core.model.claims import KEY_CHARS_MAX
from moorings.net.problems import PROBLEM_TYPE
from moorings.wire.codec import encode
from moorings.wire.operations import KEY_HEADER, OPERATIONS, ResponseSpec
from moorings.wire.shapes import API_VERSION, ProblemBody

Schema = dict[str, Any]

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
    "whoami": "The caller, as the controller knows it.",
    "controller": "The controller itself; open to all.",
}

_KEY_ABOUT = (
    "The same key gives the same thing, however often the request is sent; unique for ever.",
    "^[!-~]([ -~]*[!-~])?$",
)
_PATH_VALUE = re.compile(r"\{(\w+)\}")
_PATH_ABOUT = {
    "id": "Its id, or its name where it has one.",
    "pool": "The pool's name.",
    "project": "The project's name; `/` in it may be written as it is.",
    "kind": "What the other scheduler is, as owners begin with it: `slurm`.",
    "cluster": "The name of its cluster.",
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
    for route in ROUTES:
        described.add_api_route(route.operation.path, _unserved, **_route_arguments(route))
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


def schema_ref(shape: type) -> Schema:
    """A reference to a shape in the document."""
    return {"$ref": f"#/components/schemas/{shape.__name__}"}


def _route_arguments(route: Route) -> dict[str, Any]:
    """A route as arguments of FastAPI's ``add_api_route``."""
    operation = route.operation
    summary, _, description = inspect.cleandoc(route.serve.__doc__ or "").partition("\n\n")
    headers = dict(route.headers)
    if operation.takes_idempotency_key:
        headers[KEY_HEADER] = _KEY_ABOUT
    extra: Schema = {
        "parameters": [
            *(_path_value(name) for name in _PATH_VALUE.findall(operation.path)),
            *map(_query_value, route.query),
            *(_header_value(name, *about) for name, about in headers.items()),
        ]
    }
    if operation.body is not None:
        extra["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema_ref(operation.body)}},
        }
    extra["security"] = [] if operation.is_open else [{"accessKey": []}]
    good: Schema = {"description": operation.response.description}
    content = {**_json_content(operation.response), **route.content}
    if content:
        good["content"] = content
    bad = {"description": "an error", "content": {PROBLEM_TYPE: {"schema": schema_ref(ProblemBody)}}}
    return {
        "methods": [operation.method],
        "status_code": operation.response.status,
        "response_class": Response,
        "responses": {operation.response.status: good, "default": bad},
        "operation_id": operation.name,
        "summary": summary.rstrip("."),
        "description": " ".join(description.split()),
        "tags": [operation.tag],
        "openapi_extra": extra,
    }


def _json_content(response: ResponseSpec[Any]) -> Schema:
    """The JSON of a response's shape, by media type."""
    if response.shape is None:
        return {}
    kinds = {"apiVersion": {"type": "string", "const": API_VERSION}, "kind": {"type": "string", "const": response.kind}}
    schema: Schema
    if response.is_list:
        token = {"type": "string", "description": "there is more: send this as `continue`"}
        items = {"type": "array", "items": schema_ref(response.shape)}
        schema = {
            "type": "object",
            "properties": {**kinds, "items": items, "continue": token},
            "required": ["apiVersion", "kind", "items"],
        }
    else:
        head = {"type": "object", "properties": kinds, "required": list(kinds)}
        schema = {"allOf": [head, schema_ref(response.shape)]}
    return {"application/json": {"schema": schema}}


def _path_value(name: str) -> Schema:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": _PATH_ABOUT[name],
        "schema": {"type": "string", "maxLength": 200},
    }


def _query_value(item: Parameter[Any]) -> Schema:
    schema = dict(item.schema)
    if item.repeated:
        schema = {"type": "array", "items": schema, "maxItems": VALUES_MAX}
    return {
        "name": item.name,
        "in": "query",
        "required": item.required,
        "description": item.description,
        "schema": schema,
    }


def _header_value(name: str, text: str, pattern: str) -> Schema:
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": text,
        "schema": {"type": "string", "minLength": 1, "maxLength": KEY_CHARS_MAX, "pattern": pattern},
    }


def _schemas() -> dict[str, Any]:
    shapes: dict[type, None] = {ProblemBody: None}
    for operation in OPERATIONS:
        shapes |= dict.fromkeys(shape for shape in (operation.response.shape, operation.body) if shape is not None)
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
