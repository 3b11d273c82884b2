"""Server-sent events over a real socket."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2

from moorings.api.limits import ApiLimits
from moorings.core.model.errors import MooringsError
from moorings.ports.store import Seq
from tests.unit.api.pretend import ADMIN, USER, PretendController
from tests.unit.api.sockets import Client, Served, connected, serving


class Watch:
    """A reader of one stream."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.status = 0
        self.headers: dict[str, str] = {}
        self._rest = b""

    async def begin(self) -> None:
        head = await self.client.head()
        self.status, self.headers = head.status, head.headers

    async def block(self) -> str:
        """The next event or comment, as text."""
        while b"\n\n" not in self._rest:
            chunk = await self.client.chunk()
            if not chunk:
                raise EOFError
            self._rest += chunk
        block, self._rest = self._rest.split(b"\n\n", 1)
        return block.decode()

    async def event(self) -> dict[str, Any]:
        """The next event, comments passed over."""
        while (block := await self.block()).startswith(":"):
            pass
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        data = json.loads(fields["data"])
        assert (int(fields["id"]), fields["event"]) == (data["seq"], data["name"])
        assert isinstance(data, dict)
        return data


@contextlib.asynccontextmanager
async def watching(served: Served, query: str = "watch=1", **headers: str) -> AsyncIterator[Watch]:
    async with connected(served) as client:
        client.ask("GET", f"/v1/events?{query}", **headers)
        watch = Watch(client)
        await watch.begin()
        yield watch


async def test_a_watch_starts_now_and_tells_each_event(controller: PretendController) -> None:
    controller.tell("claim.created", claim="c0")
    async with serving(controller) as served, watching(served) as watch:
        assert (watch.status, watch.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert watch.headers["cache-control"] == "no-store"
        assert await watch.block() == ": events after 1"
        controller.tell("claim.granted", claim="c0")
        assert await watch.event() == {
            "seq": 2,
            "name": "claim.granted",
            "at": "2023-11-14T22:13:20.000000Z",
            "claim": "c0",
            "data": {},
        }
        controller.tell("claim.ready", claim="c0")
        assert (await watch.event())["seq"] == 3


async def test_the_accept_header_asks_for_a_stream_too(controller: PretendController) -> None:
    controller.tell("claim.created")
    async with serving(controller) as served, watching(served, "after=0", accept="text/event-stream") as watch:
        assert (await watch.event())["seq"] == 1


async def test_a_watch_that_broke_goes_on_where_it_was(controller: PretendController) -> None:
    for _ in range(3):
        controller.tell("claim.created")
    async with serving(controller) as served:
        async with watching(served, "watch=1&after=0") as watch:
            assert [(await watch.event())["seq"] for _ in range(2)] == [1, 2]
        controller.tell("claim.ready")
        async with watching(served, "watch=1&after=0", last_event_id="2") as watch:
            assert [(await watch.event())["seq"] for _ in range(2)] == [3, 4]


async def test_more_than_one_batch_comes_in_order(controller: PretendController) -> None:
    for _ in range(450):
        controller.tell("claim.created")
    async with serving(controller) as served, watching(served, "watch=1&after=0") as watch:
        assert [(await watch.event())["seq"] for _ in range(450)] == list(range(1, 451))


async def test_a_filter_passes_over_the_rest_without_reading_it_again(controller: PretendController) -> None:
    async with serving(controller) as served, watching(served, "watch=1&name=run.*&name=key.created") as watch:
        await watch.block()
        await controller.waits_begun.wait()
        controller.waits_begun.clear()
        for _ in range(100):
            controller.tell("claim.created")
        await controller.waits_begun.wait()  # it waits for what comes after these
        controller.tell("run.started", run="r1")
        controller.tell("key.created")
        assert [(await watch.event())["name"] for _ in range(2)] == ["run.started", "key.created"]
        assert controller.reads < 10


async def test_a_silent_watch_beats(controller: PretendController) -> None:
    async with serving(controller, ApiLimits(heartbeat_s=0.01)) as served, watching(served) as watch:
        assert [await watch.block() for _ in range(3)] == [": events after 0", ": heartbeat", ": heartbeat"]


async def test_a_watch_ends_when_its_key_is_revoked(controller: PretendController) -> None:
    async with serving(controller, ApiLimits(heartbeat_s=0.01)) as served, watching(served) as watch:
        assert await watch.block() == ": events after 0"
        del controller.keys[USER]
        rest = await watch.client.reader.read()
        assert b"event:" not in rest
        assert not rest.endswith(b"0\r\n\r\n"), "cut, not ended"


async def test_a_revoked_key_wakes_its_silent_watch(controller: PretendController) -> None:
    limits = ApiLimits(heartbeat_s=3600)
    async with serving(controller, limits) as served, connected(served) as client, connected(served) as admin:
        client.ask("GET", "/v1/events?watch=1")
        assert (await client.head()).status == 200
        assert await client.chunk() == b": events after 0\n\n"
        await controller.waits_begun.wait()
        admin.ask("DELETE", "/v1/keys/ann", authorization=f"Bearer {ADMIN}")
        assert (await admin.head()).status == 204
        assert await client.reader.read() == b"", "cut off, not ended"


async def test_a_watch_whose_store_fails_is_cut_not_ended(controller: PretendController) -> None:
    async with serving(controller) as served, watching(served) as watch:
        await watch.block()
        controller.failing = MooringsError("store.unavailable", "the disk is full")
        controller.tell("claim.created")
        assert await watch.client.reader.read() == b"", "no last chunk: the reader must not think that was all"


class DeafController(PretendController):
    """One that cannot tell whether there is news."""

    asked = 0

    async def wait_events(self, after: Seq, timeout_s: float) -> None:
        self.asked += 1
        raise MooringsError("store.fenced", "another controller leads")


async def test_a_watch_that_cannot_wait_is_cut() -> None:
    deaf = DeafController()
    async with serving(deaf) as served, watching(served) as watch:
        assert await watch.block() == ": events after 0"
        assert await watch.client.reader.read() == b""
    assert deaf.asked == 1


async def test_watches_are_few_and_a_seat_is_given_back(controller: PretendController) -> None:
    async with serving(controller, ApiLimits(watches_per_key_max=1)) as served:
        async with watching(served) as first:
            assert first.status == 200
            async with connected(served) as client:
                client.ask("GET", "/v1/events?watch=1")
                refused = await client.answer()
                assert (refused.status, refused.json()["code"]) == (503, "controller.busy")
                assert refused.headers["retry-after"] == "1"
        status = 503
        while status == 503:  # until the server has seen that the first one is gone
            async with watching(served) as again:
                status = again.status
        assert status == 200


async def test_a_slow_reader_holds_nobody_up_and_loses_nothing(controller: PretendController) -> None:
    async with (
        serving(controller) as served,
        watching(served, "watch=1&after=0") as slow,
        watching(served, "watch=1&after=0") as quick,
    ):
        for number in range(5000):
            controller.tell("claim.created", claim=f"{number:0500}")  # far more than sockets buffer
        assert [(await quick.event())["seq"] for _ in range(5000)] == list(range(1, 5001))
        assert [(await slow.event())["seq"] for _ in range(5000)] == list(range(1, 5001))


async def test_events_are_listed_page_by_page_with_filters(
    api: httpx2.AsyncClient, controller: PretendController
) -> None:
    for number in range(5):
        controller.tell("claim.created", claim=f"c{number}")
        controller.tell("run.created", run=f"r{number}")
    page = (await api.get("/v1/events?limit=3&name=claim.*")).json()
    assert (page["kind"], [item["seq"] for item in page["items"]]) == ("EventList", [1, 3, 5])
    rest = (await api.get(f"/v1/events?limit=3&name=claim.*&continue={page['continue']}")).json()
    assert [item["seq"] for item in rest["items"]] == [7, 9]
    assert "continue" not in rest
    assert [item["seq"] for item in (await api.get("/v1/events?after=8")).json()["items"]] == [9, 10]
    assert [item["seq"] for item in (await api.get("/v1/events?run=r2")).json()["items"]] == [6]
    assert [item["seq"] for item in (await api.get("/v1/events?claim=c1")).json()["items"]] == [3]
