"""The keeper with real controllers behind it, which are called by two names, taken out of the list, or exchanged."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from moorings.client.transport import Endpoint
from moorings.core.model.timestamps import Timestamp
from moorings.kubernetes.proxy import controllers, plan
from moorings.kubernetes.proxy.claims import InstanceKey
from moorings.kubernetes.proxy.controllers import ControllerConnection, ControllerTarget
from moorings.kubernetes.proxy.instances import ManagedInstance
from moorings.kubernetes.proxy.partition_manager import PartitionManager
from moorings.kubernetes.proxy.settings import ControllerEntry
from moorings.kubernetes.proxy_api.shapes import PartitionBody, PartitionRequest
from moorings.wire.codec import format_time
from tests.e2e.processes import ControllerProcess
from tests.kubernetes.proxy.harbour import pools, wish
from tests.waiting import until_async as until

PLACE = InstanceKey("default", "job-1", "uid-job-1", 0)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ControllerProcess]]:
    monkeypatch.setattr(controllers, "GONE_S", 0.3)
    monkeypatch.setattr(plan, "RETIRED_S", 0.3)
    made = [ControllerProcess(tmp_path / name, pools(8)) for name in ("one", "two")]
    try:
        for controller in made:
            controller.folder.mkdir()
            controller.start()
        yield made
    finally:
        for controller in made:
            if controller.process is not None and controller.process.poll() is None:
                controller.kill()


def reach(controller: ControllerProcess, host: str = "127.0.0.1", **more: Any) -> ControllerTarget:
    entry = ControllerEntry(host, controller.port, {"host": host}, **more)
    return ControllerTarget(entry, Endpoint(f"http://{entry.name}", access_key=controller.key, timeout_s=10))


@contextlib.asynccontextmanager
async def kept(*reaches: ControllerTarget) -> AsyncIterator[PartitionManager]:
    made = PartitionManager("lab", {}, "abc", lambda: time.time_ns() // 1000)
    await made.set_controllers(reaches)
    try:
        yield made
    finally:
        await made.close()


def shown(keeper: PartitionManager) -> PartitionBody | None:
    found = keeper.partitions().items
    assert len(found) < 2
    return found[0] if found else None


async def ready(keeper: PartitionManager) -> PartitionBody:
    await until(lambda: keeper.is_complete)
    await keeper.create(wish(1, 4))
    await until(lambda: (one := shown(keeper)) is not None and one.state == "READY")
    found = shown(keeper)
    assert found is not None
    return found


def states(controller: ControllerProcess) -> list[str]:
    return [claim["state"] for claim in controller.ask("GET", "/v1/claims?all=true")[1]["items"]]


async def hears(keeper: PartitionManager, name: str) -> None:
    """A controller is listed, from the beginning, from now on; or asked without success."""
    link = keeper.links[name]
    for _ in range(2):
        link.was_tried = False
        link.list_soon()
        await until(lambda: link.was_tried)


async def test_a_new_name_of_a_controller_takes_over_what_runs_there(pair: list[ControllerProcess]) -> None:
    one = pair[0]
    async with kept(reach(one)) as keeper:
        found = await ready(keeper)
        next(iter(keeper._claims.instances.values())).claims.published_claim = None  # as before the binding was fetched
        await keeper.set_controllers((reach(one, "localhost"),))
        await until(lambda: (body := shown(keeper)) is not None and body.controller == f"localhost:{one.port}")
        await keeper.remove_retired()
        await hears(keeper, f"localhost:{one.port}")
        body = shown(keeper)
        assert body is not None
        assert (body.state, body.claim, body.binding) == ("READY", found.claim, found.binding)
        assert body.node_selector == {"host": "localhost"}
        assert list(keeper.links) == [f"localhost:{one.port}"]
        assert states(one) == ["READY"]
        await keeper.set_controllers((reach(one),))  # and back
        await until(lambda: (body := shown(keeper)) is not None and body.controller == found.controller)
        await keeper.remove_retired()
        await hears(keeper, found.controller)
        assert shown(keeper) == found
        assert (await keeper.reset(PLACE)).state == "READY"
        await keeper.release(PLACE)
        await until(lambda: shown(keeper) is None)
        assert states(one) == ["RELEASED"]


async def test_what_runs_on_a_silent_controller_stays_when_that_leaves_the_list(pair: list[ControllerProcess]) -> None:
    one, two = pair
    async with kept(reach(one), reach(two)) as keeper:
        found = await ready(keeper)
        one.kill()
        await hears(keeper, found.controller)
        assert not keeper.links[found.controller].is_reachable
        await keeper.set_controllers((reach(two),))
        await until(lambda: keeper.links[found.controller].is_quiet)
        await keeper.remove_retired()
        assert shown(keeper) == found
        await until(lambda: keeper.is_complete)  # nothing else can be there
        one.start()
        await hears(keeper, found.controller)
        assert keeper.links[found.controller].is_reachable
        assert shown(keeper) == found
        await keeper.release(PLACE)
        await until(lambda: shown(keeper) is None)
        await keeper.remove_retired()
        assert list(keeper.links) == [f"127.0.0.1:{two.port}"]


async def test_another_installation_at_the_address_does_not_end_what_runs(pair: list[ControllerProcess]) -> None:
    one, two = pair
    async with kept(reach(one)) as keeper:
        found = await ready(keeper)
        one.kill()
        two.stop()
        two.port = one.port
        two.start()
        await keeper.set_controllers((reach(two),))  # with the key of the other one
        await hears(keeper, found.controller)
        assert f"put !{found.controller} into the list" in keeper.links[found.controller].problem
        assert shown(keeper) == found
        assert not keeper.is_complete
        two.stop()
        one.start()
        await keeper.set_controllers((reach(one),))
        await until(lambda: keeper.is_complete)
        assert shown(keeper) == found


async def test_who_was_away_before_it_was_asked_is_not_waited_for(pair: list[ControllerProcess]) -> None:
    """A controller that was never reached holds nothing; what is asked of it at that moment goes to another one."""
    one, two = pair
    async with kept(reach(one), reach(two)) as keeper:
        await until(lambda: all(link.was_listed for link in keeper.links.values()))
        one.kill()
        first = keeper.links[reach(one).entry.name]
        first.is_reachable = True  # as before it was noticed
        await keeper.create(wish(1, 8))
        await until(lambda: (found := shown(keeper)) is not None and found.state == "READY")
        (found,) = keeper.partitions().items
        assert found.controller == reach(two).entry.name


def young(number: int, ipus: int) -> PartitionRequest:
    """Of a job that is younger than the keeper: no earlier one can have asked for it."""
    return wish(number, ipus, job_created_at=format_time(Timestamp((time.time_ns() // 1000) + 1_000_000)))


def message(keeper: PartitionManager, number: int = 1) -> str | None:
    found = next((one for one in keeper.partitions().items if one.job == f"job-{number}"), None)
    return found.message if found is not None else None


async def is_ready(keeper: PartitionManager, number: int) -> None:
    await until(lambda: message(keeper, number) == "the partition is ready")


async def test_a_place_in_a_queue_is_told_though_another_controller_is_silent(pair: list[ControllerProcess]) -> None:
    silent, full = pair
    silent.kill()
    async with kept(reach(silent), reach(full)) as keeper:
        await until(lambda: keeper.links[f"127.0.0.1:{full.port}"].is_reachable)
        await keeper.create(young(2, 8))
        await is_ready(keeper, 2)
        await keeper.create(young(1, 8))
        await until(lambda: message(keeper) == "a block of 8 IPUs is kept for it", 1)
        full.kill()
        await hears(keeper, f"127.0.0.1:{full.port}")
        names = f"127.0.0.1:{silent.port}, 127.0.0.1:{full.port}"
        await until(lambda: message(keeper) == f"{names} does not answer", 1)
        full.start()
        await hears(keeper, f"127.0.0.1:{full.port}")
        await until(lambda: message(keeper) == "a block of 8 IPUs is kept for it")


async def test_what_one_controller_says_is_told_while_another_is_still_asked(
    pair: list[ControllerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    async with kept(reach(one), reach(two)) as keeper:
        await until(lambda: keeper.is_complete)
        for number in (2, 3):
            await keeper.create(wish(number, 8))
            await is_ready(keeper, number)
        make, answered = keeper._create_claim, asyncio.Event()

        async def make_late(record: ManagedInstance, link: ControllerConnection, *, waits: bool) -> None:
            if waits and link.name == f"127.0.0.1:{one.port}":
                await answered.wait()
            await make(record, link, waits=waits)

        monkeypatch.setattr(keeper, "_create_claim", make_late)
        asked = asyncio.create_task(keeper.create(wish(1, 8)))
        await until(lambda: message(keeper) == "a block of 8 IPUs is kept for it", 1)
        assert not asked.done()
        answered.set()
        await asked
