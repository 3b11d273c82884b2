"""Recovery of a database that was turned back: what it must know of the outside state, and where this is recorded.

A program that turns a database back, from our file or with the database's own tools, calls ``recover`` on it before the
first controller starts (``controller.rewind_recovery`` says why). Without that call (a lagging standby was promoted), a
controller finds out before it leads (``recover_if_rewound``), by the high-water mark.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from pathlib import Path

from moorings.app.folders import PROTECT_FILE, RUNS, replace_private_file
from moorings.controller import rewind_recovery as readying
from moorings.controller.rewind_recovery import EngineObservations, LiveRun, RecoveredState, StartedRun
from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp
from moorings.engines.fence import EPOCH_FILE, read_epoch
from moorings.files import fsync_path
from moorings.local.live_runs import RunTrace, find_started, list_live_runs
from moorings.local.records import RecordUnreadableError
from moorings.ports.store import LogPosition, Store
from moorings.store.log_position import LogPositionFile
from moorings.workloads.runs import RunId

log = logging.getLogger("moorings.controller")

ENGINE = "local"  # its runs have folders
INSTALLATION_FILE = ".installation"  # in the folder of the runs: their installation
_NEW = "its database has been led from another one: a copy of it, or a standby that was promoted, cannot be told apart"


def prepare_to_lead(store: Store, folder: Path, runs: Path | None, mark: LogPositionFile, now: Timestamp) -> None:
    """Check that a controller may lead from a database; recover one that was turned back.

    If it was turned back, or if that is unknown (a folder that is new to it), partitions without a record are left
    alone from now on, until an admin has decided (``moor restore --finish``).

    Args:
        store: the database; no other controller leads from it.
        folder: of the installation.
        runs: the folder of its runs; None: it has none on this machine.
        mark: the known position of its log.
        now: the time.

    Raises:
        MooringsError: ``store.*``; ``config.invalid``: a folder is unusable, or is not that of its runs.
    """
    known, at = mark.read(), store.log_position()
    try:
        if runs is not None:
            _check_runs(store.installation(), folder, runs, led=bool(at.epoch), known=known is not None)
        if known is None:
            # The last release recorded only the epoch of the last leader.
            ours = not at.epoch or (runs is not None and at.epoch == read_epoch(runs))
            if not ours and protection_reason(folder) is None:
                log.warning("store.past_unknown", extra={"detail": f"{folder} has no high-water mark, and {_NEW}"})
                protect_partitions(folder, _NEW)
        else:
            _recover_if_rewound(store, folder, runs or folder / RUNS, mark, known, now)
        if runs is not None:
            _mark_runs_folder(store.installation(), runs)
    except OSError as error:
        raise MooringsError("config.invalid", f"the folder {runs or folder} cannot be used: {error}") from error
    mark.record_blocking(store.log_position())


def _check_runs(installation: str, folder: Path, runs: Path, *, led: bool, known: bool) -> None:
    """Check that the folder has this installation's runs: with another one all of them would be taken for lost.

    Raises:
        MooringsError: ``config.invalid``.
    """
    file = runs / INSTALLATION_FILE
    text = file.read_text(encoding="ascii", errors="replace").strip() if file.exists() else ""
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


def _mark_runs_folder(installation: str, runs: Path) -> None:
    """Put this installation's mark into the folder of the runs."""
    runs.mkdir(mode=0o700, parents=True, exist_ok=True)
    (runs / EPOCH_FILE).touch(mode=0o600)
    file = runs / INSTALLATION_FILE
    if not file.exists() or not file.stat().st_size:  # a writer that died left it empty
        file.touch(mode=0o600)
        file.write_text(installation + "\n", encoding="ascii")


def _recover_if_rewound(
    store: Store, folder: Path, runs: Path, mark: LogPositionFile, known: LogPosition, now: Timestamp
) -> None:
    def note(why: str, ready: bool) -> None:
        try:
            protect_partitions(folder, why, ready=ready)
        except OSError as error:
            raise MooringsError("config.invalid", f"the folder {folder} cannot be used: {error}") from error

    try:
        readying.recover_if_rewound(
            store, known, _local_runs(runs), now, note, mark.record_blocking, unready=_is_recovery_pending(folder)
        )
    except (OSError, RecordUnreadableError) as failed:
        raise MooringsError(
            "config.invalid",
            f"what runs in {runs} cannot be told, and the database was turned back: {failed}",
            hint="fix the folder: the controller cannot start until it can list the runs",
        ) from failed


def advance_numbers(store: Store, runs: Path, now: Timestamp) -> None:
    """Raise the numbers of events and leaders far above all earlier ones, for a new database.

    Raises:
        OSError: the numbers of earlier leaders cannot be read.
    """
    readying.raise_numbers(store, read_epoch(runs), None, now)


def protect_partitions(folder: Path, why: str, *, ready: bool = True) -> None:
    """From now on leave partitions without a record alone, and keep their devices reserved.

    Args:
        folder: of the installation.
        why: for people.
        ready: whether the database has been recovered; otherwise that is repeated if this process dies meanwhile.

    Raises:
        OSError: it cannot be recorded.
    """
    replace_private_file(folder / PROTECT_FILE, json.dumps({"why": why, "ready": ready}) + "\n")
    fsync_path(folder)


def protection_reason(folder: Path) -> str | None:
    """Why partitions without a record are left alone; None: they are not.

    Raises:
        OSError: it cannot be read.
    """
    if not (folder / PROTECT_FILE).exists():
        return None
    return str(_read_protection(folder).get("why", "a backup was restored"))


def _is_recovery_pending(folder: Path) -> bool:
    return _read_protection(folder).get("ready") is False


def _read_protection(folder: Path) -> dict[str, object]:
    try:
        note = json.loads((folder / PROTECT_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def recover(store: Store, folder: Path, last: LogPosition | None, now: Timestamp) -> RecoveredState:
    """``controller.turned_back.recover``, with the runs' folder as the source for the outside state.

    Raises:
        MooringsError: ``store.*``; only numbers were changed.
        OSError, RecordUnreadableError: the folder of a run cannot be read.
    """
    return readying.recover(store, _local_runs(folder), last, now)


def _local_runs(runs: Path) -> EngineObservations:
    def started(run: RunId) -> StartedRun | None:
        found = find_started(runs, run)
        return _started(found) if found is not None else None

    def alive(known: Collection[RunId]) -> list[LiveRun]:
        return [LiveRun(order.run, order.job, ENGINE, _started(found)) for order, found in list_live_runs(runs, known)]

    return EngineObservations(started, alive, lambda: read_epoch(runs))


def _started(found: RunTrace) -> StartedRun:
    order = found.order
    if order is None or order.attempt != found.attempt:
        return StartedRun(found.attempt, found.since)
    return StartedRun(found.attempt, found.since, order.partition, order.binding.partition)
