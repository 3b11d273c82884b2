"""What the controller offers this cluster, as it changes, and what the controller is told of the cluster's queue.

An offer says what may be started *beside* what has been claimed. So it counts for the gate only together with the
moment since which it is good: a start that was claimed later is not in it yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from moorings.core.errors import MooringsError
from moorings.slurm.host.calls import Calls
from moorings.slurm.host.troubles import Troubles
from moorings.wire.shapes import QueueBody, QueueRequest

log = logging.getLogger("moorings.slurm.agent")

WAIT_S = 5.0  # one call is held so long; a network that swallows everything is noticed by its end
LOST_S = 3.0  # while no call has gone well for so long, nothing may start; a restart of the controller is shorter
TELL_S = 30.0  # a queue in which nothing changes is told so often
PAUSE_S = 0.5


class Offers:
    """The offer to one queue.

    Attributes:
        counts: how many partitions of each size may be started; None: nothing is known, so nothing may.
        asked_at: the loop's time; every claim that was made before is counted.

    Args:
        calls: to the controller.
        queue: ``slurm/<cluster>``.
        pool: to look at; empty: all of the kind.
        changed: called when ``counts`` or ``asked_at`` has changed.
        troubles: where it is told what fails.
    """

    def __init__(self, calls: Calls, queue: str, pool: str, changed: Callable[[], None], troubles: Troubles) -> None:
        self.counts: Mapping[int, int] | None = None
        self.asked_at = 0.0
        self._calls = calls
        self._queue = queue
        self._pool = pool
        self._changed = changed
        self._troubles = troubles
        self._version = ""
        self._lost_at: float | None = None  # when nothing is believed any more; None: the last call went well
        self._recount = asyncio.Event()
        self._recount_at = 0.0
        self._news: QueueRequest | None = None
        self._told: QueueRequest | None = None
        self._telling = asyncio.Event()

    def tell(self, queue: QueueRequest) -> None:
        """Have the controller told what waits now, if that is news."""
        self._news = queue
        if queue != self._told:
            self._telling.set()

    def recount(self) -> None:
        """A claim was made: have the offer asked for anew, so that the claim is counted."""
        self._recount_at = _now()
        self._recount.set()

    async def serve_telling(self) -> None:
        """Tell what ``tell`` is given, for ever."""
        told_at = 0.0
        while True:
            try:
                async with asyncio.timeout(TELL_S):
                    await self._telling.wait()
            except TimeoutError:
                pass
            self._telling.clear()
            news = self._news
            if news is None or (news == self._told and _now() - told_at < TELL_S):
                continue
            with self._troubles.told("queue.tell") as good:
                await self._calls(lambda client, news=news: client.tell_queue(news))  # type: ignore[misc]
                self._told, told_at = news, _now()
            if not good:
                await asyncio.sleep(PAUSE_S)
                self._telling.set()

    async def serve_watching(self) -> None:
        """Keep ``counts``, for ever."""
        while True:
            try:
                await self._watch()
                continue
            except MooringsError as error:
                if error.code == "queue.unknown":  # the controller was started anew, or hears of us for the first time
                    self._told = None
                    self._telling.set()
                self._lost_at = self._lost_at or _now() + LOST_S
                if self.counts is not None and _now() > self._lost_at:
                    log.warning("offer.lost", extra={"code": error.code, "detail": error.detail})
                    self.counts, self._version = None, ""
                    self._changed()
            await asyncio.sleep(PAUSE_S)

    async def _watch(self) -> None:
        """Wait for another offer; meanwhile ask again whenever a claim was made.

        Of two answers the older may come last. It does no lasting harm: the next call waits for another version than
        that one's, and is answered at once.
        """
        asked_at, version = _now(), self._version or None
        held = asyncio.ensure_future(
            self._calls(lambda client: client.queue(self._queue, wait_s=WAIT_S, version=version), waits=True)
        )
        try:
            while not held.done():
                made = asyncio.ensure_future(self._recount.wait())
                await asyncio.wait((held, made), return_when=asyncio.FIRST_COMPLETED)
                made.cancel()
                if self._recount.is_set():
                    self._recount.clear()
                    quick_at = _now()
                    self._take(await self._calls(lambda client: client.queue(self._queue)), quick_at)
            self._take(held.result(), asked_at)
            if self._recount_at >= asked_at:
                self._recount.set()
        finally:
            held.cancel()

    def _take(self, body: QueueBody, asked_at: float) -> None:
        pools = [body.offer.get(self._pool, {})] if self._pool else list(body.offer.values())
        counts: dict[int, int] = {}
        for sizes in pools:
            for size, count in sizes.items():
                counts[int(size)] = counts.get(int(size), 0) + count
        if counts != self.counts:
            log.debug("offer.taken", extra={"offer": str(counts)})
        if body.version == self._version:
            asked_at = max(asked_at, self.asked_at)  # the same answer as to a later question
        self._lost_at = None
        self._version = body.version
        self.counts, self.asked_at = counts, asked_at
        self._changed()


def _now() -> float:
    return asyncio.get_running_loop().time()
