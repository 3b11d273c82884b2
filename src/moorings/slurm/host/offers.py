"""What the controller offers this cluster, as it changes, and what the controller is told of the cluster's queue.

An offer says what may be started *beside* what has been claimed. So it counts for the gate only together with the
moment since which it is good: a start that was claimed later is not in it yet.

The controller believes one Slurm of a name. Whoever is refused for another's sake is given no offer, and must not judge
what the other one's jobs are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from moorings.client.client import Client
from moorings.core.errors import MooringsError
from moorings.slurm.host.calls import ControllerClient
from moorings.slurm.host.gate import QueueOffer
from moorings.slurm.host.troubles import FailureLog
from moorings.wire.shapes import QueueBody, QueueRequest, ReasonBody

log = logging.getLogger("moorings.slurm.agent")

WAIT_S = 5.0  # one call is held so long; a network that swallows everything is noticed by its end
LOST_S = 3.0  # while no call has gone well for so long, nothing may start; a restart of the controller is shorter
TELL_S = 30.0  # a queue in which nothing changes is told so often
PAUSE_S = 0.5
AGAIN_S = 10.0  # who was refused for another's sake tells its list so often, for the other one to learn of it
# A controller that was started anew knows of neither. Who was refused before lets the other speak first for so long.
YIELD_S = 5.0
CONTESTED_S = 150.0  # a rival's word is noted once a minute, and heard of a little later
QUEUE_TAKEN, UNKNOWN = "queue.taken", "queue.unknown"


class QueueSync:
    """The offer to one queue.

    Attributes:
        counts: how many partitions of each size may be started; None: nothing is known, so nothing may.
        asked_at: the loop's time; every claim that was made before is counted.
        held: how many partitions of each size its claims held when it was offered ``counts``.
        alone: whether nobody but this queue's jobs waits for what it is offered.
        reasons: why each of the jobs told last waits, by owner, in order.
        offered: the owners of the jobs told last whose devices are kept for them, free.
        accepted: whether the controller has taken a list of this Slurm, and has not refused one since.
        refused: why it believes another Slurm of this name instead; empty: it does not.

    Args:
        calls: to the controller.
        queue: ``slurm/<cluster>``.
        instance: which Slurm of that name this is.
        pool: to look at; empty: all of the kind.
        changed: called when ``counts`` or ``asked_at`` has changed.
        taken: called when ``accepted`` becomes true.
        troubles: where it is told what fails.
    """

    def __init__(
        self,
        calls: ControllerClient,
        queue: str,
        instance: str,
        pool: str,
        changed: Callable[[], None],
        taken: Callable[[], None],
        troubles: FailureLog,
    ) -> None:
        self.counts: Mapping[int, int] | None = None
        self.asked_at = 0.0
        self.held: Mapping[int, int] = {}
        self.alone = False
        self.reasons: Mapping[str, ReasonBody] = {}
        self.offered: frozenset[str] = frozenset()
        self.accepted = asyncio.Event()
        self.refused = ""
        self._quiet_until = 0.0  # of who was refused
        self._unknown = False  # whether the controller knew of no list when it was asked last
        self._contested_at = ""  # as the controller told it
        self._contested_until = 0.0
        self._calls = calls
        self._queue = queue
        self._instance = instance
        self._pool = pool
        self._changed = changed
        self._taken = taken
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
        self._news = replace(queue, instance=self._instance)
        if self._news != self._told:
            self._telling.set()

    def snapshot(self) -> QueueOffer:
        """What is offered at this moment."""
        return QueueOffer(
            counts=self.counts,
            asked_at=self.asked_at,
            held=self.held,
            alone=self.alone,
            reasons=self.reasons,
            offered=self.offered,
            contested=self.contested,
        )

    @property
    def contested(self) -> bool:
        """Whether another Slurm of this name was refused a little while ago: unknown jobs may be that one's."""
        return _now() < self._contested_until

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
            if news is None or self._keeps_quiet or (news == self._told and _now() - told_at < TELL_S):
                continue
            with self._troubles.told("queue.tell") as good:
                await self._tell(news)
                self._told, told_at = news, _now()
            if not good:
                await asyncio.sleep(PAUSE_S)
                self._telling.set()

    async def _tell(self, news: QueueRequest) -> None:
        try:
            self._accept(await self._calls(lambda client: client.tell_queue(news)))
        except MooringsError as error:
            if error.code == QUEUE_TAKEN:
                self._refuse(error)
                self._quiet_until = _now() + AGAIN_S
            raise

    async def serve_watching(self) -> None:
        """Keep ``counts``, for ever."""
        while True:
            try:
                await self._watch()
                continue
            except MooringsError as error:
                self._miss(error)
            await asyncio.sleep(PAUSE_S)

    def _miss(self, error: MooringsError) -> None:
        """Take in why there is no offer."""
        if error.code == QUEUE_TAKEN:
            self._refuse(error)
        elif self.refused and not (self._unknown and error.code == UNKNOWN):
            self._quiet_until = _now() + YIELD_S  # it is away, or has just come back
        self._unknown = error.code == UNKNOWN
        if error.code in (QUEUE_TAKEN, UNKNOWN):  # it was started anew, or hears of us for the first time
            self._told = None
            self._telling.set()
        self._lost_at = self._lost_at or _now() + LOST_S
        if self.counts is not None and _now() > self._lost_at:
            log.warning("offer.lost", extra={"code": error.code, "detail": error.detail})
            self._lose()

    @property
    def _keeps_quiet(self) -> bool:
        return bool(self.refused) and _now() < self._quiet_until

    def _refuse(self, error: MooringsError) -> None:
        """Another Slurm of this name is believed: from now on this one gives nothing out, and takes nothing back."""
        self.refused = f"{error.detail}; {error.hint}"
        self.accepted.clear()
        if self.counts is not None:
            self._lose()

    def _accept(self, body: QueueBody) -> None:
        self.refused = ""
        self.offered = frozenset(job.owner for job in body.jobs if job.offered)
        self.reasons = {job.owner: job.reason for job in body.jobs if job.reason is not None}
        if not self.accepted.is_set():
            self.accepted.set()
            self._taken()
        if body.contested_at not in (None, self._contested_at):
            if not self.contested:
                hint = "give one of them another ClusterName; until then claims of unknown jobs are kept"
                log.warning("queue.contested", extra={"detail": f"another Slurm tells of {self._queue}", "hint": hint})
            self._contested_at, self._contested_until = body.contested_at or "", _now() + CONTESTED_S

    def _lose(self) -> None:
        self.counts, self._version = None, ""
        self._changed()

    async def _watch(self) -> None:
        """Wait for another offer; meanwhile ask again whenever a claim was made.

        Of two answers the older may come last. It does no lasting harm: the next call waits for another version than
        that one's, and is answered at once.
        """
        asked_at, version = _now(), self._version or None
        held = asyncio.ensure_future(self._calls(lambda client: self._ask(client, version, wait_s=WAIT_S), waits=True))
        try:
            while not held.done():
                made = asyncio.ensure_future(self._recount.wait())
                await asyncio.wait((held, made), return_when=asyncio.FIRST_COMPLETED)
                made.cancel()
                if self._recount.is_set():
                    self._recount.clear()
                    quick_at = _now()
                    self._take(await self._calls(self._ask), quick_at)
            self._take(held.result(), asked_at)
            if self._recount_at >= asked_at:
                self._recount.set()
        finally:
            held.cancel()

    def _ask(self, client: Client, version: str | None = None, *, wait_s: float = 0.0) -> QueueBody:
        return client.queue(self._queue, wait_s=wait_s, version=version, instance=self._instance)

    def _take(self, body: QueueBody, asked_at: float) -> None:
        self._accept(body)
        counts = self._in_our_pools(body.offer)
        if counts != self.counts:
            log.debug("offer.taken", extra={"offer": str(counts)})
        if body.version == self._version:
            asked_at = max(asked_at, self.asked_at)  # the same answer as to a later question
        self._lost_at = None
        self._version = body.version
        self.counts, self.asked_at = counts, asked_at
        self.held = self._in_our_pools(body.held)
        self.alone = self._pool not in body.others_wait if self._pool else not body.others_wait
        self._changed()

    def _in_our_pools(self, told: Mapping[str, Mapping[str, int]]) -> dict[int, int]:
        counts: dict[int, int] = {}
        for sizes in [told.get(self._pool, {})] if self._pool else told.values():
            for size, count in sizes.items():
                counts[int(size)] = counts.get(int(size), 0) + count
        return counts


def _now() -> float:
    return asyncio.get_running_loop().time()
