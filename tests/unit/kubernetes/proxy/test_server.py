"""The server's bounds, over real sockets: slow requests, slow readers, idle connections, large heads and bodies."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.kube.api import KubeError, KubeObject, ResourceType
from moorings.kubernetes.kube.certificates import make_certificates
from moorings.kubernetes.kube.serving_certificate import load_certificate
from moorings.kubernetes.proxy.authentication import POD_NAME, ProxyCaller, TokenAuthenticator
from moorings.kubernetes.proxy.partition_manager import PartitionManager
from moorings.kubernetes.proxy.program import PlainRoutes
from moorings.kubernetes.proxy.routes import ProxyRoutes
from moorings.kubernetes.proxy.server import ClientTimeouts, ProxyServer, listen
from moorings.kubernetes.proxy_api.client import ProxyClient
from moorings.kubernetes.proxy_api.shapes import AUDIENCE
from moorings.net.tls import make_bare_context
from tests.waiting import patient

OPERATOR = "system:serviceaccount:ops:operator"
CLAIMS = {"namespace": "ops", "serviceaccount": {"name": "operator", "uid": "u"}}
TIMES = ClientTimeouts(idle_s=1, read_s=0.5, write_s=1.0, connections_max=20)
LONG_S = 3600.0  # longer than anybody waits here: another limit must have been over


def token(called: str, aud: object = AUDIENCE, exp: object = 1e11, **more: object) -> str:
    """What looks like a service account's token."""
    claims = {"iss": "https://a", "sub": OPERATOR, "kubernetes.io": CLAIMS, "aud": aud, "exp": exp, **more}
    return ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": "RS256"}, claims, called)
    )


GOOD, SECRET = token("good"), token("secret")


class Reviews:
    """An API server that knows a few good tokens; only what the door calls."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.away = False
        self.answers = asyncio.Event()
        self.answers.set()
        self.good: dict[str, KubeObject] = {GOOD: {"username": OPERATOR}}

    async def create(self, kind: ResourceType, body: KubeObject, namespace: str | None = None) -> KubeObject:
        assert kind.plural == "tokenreviews"
        assert body["spec"]["audiences"] == [AUDIENCE]
        sent = body["spec"]["token"]
        self.asked.append(sent)
        await self.answers.wait()
        if self.away:
            raise KubeError(503, "ServiceUnavailable", f"no review of {sent}")
        good = sent in self.good
        user = self.good.get(sent, {})
        return {"status": {"authenticated": good, "audiences": [AUDIENCE] if good else [], "user": user}}


def door(reviews: Reviews, now: Any = time.monotonic, clock: Any = time.time) -> TokenAuthenticator:
    return TokenAuthenticator(reviews, frozenset({OPERATOR}), now, clock)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def serving(times: ClientTimeouts = TIMES) -> AsyncIterator[int]:
    keeper = PartitionManager("lab", {}, "abc", lambda: 0)
    listening = listen("127.0.0.1", 0)
    server = ProxyServer(ProxyRoutes(keeper, door(Reviews()), times.write_s * 0.9), times)
    task = asyncio.create_task(server.serve([listening]))
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await task


async def talk(port: int, *parts: bytes, pause_s: float = 0.0) -> tuple[bytes, float]:
    """What comes back until the server ends the connection, and after how many seconds."""
    begun = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await asyncio.sleep(pause_s)
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(patient(10)):
                return await reader.read(), time.monotonic() - begun
        return b"", time.monotonic() - begun
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def serving_tls(*, is_open: bool) -> AsyncIterator[tuple[ssl.SSLContext, int, int]]:
    """The server's context, its port for HTTPS, and the one without."""
    keeper, context = PartitionManager("lab", {}, "abc", lambda: 0), make_bare_context()
    routes = ProxyRoutes(keeper, door(Reviews()), 1.0)
    listening, plain = listen("127.0.0.1", 0), listen("127.0.0.1", 0)
    servers = [
        (ProxyServer(routes, TIMES, routes.close, context), listening),
        (ProxyServer(PlainRoutes(routes, is_open=is_open), TIMES), plain),
    ]
    tasks = [asyncio.create_task(server.serve([sock])) for server, sock in servers]
    try:
        yield context, listening.getsockname()[1], plain.getsockname()[1]
    finally:
        for server, _ in servers:
            server.should_exit = True
        await asyncio.gather(*tasks)


async def ask(url: str, path: str, sent: str = "", ca: bytes = b"") -> tuple[int, dict[str, Any]]:
    trust = ssl.create_default_context(cadata=ca.decode() or None)
    headers = {"Authorization": f"Bearer {sent}"} if sent else {}
    async with httpx2.AsyncClient(verify=trust) as http:
        answer = await http.get(url + path, headers=headers)
    return answer.status_code, answer.json()


@pytest.mark.parametrize("is_open", [True, False])
async def test_without_tls_no_token_is_served_and_what_is_open_only_where_that_is_wanted(is_open: bool) -> None:
    held = make_certificates(["127.0.0.1"], datetime.now(UTC))
    async with serving_tls(is_open=is_open) as (context, port, plain_port):
        load_certificate(context, held)
        private, plain = f"https://127.0.0.1:{port}", f"http://127.0.0.1:{plain_port}"
        assert (await ask(private, "/v1/partitions", GOOD, held.ca))[0] == 200
        assert (await ask(private, "/stats", ca=held.ca))[0] == 200
        for path, sent in (("/v1/partitions", GOOD), ("/v1/partitions", ""), ("/stats", GOOD), ("/nothing", "")):
            status, told = await ask(plain, path, sent)
            assert (status, told["code"], told["retryable"]) == (421, "request.not_private", True)
            assert GOOD not in str(told)
        status, _ = await ask(plain, "/stats")
        assert status == (200 if is_open else 421)


async def test_a_new_certificate_is_served_without_a_restart_and_believed_by_a_client_that_runs() -> None:
    first, second = (make_certificates(["127.0.0.1"], datetime.now(UTC)) for _ in range(2))
    async with serving_tls(is_open=False) as (context, port, _):
        load_certificate(context, first)
        async with ProxyClient(f"https://127.0.0.1:{port}", token=lambda: GOOD) as client:
            with pytest.raises(MooringsError, match="was not reached") as caught:
                await client.list()
            assert caught.value.retryable, "the operator goes on when it knows the authority"
            client.add_authorities(first.ca.decode())
            assert (await client.list()).items == ()
            load_certificate(context, second)
            await asyncio.sleep(TIMES.idle_s * 1.5)  # the connection that is kept has the old one
            with pytest.raises(MooringsError, match="was not reached"):
                await client.list()
            client.add_authorities(second.ca.decode())
            assert (await client.list()).items == ()
            with pytest.raises(MooringsError) as caught:
                client.add_authorities("nonsense")
            assert caught.value.code == "config.invalid"


@pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"]
)
async def test_who_does_not_finish_a_handshake_leaves_room_for_others() -> None:
    held = make_certificates(["127.0.0.1"], datetime.now(UTC))
    async with serving_tls(is_open=False) as (context, port, _), contextlib.AsyncExitStack() as stack:
        load_certificate(context, held)
        for _ in range(TIMES.connections_max // 2):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(patient(10)):
            assert await reader.read() == b"", "this address has its part"
        writer.close()
        trust = ssl.create_default_context(cadata=held.ca.decode())
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=trust, local_addr=("127.0.0.2", 0), server_hostname="127.0.0.1"
        )
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(patient(10)):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()


QUERY = b"POST /query HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n"


@pytest.mark.parametrize("begin", [b"", b"GET /stats HT", QUERY, QUERY + b'{"si'])
async def test_a_request_that_does_not_arrive_is_given_up(begin: bytes) -> None:
    async with serving(replace(TIMES, idle_s=LONG_S, write_s=LONG_S)) as port:
        _, took_s = await talk(port, begin)
        assert took_s > 0.3


async def test_an_idle_connection_is_ended_and_a_used_one_is_not() -> None:
    async with serving(replace(TIMES, idle_s=4, write_s=LONG_S)) as port:
        ask = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
        text, took_s = await talk(port, ask, ask, ask, pause_s=0.6)
        assert text.count(b'{"status":"alive"}') == 3, "the pauses are longer than a request may take"
        assert took_s > 2 * 0.6 + 3


async def test_a_watch_ends_before_its_time_is_up() -> None:
    async with serving(replace(TIMES, idle_s=LONG_S, read_s=LONG_S)) as port:
        ask = b"GET /v1/partitions/watch?since=abc-0 HTTP/1.1\r\nhost: x\r\n"
        ask += b"authorization: Bearer %s\r\n\r\n" % GOOD.encode()
        text, _ = await talk(port, ask, b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert b": watching" in text
        assert b"0\r\n\r\n" in text, "it has an end, and is not broken off"
        assert text.endswith(b'{"status":"alive"}'), "the connection is of use after that"


async def test_what_is_too_large_is_refused() -> None:
    async with serving() as port:
        text, _ = await talk(port, b"GET /stats HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 100_000)
        assert b"400 Bad Request" in text
        head = b"POST /query HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n"
        text, _ = await talk(port, head)
        assert b"body.too_large" in text


async def test_a_good_token_is_reviewed_once_a_minute_and_renewed_before_that_is_over() -> None:
    reviews, now = Reviews(), [0.0]
    found = door(reviews, lambda: now[0])
    visitors = await asyncio.gather(*(found.authenticate(f"Bearer {GOOD}") for _ in range(5)))
    assert all(visitor.operator for visitor in visitors)
    assert reviews.asked == [GOOD]
    now[0] = 39.0
    await found.authenticate(f"bearer {GOOD}")
    assert reviews.asked == [GOOD]
    now[0] = 41.0
    reviews.answers.clear()
    async with asyncio.timeout(patient(5)):
        assert (await found.authenticate(f"Bearer {GOOD}")).operator, "nobody waits for the renewal"
    reviews.answers.set()
    for _ in range(3):
        await asyncio.sleep(0)
    assert reviews.asked == [GOOD, GOOD]
    now[0], reviews.away = 100.0, True
    assert (await found.authenticate(f"Bearer {GOOD}")).operator, "as found at 41 s"
    now[0] = 102.0
    with pytest.raises(MooringsError, match="did not review"):
        await found.authenticate(f"Bearer {GOOD}")


async def test_a_token_is_not_remembered_beyond_its_end() -> None:
    reviews, now, clock = Reviews(), [0.0], [1000.0]
    short = token("short", exp=1020)
    reviews.good[short] = {"username": OPERATOR}
    found = door(reviews, lambda: now[0], lambda: clock[0])
    await found.authenticate(f"Bearer {short}")
    now[0], clock[0] = 21.0, 1021.0
    with pytest.raises(MooringsError, match="not valid here"):
        await found.authenticate(f"Bearer {short}")
    clock[0] = 1019.0  # set back meanwhile
    await found.authenticate(f"Bearer {short}")
    assert reviews.asked == [short, short]


async def test_nothing_is_remembered_where_no_answer_came_and_no_token_is_told() -> None:
    reviews = Reviews()
    reviews.away = True
    found = door(reviews)
    for _ in range(2):
        with pytest.raises(MooringsError, match="did not review") as refused:
            await found.authenticate(f"Bearer {SECRET}")
        assert SECRET not in str(refused.value)
    assert reviews.asked == [SECRET, SECRET]


WRONG: list[object] = [
    None,
    [],
    {},
    {"namespace": "ops"},
    CLAIMS | {"namespace": "a"},
    CLAIMS | {"serviceaccount": "x"},
]


@pytest.mark.parametrize(
    "sent",
    [
        *("x", "a.b", "a.b.c.d", "..", "a.%%%.c", "a.W10.c", f"{GOOD}.x", "a." + "Wyc" * 4000 + ".c"),
        *(token("x", aud="other"), token("x", aud=["other"]), token("x", aud=None)),
        *(token("x", exp=1), token("x", exp="later"), token("x", exp=None)),
        *(token("x", exp=10**400), token("x", exp=-(10**400)), token("x", exp=float("inf"))),
        *(token("x", iss=None), token("x", sub="ann"), token("x", sub=None), token("x", sub=f"{OPERATOR}s")),
        *(token("x", **{"kubernetes.io": told}) for told in WRONG),
    ],
)
async def test_what_cannot_be_good_is_refused_without_a_review(sent: str) -> None:
    reviews = Reviews()
    with pytest.raises(MooringsError) as refused:
        await door(reviews).authenticate(f"Bearer {sent}")
    assert refused.value.code == "auth.invalid"
    assert reviews.asked == []


async def test_made_up_tokens_do_not_keep_the_operator_out() -> None:
    reviews, now = Reviews(), [0.0]
    found = door(reviews, lambda: now[0])
    assert (await found.authenticate(f"Bearer {GOOD}")).operator
    now[0] = 61.0  # what is known of it is too old
    reviews.answers.clear()
    others = [asyncio.create_task(found.authenticate(f"Bearer {token(f'made up {number}')}")) for number in range(40)]
    await asyncio.sleep(0)
    mine = asyncio.create_task(found.authenticate(f"Bearer {GOOD}"))
    await asyncio.sleep(0)
    reviews.answers.set()
    assert (await mine).operator
    refused = await asyncio.gather(*others, return_exceptions=True)
    assert {one.code for one in refused if isinstance(one, MooringsError)} == {"auth.invalid", "controller.busy"}


async def test_who_makes_up_tokens_leaves_room_for_others_to_show_their_first() -> None:
    reviews = Reviews()
    first = token("never seen before")
    reviews.good[first] = {"username": OPERATOR}
    found = door(reviews)
    reviews.answers.clear()
    made_up = {f"10.0.0.{host}": [token(f"made up {host} {number}") for number in range(40)] for host in (1, 2, 3)}
    others = [
        asyncio.create_task(found.authenticate(f"Bearer {one}", host))
        for host, tokens in made_up.items()
        for one in tokens
    ]
    await asyncio.sleep(0)
    mine = asyncio.create_task(found.authenticate(f"Bearer {first}", "10.0.0.4"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(reviews.asked) == 15, "8, 4 and 2 of theirs, and mine"
    reviews.answers.set()
    assert (await mine).operator
    refused = await asyncio.gather(*others, return_exceptions=True)
    assert {one.code for one in refused if isinstance(one, MooringsError)} == {"auth.invalid", "controller.busy"}
    for host in made_up:  # what is done with takes no place
        with pytest.raises(MooringsError, match="not valid here"):
            await found.authenticate(f"Bearer {token('another ' + host)}", host)


async def test_the_address_is_that_of_the_connection() -> None:
    asked: list[str] = []

    class Listening(TokenAuthenticator):
        async def authenticate(self, authorization: str, address: str = "") -> ProxyCaller:
            asked.append(address)
            return await super().authenticate(authorization, address)

    keeper = PartitionManager("lab", {}, "abc", lambda: 0)
    reviews: Any = Reviews()
    listening = listen("127.0.0.1", 0)
    server = ProxyServer(ProxyRoutes(keeper, Listening(reviews, frozenset({OPERATOR})), 0.1), TIMES)
    task = asyncio.create_task(server.serve([listening]))
    head = b" HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 9.9.9.9\r\nauthorization: Bearer %s\r\n\r\n" % GOOD.encode()
    port = listening.getsockname()[1]
    for line in (b"GET /v1/partitions", b"DELETE /v1/partitions/a/b/c/0", b"GET /v1/partitions/watch?since=abc-0"):
        await talk(port, line + head)
    server.should_exit = True
    await task
    assert asked == ["127.0.0.1"] * 3


@pytest.mark.parametrize(
    ("pod", "sees", "uses"),
    [
        (["train-launcher"], True, [0]),
        (["train-launcher-2"], True, [2]),
        *((name, False, []) for name in (["train-launcher-02"], ["train-launcher-x"], ["train-worker-0"], ["x"])),
        *((name, False, []) for name in (None, [], "train-launcher", ["train-launcher-"], ["train-launcherx"])),
    ],
)
async def test_only_the_launchers_pod_is_a_launcher(pod: object, sees: bool, uses: list[int]) -> None:
    reviews = Reviews()
    account = {"username": "system:serviceaccount:a:train-launcher", "extra": {POD_NAME: pod}}
    reviews.good[GOOD] = account
    visitor = await door(reviews).authenticate(f"Bearer {GOOD}")
    assert visitor.may_see("a", "train") is sees
    assert [number for number in range(4) if visitor.may_use("a", "train", number)] == uses
    assert not visitor.may_see("b", "train")
    assert not visitor.may_see("a", "other")
    assert not visitor.operator
