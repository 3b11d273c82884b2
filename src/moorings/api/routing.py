"""Finds the operation that serves a request.

FastAPI describes the operations (the OpenAPI document is made from it), but does not carry the requests: finding one
would cost ten times as much (ADR 0014).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from moorings.api.request_context import REQUEST_ID_KEY
from moorings.api.route import Route
from moorings.core.model.errors import MooringsError
from moorings.net.problems import problem_response

Endpoint = Callable[[Request], Awaitable[ASGIApp]]
_ENCODED = re.compile(rb"%2[Ff]")


_SLASH = "\0"  # stands for a slash inside a name, which separates nothing


def _apart(scope: Scope) -> str:
    """The path, in which a slash that was written ``%2F`` separates nothing (RFC 3986, 2.2).

    A proxy that guards some paths looks at the raw path: ``/v1%2Fkeys`` must not be another name for one of them.
    """
    path: str = scope["path"]
    raw: bytes = scope.get("raw_path") or b""
    if _SLASH in path:
        return ""
    if b"%2f" not in raw.lower():
        return path
    return unquote(_ENCODED.sub(b"%00", raw).decode("ascii", "replace"))


class Router:
    """Routes by path, then by method; ``endpoint_of`` gives the endpoint of a route."""

    def __init__(self, routes: Sequence[Route], endpoint_of: Callable[[Route], Endpoint]) -> None:
        self._by_path: dict[str, tuple[re.Pattern[str], dict[str, Endpoint]]] = {}
        for route in routes:
            pattern = compile_path(route.pattern)[0]
            _, methods = self._by_path.setdefault(route.operation.path, (pattern, {}))
            methods[route.operation.method] = endpoint_of(route)
        self._fixed = {path: methods for path, (_, methods) in self._by_path.items() if "{" not in path}
        self._patterns = [found for path, found in self._by_path.items() if "{" in path]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request = Request(scope, receive, send)
        methods = self._methods(scope)
        endpoint = methods.get(scope["method"])
        answer = await endpoint(request) if endpoint is not None else self._not_routed(request, methods)
        await answer(scope, receive, send)

    def _methods(self, scope: Scope) -> dict[str, Endpoint]:
        path = _apart(scope)
        scope["path_params"] = {}
        if path in self._fixed:
            return self._fixed[path]
        for pattern, methods in self._patterns:
            match = pattern.fullmatch(path)  # `match` would ignore a newline at the end
            if match:
                scope["path_params"] = {name: text.replace(_SLASH, "/") for name, text in match.groupdict().items()}
                return methods
        return {}

    def _not_routed(self, request: Request, methods: dict[str, Any]) -> ASGIApp:
        """The response for an address, or a method, without an operation."""
        request_id: str = request.scope[REQUEST_ID_KEY]
        path = request.scope["path"][:200]
        if not methods:
            unknown = MooringsError(
                "path.unknown", f"there is nothing at {path!r}", hint="the addresses stand in /openapi.json"
            )
            return problem_response(unknown, request_id)
        allow = ", ".join(sorted(methods))
        refused = MooringsError(
            "method.not_allowed", f"{path} does not take {request.method[:20]}", hint=f"it takes {allow}"
        )
        return problem_response(refused, request_id, allow=allow)
