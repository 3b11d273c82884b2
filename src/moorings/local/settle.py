"""The end of a run whose supervisor has gone without recording one.

The kernel has KILLed the tasks with the supervisor; what they had started has become somebody else's child. It is
found by its marks and KILLed, and only when none is left does the run count as ended: its partition is taken away
after that, never before.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Sequence
from enum import StrEnum

from moorings.core.instants import Instant
from moorings.local.course import exit_code
from moorings.local.processes import (
    Process,
    Table,
    boot_id,
    descendants,
    everyone,
    has_variable,
    open_pidfd,
    writes_below,
)
from moorings.local.records import End, Status
from moorings.local.rundir import RunFolder
from moorings.ports.engine import StartOrder
from moorings.workloads.runs import Ending, EndRecord, RunId

PATIENCE_S = 5.0
EMPTY_LOOKS = 2  # a process may fork past one look at /proc


class Verdict(StrEnum):
    """What became of a run without a recorded end."""

    BUSY = "BUSY"  # another controller is at it
    ALIVE = "ALIVE"  # its supervisor lives
    NEVER_STARTED = "NEVER_STARTED"  # there is an order, and no task was ever started for it: it may be submitted again
    LEFT = "LEFT"  # its supervisor is dead, but processes are left that could not be killed yet
    ENDED = "ENDED"  # its end is recorded


def settle(folder: RunFolder, run: RunId, now: Instant, *, witnessed: bool) -> Verdict:
    """See what became of a run, and record its end if its supervisor is dead.

    Args:
        folder: the run's folder.
        run: its id.
        now: what is recorded as its end.
        witnessed: the supervisor was seen to die just now, so process ids in its status name nobody else yet.

    Raises:
        OSError: the folder cannot be used.
        UnreadableError: a record in it cannot be read; nothing follows.
    """
    with folder.at_door(wait_s=0) as ours:
        if not ours:
            return Verdict.BUSY
        life = folder.take_life()
        if life is None:
            return Verdict.ALIVE
        try:
            order = folder.read_order()
            return Verdict.NEVER_STARTED if order is None else settle_dead(folder, order, now, witnessed=witnessed)
        finally:
            os.close(life)


def settle_dead(folder: RunFolder, order: StartOrder, now: Instant, *, witnessed: bool) -> Verdict:
    """As ``settle``, for one who holds door and life and has read the order."""
    if folder.read_end(order.attempt) is not None:
        return Verdict.ENDED
    status = folder.read_status(order.attempt)
    if status is None:
        cancel = folder.read_cancel(order.attempt)
        if cancel is None:
            return Verdict.NEVER_STARTED
        _record(folder, order, Ending.CANCELLED, cancel.reason, None, now)
        return Verdict.ENDED
    if status.boot != boot_id():
        detail = "the machine was restarted"
    elif kill_left(folder, order.run, status, witnessed=witnessed):
        detail = "its supervisor died"
    else:
        return Verdict.LEFT
    _record(folder, order, Ending.LOST, detail, status, now)
    return Verdict.ENDED


def _record(
    folder: RunFolder, order: StartOrder, ending: Ending, detail: str, status: Status | None, now: Instant
) -> None:
    folder.remove_bindings()
    end = EndRecord(
        ending=ending,
        exit_code=exit_code(ending, None),
        task_codes=(None,) * order.job.tasks,
        started_at=status.started_at if status is not None else None,
        ended_at=now,
        detail=detail,
    )
    folder.save_end(End(order.attempt, end))


def kill_left(
    folder: RunFolder, run: RunId, status: Status, *, witnessed: bool, patience_s: float = PATIENCE_S
) -> bool:
    """KILL what is left of a run; whether nothing is.

    Args:
        folder: the run's folder.
        run: its id.
        status: what its dead supervisor said.
        witnessed: see ``settle``.
        patience_s: how long to try.
    """
    give_up = time.monotonic() + patience_s
    looks = 0
    while looks < EMPTY_LOOKS:
        found = left(folder, run, status, everyone(), witnessed=witnessed)
        looks = looks + 1 if not found else 0
        if found and not _kill(found, give_up):
            return False
    return True


def left(folder: RunFolder, run: RunId, status: Status, table: Table, *, witnessed: bool) -> list[Process]:
    """Those of ``table`` that belong to a run whose supervisor is dead.

    Marks: the variable every task was given, a log of the run open for writing, the session of a task, and descent
    from a process with a mark. Who has shed all four is not found; while the supervisor lives, it is.
    """
    sessions = {
        task.pid for task in status.tasks if (table[task.pid].ticks == task.ticks if task.pid in table else witnessed)
    }
    logs = folder.log(status.attempt, 0).parent
    marked = {
        pid: process
        for pid, process in table.items()
        if pid != os.getpid()
        and (process.session in sessions or has_variable(pid, "MOORINGS_RUN_ID", run) or writes_below(pid, logs))
    }
    return [*marked.values(), *(process for process in descendants(marked, table) if process.pid != os.getpid())]


def _kill(found: Sequence[Process], give_up: float) -> bool:
    """KILL them all and wait until they are dead; False if one still is not at ``give_up`` (monotonic seconds)."""
    waiting = select.poll()
    pidfds = set()
    try:
        for process in found:
            pidfd = open_pidfd(process.pid, process.ticks)
            if pidfd is not None:
                pidfds.add(pidfd)
                waiting.register(pidfd, select.POLLIN)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        alive = set(pidfds)
        while alive:
            for pidfd, _ in waiting.poll(max(give_up - time.monotonic(), 0) * 1000):
                waiting.unregister(pidfd)
                alive.discard(pidfd)
            if alive and time.monotonic() >= give_up:
                return False
        return True
    finally:
        for pidfd in pidfds:
            os.close(pidfd)
