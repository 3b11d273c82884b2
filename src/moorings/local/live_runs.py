"""The partitions in use by this machine's processes, from the runs' own folders: also of runs without a record.

After a restore of a backup, jobs may run whose claims were made after the backup. The database does not know them, but
their folders and supervisors do, and a partition under a live job is never removed (law 3).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from moorings.core.model.timestamps import Timestamp
from moorings.local.finalize import has_processes
from moorings.local.records import RecordDamagedError, RecordUnreadableError
from moorings.local.run_folder import LocalRunFolder
from moorings.local.shared_runs import SharedRunRecord, find_live, read_shared_run
from moorings.ports.engine import RunSubmission
from moorings.workloads.runs import RunId

ATTEMPT_MAX = 2**31 - 1  # maximum of the database's column


@dataclass(frozen=True, slots=True)
class RunTrace:
    """What is found of a run that was started.

    Attributes:
        attempt: the newest, as far as that is known.
        since: when it began to run, if that is known.
        order: the newest order; None: there is none, or it is damaged.
    """

    attempt: int
    since: Timestamp | None
    order: RunSubmission | None


def partitions_in_use(runs: Path) -> frozenset[str]:
    """Return the names of the partitions of runs that have not ended.

    Raises:
        OSError, RecordUnreadableError: unknown; conclude nothing, and remove nothing.
    """
    return frozenset(order.binding.partition for order, _ in list_live_runs(runs)) - {""}


def list_live_runs(runs: Path, known: Collection[RunId] = ()) -> list[tuple[RunSubmission, RunTrace]]:
    """Return the runs that have not ended, without ``known`` ones: each one's order and trace.

    Those of a machine that people share are alive if its root daemon says so; of others, that is seen here.

    Raises:
        OSError, RecordUnreadableError: unknown.
    """
    found: list[tuple[RunSubmission, RunTrace]] = []
    shared: list[SharedRunRecord] = []
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(runs)):  # noqa: PTH208 - names are all we need
            folder = LocalRunFolder.find(runs, RunId(name))
            if name in known or folder is None or not folder.path.is_dir() or folder.path.is_symlink():
                continue
            record = read_shared_run(runs, RunId(name))
            if record is not None:
                shared.append(record)
            else:
                found += _live_run(folder, RunId(name))
    return [*found, *((record.order, _shared_trace(record)) for record in find_live(shared))]


def find_started(runs: Path, run: RunId) -> RunTrace | None:
    """Return the trace of a run if it was started here; None: it was not.

    Raises:
        OSError, RecordUnreadableError: unknown.
    """
    folder = LocalRunFolder.find(runs, run)
    if folder is None or not folder.path.is_dir():
        return None
    shared = read_shared_run(runs, run)
    if shared is not None:  # the daemon may have forgotten it: what was ordered counts
        return _shared_trace(shared)
    found = folder.read_records()
    if found is None:
        return None
    if found.status is None and found.end is None and not found.damage and not _is_live(folder, run):
        return None
    order: RunSubmission | None = None
    with contextlib.suppress(RecordDamagedError):
        order = folder.read_order()
    return RunTrace(found.extent.attempt, found.status.started_at if found.status is not None else None, order)


def _shared_trace(record: SharedRunRecord) -> RunTrace:
    return RunTrace(record.order.attempt, record.submitted_at, record.order)


def _live_run(folder: LocalRunFolder, run: RunId) -> list[tuple[RunSubmission, RunTrace]]:
    found = folder.read_records()
    if found is None or found.end is not None:
        return []
    try:
        order = _check_order(folder.read_order(), run)
    except RecordDamagedError as error:
        if _is_live(folder, run):  # and its partition is unknown
            raise RecordUnreadableError(str(error)) from error
        return []
    if order is None or not _is_live(folder, run):
        return []
    since = found.status.started_at if found.status is not None else None
    return [(order, RunTrace(found.extent.attempt, since, order))]


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
