"""The proxy's HTTP routes: paths, rights, and limits on requests. A plain ASGI callable."""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import parse_qsl, unquote

from starlette.responses import Response

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.proxy import openapi
from moorings.kubernetes.proxy.answers import json_response, send_response
from moorings.kubernetes.proxy.authentication import ProxyCaller, TokenAuthenticator
from moorings.kubernetes.proxy.claims import InstanceKey, check_instance_key
from moorings.kubernetes.proxy.metrics import MEDIA, ProxyMetrics
from moorings.kubernetes.proxy.partition_manager import PartitionManager
from moorings.kubernetes.proxy.stats import ProxyStats
from moorings.kubernetes.proxy_api.shapes import PartitionRequest
from moorings.net.bodies import BodyBounds, read_body
from moorings.net.problems import problem_response
from moorings.wire.codec import decode, to_camel_case

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

log = logging.getLogger("moorings.kubernetes.proxy")

BODY_BYTES_MAX = 64 << 10
BODY_BOUNDS = BodyBounds(BODY_BYTES_MAX, BODY_BYTES_MAX)  # the server bounds the time
HEARTBEAT_S = 10.0
WATCHES_MAX = 64
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_STREAM = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
_FIELDS = frozenset(to_camel_case(item.name) for item in fields(PartitionRequest))


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """One request."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    address: str
    body: bytes
    request_id: str


class ProxyRoutes:
    """The ASGI application.

    Args:
        keeper: the partition manager.
        door: authenticates callers.
        watch_s: how long one watch lasts; its client continues with another one.
    """

    def __init__(self, keeper: PartitionManager, door: TokenAuthenticator, watch_s: float) -> None:
        self._keeper = keeper
        self._door = door
        self._watch_s = watch_s
        self._watches = 0
        self._stats = ProxyStats(keeper)
        self._closing = False
        self.metrics = ProxyMetrics(keeper)
        self._open: dict[str, tuple[str, Callable[[ProxyRequest], Awaitable[Response]]]] = {
            "/stats": ("GET", self._get_stats),
            "/query": ("POST", self._post_query),
            "/healthz": ("GET", self._healthz),
            "/readyz": ("GET", self._readyz),
            "/metrics": ("GET", self._get_metrics),
            "/openapi.json": ("GET", self._document),
        }

    def is_open(self, path: str) -> bool:
        """Whether a path is open to all."""
        return path in self._open

    def close(self) -> None:
        """End all watches: the server stops."""
        self._closing = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        assert scope["type"] == "http", "the server is told to send nothing else"
        begun = time.perf_counter()
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given.decode() if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        path: str = scope["path"]
        route = "none"
        try:
            if path == "/v1/partitions/watch" and scope["method"] == "GET":
                await self._watch(scope, headers, request_id, send)
                return
            body = await read_body(receive, headers, BODY_BOUNDS)
            query = _query(scope["query_string"])
            asked = ProxyRequest(scope["method"], path, query, headers, _address(scope), body, request_id)
            route, answer = await self._answer(asked)
        except MooringsError as error:
            answer = problem_response(error, request_id)
        except Exception:
            log.exception("request.failed", extra={"request_id": request_id, "path": path[:200]})
            fault = MooringsError("internal.error", "internal error in the proxy while it served this request")
            answer = problem_response(fault, request_id)
        self.metrics.observe_request(
            scope["method"] if route != "none" else "other", route, answer.status_code, time.perf_counter() - begun
        )
        await send_response(answer, request_id, scope, receive, send)

    async def _answer(self, asked: ProxyRequest) -> tuple[str, Response]:
        """The route's template, and the response of a path that is not a stream."""
        found = self._open.get(asked.path)
        if found is not None:
            _check_method(asked, found[0])
            return asked.path, await found[1](asked)
        if asked.path == "/v1/partitions":
            _check_method(asked, "GET", "POST")
            visitor = await self._visitor(asked.headers, asked.address)
            return asked.path, await (
                self._post(asked, visitor) if asked.method == "POST" else self._list(asked, visitor)
            )
        parts = asked.path.removeprefix("/v1/partitions/").split("/")
        if asked.path.startswith("/v1/partitions/") and len(parts) in (4, 5):
            route = "/v1/partitions/{namespace}/{job}/{uid}/{instance}"
            if len(parts) == 4:
                _check_method(asked, "DELETE")
                return route, await self._delete(asked, _place(parts))
            if parts[4] == "reset":
                _check_method(asked, "POST")
                return f"{route}/reset", await self._reset(asked, _place(parts))
            if parts[4] == "yield":
                _check_method(asked, "POST")
                return f"{route}/yield", await self._yield(asked, _place(parts))
        raise MooringsError(
            "path.unknown", f"there is nothing at {asked.path[:200]!r}", hint="the addresses stand in /openapi.json"
        )

    async def _visitor(self, headers: Mapping[bytes, bytes], address: str) -> ProxyCaller:
        return await self._door.authenticate(headers.get(b"authorization", b"").decode("latin-1"), address)

    # -- open to all ---------------------------------------------------------------------------------------------------

    async def _get_stats(self, _asked: ProxyRequest) -> Response:
        return json_response(await self._stats.stats())

    async def _post_query(self, asked: ProxyRequest) -> Response:
        return await self._stats.query(asked.body)

    async def _healthz(self, _asked: ProxyRequest) -> Response:
        return json_response({"status": "alive"})

    async def _readyz(self, asked: ProxyRequest) -> Response:
        silent = [name for name, link in self._keeper.links.items() if not link.was_tried]
        if silent:
            waits = MooringsError("controller.unreachable", f"{silent[0]} was not asked yet", retryable=True)
            return problem_response(waits, asked.request_id)
        aliases = {name: link.alias_of for name, link in self._keeper.links.items() if link.alias_of}
        return json_response({"status": "ready", "aliases": aliases} if aliases else {"status": "ready"})

    async def _get_metrics(self, _asked: ProxyRequest) -> Response:
        return Response(self.metrics.text(), media_type=MEDIA)

    async def _document(self, _asked: ProxyRequest) -> Response:
        return Response(openapi.served(), media_type="application/json")

    # -- for the operator and for launchers ----------------------------------------------------------------------------

    async def _list(self, asked: ProxyRequest, visitor: ProxyCaller) -> Response:
        namespace, job = asked.query.get("namespace", ""), asked.query.get("job", "")
        if not visitor.may_see(namespace, job):
            _deny(visitor)
        return json_response(self._keeper.partitions(namespace, job))

    async def _post(self, asked: ProxyRequest, visitor: ProxyCaller) -> Response:
        if not visitor.operator:
            _deny(visitor)
        return json_response(await self._keeper.create(_request(asked.body)))

    async def _delete(self, asked: ProxyRequest, place: InstanceKey) -> Response:
        visitor = await self._visitor(asked.headers, asked.address)
        if not visitor.operator:
            _deny(visitor)
        left = await self._keeper.release(place)
        return json_response(left) if left is not None else Response(status_code=204)

    async def _reset(self, asked: ProxyRequest, place: InstanceKey) -> Response:
        visitor = await self._visitor(asked.headers, asked.address)
        if not visitor.may_use(place.namespace, place.job, place.instance):
            _deny(visitor)
        return json_response(await self._keeper.reset(place))

    async def _yield(self, asked: ProxyRequest, place: InstanceKey) -> Response:
        visitor = await self._visitor(asked.headers, asked.address)
        if not visitor.operator:
            _deny(visitor)
        return json_response(await self._keeper.yield_partition(place))

    async def _watch(self, scope: Scope, headers: Mapping[bytes, bytes], request_id: str, send: Send) -> None:
        """Send the changes after ``since`` as they come, for as long as one response may take.

        Raises:
            MooringsError: before anything is sent.
        """
        visitor = await self._visitor(headers, _address(scope))
        if not visitor.operator:
            _deny(visitor)
        journal = self._keeper.journal
        number = journal.number_of(_query(scope["query_string"]).get("since", ""))
        if self._watches >= WATCHES_MAX:
            raise MooringsError("controller.busy", f"there are {WATCHES_MAX} watches already", retryable=True)
        self._watches += 1
        try:
            head = [*_STREAM, (b"x-request-id", request_id.encode())]
            await send({"type": "http.response.start", "status": 200, "headers": head})
            await send({"type": "http.response.body", "body": b": watching\n\n", "more_body": True})
            until = time.monotonic() + self._watch_s
            while not self._closing and (left_s := until - time.monotonic()) > 0:
                await journal.wait_for_change(number, min(HEARTBEAT_S, left_s))
                try:
                    events = journal.changes_after(number)
                except MooringsError:  # too slow: its next request gets the error
                    break
                number += len(events)
                await send(
                    {"type": "http.response.body", "body": b"".join(events) or b": heartbeat\n\n", "more_body": True}
                )
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._watches -= 1


def _address(scope: Scope) -> str:
    """The address of the client, from the kernel; headers with another one are ignored."""
    client = scope.get("client")
    return client[0] if client else ""


def _deny(visitor: ProxyCaller) -> NoReturn:
    raise MooringsError(
        "auth.denied",
        f"{visitor.user} may not do that",
        hint="the operator may do everything, a launcher's Pod may see its job's partitions and reset its own"
        + ("" if visitor.pod else "; the API server names no Pod to which this token is bound"),
    )


def _check_method(asked: ProxyRequest, *methods: str) -> None:
    if asked.method not in methods:
        raise MooringsError(
            "method.not_allowed", f"{asked.path[:200]} does not take {asked.method[:20]}", hint=f"it takes {methods}"
        )


def _place(parts: list[str]) -> InstanceKey:
    namespace, job, uid, instance = (unquote(part) for part in parts[:4])
    if not instance.isascii() or not instance.isdecimal() or len(instance) > 6:
        raise MooringsError("path.unknown", f"{instance[:40]!r} is no instance")
    return check_instance_key(namespace, job, uid, int(instance))


def _query(text: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(text.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=8)
    except ValueError:
        raise MooringsError("page.invalid", "the query cannot be read", hint="write NAME=VALUE&NAME=VALUE") from None
    wrong = next((name for name, _ in pairs if name not in ("namespace", "job", "since")), None)
    if wrong is not None or len(dict(pairs)) < len(pairs):
        raise MooringsError("page.invalid", "the query has a wrong value", hint="allowed: namespace, job, since; once")
    return dict(pairs)


def _request(body: bytes) -> PartitionRequest:
    """The request in a body.

    Raises:
        MooringsError: ``body.*``.
    """
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise MooringsError("body.not_json", "the body is not JSON", hint="send one JSON object") from None
    unknown = sorted(data.keys() - _FIELDS) if isinstance(data, dict) else []
    if unknown:
        raise MooringsError(
            "body.invalid",
            f"body.{unknown[0][:60]} is not a known field",
            hint=f"allowed: {', '.join(sorted(_FIELDS))}",
        )
    return decode(PartitionRequest, data)
