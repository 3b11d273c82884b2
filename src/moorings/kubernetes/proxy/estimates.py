"""Start estimates of waiting claims: requested rarely and in the background, and published when they change.

A forecast simulates a controller's queue, which takes it up to seconds, and it handles one forecast at a time. So each
controller gets one request at a time, about the claim without a request for longest, and the pauses are so long that
this takes at most a tenth of its time. An estimate is kept until the new one differs by a set part of the time left.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp, seconds_between
from moorings.kubernetes.proxy.controllers import ControllerConnection
from moorings.kubernetes.proxy.instances import EstimatedStart, ManagedInstance
from moorings.kubernetes.proxy.observed import ClaimPhase, ObservedClaim
from moorings.wire.codec import format_time, parse_time
from moorings.wire.shapes import EstimateBody

log = logging.getLogger("moorings.kubernetes.proxy")

LOOK_S = 0.5  # between two searches for the next claim to ask about
FIRST_S = 2.0  # age of a claim before the first request: it may be granted sooner
AGAIN_S = 60.0  # between two requests about one claim
BUSY_S = 5.0  # pause after a refusal
SHARE = 10  # pause after a response, as a multiple of its duration
NEWS_S, NEWS_PART = 60.0, 0.1  # least change to publish: the larger of the seconds and the part of the time left


@dataclass(frozen=True, slots=True)
class EstimateQuery:
    """The next claim to ask about, and its instance."""

    record: ManagedInstance
    known: ObservedClaim


class EstimateUpdater:
    """Keeps the estimates of all waiting instances current.

    Args:
        waiting: the instances that wait.
        links: the controllers, by name.
        changed: called with the owner after each change.
        now: the wall clock, microseconds since 1970.
    """

    def __init__(
        self,
        waiting: Callable[[], Iterable[ManagedInstance]],
        links: Callable[[], Mapping[str, ControllerConnection]],
        changed: Callable[[str], None],
        now: Callable[[], int],
    ) -> None:
        self._waiting = waiting
        self._links = links
        self._changed = changed
        self._now = now
        self._quiet_until: dict[str, float] = {}  # by controller
        self._queries: dict[str, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        """Send requests until cancelled."""
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                self._query_free_controllers(time.monotonic())
        finally:
            for task in self._queries.values():
                task.cancel()

    def _query_free_controllers(self, now: float) -> None:
        links = self._links()
        free = {
            name: link
            for name, link in links.items()
            if link.is_reachable
            and not link.alias_of
            and name not in self._queries
            and now >= self._quiet_until.get(name, 0)
        }
        if not free:
            return
        for name, question in choose_queries(self._waiting(), free, now, format_time(Timestamp(self._now()))).items():
            task = asyncio.create_task(self._estimate(free[name], question))
            self._queries[name] = task
            task.add_done_callback(lambda _, name=name: self._queries.pop(name, None))  # type: ignore[misc]

    async def _estimate(self, link: ControllerConnection, question: EstimateQuery) -> None:
        begun, quiet_s = time.monotonic(), 0.0
        key = (question.known.controller, question.known.id)
        before = question.record.estimates.get(key)
        try:
            explanation = await link.call_serially(lambda client: client.explain_claim(question.known.id, when=True))
            found = parse_estimate(explanation.estimate, begun)
        except MooringsError as error:
            log.debug("estimate.refused", extra={"controller": link.name, "code": error.code, "detail": error.detail})
            found, quiet_s = None, BUSY_S
        ended = time.monotonic()
        self._quiet_until[link.name] = ended + max((ended - begun) * SHARE, quiet_s)
        if found is None:  # the previous estimate may hold for a while
            found = EstimatedStart(asked_at=begun) if before is None else before.asked_again(begun)
        news = has_changed(before, found, Timestamp(self._now()))
        question.record.estimates[key] = found if news or before is None else before.asked_again(begun)
        if news:
            self._changed(question.record.owner)


def choose_queries(
    waiting: Iterable[ManagedInstance], controllers: Container[str], now: float, time_now: str
) -> dict[str, EstimateQuery]:
    """The next requests, one for each controller: of the claims that wait there, the one without a request for longest.

    Drops estimates of claims that no longer wait.

    Args:
        waiting: the instances that wait.
        controllers: those that may be asked.
        now: ``time.monotonic``.
        time_now: the time (RFC 3339): claims that should have started by then come first.
    """
    found: dict[str, tuple[float, EstimateQuery]] = {}
    for record in waiting:
        claims = {key: known for key, known in record.claims.claims.items() if known.phase is ClaimPhase.WAITING}
        for key in record.estimates.keys() - claims.keys():
            del record.estimates[key]
        for key, known in claims.items():
            if known.controller not in controllers or now < record.claims.first_seen_at.get(key, now) + FIRST_S:
                continue
            estimate = record.estimates.get(key)
            asked_at = estimate.asked_at if estimate is not None else 0.0
            if estimate is not None and now < asked_at + AGAIN_S:
                continue
            if estimate is not None and "" < estimate.starts_at < time_now:
                asked_at = 0.0
            if known.controller not in found or asked_at < found[known.controller][0]:
                found[known.controller] = asked_at, EstimateQuery(record, known)
    return {name: question for name, (_, question) in found.items()}


def parse_estimate(body: EstimateBody | None, asked_at: float) -> EstimatedStart | None:
    """A controller's estimate; None: it gave none.

    Drops all of ``why`` but its last part: text about a project's rules comes before it, and may name another's claim.
    """
    if body is None:
        return None
    return EstimatedStart(body.starts_at or "", "" if body.starts_at else body.why.rpartition("; ")[2], asked_at)


def has_changed(before: EstimatedStart | None, found: EstimatedStart, now: Timestamp) -> bool:
    """Whether an estimate differs from the previous one."""
    if before is None or bool(before.starts_at) is not bool(found.starts_at):
        return bool(found.starts_at or found.why)
    if not found.starts_at:
        return before.why != found.why
    was, becomes = parse_time(before.starts_at), parse_time(found.starts_at)
    moved_s, left_s = abs(seconds_between(was, becomes)), seconds_between(now, becomes)
    return moved_s > max(NEWS_S, NEWS_PART * left_s)
