"""Exchanges reports with the controller: its offer to this cluster, and the pending jobs of this cluster's queue.

An offer says what may start *in addition to* claimed devices. So the gate needs it together with its time: a start
claimed later is not counted in it yet.

The controller accepts one Slurm of a name. A Slurm refused in favour of another gets no offer, and must not judge the
other's jobs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from moorings.client.client import Client
from moorings.core.model.errors import MooringsError
from moorings.slurm.host.controller_client import ControllerClient
from moorings.slurm.host.failure_log import FailureLog
from moorings.slurm.host.license_gate import QueueOffer
from moorings.wire.shapes import QueueBody, QueueRequest, ReasonBody

log = logging.getLogger("moorings.slurm.agent")

WAIT_S = 5.0  # length of one call; a network that drops all packets is detected at its end
LOST_S = 3.0  # without a good call for so long, no job may start; the controller restarts faster
REPORT_S = 30.0  # interval of reports of an unchanged queue
PAUSE_S = 0.5
AGAIN_S = 10.0  # interval of reports of a refused Slurm, to show the other one that it exists
# A newly started controller knows neither. One that was refused before lets the other report first for so long.
YIELD_S = 5.0
CONTESTED_S = 150.0  # a rival's report is recorded once a minute, and shown a little later
QUEUE_TAKEN, UNKNOWN = "queue.taken", "queue.unknown"


class QueueSync:
    """The offer to one queue.

    Attributes:
        counts: how many partitions of each size may start; None: unknown, so none may.
        asked_at: the loop's time; every claim made before it is counted.
        held: how many partitions of each size its claims held at the time of ``counts``.
        alone: whether only this queue's jobs wait for the offered devices.
        reasons: by owner, in order, why each of the last reported jobs waits.
        offered: the owners of the last reported jobs with free devices reserved for them.
        accepted: set: the controller has accepted a report of this Slurm, and has not refused one since.
        refused: why it accepts another Slurm of this name instead; empty: it does not.

    Args:
        calls: to the controller.
        queue: ``slurm/<cluster>``.
        instance: the id of this Slurm among those of that name.
        pool: to watch; empty: all of the kind.
        changed: called when ``counts`` or ``asked_at`` has changed.
        taken: called when ``accepted`` becomes true.
        troubles: the log of failures.
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
        self._quiet_until = 0.0  # used after a refusal
        self._unknown = False  # whether the controller had no report at the last request
        self._contested_at = ""  # as the controller reported it
        self._contested_until = 0.0
        self._calls = calls
        self._queue = queue
        self._instance = instance
        self._pool = pool
        self._changed = changed
        self._taken = taken
        self._troubles = troubles
        self._version = ""
        self._lost_at: float | None = None  # when the offer expires; None: the last call went well
        self._recount = asyncio.Event()
        self._recount_at = 0.0
        self._pending: QueueRequest | None = None
        self._announced: QueueRequest | None = None
        self._report_wanted = asyncio.Event()

    def announce(self, queue: QueueRequest) -> None:
        """Report the pending jobs to the controller if they have changed."""
        self._pending = replace(queue, instance=self._instance)
        if self._pending != self._announced:
            self._report_wanted.set()

    def snapshot(self) -> QueueOffer:
        """Return the current offer."""
        return QueueOffer(
            counts=self.counts,
            asked_at=self.asked_at,
            held_counts=self.held,
            is_sole_queue=self.alone,
            reasons=self.reasons,
            offered=self.offered,
            is_contested=self.contested,
        )

    @property
    def contested(self) -> bool:
        """Whether another Slurm of this name was refused recently: unknown jobs may belong to that one."""
        return _now() < self._contested_until

    def request_refresh(self) -> None:
        """Request a new offer, because a claim was made and must be counted."""
        self._recount_at = _now()
        self._recount.set()

    async def serve_announcing(self) -> None:
        """Send the reports passed to ``announce``, forever."""
        reported_at = 0.0
        while True:
            try:
                async with asyncio.timeout(REPORT_S):
                    await self._report_wanted.wait()
            except TimeoutError:
                pass
            self._report_wanted.clear()
            news = self._pending
            if news is None or self._is_standing_back or (news == self._announced and _now() - reported_at < REPORT_S):
                continue
            with self._troubles.logged("queue.tell") as good:
                await self._send_report(news)
                self._announced, reported_at = news, _now()
            if not good:
                await asyncio.sleep(PAUSE_S)
                self._report_wanted.set()

    async def _send_report(self, news: QueueRequest) -> None:
        try:
            self._accept(await self._calls(lambda client: client.report_queue(news)))
        except MooringsError as error:
            if error.code == QUEUE_TAKEN:
                self._refuse(error)
                self._quiet_until = _now() + AGAIN_S
            raise

    async def serve_watching(self) -> None:
        """Keep ``counts`` current, forever."""
        while True:
            try:
                await self._watch()
                continue
            except MooringsError as error:
                self._record_failure(error)
            await asyncio.sleep(PAUSE_S)

    def _record_failure(self, error: MooringsError) -> None:
        """Record why there is no offer."""
        if error.code == QUEUE_TAKEN:
            self._refuse(error)
        elif self.refused and not (self._unknown and error.code == UNKNOWN):
            self._quiet_until = _now() + YIELD_S  # it is down, or has just restarted
        self._unknown = error.code == UNKNOWN
        if error.code in (QUEUE_TAKEN, UNKNOWN):  # it has restarted, or does not know us yet
            self._announced = None
            self._report_wanted.set()
        self._lost_at = self._lost_at or _now() + LOST_S
        if self.counts is not None and _now() > self._lost_at:
            log.warning("offer.lost", extra={"code": error.code, "detail": error.detail})
            self._clear_offer()

    @property
    def _is_standing_back(self) -> bool:
        return bool(self.refused) and _now() < self._quiet_until

    def _refuse(self, error: MooringsError) -> None:
        """Stop starts and releases: the controller accepts another Slurm of this name."""
        self.refused = f"{error.detail}; {error.hint}"
        self.accepted.clear()
        if self.counts is not None:
            self._clear_offer()

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
                log.warning("queue.contested", extra={"detail": f"another Slurm reports {self._queue}", "hint": hint})
            self._contested_at, self._contested_until = body.contested_at or "", _now() + CONTESTED_S

    def _clear_offer(self) -> None:
        self.counts, self._version = None, ""
        self._changed()

    async def _watch(self) -> None:
        """Wait for another offer; meanwhile request it again after each new claim.

        Of two answers the older may arrive last. It does no lasting harm: the next call waits for a version other than
        that one's, and is answered at once.
        """
        asked_at, version = _now(), self._version or None
        held = asyncio.ensure_future(
            self._calls(lambda client: self._get_queue(client, version, wait_s=WAIT_S), waits=True)
        )
        try:
            while not held.done():
                made = asyncio.ensure_future(self._recount.wait())
                await asyncio.wait((held, made), return_when=asyncio.FIRST_COMPLETED)
                made.cancel()
                if self._recount.is_set():
                    self._recount.clear()
                    requested_at = _now()
                    self._apply_offer(await self._calls(self._get_queue), requested_at)
            self._apply_offer(held.result(), asked_at)
            if self._recount_at >= asked_at:
                self._recount.set()
        finally:
            held.cancel()

    def _get_queue(self, client: Client, version: str | None = None, *, wait_s: float = 0.0) -> QueueBody:
        return client.queue(self._queue, wait_s=wait_s, version=version, instance=self._instance)

    def _apply_offer(self, body: QueueBody, asked_at: float) -> None:
        self._accept(body)
        counts = self._in_our_pools(body.offer)
        if counts != self.counts:
            log.debug("offer.taken", extra={"offer": str(counts)})
        if body.version == self._version:
            asked_at = max(asked_at, self.asked_at)  # the same answer as to a later request
        self._lost_at = None
        self._version = body.version
        self.counts, self.asked_at = counts, asked_at
        self.held = self._in_our_pools(body.held)
        self.alone = self._pool not in body.others_wait if self._pool else not body.others_wait
        self._changed()

    def _in_our_pools(self, by_pool: Mapping[str, Mapping[str, int]]) -> dict[int, int]:
        counts: dict[int, int] = {}
        for sizes in [by_pool.get(self._pool, {})] if self._pool else by_pool.values():
            for size, count in sizes.items():
                counts[int(size)] = counts.get(int(size), 0) + count
        return counts


def _now() -> float:
    return asyncio.get_running_loop().time()
