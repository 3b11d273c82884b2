"""What only a real server on a real socket can show."""

import asyncio
import json
import logging

import pytest

from moorings.api.limits import ApiLimits
from moorings.api.request_context import Shutdown
from moorings.api.server import client_network
from moorings.core.model.access import Caller
from tests.cases import cases
from tests.unit.api.pretend import USER, PretendController
from tests.unit.api.sockets import Client, connected, serving

CLAIM = b'{"size": 4}'
JOB = json.dumps({"job": {"name": "n", "command": ["true"], "workdir": "/"}}).encode()
CHUNKED = {"content_length": "", "transfer_encoding": "chunked"}


async def made(client: Client, path: str, body: bytes) -> str:
    client.ask("POST", path, body)
    answer = await client.answer()
    assert answer.status == 201, answer.body
    return str(answer.json()["id"])


async def test_a_request_over_a_socket(controller: PretendController) -> None:
    async with serving(controller) as served, connected(served) as client:
        ident = await made(client, "/v1/claims", CLAIM)
        client.ask("DELETE", f"/v1/claims/{ident}")
        answer = await client.answer()
        assert (answer.status, answer.json()["state"]) == (200, "RELEASED")
        assert "server" not in answer.headers


async def test_two_requests_at_once_on_one_connection(controller: PretendController) -> None:
    async with serving(controller) as served, connected(served) as client:
        client.ask("POST", "/v1/claims", CLAIM)
        client.ask("GET", "/v1/claims")
        assert (await client.answer()).status == 201
        assert len((await client.answer()).json()["items"]) == 1


async def test_a_chunked_body_arrives(controller: PretendController) -> None:
    async with serving(controller) as served, connected(served) as client:
        client.ask("POST", "/v1/claims", b'5\r\n{"siz\r\n6\r\ne": 4}\r\n0\r\n\r\n', **CHUNKED)
        assert (await client.answer()).status == 201


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_body_that_is_too_large_is_answered_though_all_of_it_was_sent(
    controller: PretendController, chunked: bool
) -> None:
    size = 2 << 20
    async with serving(controller) as served, connected(served) as client:
        body = b" " * size
        if chunked:
            client.ask("POST", "/v1/claims", b"%x\r\n%b\r\n0\r\n\r\n" % (size, body), **CHUNKED)
        else:
            client.ask("POST", "/v1/claims", body)
        await client.writer.drain()
        answer = await client.answer()
        assert (answer.status, answer.json()["code"]) == (413, "body.too_large")
        assert answer.headers["connection"] == "close"


async def test_a_body_without_end_is_not_read_for_ever(controller: PretendController) -> None:
    limits = ApiLimits(body_bytes_max=1000, drained_bytes_max=2000)
    async with serving(controller, limits) as served, connected(served) as client:
        client.ask("POST", "/v1/claims", b"%x\r\n%b\r\n" % (3000, b" " * 3000), **CHUNKED)
        assert (await client.answer()).json()["code"] == "body.too_large"
        assert await client.reader.read() == b""


async def test_a_length_beyond_reason_is_answered_at_once(controller: PretendController) -> None:
    async with serving(controller) as served, connected(served) as client:
        client.ask("POST", "/v1/claims", content_length=str(1 << 40))
        assert (await client.answer()).json()["code"] == "body.too_large"
        assert await client.reader.read() == b""


async def test_a_body_that_dawdles_is_not_waited_for(controller: PretendController) -> None:
    async with serving(controller, ApiLimits(body_timeout_s=0.05)) as served, connected(served) as client:
        client.ask("POST", "/v1/claims", b'{"size"', content_length="11")
        answer = await client.answer()
        assert (answer.status, answer.json()["code"]) == (400, "request.invalid")
        assert await client.reader.read() == b""


async def test_a_head_that_dawdles_is_not_waited_for(controller: PretendController) -> None:
    async with serving(controller, ApiLimits(head_timeout_s=0.05)) as served, connected(served) as client:
        client.send(b"GET /healthz HTTP/1.1\r\nhost: ")
        answer = await client.answer()
        assert (answer.status, answer.json()["code"]) == (400, "request.invalid")
        assert answer.headers["content-type"] == "application/problem+json"
        assert await client.reader.read() == b""


async def test_a_client_that_says_nothing_is_let_go(controller: PretendController) -> None:
    async with serving(controller, ApiLimits(head_timeout_s=0.05)) as served, connected(served) as client:
        assert await client.reader.read() == b""


@pytest.mark.parametrize("data", [b"\r\n", b"\r\n" * 20_000])
async def test_empty_lines_are_no_way_to_stay(controller: PretendController, data: bytes) -> None:
    async with serving(controller, ApiLimits(head_timeout_s=0.05)) as served, connected(served) as client:
        client.send(data)
        assert (await client.answer()).status == 400
        assert await client.reader.read() == b""


async def test_an_empty_line_before_a_head_is_passed_over(controller: PretendController) -> None:
    async with serving(controller) as served, connected(served) as client:
        for _ in range(2):
            client.send(b"\r\n")
            await client.writer.drain()
            client.ask("GET", "/healthz")
            assert (await client.answer()).status == 200


async def test_the_rest_of_a_refused_body_is_not_waited_for_for_ever(controller: PretendController) -> None:
    async with serving(controller, ApiLimits(body_timeout_s=0.05)) as served, connected(served) as client:
        client.ask("POST", "/v1/claims", authorization="", content_length="1000")
        assert (await client.answer()).status == 401
        client.send(b" ")
        assert await client.reader.read() == b""


async def test_a_refused_body_that_came_whole_ends_nothing(controller: PretendController) -> None:
    async with serving(controller, ApiLimits(keep_alive_s=1)) as served, connected(served) as client:
        client.ask("POST", "/v1/claims", authorization="", content_length="100000")
        assert (await client.answer()).status == 401
        client.send(b" " * 100_000)
        client.ask("GET", "/healthz")
        assert (await client.answer()).status == 200
        assert await client.reader.read() == b"", "and it is let go when it is idle"


async def test_a_slow_head_in_time_is_served(controller: PretendController) -> None:
    async with serving(controller) as served, connected(served) as client:
        for byte in b"GET /healthz HTTP/1.1\r\nhost: m\r\n\r\n":
            client.send(bytes([byte]))
            await client.writer.drain()
        assert (await client.answer()).json() == {"status": "alive"}


@pytest.mark.parametrize("piece", [1000, 100_000])
async def test_a_head_that_is_too_large(controller: PretendController, piece: int) -> None:
    async with serving(controller) as served, connected(served) as client:
        head = b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 40_000 + b"\r\n\r\n"
        for start in range(0, len(head), piece):
            client.send(head[start : start + piece])
            await client.writer.drain()
        answer = await client.answer()
        assert (answer.status, answer.json()["code"]) == (400, "request.invalid")


async def test_a_head_without_end_is_not_read_for_ever(controller: PretendController) -> None:
    async with serving(controller, ApiLimits(head_timeout_s=3600)) as served, connected(served) as client:
        client.send(b"GET /healthz HTTP/1.1\r\nx: " + b"y" * (33 << 10))
        answer = await client.answer()
        assert (answer.status, answer.json()["code"]) == (400, "request.invalid")


async def test_a_body_does_not_count_as_the_next_requests_head(controller: PretendController) -> None:
    async with serving(controller, ApiLimits(head_bytes_max=300)) as served, connected(served) as client:
        client.ask("POST", "/v1/claims", b" " * 1000 + CLAIM)
        client.send(b"GET /healthz HTTP/1.1\r\n")
        assert (await client.answer()).status == 201
        client.send(b"host: m\r\n\r\n")
        assert (await client.answer()).status == 200


async def test_large_bodies_and_further_requests_are_no_large_heads(controller: PretendController) -> None:
    body = b" " * 60_000 + CLAIM
    async with serving(controller) as served, connected(served) as client:
        for _ in range(3):
            client.ask("POST", "/v1/claims", body)
        assert [(await client.answer()).status for _ in range(3)] == [201, 201, 201]


@pytest.mark.parametrize(
    "data", [b"NONSENSE\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"GET / HTTP/9.9\r\n\r\n"]
)
async def test_what_is_not_http_is_answered_as_a_problem(controller: PretendController, data: bytes) -> None:
    async with serving(controller) as served, connected(served) as client:
        client.send(data)
        answer = await client.answer()
        assert (answer.status, answer.json()["code"]) == (400, "request.invalid")


async def test_connections_are_bounded(controller: PretendController) -> None:
    async with (
        serving(controller, ApiLimits(connections_max=1, head_timeout_s=3600)) as served,
        connected(served) as first,
    ):
        first.ask("GET", "/v1/events?watch=1")
        assert (await first.head()).status == 200
        async with connected(served) as second:
            assert await second.reader.read() == b""
        controller.tell("claim.created")
        while b"claim.created" not in await first.chunk():
            pass


async def test_a_wait_is_given_up_when_its_client_has_gone(controller: PretendController) -> None:
    async with serving(controller) as served:
        async with connected(served) as client:
            ident = await made(client, "/v1/claims", CLAIM)
            client.ask("GET", f"/v1/claims/{ident}?wait=10m")
            await controller.waits_begun.wait()
        await controller.waits_given_up.wait()
        assert controller.waiting == []


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/estimate", b'{"size": 4}'),
        ("POST", "/v1/whatif", b'{"policy": "reserve = false"}'),
        ("GET", "/v1/claims/{ident}/explain?when=true", b""),
    ],
)
async def test_a_forecast_is_given_up_when_its_client_has_gone(
    controller: PretendController, method: str, path: str, body: bytes
) -> None:
    controller.endless = True
    async with serving(controller) as served:
        async with connected(served) as client:
            ident = await made(client, "/v1/claims", CLAIM)
            client.ask(method, path.format(ident=ident), body)
            await controller.waits_begun.wait()
        await controller.waits_given_up.wait()
        assert controller.waiting == []


async def test_output_is_followed_until_its_reader_has_gone(controller: PretendController) -> None:
    controller.endless = True
    async with serving(controller, ApiLimits(follows_per_key_max=1)) as served:
        async with connected(served) as client:
            ident = await made(client, "/v1/runs", JOB)
            client.ask("GET", f"/v1/runs/{ident}/logs?follow=true")
            assert (await client.head()).status == 200
            assert await client.chunk() + await client.chunk() == b"[0] step 1\n[1] step 1\n"
            await controller.waits_begun.wait()
            async with connected(served) as other:
                other.ask("GET", f"/v1/runs/{ident}/logs?follow=true")
                assert (await other.answer()).json()["code"] == "controller.busy"
        await controller.waits_given_up.wait()


async def test_output_ends_when_the_key_is_revoked(controller: PretendController) -> None:
    controller.endless = True
    async with serving(controller) as served, connected(served) as client:
        ident = await made(client, "/v1/runs", JOB)
        client.ask("GET", f"/v1/runs/{ident}/logs?follow=true")
        assert (await client.head()).status == 200
        assert await client.chunk() + await client.chunk() == b"[0] step 1\n[1] step 1\n"
        await controller.waits_begun.wait()
        del controller.keys[USER]
        controller.tell("run.ended", run=ident)
        assert await client.reader.read() == b"", "neither more output nor a proper end"


async def test_a_stop_ends_watches_waits_and_output_without_waiting_for_them(controller: PretendController) -> None:
    controller.endless = True
    async with (
        serving(controller, ApiLimits(shutdown_s=3600)) as served,
        connected(served) as watch,
        connected(served) as wait,
        connected(served) as logs,
    ):
        watch.ask("GET", "/v1/events?watch=1")
        assert (await watch.head()).status == 200
        assert await watch.chunk() == b": events after 0\n\n"
        run = await made(logs, "/v1/runs", JOB)
        logs.ask("GET", f"/v1/runs/{run}/logs?follow=1")
        assert (await logs.head()).status == 200
        ident = await made(wait, "/v1/claims", CLAIM)
        wait.ask("GET", f"/v1/claims/{ident}?wait=10m")
        while len(controller.waiting) < 3:
            controller.waits_begun.clear()
            await controller.waits_begun.wait()
        await served.stop()
        assert await watch.chunk() == b"", "a watch ends properly"
        answer = await wait.answer()
        assert (answer.status, answer.json()["code"]) == (503, "controller.unreachable")
        assert answer.json()["retryable"]
        assert not (await logs.reader.read()).endswith(b"0\r\n\r\n"), "there may have been more output"


async def test_a_stop_at_the_moment_a_wait_is_answered_is_a_stop() -> None:
    closing = Shutdown()
    assert await closing.run_or_abort(asyncio.sleep(0, "done")) == "done"
    closing.begin_shutdown()  # in the same breath: what the race gave up is not put away yet
    assert closing.is_begun


class StuckController(PretendController):
    """One that never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def authenticate(self, secret: str, *, after_expiry: bool = False) -> Caller:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_stop_does_not_wait_for_what_is_stuck(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="uvicorn.error")
    stuck = StuckController()
    async with serving(stuck, ApiLimits(shutdown_s=1)) as served, connected(served) as client:
        client.ask("GET", "/v1/claims")
        await stuck.asked.wait()
        await served.stop()


async def test_requests_sent_ahead_end_with_their_connection(
    controller: PretendController, caplog: pytest.LogCaptureFixture
) -> None:
    """The one that is served is given up, those behind it are never begun, and nothing fails."""
    async with serving(controller) as served:
        async with connected(served) as client:
            ident = await made(client, "/v1/claims", CLAIM)
            head = f"host: m\r\nauthorization: Bearer {USER}\r\n"
            wait = f"GET /v1/claims/{ident}?wait=10m HTTP/1.1\r\n{head}\r\n"
            post = f"POST /v1/claims HTTP/1.1\r\n{head}content-length: {len(CLAIM)}\r\n\r\n{CLAIM.decode()}"
            client.send((wait + post * 20).encode())
            await controller.waits_begun.wait()
        await controller.waits_given_up.wait()
        async with connected(served) as other:
            await made(other, "/v1/claims", CLAIM)
    assert len(controller.claims) == 2
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@cases(
    ("host", "counted_as"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("127.0.0.3", "127.0.0.0/8"),
        ("::ffff:127.0.0.3", "127.0.0.0/8"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
        ("testclient", "testclient"),
    ],
)
def test_addresses_one_machine_may_choose_among_are_one(host: str, counted_as: str) -> None:
    assert client_network((host, 1)) == counted_as


def test_what_has_no_address_is_one() -> None:
    assert client_network(None) == ""
