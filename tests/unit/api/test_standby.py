"""A controller that stands by: its callers get the leader's answers, whatever happens to the leader meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import httpx2
import pytest

from moorings.api.application import Application
from moorings.api.forwarding import ForwardingApplication
from moorings.api.limits import ApiLimits
from moorings.core.model.access import Caller
from moorings.core.model.claims import ClaimId
from moorings.core.model.errors import MooringsError
from tests.unit.api.pretend import ADMIN, USER, PretendController
from tests.unit.api.sockets import Served, connected, serving, serving_application

CLAIM = b'{"size": 4}'


class Post:
    """Knows who leads."""

    def __init__(self) -> None:
        self.leader = ""


@contextlib.asynccontextmanager
async def standing_by(
    post: Post,
    limits: ApiLimits = ApiLimits(),  # noqa: B008
    patience_s: float = 5.0,
    *,
    controller: PretendController | None = None,
    authenticate: Callable[[str], Awaitable[Caller]] | None = None,
    leader_connections: int = 0,
) -> AsyncIterator[Served]:
    """One that stands by; it asks ``controller`` who holds a key, or nobody."""
    known = authenticate or (controller.authenticate if controller is not None else None)
    own = replace(limits, connections_per_address_max=leader_connections) if leader_connections else limits
    standby = ForwardingApplication(lambda: post.leader, "abc", own, patience_s, known)
    try:
        async with serving_application(Application(standby, standby.closing, limits)) as served:
            yield served
    finally:
        await standby.close()


@pytest.fixture
def post() -> Post:
    return Post()


def url(served: Served) -> str:
    return f"http://127.0.0.1:{served.port}"


async def test_answers_are_the_leaders(controller: PretendController, post: Post) -> None:
    async with serving(controller) as leader, standing_by(post) as standby, connected(standby) as client:
        post.leader = url(leader)
        client.ask("POST", "/v1/claims", CLAIM, x_request_id="mine")
        made = await client.answer()
        assert (made.status, made.json()["size"]) == (201, 4)
        assert made.headers["x-request-id"] == "mine"
        assert made.headers["location"] == f"/v1/claims/{made.json()['id']}"
        client.ask("GET", "/v1/claims?limit=%31")
        assert [item["id"] for item in (await client.answer()).json()["items"]] == [made.json()["id"]]
        client.ask("DELETE", f"/v1/claims/{made.json()['id']}")
        assert (await client.answer()).json()["state"] == "RELEASED"


async def test_refusals_are_the_leaders(controller: PretendController, post: Post) -> None:
    async with serving(controller) as leader, standing_by(post) as standby, connected(standby) as client:
        post.leader = url(leader)
        client.ask("GET", "/v1/claims", authorization="Bearer wrong")
        answer = await client.answer()
        assert (answer.status, answer.json()["code"]) == (401, "auth.invalid")
        assert "www-authenticate" in answer.headers
        client.ask("PATCH", "/v1/claims/%2e%2e/x")
        assert (await client.answer()).status == 404


async def test_a_request_waits_while_nobody_leads(controller: PretendController, post: Post) -> None:
    async with serving(controller) as leader, standing_by(post) as standby, connected(standby) as client:
        client.ask("POST", "/v1/claims", CLAIM)
        asyncio.get_running_loop().call_later(0.25, setattr, post, "leader", url(leader))
        assert (await client.answer()).status == 201


async def test_who_waits_in_vain_is_told_that_nothing_was_changed(post: Post) -> None:
    async with standing_by(post, patience_s=0.0) as standby, connected(standby) as client:
        client.ask("POST", "/v1/claims", CLAIM)
        answer = await client.answer()
        assert (answer.status, answer.json()["code"]) == (503, "controller.no_leader")
        assert answer.json()["retryable"]
        assert answer.headers["retry-after"] == "1"


async def test_a_leader_that_does_not_listen_any_more_is_looked_up_again(
    controller: PretendController, post: Post
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        post.leader = f"http://127.0.0.1:{gone.getsockname()[1]}"
    async with serving(controller) as leader, standing_by(post) as standby, connected(standby) as client:
        client.ask("POST", "/v1/claims", CLAIM)
        asyncio.get_running_loop().call_later(0.05, setattr, post, "leader", url(leader))
        assert (await client.answer()).status == 201


@contextlib.asynccontextmanager
async def deaf() -> AsyncIterator[tuple[str, asyncio.Queue[bytes]]]:
    """A leader that dies of every request it hears; what it heard."""
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.put_nowait(await reader.read(65536))
        writer.close()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heard


async def test_a_leader_that_hangs_is_given_up_once_another_leads(controller: PretendController, post: Post) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hung:  # connects, and never answers
        post.leader = f"http://127.0.0.1:{hung.getsockname()[1]}"
        async with (
            serving(controller) as leader,
            standing_by(post) as standby,
            connected(standby) as client,
            connected(standby) as careless,
        ):
            client.ask("POST", "/v1/claims", CLAIM, idempotency_key="k")
            careless.ask("POST", "/v1/claims", CLAIM)
            asyncio.get_running_loop().call_later(0.2, setattr, post, "leader", url(leader))
            assert (await client.answer()).status == 201
            answer = await careless.answer()
            assert (answer.status, answer.json()["code"]) == (503, "controller.unreachable")


async def test_what_may_have_been_done_is_not_done_twice(controller: PretendController, post: Post) -> None:
    async with deaf() as (dying, heard), standing_by(post) as standby, connected(standby) as client:
        post.leader = dying
        client.ask("POST", "/v1/claims", CLAIM)
        answer = await client.answer()
        assert (answer.status, answer.json()["code"]) == (503, "controller.unreachable")
        assert "idempotency key" in answer.json()["hint"]
        assert heard.qsize() == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "headers"),
    [
        ("POST", "/v1/claims", CLAIM, {"idempotency_key": "k"}),
        ("GET", "/v1/claims", b"", {}),
        ("DELETE", "/v1/claims/claim-abcdefghijkl", b"", {}),
    ],
)
async def test_what_may_be_asked_twice_is(
    controller: PretendController, post: Post, method: str, path: str, body: bytes, headers: dict[str, str]
) -> None:
    async with (
        deaf() as (dying, heard),
        serving(controller) as leader,
        standing_by(post) as standby,
        connected(standby) as client,
    ):
        post.leader = url(leader)
        client.ask("POST", "/v1/claims", CLAIM)
        made = controller.claims.pop((await client.answer()).json()["id"])
        controller.claims["claim-abcdefghijkl"] = replace(made, id=ClaimId("claim-abcdefghijkl"))
        post.leader = dying
        client.ask(method, path, body, **headers)
        await heard.get()
        post.leader = url(leader)
        assert (await client.answer()).status in (200, 201)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/claims/claim-abcdefghijkl/renew"),
        ("POST", "/v1/partitions/p/reset"),
        ("POST", "/v1/keys"),
        ("DELETE", "/v1/claims/train"),
        ("DELETE", "/v1/keys/abc"),
    ],
)
async def test_what_could_mean_something_else_the_second_time_is_asked_once(post: Post, method: str, path: str) -> None:
    """A key for idempotency changes nothing where the operation takes none; a name may be another claim's by then."""
    async with deaf() as (dying, heard), standing_by(post) as standby, connected(standby) as client:
        post.leader = dying
        client.ask(method, path, b"{}", idempotency_key="k")
        answer = await client.answer()
        assert (answer.status, answer.json()["code"]) == (503, "controller.unreachable")
        assert heard.qsize() == 1


# -- what it takes on itself -------------------------------------------------------------------------------------


@pytest.mark.parametrize("authorization", ["", "Bearer moor_no_key"])
async def test_strangers_are_refused_before_anything_of_theirs_is_kept(
    controller: PretendController, post: Post, authorization: str
) -> None:
    limits = ApiLimits(requests_max=4, body_timeout_s=3600, shutdown_s=0)
    async with standing_by(post, limits, controller=controller) as standby, serving(controller) as leader:
        post.leader = url(leader)
        async with contextlib.AsyncExitStack() as stack:
            strangers = [await stack.enter_async_context(connected(standby)) for _ in range(20)]
            for stranger in strangers:  # heads of requests whose bodies never come
                stranger.ask("POST", "/v1/claims", authorization=authorization, content_length="1000")
            assert {(await stranger.answer()).status for stranger in strangers} == {401}
            client = await stack.enter_async_context(connected(standby))
            client.ask("POST", "/v1/claims", CLAIM)
            assert (await client.answer()).status == 201


async def test_slow_bodies_of_one_key_leave_seats_for_others_here_too(
    controller: PretendController, post: Post
) -> None:
    limits = ApiLimits(requests_max=8, requests_per_key_max=4, body_timeout_s=3600, shutdown_s=0)
    async with standing_by(post, limits, controller=controller) as standby, serving(controller) as leader:
        post.leader = url(leader)
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(standby)) for _ in range(12)]
            for client in clients:
                client.ask("POST", "/v1/claims", content_length="1000")
            assert {(await client.answer()).status for client in clients[4:]} == {503}
            other = await stack.enter_async_context(connected(standby))
            other.ask("POST", "/v1/claims", CLAIM, authorization=f"Bearer {ADMIN}")
            assert (await other.answer()).status == 201


async def test_bodies_of_one_key_have_a_share_of_the_memory(controller: PretendController, post: Post) -> None:
    """What is kept while nobody leads is bounded in bytes, and given back."""
    limits = ApiLimits(bodies_bytes_max=1000, bodies_bytes_per_key_max=500)
    async with (
        standing_by(post, limits, controller=controller) as standby,
        serving(controller) as leader,
        connected(standby) as first,
        connected(standby) as second,
        connected(standby) as other,
    ):
        first.ask("POST", "/v1/claims", CLAIM + b" " * 400)
        second.ask("POST", "/v1/claims", CLAIM + b" " * 400)
        refused = asyncio.create_task(second.answer()), asyncio.create_task(first.answer())
        done, _ = await asyncio.wait(refused, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result().json()["code"] for task in done] == ["controller.busy"]
        other.ask("POST", "/v1/claims", CLAIM + b" " * 400, authorization=f"Bearer {ADMIN}")
        post.leader = url(leader)
        assert (await other.answer()).status == 201
        assert sorted([(await task).status for task in refused]) == [201, 503]
        first.ask("POST", "/v1/claims", CLAIM + b" " * 400)
        assert (await first.answer()).status == 201, "the bytes are free again"


async def test_a_key_that_cannot_be_looked_up_is_looked_up_again(controller: PretendController, post: Post) -> None:
    """The database may be away for as long as a change of leaders takes."""
    asked = 0

    async def away_at_first(secret: str) -> Caller:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise MooringsError("store.unavailable", "the database is away", retryable=True)
        return await controller.authenticate(secret)

    async with serving(controller) as leader:
        post.leader = url(leader)
        async with standing_by(post, authenticate=away_at_first) as standby, connected(standby) as client:
            client.ask("GET", "/v1/claims")
            assert (await client.answer()).status == 200


@pytest.mark.parametrize("name", ["authorization", "idempotency-key", "host", "last-event-id"])
async def test_a_header_that_decides_is_there_once_here_too(
    controller: PretendController, post: Post, name: str
) -> None:
    async with serving(controller) as leader, standing_by(post) as standby, connected(standby) as client:
        post.leader = url(leader)
        lines = f"host: m\r\nauthorization: Bearer {USER}\r\n{name}: 1\r\n{name}: 2\r\n"
        client.send(f"POST /v1/claims HTTP/1.1\r\n{lines}content-length: 0\r\n\r\n".encode())
        answer = await client.answer()
        assert (answer.status, answer.json()["code"]) == (400, "request.invalid")


async def test_headers_are_handed_on_as_they_came_but_for_those_of_one_hop(post: Post) -> None:
    async with deaf() as (dying, heard), standing_by(post) as standby, connected(standby) as client:
        post.leader = dying
        lines = "accept: text/a\r\naccept: text/b\r\nx-hop: 1\r\nconnection: close, X-Hop, Authorization\r\n"
        client.send(f"POST /v1/claims HTTP/1.1\r\nhost: m\r\nauthorization: Bearer k\r\n{lines}\r\n".encode())
        seen = (await heard.get()).lower()
        assert seen.index(b"accept: text/a") < seen.index(b"accept: text/b")
        assert b"x-hop" not in seen
        assert b"authorization: bearer k" in seen, "what decides is not left out because its sender says so"


async def test_who_finds_no_connection_to_the_leader_is_told_to_come_again(
    controller: PretendController, post: Post
) -> None:
    async with (
        serving(controller) as leader,
        standing_by(post, ApiLimits(connections_per_address_max=3), leader_connections=1) as standby,
        connected(standby) as watcher,
        connected(standby) as client,
    ):
        post.leader = url(leader)
        watcher.ask("GET", "/v1/events?watch=1")
        assert (await watcher.head()).status == 200
        client.ask("GET", "/v1/claims")
        answer = await client.answer()
        assert (answer.status, answer.json()["code"]) == (503, "controller.busy")


class Answered(httpx2.Response):
    """Tells whether it was closed."""

    closed_at_last = False

    async def aclose(self) -> None:
        self.closed_at_last = True


@pytest.mark.parametrize("rounds", range(1, 6))
async def test_an_answer_that_comes_as_its_caller_goes_is_closed(post: Post, rounds: int) -> None:
    """Whichever of the two is first, in each of the few rounds of the loop between them."""
    standby = ForwardingApplication(lambda: post.leader, "abc")
    coming: asyncio.Future[httpx2.Response] = asyncio.get_running_loop().create_future()

    async def ask() -> httpx2.Response:
        return await coming

    caller = asyncio.create_task(standby._while_it_leads("", ask()))  # no other way to choose the round
    for _ in range(3):
        await asyncio.sleep(0)
    answer = Answered(200)
    coming.set_result(answer)
    for _ in range(rounds):
        await asyncio.sleep(0)
    caller.cancel()
    (outcome,) = await asyncio.gather(caller, return_exceptions=True)
    for _ in range(3):
        await asyncio.sleep(0)
    assert answer.closed_at_last == (outcome is not answer)
    await standby.close()


async def test_one_that_stands_by_never_hands_on_to_another(controller: PretendController, post: Post) -> None:
    other = Post()
    async with (
        serving(controller) as leader,
        standing_by(other) as second,
        standing_by(post) as standby,
        connected(standby) as client,
    ):
        other.leader = url(second)  # itself, as far as it knows
        post.leader = url(second)
        client.ask("POST", "/v1/claims", CLAIM)
        asyncio.get_running_loop().call_later(0.05, setattr, post, "leader", url(leader))
        assert (await client.answer()).status == 201


async def test_a_body_is_bounded_here_already(post: Post) -> None:
    async with standing_by(post, ApiLimits(body_bytes_max=10)) as standby, connected(standby) as client:
        client.ask("POST", "/v1/claims", b"x" * 11)
        answer = await client.answer()
        assert (answer.status, answer.json()["code"]) == (413, "body.too_large")


async def test_health_and_version_are_its_own(post: Post) -> None:
    async with standing_by(post) as standby, connected(standby) as client:
        client.ask("GET", "/healthz", authorization="")
        assert (await client.answer()).json() == {"status": "alive"}
        client.ask("GET", "/version", authorization="")
        assert (await client.answer()).json()["installation"] == "abc"
        client.ask("GET", "/readyz", authorization="")
        assert (await client.answer()).json()["code"] == "controller.no_leader"
        post.leader = "http://127.0.0.1:1"
        client.ask("GET", "/readyz", authorization="")
        assert (await client.answer()).status == 200


async def test_an_event_stream_is_handed_on_as_it_comes(controller: PretendController, post: Post) -> None:
    async with serving(controller) as leader, standing_by(post) as standby, connected(standby) as client:
        post.leader = url(leader)
        client.ask("GET", "/v1/events?watch=1")
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert b"text/event-stream" in head
        controller.tell("claim.created")
        await client.reader.readuntil(b"claim.created")


async def test_a_caller_that_goes_ends_the_leaders_work_for_it(controller: PretendController, post: Post) -> None:
    limits = ApiLimits(watches_max=1, watches_per_key_max=1)
    async with serving(controller, limits) as leader, standing_by(post) as standby:
        post.leader = url(leader)
        async with connected(standby) as client:
            client.ask("GET", "/v1/events?watch=1")
            await client.reader.readuntil(b"\r\n\r\n")
        async with connected(standby) as client:
            status = 0
            while status != 200:  # the seat is given back a moment after the connection has gone
                client.ask("GET", "/v1/events?watch=1")
                head = await client.reader.readuntil(b"\r\n\r\n")
                status = int(head.split()[1])
                if status != 200:
                    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                    await client.reader.readexactly(length)
