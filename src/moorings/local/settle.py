"""The end of a run whose supervisor has gone without recording one.

The kernel has KILLed the tasks with the supervisor; what they had started has become somebody else's child. It is
found by its marks and KILLed, and only when none is left does the run count as ended: its partition is taken away
after that, never before.

Where the records are damaged or gone, a free life lock proves less (somebody may have removed the lock with them), so
a supervisor is looked for by its command line as well, and told to stop: it knows best what belongs to its run.
Leaving such runs in doubt until somebody repairs the folder was refused: it would keep their partitions for ever.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from moorings.core.instants import Timestamp
from moorings.local.processes import (
    Process,
    ProcessTable,
    boot_id,
    descendants,
    has_file_open_below,
    has_variable,
    list_processes,
    open_pidfd,
    read_command_line,
    send_signal,
)
from moorings.local.records import AttemptEnd, SupervisorStatus
from moorings.local.rundir import AttemptExtent, LocalRunFolder, RunRecords
from moorings.workloads.runs import EndReason, EndRecord, RunId, exit_code

KILL_WAIT_S = 5.0
EMPTY_SCANS = 2  # a process may fork past one look at /proc


class FinalizeResult(StrEnum):
    """What became of a run without a recorded end."""

    BUSY = "BUSY"  # another controller is at it
    ALIVE = "ALIVE"  # its supervisor lives
    NEVER_STARTED = "NEVER_STARTED"  # there is an order, and no task was ever started for it: it may be submitted again
    LEFT = "LEFT"  # its supervisor is dead, but processes are left that could not be killed yet
    ENDED = "ENDED"  # its end is recorded


@dataclass(frozen=True, slots=True)
class LastKnownRun:
    """What somebody who looked at a run before still knows of it.

    Attributes:
        extent: its newest attempt.
        status: what its supervisor said of itself.
        witnessed: the supervisor was seen to die just now, so process ids in its status name nobody else yet.
    """

    extent: AttemptExtent | None = None
    status: SupervisorStatus | None = None
    witnessed: bool = False


NOTHING_KNOWN = LastKnownRun()


def finalize_run(
    folder: LocalRunFolder, run: RunId, now: Timestamp, memory: LastKnownRun = NOTHING_KNOWN
) -> FinalizeResult:
    """See what became of a run, and record its end if its supervisor is dead.

    Args:
        folder: the run's folder.
        run: its id.
        now: what is recorded as its end.
        memory: what the caller knows of it.

    Raises:
        OSError: the folder cannot be used.
        UnreadableError: a record in it cannot be read; nothing follows.
    """
    with folder.at_door(wait_s=0) as ours:
        if not ours:
            return FinalizeResult.BUSY
        life = folder.take_life()
        if life is None:
            return FinalizeResult.ALIVE
        try:
            found = folder.survey(remembered=memory.extent)
            return (
                FinalizeResult.NEVER_STARTED if found is None else finalize_locked_run(folder, run, found, now, memory)
            )
        finally:
            os.close(life)


def finalize_locked_run(
    folder: LocalRunFolder, run: RunId, found: RunRecords, now: Timestamp, memory: LastKnownRun = NOTHING_KNOWN
) -> FinalizeResult:
    """As ``settle``, for one who holds door and life and has looked at the records."""
    if found.end is not None:
        return FinalizeResult.ENDED
    if found.damage:
        return _finalize_damaged(folder, run, found, now, memory)
    status = found.status
    if status is None:
        cancel = folder.read_cancel(found.extent.attempt)
        if cancel is None:
            return FinalizeResult.NEVER_STARTED
        _save_end(folder, found.extent, EndReason.CANCELLED, cancel.reason, None, now)
        return FinalizeResult.ENDED
    if status.boot != boot_id():
        detail = "the machine was restarted"
    elif kill_leftovers(folder, run, status, witnessed=memory.witnessed):
        detail = "its supervisor died"
    else:
        return FinalizeResult.LEFT
    _save_end(folder, found.extent, EndReason.LOST, detail, status, now)
    return FinalizeResult.ENDED


def _finalize_damaged(
    folder: LocalRunFolder, run: RunId, found: RunRecords, now: Timestamp, memory: LastKnownRun
) -> FinalizeResult:
    """Nobody can tell any more what was started: everything with a mark of the run goes, and it is lost."""
    status = found.status or memory.status
    if not stop_leftovers(folder, run, status, witnessed=memory.witnessed):
        return FinalizeResult.LEFT
    detail = f"its supervisor is gone, and {'; '.join(found.damage)}"
    _save_end(folder, found.extent, EndReason.LOST, detail, status, now)
    return FinalizeResult.ENDED


def _save_end(
    folder: LocalRunFolder,
    extent: AttemptExtent,
    ending: EndReason,
    detail: str,
    status: SupervisorStatus | None,
    now: Timestamp,
) -> None:
    folder.remove_bindings()
    end = EndRecord(
        ending=ending,
        exit_code=exit_code(ending, None),
        task_codes=(None,) * extent.tasks,
        started_at=status.started_at if status is not None else None,
        ended_at=now,
        detail=detail,
    )
    folder.save_end(AttemptEnd(extent.attempt, end))


def find_supervisors(path: Path, table: ProcessTable, status: SupervisorStatus | None = None) -> list[Process]:
    """Those of ``table`` that supervise the run of that folder, wherever the folder is now.

    Args:
        path: what the folder was called when they were started.
        table: who to look at.
        status: what one said of itself, if that is known.
    """
    module = [b"-m", b"moorings.local.supervisor", os.fsencode(path)]
    known = status.supervisor if status is not None and status.boot == boot_id() else None
    return [
        process
        for process in table.values()
        if read_command_line(process.pid)[2:5] == module
        or (known is not None and (process.pid, process.ticks) == (known.pid, known.ticks))
    ]


def has_processes(folder: LocalRunFolder, run: RunId, status: SupervisorStatus | None = None) -> bool:
    """Whether anything of a run is left, its supervisor included."""
    for _ in range(EMPTY_SCANS):
        table = list_processes()
        if find_supervisors(folder.path, table, status) or find_leftovers(folder, run, status, table, witnessed=False):
            return True
    return False


def stop_leftovers(folder: LocalRunFolder, run: RunId, status: SupervisorStatus | None, *, witnessed: bool) -> bool:
    """Stop what is left of a run whose records are damaged or gone; whether nothing is.

    A supervisor is told to stop its run, grace period and all, for it misses nobody; so this is to be called again
    and again. One that has nobody left and stays (it cannot record the end) is KILLed.

    Args:
        folder: where the run's folder is or was.
        run: its id.
        status: what its supervisor said, if that is known.
        witnessed: see ``LastKnownRun``.
    """
    table = list_processes()
    living = find_supervisors(folder.path, table, status)
    for supervisor in living:
        if descendants([supervisor.pid], table):
            send_signal(supervisor, signal.SIGTERM)
            send_signal(supervisor, signal.SIGCONT)
        else:
            send_signal(supervisor, signal.SIGKILL)
    return not living and kill_leftovers(folder, run, status, witnessed=witnessed)


def kill_leftovers(
    folder: LocalRunFolder,
    run: RunId,
    status: SupervisorStatus | None,
    *,
    witnessed: bool,
    patience_s: float = KILL_WAIT_S,
) -> bool:
    """KILL what is left of a run; whether nothing is.

    Args:
        folder: the run's folder.
        run: its id.
        status: what its dead supervisor said, if that is known.
        witnessed: see ``LastKnownRun``.
        patience_s: how long to try.
    """
    give_up = time.monotonic() + patience_s
    looks = 0
    while looks < EMPTY_SCANS:
        found = find_leftovers(folder, run, status, list_processes(), witnessed=witnessed)
        looks = looks + 1 if not found else 0
        if found and not _kill(found, give_up):
            return False
    return True


def find_leftovers(
    folder: LocalRunFolder, run: RunId, status: SupervisorStatus | None, table: ProcessTable, *, witnessed: bool
) -> list[Process]:
    """Those of ``table`` that belong to a run whose supervisor is dead.

    Marks: the variable every task was given, a log of the run open for writing, the session of a task, and descent
    from a process with a mark. Who has shed all four is not found; while the supervisor lives, it is.
    """
    tasks = status.tasks if status is not None and status.boot == boot_id() else ()
    sessions = {task.pid for task in tasks if (table[task.pid].ticks == task.ticks if task.pid in table else witnessed)}
    logs = folder.log(status.attempt, 0).parent if status is not None else folder.path / "logs"
    marked = {
        pid: process
        for pid, process in table.items()
        if pid != os.getpid()
        and (process.session in sessions or has_variable(pid, "MOORINGS_RUN_ID", run) or has_file_open_below(pid, logs))
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
