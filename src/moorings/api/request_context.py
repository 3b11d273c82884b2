"""One request while it is served: what a route reads of it, with every check and limit, and its responses.

It replaces FastAPI's parameters and dependencies; ``api/__init__`` says why. Reading is lazy: a route without a body
reads none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from moorings.api.bodies import parse_body
from moorings.api.limits import ApiLimits, Slots, WorkSlots
from moorings.api.pagination import PageRequest, dumps, encode_items, parse_token
from moorings.api.parameters import CONTINUE, LIMIT, LIMIT_MAX, Parameter, read_query
from moorings.api.request_body import STANDBY_HEADER, index_headers, parse_bearer, read_body, wait_for_disconnect
from moorings.api.route import Route
from moorings.api.tls import PEER, PERSON
from moorings.controller.idempotency import check_idempotency_key
from moorings.controller.waiters import Wakeup
from moorings.core.model.access import Caller, Peer, check_certificate_binding
from moorings.core.model.errors import MooringsError
from moorings.net.limits import BufferedBody
from moorings.wire.codec import encode
from moorings.wire.operations import KEY_HEADER
from moorings.wire.shapes import API_VERSION

if TYPE_CHECKING:
    from moorings.api.metrics import MetricsPage
    from moorings.controller.service import Controller

T = TypeVar("T")

REQUEST_ID_KEY = "moorings.request_id"  # where the application leaves it in the ASGI scope
KEY_EXPIRES_HEADER = "Moorings-Key-Expires"  # on responses to a key that expires: when
PATH_VALUE_CHARS_MAX = 200


class Shutdown:
    """Whether the server has begun to stop, and a wakeup for waiting requests."""

    def __init__(self) -> None:
        self.is_begun = False
        self._wakeup = Wakeup()

    def begin_shutdown(self) -> None:
        """Wake every waiting request, now and later."""
        self.is_begun = True
        self._wakeup.wake_all()

    async def run_or_abort(self, work: Awaitable[T], *, gone: Awaitable[None] | None = None) -> T:
        """The result of ``work``, which is cancelled if the server stops, or ``gone`` is done, before it.

        Raises:
            MooringsError: what ``work`` raises, or ``controller.unreachable``.
        """
        task = asyncio.ensure_future(work)
        others = [self._wait_for_begin()] if gone is None else [self._wait_for_begin(), gone]
        everything: list[asyncio.Future[Any]] = [task, *map(asyncio.ensure_future, others)]
        try:
            await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        finally:
            for each in everything:
                each.cancel()
        if not self.is_begun:
            raise MooringsError("request.invalid", "the client has gone before the answer")  # no client reads it
        raise MooringsError(
            "controller.unreachable",
            "the controller stops; what was asked for may have been done",
            hint="ask again in a moment, with the same idempotency key",
            retryable=True,
        )

    async def _wait_for_begin(self) -> None:
        if not self.is_begun:
            await self._wakeup.wait()


async def first_of(*works: Awaitable[None]) -> None:
    """Return when one of ``works`` has ended; the others are cancelled.

    Raises:
        MooringsError: that of the ended one.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()


@dataclass(frozen=True, slots=True)
class ApiContext:
    """Shared by all requests.

    Attributes:
        controller: the use cases.
        limits: the bounds on connections and work.
        document: gives the OpenAPI document.
        metrics: gives the text of ``/metrics``.
        requests: slots for requests until their responses are sent; streams have their own.
        work_slots: slots for requests that are worked on.
        open_slots: slots for responses that need no access key, by address.
        body_bytes: bytes of buffered bodies.
        wait_slots: slots for responses that wait.
        watch_slots: slots for event streams.
        follow_slots: slots for streams of a run's output.
        closing: whether the server stops.
        key_revoked: woken when an access key is revoked.
        write_lock: a lock, held while a part of a list is written: one part in each round of the loop, for all requests
            together.
    """

    controller: Controller
    limits: ApiLimits
    document: Callable[[], bytes]
    metrics: MetricsPage
    requests: Slots
    work_slots: WorkSlots
    open_slots: Slots
    body_bytes: Slots
    wait_slots: Slots
    watch_slots: Slots
    follow_slots: Slots
    closing: Shutdown = field(default_factory=Shutdown)
    key_revoked: Wakeup = field(default_factory=Wakeup)
    write_lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class RequestContext:
    """One request.

    Attributes:
        service: shared by all requests.
        route: the requested operation as it is served; ``operation`` is its row in the table.
        caller: the caller; known unless the operation is open.
        headers: by lower-case name; those with an effect are there once.
        peer: the name in the client's certificate; None if none is required.
        person: the uid of the process behind a Unix socket; None: it came another way.
        path_values: values of the path by name, unchecked; ``path_value`` checks them.
        request_id: the id of this request in responses and logs.
        secret: the access key, once it was accepted.
    """

    __slots__ = (
        "_caller",
        "_content",
        "_kept",
        "_receive",
        "_texts",
        "_values",
        "headers",
        "operation",
        "path_values",
        "peer",
        "person",
        "request_id",
        "route",
        "secret",
        "service",
    )

    def __init__(self, service: ApiContext, route: Route, request: Request) -> None:
        scope = request.scope
        self.service = service
        self.route = route
        self.operation = route.operation
        self.headers: dict[bytes, bytes] = index_headers(scope["headers"])
        self.path_values: dict[str, str] = scope["path_params"]
        self.peer: Peer | None = scope.get(PEER)
        self.person: int | None = scope.get(PERSON)
        self.request_id: str = scope[REQUEST_ID_KEY]
        self.secret = ""
        self._caller: Caller | None = None
        self._content = b""
        self._kept: BufferedBody | None = None
        self._receive: Receive = request.receive
        query = scope["query_string"]
        self._texts = read_query(query, route.query) if query else {}
        self._values: dict[str, Any] = {}  # parsed values; ``serve`` reads them

    @property
    def controller(self) -> Controller:
        """The use cases."""
        return self.service.controller

    # -- what is asked -----------------------------------------------------------------------------------------------

    async def identify(self) -> None:
        """Find the caller.

        Raises:
            MooringsError: ``auth.missing``, ``auth.invalid``, ``auth.expired``, ``auth.certificate_mismatch``,
                ``auth.denied`` (no account that may use a shared machine).
        """
        if self.person is not None:
            self._caller = await self.authenticate()
            return
        secret = parse_bearer(self.headers)
        caller = await self.service.controller.authenticate(secret, after_expiry=self.operation.after_expiry)
        if caller.run is not None:
            self._check_run_token(caller.run)
        check_certificate_binding(caller, self.peer, is_forwarded=STANDBY_HEADER in self.headers)
        self._caller = caller
        self.secret = secret

    def _check_run_token(self, run: str) -> None:
        if not self.operation.takes_run_token or self.path_values.get("id") != run:
            detail = "the token of a run serves to report on that run, and for nothing else"
            raise MooringsError("auth.denied", detail, hint="use your access key")

    async def authenticate(self) -> Caller:
        """The caller as of now: a key may have been revoked since the request was accepted, or an account closed.

        Raises:
            MooringsError: as ``identify``.
        """
        if self.person is None:
            return await self.controller.authenticate(self.secret)
        if b"authorization" in self.headers:
            detail = "this socket knows who asks, and takes no access key"
            raise MooringsError("auth.invalid", detail, hint="leave the key out, or use the controller's other address")
        return await self.controller.identify_person(self.person)

    async def serve(self) -> Response:
        """The response of the operation, once its body has arrived and the caller has a work slot.

        The body first: a work slot is for work, and a slow sender's other requests would wait for its body.

        Raises:
            MooringsError: the request is refused.
        """
        # All of them: an invalid one is refused, also where the route does not read it.
        self._values = {parameter.name: self._read(parameter) for parameter in self.route.query}
        key, desks = self.caller.key_id, self.service.work_slots
        try:
            if self.operation.body is not None:
                self._kept = BufferedBody(self.service.body_bytes, key)
                self._content = await read_body(self._receive, self.headers, self.service.limits, self._kept)
                await self.identify()  # a body may come slowly, and the key may have been revoked meanwhile
            await desks.acquire(key)
            try:
                return await self.route.serve(self)
            finally:
                desks.release(key)
        finally:
            self._release_body()

    def _release_body(self) -> None:
        self._content = b""
        if self._kept is not None:
            self._kept.release()

    @property
    def caller(self) -> Caller:
        """The caller."""
        assert self._caller is not None, f"{self.operation.path} is open: nobody was asked for a key"
        return self._caller

    def path_value(self, name: str) -> str:
        """A value of the path.

        Raises:
            MooringsError: ``path.unknown`` (no resource has such a name).
        """
        value = self.path_values[name]
        if len(value) > PATH_VALUE_CHARS_MAX or not (value.isascii() and value.isprintable()):
            raise MooringsError("path.unknown", f"nothing is called {value[:40]!r}", hint="names are ASCII, and short")
        return value

    def query_value(self, parameter: Parameter[T]) -> T:
        """A value of the query, or its default."""
        value: T = self._values[parameter.name]
        return value

    def _read(self, parameter: Parameter[T]) -> T:
        """The parsed value of a query parameter.

        Raises:
            MooringsError: ``page.invalid``, ``duration.invalid``.
        """
        texts = self._texts.get(parameter.name, ())
        if parameter.required and not texts:
            raise MooringsError("page.invalid", f"{parameter.name} is missing", hint=parameter.description)
        return parameter.parse(texts)

    def page_request(self, kind: str, *, most: int = LIMIT_MAX) -> PageRequest:
        """The requested page of a list of ``kind``, of at most ``most`` items whatever the request says.

        Raises:
            MooringsError: ``page.invalid``.
        """
        token = self.query_value(CONTINUE)
        return PageRequest(
            kind, min(self.query_value(LIMIT), most), None if token is None else parse_token(kind, token)
        )

    def idempotency_key(self) -> str | None:
        """The idempotency key.

        Raises:
            MooringsError: ``key.invalid``.
        """
        raw = self.headers.get(KEY_HEADER.lower().encode())
        if raw is None:
            return None
        return check_idempotency_key(raw.decode("latin-1"))

    def parse_body(self, shape: type[T]) -> T:
        """The body, checked; may be read once.

        Raises:
            MooringsError: ``body.not_utf8``, ``body.not_json``, ``body.invalid``.
        """
        try:
            return parse_body(shape, self._content)
        finally:
            self._release_body()

    async def wait_for(self, work: Awaitable[T], wait_s: float) -> T:
        """The result of ``work``, which may wait; it is cancelled when the client has gone or the server stops.

        Raises:
            MooringsError: what ``work`` raises, or ``controller.unreachable``.
        """
        if not wait_s:
            return await work
        seats, key = self.service.wait_slots, self.caller.key_id
        try:
            seats.require(key)
        except MooringsError:
            asyncio.ensure_future(work).cancel()
            raise
        try:
            async with self.service.work_slots.released(key):
                return await self.service.closing.run_or_abort(work, gone=wait_for_disconnect(self._receive))
        finally:
            seats.release(key)

    # -- what is answered --------------------------------------------------------------------------------------------

    def respond(self, body: object, *, location: str | None = None) -> Response:
        """The response with one body."""
        kind = self.operation.response.kind
        return self._respond({"apiVersion": API_VERSION, "kind": kind, **encode(body)}, location)

    async def respond_list(self, bodies: Iterable[object], after: str | None) -> Response:
        """The response with one page of a list; ``after`` continues it.

        A thousand claims take 50 ms to write. They are written in parts, and other requests are served in between:
        ``bodies`` should make each item lazily.
        """
        head = dumps({"apiVersion": API_VERSION, "kind": self.operation.response.kind})[:-1]
        tail = "]}" if after is None else f'],"continue":{dumps(after)}}}'
        text = f'{head},"items":[{",".join(await encode_items(bodies, self.service.write_lock))}{tail}'
        return Response(text.encode(), self.operation.response.status, None, "application/json")

    def respond_empty(self) -> Response:
        """The response without a body, for success."""
        return Response(status_code=self.operation.response.status)

    def _respond(self, content: object, location: str | None = None) -> Response:
        headers = None if location is None else {"Location": location}
        return Response(dumps(content).encode(), self.operation.response.status, headers, "application/json")
