"""Ends a run whose supervisor died without recording the end.

The kernel has KILLed the tasks with the supervisor; the tasks' children have another parent now. They are found by
their marks and KILLed. The run counts as ended when none is left; its partition is removed after that, never before.

Where the records are damaged or missing, a free life lock proves less (it may have been removed with them). So a
supervisor is also searched for by its command line, and gets TERM: it knows best which processes belong to its run.
Leaving such runs in doubt until an admin repairs the folder was refused: they would keep their partitions forever.
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

from moorings.core.model.timestamps import Timestamp
from moorings.engines.containers import RUNTIME_END_S, choose_receivers
from moorings.engines.processes import (
    Process,
    ProcessTable,
    boot_id,
    descendants,
    has_file_open_below,
    has_variable,
    is_in_container,
    list_processes,
    open_pidfd,
    read_command_line,
    send_signal,
)
from moorings.local.records import AttemptEnd, CancelRecord, SupervisorStatus
from moorings.local.run_folder import AttemptExtent, LocalRunFolder, RunRecords
from moorings.workloads.runs import EndReason, EndRecord, RunId, exit_code

KILL_WAIT_S = 5.0
EMPTY_SCANS = 2  # a process may fork during one scan of /proc


class FinalizeResult(StrEnum):
    """The outcome for a run without a recorded end."""

    BUSY = "BUSY"  # another controller works on it
    ALIVE = "ALIVE"  # its supervisor lives
    NEVER_STARTED = "NEVER_STARTED"  # it was submitted, and no task ever started: it may be submitted again
    LEFT = "LEFT"  # its supervisor is dead, but processes are left that could not be killed yet
    ENDED = "ENDED"  # its end is recorded


@dataclass(frozen=True, slots=True)
class LastKnownRun:
    """A caller's earlier observations of a run.

    Attributes:
        extent: its newest attempt.
        status: its supervisor's own record.
        exit_observed: the supervisor was just seen to die, so the process ids in its status are not reused yet.
    """

    extent: AttemptExtent | None = None
    status: SupervisorStatus | None = None
    exit_observed: bool = False


NOTHING_KNOWN = LastKnownRun()


def finalize_run(
    folder: LocalRunFolder, run: RunId, now: Timestamp, memory: LastKnownRun = NOTHING_KNOWN
) -> FinalizeResult:
    """Determine the outcome of a run, and record its end if its supervisor is dead.

    Args:
        folder: the run's folder.
        run: its id.
        now: the time to record as its end.
        memory: the caller's earlier observations.

    Raises:
        OSError: the folder cannot be used.
        RecordUnreadableError: a record in it cannot be read; conclude nothing.
    """
    with folder.hold_submit_lock(wait_s=0) as ours:
        if not ours:
            return FinalizeResult.BUSY
        life = folder.acquire_liveness_lock()
        if life is None:
            return FinalizeResult.ALIVE
        try:
            found = folder.read_records(last_known=memory.extent)
            return (
                FinalizeResult.NEVER_STARTED if found is None else finalize_locked_run(folder, run, found, now, memory)
            )
        finally:
            os.close(life)


def finalize_locked_run(
    folder: LocalRunFolder, run: RunId, found: RunRecords, now: Timestamp, memory: LastKnownRun = NOTHING_KNOWN
) -> FinalizeResult:
    """Like ``finalize_run``, for a caller that holds door and life and has read the records."""
    if found.end is not None:
        return FinalizeResult.ENDED
    if found.damage:
        return _finalize_damaged(folder, run, found, now, memory)
    status = found.status
    if status is None:
        cancel = folder.read(CancelRecord, found.extent.attempt)
        if cancel is None:
            return FinalizeResult.NEVER_STARTED
        _save_end(folder, found.extent, EndReason.CANCELLED, cancel.reason, None, now)
        return FinalizeResult.ENDED
    if status.boot != boot_id():
        detail = "the machine was restarted"
    elif kill_leftovers(folder, run, status, witnessed=memory.exit_observed):
        detail = "its supervisor died"
    else:
        return FinalizeResult.LEFT
    _save_end(folder, found.extent, EndReason.LOST, detail, status, now)
    return FinalizeResult.ENDED


def _finalize_damaged(
    folder: LocalRunFolder, run: RunId, found: RunRecords, now: Timestamp, memory: LastKnownRun
) -> FinalizeResult:
    """Kill every process with a mark of the run, and record it as lost: its records no longer show what was started."""
    status = found.status or memory.status
    if not stop_leftovers(folder, run, status, witnessed=memory.exit_observed):
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
    """Return the processes of ``table`` that supervise the run of that folder, wherever it is now.

    Args:
        path: the folder's path when they were started.
        table: the processes to search.
        status: a supervisor's own record, if known.
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
    """Whether a process of a run is left, including its supervisor."""
    for _ in range(EMPTY_SCANS):
        table = list_processes()
        if find_supervisors(folder.path, table, status) or find_leftovers(folder, run, status, table, witnessed=False):
            return True
    return False


def stop_leftovers(folder: LocalRunFolder, run: RunId, status: SupervisorStatus | None, *, witnessed: bool) -> bool:
    """Stop the remaining processes of a run whose records are damaged or missing; return whether none is left.

    A supervisor gets TERM and stops its run, with the grace period, because it misses no process; so call this again
    and again. A supervisor without children that stays (it cannot record the end) is KILLed.

    Args:
        folder: the current or former folder of the run.
        run: its id.
        status: its supervisor's record, if known.
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
) -> bool:
    """KILL the remaining processes of a run; return whether none is left.

    Args:
        folder: the run's folder.
        run: its id.
        status: its dead supervisor's record, if known.
        witnessed: see ``LastKnownRun``.
    """
    give_up = time.monotonic() + KILL_WAIT_S
    containers_until: float | None = None
    empty_scans = 0
    while empty_scans < EMPTY_SCANS:
        found = find_leftovers(folder, run, status, list_processes(), witnessed=witnessed)
        empty_scans = empty_scans + 1 if not found else 0
        if containers_until is None and any(is_in_container(process.pid) for process in found):
            containers_until = time.monotonic() + RUNTIME_END_S
            give_up = containers_until + KILL_WAIT_S
        if containers_until is not None and time.monotonic() < containers_until:
            first = choose_receivers(found, signal.SIGKILL, is_in_container, runtime_is_late=False)
            _kill(first, containers_until)
            _wait_for_exits(found, containers_until)
        elif found and not _kill(found, give_up):
            return False
    return True


def find_leftovers(
    folder: LocalRunFolder, run: RunId, status: SupervisorStatus | None, table: ProcessTable, *, witnessed: bool
) -> list[Process]:
    """Return the processes of ``table`` that belong to a run whose supervisor is dead.

    Marks: the variable of every task, a log of the run open for writing, the session of a task, and descent from a
    process with a mark. A process that has lost all four is missed; a live supervisor finds it.
    """
    tasks = status.tasks if status is not None and status.boot == boot_id() else ()
    sessions = {task.pid for task in tasks if (table[task.pid].ticks == task.ticks if task.pid in table else witnessed)}
    logs = folder.log_path(status.attempt, 0).parent if status is not None else folder.path / "logs"
    marked = {
        pid: process
        for pid, process in table.items()
        if pid != os.getpid()
        and (process.session in sessions or has_variable(pid, "MOORINGS_RUN_ID", run) or has_file_open_below(pid, logs))
    }
    return [*marked.values(), *(process for process in descendants(marked, table) if process.pid != os.getpid())]


def _kill(found: Sequence[Process], give_up: float) -> bool:
    """KILL them all and wait until they are dead; False if one is still alive at ``give_up`` (monotonic seconds)."""
    return _wait_for_exits(found, give_up, signal.SIGKILL)


def _wait_for_exits(found: Sequence[Process], give_up: float, signum: int = 0) -> bool:
    """Send them a signal, 0 for none, and wait until they are dead; False if one is alive at ``give_up``."""
    waiting = select.poll()
    pidfds = set()
    try:
        for process in found:
            pidfd = open_pidfd(process.pid, process.ticks)
            if pidfd is not None:
                pidfds.add(pidfd)
                waiting.register(pidfd, select.POLLIN)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(pidfd, signum)
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
