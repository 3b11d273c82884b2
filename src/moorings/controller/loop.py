"""The loop: one turn at a time, each saved before any caller hears of it.

Inputs gather while a turn is being saved, so the next turn takes them all and one fsync serves them all (group commit),
without a timer. Memory changes only after the commit. If the database's answer is lost or another writer came first,
memory is discarded and read again: the database is the arbiter.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from moorings.controller.inbox import Inbox, QueuedInput
from moorings.controller.metrics import Counters
from moorings.controller.turn import AnyReply, KeyedInput, TurnOutcome, decide_turn
from moorings.controller.turn_record import AnyInput, TurnContext, VolatileState
from moorings.controller.waiters import Wakeup
from moorings.core.model.claims import Claim
from moorings.core.model.errors import MooringsError
from moorings.core.model.events import EVENTS, Event
from moorings.core.model.inputs import CreateClaim
from moorings.core.model.partitions import Partition
from moorings.core.model.policy import Policy
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import Pool
from moorings.core.placement.fleet import Fleet
from moorings.ports.clock import Clock
from moorings.ports.store import (
    Archive,
    Changes,
    EndedRecords,
    Epoch,
    IdempotencyRecord,
    LogPosition,
    Seq,
    Store,
    StoredState,
    rewound_error,
)
from moorings.workloads.run_turn import CreateRun, RunRegistry
from moorings.workloads.runs import Run

T = TypeVar("T")

log = logging.getLogger("moorings.controller")

IDLE_TURN_S = 1.0  # without inputs, leases are checked this often
TURN_GAP_S_MAX = 2.5  # between two good turns; after a longer gap, no owner could be heard, or the clock was set
LOGGED_EVENTS = frozenset(EVENTS) - {  # every claim goes through the others; they are in the event log
    *("claim.created", "claim.granted", "claim.ready", "claim.renewed", "claim.releasing", "claim.released"),
    *("claim.cancelled", "partition.active", "partition.removed", "run.starting", "turn.decided"),
}
FATAL_ERROR_CODES = frozenset(
    {"store.fenced", "store.turned_back", "store.removed"}
)  # this memory is of no use any more
RETRY_S, RETRY_S_MAX = 0.1, 5.0
REQUEST_HOLD_S_MAX = 1.0  # while the database is away, hold a request for this long before refusing it


@dataclass(frozen=True, slots=True)
class CommittedChange:
    """What a committed turn changed, for its listeners; with ``is_reload``, all records."""

    claims: Sequence[Claim]
    partitions: Sequence[Partition]
    runs: Sequence[Run]
    is_reload: bool = False


class TurnLoop:
    """Owns the fleet and the runs in memory; ``submit`` submits an input, ``serve`` runs turns until it is stopped."""

    def __init__(self, store: Store, pools: Sequence[Pool], policy: Policy, clock: Clock, epoch: Epoch) -> None:
        self.store = store
        self.policy = policy
        self.clock = clock
        self.fleet = Fleet(pools)
        self.runs = RunRegistry()
        self.seq = Seq(0)
        self.archived = Seq(0)
        """The last event that has left the database, or is about to."""
        self.problem = ""
        self.history_problem = ""
        """Why old events and records could not leave the database; empty: they could."""
        self.quotas_problem: MooringsError | None = None
        """Why the quotas file of a shared machine is not used; None: it is, or there is none."""
        self.meters = Counters()
        self.rounds = 0
        """Number of rounds, including failed ones: it stands still only if the loop hangs."""
        self._pools = pools
        self._epoch = epoch
        self._inbox = Inbox()
        self._listeners: list[Callable[[CommittedChange], None]] = []
        self._changed = Wakeup()
        self._needs_reload = True
        self._volatile_state: VolatileState | None = None  # until a turn was saved; then a replay has it, too
        self._serving_since = clock.now()
        self._turn_at: Timestamp | None = None
        self._gap_told: Timestamp | None = None
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-writer")

    # -- for callers -------------------------------------------------------------------------------------------------

    async def submit(self, given: AnyInput, key: IdempotencyRecord | None = None) -> AnyReply:
        """Submit an input, and return its reply once the database has saved the result.

        Raises:
            MooringsError: core's answer, ``store.*``, or ``controller.unreachable`` once the loop is closed.
        """
        self._inbox.check_open()
        if isinstance(given, CreateClaim | CreateRun):
            self.store.check_space()
        reply: asyncio.Future[AnyReply] = asyncio.get_running_loop().create_future()
        self._inbox.put(KeyedInput(given, key), reply)
        answer = await reply
        if isinstance(answer, MooringsError):
            raise answer
        return answer

    def submit_nowait(self, given: AnyInput) -> None:
        """Submit an input without waiting for a reply."""
        self._inbox.put(KeyedInput(given))

    def subscribe(self, listener: Callable[[CommittedChange], None]) -> None:
        """Call ``listener`` after every committed turn, in the loop's thread; it must not wait."""
        self._listeners.append(listener)

    async def wait_for_change(self, after: Seq, timeout_s: float) -> None:
        """Returns once the log has gone beyond ``after``, or after ``timeout_s``."""
        if self.seq > after:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    @property
    def epoch(self) -> Epoch:
        """The epoch under which this controller leads, or led."""
        return self._epoch

    async def confirm_leadership(self) -> None:
        """Return if the database confirms that this controller leads. Call it before anything irreversible.

        Raises:
            MooringsError: ``store.fenced``, ``store.turned_back``, ``store.unavailable``.
        """
        await self._in_writer(self.store.commit, self._epoch, Changes(), self.seq)

    async def forget_events(self, archive: Archive, limit: int) -> int:
        """Between two turns, remove some events that are in the archive; returns how many. 0: none is left.

        Raises:
            MooringsError: as ``Store.forget_events``.
        """
        self.archived = max(self.archived, archive.last)  # first: a concurrent reader must not get half of them
        return await self._in_writer(self.store.delete_archived_events, self._epoch, archive, limit, self.seq)

    async def forget_ended(self, ended: EndedRecords, limit: int) -> None:
        """Between turns, remove ended records: the runs, then the claims, at most ``limit`` in a transaction.

        Raises:
            MooringsError: as ``Store.forget_ended``.
        """
        parts = [EndedRecords(runs=ended.runs[at : at + limit]) for at in range(0, len(ended.runs), limit)]
        parts += [EndedRecords(claims=ended.claims[at : at + limit]) for at in range(0, len(ended.claims), limit)]
        for part in parts:
            await self._in_writer(self.store.delete_ended, self._epoch, part, self.seq)

    # -- turns -------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read everything from the database.

        Raises:
            MooringsError: ``store.unavailable``, ``store.turned_back``, or ``pools.invalid`` if the pools file no
                longer holds what is in use.
        """
        saved = await self._in_writer(self.store.load_unended)
        if saved.seq < self.seq:
            raise rewound_error(LogPosition(self.seq, self._epoch), LogPosition(saved.seq, self._epoch))
        _check_pools(self._pools, saved)
        fleet = Fleet.load(self._pools, saved.claims, saved.partitions, saved.devices, saved.projects, saved.usage)
        fleet.apply(self.fleet.volatile_state())
        fleet.last_arrival = max(fleet.last_arrival, self.fleet.last_arrival)
        self.fleet, self.runs, self.seq = fleet, RunRegistry(saved.runs), saved.seq
        self.archived = saved.last_archived_seq
        self._volatile_state = VolatileState.of(fleet)
        self._needs_reload = False
        self._notify_listeners(CommittedChange(saved.claims, saved.partitions, saved.runs, is_reload=True))

    async def serve(self) -> None:
        """Run turns until cancelled.

        Raises:
            MooringsError: ``store.fenced``: another controller leads; this one must end. ``store.turned_back``: the
                database must be prepared before decisions are made from it (``app.recovery``). ``store.removed``:
                the database's files were removed, so saves are lost.
        """
        pause_s = RETRY_S
        while True:
            self.rounds += 1
            away = self._needs_reload  # until it was read again
            try:
                if self._needs_reload:
                    await self._recover()
                away = False
                await self.turn()
                if not self._inbox.under_way:
                    self.store.check_file()  # checks two files; each save checks, too
            except MooringsError as error:
                if error.code in FATAL_ERROR_CODES:
                    raise
                self._needs_reload = True
                self.problem = error.detail
                self.meters.failures[error.code] += 1
                log.warning("store.failed", extra={"code": error.code, "detail": error.detail})
                await self._back_off(pause_s, error, away=away or error.code == "store.unavailable")
                pause_s = min(pause_s * 2, RETRY_S_MAX)
                continue
            self.problem, pause_s = "", RETRY_S
            if not self._inbox:
                await self._wait_for_input()

    async def _back_off(self, pause_s: float, error: MooringsError, *, away: bool) -> None:
        """Wait before the next try; if the database is away, refuse requests, at once if the wait is long."""
        if away:
            self._inbox.reject_all(error)
        nap = self._timer(pause_s)
        try:
            while not nap.done():
                self._inbox.arrived.clear()
                await self._inbox.arrived.wait()
                if away and pause_s > REQUEST_HOLD_S_MAX:
                    self._inbox.reject_all(error)
        finally:
            nap.cancel()

    async def _recover(self) -> None:
        """After a failed save: check that the database is writable, and read memory from it again."""
        if self.problem:
            await self._in_writer(self.store.ping)
        await self.load()

    async def _wait_for_input(self) -> None:
        self._inbox.arrived.clear()
        if self._inbox:
            return
        nap = self._timer(IDLE_TURN_S)
        try:
            await self._inbox.arrived.wait()
        finally:
            nap.cancel()

    def _timer(self, seconds: float) -> asyncio.Future[None]:
        """A pause whose end wakes the loop."""
        nap = asyncio.ensure_future(self.clock.sleep(seconds))
        wake = self._inbox.arrived.set
        nap.add_done_callback(lambda over: None if over.cancelled() else wake())  # else it would never rest
        return nap

    async def turn(self) -> None:
        """Take the queued inputs, decide, save, apply, answer.

        Raises:
            MooringsError: ``store.*``: nothing of the turn is in memory; its callers have been answered or will be by
                the next turn.
        """
        inputs = self._inbox.take()
        try:
            inputs = await self._answer_repeated(inputs)
            demanded = [queued.demanded for queued in inputs]
            begun = time.perf_counter()  # for metrics only: it decides nothing
            outcome = self.decide(demanded)
            decided = time.perf_counter()
            self.meters.turns.observe(decided - begun)
            if outcome.changes:
                self.seq = await self._in_writer(self.store.commit, self._epoch, outcome.changes, self.seq)
                self.meters.commits.observe(time.perf_counter() - decided)
        except MooringsError as error:
            self._inbox.retry_or_fail(inputs, error)
            raise
        except Exception as error:
            log.exception("turn.failed")
            fault = MooringsError("internal.error", f"a turn failed: {error!r}")
            self._inbox.retry_or_fail(inputs, fault)
            raise fault from error
        self._turn_at = outcome.at
        self._apply(outcome)
        for queued, reply in zip(inputs, outcome.replies, strict=True):
            queued.answer(reply)

    def decide(self, demanded: Sequence[KeyedInput]) -> TurnOutcome:
        """The outcome of these inputs now; memory does not change. A method so that a simulator can observe it."""
        now = self.clock.now()
        self._detect_clock_gap(now)
        return decide_turn(self.fleet, self.runs, demanded, self.turn_context(now))

    def turn_context(self, now: Timestamp) -> TurnContext:
        """The input of a turn at ``now``, beside inputs and memory."""
        return TurnContext(now, self._serving_since, self.policy, self._volatile_state)

    def _detect_clock_gap(self, now: Timestamp) -> None:
        """Count no lease over a time without a saved turn.

        There was no controller, the clock was set, or this process or its machine stood still: an owner could not have
        renewed. A monotonic clock would not do: it runs on while the process is stopped.
        """
        before = self._turn_at
        if before is not None and 0 <= now - before <= TURN_GAP_S_MAX * 1_000_000:
            return
        self._serving_since = now
        if before is not None and before != self._gap_told:
            self._gap_told = before  # once, even if the turn is tried again
            log.warning("clock.jumped", extra={"detail": f"{(now - before) / 1e6:.1f} s lie between two turns"})

    async def _answer_repeated(self, inputs: list[QueuedInput]) -> list[QueuedInput]:
        """The inputs with a new idempotency key; the others are answered with the earlier result of their key."""
        keyed: dict[tuple[str, str], QueuedInput] = {}
        fresh: list[QueuedInput] = []
        for queued in inputs:
            key = queued.demanded.key
            if key is None:
                fresh.append(queued)
            elif (key.subject, key.key) in keyed:
                self._inbox.postpone(queued)  # the same key twice at once: the next turn knows the first
            else:
                keyed[key.subject, key.key] = queued
                fresh.append(queued)
        if not keyed:
            return fresh
        known = await self._in_writer(self.store.find_idempotency_records, list(keyed))
        for pair, use in known.items():
            queued = keyed[pair]
            fresh.remove(queued)
            queued.answer(await self._repeated_reply(queued, use))
        return fresh

    async def _repeated_reply(self, queued: QueuedInput, use: IdempotencyRecord) -> AnyReply:
        key = queued.demanded.key
        if not use.digest:
            return _archived_error(use)
        if key is not None and key.digest != use.digest:
            return MooringsError(
                "key.conflict",
                f"idempotency key {use.key[:80]!r} was used with another request",
                hint="use a new key for a new request",
            )
        if use.run is not None:
            return self.runs.by_id.get(use.run) or await self._in_writer(self.store.get_run, use.run)
        if use.claim is not None:
            return self.fleet.claims.get(use.claim) or await self._in_writer(self.store.get_claim, use.claim)
        return None

    def _apply(self, outcome: TurnOutcome) -> None:
        self.fleet.apply(outcome.fleet)
        self.runs.apply(outcome.runs)
        if outcome.changes:
            self._volatile_state = None
            for event in outcome.changes.events:
                if event.name in LOGGED_EVENTS:
                    log.info(event.name, extra=_log_fields(event))
            claims = [claim for claim, _ in outcome.changes.claims]
            partitions = [partition for partition, _ in outcome.changes.partitions]
            self._notify_listeners(CommittedChange(claims, partitions, outcome.runs))
        elif outcome.fleet.offers is not None:
            self._notify_listeners(CommittedChange((), (), ()))

    def _notify_listeners(self, change: CommittedChange) -> None:
        self._changed.wake_all()
        for listener in self._listeners:
            listener(change)

    async def _in_writer(self, call: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writer, call, *args)

    async def wait_until_idle(self, timeout_s: float) -> bool:
        """Whether the database has answered all requests, within that time."""
        idle = asyncio.get_running_loop().run_in_executor(self._writer, _nothing)
        done, _ = await asyncio.wait([idle], timeout=timeout_s)
        return bool(done)

    def discard(self) -> None:
        """Give up a loop that never served: the writer ends when it has its answer."""
        self._inbox.close()
        self._writer.shutdown(wait=False)

    def reject_waiting(self) -> None:
        """Answer all waiting callers, now and from now on."""
        self._inbox.close()

    def close(self) -> None:
        """Answer all waiting callers, and end the writer."""
        self.reject_waiting()
        self._writer.shutdown(wait=True)


def _nothing() -> None:
    """Does nothing; its end shows that the writer is idle."""


def _archived_error(use: IdempotencyRecord) -> MooringsError:
    """The error for a key whose record has left the database: the key never makes a second one (law 5)."""
    hint = "use a new key for a new request"
    if use.run is not None:
        return MooringsError("run.archived", f"the key made run {use.run}, which ended long ago", hint=hint)
    return MooringsError("claim.archived", f"the key made claim {use.claim}, which ended long ago", hint=hint)


def _log_fields(event: Event) -> dict[str, str]:
    about = {"claim": event.claim, "partition": event.partition, "run": event.run, "pool": event.pool}
    values = {**about, "device": event.device, "data": event.data}
    return {name: text for name, text in values.items() if text and text != "{}"}


def _check_pools(pools: Sequence[Pool], saved: StoredState) -> None:
    """Refuse a pools file that lacks the block of an existing partition.

    Raises:
        MooringsError: ``pools.invalid``.
    """
    known = {pool.name: pool for pool in pools}
    for partition in saved.partitions:
        pool = known.get(partition.pool)
        if pool is None or not pool.topology.is_block(partition.block):
            raise MooringsError(
                "pools.invalid",
                f"partition {partition.name} holds devices {partition.block} of pool {partition.pool}, "
                "which the pools file no longer has as a block",
                hint="put the pool back as it was, release the claim, then change the pool",
            )
