"""Forecasts that many ask for: one at a time, few that wait, one place a subject, and none for those who have gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from moorings.controller.forecasts import ForecastQueue
from moorings.core.model.errors import MooringsError

WAITING_MAX = 2
LONG_S = 3600.0


class Played:
    """A forecast that ends when it is told to, or when it shall not continue."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.told = threading.Event()
        self.gave_up: bool | None = None
        self._loop = asyncio.get_running_loop()

    def begin(self) -> Callable[[Callable[[], bool]], str]:
        self.begun.set()
        return self._play

    def _play(self, go_on: Callable[[], bool]) -> str:
        while go_on() and not self.told.wait(0.001):
            pass
        self.gave_up = not self.told.is_set()
        return "known"


class Rig:
    def __init__(self) -> None:
        self.lane = ForecastQueue("estimates", WAITING_MAX)
        self.tasks: list[asyncio.Task[str]] = []

    async def asks(self, subject: str, played: Played, limit_s: float = LONG_S) -> asyncio.Task[str]:
        """A caller that has asked and waits."""
        task = asyncio.create_task(self.lane.run(subject, limit_s, played.begin))
        self.tasks.append(task)
        for _ in range(3):  # more than it needs from here to its place
            await asyncio.sleep(0)
        return task


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    for task in rig.tasks:
        task.cancel()
    await asyncio.gather(*rig.tasks, return_exceptions=True)


async def test_one_is_played_at_a_time_in_the_order_of_asking(rig: Rig) -> None:
    first, second = Played(), Played()
    asked = await rig.asks("ann", first)
    waits = await rig.asks("bob", second)
    assert (first.begun.is_set(), second.begun.is_set()) == (True, False)
    first.told.set()
    assert await asked == "known"
    await second.begun.wait()
    second.told.set()
    assert await waits == "known"


async def test_a_subject_has_one_place_until_it_has_its_answer(rig: Rig) -> None:
    first, again = Played(), Played()
    asked = await rig.asks("ann", first)
    with pytest.raises(MooringsError) as caught:
        await rig.lane.run("ann", LONG_S, again.begin)
    assert (caught.value.code, caught.value.retryable, again.begun.is_set()) == ("forecast.busy", True, False)
    first.told.set()
    await asked
    again.told.set()
    assert await rig.lane.run("ann", LONG_S, again.begin) == "known"


async def test_few_wait_and_the_others_are_refused_at_once(rig: Rig) -> None:
    first = Played()
    asked = [await rig.asks(f"user-{number}", first) for number in range(1 + WAITING_MAX)]
    with pytest.raises(MooringsError) as caught:
        await rig.lane.run("ann", LONG_S, first.begin)
    assert (caught.value.code, caught.value.retryable) == ("forecast.busy", True)
    first.told.set()
    assert await asyncio.gather(*asked) == ["known"] * (1 + WAITING_MAX)


async def test_who_goes_while_it_waits_leaves_its_place(rig: Rig) -> None:
    first, gone, last = Played(), Played(), Played()
    asked = await rig.asks("ann", first)
    left = [await rig.asks(f"user-{number}", gone) for number in range(WAITING_MAX)]
    for task in left:
        task.cancel()
    await asyncio.wait(left)
    waits = await rig.asks("bob", last)
    first.told.set()
    last.told.set()
    assert (await asked, await waits) == ("known", "known")
    assert not gone.begun.is_set()


async def test_what_nobody_waits_for_any_more_ends_before_the_next_begins(rig: Rig) -> None:
    first, second = Played(), Played()
    asked = await rig.asks("ann", first)
    asked.cancel()
    waits = await rig.asks("bob", second)
    await second.begun.wait()
    assert first.gave_up is True, "also nobody has told it to end"
    second.told.set()
    assert await waits == "known"
    assert second.gave_up is False


async def test_time_is_counted_from_the_beginning_and_then_up(rig: Rig) -> None:
    played = Played()
    assert await (await rig.asks("ann", played, limit_s=0.0)) == "known"
    assert played.gave_up is True


async def test_a_forecast_that_fails_leaves_room_for_the_next(rig: Rig) -> None:
    def fails(*_: object) -> str:
        raise ValueError("a fault")

    with pytest.raises(ValueError, match="a fault"):
        await rig.lane.run("ann", LONG_S, lambda: fails)
    with pytest.raises(ValueError, match="a fault"):
        await rig.lane.run("ann", LONG_S, fails)  # type: ignore[arg-type]
    played = Played()
    played.told.set()
    assert await rig.lane.run("ann", LONG_S, played.begin) == "known"
