"""Virtual time behaves as time does, only at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from moorings.testing.simulation.fault_plan import FaultPlan
from moorings.testing.simulation.process import ControllerInstance, Threads, adopting
from moorings.testing.simulation.virtual_time import START_TIME, StuckError, VirtualLoop, WallClock


@pytest.fixture
def loop():
    made = VirtualLoop()
    yield made
    made.close()


def run(loop: VirtualLoop, work: Coroutine[Any, Any, Any]) -> Any:
    return loop.run_until_complete(work)


def test_a_day_passes_at_once_and_timers_come_in_their_order(loop: VirtualLoop) -> None:
    order: list[str] = []

    async def nap(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        order.append(name)

    async def both() -> None:
        await asyncio.gather(nap("late", 86_400), nap("early", 0.001))

    run(loop, both())
    assert order == ["early", "late"]
    assert loop.time() == pytest.approx(86_400)


def test_a_timeout_strikes_in_virtual_time(loop: VirtualLoop) -> None:
    async def wait() -> None:
        async with asyncio.timeout(60):
            await asyncio.sleep(61)

    with pytest.raises(TimeoutError):
        run(loop, wait())
    assert loop.time() == pytest.approx(60)


def test_who_waits_for_nothing_is_told(loop: VirtualLoop) -> None:
    with pytest.raises(StuckError):
        run(loop, _forever(loop))


async def _forever(loop: VirtualLoop) -> None:
    await loop.create_future()


def test_a_wall_clock_is_set_and_a_sleep_is_not_touched(loop: VirtualLoop) -> None:
    clock = WallClock(loop)
    assert clock.now() == START_TIME
    clock.set_by_s = -3_600
    run(loop, clock.sleep(1))
    assert clock.now() == START_TIME - 3_599_000_000
    assert loop.time() == pytest.approx(1)


def test_what_a_process_had_not_begun_when_it_died_is_never_done(loop: VirtualLoop) -> None:
    done: list[str] = []
    loop.threads = Threads(loop, FaultPlan(1, only=()))
    loop.set_task_factory(adopting)
    life = ControllerInstance(1, loop)

    async def save() -> None:
        await loop.run_in_executor(None, done.append, "saved")

    async def story() -> None:
        task = life.spawn(save())
        await asyncio.sleep(0)
        life.kill()
        await asyncio.sleep(60)
        assert task.cancelled()

    run(loop, story())
    assert done == []


def test_a_process_that_stands_still_goes_on_where_it_stood(loop: VirtualLoop) -> None:
    loop.set_task_factory(adopting)
    life = ControllerInstance(1, loop)

    async def work() -> float:
        await life.wait_while_stopped()
        return loop.time()

    async def story() -> float:
        life.stop()
        task = life.spawn(work())
        await asyncio.sleep(10)
        assert not task.done()
        life.resume()
        return await task

    assert run(loop, story()) == pytest.approx(10)
