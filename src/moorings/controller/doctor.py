"""The controller's checks of itself, for ``moor doctor`` and for monitoring.

Checks only read. Judging is separate from reading: ``check_*`` are functions from values to findings, and ``Doctor``
reads: memory at once, the database for a bounded time. ``app.doctor`` checks what is visible only on the controller's
machine (files, disks, processes), and ``moor doctor`` itself what is visible only to a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from moorings.controller.loop import TurnLoop
from moorings.core import invariants
from moorings.core.guarantees.guarantee_map import build_pool_guarantees
from moorings.core.model.claims import Claim
from moorings.core.model.devices import DeviceState, PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.machine import MACHINE_KIND
from moorings.core.model.partitions import OPERATIONS, Partition, PartitionState
from moorings.core.model.quantities import age_text, join_first
from moorings.core.model.timestamps import DAY_S, Timestamp, seconds_between
from moorings.core.model.topology import Block
from moorings.core.placement.eligibility import eligible_pools
from moorings.core.placement.fleet import Fleet, PoolState
from moorings.doctor.findings import FAIL, PASS, WARN, Finding, failed_finding
from moorings.ports.clock import Clock
from moorings.ports.store import AccessKey, Replication, Seq, Store, StoredState
from moorings.workloads.runs import Run, RunState

T = TypeVar("T")
Record = Claim | Partition | Run

QUERY_TIMEOUT_S = 2.0  # for each query to the database
STUCK_S = 600.0  # a partition in transition, or a run that starts or stops, is stuck after this time
YIELD_LATE_S = 120.0  # after the deadline to yield: engines stop jobs with a grace time of their own
MEMORY_READS = 3  # memory may be ahead of what was read: a record must differ in so many reads in a row
LAG_MAX = 1000  # events; keys are created beside the loop, so a few are always possible
SHOWN_MAX = 5
SAFE_COMMITS = ("on", "remote_apply")  # with remote_write a standby whose machine also fails loses what it received
SLOTS_WARN_RATIO = 0.8
KEY_WARN_DAYS = 14
KEY_WARN_S = KEY_WARN_DAYS * DAY_S


# -- judging: values in, findings out ----------------------------------------------------------------------------------


def check_laws(fleet: Fleet) -> Finding:
    """Check that the fleet in memory keeps the laws."""
    broken = invariants.find_violations(fleet)
    if not broken:
        return Finding("laws", PASS, f"{len(fleet.claims)} claims and {len(fleet.partitions)} partitions keep the laws")
    text = "; ".join(f"law {finding.law}: {finding.message}" for finding in broken[:SHOWN_MAX])
    return Finding(
        "laws", FAIL, f"{len(broken)} broken: {text}", "this is a fault of ours: make a 'moor diag' and report it"
    )


def check_history(problem: str) -> Finding:
    """Check that old records leave the database; ``problem``: why the last attempt failed."""
    if problem:
        fix = "the database grows until it can: see the setting 'archive', that folder's disk and its owner"
        return Finding("history", WARN, f"old events and records stay in the database: {problem}", fix)
    return Finding("history", PASS, "old events and records leave the database when their time comes")


def check_quotas_file(problem: MooringsError | None) -> Finding:
    """Check that the quotas file of a shared machine is used; ``problem``: why it is not."""
    if problem is not None:
        return Finding("quotas", FAIL, f"the limits stay what they were: {problem.detail}", problem.hint)
    return Finding("quotas", PASS, "each person's limit is that of the quotas file, if there is one")


def check_pools(states: Iterable[PoolState]) -> Iterator[Finding]:
    """Check that each pool's driver answers."""
    for state in states:
        name = state.pool.name
        if state.unreachable_reason:
            fix = f"is the hardware's controller of pool {name} up, and is its address in the pools file right?"
            yield Finding(f"drivers.{name}", FAIL, f"it does not answer: {state.unreachable_reason}", fix)
        else:
            yield Finding(f"drivers.{name}", PASS, f"the {state.pool.driver} driver answers")


def check_devices(states: Iterable[PoolState]) -> Iterator[Finding]:
    """Check for quarantined devices; FAIL if a pool has no device in service."""
    for state in states:
        name, n_devices = state.pool.name, state.pool.topology.n_devices
        broken = [device for device in state.out_of_service.values() if device.state is DeviceState.QUARANTINED]
        fix = f"'moor get devices --pool {name}' tells why; repair them, then 'moor resume device ID'"
        if len(state.out_of_service) == n_devices:
            yield Finding(f"quarantine.{name}", FAIL, f"all {n_devices} devices are out of service", fix)
        elif broken:
            text = ", ".join(f"{device.index} ({device.reason})" for device in broken[:SHOWN_MAX])
            yield Finding(f"quarantine.{name}", WARN, f"{len(broken)} of {n_devices} are quarantined: {text}", fix)
        else:
            yield Finding(f"quarantine.{name}", PASS, f"no device of {n_devices} is quarantined")


def check_partitions(partitions: Iterable[Partition], now: Timestamp) -> Iterator[Finding]:
    """Check for partitions stuck in transition or in ERROR."""
    known = list(partitions)
    late = [p for p in known if p.state in OPERATIONS and seconds_between(p.since, now) > STUCK_S]
    broken = [p for p in known if p.state is PartitionState.ERROR]
    if late:
        text = ", ".join(f"{p.name} ({p.state} for {seconds_between(p.since, now):.0f} s)" for p in late[:SHOWN_MAX])
        fix = "look at the driver's log and 'moor explain claim'; the hardware does not do what it was told"
        yield Finding("partitions.moving", FAIL, f"{len(late)} are on their way for too long: {text}", fix)
    else:
        yield Finding("partitions.moving", PASS, f"none of {len(known)} is on its way for more than {STUCK_S:.0f} s")
    if broken:
        text = ", ".join(f"{p.name} ({p.reason})" for p in broken[:SHOWN_MAX])
        fix = "look at the hardware; Moorings tries to remove those that nobody holds again and again"
        yield Finding("partitions.broken", WARN, f"{len(broken)} are in ERROR: {text}", fix)
    else:
        yield Finding("partitions.broken", PASS, "none is in ERROR")


def check_unrecorded_partitions(
    states: Iterable[PoolState], strays: Sequence[str], spared: Sequence[str]
) -> Iterator[Finding]:
    """Check for partitions in the hardware that no record knows."""
    foreign = [f"{state.pool.name}/{name}" for state in states for name in state.foreign_blocks]
    strangers = [name for name in foreign if name.partition("/")[2] not in {*strays, *spared}]
    if strays:
        fix = "nothing: they are removed unless jobs run on them; if they stay, look at the driver's log"
        yield Finding("partitions.stray", WARN, f"nobody holds {join_first(strays)}, which carry our mark", fix)
    else:
        yield Finding("partitions.stray", PASS, "every partition with our mark is held by a claim")
    if spared:
        fix = "leave them until their jobs have ended; then, if a backup was restored: 'moor restore --finish'"
        yield Finding("partitions.spared", WARN, f"no record knows {join_first(spared)}, which may be in use", fix)
    if strangers:
        fix = "nothing, if that is wanted; else remove them with the vendor's own tool"
        yield Finding("partitions.foreign", WARN, f"made outside Moorings: {join_first(strangers)}", fix)
    else:
        yield Finding("partitions.foreign", PASS, "no partition was made outside Moorings")


def check_runs(runs: Iterable[Run], since: Mapping[str, Timestamp], now: Timestamp) -> Finding:
    """Check for runs that start or stop for too long; ``since``: when each began to."""
    late = [run for run in runs if run.id in since and seconds_between(since[run.id], now) > STUCK_S]
    if not late:
        return Finding("runs.moving", PASS, f"no run starts or stops for more than {STUCK_S:.0f} s")
    text = ", ".join(f"{run.id} ({run.state})" for run in late[:SHOWN_MAX])
    fix = "'moor describe run ID' and the controller's log show what the engine says"
    return Finding("runs.moving", FAIL, f"{len(late)} are stuck: {text}", fix)


def check_queue(fleet: Fleet) -> Finding:
    """Check for claims that no pool can ever serve, because the pools file shrank, say."""
    never: list[tuple[Claim, str]] = []
    known: dict[tuple[object, ...], str] = {}
    waiting = list(fleet.pending_claims())
    for claim in waiting:
        spec = claim.spec
        shape = (
            spec.kind,
            spec.pool,
            spec.size,
            spec.gcds,
            (*sorted(spec.resources.items()), None, *sorted(spec.machine.items())),
        )
        if shape not in known:
            known[shape] = _why_never(fleet, claim)
        if known[shape]:
            never.append((claim, known[shape]))
    if not never:
        return Finding("queue", PASS, f"each of {len(waiting)} waiting claims can be served one day")
    text = "; ".join(f"{claim.name}: {why}" for claim, why in never[:SHOWN_MAX])
    return Finding(
        "queue", FAIL, f"{len(never)} can never be served: {text}", "release them, or give the pools file back"
    )


def check_guarantees(fleet: Fleet) -> Iterator[Finding]:
    """Check that the cells of all projects still fit into the devices in service."""
    projects = fleet.projects
    for name, state in fleet.pools.items() if projects else ():
        cells = projects.guaranteed_blocks(name)
        blocks = build_pool_guarantees(projects, state, ())
        if blocks is None:
            continue
        if blocks.passes_lending_check(Block(())):
            yield Finding(f"guarantees.{name}", PASS, f"what {len(cells)} projects are guaranteed fits")
            continue
        out = len(state.unusable)
        why = f"{out} devices are out of service or taken by others" if out else "the pool was made smaller"
        fix = "repair and resume devices ('moor get devices'), or guarantee less ('moor set project')"
        yield Finding(f"guarantees.{name}", WARN, f"what {len(cells)} projects are guaranteed does not fit: {why}", fix)


def check_reclaims(fleet: Fleet, now: Timestamp) -> Finding:
    """Check for claims that were asked to yield and are late."""
    asked = [claim for claim in map(fleet.claims.get, sorted(fleet.claims_asked_to_yield)) if claim is not None]
    late = [
        claim
        for claim in asked
        if claim.asked_until is not None and seconds_between(claim.asked_until, now) > YIELD_LATE_S
    ]
    if not late:
        return Finding("reclaims", PASS, f"{len(asked)} claims are asked to yield, and none is late")
    fix = "does the engine still stop its jobs? 'moor describe claim ID' shows its owner; releasing it ends the wait"
    return Finding("reclaims", WARN, f"{len(late)} have not yielded in time: {join_first([c.name for c in late])}", fix)


def _why_never(fleet: Fleet, claim: Claim) -> str:
    try:
        eligible_pools(claim.spec, fleet.pools)
    except MooringsError as error:
        return error.detail
    return ""


def check_keys(keys: Iterable[AccessKey], now: Timestamp) -> Finding:
    """Check for access keys that expire soon; recently expired keys are listed, too."""
    expiring = sorted(
        ((key.expires_at, key) for key in keys if key.revoked_at is None and key.expires_at is not None),
        key=lambda one: one[0],
    )
    soon = [(at, key) for at, key in expiring if 0 < seconds_between(now, at) <= KEY_WARN_S]
    gone = [key for at, key in expiring if -KEY_WARN_S <= seconds_between(now, at) <= 0]
    since = f"; expired of late: {join_first([f'{key.id} ({key.subject})' for key in gone])}" if gone else ""
    if not soon:
        return Finding("keys", PASS, f"no access key expires within {KEY_WARN_DAYS} days{since}")
    shown = [f"{key.id} ({key.role} {key.subject}) in {age_text(seconds_between(now, at))}" for at, key in soon]
    fix = "'moor rotate key ID' gives one a new secret, and as much time again; what its holder has goes on either way"
    return Finding("keys", WARN, f"{len(soon)} expire: {join_first(shown)}{since}", fix)


def check_log(in_memory: Seq, in_store: Seq) -> Finding:
    """Check that memory and database agree on the end of the event log."""
    if in_store < in_memory:
        evidence = f"the database ends at event {in_store}, and {in_memory} were told: it was replaced under us"
        return Finding(
            "events", FAIL, evidence, "restart the controller; restore only while none runs ('moor restore')"
        )
    if in_store - in_memory > LAG_MAX:
        evidence = f"memory is {in_store - in_memory} events behind the database"
        return Finding("events", WARN, evidence, "does another program write to the database? restart the controller")
    return Finding("events", PASS, f"the log has come to event {in_store}")


def check_replication(how: Replication | None) -> Finding:
    """Check that a promoted standby would have every acknowledged commit."""
    if how is None:
        return Finding("replication", PASS, "the database is a file of this machine, which nothing follows")
    if not how.standbys and not how.names:
        return Finding("replication", PASS, "no standby follows the database's server")
    if how.names and how.commit in SAFE_COMMITS:
        return Finding("replication", PASS, f"commits wait for {how.names} (synchronous_commit {how.commit})")
    lacking = "synchronous_standby_names is empty" if not how.names else f"synchronous_commit is {how.commit}"
    fix = "set synchronous_standby_names, and synchronous_commit to on; 'Run two controllers' tells what else is lost"
    evidence = f"{how.standbys} standbys follow, and one that is promoted may lack the last commits: {lacking}"
    return Finding("replication", WARN, evidence, fix)


def check_memory(differing: Sequence[str], compared: int) -> Finding:
    """Check that memory agrees with the database."""
    if differing:
        fix = "restart the controller: it believes the database; then report it with a 'moor diag'"
        return Finding("memory", FAIL, f"{len(differing)} of {compared} records differ: {join_first(differing)}", fix)
    return Finding("memory", PASS, f"{compared} records are the same in memory and in the database")


def check_slots(kind: str, taken: int, total: int) -> Finding:
    """Check for free connection slots."""
    evidence = f"{taken} of {total} are taken"
    if taken >= total:
        return Finding(f"seats.{kind}", FAIL, evidence, "clients are turned away: find who holds them, and close some")
    if taken >= total * SLOTS_WARN_RATIO:
        return Finding(f"seats.{kind}", WARN, evidence, "few are left: find who holds them")
    return Finding(f"seats.{kind}", PASS, evidence)


# -- reading ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _RecordDifference:
    """Records that differ between memory and database in one read, with the two versions of each."""

    suspects: dict[str, tuple[int, int]] = field(default_factory=dict)
    compared: int = 0


class Doctor:
    """Checks one controller.

    Args:
        loop: its turn loop, with the memory.
        store: its database.
        clock: the time.
        strays: returns names of partitions with our mark that no record holds: those to be removed, and the spared.
    """

    def __init__(
        self, loop: TurnLoop, store: Store, clock: Clock, strays: Callable[[], tuple[Sequence[str], Sequence[str]]]
    ) -> None:
        self._loop = loop
        self._store = store
        self._clock = clock
        self._strays = strays

    async def run_checks(self) -> list[Finding]:
        """All findings, within some seconds."""
        loop, now = self._loop, self._clock.now()
        fleet = loop.fleet
        strays, spared = self._strays()
        asked = asyncio.gather(
            self._writable(), self._log(), self._replication(), self._memory(), self._runs(now), self._keys(now)
        )
        states = [state for state in fleet.pools.values() if state.pool.kind != MACHINE_KIND]
        findings = [
            check_laws(fleet),
            check_queue(fleet),
            check_history(loop.history_problem),
            check_quotas_file(loop.quotas_problem),
            *check_guarantees(fleet),
            check_reclaims(fleet, now),
            *check_pools(states),
            *check_devices(states),
            *check_partitions(fleet.partitions.values(), now),
            *check_unrecorded_partitions(states, strays, spared),
        ]
        return [*(await asked), *findings]

    async def _query_store(self, check: str, call: Callable[..., T], *args: object) -> T | Finding:
        """The result of a query, or the finding that it failed."""
        try:
            async with asyncio.timeout(QUERY_TIMEOUT_S):
                return await asyncio.to_thread(call, *args)
        except TimeoutError:
            return Finding(
                check,
                FAIL,
                f"the database has not answered in {QUERY_TIMEOUT_S:g} s",
                "look at its disk, or its server",
            )
        except MooringsError as error:
            return failed_finding(check, error)

    async def _writable(self) -> Finding:
        if self._loop.problem:
            return Finding("database", FAIL, self._loop.problem, "the controller's log tells more")
        answer = await self._query_store("database", self._store.ping)
        return answer or Finding("database", PASS, "it can be written")

    async def _log(self) -> Finding:
        in_memory = self._loop.seq
        answer = await self._query_store("events", self._store.last_seq)
        return answer if isinstance(answer, Finding) else check_log(in_memory, answer)

    async def _replication(self) -> Finding:
        answer = await self._query_store("replication", self._store.replication)
        return answer if isinstance(answer, Finding) else check_replication(answer)

    async def _keys(self, now: Timestamp) -> Finding:
        answer = await self._query_store("keys", self._store.access_keys)
        return answer if isinstance(answer, Finding) else check_keys(answer, now)

    async def _runs(self, now: Timestamp) -> Finding:
        """The event log has the time when a run began to start or stop."""
        moving = [run for run in self._loop.runs.by_id.values() if run.state in (RunState.STARTING, RunState.STOPPING)]
        answer = await self._query_store("runs.moving", self._since, [run.id for run in moving[: SHOWN_MAX * 10]])
        return answer if isinstance(answer, Finding) else check_runs(moving, answer, now)

    def _since(self, runs: Sequence[str]) -> dict[str, Timestamp]:
        since = {}
        for run in runs:
            rows = self._store.list_events(Seq(0), 100, run=run, names=("run.starting", "run.stopping"))
            if rows:
                since[run] = rows[-1].event.at
        return since

    async def _memory(self) -> Finding:
        """Compare until no record differs, or some keep differing with the same versions: those are reported."""
        before: dict[str, tuple[int, int]] | None = None
        suspects: dict[str, tuple[int, int]] = {}
        compared = 0
        for _ in range(MEMORY_READS):
            answer = await self._query_store("memory", self._store.load_unended)
            if isinstance(answer, Finding):
                return answer
            seen = compare_records(self._loop, answer)
            compared = seen.compared
            suspects = (
                seen.suspects
                if before is None
                else {name: versions for name, versions in seen.suspects.items() if before.get(name) == versions}
            )
            if not suspects:
                return check_memory((), compared)
            before = seen.suspects
            await self._loop.wait_for_change(self._loop.seq, QUERY_TIMEOUT_S / MEMORY_READS / 2)
        return check_memory(sorted(suspects), compared)


def compare_records(loop: TurnLoop, saved: StoredState) -> _RecordDifference:
    """The differences between a controller's memory and one reading of its database."""
    seen = _RecordDifference()
    fleet = loop.fleet
    pairs: tuple[tuple[Iterable[Record], Iterable[Record]], ...] = (
        (fleet.claims.values(), saved.claims),
        (fleet.partitions.values(), saved.partitions),
        (loop.runs.by_id.values(), saved.runs),
    )
    for remembered, rows in pairs:
        held = {str(record.id): record for record in remembered}
        read = {str(record.id): record for record in rows}
        seen.compared += len(held.keys() | read.keys())
        for ident in held.keys() | read.keys():
            mine, theirs = held.get(ident), read.get(ident)
            if mine != theirs:
                versions = (mine.version if mine is not None else 0, theirs.version if theirs is not None else 0)
                seen.suspects[ident] = versions
    out = {f"{name}:{index}": d.state for name, s in fleet.pools.items() for index, d in s.out_of_service.items()}
    read_out = {f"{d.pool}:{d.index}": d.state for d in saved.devices if PoolName(d.pool) in fleet.pools}
    in_service = {name for name, state in read_out.items() if state is DeviceState.IN_SERVICE}
    for name in out.keys() | (read_out.keys() - in_service):
        seen.compared += 1
        if out.get(name) != read_out.get(name):
            seen.suspects[name] = (0, 0)
    return seen
