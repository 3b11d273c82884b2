"""The ASGI application: the routes inside a wrapper that gives every request an id and every error a shape.

The wrapper is a plain ASGI callable: a ``BaseHTTPMiddleware`` would cost a task and a queue a request.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moorings.api import openapi
from moorings.api.limits import DEFAULT_LIMITS, ApiLimits, Slots, WorkSlots
from moorings.api.metrics import MetricsPage, RequestMetrics
from moorings.api.request_context import KEY_EXPIRES_HEADER, REQUEST_ID_KEY, ApiContext, RequestContext, Shutdown
from moorings.api.route import Route
from moorings.api.routes import ROUTES
from moorings.api.routing import Endpoint, Router
from moorings.api.server import client_network
from moorings.api.streams import StreamResponse
from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp
from moorings.net.problems import problem_response
from moorings.wire.codec import format_time

if TYPE_CHECKING:
    from moorings.controller.service import Controller

log = logging.getLogger("moorings.api")

ROUTE_KEY = "moorings.route"  # where an endpoint leaves its route's template in the ASGI scope,
USER_KEY = "moorings.user"  # and the caller, once known,
KEY_EXPIRES_KEY = "moorings.key_expires"  # and when their access key expires, if it does
HEALTH = frozenset({"/healthz", "/livez", "/readyz"})
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_ON_ALL = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]


class Application:
    """The API of one controller, for an ASGI server.

    Args:
        inner: routes the requests.
        closing: set when the server begins to stop.
        limits: the bounds on connections and work.
        requests: counts the responses.
    """

    def __init__(
        self,
        inner: ASGIApp,
        closing: Shutdown,
        limits: ApiLimits = DEFAULT_LIMITS,
        requests: RequestMetrics | None = None,
    ) -> None:
        self.limits = limits
        self._inner = inner
        self._closing = closing
        self._requests = requests or RequestMetrics()

    def close(self) -> None:
        """Begin to stop: end streams and waits, so that nothing delays the server."""
        self._closing.begin_shutdown()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        assert scope["type"] == "http", "the server is told to send nothing else"
        request_id = scope[REQUEST_ID_KEY] = self._request_id(scope)
        mark = [(b"x-request-id", request_id.encode()), *_ON_ALL]
        begun = time.perf_counter()

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *mark, *_key_expires(scope)]
                self._record_answer(scope, message["status"], time.perf_counter() - begun)
            await send(message)

        self._requests.in_progress += 1  # only a number: slots are for known callers, else strangers would take them
        try:
            await self._inner(scope, receive, send_marked)
        finally:
            self._requests.in_progress -= 1

    def _record_answer(self, scope: Scope, status: int, took_s: float) -> None:
        self._requests.add(scope["method"], scope.get(ROUTE_KEY, ""), status, took_s)
        if log.isEnabledFor(logging.DEBUG):
            fields = {"request_id": scope[REQUEST_ID_KEY], "method": scope["method"], "route": scope.get(ROUTE_KEY, "")}
            fields |= {"user": scope.get(USER_KEY, ""), "status": status, "took_ms": round(took_s * 1e3, 3)}
            log.debug("request.answered", extra=fields)

    def _request_id(self, scope: Scope) -> str:
        for name, value in scope["headers"]:
            if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
                return str(value, "ascii")
        return secrets.token_hex(8)


def make_application(
    controller: Controller,
    *,
    limits: ApiLimits = DEFAULT_LIMITS,
) -> Application:
    """The API of ``controller``."""
    waits = Slots("answers that wait", limits.waits_max, limits.waits_per_key_max)
    watches = Slots("open event streams", limits.watches_max, limits.watches_per_key_max)
    follows = Slots("open streams of output", limits.follows_max, limits.follows_per_key_max)
    requests = RequestMetrics()
    service = ApiContext(
        controller,
        limits,
        document=openapi.document_bytes,
        metrics=MetricsPage(controller, requests, {"waits": waits, "watches": watches, "follows": follows}),
        requests=Slots("requests", limits.requests_max, limits.requests_per_key_max),
        work_slots=WorkSlots(limits.working_per_key_max),
        open_slots=Slots("answers under way", limits.open_requests_max, limits.opens_per_address_max),
        body_bytes=Slots("bytes of bodies", limits.bodies_bytes_max, limits.bodies_bytes_per_key_max),
        wait_slots=waits,
        watch_slots=watches,
        follow_slots=follows,
    )
    router = Router(ROUTES, lambda route: _endpoint(service, route))
    return Application(router, service.closing, limits, requests)


def _key_expires(scope: Scope) -> list[tuple[bytes, bytes]]:
    at: Timestamp | None = scope.get(KEY_EXPIRES_KEY)
    return [] if at is None else [(KEY_EXPIRES_HEADER.lower().encode(), format_time(at).encode())]


class _SlotHoldingResponse:
    """A response that keeps its slot until it is sent: one that the client does not read is bounded, too."""

    def __init__(self, answer: ASGIApp, leave: Callable[[], None]) -> None:
        self._answer = answer
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(scope, receive, send)
        finally:
            self._leave()


async def _serve_open(call: RequestContext, address: str) -> ASGIApp:
    """The response of an operation that needs no key.

    Raises:
        MooringsError: ``controller.busy``.
    """
    answer = await call.route.serve(call)
    if call.operation.path in HEALTH:  # a busy controller is not a dead one
        return answer
    call.service.open_slots.require(address)
    return _SlotHoldingResponse(answer, partial(call.service.open_slots.release, address))


async def _serve_with_slot(call: RequestContext) -> ASGIApp:
    """The response to a known caller.

    Raises:
        MooringsError: the request is refused.
    """
    seats, key = call.service.requests, call.caller.key_id
    seats.require(key)
    leave = partial(seats.release, key)
    try:
        answer = await call.serve()
    except BaseException:
        leave()
        raise
    if isinstance(answer, StreamResponse):  # it has a slot of its own
        leave()
        return answer
    return _SlotHoldingResponse(answer, leave)


def _endpoint(service: ApiContext, route: Route) -> Endpoint:
    """The endpoint of ``route``; every failure in it becomes a problem response, never an exception."""
    operation = route.operation

    async def endpoint(request: Request) -> ASGIApp:
        request_id: str = request.scope[REQUEST_ID_KEY]
        request.scope[ROUTE_KEY] = operation.path
        try:
            call = RequestContext(service, route, request)
            if operation.is_open:
                return await _serve_open(call, client_network(request.scope.get("client")))
            await call.identify()
            request.scope[USER_KEY] = call.caller.subject
            request.scope[KEY_EXPIRES_KEY] = call.caller.key_expires_at
            return await _serve_with_slot(call)
        except MooringsError as error:
            answer = problem_response(error, request_id)
            if answer.status_code >= 500:
                fields = {"request_id": request_id, "path": operation.path, "code": error.code, "detail": error.detail}
                log.warning("request.refused", extra=fields)
            return answer
        except Exception:
            log.exception(
                "request.failed", extra={"request_id": request_id, "path": operation.path, "method": operation.method}
            )
            return internal_error_response(request_id)

    return endpoint


def internal_error_response(request_id: str) -> Response:
    """The response to a request in which our own code failed."""
    error = MooringsError(
        "internal.error",
        "internal error in the controller while it served this request",
        hint=f"its log has details under the request id {request_id}",
    )
    return problem_response(error, request_id)
