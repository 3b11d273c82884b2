"""The declaration of a route: its address, its input, its responses. The routes and the document are made from it.

A table rather than decorators with typed arguments, because the arguments' checks, their errors and their limits are
ours (``calls``); FastAPI gets the same table in OpenAPI's terms, so the document cannot drift from the code.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from moorings.api.parameters import VALUES_MAX, Parameter
from moorings.api.problems import MEDIA_TYPE as PROBLEM_MEDIA_TYPE
from moorings.core.claims import KEY_CHARS_MAX
from moorings.wire.shapes import API_VERSION, ProblemBody

if TYPE_CHECKING:
    from moorings.api.calls import RequestContext

Schema = dict[str, Any]

KEY_HEADER = "Idempotency-Key"
_KEY_PATTERN = "^[!-~]([ -~]*[!-~])?$"
_PATH_VALUE = re.compile(r"\{(\w+)\}")
_WITH_SLASHES = "{project}"  # its value is itself a path
_PATH_WORDS = {
    "id": "Its id, or its name where it has one.",
    "pool": "The pool's name.",
    "project": "The project's name; `/` in it may be written as it is.",
    "kind": "What the other scheduler is, as owners begin with it: `slurm`.",
    "cluster": "The name of its cluster.",
}


def schema_ref(shape: type) -> Schema:
    """A reference to a shape in the document."""
    return {"$ref": f"#/components/schemas/{shape.__name__}"}


@dataclass(frozen=True, slots=True)
class ResponseSpec:
    """A success response.

    Attributes:
        status: HTTP status.
        description: one sentence, for the document.
        kind: ``Claim`` or ``ClaimList``, in the response; empty if it has none.
        content: OpenAPI's description of the body by media type; empty: no body.
        shapes: the wire shapes in it.
    """

    status: int
    description: str
    kind: str = ""
    content: Mapping[str, Schema] | None = None
    shapes: tuple[type, ...] = ()


def object_response(kind: str, shape: type, *, status: int = 200) -> ResponseSpec:
    """A response with one ``shape``, and ``apiVersion`` and ``kind`` beside its fields."""
    told = {"apiVersion": {"type": "string", "const": API_VERSION}, "kind": {"type": "string", "const": kind}}
    schema = {"allOf": [{"type": "object", "properties": told, "required": list(told)}, schema_ref(shape)]}
    return ResponseSpec(status, f"the {kind.lower()}", kind, {"application/json": {"schema": schema}}, (shape,))


def list_response(kind: str, shape: type) -> ResponseSpec:
    """A response with one page of a list of ``shape``."""
    name = f"{kind}List"
    schema = {
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string", "const": API_VERSION},
            "kind": {"type": "string", "const": name},
            "items": {"type": "array", "items": schema_ref(shape)},
            "continue": {"type": "string", "description": "there is more: send this as `continue`"},
        },
        "required": ["apiVersion", "kind", "items"],
    }
    return ResponseSpec(200, "one page of the list", name, {"application/json": {"schema": schema}}, (shape,))


NO_CONTENT = ResponseSpec(204, "done; there is nothing to say")


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one address.

    Attributes:
        method: GET, POST, PUT or DELETE.
        path: with ``{names}``.
        serve: the function that answers; its docstring describes the operation.
        answer: the success response.
        body: the shape of the request's body; None: it has none.
        query: its query parameters.
        keyed: whether it takes an idempotency key.
        headers: further headers it reads, by name, with a sentence and a pattern each.
        open: whether it is served without an access key.
        after_expiry: whether it accepts an access key that has expired.
    """

    method: str
    path: str
    serve: Callable[[RequestContext], Awaitable[Response]]
    answer: ResponseSpec
    body: type | None = None
    query: tuple[Parameter[Any], ...] = ()
    keyed: bool = False
    headers: Mapping[str, tuple[str, str]] | None = None
    open: bool = False
    after_expiry: bool = False

    @property
    def pattern(self) -> str:
        """Its address in Starlette's form."""
        return self.path.replace(_WITH_SLASHES, f"{_WITH_SLASHES[:-1]}:path}}")

    @property
    def tag(self) -> str:
        """The resource it belongs to."""
        parts = self.path.split("/")
        return parts[2] if parts[1] == "v1" else "controller"

    def described(self) -> dict[str, Any]:
        """The operation as arguments of FastAPI's ``add_api_route``."""
        summary, _, description = inspect.cleandoc(self.serve.__doc__ or "").partition("\n\n")
        extra: Schema = {"parameters": [*self._path_values(), *self._query_values(), *self._header_values()]}
        if self.body is not None:
            extra["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": schema_ref(self.body)}},
            }
        extra["security"] = [] if self.open else [{"accessKey": []}]
        good: Schema = {"description": self.answer.description}
        if self.answer.content is not None:
            good["content"] = dict(self.answer.content)
        bad = {"description": "an error", "content": {PROBLEM_MEDIA_TYPE: {"schema": schema_ref(ProblemBody)}}}
        return {
            "methods": [self.method],
            "status_code": self.answer.status,
            "response_class": Response,
            "responses": {self.answer.status: good, "default": bad},
            "operation_id": self.serve.__name__,
            "summary": summary.rstrip("."),
            "description": " ".join(description.split()),
            "tags": [self.tag],
            "openapi_extra": extra,
        }

    def _path_values(self) -> list[Schema]:
        return [
            {
                "name": name,
                "in": "path",
                "required": True,
                "description": _PATH_WORDS[name],
                "schema": {"type": "string", "maxLength": 200},
            }
            for name in _PATH_VALUE.findall(self.path)
        ]

    def _query_values(self) -> list[Schema]:
        found = []
        for item in self.query:
            schema = dict(item.schema)
            if item.repeated:
                schema = {"type": "array", "items": schema, "maxItems": VALUES_MAX}
            found.append(
                {
                    "name": item.name,
                    "in": "query",
                    "required": item.required,
                    "description": item.description,
                    "schema": schema,
                }
            )
        return found

    def _header_values(self) -> list[Schema]:
        words = dict(self.headers or {})
        if self.keyed:
            text = "The same key gives the same thing, however often the request is sent; unique for ever."
            words[KEY_HEADER] = (text, _KEY_PATTERN)
        return [
            {
                "name": name,
                "in": "header",
                "required": False,
                "description": text,
                "schema": {"type": "string", "minLength": 1, "maxLength": KEY_CHARS_MAX, "pattern": pattern},
            }
            for name, (text, pattern) in words.items()
        ]
