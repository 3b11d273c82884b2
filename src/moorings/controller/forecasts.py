"""Forecasts, one at a time, in a thread beside the turns: who may wait for one, and when one is given up.

A forecast of a long queue takes seconds, and everybody who has a key may ask for one. So each takes so long at most,
few wait, a subject has one place among them, and one whose asker has gone ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TypeVar

from moorings.core.errors import MooringsError

T = TypeVar("T")


class ForecastQueue:
    """Where forecasts of one kind are played, first come first served.

    Args:
        what: what is played here, in the plural, for refusals.
        waiting_max: how many may wait besides the one that is played.
    """

    def __init__(self, what: str, waiting_max: int) -> None:
        self._what = what
        self._waiting_max = waiting_max
        self._subjects: set[str] = set()  # who wait, and whose is played
        self._free = asyncio.Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forecast")

    async def play(self, subject: str, limit_s: float, begin: Callable[[], Callable[[Callable[[], bool]], T]]) -> T:
        """What a forecast finds out.

        Args:
            subject: who asks.
            limit_s: seconds that it is played at most; the wait before it does not count.
            begin: called here, when its turn has come; what it returns is called in the thread, with a question to be
                asked again and again: whether to go on.

        Raises:
            MooringsError: ``forecast.busy``, or what the forecast raises.
        """
        if subject in self._subjects:
            raise MooringsError(
                "forecast.busy",
                f"{subject} asks for one of the {self._what} already",
                hint="wait for its answer, then ask again",
                retryable=True,
            )
        if len(self._subjects) > self._waiting_max:
            raise MooringsError(
                "forecast.busy",
                f"{self._waiting_max} others wait for {self._what} already",
                hint="try again in some seconds",
                retryable=True,
            )
        self._subjects.add(subject)
        given_up = Event()
        try:
            await self._free.acquire()
            try:
                work = self._start(begin(), limit_s, given_up)
            except BaseException:
                self._free.release()
                raise
            work.add_done_callback(lambda _: self._free.release())  # also after its asker has gone: one at a time
            return await asyncio.shield(work)
        finally:
            given_up.set()
            self._subjects.discard(subject)

    def _start(self, forecast: Callable[[Callable[[], bool]], T], limit_s: float, given_up: Event) -> asyncio.Future[T]:
        def played() -> T:
            until = time.monotonic() + limit_s
            return forecast(lambda: time.monotonic() < until and not given_up.is_set())

        return asyncio.get_running_loop().run_in_executor(self._thread, played)
