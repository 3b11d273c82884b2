"""The partitions in use by this machine's processes, from the runs' own folders: also of runs without a record.

After a restore of a backup, jobs may run whose claims were made after the backup. The database does not know them, but
their folders and supervisors do, and a partition under a live job is never removed (law 3).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

from moorings.local.finalize import has_processes
from moorings.local.records import RecordDamagedError, RecordUnreadableError
from moorings.local.run_folder import LocalRunFolder, RunRecords
from moorings.ports.engine import RunSubmission
from moorings.workloads.runs import RunId

ATTEMPT_MAX = 2**31 - 1  # maximum of the database's column


def partitions_in_use(runs: Path) -> frozenset[str]:
    """Return the names of the partitions of runs that have not ended.

    Raises:
        OSError, RecordUnreadableError: unknown; conclude nothing, and remove nothing.
    """
    return frozenset(order.binding.partition for order, _ in list_live_runs(runs)) - {""}


def list_live_runs(runs: Path, known: Collection[RunId] = ()) -> list[tuple[RunSubmission, RunRecords]]:
    """Return the runs that have not ended, without ``known`` ones: each one's order and records.

    Raises:
        OSError, RecordUnreadableError: unknown.
    """
    found = []
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(runs)):  # noqa: PTH208 - names are all we need
            folder = LocalRunFolder.find(runs, RunId(name))
            if name in known:
                continue
            if folder is not None and folder.path.is_dir() and not folder.path.is_symlink():
                found += _live_run(folder, RunId(name))
    return found


def find_started(runs: Path, run: RunId) -> RunRecords | None:
    """Return the records of a run if it was started here; None: it was not.

    Raises:
        OSError, RecordUnreadableError: unknown.
    """
    folder = LocalRunFolder.find(runs, run)
    found = folder.read_records() if folder is not None and folder.path.is_dir() else None
    if folder is None or found is None:
        return None
    started = found.status is not None or found.end is not None or found.damage or _is_live(folder, run)
    return found if started else None


def read_last_order(runs: Path, run: RunId) -> RunSubmission | None:
    """Return a run's last order; None: there is none, or it is damaged.

    Raises:
        OSError, RecordUnreadableError: unknown.
    """
    folder = LocalRunFolder.find(runs, run)
    with contextlib.suppress(RecordDamagedError):
        return folder.read_order() if folder is not None else None
    return None


def _live_run(folder: LocalRunFolder, run: RunId) -> list[tuple[RunSubmission, RunRecords]]:
    found = folder.read_records()
    if found is None or found.end is not None:
        return []
    try:
        order = _check_order(folder.read_order(), run)
    except RecordDamagedError as error:
        if _is_live(folder, run):  # and its partition is unknown
            raise RecordUnreadableError(str(error)) from error
        return []
    return [(order, found)] if order is not None and _is_live(folder, run) else []


def _check_order(order: RunSubmission | None, run: RunId) -> RunSubmission | None:
    """Check the order of a run without a record: jobs may have written it.

    Raises:
        RecordDamagedError: it is another run's, or has no valid attempt.
    """
    if order is not None and (order.run != run or not 0 <= order.attempt <= ATTEMPT_MAX):
        raise RecordDamagedError(f"the order of run {run} is of {order.run[:40]!r}, attempt {str(order.attempt)[:20]}")
    return order


def _is_live(folder: LocalRunFolder, run: RunId) -> bool:
    """Whether a supervisor or another process of the run lives."""
    with folder.keep_idle() as idle:
        return not idle or has_processes(folder, run)
