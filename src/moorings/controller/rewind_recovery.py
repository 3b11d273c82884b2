"""Recovery of a database that was turned back (by a restore, say): correct its records before a controller leads.

Its records are of an earlier moment, and much has happened since: runs that waited then have started, partitions being
reset then are in use. A controller that trusted the records would create partitions under ids that exist, reset what a
job uses, start runs again, and write new events under used numbers.

The recovery is a leader like any other: it raises the epoch, so every earlier leader is fenced off, and its changes are
one commit. SQL of its own was refused: it would be a second writer of the records, for two kinds of database. The
caller (``app.recovery``) provides what is known from outside the database.

The corrections are no input of any turn, so the log has them as an event of its own, and a replay applies them, too
(law 9).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from moorings.core.model import claims, partitions
from moorings.core.model.access import Ownership
from moorings.core.model.claims import SERVED, Claim, ClaimEvent, ClaimId, ClaimState, PartitionId
from moorings.core.model.errors import MooringsError
from moorings.core.model.events import UNOWNED, Event, canonical_json
from moorings.core.model.partitions import Partition, PartitionEvent, PartitionState
from moorings.core.model.reasons import Reason
from moorings.core.model.serialization import from_plain, to_plain
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.core.model.visibility import ownership_of
from moorings.ports.store import Changes, Epoch, ExpectedVersion, LogPosition, Seq, Store, rewound_error
from moorings.workloads import runs
from moorings.workloads.jobs import JobSpec, job_size_bytes, summarize_job
from moorings.workloads.run_turn import ownership_of_run
from moorings.workloads.runs import Run, RunEvent, RunId, RunState

log = logging.getLogger("moorings.controller")

CONTROLLER_NAME = "moor restore"
SEQ_GAP = 1000  # above the last event known to have been published
BLIND_GAP = 1_000_000  # if it is unknown how far the numbers had come
BLIND_RATE = (
    100  # events a second: the same backup, restored twice without that knowledge, gives other numbers up to this rate
)
ATTEMPT_GAP = 1000
ATTEMPT_EPOCH = Timestamp(1_577_836_800 * SECOND)  # 2020: seconds since then fit into an attempt's column until 2088
REWIND_EVENT = "database.turned_back"
_WHY = "it was served after the moment that was restored: its run has started, on a partition that no record knows"


@dataclass(frozen=True, slots=True)
class StartedRun:
    """The traces of a run that was started.

    Attributes:
        attempt: the newest.
        since: when it began to run, if that is known.
        partition: its partition; None: an old release started it without recording that, or its order is damaged.
        name: name of that partition; empty: it has none, or it is unknown.
    """

    attempt: int
    since: Timestamp | None
    partition: PartitionId | None = None
    name: str = ""

    def is_on(self, partition: Partition | None) -> bool:
        """Whether it may be on that partition; a damaged one may be on any partition of its claim."""
        if self.partition is None and not self.name:
            return True
        if partition is None:
            return False
        return self.partition == partition.id if self.partition is not None else self.name == partition.name


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run with live processes.

    Attributes:
        job: its job.
        engine: its engine.
        started: its traces.
    """

    run: RunId
    job: JobSpec
    engine: str
    started: StartedRun


@dataclass(frozen=True, slots=True)
class UnrecordedRun:
    """A run that no record knows, alive in a recorded partition: its claim was there before, and the run came later.

    ``body_bytes``: of the job, of which the log has only a part.
    """

    run: RunId
    claim: ClaimId
    job: JobSpec
    engine: str
    started: StartedRun
    body_bytes: int


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """What the records must learn: everything that their corrections follow from.

    Attributes:
        now: the time.
        epoch: of the leader that saves it.
        after: number of the last event in the records.
        started: traces of the runs that waited or ran in the records, and have been started (again) since.
        within: the runs that were created since in a recorded claim.
    """

    now: Timestamp
    epoch: Epoch
    after: Seq
    started: Mapping[RunId, StartedRun] = field(default_factory=dict)
    within: tuple[UnrecordedRun, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineObservations:
    """What engines know and the records of a database that was turned back do not.

    Attributes:
        started: the traces of a run on its engine; None: it was not started.
        living: the runs with live processes, except these.
        fenced: the epoch of the last leader that engines know of.
    """

    started: Callable[[RunId], StartedRun | None]
    living: Callable[[Collection[RunId]], Iterable[LiveRun]]
    fenced: Callable[[], Epoch]


def begin_leading(
    store: Store,
    known: LogPosition | None,
    record_position: Callable[[LogPosition], None],
    holder: str,
    now: Timestamp,
    url: str = "",
) -> Epoch:
    """Begin to lead, after the epoch was noted outside the database.

    If the database later goes back to before that, it would give the same epoch to the next leader: the two could not
    be told apart, and the earlier one would not be refused.

    Args:
        store: the database.
        known: how far it had come at the last check.
        record_position: records, independent of the database, how far that has come; returns once that is durable.
        holder: the leader's name.
        now: the time.
        url: the leader's address.

    Raises:
        MooringsError: ``store.*``; ``store.turned_back``: it went back since it was checked.
    """
    epoch = store.begin_epoch(holder, now, url)
    at = store.log_position()
    if known is not None and (epoch <= known.epoch or not known.is_covered_by(at)):
        raise rewound_error(known, at)
    record_position(at)
    return epoch


def recover_if_rewound(
    store: Store,
    known: LogPosition,
    world: EngineObservations,
    now: Timestamp,
    spare: Callable[[str, bool], None],
    note: Callable[[LogPosition], None],
    *,
    unready: bool,
) -> None:
    """Recover a database that is behind its known position, so that no controller leads from it before.

    Args:
        store: that database; no controller leads from it.
        known: how far it had come.
        world: what its records do not know.
        now: the time.
        spare: records why partitions that no record knows are left alone from now on, and whether the database was
            recovered.
        note: as in ``begin_leading``.
        unready: whether an earlier recovery is recorded as begun and not finished: its process died.

    Raises:
        MooringsError: ``store.*``.
    """
    at = store.log_position()
    if known.is_covered_by(at) and not unready:
        return
    error = rewound_error(known, at)
    log.error(error.code, extra={"detail": error.detail, "hint": error.hint})
    spare(error.detail, False)
    recover(store, world, None, now, above=known, note=note)
    spare(error.detail, True)


def recover(
    store: Store,
    world: EngineObservations,
    last: LogPosition | None,
    now: Timestamp,
    above: LogPosition | None = None,
    note: Callable[[LogPosition], None] = lambda _: None,
) -> RecoveredState:
    """Recover a database that was turned back; returns what its records learned.

    Repeating it does no harm.

    Args:
        store: that database; no controller leads from it.
        world: what its records do not know.
        last: how far the replaced database had come; None: unknown, and numbers continue far above.
        now: the time.
        above: the least that the replaced database had come to, if ``last`` is unknown.
        note: as in ``begin_leading``.

    Raises:
        MooringsError: ``store.*``; only numbers were changed.
    """
    saved = store.load_unended()
    started = {
        run.id: found
        for run in saved.runs
        if run.claim is not None or (run.hold is not None and run.hold.claim is not None)
        for found in [world.started(run.id)]
        if found is not None and _since(run, found)
    }
    living = world.living({run.id for run in saved.runs})
    within = tuple(_within(store, living, saved.claims, saved.partitions))
    if above is not None:
        store.advance_to(above)
    raise_numbers(store, world.fenced(), last, now)
    epoch = begin_leading(store, above, note, CONTROLLER_NAME, now)
    learned = RecoveredState(now, epoch, saved.seq, started, within)
    store.commit(epoch, plan_recovery(saved.claims, saved.partitions, saved.runs, learned))
    return learned


def _since(run: Run, found: StartedRun) -> bool:
    """Whether it was started since: an earlier attempt has yielded, and says nothing of the one that waits."""
    if run.state in (RunState.WAITING, RunState.PAUSED):
        return found.attempt >= run.attempt
    return run.state in (RunState.STARTING, RunState.RUNNING, RunState.YIELDING) and found.attempt > run.attempt


def _within(
    store: Store, living: Iterable[LiveRun], claimed: Iterable[Claim], held: Iterable[Partition]
) -> Iterable[UnrecordedRun]:
    """The runs that no record knows and that live in a recorded claim."""
    on = {claim.partition: claim.id for claim in claimed if claim.state in SERVED}
    used = [partition for partition in held if partition.id in on]
    for one in sorted(living, key=lambda living: living.run):
        # By its id alone: its name may have been given to another partition since.
        on_it = [part for part in used if part.id == one.started.partition]
        known = store.get_run(one.run) if on_it else None
        if on_it and (known is None or known.id != one.run):  # else its job has that name
            yield UnrecordedRun(one.run, on[on_it[0].id], one.job, one.engine, one.started, job_size_bytes(one.job))


def raise_numbers(store: Store, fenced: Epoch, last: LogPosition | None, now: Timestamp) -> None:
    """Raise the numbers: otherwise watchers would take new events for old ones, and fences would refuse the leader.

    Args:
        store: a database that was turned back, or begins empty.
        fenced: the epoch of the last leader that engines know of.
        last: how far the replaced database had come; None: unknown, and numbers leap.
        now: the time.
    """
    if last is not None:
        store.advance_to(LogPosition(Seq(last.seq + SEQ_GAP), Epoch(max(last.epoch, fenced))))
        return
    age_s, at = _age_s(now), store.log_position()
    epoch = at.epoch + BLIND_GAP + age_s
    store.advance_to(LogPosition(Seq(at.seq + BLIND_GAP + age_s * BLIND_RATE), Epoch(max(epoch, fenced))))


def _age_s(now: Timestamp) -> int:
    return max(now - ATTEMPT_EPOCH, 0) // SECOND


def plan_recovery(
    claimed: Iterable[Claim], held: Iterable[Partition], unended: Iterable[Run], learned: RecoveredState
) -> Changes:
    """The corrections of the records; the last event has everything that they follow from.

    Args:
        claimed: every claim that has not ended, in the order of ``Store.load``; so are
        held: the partitions,
        unended: and the runs.
        learned: what the records learn.
    """
    learning = _RecordRecovery(claimed, held, learned)
    taken = {within.claim for within in learned.within}
    for run in unended:
        if run.id in learned.started and run.state is RunState.PAUSED:
            learning.pause_again(run, learned.started[run.id])
        elif run.id in learned.started and run.hold is not None:
            learning.stop_started(run)
        elif run.id in learned.started:
            learning.restart(run, learned.started[run.id])
        elif run.claim in taken and run.state is RunState.STARTING:
            learning.wait(run)
    for within in learned.within:
        learning.take(within)
    return learning.changes()


def parse_recovered_state(text: str) -> RecoveredState:
    """What the records learned, from the event.

    Raises:
        MooringsError: ``log.unreadable``.
    """
    try:
        return from_plain(RecoveredState, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise MooringsError(
            "log.unreadable",
            f"what a database that was turned back had to learn cannot be read: {error!s:.200}",
            hint="it was written by another release; replay it with that one",
        ) from error


class _RecordRecovery:
    """The records, with their corrections so far."""

    def __init__(self, claimed: Iterable[Claim], held: Iterable[Partition], learned: RecoveredState) -> None:
        self._before = {claim.id: claim for claim in claimed}
        self._held = {partition.id: partition for partition in held}
        self._claims = dict(self._before)
        self._partitions = dict(self._held)
        self._learned = learned
        self._now = learned.now
        self._changes = Changes()

    def restart(self, run: Run, started: StartedRun) -> None:
        """It runs, or has ended since: its first observation says so. Its claim holds what it is on, or is useless."""
        assert run.claim is not None
        waiting = run
        if run.state is not RunState.WAITING:
            running = run if run.state is not RunState.STARTING else runs.step(run, RunEvent.STARTED, self._now)
            waiting = runs.requeue_yielded(running, self._now)
        running = runs.step(replace(waiting, attempt=started.attempt), RunEvent.PARTITION_READY, self._now)
        running = runs.with_start_time(runs.step(running, RunEvent.STARTED, self._now), started.since or self._now)
        self._changes.runs.append((running, ExpectedVersion(run.version)))
        self._record_event("run.started", run=run.id, claim=run.claim, of=ownership_of_run(run))
        claim = self._claims.get(run.claim)
        if claim is None:
            return
        partition = self._partitions.get(claim.partition) if claim.partition is not None else None
        if claim.state in SERVED and started.is_on(partition):
            self._ready(claim)
        else:
            self._served(claim)

    def pause_again(self, run: Run, started: StartedRun) -> None:
        """It was resumed since, in a claim that no record has: it saves and stops, and can then be resumed."""
        assert run.pause is not None
        assert run.claim is not None
        waiting = runs.apply_resume(replace(run, attempt=started.attempt), run.claim, None, self._now)
        starting = runs.step(waiting, RunEvent.PARTITION_READY, self._now)
        yielding = runs.step(starting, RunEvent.YIELD, self._now)
        pausing = runs.begin_pause(yielding, replace(run.pause, asked_at=self._now))
        self._changes.runs.append((pausing, ExpectedVersion(run.version)))
        self._record_event("run.pausing", run=run.id, claim=run.claim, of=ownership_of_run(run))

    def stop_started(self, run: Run) -> None:
        """The runs that it waits for have ended since, and it was started in a claim that no record has: it stops."""
        why = "the database was turned back to before it could start"
        self._changes.runs.append((runs.step(run, RunEvent.STOP, self._now, why), ExpectedVersion(run.version)))
        self._record_event("run.stopping", run=run.id, claim=None, of=ownership_of_run(run))

    def wait(self, run: Run) -> None:
        """Nothing is left of its start, and another run is on its claim now: it must not start beside that one."""
        waiting = runs.requeue_yielded(runs.step(run, RunEvent.STARTED, self._now), self._now)
        self._changes.runs.append((waiting, ExpectedVersion(run.version)))
        self._record_event("run.requeued", run=run.id, claim=run.claim, of=ownership_of_run(run))

    def take(self, within: UnrecordedRun) -> None:
        """Record it again, within its claim, with that claim's subject."""
        claim, started = self._claims[within.claim], within.started
        run = Run(
            id=within.run,
            job=summarize_job(within.job, within.body_bytes),
            engine=within.engine,
            subject=claim.subject,
            claim=claim.id,
            state=RunState.WAITING,
            created_at=started.since or self._now,
            within=True,
            labels=dict(sorted(within.job.labels.items())),
            attempt=started.attempt,
        )
        running = runs.step(runs.step(run, RunEvent.PARTITION_READY, self._now), RunEvent.STARTED, self._now)
        running = replace(runs.with_start_time(running, started.since or self._now), version=run.version)
        self._changes.runs.append((running, ExpectedVersion(None)))
        self._changes.jobs[run.id] = within.job
        self._record_event("run.started", run=run.id, claim=claim.id, of=ownership_of_run(run))
        self._ready(claim)

    def _ready(self, claim: Claim) -> None:
        """A run was started on its partition, so that was ACTIVE: creating it again might fail, and end the run.

        If it is gone, listings will show that.
        """
        if claim.partition is not None:
            self._active(self._partitions[claim.partition])
        if claim.state is ClaimState.GRANTED:
            self._claims[claim.id] = claims.step(claim, ClaimEvent.READY, self._now)
            self._record_claim_event("claim.ready", claim)

    def _active(self, partition: Partition) -> None:
        if partition.state in (PartitionState.PROVISIONING, PartitionState.RESETTING):
            moved = partitions.step(partition, PartitionEvent.ACTIVE, self._now)
            self._partitions[partition.id] = moved
            claim = self._claims.get(partition.claim)
            self._record_event(
                "partition.active",
                claim=partition.claim,
                partition=partition.id,
                pool=partition.pool,
                of=ownership_of(claim) if claim is not None else UNOWNED,
            )

    def _served(self, claim: Claim) -> None:
        """Release it: its run has its devices elsewhere, so this claim's would be unused."""
        if claim.state is ClaimState.RELEASING:
            return
        why = Reason("claim.released", _WHY)
        released = self._claims[claim.id] = claims.step(claim, ClaimEvent.RELEASE, self._now, why)
        name = "claim.cancelled" if released.is_ended else "claim.releasing"
        self._record_claim_event(name, claim, why=_WHY)
        partition = self._partitions.get(claim.partition) if claim.partition is not None else None
        if partition is None and not released.is_ended:  # it needs no devices, or they are free by now
            self._claims[claim.id] = claims.step(released, ClaimEvent.FREED, self._now, why)
            self._record_claim_event("claim.released", claim)
        elif partition is not None and partition.state is not PartitionState.REMOVING:
            removing = partitions.step(partition, PartitionEvent.REMOVE, self._now, _WHY)
            self._partitions[partition.id] = removing

    def changes(self) -> Changes:
        """The changes to save."""
        for ident in self._held:
            # A reset was done, or never will be: by now it could wipe a running job. Listings will show it.
            if self._partitions[ident].state is PartitionState.RESETTING:
                self._active(self._partitions[ident])
        for claim, before in self._before.items():
            changed = self._claims[claim]
            changed = changed if changed.is_ended else _skip_attempts(changed, self._now, self._learned.epoch)
            self._changes.claims.append((changed, ExpectedVersion(before.version)))
        for ident, partition in self._held.items():
            if self._partitions[ident] != partition:
                self._changes.partitions.append((self._partitions[ident], ExpectedVersion(partition.version)))
        # A job's environment and folder stay out of the log, as in a turn's: it is archived for long (law 10).
        within = [replace(one, job=replace(one.job, environment={}, workdir="")) for one in self._learned.within]
        payload = to_plain(replace(self._learned, within=tuple(within)))
        assert isinstance(payload, dict)
        self._changes.events.append(Event(name=REWIND_EVENT, at=self._now, data=canonical_json(payload)))
        return self._changes

    def _record_claim_event(self, name: str, claim: Claim, why: str = "") -> None:
        of = ownership_of(claim)
        self._record_event(name, claim=claim.id, partition=claim.partition, pool=claim.pool, why=why, of=of)

    def _record_event(
        self,
        name: str,
        *,
        claim: str | None = None,
        run: str | None = None,
        partition: str | None = None,
        pool: str | None = None,
        why: str = "",
        of: Ownership,
    ) -> None:
        data = canonical_json({"why": why}) if why else "{}"
        about = {"claim": claim, "run": run, "partition": partition, "pool": pool}
        event = Event(name=name, at=self._now, data=data, ownership=of, **about)
        self._changes.events.append(event)


def _skip_attempts(claim: Claim, now: Timestamp, epoch: Epoch) -> Claim:
    """The claim, with an attempt that gives its next partition a new id and mark: both contain the attempt.

    The attempt is taken from the clock, because the same copy may be restored twice; if the clock is behind, from the
    leader's epoch, which differs each time.
    """
    age_s = _age_s(now)
    attempt = age_s if age_s > claim.attempt else claim.attempt + ATTEMPT_GAP + epoch % ATTEMPT_GAP
    return replace(claim, attempt=attempt, version=claim.version + 1)
