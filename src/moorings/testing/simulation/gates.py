"""A controller's connections to the outside: the real store, driver and engine, behind a faulty network.

Each call is one step of the story at the moment it takes effect. A gate never breaks a port's promise: an order with a
lost response is *unavailable*, a commit with a lost response is ``store.unavailable``. A controller may die at each of
these points, between saving and acting and between acting and the response.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from moorings.core.bindings import Binding
from moorings.core.claims import Claim, ClaimState
from moorings.core.devices import PoolName
from moorings.core.errors import MooringsError
from moorings.core.events import Event
from moorings.core.hardware import Capability, DriverResult, ListedPartition, PartitionSpec, ResultCode
from moorings.core.instants import Timestamp
from moorings.core.topology import Pool
from moorings.drivers.simulated.driver import SimulatedDriver
from moorings.drivers.simulated.faults import Fault, FaultKind
from moorings.ports.engine import RunSubmission
from moorings.ports.store import (
    LOG_START,
    AccessKey,
    ApplianceJobQuery,
    Archive,
    Changes,
    EndedRecords,
    Epoch,
    EventRow,
    IdempotencyRecord,
    Leader,
    LogPosition,
    PageQuery,
    Replication,
    Seq,
    StoredState,
)
from moorings.testing.simulation.life import ControllerInstance
from moorings.testing.simulation.scheduler import NAME as SCHEDULER
from moorings.testing.simulation.stage import SimulationContext
from moorings.testing.simulation.witness import InvariantChecker
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import Run, RunId, RunPhase, RunState, RunStatus

T = TypeVar("T")

LATE_S_MAX = 30.0
TWICE_S_MAX = 10.0
GIVEN_UP_S = 5.0
NAMESAKE_S = (1.0, 30.0)
LISTINGS_KEPT = 4


class FaultyStore:
    """The database for one controller; called where the real one is: in a thread of the controller."""

    def __init__(self, stage: SimulationContext, life: ControllerInstance, witness: InvariantChecker) -> None:
        self._stage = stage
        self._life = life
        self._witness = witness
        self._store = stage.store

    def _arrive(self, what: str) -> None:
        """One call arrives at the database.

        Raises:
            MooringsError: ``store.unavailable``.
        """
        self._stage.story.step("store", f"{what} for {self._life.name}")
        if self._stage.store_away:
            raise _store_unavailable("it is away")

    def installation(self) -> str:
        return self._stage.installation

    def lead(self, holder: str, now: Timestamp, url: str = "") -> Epoch:
        self._arrive("lead")
        epoch = self._store.lead(holder, now, url)
        self._stage.ledger.led(epoch)
        self._stage.ledger.seq = self._store.last_seq()
        return epoch

    def leader(self) -> Leader:
        self._arrive("leader")
        return self._store.leader()

    def load(self) -> StoredState:
        self._arrive("load")
        saved = self._store.load()
        self._stage.ledger.compare(saved)
        return saved

    def commit(self, epoch: Epoch, changes: Changes, after: Seq = LOG_START) -> Seq:
        story, odds = self._stage.story, self._stage.odds
        fault = odds.strikes(
            "crash_before_save", "store_refuses", "store_conflict", "store_answer_lost", "crash_after_save"
        )
        if fault == "crash_before_save":
            self._die(fault)
        self._arrive(f"commit {_describe_changes(changes)}")
        if fault == "store_refuses":
            story.fault(fault)
            raise _store_unavailable("disk full")
        if fault == "store_conflict":
            story.fault(fault)
            raise MooringsError("store.conflict", "something has another version", retryable=True)
        seq = self._store.commit(epoch, changes, after)
        self._stage.ledger.take(epoch, changes, seq)
        self._witness.committed(changes)
        if fault == "store_answer_lost":
            story.fault(fault)
            raise _store_unavailable("the connection died in the commit")
        if fault == "crash_after_save":
            self._die(fault)
        return seq

    def _die(self, kind: str) -> None:
        self._stage.story.fault(kind, self._life.name)
        self._life.kill()
        raise _store_unavailable("the controller is dead")

    def keys_used(self, pairs: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], IdempotencyRecord]:
        self._arrive(f"keys_used {len(pairs)}")
        return self._store.keys_used(pairs)

    def claim(self, ident: str) -> Claim | None:
        self._arrive(f"claim {ident}")
        return self._store.claim(ident)

    def claims(
        self,
        page: PageQuery,
        *,
        states: frozenset[ClaimState] | None = None,
        owner_prefix: str | None = None,
        pool: str | None = None,
    ) -> Sequence[Claim]:
        self._arrive("claims")
        return self._store.claims(page, states=states, owner_prefix=owner_prefix, pool=pool)

    def run(self, ident: str, subject: str | None = None) -> Run | None:
        self._arrive(f"run {ident}")
        return self._store.run(ident, subject)

    def runs(
        self,
        page: PageQuery,
        *,
        states: frozenset[RunState] | None = None,
        subject: str | None = None,
        part: ApplianceJobQuery | None = None,
    ) -> Sequence[Run]:
        self._arrive("runs")
        return self._store.runs(page, states=states, subject=subject, part=part)

    def jobs(self, idents: Sequence[RunId]) -> Mapping[RunId, JobSpec]:
        self._arrive(f"jobs {' '.join(idents)}")
        return self._store.jobs(idents)

    def events(
        self, after: Seq, limit: int, *, claim: str | None = None, run: str | None = None, names: Sequence[str] = ()
    ) -> Sequence[EventRow]:
        self._arrive("events")
        return self._store.events(after, limit, claim=claim, run=run, names=names)

    def last_seq(self) -> Seq:
        self._arrive("last_seq")
        return self._store.last_seq()

    def high_water(self) -> LogPosition:
        self._arrive("high_water")
        return self._store.high_water()

    def replication(self) -> Replication | None:
        return self._store.replication()

    def rise(self, at: LogPosition) -> None:
        self._arrive("rise")
        self._store.rise(at)
        risen = self._store.high_water()
        self._stage.ledger.rose(risen.seq, risen.epoch)

    def archives(self) -> Sequence[Archive]:
        raise AssertionError("nothing leaves here")

    def stretch(self, n_events: int, before: Timestamp) -> tuple[Seq, Seq] | None:
        raise AssertionError("nothing leaves here")

    def forget_events(self, epoch: Epoch, archive: Archive, limit: int, after: Seq = LOG_START) -> int:
        raise AssertionError("nothing leaves here")

    def ended(self, before: Timestamp, limit: int) -> EndedRecords:
        raise AssertionError("nothing leaves here")

    def forget_ended(self, epoch: Epoch, ended: EndedRecords, after: Seq = LOG_START) -> None:
        raise AssertionError("nothing leaves here")

    def add_access_key(self, key: AccessKey, event: Event) -> None:
        raise AssertionError("nobody makes access keys here")

    def access_key(self, ident: str) -> AccessKey | None:
        raise AssertionError("nobody reads access keys here")

    def access_keys(self) -> Sequence[AccessKey]:
        raise AssertionError("nobody reads access keys here")

    def rotate_access_key(self, key: AccessKey, replaced: str, event: Event) -> bool:
        raise AssertionError("nobody rotates access keys here")

    def revoke_access_key(self, ident: str, event: Event) -> bool:
        raise AssertionError("nobody revokes access keys here")

    def ping(self) -> None:
        self._arrive("ping")
        self._store.ping()

    def check_place(self) -> None:
        self._store.check_place()

    def check_room(self) -> None:
        self._store.check_room()

    def keep_reserve(self) -> None:
        self._store.keep_reserve()

    def abort(self) -> None:
        """No call waits in a thread here."""

    def close(self) -> None:
        """The database stays; only this connection ends."""


def _store_unavailable(detail: str) -> MooringsError:
    return MooringsError("store.unavailable", detail, retryable=True)


def _describe_changes(changes: Changes) -> str:
    told = [
        *(f"{claim.id}={claim.state}" for claim, _ in changes.claims),
        *(f"{partition.id}={partition.state}" for partition, _ in changes.partitions),
        *(f"-{ident}" for ident, _ in changes.removed),
        *(f"{device.id}={device.state}" for device in changes.devices),
        *(f"{run.id}={run.state}" for run, _ in changes.runs),
        *(f"{project.name}=v{project.version}" for project, _ in changes.projects),
        *(f"-{name}" for name, _ in changes.projects_removed),
        *(f"key:{use.subject}/{use.key}" for use in changes.keys),
    ]
    return " ".join(told) or ",".join(event.name for event in changes.events)


class NetworkLink:
    """The network between one controller and one outside system.

    Args:
        stage: the surroundings.
        life: the controller at this end.
        lasts_s: draws how long a message travels.
        where: the other end, for the story.
    """

    def __init__(
        self, stage: SimulationContext, life: ControllerInstance, lasts_s: Callable[[], float], where: str
    ) -> None:
        self.stage = stage
        self.life = life
        self.where = where
        self._lasts_s = lasts_s

    async def ask(
        self, do: Callable[[], Awaitable[T]], *, fault: str | None = None, lost: T | MooringsError | None = None
    ) -> T:
        """The response of ``do`` at the other end, or ``lost`` if the message is lost.

        ``*_lost``: it never arrives; ``*_late``: it arrives when the caller has stopped waiting; ``*_twice``: it
        arrives twice; ``*_answer_lost`` and ``answer_lost``: it is done, and the response is lost; ``*_never``: no
        response ever comes.

        A caller without a response gives up only when the work is done: no engine calls a run ABSENT that may yet be
        started.
        """
        await self.life.moves()
        stage = self.stage
        if fault is not None:
            stage.story.fault(fault, self.where)
        if fault == "crash_before_act":
            self.life.kill()
        if self.life.dead:
            raise asyncio.CancelledError
        answer: asyncio.Future[T] = stage.loop.create_future()
        answered = fault is not None and fault.endswith(("answer_lost", "answer_never"))
        done: asyncio.Future[None] = stage.loop.create_future()
        if fault is None or answered or fault == "crash_after_act":
            stage.send(self._deliver(do, self._lasts_s(), answer, fault, done))
        elif fault.endswith("_twice"):
            stage.send(self._deliver(do, self._lasts_s(), answer, fault))
            stage.send(self._deliver(do, stage.odds.chance.uniform(0, TWICE_S_MAX), None, fault))
        elif fault.endswith("_late"):
            stage.send(self._deliver(do, stage.odds.chance.uniform(0, LATE_S_MAX), None, fault))
        if fault is not None and fault.endswith(("_lost", "_late")):
            if answered:
                await done
            stage.loop.call_later(stage.odds.chance.uniform(0, GIVEN_UP_S), _resolve, answer, lost)
        return await self.life.waits(answer)

    async def _deliver(
        self,
        do: Callable[[], Awaitable[T]],
        after_s: float,
        answer: asyncio.Future[T] | None,
        fault: str | None,
        done: asyncio.Future[None] | None = None,
    ) -> None:
        dead = self.life.dead
        await asyncio.sleep(after_s)
        if self.life.dead and not dead and fault is None and self.stage.odds.chance.random() < 0.5:
            return  # it had not left the machine
        said: T | MooringsError
        try:
            said = await do()
        except MooringsError as error:
            said = error
        if done is not None and not done.done():
            done.set_result(None)
        if fault == "crash_after_act" and not self.life.dead:
            self.life.kill()
        if answer is None or (fault is not None and fault.endswith(("answer_lost", "answer_never"))):
            return
        await asyncio.sleep(self._lasts_s())
        _resolve(answer, said)


def _resolve(answer: asyncio.Future[T], said: T | MooringsError | None) -> None:
    if answer.done():
        return
    if isinstance(said, MooringsError):
        answer.set_exception(said)
    else:
        answer.set_result(said)  # type: ignore[arg-type]


_ORDER_FAULTS = (
    *("order_lost", "order_late", "order_twice", "answer_lost", "answer_never"),
    *("crash_before_act", "crash_after_act"),
)


class FaultyDriver:
    """A pool's hardware for one controller."""

    def __init__(
        self, stage: SimulationContext, life: ControllerInstance, pool: Pool, witness: InvariantChecker
    ) -> None:
        self._stage = stage
        self._pool = pool
        self._driver: SimulatedDriver = stage.drivers[pool.name]
        self._witness = witness
        self._line = NetworkLink(stage, life, stage.odds.driver_s, pool.name)
        self._listings: deque[Sequence[ListedPartition]] = deque(maxlen=LISTINGS_KEPT)
        self._bad = False

    @property
    def capability(self) -> Capability:
        return self._driver.capability

    def adopt(self, held: Sequence[PartitionSpec]) -> None:
        self._driver.adopt(held)

    async def create(self, order: PartitionSpec) -> DriverResult:
        return await self._order(
            f"create {order.name} on {order.block}", order.mark, lambda: self._driver.create(order), order
        )

    async def reset(self, name: str, mark: str) -> DriverResult:
        return await self._order(f"reset {name}", mark, lambda: self._driver.reset(name, mark))

    async def remove(self, name: str, mark: str) -> DriverResult:
        return await self._order(f"remove {name}", mark, lambda: self._driver.remove(name, mark))

    async def _order(
        self, what: str, mark: str, do: Callable[[], Awaitable[DriverResult]], made: PartitionSpec | None = None
    ) -> DriverResult:
        spared = self._witness.is_spared(mark)  # now, as the order may arrive after the database is turned back

        async def carry_out() -> DriverResult:
            if made is not None:
                self._witness.to_be_made(self._pool, made)
            else:
                self._witness.to_be_removed(what, mark, spared=spared)
            answer = await do()
            self._witness.ordered(mark, answer)
            self._stage.story.step(f"driver-{self._pool.name}", f"{what}: {answer.verdict} {answer.seen}")
            return answer

        if made is not None and self._stage.odds.strikes_apart("namesake"):
            self._name_another(made.name)
        fault = self._stage.odds.strikes(*_ORDER_FAULTS)
        return await self._line.ask(
            carry_out, fault=fault, lost=DriverResult(ResultCode.UNAVAILABLE, detail="no answer came")
        )

    def _name_another(self, name: str) -> None:
        """Make a partition of that name outside, on whatever is free at the next call to the hardware."""
        lasts_s = self._stage.odds.apart.uniform(*NAMESAKE_S)
        self._stage.story.fault("namesake", f"{self._pool.name}: {name} for {lasts_s:.1f} s")
        self._driver.faults.add(Fault(kind=FaultKind.STRAY, names=(name,), seconds=lasts_s))

    async def list_partitions(self) -> Sequence[ListedPartition]:
        async def look() -> Sequence[ListedPartition]:
            try:
                listing = await self._driver.list_partitions()
            finally:
                self._stage.story.step(f"driver-{self._pool.name}", "list")
            self._listings.append(listing)
            return listing

        fault = self._stage.odds.strikes("listing_lost", "listing_stale")
        if fault == "listing_stale":
            if self._bad or not self._listings:
                fault = None  # the promise is that *one* bad listing ends nothing
            else:
                self._stage.story.fault(fault, self._pool.name)
                self._bad = True
                await self._line.life.moves()
                return self._listings[0]
        listing = await self._line.ask(look, fault=fault, lost=_unavailable("driver", "no listing came"))
        self._bad = False
        return listing

    async def binding(self, order: PartitionSpec) -> Binding:
        async def tell() -> Binding:
            try:
                return await self._driver.binding(order)
            finally:
                self._stage.story.step(f"driver-{self._pool.name}", f"binding {order.name}")

        fault = self._stage.odds.strikes("binding_lost")
        return await self._line.ask(tell, fault=fault, lost=_unavailable("driver", "no binding came"))

    async def close(self) -> None:
        """The hardware stays; only this connection ends."""


def _unavailable(noun: str, detail: str) -> MooringsError:
    return MooringsError(f"{noun}.unavailable", detail, retryable=True)


class FaultyEngine:
    """An engine for one controller."""

    def __init__(self, stage: SimulationContext, life: ControllerInstance, name: str) -> None:
        self._stage = stage
        self._life = life
        self.name = name
        self._cluster = stage.scheduler if name == SCHEDULER else stage.cluster
        self._line = NetworkLink(stage, life, stage.odds.engine_s, "engine")

    @property
    def schedules(self) -> bool:
        return self.name == SCHEDULER

    def check(self, job: JobSpec) -> Sequence[str]:
        return ()

    async def _ask(self, what: str, do: Callable[[], T], *faults: str) -> T:
        async def carry_out() -> T:
            if self._stage.engine_away:
                self._stage.story.step("engine", f"{what}: away")
                raise _unavailable("engine", "it is away")
            result = do()
            self._stage.story.step("engine", f"{what} for {self._life.name}")
            return result

        fault = self._stage.odds.strikes(*faults)
        return await self._line.ask(carry_out, fault=fault, lost=_unavailable("engine", "no answer came"))

    async def fence(self, epoch: Epoch) -> None:
        await self._ask(f"fence {epoch}", lambda: self._cluster.fence(epoch), "fence_lost")

    async def submit(self, order: RunSubmission) -> str:
        return await self._ask(
            f"submit {order.run}",
            lambda: self._submit(order),
            *("submit_lost", "submit_answer_lost", "crash_before_act", "crash_after_act"),
        )

    def _submit(self, order: RunSubmission) -> str:
        if order.epoch < self._cluster.epoch:
            self._stage.story.reach("engine refused a replaced controller")
            raise _unavailable("engine", "another controller has the runs")
        if order.run not in self._cluster.processes and self._stage.odds.strikes("submit_rejected"):
            self._stage.story.fault("submit_rejected", order.run)
            self._cluster.rejected.add(order.run)
        return self._cluster.submit(order)

    async def observe(self, runs: Sequence[RunId]) -> Sequence[RunStatus]:
        if self._stage.odds.strikes("observe_unknown"):
            await self._life.moves()
            self._stage.story.fault("observe_unknown")
            return [RunStatus(run, RunPhase.UNKNOWN) for run in runs]
        return await self._ask(f"observe {len(runs)}", lambda: self._cluster.observe(runs), "observe_lost")

    async def cancel(self, run: RunId, reason: str) -> None:
        await self._ask(f"cancel {run}", lambda: self._cluster.cancel(run, reason), "cancel_lost")

    async def ask_to_yield(self, run: RunId, attempt: int, reason: str, by: Timestamp) -> None:
        await self._ask(
            f"ask {run} to yield", lambda: self._cluster.ask_to_yield(run, attempt, reason, by), "cancel_lost"
        )

    async def saved_at(self, folder: str) -> Timestamp | None:
        return None

    async def signal(self, run: RunId, signal_name: str) -> None:
        await self._ask(f"signal {run}", lambda: self._cluster.signal(run))

    async def logs(self, run: RunId, *, task: int | None, follow: bool) -> AsyncIterator[bytes]:
        yield b""

    async def changed(self) -> None:
        await self._life.moves()
        await self._cluster.changed()
        await self._life.moves()

    async def close(self) -> None:
        """The processes continue."""


def faulty_drivers(
    stage: SimulationContext, life: ControllerInstance, witness: InvariantChecker
) -> dict[PoolName, FaultyDriver]:
    """A gate to each pool's hardware."""
    return {pool.name: FaultyDriver(stage, life, pool, witness) for pool in stage.pools}
