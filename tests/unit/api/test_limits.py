import asyncio

import pytest

from moorings.api.limits import Slots, WorkSlots
from moorings.core.model.errors import MooringsError
from moorings.net.limits import BufferedBody


def test_seats_are_bounded_in_all_and_for_each_key() -> None:
    seats = Slots("streams", total=3, per_key=2)
    seats.require("ann")
    seats.require("ann")
    with pytest.raises(MooringsError) as refused:
        seats.require("ann")
    assert (refused.value.code, refused.value.retryable) == ("controller.busy", True)
    seats.require("bob")
    with pytest.raises(MooringsError):
        seats.require("eve")
    seats.release("ann")
    seats.require("eve")


def test_a_seat_nobody_took_cannot_be_left() -> None:
    with pytest.raises(AssertionError):
        Slots("streams", total=1, per_key=1).release("ann")


def test_kept_bytes_are_a_keys_share_and_come_back() -> None:
    seats = Slots("bytes of bodies", total=100, per_key=60)
    one, two = BufferedBody(seats, "ann"), BufferedBody(seats, "ann")
    one.add(40)
    two.add(10)
    with pytest.raises(MooringsError):
        two.add(20)
    one.release()
    one.release()
    two.add(20)
    assert seats.n_held == 30


class Crowd:
    """Requests that work until they are told to end; ``begun``: in which order they came to a desk."""

    def __init__(self, desks: WorkSlots) -> None:
        self.desks = desks
        self.begun: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def comes(self, key: str, name: str) -> None:
        self.ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._works(key, name))
        await settled()

    async def _works(self, key: str, name: str) -> None:
        await self.desks.acquire(key)
        try:
            self.begun.append(name)
            await self.ends[name].wait()
        finally:
            self.desks.release(key)

    async def ends_work(self, name: str) -> None:
        self.ends[name].set()
        await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_key_has_a_few_desks_and_a_queue_in_front_of_them() -> None:
    crowd = Crowd(WorkSlots(2))
    for name in ("a1", "a2", "a3", "a4"):
        await crowd.comes("ann", name)
    await crowd.comes("bob", "b1")
    assert crowd.begun == ["a1", "a2", "b1"], "whoever else asks does not wait for ann's"
    assert crowd.desks.queued == 2
    await crowd.ends_work("a2")
    await crowd.ends_work("a1")
    assert crowd.begun[3:] == ["a3", "a4"], "first come, first served"
    for name in ("a3", "a4", "b1"):
        await crowd.ends_work(name)
    assert crowd.desks.queued == 0


async def test_who_gives_up_in_the_queue_takes_no_desk_with_it() -> None:
    crowd = Crowd(WorkSlots(1))
    for name in ("a1", "a2", "a3", "a4"):
        await crowd.comes("ann", name)
    crowd.tasks["a2"].cancel()
    crowd.ends["a1"].set()
    await asyncio.sleep(0)  # a1 hands its desk on; a3 has it, and has not begun
    crowd.tasks["a3"].cancel()
    await settled()
    assert crowd.begun == ["a1", "a4"]
    await crowd.ends_work("a4")
    await crowd.comes("ann", "a5")
    assert crowd.begun == ["a1", "a4", "a5"]
    await crowd.ends_work("a5")


async def test_who_waits_leaves_its_desk_to_others_and_needs_none_to_finish() -> None:
    desks, news = WorkSlots(1), asyncio.Event()

    async def waits() -> None:
        await desks.acquire("ann")
        async with desks.released("ann"):
            await news.wait()
        desks.release("ann")

    waiting = asyncio.create_task(waits())
    await settled()
    await desks.acquire("ann")  # would never return
    news.set()
    await waiting
    desks.release("ann")
    await desks.acquire("ann")
    desks.release("ann")
