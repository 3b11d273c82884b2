"""Which partitions this machine's processes use, as the runs' own folders tell: also of runs that no record knows.

After a backup was restored, jobs may run whose claims were made since. The database does not know them, but their
folders and supervisors do, and a partition under a living job is never removed (law 3).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

from moorings.local.records import RecordDamagedError, RecordUnreadableError
from moorings.local.rundir import LocalRunFolder, RunRecords
from moorings.local.settle import has_processes
from moorings.ports.engine import RunSubmission
from moorings.workloads.runs import RunId

ATTEMPT_MAX = 2**31 - 1  # of the database's column


def partitions_in_use(runs: Path) -> frozenset[str]:
    """Names of the partitions of runs that have not ended.

    Raises:
        OSError, UnreadableError: it cannot be told; nothing follows, and nothing may be removed.
    """
    return frozenset(order.binding.partition for order, _ in list_live_runs(runs)) - {""}


def list_live_runs(runs: Path, known: Collection[RunId] = ()) -> list[tuple[RunSubmission, RunRecords]]:
    """The runs that have not ended, but for those that are ``known``: what was ordered, and how each stands.

    Raises:
        OSError, UnreadableError: it cannot be told.
    """
    found = []
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(runs)):  # noqa: PTH208 - names are all we need
            folder = LocalRunFolder.of(runs, RunId(name))
            if name in known:
                continue
            if folder is not None and folder.path.is_dir() and not folder.path.is_symlink():
                found += _live_run(folder, RunId(name))
    return found


def find_started(runs: Path, run: RunId) -> RunRecords | None:
    """What the folder of a run says that was started here; None: it was not.

    Raises:
        OSError, UnreadableError: it cannot be told.
    """
    folder = LocalRunFolder.of(runs, run)
    found = folder.survey() if folder is not None and folder.path.is_dir() else None
    if folder is None or found is None:
        return None
    started = found.status is not None or found.end is not None or found.damage or _is_live(folder, run)
    return found if started else None


def read_last_order(runs: Path, run: RunId) -> RunSubmission | None:
    """What was ordered of a run last; None: nothing was, or it is damaged.

    Raises:
        OSError, UnreadableError: it cannot be told.
    """
    folder = LocalRunFolder.of(runs, run)
    with contextlib.suppress(RecordDamagedError):
        return folder.read_order() if folder is not None else None
    return None


def _live_run(folder: LocalRunFolder, run: RunId) -> list[tuple[RunSubmission, RunRecords]]:
    found = folder.survey()
    if found is None or found.end is not None:
        return []
    try:
        order = _check_order(folder.read_order(), run)
    except RecordDamagedError as error:
        if _is_live(folder, run):  # and nobody can tell on what
            raise RecordUnreadableError(str(error)) from error
        return []
    return [(order, found)] if order is not None and _is_live(folder, run) else []


def _check_order(order: RunSubmission | None, run: RunId) -> RunSubmission | None:
    """An order that may be believed of a run that no record knows: jobs may write there.

    Raises:
        DamagedError: it is another run's, or of no attempt.
    """
    if order is not None and (order.run != run or not 0 <= order.attempt <= ATTEMPT_MAX):
        raise RecordDamagedError(f"the order of run {run} is of {order.run[:40]!r}, attempt {str(order.attempt)[:20]}")
    return order


def _is_live(folder: LocalRunFolder, run: RunId) -> bool:
    """Whether a supervisor of the run lives, or anything else of it."""
    with folder.at_door(wait_s=0) as ours:
        if not ours:
            return True  # somebody is at it at this moment
        life = folder.take_life()
        if life is None:
            return True
        try:
            return has_processes(folder, run)
        finally:
            os.close(life)
