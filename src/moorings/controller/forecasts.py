"""Forecasts, one at a time, in a thread beside the turns: who may wait for one, and when one is given up.

A forecast of a long queue takes seconds, and every holder of a key may request one. So each has a time limit, few may
wait, a subject has one place among them, and a forecast ends when its caller has gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TypeVar

from moorings.core.model.errors import MooringsError

T = TypeVar("T")


class ForecastQueue:
    """A queue for forecasts of one kind, first come, first served.

    Args:
        what: the forecasts, in the plural, for error messages.
        waiting_max: how many may wait besides the running one.
    """

    def __init__(self, what: str, waiting_max: int) -> None:
        self._what = what
        self._waiting_max = waiting_max
        self._subjects: set[str] = set()  # of the waiting forecasts and the running one
        self._free = asyncio.Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forecast")

    async def run(self, subject: str, limit_s: float, begin: Callable[[], Callable[[Callable[[], bool]], T]]) -> T:
        """Run a forecast and return its result.

        Args:
            subject: of the caller.
            limit_s: time limit in seconds; the wait before it does not count.
            begin: called when the forecast starts; its result is called in the thread, with a function that says
                whether to continue.

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
            work.add_done_callback(lambda _: self._free.release())  # also after its caller has gone: one at a time
            return await asyncio.shield(work)
        finally:
            given_up.set()
            self._subjects.discard(subject)

    def _start(self, forecast: Callable[[Callable[[], bool]], T], limit_s: float, given_up: Event) -> asyncio.Future[T]:
        def played() -> T:
            until = time.monotonic() + limit_s
            return forecast(lambda: time.monotonic() < until and not given_up.is_set())

        return asyncio.get_running_loop().run_in_executor(self._thread, played)
