"""What a database that was turned back must know of the world before a controller leads from it.

Its records are those of an earlier moment, and the world went on: who waited then was served, what was reset then
computes. A controller that took the records at their word would make partitions under ids that exist, reset what a job
uses, start what has run, and tell new events under numbers that were told. So whoever turns a database back, from our
file or with the database's own tools, calls ``make_ready`` on it before the first controller starts.

It is a leader like any other: it raises the epoch, so whoever led before is fenced off, and its changes are one commit.
SQL of its own was refused: it would be a second writer of the records, for two kinds of database.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from moorings.core import claims
from moorings.core.claims import WAITING, Claim, ClaimEvent, ClaimId
from moorings.core.events import Event, canonical
from moorings.core.instants import SECOND, Instant
from moorings.core.partitions import Partition, PartitionState
from moorings.core.reasons import Reason
from moorings.local.fence import read_epoch
from moorings.local.rundir import Survey
from moorings.local.usage import find_started
from moorings.ports.store import Changes, Epoch, Save, Saved, Seq
from moorings.store.sql import SqlStore
from moorings.workloads import runs
from moorings.workloads.runs import Run, RunEvent, RunId, RunState

HOLDER = "moor restore"
SEQ_GAP = 1000  # above the last event that is known to have been told
BLIND_GAP = 1_000_000  # where nobody knows any more how far numbers had come
BLIND_RATE = (
    100  # events a second: the same backup, restored blindly twice, gives other numbers as long as there are less
)
ATTEMPT_GAP = 1000
_BEGIN = Instant(1_577_836_800 * SECOND)  # 2020: seconds since then fit into an attempt's column until 2088
_WHY = "it was served after the moment that was restored: its run has started, on a partition that no record knows"


@dataclass(frozen=True, slots=True)
class Last:
    """How far the replaced database had come."""

    seq: Seq
    epoch: Epoch


def make_ready(store: SqlStore, folder: Path, last: Last | None, now: Instant) -> list[RunId]:
    """Make a database that was turned back fit to be led from; the waiting runs that turned out to have started.

    Done twice it does no harm.

    Args:
        store: that database; nobody leads from it.
        folder: where this installation's runs are, if they are on this machine.
        last: where the replaced database stood; None: nobody knows, and numbers go on far above.
        now: the time.

    Raises:
        MooringsError: ``store.*``; nothing but numbers was changed.
        OSError, UnreadableError: the folder of a run cannot be read.
    """
    saved = store.load()
    waiting = {claim.id for claim in saved.claims if claim.state in WAITING}
    started = {
        run.id: found
        for run in saved.runs
        if run.state is RunState.WAITING and run.claim in waiting
        for found in [find_started(folder, run.id)]
        if found is not None and found.extent.attempt >= run.attempt  # an earlier attempt has yielded
    }
    _rise(store, folder, last, now)
    epoch = store.lead(HOLDER, now)
    store.commit(epoch, _changes(saved, started, now))
    return sorted(started)


def _rise(store: SqlStore, folder: Path, last: Last | None, now: Instant) -> None:
    """Let numbers only ever rise: whoever watches takes new events for old ones else, and fences refuse the leader."""
    fenced = read_epoch(folder)
    if last is not None:
        store.rise(Seq(last.seq + SEQ_GAP), Epoch(max(last.epoch, fenced)))
        return
    age_s = _age_s(now)
    epoch = store.leader().epoch + BLIND_GAP + age_s
    store.rise(Seq(store.last_seq() + BLIND_GAP + age_s * BLIND_RATE), Epoch(max(epoch, fenced)))


def _age_s(now: Instant) -> int:
    return max(now - _BEGIN, 0) // SECOND


def _changes(saved: Saved, started: dict[RunId, Survey], now: Instant) -> Changes:
    changes = Changes()
    served: set[ClaimId] = set()
    for run in saved.runs:
        if run.id in started:
            running = _running(run, started[run.id], now)
            changes.runs.append((running, Save(run.version)))
            changes.events.append(Event(name="run.started", at=now, run=run.id, claim=run.claim))
            if run.claim is not None:
                served.add(run.claim)
    for claim in saved.claims:
        changed = _cancelled(claim, now) if claim.id in served else _apart(claim, now)
        changes.claims.append((changed, Save(claim.version)))
        if changed.ended:
            data = canonical({"why": _WHY})
            changes.events.append(Event(name="claim.cancelled", at=now, claim=claim.id, data=data))
    for partition in saved.partitions:
        if partition.state is PartitionState.RESETTING:
            changes.partitions.append((_not_resetting(partition, now), Save(partition.version)))
            changes.events.append(
                Event(
                    name="partition.active",
                    at=now,
                    claim=partition.claim,
                    partition=partition.id,
                    pool=partition.pool,
                )
            )
    return changes


def _running(run: Run, found: Survey, now: Instant) -> Run:
    """The run as one that runs: if it has ended since, the first look at its folder says how."""
    since = found.status.started_at if found.status is not None else None
    berthed = runs.step(replace(run, attempt=found.extent.attempt), RunEvent.BERTH, now)
    return runs.started(runs.step(berthed, RunEvent.STARTED, now), since or now)


def _cancelled(claim: Claim, now: Instant) -> Claim:
    """Its run has what it asked for: a second partition for it would be in nobody's use."""
    return claims.step(claim, ClaimEvent.RELEASE, now, Reason("claim.released", _WHY))


def _apart(claim: Claim, now: Instant) -> Claim:
    """The claim, its next partition unlike all that were made for it since: ids and marks hold the attempt.

    By the clock, for the same backup may be restored twice.
    """
    attempt = max(claim.attempt + ATTEMPT_GAP, _age_s(now))
    return replace(claim, attempt=attempt, version=claim.version + 1)


def _not_resetting(partition: Partition, now: Instant) -> Partition:
    """The reset was done, or never will be: by now a job may compute where it would wipe. Listings tell what is so."""
    return replace(partition, state=PartitionState.ACTIVE, since=now, version=partition.version + 1, reason="")
