"""A controller that stands by: its callers get the leader's answers, whatever happens to the leader meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from moorings.api.application import Application
from moorings.api.limits import Limits
from moorings.api.server import make_server_config
from moorings.api.standby import Standby
from tests.unit.api.pretend import PretendController
from tests.unit.api.sockets import Served, Server, connected, serving

CLAIM = b'{"size": 4}'


class Post:
    """Knows who leads."""

    def __init__(self) -> None:
        self.leader = ""


@contextlib.asynccontextmanager
async def standing_by(post: Post, limits: Limits = Limits(), patience_s: float = 5.0) -> AsyncIterator[Served]:  # noqa: B008
    standby = Standby(lambda: post.leader, "abc", limits, patience_s)
    app = Application(standby, standby.closing, limits)
    listening = socket.create_server(("127.0.0.1", 0))
    server = Server(app, make_server_config(app))
    served = Served(server, listening.getsockname()[1], asyncio.create_task(server.serve(sockets=[listening])))
    try:
        yield served
    finally:
        await served.stop()
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
        ("DELETE", "/v1/claims/{ident}", b"", {}),
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
        ident = (await client.answer()).json()["id"]
        post.leader = dying
        client.ask(method, path.format(ident=ident), body, **headers)
        await heard.get()
        post.leader = url(leader)
        assert (await client.answer()).status in (200, 201)


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
    async with standing_by(post, Limits(body_bytes_max=10)) as standby, connected(standby) as client:
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
    limits = Limits(watches_max=1, watches_per_key_max=1)
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
