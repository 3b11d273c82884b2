"""CPU of finding a request's operation: our router, Starlette's and FastAPI's over the same addresses (ADR 0014).

Each calls the same empty endpoint in process, without a socket, so the figures are the routing alone. Bound: the
endpoint called directly.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.routing import Router as StarletteRouter
from starlette.types import ASGIApp, Message, Scope

from benchmarks.report import Report
from moorings.api.request_context import REQUEST_ID_KEY
from moorings.api.routes import ROUTES
from moorings.api.routing import Router

CALLS = 20_000
ADDRESSES = {"claim": ("GET", "/v1/claims/claim-abcdefghijkl"), "health": ("GET", "/healthz")}


async def _answer(_request: Request) -> Response:
    return Response(b"{}", media_type="application/json")


def run() -> Report:
    """Measure."""
    fastapi = FastAPI()
    for route in ROUTES:
        fastapi.add_api_route(route.pattern, _answer, methods=[route.operation.method], response_model=None)
    starlette = StarletteRouter(
        [StarletteRoute(route.pattern, _answer, methods=[route.operation.method]) for route in ROUTES]
    )
    apps: dict[str, ASGIApp] = {
        "ours": Router(ROUTES, lambda _route: _answer),
        "starlette": starlette,
        "fastapi": fastapi,
    }
    figures: dict[str, float] = {}
    for name, (method, path) in ADDRESSES.items():
        for app_name, app in apps.items():
            figures[f"{name}_{app_name}_us"] = asyncio.run(_measure(app, method, path))
    bound = asyncio.run(_measure(_direct, "GET", "/"))
    return Report(
        name="routing",
        figures=figures,
        bounds=dict.fromkeys(figures, bound),
        notes=(f"CPU of one of {CALLS} calls, in process", "bound: the endpoint called directly"),
    )


async def _direct(
    scope: Scope, receive: Callable[[], Awaitable[Message]], send: Callable[..., Awaitable[None]]
) -> None:
    answer = await _answer(Request(scope, receive, send))
    await answer(scope, receive, send)


async def _measure(app: ASGIApp, method: str, path: str) -> float:
    fixed: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
        REQUEST_ID_KEY: "",
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    sent: list[int] = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            sent.append(message["status"])

    begun = time.process_time()
    for _ in range(CALLS):
        await app(dict(fixed), receive, send)
    taken = time.process_time() - begun
    if sent != [200] * CALLS:
        raise SystemExit(f"{path} was answered {set(sent)}")
    return taken / CALLS * 1e6
