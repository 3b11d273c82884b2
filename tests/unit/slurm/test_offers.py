"""Two Slurms of one name: who is refused gives nothing out, and lets the other speak first, which learns of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar, cast

import pytest

from moorings.core.model.errors import MooringsError
from moorings.slurm.host import queue_sync as module
from moorings.slurm.host.controller_client import ControllerClient
from moorings.slurm.host.failure_log import FailureLog
from moorings.slurm.host.queue_sync import QueueSync
from moorings.wire.shapes import QueueBody, QueueRequest
from tests.waiting import until_async as until

T = TypeVar("T")
OURS, OTHERS = "0123456789abcdef", "fedcba9876543210"
QUEUE = "slurm/vt"
NOTHING = QueueRequest(queue=QUEUE)


class Controller:
    """Believes one instance, as the real one does (``tests/e2e/test_queues.py``); ``away`` answers nobody."""

    full = False

    def __init__(self, believed: str = "") -> None:
        self.believed = believed
        self.contested_at: str | None = None
        self.others_wait: tuple[str, ...] = ()
        self.away = False
        self.told: list[str] = []
        self.asked = 0

    async def __call__(self, ask: Callable[[Any], T], *, waits: bool = False) -> T:
        await asyncio.sleep(0.001 if waits else 0)
        if self.away:
            raise MooringsError("controller.unreachable", "no answer", retryable=True)
        return ask(self)

    def report_queue(self, request: QueueRequest) -> QueueBody:
        assert request.instance is not None
        self.told.append(request.instance)
        if self.believed not in ("", request.instance):
            raise MooringsError("queue.taken", "another slurm called vt has told its queue", hint="wait until noon")
        self.believed = request.instance
        return self.body()

    def queue(self, queue: str, *, wait_s: float, version: str | None, instance: str) -> QueueBody:
        assert queue == QUEUE
        self.asked += 1
        if self.believed == "":
            raise MooringsError("queue.unknown", "nothing was heard of it")
        if self.believed != instance:
            raise MooringsError("queue.taken", "another slurm called vt has told its queue", hint="wait until noon")
        return self.body()

    def body(self) -> QueueBody:
        return QueueBody(
            queue=QUEUE,
            accelerator="ipu",
            version="v",
            offer={"pod": {"4": 2}},
            held={"pod": {"4": 1, "8": 1}, "other": {"4": 2}},
            jobs=(),
            until="",
            instance=self.believed,
            contested_at=self.contested_at,
            others_wait=self.others_wait,
        )


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.001)


@contextlib.asynccontextmanager
async def serving(controller: Controller) -> AsyncIterator[tuple[QueueSync, list[str]]]:
    """Offers at work, and what they called."""
    called: list[str] = []
    calls: Any = controller
    offers = QueueSync(
        cast(ControllerClient, calls),
        QUEUE,
        OURS,
        "",
        lambda: called.append("changed"),
        lambda: called.append("taken"),
        FailureLog(),
    )
    work = [asyncio.ensure_future(one()) for one in (offers.serve_announcing, offers.serve_watching)]
    try:
        yield offers, called
    finally:
        for one in work:
            one.cancel()
        await asyncio.gather(*work, return_exceptions=True)


async def more(controller: Controller, count: int = 30) -> None:
    """Until the controller was asked so many times more."""
    goal = controller.asked + count
    await until(lambda: controller.asked >= goal)


async def test_nothing_counts_before_the_controller_has_taken_a_list() -> None:
    controller = Controller()
    async with serving(controller) as (offers, called):
        await more(controller)
        assert (offers.accepted.is_set(), offers.counts, called) == (False, None, [])
        offers.announce(NOTHING)
        await offers.accepted.wait()
        await until(lambda: offers.counts)
        assert controller.believed == OURS
        assert called.count("taken") == 1


async def test_after_a_restart_the_controller_still_knows_who_it_is() -> None:
    controller = Controller(OURS)
    async with serving(controller) as (offers, _):
        await offers.accepted.wait()
        assert controller.told == []


async def test_who_is_refused_gives_nothing_out_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    controller = Controller(OURS)
    caplog.set_level(logging.INFO)
    async with serving(controller) as (offers, called):
        offers.announce(NOTHING)
        await until(lambda: offers.counts)
        told = len(controller.told)
        controller.believed = OTHERS
        await until(lambda: offers.refused)
        assert (offers.accepted.is_set(), offers.counts, called[-1]) == (False, None, "changed")
        assert offers.refused == "another slurm called vt has told its queue; wait until noon"
        await until(lambda: len(controller.told) > told)
        await more(controller, 100)
        offers.announce(QueueRequest(queue=QUEUE, for_s=60.0))
        await more(controller, 100)
        assert len(controller.told) == told + 1, "at once, for the other one to learn of it, and then now and then"
        assert [r.levelname for r in caplog.records if r.message == "agent.failed"] == ["WARNING"]
        controller.believed = OURS
        await offers.accepted.wait()
        assert offers.refused == ""
        await until(lambda: offers.counts)


async def test_who_is_refused_tells_again_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.02)
    controller = Controller(OTHERS)
    async with serving(controller) as (offers, _):
        offers.announce(NOTHING)
        await until(lambda: len(controller.told) >= 3)
        assert not offers.accepted.is_set()


@pytest.mark.parametrize("away", [True, False], ids=["a while", "a moment"])
async def test_of_a_controller_that_has_forgotten_who_was_refused_is_not_the_first_to_tell_it(
    monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    """Else after each restart either of the two might be believed."""
    monkeypatch.setattr(module, "AGAIN_S", 1.0)
    monkeypatch.setattr(module, "YIELD_S", 3600.0)
    controller = Controller(OTHERS)
    async with serving(controller) as (offers, _):
        offers.announce(NOTHING)
        await until(lambda: controller.told)
        if away:
            controller.away = True
            await asyncio.sleep(1.2)
        controller.believed, controller.away = "", False
        await more(controller)
        await asyncio.sleep(1.2)  # it would tell again by now
        await more(controller)
        assert controller.believed == ""
    monkeypatch.setattr(module, "YIELD_S", 0.05)
    async with serving(controller) as (offers, _):
        controller.believed = OTHERS
        offers.announce(NOTHING)
        await until(lambda: offers.refused)
        controller.believed = ""
        await offers.accepted.wait()
        assert controller.believed == OURS, "nobody else did"


async def test_of_the_own_pool_alone_is_known_what_is_held_and_whether_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    controller = Controller(OURS)
    async with serving(controller) as (offers, _):
        await offers.accepted.wait()
        await until(lambda: offers.alone)
        assert offers.held == {4: 3, 8: 1}
        controller.others_wait = ("other",)
        await until(lambda: not offers.alone)
        monkeypatch.setattr(offers, "_pool", "pod")
        await until(lambda: offers.alone)
        assert offers.held == {4: 1, 8: 1}
        controller.others_wait = ("other", "pod")
        await until(lambda: not offers.alone)


async def test_who_was_accepted_tells_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "YIELD_S", 1e6)
    controller = Controller()
    async with serving(controller) as (offers, _):
        offers.announce(NOTHING)
        await offers.accepted.wait()
        controller.believed = ""
        await until(lambda: controller.believed == OURS)
        assert offers.accepted.is_set(), "nobody was believed in its place"


async def test_who_is_believed_learns_that_another_was_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "CONTESTED_S", 0.1)
    controller = Controller(OURS)
    async with serving(controller) as (offers, _):
        await offers.accepted.wait()
        assert not offers.contested
        controller.contested_at = "2026-01-31T12:00:00.000000Z"
        await until(lambda: offers.contested)
        await until(lambda: not offers.contested)
        await more(controller)
        assert not offers.contested, "the same word is told in each answer, and counts once"
        controller.contested_at = "2026-01-31T12:01:00.000000Z"
        await until(lambda: offers.contested)
        assert "queue.contested" in [record.message for record in caplog.records]
