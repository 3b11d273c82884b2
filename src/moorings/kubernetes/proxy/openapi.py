"""The OpenAPI document of the proxy, made from the dataclasses of its bodies."""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import moorings
from moorings.kubernetes.proxy_api.shapes import AUDIENCE, ChangeBody, PartitionBody, PartitionRequest, PartitionsBody
from moorings.wire.codec import to_camel_case
from moorings.wire.shapes import BindingBody, GcdBody, ProblemBody

Schema = dict[str, Any]
_SHAPES = (BindingBody, ChangeBody, GcdBody, PartitionBody, PartitionRequest, PartitionsBody, ProblemBody)
_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}
_ABOUT = (
    "Partitions of the IPUJobs of one Kubernetes cluster, in front of one or several controllers. Errors are "
    "`application/problem+json` with a stable `code`."
)
_USE: Schema = {
    "type": "object",
    "properties": {"used": {"type": "integer"}, "available": {"type": "integer"}},
    "required": ["used", "available"],
}
_QUERY: Schema = {"type": "object", "properties": {"size": {"type": "integer", "minimum": 1}}, "required": ["size"]}
_FOUND: Schema = {
    "type": "object",
    "properties": {
        "available": {"type": "boolean"},
        "numOfPartitions": {"type": "integer"},
        "message": {"type": "string"},
    },
    "required": ["available", "numOfPartitions", "message"],
}
_STATUS: Schema = {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}
_READY: Schema = {
    "type": "object",
    "properties": {
        "status": {"type": "string"},
        "aliases": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "controllers that are not asked, for they are one that another entry names",
        },
    },
    "required": ["status"],
}
_PLACE = ("namespace", "job", "uid", "instance")
_ONE = "/v1/partitions/{namespace}/{job}/{uid}/{instance}"


@cache
def document() -> Schema:
    """The document."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Moorings' proxy for Kubernetes", "version": moorings.__version__, "description": _ABOUT},
        "paths": {
            "/stats": {"get": _open("IPUs used and available, by namespace", _map(_USE))},
            "/query": {"post": _open("How many partitions of a size could be made now", _FOUND, body=_QUERY)},
            "/healthz": {"get": _open("Whether the proxy lives", _STATUS)},
            "/readyz": {"get": _open("Whether the proxy can do its work", _READY)},
            "/metrics": {"get": _open("Numbers for Prometheus", {"type": "string"}, media="text/plain")},
            "/openapi.json": {"get": _open("This document", {"type": "object"})},
            "/v1/partitions": {
                "get": _known("All partitions, or those of a job", _ref(PartitionsBody), query=("namespace", "job")),
                "post": _known("Ask for a partition", _ref(PartitionBody), body=_ref(PartitionRequest)),
            },
            "/v1/partitions/watch": {
                "get": _known(
                    "Changes after a version, as they come",
                    {"type": "string", "description": "server-sent events; the data of each is a ChangeBody"},
                    query=("since",),
                    media="text/event-stream",
                )
            },
            _ONE: {"delete": _known("Let a partition go", _ref(PartitionBody), path=True, gone=True)},
            f"{_ONE}/reset": {"post": _known("Reset a partition", _ref(PartitionBody), path=True)},
            f"{_ONE}/yield": {
                "post": _known("Give a partition back that was asked for", _ref(PartitionBody), path=True)
            },
        },
        "components": {
            "schemas": {shape.__name__: _shape(shape) for shape in _SHAPES},
            "securitySchemes": {
                "serviceAccount": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": f"a service account's token for the audience `{AUDIENCE}`",
                }
            },
        },
    }


@cache
def served() -> bytes:
    """The document as JSON text."""
    return json.dumps(document(), indent=2, ensure_ascii=False).encode() + b"\n"


def _open(summary: str, good: Schema, *, body: Schema | None = None, media: str = "application/json") -> Schema:
    made: Schema = {
        "summary": summary,
        "security": [],
        "responses": {
            "200": {"description": summary, "content": {media: {"schema": good}}},
            "default": {
                "description": "an error",
                "content": {"application/problem+json": {"schema": _ref(ProblemBody)}},
            },
        },
    }
    if body is not None:
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return made


def _known(
    summary: str,
    good: Schema,
    *,
    body: Schema | None = None,
    query: tuple[str, ...] = (),
    path: bool = False,
    gone: bool = False,
    media: str = "application/json",
) -> Schema:
    made = _open(summary, good, body=body, media=media)
    made["security"] = [{"serviceAccount": []}]
    made["parameters"] = [
        *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in _PLACE if path),
        *({"name": name, "in": "query", "required": name == "since", "schema": {"type": "string"}} for name in query),
    ]
    if gone:
        made["responses"]["204"] = {"description": "nothing is left of it"}
    return made


def _shape(shape: type) -> Schema:
    hints = get_type_hints(shape)
    return {
        "type": "object",
        "description": " ".join(inspect.cleandoc(shape.__doc__ or "").split()),
        "properties": {to_camel_case(item.name): _schema(hints[item.name]) for item in fields(shape)},
        "required": [
            to_camel_case(item.name)
            for item in fields(shape)
            if item.default is MISSING and item.default_factory is MISSING
        ],
    }


def _schema(kind: Any) -> Schema:  # noqa: ANN401 - type expressions
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _schema(next(option for option in get_args(kind) if option is not type(None)))
    if origin is tuple:
        return {"type": "array", "items": _schema(get_args(kind)[0])}
    if origin is Mapping:
        return _map(_schema(get_args(kind)[1]))
    return _ref(kind) if is_dataclass(kind) else {"type": _PLAIN[kind]}


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _ref(shape: Any) -> Schema:  # noqa: ANN401 - a class
    return {"$ref": f"#/components/schemas/{shape.__name__}"}
