"""Leader election among replicas: the leader holds a Lease, by the rules of client-go, so that tools understand it.

``decide_lease`` and the values around it are pure. A lease expires when *we* saw it unchanged for its length: other
machines' clocks do not count. ``is_leading`` is true only while no other replica can consider the lease expired, by a
clock that also runs while this process, or this machine, is suspended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp
from moorings.kubernetes.kube.api import LEASE, ExpectedErrors, KubeApi, KubeError, KubeObject, get_or_none
from moorings.wire.codec import format_time

log = logging.getLogger("moorings.kubernetes.election")

RELEASE_S = 5.0  # how long a shutdown waits for the API server
JITTER = 1.2  # of the pause between two reads of a standby replica


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """The times of an election, in seconds, as client-go names them.

    Attributes:
        lease_s: an unchanged lease expires after this.
        renew_s: the leader stops leading after this time without a renewal; less than ``lease_s``.
        retry_s: between two renewals, or two reads of the lease; less than ``renew_s``.
    """

    lease_s: float = 15.0
    renew_s: float = 10.0
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        if not self.lease_s > self.renew_s > JITTER * self.retry_s > 0:
            raise MooringsError(
                "kubernetes.terms_invalid",
                f"a lease of {self.lease_s} s, renewed for {self.renew_s} s, every {self.retry_s} s, cannot be kept",
                hint="the lease must be longer than the renewing, and that longer than 1.2 times the retries",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """The content of a Lease.

    Attributes:
        holder: identity of its holder; empty: none.
        lease_s: its length; 0: not given.
        acquired: when the holder acquired it, as the holder wrote it.
        transitions: how often the holder changed.
        version: resourceVersion; changes with every renewal.
    """

    holder: str
    lease_s: float
    acquired: str
    transitions: int
    version: str


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """A record, and when we first saw it, by our own clock (seconds)."""

    record: LeaseRecord
    at: float


class LeaseDecision(Enum):
    """What to do about a lease."""

    TAKE = auto()
    WAIT = auto()


def parse_lease(found: KubeObject) -> LeaseRecord:
    """The record of a Lease object."""
    spec = found.get("spec") or {}
    return LeaseRecord(
        holder=spec.get("holderIdentity") or "",
        lease_s=float(spec.get("leaseDurationSeconds") or 0),
        acquired=spec.get("acquireTime") or "",
        transitions=int(spec.get("leaseTransitions") or 0),
        version=found["metadata"]["resourceVersion"],
    )


def observe_lease(seen: ObservedLease | None, record: LeaseRecord, now: float) -> ObservedLease:
    """``seen`` if the record is unchanged, else the new record."""
    return seen if seen is not None and seen.record == record else ObservedLease(record, now)


def decide_lease(seen: ObservedLease, identity: str, now: float, terms: LeaseTimes) -> LeaseDecision:
    """Whether we may take a lease: it has no holder, or we hold it, or it was unchanged for longer than its length."""
    record = seen.record
    free = record.holder in ("", identity) or now > seen.at + (record.lease_s or terms.lease_s)
    return LeaseDecision.TAKE if free else LeaseDecision.WAIT


def build_spec(me: str, before: LeaseRecord | None, terms: LeaseTimes, now: Timestamp) -> KubeObject:
    """The spec of a lease that we take or renew."""
    is_renewal = before is not None and before.holder == me
    return {
        "holderIdentity": me,
        "leaseDurationSeconds": max(1, round(terms.lease_s)),
        "acquireTime": before.acquired if before is not None and is_renewal and before.acquired else format_time(now),
        "renewTime": format_time(now),
        "leaseTransitions": 0 if before is None else before.transitions + (0 if is_renewal else 1),
    }


def build_released(before: LeaseRecord, now: Timestamp) -> KubeObject:
    """The spec of a released lease: the next replica that reads it takes it."""
    return {
        "holderIdentity": "",
        "leaseDurationSeconds": 1,
        "acquireTime": format_time(now),
        "renewTime": format_time(now),
        "leaseTransitions": before.transitions,
    }


def _wall() -> Timestamp:
    return Timestamp(time.time_ns() // 1000)


def _elapsed() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # CLOCK_MONOTONIC stops while the machine sleeps


class Elector:
    """One candidate.

    Args:
        kube: the API server.
        namespace: of the Lease.
        name: of the Lease.
        identity: ours; unique among all processes, past and future.
        terms: the times.
        boot_clock: seconds of a clock that never stops.
        wall_clock: the time that is written into the Lease, for people.
        jitter: returns a random number from 0 to 1.
    """

    def __init__(
        self,
        kube: KubeApi,
        namespace: str,
        name: str,
        identity: str,
        terms: LeaseTimes | None = None,
        *,
        boot_clock: Callable[[], float] = _elapsed,
        wall_clock: Callable[[], Timestamp] = _wall,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._kube = kube
        self._namespace, self._name, self._me = namespace, name, identity
        self._terms = terms or LeaseTimes()
        self._elapsed, self._wall, self._chance = boot_clock, wall_clock, jitter
        self._seen: ObservedLease | None = None
        self._object: KubeObject | None = None  # the Lease as we last read or wrote it
        self._until = float("-inf")  # we lead until then, by `elapsed`

    @property
    def identity(self) -> str:
        """Our identity."""
        return self._me

    @property
    def leader(self) -> str:
        """The leader at our last read; empty: none."""
        return "" if self._seen is None else self._seen.record.holder

    def is_leading(self) -> bool:
        """Whether no other replica can lead at this moment."""
        return self._elapsed() < self._until

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease, work while we hold it, cancel the work when it is lost, and wait again.

        When ``work`` ends by itself, or this call is cancelled, the lease is released for the next replica.
        """
        while True:
            try:
                await self._acquire()
                log.info("election.won", extra={"lease": self._name, "identity": self._me})
                if await self._work_while_leading(work):
                    return
            finally:
                await self._release()
            log.warning("election.lost", extra={"lease": self._name, "leader": self.leader})

    async def _acquire(self) -> None:
        while not await self._try_acquire_or_renew():  # noqa: ASYNC110, it polls the API server
            await asyncio.sleep(self._terms.retry_s * (1 + (JITTER - 1) * self._chance()))

    async def _work_while_leading(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Whether the work ended by itself; raises what the work raised."""
        working = asyncio.ensure_future(work())
        renewing = asyncio.ensure_future(self._renew_until_lost())
        try:
            await asyncio.wait((working, renewing), return_when=asyncio.FIRST_COMPLETED)
            if working.done() and not working.cancelled():
                await working
                return True
            if renewing.done():
                await renewing
            return False
        finally:
            await _end(renewing)
            await _end(working)

    async def _renew_until_lost(self) -> None:
        """Renew until renewals failed for too long."""
        while True:
            await asyncio.sleep(min(self._terms.retry_s, max(0.0, self._until - self._elapsed())))
            if not self.is_leading():  # also if our process was suspended: another replica may lead
                return
            kept = await self._try_acquire_or_renew() or (self._object is None and await self._try_acquire_or_renew())
            if not kept and self.leader not in ("", self._me):
                self._until = float("-inf")
                return

    async def _try_acquire_or_renew(self) -> bool:
        """Take or renew the lease; whether we hold it now."""
        begun = self._elapsed()
        patience_s = self._until - begun if self._until > begun else self._terms.renew_s
        try:
            async with asyncio.timeout(patience_s):
                await self._acquire_or_renew()
        except TimeoutError:
            log.debug("election.failed", extra={"lease": self._name, "detail": "no answer in time"})
        except KubeError as error:
            if error.status in (404, 409):
                self._object = None  # it has changed: read it again
            log.debug("election.failed", extra={"lease": self._name, "status": error.status, "detail": error.detail})
        else:
            if self.leader == self._me:
                # Counted from before the request: other replicas see our renewal later than that.
                self._until = begun + self._terms.renew_s
                return self.is_leading()
        return False

    async def _acquire_or_renew(self) -> None:
        if self._object is None or not self.is_leading():
            found = await get_or_none(self._kube, LEASE, self._name, self._namespace)
            if found is None:
                spec = build_spec(self._me, None, self._terms, self._wall())
                body = {"metadata": {"namespace": self._namespace, "name": self._name}, "spec": spec}
                self._record_observed(await self._kube.create(LEASE, body, self._namespace))
                return
            self._record_observed(found)
        assert self._object is not None
        assert self._seen is not None
        if decide_lease(self._seen, self._me, self._elapsed(), self._terms) is LeaseDecision.TAKE:
            spec = build_spec(self._me, self._seen.record, self._terms, self._wall())
            self._record_observed(await self._kube.replace(LEASE, {**self._object, "spec": spec}, self._namespace))

    def _record_observed(self, found: KubeObject) -> None:
        found["metadata"].pop("managedFields", None)  # the server keeps them; each renewal would carry them
        self._object = found
        self._seen = observe_lease(self._seen, parse_lease(found), self._elapsed())

    async def _release(self) -> None:
        """Release the lease, if we hold it; after a failure the next replica waits for the rest of the lease."""
        self._until = float("-inf")
        with contextlib.suppress(KubeError, TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                if not await self._clear():
                    await self._clear()  # a renewal without a response has changed the version in between

    async def _clear(self) -> bool:
        """Release the lease; whether we no longer hold it."""
        self._record_observed(await self._kube.get(LEASE, self._name, self._namespace))
        assert self._object is not None
        assert self._seen is not None
        if self.leader == self._me:
            spec = build_released(self._seen.record, self._wall())
            with ExpectedErrors(409):
                self._record_observed(await self._kube.replace(LEASE, {**self._object, "spec": spec}, self._namespace))
                return True
        return self.leader != self._me


async def _end(task: asyncio.Future[None]) -> None:
    """Cancel a task and wait for its end; log what it raises."""
    if task.done():
        return
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("election.work_failed", exc_info=error)
