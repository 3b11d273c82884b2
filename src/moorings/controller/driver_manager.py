"""Acts on drivers: gives each partition the order that its state requires, and returns the drivers' results.

Level-triggered: the partitions' states alone decide what to do, so after a crash every unfinished order starts again
(orders are idempotent). At most one order a partition is in progress at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from moorings.controller.loop import CommittedChange, TurnLoop
from moorings.core.model.claims import PartitionId
from moorings.core.model.devices import PoolName
from moorings.core.model.driver_results import DriverResult, ListedPartition, ObservedState, PartitionSpec, ResultCode
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import (
    DriverResultReceived,
    ForeignPartitionsListed,
    PoolReachability,
    RetryRemoval,
    StrayPartitionFound,
)
from moorings.core.model.partitions import OPERATIONS, Partition, PartitionState
from moorings.core.reconcile import ListingHistory, mark_for, reconcile_listing
from moorings.ports.clock import Clock
from moorings.ports.driver import Driver
from moorings.ports.store import LogPosition

log = logging.getLogger("moorings.controller")

ORDER_TIMEOUT_S = 60.0  # an order without an answer by then counts as unavailable
LISTING_TIMEOUT_S = 30.0
POLL_BUSY_S = 0.1  # while a partition is in transition
POLL_IDLE_S = 3.0
RETRY_S, RETRY_S_MAX = 0.25, 15.0
SPARED_S = 5.0  # between two checks whether a stray is still in use
REMOVAL_RETRY_S = 30.0  # for partitions in ERROR that no claim holds

_STRAY = "stray-"
_TARGET_STATE = {
    PartitionState.PROVISIONING: ObservedState.ACTIVE,
    PartitionState.RESETTING: ObservedState.ACTIVE,
    PartitionState.REMOVING: ObservedState.ABSENT,
}


def partition_spec(partition: Partition, installation: str) -> PartitionSpec:
    """The order by which a driver creates, or recognises, a partition."""
    return PartitionSpec(
        name=partition.name,
        block=partition.block,
        gcds=partition.gcds,
        replicas_per_gcd=partition.replicas_per_gcd,
        mark=mark_for(installation, partition.id),
    )


@dataclass(slots=True)
class _PoolMonitor:
    """What is known of a pool from its listings.

    Attributes:
        driver: lists the partitions.
        memory: what ``reconcile_listing`` remembers.
        unrecorded: names of partitions with our mark that no record holds, by mark, as in the last listing.
        found: marks of those that were logged.
        spared: marks of those that are left alone because they may be in use.
    """

    driver: Driver
    memory: ListingHistory = field(default_factory=ListingHistory)
    unrecorded: dict[str, str] = field(default_factory=dict)
    found: set[str] = field(default_factory=set)
    spared: set[str] = field(default_factory=set)
    wakeup: asyncio.Event = field(default_factory=asyncio.Event)
    interval_s: float = POLL_IDLE_S  # between the last two listings, at least; a clock could be set meanwhile


class DriverManager:
    """Makes drivers do what the partitions' states require.

    Args:
        loop: decides.
        drivers: of each pool.
        clock: the time.
        installation: our id, part of our marks.
        in_use: whether processes may use a partition, by its name, though no record knows it (law 3).
        record_position: records, independent of the database, how far the database had come when a partition or its
            reset was ordered; returns once that is durable.
    """

    def __init__(
        self,
        loop: TurnLoop,
        drivers: Mapping[PoolName, Driver],
        clock: Clock,
        installation: str,
        in_use: Callable[[str], Awaitable[bool]] | None = None,
        record_position: Callable[[LogPosition], Awaitable[None]] | None = None,
    ) -> None:
        self.drivers = drivers
        self._loop = loop
        self._clock = clock
        self._installation = installation
        self._watches = {pool: _PoolMonitor(driver) for pool, driver in drivers.items()}
        self._orders: dict[PartitionId, asyncio.Task[None]] = {}
        self._ordered: dict[PartitionId, int] = {}  # version whose order the driver has accepted
        self._strays: dict[tuple[PoolName, str], asyncio.Task[None]] = {}
        self._in_use = in_use
        self._note = record_position
        self._closing = False
        self.delays: dict[PartitionId, str] = {}
        """Why an order to a driver takes long, in the driver's words; shown to waiting callers."""
        loop.subscribe(self._on_change)

    def stray_partitions(self) -> tuple[list[str], list[str]]:
        """Names of partitions with our mark that no record holds: those to be removed, and those spared."""
        known = [
            (mark in watch.spared, name) for watch in self._watches.values() for mark, name in watch.unrecorded.items()
        ]
        return sorted(name for spared, name in known if not spared), sorted(name for spared, name in known if spared)

    def unrecorded_names(self, pool: PoolName) -> frozenset[str]:
        """Names of a pool's partitions that have our mark and that no record holds."""
        watch = self._watches.get(pool)
        return frozenset(watch.unrecorded.values()) if watch is not None else frozenset()

    async def serve(self) -> None:
        """Watch every pool until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for pool in self._watches:
                    group.create_task(self._watch(pool), name=f"watch-{pool}")
                group.create_task(self._retry_removals(), name="retry-removals")
        finally:
            self._closing = True
            orders = [*self._orders.values(), *self._strays.values()]
            for task in orders:
                task.cancel()
            await asyncio.gather(*orders, return_exceptions=True)

    def _on_change(self, change: CommittedChange) -> None:
        if change.is_reload:  # another controller may have given the orders; a driver knows only its own
            held = self._loop.fleet.partitions.values()
            for pool, driver in self.drivers.items():
                driver.register_partitions(
                    [partition_spec(one, self._installation) for one in held if one.pool == pool]
                )
        for partition in change.partitions:
            self._start_operation(partition)

    # -- orders ------------------------------------------------------------------------------------------------------

    def _start_operation(self, partition: Partition) -> None:
        """Give the driver the order of this state, unless one is in progress for the partition."""
        if self._closing or partition.pool not in self._watches:
            return
        if partition.state in OPERATIONS and partition.id not in self._orders:
            task = asyncio.create_task(self._carry_out(partition.id), name=f"order-{partition.name}")
            self._orders[partition.id] = task
            task.add_done_callback(lambda _: self._finished(partition.id))

    def _finished(self, ident: PartitionId) -> None:
        self._orders.pop(ident, None)
        self.delays.pop(ident, None)
        partition = self._loop.fleet.partitions.get(ident)
        if partition is None:
            self._ordered.pop(ident, None)
        elif self._ordered.get(ident) != partition.version:
            self._start_operation(partition)  # its state changed while the last order was in progress

    async def _carry_out(self, ident: PartitionId) -> None:
        pause_s = RETRY_S
        known = LogPosition(self._loop.seq, self._loop.epoch)  # of its commit: those of one turn are noted at once
        while True:
            partition = self._loop.fleet.partitions.get(ident)
            if partition is None or partition.state not in OPERATIONS:
                return
            order = OPERATIONS[partition.state]
            begun = time.perf_counter()
            answer = await self._call_driver(partition, order, known)
            self._count(partition.pool, order, answer.verdict.value, begun)
            if answer.verdict is not ResultCode.UNAVAILABLE:
                self._ordered[ident] = partition.version
                await self._submit_result(partition, order, answer)
                return
            log.info("driver.unavailable", extra={"partition": partition.name, "order": order, "detail": answer.detail})
            self.delays[ident] = answer.detail
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_S_MAX)

    def _count(self, pool: PoolName, order: str, result: str, begun: float) -> None:
        self._loop.meters.add_order(pool, order, result, time.perf_counter() - begun)

    async def _submit_result(self, partition: Partition, order: str, answer: DriverResult) -> None:
        """Post a result that matters to the loop; otherwise the pool is polled until the order is done."""
        if answer.verdict is ResultCode.OK and answer.seen not in (_TARGET_STATE[partition.state], ObservedState.ERROR):
            self._watches[partition.pool].wakeup.set()
            return
        try:
            await self._loop.submit(DriverResultReceived(partition.id, partition.version, order, answer))
        except MooringsError as error:  # it was not saved: the order stays open and is given again
            self._ordered.pop(partition.id, None)
            log.info("answer.dropped", extra={"partition": partition.name, "code": error.code})

    async def _call_driver(self, partition: Partition, order: str, known: LogPosition) -> DriverResult:
        driver, mark = self.drivers[partition.pool], mark_for(self._installation, partition.id)
        calls: dict[str, Callable[[], Awaitable[DriverResult]]] = {
            "create": lambda: driver.create(partition_spec(partition, self._installation)),
            "reset": lambda: driver.reset(partition.name, mark),
            "remove": lambda: driver.remove(partition.name, mark),
        }
        try:
            async with asyncio.timeout(ORDER_TIMEOUT_S):
                if order in ("create", "reset") and self._note is not None:
                    await self._note(known)
                if order == "reset":
                    # A controller that was replaced while it slept would wipe a partition under a running job. Other
                    # orders may come late: a created partition is found to be a stray, a removed one stays removed.
                    await self._loop.confirm_leadership()
                return await calls[order]()
        except TimeoutError:
            return DriverResult(ResultCode.UNAVAILABLE, detail=f"no answer within {ORDER_TIMEOUT_S:g} s")
        except MooringsError as error:
            return DriverResult(ResultCode.UNAVAILABLE, detail=error.detail)
        except Exception as error:  # a driver's fault must not end the controller
            log.warning("driver.fault", exc_info=True, extra={"partition": partition.name, "order": order})
            return DriverResult(ResultCode.UNAVAILABLE, detail=f"the driver failed: {error!r}")

    # -- listings ----------------------------------------------------------------------------------------------------

    async def _watch(self, pool: PoolName) -> None:
        watch = self._watches[pool]
        failures = 0
        while True:
            watch.wakeup.clear()
            begun = time.perf_counter()
            problem = await self._take_listing(pool, watch)
            self._count(pool, "list", "unavailable" if problem else "ok", begun)
            failures = failures + 1 if problem else 0
            state = self._loop.fleet.pools[pool]
            if (not problem and state.unreachable_reason) or (failures >= 2 and state.unreachable_reason != problem):
                self._loop.submit_nowait(PoolReachability(pool, problem))
            pause_s = POLL_BUSY_S if self._has_changing(pool) else POLL_IDLE_S
            if problem:
                pause_s = min(RETRY_S * 2**failures, RETRY_S_MAX)
            watch.interval_s = await self._pause(watch, pause_s)

    async def _pause(self, watch: _PoolMonitor, pause_s: float) -> float:
        """Sleep until the time is over or a nudge comes; returns for how long, at least."""
        if pause_s <= POLL_BUSY_S:
            await self._clock.sleep(pause_s)
            return pause_s
        nudge = asyncio.create_task(watch.wakeup.wait())
        nap = asyncio.create_task(self._clock.sleep(pause_s))
        await asyncio.wait((nudge, nap), return_when=asyncio.FIRST_COMPLETED)
        slept = nap.done()
        for task in (nudge, nap):
            task.cancel()
        return pause_s if slept else 0.0

    def _has_changing(self, pool: PoolName) -> bool:
        return any(p.pool == pool and p.state in OPERATIONS for p in self._loop.fleet.partitions.values())

    async def _take_listing(self, pool: PoolName, watch: _PoolMonitor) -> str:
        """Take one listing and post what follows; returns the problem if the driver gave none."""
        before = {p.id: p.version for p in self._loop.fleet.partitions.values() if p.pool == pool}
        ordered = dict(self._ordered)
        try:
            async with asyncio.timeout(LISTING_TIMEOUT_S):
                sightings = await watch.driver.list_partitions()
        except TimeoutError:
            return f"no listing within {LISTING_TIMEOUT_S:g} s"
        except MooringsError as error:
            return error.detail
        except Exception as error:  # a driver's fault must not end the controller
            log.warning("driver.fault", exc_info=True, extra={"pool": pool})
            return f"the driver failed: {error!r}"
        self._reconcile(pool, watch, before, ordered, list(sightings))
        return ""

    def _reconcile(
        self,
        pool: PoolName,
        watch: _PoolMonitor,
        before: Mapping[PartitionId, int],
        ordered: Mapping[PartitionId, int],
        sightings: list[ListedPartition],
    ) -> None:
        unmoved = [
            partition
            for partition in self._loop.fleet.partitions.values()
            if partition.pool == pool and before.get(partition.id) == partition.version
        ]
        taken = frozenset(p.id for p in unmoved if ordered.get(p.id) == p.version)
        moved = {mark_for(self._installation, p.id) for p in self._loop.fleet.partitions.values()}
        moved -= {mark_for(self._installation, p.id) for p in unmoved}
        moved |= {mark_for(self._installation, ident) for ident in before.keys() - self._loop.fleet.partitions.keys()}
        seen = [sighting for sighting in sightings if sighting.mark not in moved]
        judged = reconcile_listing(unmoved, taken, seen, watch.memory, self._installation, watch.interval_s)
        watch.memory = judged.memory
        watch.unrecorded = {sighting.mark: sighting.name for sighting in seen if sighting.mark in judged.memory.strays}
        watch.found &= watch.unrecorded.keys()
        watch.spared &= watch.unrecorded.keys()
        for ident, answer in judged.results:
            self._loop.submit_nowait(DriverResultReceived(ident, before[ident], "list", answer))
        for ident in judged.to_repeat:
            self._ordered.pop(ident, None)
            self._start_operation(self._loop.fleet.partitions[ident])
        if judged.foreign != self._loop.fleet.pools[pool].foreign_blocks:
            self._loop.submit_nowait(ForeignPartitionsListed(pool, judged.foreign))
        for stray in judged.strays:
            if (pool, stray.mark) not in self._strays:
                task = asyncio.create_task(self._remove_stray(pool, stray), name=f"{_STRAY}{stray.name}")
                self._strays[pool, stray.mark] = task

    async def _remove_stray(self, pool: PoolName, stray: ListedPartition) -> None:
        """Remove a partition that no record holds, after the database has confirmed that we lead.

        A controller that was replaced while it slept would take the new leader's partitions for strays.
        """
        if stray.mark not in self._watches[pool].found:
            self._watches[pool].found.add(stray.mark)
            log.warning("partition.stray_found", extra={"pool": pool, "partition": stray.name})
        try:
            if await self._is_spared(pool, stray):
                await self._clock.sleep(SPARED_S)
                return
            await self._loop.submit(StrayPartitionFound(pool, stray.name))
            answer = await self.drivers[pool].remove(stray.name, stray.mark)
            log.info("partition.stray_removed", extra={"pool": pool, "partition": stray.name, "detail": answer.detail})
            await self._clock.sleep(REMOVAL_RETRY_S)
        except Exception as error:  # the next listing shows it again
            log.warning("driver.fault", extra={"pool": pool, "partition": stray.name, "detail": repr(error)})
            await self._clock.sleep(REMOVAL_RETRY_S)
        finally:
            self._strays.pop((pool, stray.mark), None)

    async def _is_spared(self, pool: PoolName, stray: ListedPartition) -> bool:
        """Whether it may be in use: then it stays, and its devices are not given out."""
        spared = self._watches[pool].spared
        if self._in_use is None or not await self._in_use(stray.name):
            spared.discard(stray.mark)
            return False
        if stray.mark not in spared:
            spared.add(stray.mark)
            log.warning("partition.stray_spared", extra={"pool": pool, "partition": stray.name})
        return True

    async def _retry_removals(self) -> None:
        while True:
            await self._clock.sleep(REMOVAL_RETRY_S)
            for partition in list(self._loop.fleet.partitions.values()):
                if partition.state is PartitionState.ERROR:
                    self._loop.submit_nowait(RetryRemoval(partition.id))
