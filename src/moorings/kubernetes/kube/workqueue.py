"""A work queue by key: one worker at a time works on a key, and no request to work on it is lost.

``DelayingQueue`` decides and knows no event loop; ``WorkQueue`` wakes workers. The rules are client-go's: a key that is
added while a worker has it is worked on again afterwards, and each failure doubles the delay.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, Protocol, TypeVar

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.kube.api import KubeError

log = logging.getLogger("moorings.kubernetes.workqueue")

RETRY_FIRST_S = 0.005
RETRY_MAX_S = 60.0
_DOUBLINGS_MAX = 32  # far beyond the longest pause, and no float overflows

K = TypeVar("K", bound=Hashable)


class DelayingQueue(Generic[K]):
    """Keys that wait, are in work or come due later. Times are seconds of any clock that never goes back."""

    def __init__(self) -> None:
        self._ready: deque[K] = deque()
        self._since: dict[K, float] = {}  # when it was added: keys that wait, or were added again while in work
        self._working: set[K] = set()
        self._due: dict[K, float] = {}
        self._timers: list[tuple[float, int, K]] = []  # a heap; entries that differ from `_due` are void
        self._timer_count = 0  # breaks ties, so that keys need no order
        self._failures: dict[K, int] = {}

    def __len__(self) -> int:
        """Number of keys that wait for a worker."""
        return len(self._ready)

    @property
    def outstanding(self) -> int:
        """Number of keys that wait, are in work or come due."""
        return len(self._since.keys() | self._working | self._due.keys())

    def add(self, key: K, now: float) -> bool:
        """Add a key; whether it was not waiting already."""
        if key in self._since:
            return False
        self._since[key] = now
        if key not in self._working:
            self._ready.append(key)
        return True

    def add_after(self, key: K, delay_s: float, now: float) -> None:
        """Add a key in ``delay_s`` seconds, or earlier if it was due earlier."""
        due = now + max(0.0, delay_s)
        if self._due.get(key, float("inf")) > due:
            self._due[key] = due
            self._timer_count += 1
            heapq.heappush(self._timers, (due, self._timer_count, key))

    def retry(self, key: K, now: float, at_least_s: float = 0.0) -> float:
        """Add a key again after a failure; returns the delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay_s = max(at_least_s, min(RETRY_MAX_S, RETRY_FIRST_S * 2.0 ** min(failures, _DOUBLINGS_MAX)))
        self.add_after(key, delay_s, now)
        return delay_s

    def forget(self, key: K) -> None:
        """Reset the failure count of a key."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """Failures of a key since its count was reset."""
        return self._failures.get(key, 0)

    def due_at(self) -> float | None:
        """When the next key comes due; None: no key."""
        while self._timers and self._due.get(self._timers[0][2]) != self._timers[0][0]:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def release(self, now: float) -> int:
        """Add all keys that have come due; how many were not waiting already."""
        count = 0
        while (due := self.due_at()) is not None and due <= now:
            key = heapq.heappop(self._timers)[2]
            del self._due[key]
            count += self.add(key, due)
        return count

    def take(self) -> tuple[K, float] | None:
        """The key that has waited longest, and when it was added; it is in work until ``done``."""
        if not self._ready:
            return None
        key = self._ready.popleft()
        self._working.add(key)
        return key, self._since.pop(key)

    def done(self, key: K) -> bool:
        """End the work on a key; whether it waits again."""
        self._working.remove(key)
        if key not in self._since:
            return False
        self._ready.append(key)
        return True


class QueueMetrics(Protocol):
    """Metrics of a queue."""

    def added(self) -> None:
        """Count a key that was added and was not waiting."""
        ...

    def started(self, waited_s: float) -> None:
        """Count a key that a worker has taken."""
        ...

    def ended(self, worked_s: float, *, failed: bool) -> None:
        """Count a key that a worker is done with."""
        ...


class _NoQueueMetrics:
    def added(self) -> None:
        pass

    def started(self, waited_s: float) -> None:
        pass

    def ended(self, worked_s: float, *, failed: bool) -> None:
        pass


class WorkQueue(Generic[K]):
    """A ``DelayingQueue`` with workers. All calls come from the event loop's thread.

    Args:
        meter: its metrics; see also ``depth``.
    """

    def __init__(self, meter: QueueMetrics | None = None) -> None:
        self._backlog: DelayingQueue[K] = DelayingQueue()
        self._meter: QueueMetrics = meter or _NoQueueMetrics()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._timer: tuple[float, asyncio.TimerHandle] | None = None  # with its time, which uvloop's handles lack

    @property
    def depth(self) -> int:
        """Number of keys that wait for a worker."""
        return len(self._backlog)

    @property
    def outstanding(self) -> int:
        """Number of keys that wait, are in work or come due; 0: nothing is left to do."""
        return self._backlog.outstanding

    def add(self, key: K) -> None:
        """Add a key; the next free worker takes it."""
        if self._backlog.add(key, _now()):
            self._meter.added()
            self._wake()

    def add_after(self, key: K, delay_s: float) -> None:
        """Add a key in so many seconds; the earliest of several delays counts."""
        self._backlog.add_after(key, delay_s, _now())
        self._schedule_wakeup()

    def retry(self, key: K, at_least_s: float = 0.0) -> float:
        """Add a key again after a failure: after 5 ms, twice as long each time, up to 60 s."""
        delay_s = self._backlog.retry(key, _now(), at_least_s)
        self._schedule_wakeup()
        return delay_s

    def forget(self, key: K) -> None:
        """Reset the failure count of a key."""
        self._backlog.forget(key)

    async def serve(self, work: Callable[[K], Awaitable[None]], workers: int) -> None:
        """Work until cancelled.

        ``work`` succeeds if it does not raise. Its errors are logged, and the key is tried again: one object that
        fails must not delay the others.
        """
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._serve_one(work))

    async def _serve_one(self, work: Callable[[K], Awaitable[None]]) -> None:
        while True:
            key, since = await self._take()
            begun = _now()
            self._meter.started(begun - since)
            failed = True
            try:
                await work(key)
                failed = False
                self._backlog.forget(key)
            except Exception as error:
                self._log_failure(key, error)
                self.retry(key, error.retry_after_s if isinstance(error, KubeError) else 0.0)
            finally:
                self._meter.ended(_now() - begun, failed=failed)
                if self._backlog.done(key):
                    self._wake()

    def _log_failure(self, key: K, error: Exception) -> None:
        fields = {"key": str(key), "failures": self._backlog.failures(key) + 1}
        if not isinstance(error, MooringsError):
            log.error("work.crashed", extra=fields, exc_info=error)
            return
        usual = isinstance(error, KubeError) and error.status == 409
        level = logging.DEBUG if usual or fields["failures"] != 3 else logging.WARNING  # once, and not for conflicts
        log.log(level, "work.failed", extra={**fields, "code": error.code, "detail": error.detail})

    async def _take(self) -> tuple[K, float]:
        while (found := self._backlog.take()) is None:
            mine = asyncio.get_running_loop().create_future()
            self._idle.append(mine)
            try:
                await mine
            except asyncio.CancelledError:
                if mine.done() and not mine.cancelled():
                    self._wake()  # another worker may take the key that woke this one
                raise
            finally:
                if mine in self._idle:
                    self._idle.remove(mine)
        return found

    def _wake(self) -> None:
        while self._idle:
            one = self._idle.popleft()
            if not one.done():
                one.set_result(None)
                return

    def _schedule_wakeup(self) -> None:
        due = self._backlog.due_at()
        if self._timer is not None:
            at, handle = self._timer
            if due is not None and at <= due:
                return
            handle.cancel()
            self._timer = None
        if due is not None:
            self._timer = due, asyncio.get_running_loop().call_at(due, self._release_due)

    def _release_due(self) -> None:
        self._timer = None
        # A loop's clock may be coarse: when it calls us, the key is due, whatever the clock says.
        for _ in range(self._backlog.release(_now() + 0.001)):
            self._meter.added()
            self._wake()
        self._schedule_wakeup()


def _now() -> float:
    return asyncio.get_running_loop().time()
