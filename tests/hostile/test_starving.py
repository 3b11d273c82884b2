"""One client cannot take what the others need: connections, requests, seats, memory, or the time of those who answer.

Each test lets one access key, or one stranger, take all it can get, and then asks for something with another one. What
is counted is what is held (connections, seats, bytes), never how quick an answer was.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx2

from moorings.api.limits import ApiLimits
from moorings.api.routes.runs import RUNS_A_PAGE_MAX
from moorings.controller.views import ClaimView
from moorings.core.model.access import Caller, Role
from moorings.ports.store import PageQuery
from tests.hostile.harbour import Harbour
from tests.unit.api.pretend import ADMIN, USER, PretendController
from tests.unit.api.sockets import Answer, Client, Served, connected, serving
from tests.waiting import patient

CLAIM = b'{"size": 4}'


def reading(client: Client) -> asyncio.Transport:
    """What can stop reading, and so does not take what is sent."""
    transport = client.writer.transport
    assert isinstance(transport, asyncio.Transport)
    return transport


@contextlib.asynccontextmanager
async def crowd(served: Served, count: int) -> AsyncIterator[list[Client]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(connected(served)) for _ in range(count)]


async def answered(served: Served, key: str = ADMIN) -> None:
    """Another client is served."""
    async with connected(served) as client:
        client.ask("GET", "/v1/claims", authorization=f"Bearer {key}")
        assert (await client.answer()).status == 200


async def gone(served: Served, left: int, wait_s: float = 60) -> None:
    """Returns when the server has no more than ``left`` connections."""
    async with asyncio.timeout(patient(wait_s)):
        while len(served.server.server_state.connections) > left:  # noqa: ASYNC110 - uvicorn sets no Event
            await asyncio.sleep(0.01)


async def test_slow_bodies_of_one_key_leave_room_for_others(controller: PretendController) -> None:
    limits = ApiLimits(requests_max=40, requests_per_key_max=10, body_timeout_s=3600, shutdown_s=0)
    async with serving(controller, limits) as served, crowd(served, 50) as clients:
        for client in clients:
            client.ask("POST", "/v1/claims", content_length="1000")
        refused = await asyncio.gather(*(first_answer(client) for client in clients[10:]))
        assert set(refused) == {503}, "all beyond its share are told at once"
        await answered(served)


async def first_answer(client: Client) -> int:
    return (await client.answer()).status


async def test_waits_of_one_key_leave_room_for_others(controller: PretendController) -> None:
    limits = ApiLimits(waits_max=20, waits_per_key_max=10)
    async with serving(controller, limits) as served:
        async with connected(served) as client:
            client.ask("POST", "/v1/claims", CLAIM)
            ident = (await client.answer()).json()["id"]
        async with crowd(served, 30) as clients, connected(served) as other:
            for client in clients:
                client.ask("GET", f"/v1/claims/{ident}?wait=10m")
            finished = await first_of(clients, 20)
            assert {answer.status for answer in finished} == {503}
            other.ask("GET", f"/v1/claims/{ident}?wait=20ms", authorization=f"Bearer {ADMIN}")
            assert (await other.answer()).status == 200
            await answered(served, USER)


async def first_of(clients: list[Client], count: int) -> list[Answer]:
    """The answers of the first ``count`` to be answered."""
    tasks = [asyncio.create_task(client.answer()) for client in clients]
    done: set[asyncio.Task[Answer]] = set()
    while len(done) < count:
        finished, _ = await asyncio.wait(set(tasks) - done, return_when=asyncio.FIRST_COMPLETED)
        done |= finished
    for task in set(tasks) - done:
        task.cancel()
    return [task.result() for task in done]


async def test_thousands_of_watches_from_one_key_leave_seats_for_others(controller: PretendController) -> None:
    async with serving(controller) as served, crowd(served, 1000) as clients:
        for client in clients:
            client.ask("GET", "/v1/events?watch=1")
        heads = await asyncio.gather(*(client.head() for client in clients))
        statuses = [head.status for head in heads]
        assert statuses.count(200) == ApiLimits().watches_per_key_max
        assert statuses.count(503) == len(clients) - ApiLimits().watches_per_key_max
        async with connected(served) as other:
            other.ask("GET", "/v1/events?watch=1", authorization=f"Bearer {ADMIN}")
            assert (await other.head()).status == 200
            controller.tell("claim.created")
            while b"claim.created" not in await other.chunk():
                pass


async def test_connections_from_one_address_are_a_part_of_all(controller: PretendController) -> None:
    limits = ApiLimits(connections_max=20, connections_per_address_max=5, head_timeout_s=3600)
    async with serving(controller, limits) as served:
        async with crowd(served, 40):
            await gone(served, 5)
            await health_seen_from_elsewhere(served)
            _, writer = await asyncio.open_connection("127.0.0.1", served.port, local_addr=("127.0.0.2", 0))
            await gone(served, 5)  # all of 127.0.0.0/8 is one machine's
            writer.close()
        await gone(served, 0)
        await answered(served)


async def test_silent_connections_shut_nobody_on_their_machine_out(controller: PretendController) -> None:
    """Nor do those that asked for something once; those that are being served stay."""
    limits = ApiLimits(connections_max=20, connections_per_address_max=5, head_timeout_s=3600)
    async with serving(controller, limits) as served, connected(served) as watcher:
        watcher.ask("GET", "/v1/events?watch=1")
        assert (await watcher.head()).status == 200
        async with crowd(served, 40) as strangers:
            await gone(served, 5)
            for stranger in strangers[-4:]:
                stranger.ask("GET", "/healthz", authorization="")
                assert (await stranger.answer()).status == 200
            for _ in range(10):
                await answered(served)
            controller.tell("claim.created")
            while b"claim.created" not in await watcher.chunk():
                pass


async def health_seen_from_elsewhere(served: Served) -> None:
    """A machine without IPv6 fails here, and says so: there is no second address on it that is not this machine's."""
    other = Client(*await asyncio.open_connection("::1", served.port))
    other.ask("GET", "/healthz")
    assert (await other.answer()).status == 200
    await other.close()


async def test_the_last_connections_are_for_addresses_that_have_few(controller: PretendController) -> None:
    limits = ApiLimits(connections_max=40, connections_per_address_max=40, connections_reserved=8, head_timeout_s=3600)
    async with serving(controller, limits) as served:
        async with crowd(served, 60):
            await gone(served, 32)
            await health_seen_from_elsewhere(served)
        await gone(served, 0)


async def test_strangers_that_never_read_take_no_seats_of_requests(controller: PretendController) -> None:
    """Answers to anybody, asked for ahead and never read."""
    limits = ApiLimits(requests_max=4, open_requests_max=20, opens_per_address_max=10)
    async with serving(controller, limits) as served, crowd(served, 30) as strangers:
        for stranger in strangers:
            reading(stranger).pause_reading()
            for _ in range(50):
                stranger.ask("GET", "/openapi.json", authorization="")
        await answered(served)
        async with connected(served) as client:
            client.ask("GET", "/healthz", authorization="")
            assert (await client.answer()).status == 200


class BusyController(PretendController):
    """Each list takes until ``done``; ``asked`` tells who is at work on one."""

    def __init__(self) -> None:
        super().__init__()
        self.done = asyncio.Event()
        self.at_work = 0
        self.most_at_work = 0
        self.full = asyncio.Event()

    async def list_claims(self, caller: Caller, page: PageQuery, **wanted: Any) -> Sequence[ClaimView]:
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        if self.at_work == ApiLimits().working_per_key_max:
            self.full.set()
        await self.done.wait()
        self.at_work -= 1
        return await super().list_claims(caller, page, **wanted)


async def test_a_few_requests_of_one_key_are_worked_on_at_once() -> None:
    """The others of that key wait for their turn, and nobody else does."""
    controller = BusyController()
    async with serving(controller) as served, crowd(served, 60) as clients:
        for client in clients:
            client.ask("GET", "/v1/claims?limit=1000")
        await controller.full.wait()
        async with connected(served) as other:
            other.ask("POST", "/v1/claims", CLAIM, authorization=f"Bearer {ADMIN}")
            ident = (await other.answer()).json()["id"]
            other.ask("GET", f"/v1/claims/{ident}", authorization=f"Bearer {ADMIN}")
            assert (await other.answer()).status == 200
        controller.done.set()
        assert {await first_answer(client) for client in clients} == {200}
        assert controller.most_at_work == ApiLimits().working_per_key_max


async def test_waits_streams_and_slow_bodies_are_not_work(controller: PretendController) -> None:
    """What a key's clients are waited for, or wait for, leaves that key itself room to work."""
    limits = ApiLimits(working_per_key_max=2, body_timeout_s=3600, shutdown_s=0)
    async with serving(controller, limits) as served, crowd(served, 30) as clients:
        async with connected(served) as client:
            client.ask("POST", "/v1/claims", CLAIM)
            ident = (await client.answer()).json()["id"]
        for index, client in enumerate(clients):
            match index % 3:
                case 0:
                    client.ask("GET", f"/v1/claims/{ident}?wait=10m")
                case 1:
                    client.ask("GET", "/v1/events?watch=1")
                case _:
                    client.ask("POST", "/v1/claims", content_length="1000")
        while len(controller.waiting) < 20:
            controller.waits_begun.clear()
            await controller.waits_begun.wait()
        await answered(served, USER)


async def test_strangers_that_only_connect_are_let_go(controller: PretendController) -> None:
    async with serving(controller, ApiLimits(connections_max=500, head_timeout_s=0.3)) as served, crowd(served, 600):
        await gone(served, 0)
        await answered(served)


async def test_a_reader_that_never_reads_loses_its_seat_and_its_connection(controller: PretendController) -> None:
    limits = ApiLimits(watches_per_key_max=1, write_timeout_s=0.5)
    async with serving(controller, limits) as served, connected(served) as client:
        client.ask("GET", "/v1/events?watch=1&after=0")
        assert (await client.head()).status == 200
        reading(client).pause_reading()
        for _ in range(40_000):
            controller.tell("claim.created", claim="c" * 500)  # 20 MB: more than sockets hold
        await gone(served, 0, wait_s=10)  # unless told otherwise it would wait 60
        async with connected(served) as again:
            again.ask("GET", "/v1/events?watch=1")
            assert (await again.head()).status == 200, "its seat is free"


async def test_a_reader_that_is_slow_but_reads_is_kept(controller: PretendController) -> None:
    async with serving(controller, ApiLimits(write_timeout_s=2.0)) as served, connected(served) as client:
        for _ in range(20_000):
            controller.tell("claim.created", claim="c" * 500)
        client.ask("GET", "/v1/events?watch=1&after=0")
        reading(client).pause_reading()
        seen = 0
        while seen < 11_000_000:  # ten sips, half a second apart, are longer than it may stand still
            reading(client).resume_reading()
            seen += len(await client.reader.read(1 << 20))
            reading(client).pause_reading()
            await asyncio.sleep(0.1)
        assert len(served.server.server_state.connections) == 1


async def test_answers_nobody_reads_do_not_hold_the_seats_of_requests(controller: PretendController) -> None:
    """Large pages, asked for again and again, and never read."""
    for _ in range(3000):
        controller.tell("claim.created", claim="c" * 500)
    limits = ApiLimits(requests_max=20, connections_max=64, write_timeout_s=0.5)
    async with serving(controller, limits) as served, crowd(served, 20) as clients:
        for client in clients:
            reading(client).pause_reading()
            for _ in range(20):
                client.ask("GET", "/v1/events?limit=1000")
        await gone(served, 0, wait_s=10)
        await answered(served)


async def test_what_a_reader_does_not_read_is_not_kept_for_it(controller: PretendController) -> None:
    async with serving(controller) as served, crowd(served, 4) as clients:
        for client in clients:
            client.ask("GET", "/v1/events?watch=1&after=0")
            reading(client).pause_reading()
        for _ in range(20_000):
            controller.tell("claim.created", claim="c" * 500)
        quick = await read_all(served, 20_000)
        assert quick == 20_000
        unsent = [found.transport.get_write_buffer_size() for found in served.server.server_state.connections]
        assert max(unsent) < 1 << 20, "a chunk or two, of ten megabytes that were told"


async def read_all(served: Served, count: int) -> int:
    async with connected(served) as client:
        client.ask("GET", "/v1/events?watch=1&after=0")
        await client.head()
        seen = 0
        while seen < count:
            seen += (await client.chunk()).count(b"event: ")
        return seen


# -- the whole controller ------------------------------------------------------------------------------------------


def test_a_flood_of_claims_by_one_key_does_not_keep_another_from_its_own(port_of_call: Harbour) -> None:
    """While one key makes claims as fast as it is answered, every request of another is served."""
    flooded, done = 0, False

    async def flood(client: httpx2.AsyncClient) -> None:
        nonlocal flooded
        while not done:
            answer = await client.post("/v1/claims", json={"size": 64})
            assert answer.status_code == 201
            flooded += 1

    async def other(client: httpx2.AsyncClient) -> None:
        nonlocal done
        for _ in range(20):
            made = await client.post("/v1/claims", json={"size": 1, "accelerator": "gpu"})
            assert made.status_code == 201
            held = await client.get(f"/v1/claims/{made.json()['id']}?wait=30s")
            assert held.json()["state"] == "READY", "the other pool is free, whoever floods this one"
            assert (await client.delete(f"/v1/claims/{made.json()['id']}?wait=30s")).json()["state"] == "RELEASED"
        done = True

    async def both() -> None:
        keys = (port_of_call.bearer(Role.USER), port_of_call.bearer(Role.ADMIN))
        async with (
            httpx2.AsyncClient(base_url=port_of_call.url, headers=keys[0], timeout=patient(60)) as one,
            httpx2.AsyncClient(base_url=port_of_call.url, headers=keys[1], timeout=patient(60)) as two,
        ):
            await asyncio.gather(*(flood(one) for _ in range(16)), other(two))

    asyncio.run(both())
    assert flooded >= 100, "there was a flood"


def test_a_page_of_large_runs_is_small(port_of_call: Harbour) -> None:
    """A job may be a third of a megabyte: a thousand of them in one answer would be its client's weapon.

    One in ten is that large here: a page is limited by number, and all of them cost 20 s of CPU.
    """
    small = {"name": "small", "command": ["true"], "workdir": "/", "accelerators": {"size": 64}}
    large = small | {
        "name": "large",
        "command": ["true", "x" * 100_000],
        "environment": {"A": "y" * 100_000, "B": "y" * 100_000},
    }
    with httpx2.Client(
        base_url=port_of_call.url, headers=port_of_call.bearer(Role.USER), timeout=patient(60)
    ) as client:
        for number in range(120):
            assert client.post("/v1/runs", json={"job": small if number % 10 else large}).status_code == 201
        seen, address = 0, "/v1/runs?all=true&limit=1000"
        while address:
            page = client.get(address)
            assert len(page.json()["items"]) <= RUNS_A_PAGE_MAX
            seen += len(page.json()["items"])
            after = page.json().get("continue")
            address = f"/v1/runs?all=true&limit=1000&continue={after}" if after else ""
        assert seen >= 120
