"""Virtual time: an event loop that jumps to the next timer instead of waiting for it, and clocks that read it.

The loop is asyncio's own (``BaseEventLoop``), so tasks, timeouts and groups are the real ones; only its selector is
gone, for nothing here comes from outside. Ready callbacks run in the order in which they became ready, as on the real
loop: seeds differ in *when* outside calls are answered. Refused: shuffling the ready queue. It would show orders that
no real loop ever has, and its findings would not be bugs.

Threads run nothing in parallel: a call given to an executor runs in the loop's own thread, whole, at a moment that the
loop's owner chooses.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.ports.clock import ID_ALPHABET

T = TypeVar("T")

START_TIME = Timestamp(1_750_000_000 * SECOND)  # any moment; the same for every seed
_ID_CHARS = 12

ThreadCall = Callable[[Executor | None, Callable[[], Any], "asyncio.Future[Any]"], None]


class StuckError(Exception):
    """Nothing is ready and no timer is set: every waiter would wait for ever."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop on virtual time.

    Attributes:
        threads: runs the executors' calls; set by the owner.
    """

    def __init__(self) -> None:
        super().__init__()
        self._selector = _JumpingSelector(self)
        self._clock_resolution = 1e-9
        self.moment_s = 0.0
        self.threads: ThreadCall = _at_once

    def time(self) -> float:
        return self.moment_s

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: object) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        self.threads(executor, lambda: func(*args), future)
        return future

    def _process_events(self, event_list: list[object]) -> None:
        """There are none: nothing comes from outside."""

    def _write_to_self(self) -> None:
        """No other thread wakes this loop."""


class _JumpingSelector:
    """The substitute for a selector: where the real one waits, time passes at once."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None:
            raise StuckError
        self._loop.moment_s += timeout
        return []


def _at_once(_executor: Executor | None, call: Callable[[], Any], future: asyncio.Future[Any]) -> None:
    future.set_result(call())


class WallClock:
    """The time of day of the controllers' machine, which jumps when it is set; sleeping is not affected.

    Attributes:
        set_by_s: how far it has been set, in all.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.set_by_s = 0.0

    def now(self) -> Timestamp:
        return Timestamp(START_TIME + round((self._loop.moment_s + self.set_by_s) * SECOND))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SteadyClock(WallClock):
    """A clock that is never set: the hardware's, and the checkers'."""


class SeededIds:
    """New ids of the usual form, from the seed."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._given: set[str] = set()

    def new(self, kind: str) -> str:
        while True:
            ident = f"{kind}-{''.join(self._chance.choices(ID_ALPHABET, k=_ID_CHARS))}"
            if ident not in self._given:
                self._given.add(ident)
                return ident
