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

from moorings.core.model.bindings import Binding
from moorings.core.model.claims import Claim, ClaimState
from moorings.core.model.devices import PoolName
from moorings.core.model.driver_results import Capability, DriverResult, ListedPartition, PartitionSpec, ResultCode
from moorings.core.model.errors import MooringsError
from moorings.core.model.events import Event
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import Pool
from moorings.core.model.visibility import SEES_ALL, Visibility
from moorings.drivers.simulated.driver import SimulatedDriver
from moorings.drivers.simulated.faults import Fault, FaultKind
from moorings.engines.launch import no_terminal_error
from moorings.ports.engine import RunSubmission, TaskContainer
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
from moorings.testing.simulation.context import SimulationContext
from moorings.testing.simulation.invariant_checker import InvariantChecker
from moorings.testing.simulation.process import ControllerInstance
from moorings.testing.simulation.scheduler import NAME as SCHEDULER
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

    def _record_call(self, what: str) -> None:
        """One call arrives at the database.

        Raises:
            MooringsError: ``store.unavailable``.
        """
        self._stage.story.add_step("store", f"{what} for {self._life.name}")
        if self._stage.store_away:
            raise _store_unavailable("it is away")

    def installation(self) -> str:
        return self._stage.installation

    def begin_epoch(self, holder: str, now: Timestamp, url: str = "") -> Epoch:
        self._record_call("lead")
        epoch = self._store.begin_epoch(holder, now, url)
        self._stage.ledger.begin_epoch(epoch)
        self._stage.ledger.seq = self._store.last_seq()
        return epoch

    def get_leader(self) -> Leader:
        self._record_call("leader")
        return self._store.get_leader()

    def load_unended(self) -> StoredState:
        self._record_call("load")
        saved = self._store.load_unended()
        self._stage.ledger.compare(saved)
        return saved

    def commit(self, epoch: Epoch, changes: Changes, after: Seq = LOG_START) -> Seq:
        story, odds = self._stage.story, self._stage.odds
        fault = odds.draw_fault(
            "crash_before_save", "store_refuses", "store_conflict", "store_answer_lost", "crash_after_save"
        )
        if fault == "crash_before_save":
            self._die(fault)
        self._record_call(f"commit {_describe_changes(changes)}")
        if fault == "store_refuses":
            story.add_fault(fault)
            raise _store_unavailable("disk full")
        if fault == "store_conflict":
            story.add_fault(fault)
            raise MooringsError("store.conflict", "something has another version", retryable=True)
        seq = self._store.commit(epoch, changes, after)
        self._stage.ledger.apply_commit(epoch, changes, seq)
        self._witness.on_commit(changes)
        if fault == "store_answer_lost":
            story.add_fault(fault)
            raise _store_unavailable("the connection died in the commit")
        if fault == "crash_after_save":
            self._die(fault)
        return seq

    def _die(self, kind: str) -> None:
        self._stage.story.add_fault(kind, self._life.name)
        self._life.kill()
        raise _store_unavailable("the controller is dead")

    def find_idempotency_records(self, pairs: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], IdempotencyRecord]:
        self._record_call(f"keys_used {len(pairs)}")
        return self._store.find_idempotency_records(pairs)

    def get_claim(self, ident: str, visible: Visibility = SEES_ALL) -> Claim | None:
        self._record_call(f"claim {ident}")
        return self._store.get_claim(ident, visible)

    def list_claims(
        self,
        page: PageQuery,
        *,
        states: frozenset[ClaimState] | None = None,
        owner_prefix: str | None = None,
        pool: str | None = None,
        visible: Visibility = SEES_ALL,
    ) -> Sequence[Claim]:
        self._record_call("claims")
        return self._store.list_claims(page, states=states, owner_prefix=owner_prefix, pool=pool, visible=visible)

    def get_run(self, ident: str, subject: str | None = None, visible: Visibility = SEES_ALL) -> Run | None:
        self._record_call(f"run {ident}")
        return self._store.get_run(ident, subject, visible)

    def list_runs(
        self,
        page: PageQuery,
        *,
        states: frozenset[RunState] | None = None,
        subject: str | None = None,
        part: ApplianceJobQuery | None = None,
        array: str | None = None,
        visible: Visibility = SEES_ALL,
    ) -> Sequence[Run]:
        self._record_call("runs")
        return self._store.list_runs(page, states=states, subject=subject, part=part, array=array, visible=visible)

    def get_jobs(self, idents: Sequence[RunId]) -> Mapping[RunId, JobSpec]:
        self._record_call(f"jobs {' '.join(idents)}")
        return self._store.get_jobs(idents)

    def list_events(
        self,
        after: Seq,
        limit: int,
        *,
        claim: str | None = None,
        run: str | None = None,
        names: Sequence[str] = (),
        visible: Visibility = SEES_ALL,
    ) -> Sequence[EventRow]:
        self._record_call("events")
        return self._store.list_events(after, limit, claim=claim, run=run, names=names, visible=visible)

    def last_seq(self) -> Seq:
        self._record_call("last_seq")
        return self._store.last_seq()

    def log_position(self) -> LogPosition:
        self._record_call("high_water")
        return self._store.log_position()

    def replication(self) -> Replication | None:
        return self._store.replication()

    def advance_to(self, at: LogPosition) -> None:
        self._record_call("rise")
        self._store.advance_to(at)
        risen = self._store.log_position()
        self._stage.ledger.set_position(risen.seq, risen.epoch)

    def archives(self) -> Sequence[Archive]:
        raise AssertionError("nothing leaves here")

    def next_archive_range(self, n_events: int, before: Timestamp) -> tuple[Seq, Seq] | None:
        raise AssertionError("nothing leaves here")

    def delete_archived_events(self, epoch: Epoch, archive: Archive, limit: int, after: Seq = LOG_START) -> int:
        raise AssertionError("nothing leaves here")

    def list_ended(self, before: Timestamp, limit: int) -> EndedRecords:
        raise AssertionError("nothing leaves here")

    def delete_ended(self, epoch: Epoch, ended: EndedRecords, after: Seq = LOG_START) -> None:
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
        self._record_call("ping")
        self._store.ping()

    def check_file(self) -> None:
        self._store.check_file()

    def check_space(self) -> None:
        self._store.check_space()

    def ensure_reserve(self) -> None:
        self._store.ensure_reserve()

    def abort(self) -> None:
        """No call waits in a thread here."""

    def close(self) -> None:
        """The database stays; only this connection ends."""


def _store_unavailable(detail: str) -> MooringsError:
    return MooringsError("store.unavailable", detail, retryable=True)


def _describe_changes(changes: Changes) -> str:
    parts = [
        *(f"{claim.id}={claim.state}" for claim, _ in changes.claims),
        *(f"{partition.id}={partition.state}" for partition, _ in changes.partitions),
        *(f"-{ident}" for ident, _ in changes.removed),
        *(f"{device.id}={device.state}" for device in changes.devices),
        *(f"{run.id}={run.state}" for run, _ in changes.runs),
        *(f"{project.name}=v{project.version}" for project, _ in changes.projects),
        *(f"-{name}" for name, _ in changes.projects_removed),
        *(f"key:{use.subject}/{use.key}" for use in changes.keys),
    ]
    return " ".join(parts) or ",".join(event.name for event in changes.events)


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

    async def call(
        self, do: Callable[[], Awaitable[T]], *, fault: str | None = None, lost: T | MooringsError | None = None
    ) -> T:
        """The response of ``do`` at the other end, or ``lost`` if the message is lost.

        ``*_lost``: it never arrives; ``*_late``: it arrives when the caller has stopped waiting; ``*_twice``: it
        arrives twice; ``*_answer_lost`` and ``answer_lost``: it is done, and the response is lost; ``*_never``: no
        response ever comes.

        A caller without a response gives up only when the work is done: no engine calls a run ABSENT that may yet be
        started.
        """
        await self.life.wait_while_stopped()
        stage = self.stage
        if fault is not None:
            stage.story.add_fault(fault, self.where)
        if fault == "crash_before_act":
            self.life.kill()
        if self.life.is_dead:
            raise asyncio.CancelledError
        answer: asyncio.Future[T] = stage.loop.create_future()
        answered = fault is not None and fault.endswith(("answer_lost", "answer_never"))
        done: asyncio.Future[None] = stage.loop.create_future()
        if fault is None or answered or fault == "crash_after_act":
            stage.send_message(self._deliver(do, self._lasts_s(), answer, fault, done))
        elif fault.endswith("_twice"):
            stage.send_message(self._deliver(do, self._lasts_s(), answer, fault))
            stage.send_message(self._deliver(do, stage.odds.chance.uniform(0, TWICE_S_MAX), None, fault))
        elif fault.endswith("_late"):
            stage.send_message(self._deliver(do, stage.odds.chance.uniform(0, LATE_S_MAX), None, fault))
        if fault is not None and fault.endswith(("_lost", "_late")):
            if answered:
                await done
            stage.loop.call_later(stage.odds.chance.uniform(0, GIVEN_UP_S), _resolve, answer, lost)
        return await self.life.await_answer(answer)

    async def _deliver(
        self,
        do: Callable[[], Awaitable[T]],
        after_s: float,
        answer: asyncio.Future[T] | None,
        fault: str | None,
        done: asyncio.Future[None] | None = None,
    ) -> None:
        dead = self.life.is_dead
        await asyncio.sleep(after_s)
        if self.life.is_dead and not dead and fault is None and self.stage.odds.chance.random() < 0.5:
            return  # it had not left the machine
        said: T | MooringsError
        try:
            said = await do()
        except MooringsError as error:
            said = error
        if done is not None and not done.done():
            done.set_result(None)
        if fault == "crash_after_act" and not self.life.is_dead:
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

    def register_partitions(self, held: Sequence[PartitionSpec]) -> None:
        self._driver.register_partitions(held)

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
                self._witness.on_create(self._pool, made)
            else:
                self._witness.on_remove(what, mark, spared=spared)
            answer = await do()
            self._witness.on_driver_result(mark, answer)
            self._stage.story.add_step(f"driver-{self._pool.name}", f"{what}: {answer.verdict} {answer.seen}")
            return answer

        if made is not None and self._stage.odds.draw_separate_fault("namesake"):
            self._name_another(made.name)
        fault = self._stage.odds.draw_fault(*_ORDER_FAULTS)
        return await self._line.call(
            carry_out, fault=fault, lost=DriverResult(ResultCode.UNAVAILABLE, detail="no answer came")
        )

    def _name_another(self, name: str) -> None:
        """Make a partition of that name outside, on whatever is free at the next call to the hardware."""
        lasts_s = self._stage.odds.apart.uniform(*NAMESAKE_S)
        self._stage.story.add_fault("namesake", f"{self._pool.name}: {name} for {lasts_s:.1f} s")
        self._driver.faults.add(Fault(kind=FaultKind.STRAY, names=(name,), seconds=lasts_s))

    async def list_partitions(self) -> Sequence[ListedPartition]:
        async def look() -> Sequence[ListedPartition]:
            try:
                listing = await self._driver.list_partitions()
            finally:
                self._stage.story.add_step(f"driver-{self._pool.name}", "list")
            self._listings.append(listing)
            return listing

        fault = self._stage.odds.draw_fault("listing_lost", "listing_stale")
        if fault == "listing_stale":
            if self._bad or not self._listings:
                fault = None  # the promise is that *one* bad listing ends nothing
            else:
                self._stage.story.add_fault(fault, self._pool.name)
                self._bad = True
                await self._line.life.wait_while_stopped()
                return self._listings[0]
        listing = await self._line.call(look, fault=fault, lost=_unavailable("driver", "no listing came"))
        self._bad = False
        return listing

    async def binding(self, order: PartitionSpec) -> Binding:
        async def fetch_binding() -> Binding:
            try:
                return await self._driver.binding(order)
            finally:
                self._stage.story.add_step(f"driver-{self._pool.name}", f"binding {order.name}")

        fault = self._stage.odds.draw_fault("binding_lost")
        return await self._line.call(fetch_binding, fault=fault, lost=_unavailable("driver", "no binding came"))

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
    def has_scheduler(self) -> bool:
        return self.name == SCHEDULER

    def check_job(self, job: JobSpec) -> Sequence[str]:
        return ()

    async def _call(self, what: str, do: Callable[[], T], *faults: str) -> T:
        async def carry_out() -> T:
            if self._stage.engine_away:
                self._stage.story.add_step("engine", f"{what}: away")
                raise _unavailable("engine", "it is away")
            result = do()
            self._stage.story.add_step("engine", f"{what} for {self._life.name}")
            return result

        fault = self._stage.odds.draw_fault(*faults)
        return await self._line.call(carry_out, fault=fault, lost=_unavailable("engine", "no answer came"))

    async def fence_below(self, epoch: Epoch) -> None:
        await self._call(f"fence {epoch}", lambda: self._cluster.fence(epoch), "fence_lost")

    async def submit(self, order: RunSubmission) -> str:
        return await self._call(
            f"submit {order.run}",
            lambda: self._submit(order),
            *("submit_lost", "submit_answer_lost", "crash_before_act", "crash_after_act"),
        )

    def _submit(self, order: RunSubmission) -> str:
        if order.epoch < self._cluster.epoch:
            self._stage.story.count("engine refused a replaced controller")
            raise _unavailable("engine", "another controller has the runs")
        if order.run not in self._cluster.processes and self._stage.odds.draw_fault("submit_rejected"):
            self._stage.story.add_fault("submit_rejected", order.run)
            self._cluster.rejected.add(order.run)
        return self._cluster.submit(order)

    async def observe(self, runs: Sequence[RunId]) -> Sequence[RunStatus]:
        if self._stage.odds.draw_fault("observe_unknown"):
            await self._life.wait_while_stopped()
            self._stage.story.add_fault("observe_unknown")
            return [RunStatus(run, RunPhase.UNKNOWN) for run in runs]
        return await self._call(f"observe {len(runs)}", lambda: self._cluster.observe(runs), "observe_lost")

    async def cancel(self, run: RunId, reason: str) -> None:
        await self._call(f"cancel {run}", lambda: self._cluster.cancel(run, reason), "cancel_lost")

    async def ask_to_yield(
        self, run: RunId, attempt: int, reason: str, deadline: Timestamp, *, until_saved: bool = False
    ) -> None:
        await self._call(
            f"ask {run} to yield",
            lambda: self._cluster.ask_to_yield(run, attempt, reason, deadline, until_saved=until_saved),
            "cancel_lost",
        )

    async def signal(self, run: RunId, signal_name: str) -> None:
        await self._call(f"signal {run}", lambda: self._cluster.signal(run))

    async def find_terminal(self, run: RunId, *, attended: bool = False) -> str | TaskContainer:
        raise no_terminal_error("the simulator")

    async def logs(
        self, run: RunId, *, task: int | None, follow: bool, since: Timestamp | None = None
    ) -> AsyncIterator[bytes]:
        yield b""

    async def wait_for_change(self) -> None:
        await self._life.wait_while_stopped()
        await self._cluster.changed()
        await self._life.wait_while_stopped()

    async def close(self) -> None:
        """The processes continue."""


def faulty_drivers(
    stage: SimulationContext, life: ControllerInstance, witness: InvariantChecker
) -> dict[PoolName, FaultyDriver]:
    """A gate to each pool's hardware."""
    return {pool.name: FaultyDriver(stage, life, pool, witness) for pool in stage.pools}
