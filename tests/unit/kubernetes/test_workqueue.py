"""The work queue: no key is worked twice at a time, no wish is lost, and pauses grow as promised."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.kube.api import KubeError
from moorings.kubernetes.kube.workqueue import DelayingQueue, WorkQueue
from tests.waiting import until_async

KEYS = st.sampled_from("abcd")
DELAYS = st.floats(0, 100, allow_nan=False)


class Model(RuleBasedStateMachine):
    """A backlog beside the plainest account of what was asked of it, in virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self.backlog: DelayingQueue[str] = DelayingQueue()
        self.now = 0.0
        self.wanted: list[str] = []  # in the order in which they came to wait
        self.again: set[str] = set()
        self.working: set[str] = set()
        self.due: dict[str, float] = {}

    def want(self, key: str) -> None:
        if key in self.working:
            self.again.add(key)
        elif key not in self.wanted:
            self.wanted.append(key)

    @rule(key=KEYS)
    def add(self, key):
        news = key not in self.wanted and key not in self.again
        assert self.backlog.add(key, self.now) is news
        self.want(key)

    @rule(key=KEYS, delay_s=DELAYS)
    def add_after(self, key, delay_s):
        self.backlog.add_after(key, delay_s, self.now)
        self.due[key] = min(self.due.get(key, float("inf")), self.now + delay_s)

    @rule(passed_s=DELAYS)
    def time_passes(self, passed_s):
        self.now += passed_s
        self.backlog.release(self.now)
        for key, _ in sorted(self.due.items(), key=lambda item: item[1]):
            if self.due[key] <= self.now:
                del self.due[key]
                self.want(key)

    @rule()
    def take(self):
        found = self.backlog.take()
        if found is None:
            assert not self.wanted
            return
        key, since = found
        assert key not in self.working, "it is worked already"
        assert since <= self.now
        assert key in self.wanted
        self.wanted.remove(key)
        self.working.add(key)

    @rule(key=KEYS)
    def done(self, key):
        if key in self.working:
            assert self.backlog.done(key) is (key in self.again)
            self.working.remove(key)
            if key in self.again:
                self.again.remove(key)
                self.wanted.append(key)

    @invariant()
    def nothing_is_lost(self):
        assert len(self.backlog) == len(self.wanted)
        assert self.backlog.outstanding == len({*self.wanted, *self.working, *self.due})
        assert self.backlog.due_at() == min(self.due.values(), default=None)


TestModel = Model.TestCase


@given(st.lists(KEYS, max_size=20))
def test_the_first_that_came_is_the_first_that_is_worked(keys):
    backlog: DelayingQueue[str] = DelayingQueue()
    for at, key in enumerate(keys):
        backlog.add(key, float(at))
    taken = []
    while found := backlog.take():
        taken.append(found[0])
    assert taken == list(dict.fromkeys(keys))


def test_a_key_that_is_always_added_again_does_not_keep_the_others_waiting():
    backlog: DelayingQueue[str] = DelayingQueue()
    backlog.add("greedy", 0)
    backlog.add("patient", 0)
    found = backlog.take()
    assert found == ("greedy", 0)
    backlog.add("greedy", 1)
    assert backlog.done("greedy")
    assert backlog.take() == ("patient", 0)


def test_the_pause_after_failures_doubles_up_to_a_minute_and_starts_anew():
    backlog: DelayingQueue[str] = DelayingQueue()
    pauses = [backlog.retry("a", 0) for _ in range(16)]
    assert pauses[:4] == [0.005, 0.01, 0.02, 0.04]
    assert pauses[-2:] == [60.0, 60.0]
    assert backlog.due_at() == 0.005
    for _ in range(5000):
        backlog.retry("a", 0)
    assert backlog.retry("b", 0) == 0.005
    backlog.forget("a")
    assert backlog.retry("a", 0) == 0.005


def test_a_server_that_asks_for_time_gets_it():
    backlog: DelayingQueue[str] = DelayingQueue()
    assert backlog.retry("a", 100, at_least_s=7) == 7
    assert backlog.due_at() == 107


def test_an_earlier_wish_counts_and_the_later_one_is_void():
    backlog: DelayingQueue[str] = DelayingQueue()
    backlog.add_after("a", 10, 0)
    backlog.add_after("a", 5, 0)
    backlog.add_after("a", 20, 0)
    assert backlog.release(5) == 1
    assert backlog.take() == ("a", 5)
    backlog.done("a")
    assert backlog.release(1000) == 0


# -- with workers --------------------------------------------------------------------------------------------------


class Counts:
    def __init__(self) -> None:
        self.adds = 0
        self.waits: list[float] = []
        self.ends: list[bool] = []

    def added(self) -> None:
        self.adds += 1

    def started(self, waited_s: float) -> None:
        self.waits.append(waited_s)

    def ended(self, worked_s: float, *, failed: bool) -> None:
        assert worked_s >= 0
        self.ends.append(failed)


async def drained(queue: WorkQueue[str]) -> None:
    await until_async(lambda: not queue.outstanding, 20)


async def test_workers_share_the_keys_and_never_work_one_at_the_same_time():
    counts = Counts()
    queue: WorkQueue[str] = WorkQueue(counts)
    seen: dict[str, int] = {}
    working: set[str] = set()
    most = 0

    async def work(key: str) -> None:
        nonlocal most
        assert key not in working
        working.add(key)
        most = max(most, len(working))
        seen[key] = seen.get(key, 0) + 1
        await asyncio.sleep(0.002)
        if seen[key] < 5:
            queue.add(key)
            queue.add(key)  # once more, not twice
        working.remove(key)

    serving = asyncio.create_task(queue.serve(work, 4))
    names = [str(number) for number in range(20)]
    for name in names:
        queue.add(name)
    await drained(queue)
    serving.cancel()
    await asyncio.wait((serving,))
    assert seen == dict.fromkeys(names, 5)
    assert most == 4
    assert counts.adds == len(counts.waits) == len(counts.ends) == 100
    assert not any(counts.ends)


async def test_what_fails_is_tried_again_and_the_workers_live_on(caplog):
    queue: WorkQueue[str] = WorkQueue()
    tries: list[str] = []

    async def work(key: str) -> None:
        tries.append(key)
        if key == "refused" and tries.count(key) < 4:
            raise KubeError(500, "InternalError", "not now")
        if key == "broken" and tries.count(key) < 3:
            raise RuntimeError("a bug")

    serving = asyncio.create_task(queue.serve(work, 1))
    with caplog.at_level(logging.WARNING, "moorings.kubernetes.workqueue"):
        for key in ("refused", "broken", "good"):
            queue.add(key)
        await drained(queue)
    serving.cancel()
    await asyncio.wait((serving,))
    assert (tries.count("refused"), tries.count("broken"), tries.count("good")) == (4, 3, 1)
    said = [record.message for record in caplog.records]
    assert said.count("work.crashed") == 2, "each bug is seen"
    assert said.count("work.failed") == 1, "trouble that lasts is told once"


async def test_a_wait_ends_when_the_key_is_due_and_an_earlier_wish_moves_it_forward():
    queue: WorkQueue[str] = WorkQueue()
    loop = asyncio.get_running_loop()
    begun, worked = loop.time(), {}

    async def work(key: str) -> None:
        worked[key] = loop.time() - begun

    serving = asyncio.create_task(queue.serve(work, 2))
    queue.add_after("late", 60)
    queue.add_after("soon", 0.2)
    queue.add_after("late", 0.05)
    await drained(queue)
    serving.cancel()
    await asyncio.wait((serving,))
    assert worked.keys() == {"late", "soon"}
    assert 0.04 <= worked["late"] < worked["soon"]
    assert 0.19 <= worked["soon"]


async def test_a_worker_that_is_cancelled_as_it_is_woken_hands_the_key_on():
    queue: WorkQueue[str] = WorkQueue()
    done: list[str] = []

    async def work(key: str) -> None:
        done.append(key)

    first = asyncio.create_task(queue.serve(work, 1))
    second = asyncio.create_task(queue.serve(work, 1))
    for _ in range(3):
        await asyncio.sleep(0)
    queue.add("a")  # wakes the first
    first.cancel()
    await drained(queue)
    assert done == ["a"]
    second.cancel()
    await asyncio.wait((first, second))


@pytest.mark.parametrize("error", [MooringsError("kubernetes.refused", "no"), ValueError("no")])
async def test_a_failure_of_one_key_leaves_the_pace_of_the_others_alone(error):
    queue: WorkQueue[str] = WorkQueue()
    good = 0

    async def work(key: str) -> None:
        nonlocal good
        if key == "bad":
            raise error
        good += 1

    serving = asyncio.create_task(queue.serve(work, 1))
    queue.add("bad")
    for number in range(200):
        queue.add(str(number))
    await until_async(lambda: good >= 200)
    serving.cancel()
    await asyncio.wait((serving,))
