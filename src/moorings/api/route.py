"""A route: an operation of the API, the function that serves it, and what it reads of query and headers.

A table rather than decorators with typed arguments, because the arguments' checks, their errors and their limits are
ours (``request_context``); FastAPI gets the same table in OpenAPI's terms, so the document cannot drift from the code.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from moorings.api.parameters import Parameter
from moorings.wire.operations import Operation

if TYPE_CHECKING:
    from moorings.api.request_context import RequestContext

_WITH_SLASHES = "{project}"  # its value is itself a path


@dataclass(frozen=True, slots=True)
class Route:
    """One served operation.

    Attributes:
        operation: its row in the table.
        serve: the function that answers; its docstring describes the operation.
        query: its query parameters.
        headers: further headers it reads, by name, with a sentence and a pattern each.
        content: OpenAPI's description of the response by media type, but for the JSON of a shape.
    """

    operation: Operation[Any]
    serve: Callable[[RequestContext], Awaitable[Response]]
    query: tuple[Parameter[Any], ...] = ()
    headers: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    content: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @property
    def pattern(self) -> str:
        """Its path in Starlette's form."""
        return self.operation.path.replace(_WITH_SLASHES, f"{_WITH_SLASHES[:-1]}:path}}")
