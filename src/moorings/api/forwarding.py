"""The API of a standby: it forwards requests to the leader.

So every address of an installation serves the whole API, and clients need not know the leader. Answering reads from the
database here was refused: two controllers would give two answers to one question (the leader's memory knows what is in
progress), and a change would have to be forwarded anyway. A redirect was refused because curl and most libraries drop
the access key when the host changes.

Without a leader, a request waits for a few seconds before it is refused: a change of leader takes about one.

Callers prove their access key here already, before anything of theirs is buffered: else strangers would fill this
controller's slots and memory with requests that the leader refuses. The leader checks the key again, so the holder of a
key revoked since gets only the leader's refusal.

A client's certificate cannot be forwarded: its TLS ends here. So it is compared with the access key here, and the
leader trusts this because our own certificate names a controller; a header alone proves nothing.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import httpx2
from starlette.responses import JSONResponse, Response

import moorings
from moorings.api import openapi
from moorings.api.limits import DEFAULT_LIMITS, ApiLimits, Slots
from moorings.api.metrics import MEDIA_TYPE, standby_text
from moorings.api.request_body import STANDBY_HEADER, index_headers, parse_bearer, read_body, wait_for_disconnect
from moorings.api.request_context import REQUEST_ID_KEY, Shutdown
from moorings.api.server import client_network
from moorings.api.tls import PEER
from moorings.core.model.access import Caller, check_certificate_binding
from moorings.core.model.errors import MooringsError
from moorings.net.limits import BufferedBody
from moorings.net.problems import problem_response
from moorings.wire.codec import encode
from moorings.wire.operations import KEY_HEADER, OPERATIONS
from moorings.wire.shapes import API_VERSION, VersionBody

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

T = TypeVar("T")

log = logging.getLogger("moorings.api")

LEADER_WAIT_S: Final = 8.0  # how long a request waits without a leader
RETRY_S: Final = 0.1
CONNECT_S: Final = 1.0
POOL_S: Final = 2.0  # for one of the connections to the leader to become free

# RFC 9110, section 7.6.1; and the headers that the server under us writes itself.
_ONE_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade", b"content-length", b"expect", b"date", b"server"),
        *(b"x-request-id", b"cache-control", b"x-content-type-options", STANDBY_HEADER),
    }
)
# Headers that decide about a request are forwarded, whatever Connection says: without them the request would mean
# something else.
_NEVER_ONE_HOP = frozenset({b"authorization", b"content-type", b"host", b"idempotency-key", b"last-event-id"})
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
# A claim's name may mean another claim by the second time; an id means one claim for ever.
_RELEASE_BY_ID = re.compile(r"/v1/claims/claim-[a-z2-7]{12}(-[0-9]+)?")
_KEYED = frozenset(
    operation.path for operation in OPERATIONS if operation.method == "POST" and operation.takes_idempotency_key
)
_FINAL_CODES = frozenset(
    {"auth.missing", "auth.invalid", "auth.expired", "auth.certificate_mismatch", "run.ended"}
)  # asking the store again would not help


class LeaderUnreachableError(Exception):
    """The leader did not answer. ``may_have_been_sent``: it may have received the request."""

    def __init__(self, detail: str, *, sent: bool) -> None:
        super().__init__(detail)
        self.may_have_been_sent = sent


class ForwardingApplication:
    """The API of a standby.

    Args:
        leader: gives the address of the leader, ``""`` if it is not known.
        installation: id of the installation.
        limits: the bounds on connections and work.
        patience_s: how long a request waits for a leader.
        authenticate: finds the owner of an access key, as ``controller.keys.AccessKeyManager`` does. None: no key is
            checked here, and each address gets one key's part of everything.
        tls: for requests to the leader over TLS; None: with the system's authorities.
    """

    def __init__(
        self,
        leader: Callable[[], str],
        installation: str,
        limits: ApiLimits = DEFAULT_LIMITS,
        patience_s: float = LEADER_WAIT_S,
        authenticate: Callable[[str], Awaitable[Caller]] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.closing = Shutdown()
        self._leader = leader
        self._installation = installation
        self._limits = limits
        self._patience_s = patience_s
        self._authenticate = authenticate
        self._requests = Slots("requests", limits.requests_max, limits.requests_per_key_max)
        self._bodies = Slots("bytes of bodies", limits.bodies_bytes_max, limits.bodies_bytes_per_key_max)
        self._letting_go: set[asyncio.Future[None]] = set()
        # Waits and event streams have no limit; proxies and .netrc of the environment are ignored.
        self._client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(None, connect=CONNECT_S, pool=POOL_S),
            # The leader sees one address, and allows it no more.
            limits=httpx2.Limits(max_connections=limits.connections_per_address_max, max_keepalive_connections=32),
            trust_env=False,
            verify=True if tls is None else tls,
        )

    async def close(self) -> None:
        """Close the connections to the leader."""
        await self._client.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request_id: str = scope[REQUEST_ID_KEY]
        own = {
            "/healthz": self._health,
            "/livez": self._health,
            "/readyz": self._readiness,
            "/version": self._version,
            "/metrics": self._metrics,
            "/openapi.json": self._document,
        }
        try:
            if scope["path"] in own and scope["method"] == "GET":
                await own[scope["path"]](request_id)(scope, receive, send)
                return
            await self._forward(scope, receive, send)
        except MooringsError as error:
            await problem_response(error, request_id)(scope, receive, send)

    # -- what it knows itself ----------------------------------------------------------------------------------------

    def _health(self, _request_id: str) -> Response:
        return JSONResponse({"status": "alive"})

    def _metrics(self, _request_id: str) -> Response:
        return Response(standby_text(ready=bool(self._leader())), headers={"Content-Type": MEDIA_TYPE})

    def _document(self, _request_id: str) -> Response:
        return Response(openapi.document_bytes(), media_type="application/json")

    def _readiness(self, request_id: str) -> Response:
        if self._leader():
            return JSONResponse({"status": "ready"})
        return problem_response(_no_leader(), request_id)

    def _version(self, _request_id: str) -> Response:
        body = VersionBody(version=moorings.__version__, api_version=API_VERSION, installation=self._installation)
        return JSONResponse({"apiVersion": API_VERSION, "kind": "Version", **encode(body)})

    # -- what the leader knows ---------------------------------------------------------------------------------------

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = index_headers(scope["headers"])
        if STANDBY_HEADER in headers:
            refused = problem_response(_no_leader(), scope[REQUEST_ID_KEY])
            refused.headers[STANDBY_HEADER.decode()] = "1"
            await refused(scope, receive, send)
            return
        key = await self.closing.run_or_abort(self._identify(scope, headers))
        with self._requests.hold(key):
            leader, answer = await self._answer_of_leader(scope, receive, headers, key)
            await self._pass_on(scope, receive, send, leader, answer)

    async def _identify(self, scope: Scope, headers: Mapping[bytes, bytes]) -> str:
        """The key under which the request's slots are counted.

        Raises:
            MooringsError: ``auth.missing``, ``auth.invalid``, ``auth.expired``, ``auth.certificate_mismatch``;
                ``store.unavailable`` after ``patience_s``.
        """
        if self._authenticate is None:
            return client_network(scope.get("client"))
        secret, clock = parse_bearer(headers), asyncio.get_running_loop().time
        deadline = clock() + self._patience_s
        while True:
            try:
                caller = await self._authenticate(secret)
                check_certificate_binding(caller, scope.get(PEER))
                return caller.key_id
            except MooringsError as error:
                if error.code in _FINAL_CODES or clock() > deadline:
                    raise
            await asyncio.sleep(RETRY_S)

    async def _answer_of_leader(
        self, scope: Scope, receive: Receive, headers: Mapping[bytes, bytes], key: str
    ) -> tuple[str, httpx2.Response]:
        kept = BufferedBody(self._bodies, key)
        try:
            body = await read_body(receive, headers, self._limits, kept)
            return await self.closing.run_or_abort(
                self._send_to_leader(scope, headers, body), gone=wait_for_disconnect(receive)
            )
        finally:
            kept.release()

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, leader: str, answer: httpx2.Response) -> None:
        try:
            await self.closing.run_or_abort(
                self._while_it_leads(leader, _relay(answer, send)), gone=wait_for_disconnect(receive)
            )
        except (LeaderUnreachableError, MooringsError, httpx2.HTTPError) as error:
            # The response has begun: the only signal left is that it is incomplete, and the server gives it by closing.
            log.info("answer.cut_off", extra={"detail": repr(error), "request": scope[REQUEST_ID_KEY]})
        finally:
            await answer.aclose()

    async def _send_to_leader(
        self, scope: Scope, headers: Mapping[bytes, bytes], body: bytes
    ) -> tuple[str, httpx2.Response]:
        """The leader and its response, as soon as it begins.

        Raises:
            MooringsError: ``controller.no_leader``, ``controller.unreachable``.
        """
        again = _may_be_asked_again(scope, headers)
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._patience_s
        while True:
            leader = self._leader()
            try:
                return leader, await self._while_it_leads(leader, self._try(leader, scope, body))
            except LeaderUnreachableError as error:
                if error.may_have_been_sent and not again:
                    raise _lost(str(error)) from error
                if clock() > deadline:
                    raise (_lost(str(error)) if error.may_have_been_sent else _no_leader()) from error
            await asyncio.sleep(RETRY_S)

    async def _while_it_leads(self, leader: str, work: Coroutine[object, object, T]) -> T:
        """The result of ``work`` with that leader; a hanging leader keeps its connections open, and never answers.

        Raises:
            LeaderUnreachableError: another controller leads by now.
        """
        task = asyncio.create_task(work)
        try:
            while not (await asyncio.wait([task], timeout=RETRY_S))[0]:
                self._check_leads(leader)
            return task.result()
        except BaseException:
            task.add_done_callback(self._close_unread)  # a response may come at the moment its caller is cancelled
            raise
        finally:
            task.cancel()

    def _check_leads(self, leader: str) -> None:
        if self._leader() not in (leader, ""):
            raise LeaderUnreachableError(f"{leader} leads no longer", sent=True)

    def _close_unread(self, task: asyncio.Task[Any]) -> None:
        """Close a response without a reader: it would keep its connection to the leader for ever."""
        if not task.cancelled() and task.exception() is None and isinstance(task.result(), httpx2.Response):
            closing = asyncio.ensure_future(task.result().aclose())
            self._letting_go.add(closing)
            closing.add_done_callback(self._letting_go.discard)

    async def _try(self, leader: str, scope: Scope, body: bytes) -> httpx2.Response:
        if not leader:
            raise LeaderUnreachableError("nobody leads", sent=False)
        request = httpx2.Request(
            scope["method"],
            leader,
            headers=[
                *_forwarded_headers(scope["headers"]),
                (b"x-request-id", scope[REQUEST_ID_KEY].encode()),
                (STANDBY_HEADER, b"1"),
            ],
            content=body or None,
            extensions={"target": _target(scope)},
        )
        try:
            answer = await self._client.send(request, stream=True)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise LeaderUnreachableError(f"{leader} does not answer: {error!r}", sent=False) from error
        except httpx2.PoolTimeout:
            raise MooringsError(
                "controller.busy",
                "all connections to the controller that leads are taken",
                hint="try again in a moment, or ask the controller that leads",
                retryable=True,
            ) from None
        except httpx2.HTTPError as error:
            raise LeaderUnreachableError(f"{leader} gave no answer: {error!r}", sent=True) from error
        if STANDBY_HEADER.decode() in answer.headers:  # it led a moment ago
            await answer.aclose()
            raise LeaderUnreachableError(f"{leader} does not lead any more", sent=False)
        return answer


def _may_be_asked_again(scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a repeated request does no harm, if the leader had done it already and only its response was lost."""
    method, path = scope["method"], scope["path"]
    if method == "DELETE":
        return _RELEASE_BY_ID.fullmatch(path) is not None
    return method in _SAFE or (path in _KEYED and KEY_HEADER.lower().encode() in headers)


def _forwarded_headers(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers to forward, without those for this hop, which ``Connection`` names."""
    named = {
        word.strip().lower() for name, value in headers if name == b"connection" for word in value.split(b",")
    } - _NEVER_ONE_HOP
    return [(name, value) for name, value in headers if name not in _ONE_HOP and name not in named]


async def _relay(answer: httpx2.Response, send: Send) -> None:
    headers = _forwarded_headers([(name.lower(), value) for name, value in answer.headers.raw])
    length = answer.headers.get("content-length")
    if length is not None:
        headers.append((b"content-length", length.encode()))
    await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
    async for part in answer.aiter_raw():
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _target(scope: Scope) -> bytes:
    """Path and query as received."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return path + b"?" + query if query else path


def _no_leader() -> MooringsError:
    return MooringsError(
        "controller.no_leader",
        "no controller of this installation leads at this moment",
        hint="nothing was changed; ask again in a moment",
        retryable=True,
    )


def _lost(detail: str) -> MooringsError:
    return MooringsError(
        "controller.unreachable",
        f"the controller that leads gave no answer; what was asked for may have been done ({detail})",
        hint="ask again in a moment, with the same idempotency key",
        retryable=True,
    )
