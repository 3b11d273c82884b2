"""A database that was turned back is made fit to be led from: what its records must know of the world before.

Its records are those of an earlier moment, and the world went on: who waited then was served, what was reset then
computes. A controller that took the records at their word would make partitions under ids that exist, reset what a job
uses, start what has run, and tell new events under numbers that were told.

It is a leader like any other: it raises the epoch, so whoever led before is fenced off, and its changes are one commit.
SQL of its own was refused: it would be a second writer of the records, for two kinds of database. What is known of the
world, and where it is written down, is the caller's (``app.turned_back``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from moorings.core import claims
from moorings.core.claims import WAITING, Claim, ClaimEvent, ClaimId
from moorings.core.events import Event, canonical
from moorings.core.instants import SECOND, Instant
from moorings.core.partitions import Partition, PartitionState
from moorings.core.reasons import Reason
from moorings.ports.store import Changes, Epoch, HighWater, Save, Saved, Seq, Store, turned_back
from moorings.workloads import runs
from moorings.workloads.runs import RunEvent, RunId, RunState

log = logging.getLogger("moorings.controller")

HOLDER = "moor restore"
SEQ_GAP = 1000  # above the last event that is known to have been told
BLIND_GAP = 1_000_000  # where nobody knows any more how far numbers had come
BLIND_RATE = (
    100  # events a second: the same backup, restored blindly twice, gives other numbers as long as there are less
)
ATTEMPT_GAP = 1000
BEGIN = Instant(1_577_836_800 * SECOND)  # 2020: seconds since then fit into an attempt's column until 2088
_WHY = "it was served after the moment that was restored: its run has started, on a partition that no record knows"


@dataclass(frozen=True, slots=True)
class Started:
    """What is left of a run that was started: at which attempt, and since when it runs, if that is known."""

    attempt: int
    since: Instant | None


@dataclass(frozen=True, slots=True)
class World:
    """What the records of a database that was turned back do not know.

    Attributes:
        started: what is left of a run where it was started; None: it was not.
        fenced: the epoch of the last leader that engines have heard of.
    """

    started: Callable[[RunId], Started | None]
    fenced: Callable[[], Epoch]


def lead(
    store: Store, known: HighWater | None, note: Callable[[HighWater], None], holder: str, now: Instant, url: str = ""
) -> Epoch:
    """Begin to lead, once it is noted that somebody does.

    A database that goes back to before that would give the same epoch to the next leader: nobody could tell the two
    apart, and whoever led before would not be refused.

    Args:
        store: the database.
        known: how far it had come when it was looked at last.
        note: returns when it is known, whatever becomes of the database, how far that has come.
        holder: the leader's name.
        now: the time.
        url: where it can be reached.

    Raises:
        MooringsError: ``store.*``; ``store.turned_back``: it went back since it was looked at.
    """
    epoch = store.lead(holder, now, url)
    at = store.high_water()
    if known is not None and (epoch <= known.epoch or not known.is_reached_by(at)):
        raise turned_back(known, at)
    note(at)
    return epoch


def make_ready_if_it_went_back(
    store: Store,
    known: HighWater,
    world: World,
    now: Instant,
    spare: Callable[[str, bool], None],
    note: Callable[[HighWater], None],
    *,
    unready: bool,
) -> None:
    """See that nobody leads from a database that has come less far than is known of it before it was made ready.

    Args:
        store: that database; nobody leads from it.
        known: how far it had come.
        world: what its records do not know.
        now: the time.
        spare: writes down why partitions that no record knows are left alone from now on, and whether the database was
            made ready.
        note: as of ``lead``.
        unready: whether it was written down that it went back, and was not made ready: its maker died.

    Raises:
        MooringsError: ``store.*``.
    """
    at = store.high_water()
    if known.is_reached_by(at) and not unready:
        return
    error = turned_back(known, at)
    log.error(error.code, extra={"detail": error.detail, "hint": error.hint})
    spare(error.detail, False)
    make_ready(store, world, None, now, above=known, note=note)
    spare(error.detail, True)


def make_ready(
    store: Store,
    world: World,
    last: HighWater | None,
    now: Instant,
    above: HighWater | None = None,
    note: Callable[[HighWater], None] = lambda _: None,
) -> list[RunId]:
    """Make a database that was turned back fit to be led from; the waiting runs that turned out to have started.

    Done twice it does no harm.

    Args:
        store: that database; nobody leads from it.
        world: what its records do not know.
        last: how far the replaced database had come; None: nobody knows, and numbers go on far above.
        now: the time.
        above: the least that the replaced database had come to, where ``last`` is not known.
        note: as of ``lead``.

    Raises:
        MooringsError: ``store.*``; nothing but numbers was changed.
    """
    saved = store.load()
    started = {
        run.id: found
        for run in saved.runs
        if run.state is RunState.WAITING and run.claim is not None
        for found in [world.started(run.id)]
        if found is not None and found.attempt >= run.attempt  # an earlier attempt has yielded
    }
    if above is not None:
        store.rise(above)
    rise(store, world.fenced(), last, now)
    epoch = lead(store, above, note, HOLDER, now)
    store.commit(epoch, _changes(saved, started, now, epoch))
    return sorted(started)


def rise(store: Store, fenced: Epoch, last: HighWater | None, now: Instant) -> None:
    """Let numbers only ever rise: whoever watches takes new events for old ones else, and fences refuse the leader.

    Args:
        store: a database that was turned back, or begins anew.
        fenced: the epoch of the last leader that engines have heard of.
        last: how far the replaced database had come; None: nobody knows, and numbers leap.
        now: the time.
    """
    if last is not None:
        store.rise(HighWater(Seq(last.seq + SEQ_GAP), Epoch(max(last.epoch, fenced))))
        return
    age_s, at = _age_s(now), store.high_water()
    epoch = at.epoch + BLIND_GAP + age_s
    store.rise(HighWater(Seq(at.seq + BLIND_GAP + age_s * BLIND_RATE), Epoch(max(epoch, fenced))))


def _age_s(now: Instant) -> int:
    return max(now - BEGIN, 0) // SECOND


def _changes(saved: Saved, started: Mapping[RunId, Started], now: Instant, epoch: Epoch) -> Changes:
    changes = Changes()
    waiting = {claim.id for claim in saved.claims if claim.state in WAITING}
    served: set[ClaimId] = set()
    for run in saved.runs:
        if run.id in started:
            starting = runs.step(replace(run, attempt=started[run.id].attempt), RunEvent.BERTH, now)
            if run.claim in waiting:
                # If it has ended since, the first look at it says how.
                starting = runs.started(runs.step(starting, RunEvent.STARTED, now), started[run.id].since or now)
                changes.events.append(Event(name="run.started", at=now, run=run.id, claim=run.claim))
                served.add(run.claim)
            else:  # it is on what its claim was granted, and nobody takes that before its engine was asked
                changes.events.append(Event(name="run.starting", at=now, run=run.id, claim=run.claim))
            changes.runs.append((starting, Save(run.version)))
    for claim in saved.claims:
        changed = _cancelled(claim, now) if claim.id in served else _apart(claim, now, epoch)
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


def _cancelled(claim: Claim, now: Instant) -> Claim:
    """Its run has what it asked for: a second partition for it would be in nobody's use."""
    return claims.step(claim, ClaimEvent.RELEASE, now, Reason("claim.released", _WHY))


def _apart(claim: Claim, now: Instant, epoch: Epoch) -> Claim:
    """The claim, its next partition unlike all that were made for it since: ids and marks hold the attempt.

    By the clock, for the same copy may be put back twice. Where the clock is behind, by the leader's number, which is
    another each time.
    """
    age_s = _age_s(now)
    attempt = age_s if age_s > claim.attempt else claim.attempt + ATTEMPT_GAP + epoch % ATTEMPT_GAP
    return replace(claim, attempt=attempt, version=claim.version + 1)


def _not_resetting(partition: Partition, now: Instant) -> Partition:
    """The reset was done, or never will be: by now a job may compute where it would wipe. Listings tell what is so."""
    return replace(partition, state=PartitionState.ACTIVE, since=now, version=partition.version + 1, reason="")
