"""What a database that was turned back must know of the world before a controller leads from it.

Its records are those of an earlier moment, and the world went on: who waited then was served, what was reset then
computes. A controller that took the records at their word would make partitions under ids that exist, reset what a job
uses, start what has run, and tell new events under numbers that were told. So whoever turns a database back, from our
file or with the database's own tools, calls ``make_ready`` on it before the first controller starts. Where nobody said
a word (a standby that lagged was promoted), a controller finds out by itself before it leads (``take_up``), by the
high-water mark.

It is a leader like any other: it raises the epoch, so whoever led before is fenced off, and its changes are one commit.
SQL of its own was refused: it would be a second writer of the records, for two kinds of database.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

from moorings.app.folders import RESTORED, RUNS, write_private
from moorings.app.high_water import HighWaterMark
from moorings.core import claims
from moorings.core.claims import WAITING, Claim, ClaimEvent, ClaimId
from moorings.core.errors import MooringsError
from moorings.core.events import Event, canonical
from moorings.core.instants import SECOND, Instant
from moorings.core.partitions import Partition, PartitionState
from moorings.core.reasons import Reason
from moorings.local.fence import EPOCH_FILE, read_epoch
from moorings.local.records import UnreadableError
from moorings.local.rundir import Survey, sync_folder
from moorings.local.usage import find_started
from moorings.ports.store import Changes, Epoch, HighWater, Save, Saved, Seq, Store, turned_back
from moorings.workloads import runs
from moorings.workloads.runs import Run, RunEvent, RunId, RunState

log = logging.getLogger("moorings.controller")

HOLDER = "moor restore"
SEQ_GAP = 1000  # above the last event that is known to have been told
BLIND_GAP = 1_000_000  # where nobody knows any more how far numbers had come
BLIND_RATE = (
    100  # events a second: the same backup, restored blindly twice, gives other numbers as long as there are less
)
ATTEMPT_GAP = 1000
INSTALLATION_FILE = ".installation"  # in the folder of the runs: whose they are
_NEW = "its database has been led from another one: a copy of it, or a standby that was promoted, cannot be told apart"
_BEGIN = Instant(1_577_836_800 * SECOND)  # 2020: seconds since then fit into an attempt's column until 2088
_WHY = "it was served after the moment that was restored: its run has started, on a partition that no record knows"


def take_up(store: Store, folder: Path, runs: Path | None, mark: HighWaterMark, now: Instant) -> None:
    """See that a database may be led from, before a controller does; one that went back is made ready.

    Where it went back, or where nobody can know (a folder that is new to it), partitions that its records do not know
    are left alone from now on, until an admin has decided (``moor restore --finish``).

    Args:
        store: the database; nobody else leads from it.
        folder: of the installation.
        runs: the folder of its runs; None: it has none on this machine.
        mark: how far it is known to have come.
        now: the time.

    Raises:
        MooringsError: ``store.*``; ``config.invalid``: a folder cannot be used, or is not that of its runs.
    """
    known, at = mark.known(), store.high_water()
    try:
        if runs is not None:
            _check_runs(store.installation(), folder, runs, led=bool(at.epoch), known=known is not None)
        if known is None:
            # What the release before wrote down is the epoch of the last leader.
            ours = not at.epoch or (runs is not None and at.epoch == read_epoch(runs))
            if not ours and why_spared(folder) is None:
                log.warning("store.past_unknown", extra={"detail": f"{folder} has no high-water mark, and {_NEW}"})
                spare(folder, _NEW)
        elif not known.is_reached_by(at) or _unready(folder):
            _make_it_ready(store, folder, runs, known, at, now)
        if runs is not None:
            _know_again(store.installation(), runs)
    except OSError as error:
        raise MooringsError("config.invalid", f"the folder {runs or folder} cannot be used: {error}") from error
    mark.keep(store.high_water())


def _check_runs(installation: str, folder: Path, runs: Path, *, led: bool, known: bool) -> None:
    """See that the folder is that of this installation's runs: with another one all of them would be taken for lost.

    Raises:
        MooringsError: ``config.invalid``.
    """
    whose = runs / INSTALLATION_FILE
    text = whose.read_text(encoding="ascii", errors="replace").strip() if whose.exists() else ""
    if text not in ("", installation):
        raise MooringsError(
            "config.invalid",
            f"{runs} has the runs of installation {text[:40]!r}, and the database is of {installation}",
            hint="each installation has a folder of its own for its runs: see the setting 'runs'",
        )
    there = (runs / EPOCH_FILE).exists()
    if led and not there and (known or runs != folder / RUNS):
        raise MooringsError(
            "config.invalid",
            f"{runs} is not the folder in which this installation's runs are",
            hint="is its disk mounted, and the setting 'runs' right? Who moves it takes the hidden files along. If the "
            f"runs are lost for good: touch {runs / EPOCH_FILE}",
        )


def _know_again(installation: str, runs: Path) -> None:
    """Leave in the folder of the runs by what it is known."""
    runs.mkdir(mode=0o700, parents=True, exist_ok=True)
    (runs / EPOCH_FILE).touch(mode=0o600)
    whose = runs / INSTALLATION_FILE
    if not whose.exists() or not whose.stat().st_size:  # who died as he wrote it left it empty
        whose.touch(mode=0o600)
        whose.write_text(installation + "\n", encoding="ascii")


def _make_it_ready(
    store: Store, folder: Path, runs: Path | None, known: HighWater, at: HighWater, now: Instant
) -> None:
    error = turned_back(known, at)
    log.error(error.code, extra={"detail": error.detail, "hint": error.hint})
    spare(folder, error.detail, ready=False)
    try:
        make_ready(store, runs or folder / RUNS, None, now, above=known)
    except (OSError, UnreadableError) as failed:
        raise MooringsError(
            "config.invalid",
            f"what runs in {runs} cannot be told, and the database was turned back: {failed}",
            hint="mend the folder: nothing is decided before the records know what runs",
        ) from failed
    spare(folder, error.detail)


def rise_blindly(store: Store, runs: Path, now: Instant) -> None:
    """Number events and leaders far above all that were, wherever they were counted: for a database that begins anew.

    Raises:
        OSError: it cannot be read how far leaders had come.
    """
    _rise(store, runs, None, now)


def spare(folder: Path, why: str, *, ready: bool = True) -> None:
    """From now on leave partitions alone that no record knows, and give their devices to nobody.

    Args:
        folder: of the installation.
        why: for people.
        ready: whether the database was made ready; else that is done again, should this process die meanwhile.

    Raises:
        OSError: that cannot be written down.
    """
    write_private(folder / RESTORED, json.dumps({"why": why, "ready": ready}) + "\n")
    sync_folder(folder)


def why_spared(folder: Path) -> str | None:
    """Why partitions are left alone that no record knows; None: they are not.

    Raises:
        OSError: it cannot be read.
    """
    if not (folder / RESTORED).exists():
        return None
    return str(_note(folder).get("why", "a backup was restored"))


def _unready(folder: Path) -> bool:
    return _note(folder).get("ready") is False


def _note(folder: Path) -> dict[str, object]:
    try:
        note = json.loads((folder / RESTORED).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def make_ready(
    store: Store, folder: Path, last: HighWater | None, now: Instant, above: HighWater | None = None
) -> list[RunId]:
    """Make a database that was turned back fit to be led from; the waiting runs that turned out to have started.

    Done twice it does no harm.

    Args:
        store: that database; nobody leads from it.
        folder: where this installation's runs are, if they are on this machine.
        last: how far the replaced database had come; None: nobody knows, and numbers go on far above.
        now: the time.
        above: the least that the replaced database had come to, where ``last`` is not known.

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
    if above is not None:
        store.rise(above)
    _rise(store, folder, last, now)
    epoch = store.lead(HOLDER, now)
    store.commit(epoch, _changes(saved, started, now))
    return sorted(started)


def _rise(store: Store, folder: Path, last: HighWater | None, now: Instant) -> None:
    """Let numbers only ever rise: whoever watches takes new events for old ones else, and fences refuse the leader."""
    fenced = read_epoch(folder)
    if last is not None:
        store.rise(HighWater(Seq(last.seq + SEQ_GAP), Epoch(max(last.epoch, fenced))))
        return
    age_s, at = _age_s(now), store.high_water()
    epoch = at.epoch + BLIND_GAP + age_s
    store.rise(HighWater(Seq(at.seq + BLIND_GAP + age_s * BLIND_RATE), Epoch(max(epoch, fenced))))


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
