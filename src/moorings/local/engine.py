"""The embedded engine, as the controller sees it.

All its state is in the runs' folders, so a new engine after a crash continues from there. Memory only holds a cache,
validated by the files' inodes and times, and one pidfd a live run, which wakes the controller when a supervisor dies.

The supervisor inherits the life lock from the submitting controller. So a crash or a second caller finds no moment
between "submitted" and "supervised" in which the state is ambiguous, and no grace period need be guessed. Doubtful runs
are finalized in a thread, never inside ``observe``. Only for a run without a folder ``observe`` waits for a scan of the
machine's processes, once: nothing else can tell "never submitted" from "its folder was moved".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from moorings.core.errors import MooringsError
from moorings.core.instants import Timestamp, seconds_between
from moorings.engines.looks import wait_for_change
from moorings.engines.orders import (
    log_files_of_tasks,
    not_startable_error,
    parse_signal,
    rejected_error,
    unavailable_error,
)
from moorings.local.fence import FileFence
from moorings.local.logs import TaskLog, read_logs
from moorings.local.processes import boot_id, list_processes, open_pidfd, send_signal
from moorings.local.records import (
    AttemptEnd,
    CancelRecord,
    ProcessIdentity,
    RecordUnreadableError,
    SupervisorStatus,
    YieldRecord,
)
from moorings.local.rundir import AttemptExtent, LocalRunFolder, RecordVersions, RunRecords
from moorings.local.saved import CheckpointScans
from moorings.local.settle import (
    FinalizeResult,
    LastKnownRun,
    finalize_locked_run,
    finalize_run,
    find_supervisors,
    has_processes,
    stop_leftovers,
)
from moorings.local.supervisor import FORWARDED_SIGNAL_MAX, WAKEUP_SIGNAL, forwarding_signal
from moorings.ports.clock import Clock
from moorings.ports.engine import RunSubmission
from moorings.ports.store import Epoch
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import RunId, RunPhase, RunStatus

log = logging.getLogger("moorings.local")

SUBMIT_LOCK_WAIT_S = 10.0
START_WAIT_S = 10.0  # after that a start is reported as accepted, and observed like any other
EXIT_WAIT_S = 10.0  # for a supervisor that has recorded the end, to exit
POLL_S = 1.0
STARTING_POLL_S = 0.1
FINALIZE_RETRY_S = 0.1
CACHED_RUNS_MAX = 10_000
YIELD_S_MIN = 2.0  # minimum time to yield for a late request: half of it for the warning
YIELD_OVERDUE_S = (
    10.0  # seconds past its deadline after which a run that has not yielded is cancelled: its supervisor is older
)

# A supervisor gets the variables that Python needs to start and to read file names as we do, and none of the
# controller's secrets.
_INHERITED = (
    *("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONUTF8", "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE"),
)


def supervisor_command(run: Path, life: int, ready: int, output_bytes_max: int = 0) -> list[str]:
    """Return a supervisor's command; ``-P`` keeps a ``json.py`` in some folder from being imported."""
    words = (run, life, ready, output_bytes_max)
    return [sys.executable, "-P", "-m", "moorings.local.supervisor", *map(str, words)]


@dataclass(slots=True)
class _TrackedRun:
    """The state of one run, as of the files with these stamps."""

    folder: LocalRunFolder
    stamps: RecordVersions
    extent: AttemptExtent
    status: SupervisorStatus | None  # the last undamaged one
    end: AttemptEnd | None
    damage: tuple[str, ...] = ()
    settled: bool = False  # no process is left, so its end counts despite the damage
    pidfd: int | None = None
    held: bool = False  # an earlier entry had a pidfd of its supervisor until just now
    gone: bool = False  # its supervisor is not running (any more)
    witnessed: bool = False  # and we saw it end
    never_started: bool = False
    settle_not_before: float = 0.0  # by the event loop's clock
    settling: asyncio.Task[None] | None = field(default=None, repr=False)


@dataclass(slots=True)
class _RunWithoutRecords:
    """A run without a folder, or with an empty one.

    Attributes:
        known: it had a folder, or processes.
        clear: no process of it is left.
    """

    known: bool
    status: SupervisorStatus | None = None
    clear: bool = False
    clearing: asyncio.Task[None] | None = field(default=None, repr=False)


class LocalEngine:
    """Runs jobs as processes of this machine.

    Args:
        folder: of the runs' folders; made if missing. On a local disk: child processes must inherit locks.
        clock: for waiting, and for ends that no supervisor recorded.
        output_bytes_max: maximum log size of all tasks of a run together; 0: no limit.
    """

    def __init__(self, folder: Path, clock: Clock, output_bytes_max: int = 0) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder.resolve()
        self._clock = clock
        self._output_bytes_max = output_bytes_max
        self._place = _folder_identity(self._folder)
        self._fence = FileFence(self._folder)
        self._watches: dict[RunId, _TrackedRun] = {}
        self._absences: dict[RunId, _RunWithoutRecords] = {}
        self._told: dict[RunId, dict[str, str]] = {}  # last logged detail of a run, by event
        self._looks = CheckpointScans()
        self._news = asyncio.Event()

    @property
    def name(self) -> str:
        return "local"

    @property
    def schedules(self) -> bool:
        return False

    def check(self, job: JobSpec) -> Sequence[str]:
        return ()

    async def fence(self, epoch: Epoch) -> None:
        try:
            await asyncio.to_thread(self._fence.set, epoch, SUBMIT_LOCK_WAIT_S)
        except OSError as error:
            raise unavailable_error(f"{self._folder} cannot be written: {error}") from error

    async def submit(self, order: RunSubmission) -> str:
        folder = LocalRunFolder.of(self._folder, order.run)
        if folder is None:
            raise rejected_error(f"{order.run[:120]!r} cannot be the id of a local run")
        check_launch(order)
        self._absences.pop(order.run, None)
        try:
            await asyncio.to_thread(self._submit, folder, order)
        except (OSError, RecordUnreadableError) as error:
            raise MooringsError(
                "engine.unavailable",
                f"run {order.run} could not be started: {error}",
                hint=f"look at {folder.path}: is the disk full, or a record damaged?",
                retryable=True,
            ) from error
        self._absences.pop(order.run, None)  # observations in the meantime were too early
        self._see(order.run)  # from now on its end wakes ``changed``
        self._news.set()
        return f"{order.run}/{order.attempt}"

    async def observe(self, runs: Sequence[RunId]) -> Sequence[RunStatus]:
        seen = [self._see(run) for run in runs]
        doubtful = [run for run in runs if self._must_look(run)]
        if not doubtful:
            return seen
        for run in doubtful:
            await self._look_for_left(run)
        return [self._see(run) for run in runs]  # all at one moment: an old status must not follow a new submission

    async def cancel(self, run: RunId, reason: str) -> None:
        folder = LocalRunFolder.of(self._folder, run)
        if folder is None:
            return
        self._see(run)
        watch = self._watches.get(run)
        memory = LastKnownRun(watch.extent, watch.status) if watch is not None else LastKnownRun()
        try:
            await asyncio.to_thread(_save_cancel, folder, reason, memory)
        except (OSError, RecordUnreadableError) as error:
            raise MooringsError(
                "engine.unavailable", f"run {run} could not be cancelled: {error}", retryable=True
            ) from error

    async def ask_to_yield(self, run: RunId, attempt: int, reason: str, by: Timestamp) -> None:
        folder = LocalRunFolder.of(self._folder, run)
        if folder is None:
            return
        self._see(run)
        watch = self._watches.get(run)
        memory = LastKnownRun(watch.extent, watch.status) if watch is not None else LastKnownRun()
        left_s = max(seconds_between(self._clock.now(), by), YIELD_S_MIN)
        order = YieldRecord(attempt, reason, time.monotonic() + left_s)
        try:
            await asyncio.to_thread(_save_yield, folder, order, memory)
        except (OSError, RecordUnreadableError) as error:
            raise unavailable_error(f"run {run} could not be asked to yield: {error}") from error

    async def saved_at(self, folder: str) -> Timestamp | None:
        return await self._looks.saved_at(folder, self._clock.now())

    async def signal(self, run: RunId, signal_name: str) -> None:
        signum = parse_signal(signal_name, FORWARDED_SIGNAL_MAX).value
        self._see(run)
        watch = self._watches.get(run)
        running = watch is not None and watch.end is None and watch.status is not None
        if watch is None or watch.status is None or not running or watch.status.phase is not RunPhase.RUNNING:
            raise MooringsError("run.not_running", f"run {run} has no processes")
        try:
            if not _signal_supervisor(watch.status, forwarding_signal(signum)):
                raise MooringsError("run.not_running", f"run {run} is ending")
        except OSError as error:
            raise unavailable_error(f"run {run}: {error}") from error

    async def logs(self, run: RunId, *, task: int | None, follow: bool) -> AsyncIterator[bytes]:
        """Yield the output of a run, attempt by attempt; nothing, at once, for a run that was never submitted.

        Raises:
            MooringsError: ``run.unknown`` (its folder is gone), ``engine.rejected``, ``engine.unavailable``.
        """
        phase = (await self.observe([run]))[0].phase
        self._refuse_if_gone(run)
        if phase is RunPhase.ABSENT:
            return
        if run not in self._watches:
            raise unavailable_error(f"run {run} cannot be looked at now")
        watch = self._watches[run]
        attempt, tasks = watch.extent.attempt, watch.extent.tasks
        logs = [
            TaskLog(path, prefix, complete=of < attempt)
            for of in (*watch.folder.earlier(attempt), attempt)
            for path, prefix in log_files_of_tasks(run, tasks, task, partial(watch.folder.log, of))
        ]

        async def ended() -> bool:
            phase = self._see(run).phase
            self._refuse_if_gone(run)
            known = self._watches.get(run)
            return phase in (RunPhase.ENDED, RunPhase.ABSENT) or (known is not None and known.extent.attempt != attempt)

        try:
            async for chunk in read_logs(logs, ended=ended if follow else None, pause=self._clock.sleep):
                yield chunk
        except OSError as error:
            self._see(run)  # the folder may have vanished before the read
            self._refuse_if_gone(run)
            raise unavailable_error(f"the output of run {run} cannot be read: {error}") from error

    async def changed(self) -> None:
        # A run that another controller has just started has no supervisor yet to wait for.
        starting = any(
            w.status is None and w.end is None and not w.never_started and not w.damage for w in self._watches.values()
        )
        await wait_for_change(self._news, self._clock, STARTING_POLL_S if starting else POLL_S)

    async def close(self) -> None:
        settling = [watch.settling for watch in self._watches.values() if watch.settling is not None]
        settling += [absence.clearing for absence in self._absences.values() if absence.clearing is not None]
        for watch in self._watches.values():
            self._let_go(watch)
        self._watches.clear()
        self._absences.clear()
        await asyncio.gather(*settling, return_exceptions=True)

    # -- submitting (in a thread)

    def _submit(self, folder: LocalRunFolder, order: RunSubmission) -> None:
        if folder.survey() is None and has_processes(folder, order.run) and folder.survey() is None:
            raise not_startable_error(order, "its folder is gone, but processes of it are left")
        folder.make()
        with folder.at_door(wait_s=SUBMIT_LOCK_WAIT_S) as ours:
            if not ours:
                raise not_startable_error(order, "another controller is at it")
            held = folder.survey()
            if held is not None and held.extent.attempt >= order.attempt and held.status is not None:
                return  # it was started: ``observe`` reports its state
            leaving = held is not None and held.end is not None
            life = folder.take_life(wait_s=EXIT_WAIT_S if leaving else 0)
            if life is None:
                if held is None or held.extent.attempt < order.attempt:
                    raise not_startable_error(order, "an earlier attempt has not ended")
                return
            try:
                if self._may_start(folder, held, order):
                    with self._fence.passed(order.epoch, SUBMIT_LOCK_WAIT_S):
                        folder.save_order(order)
                        _launch(folder, order, life, self._output_bytes_max)
            finally:
                os.close(life)  # only our copy: a started supervisor holds the lock now

    def _may_start(self, folder: LocalRunFolder, held: RunRecords | None, order: RunSubmission) -> bool:
        """With the life lock held: whether the submission never started, and no process of an earlier one is left."""
        if held is None:
            return True
        verdict = finalize_locked_run(folder, order.run, held, self._clock.now())
        attempt = held.extent.attempt
        if verdict is FinalizeResult.LEFT:
            raise not_startable_error(order, f"processes of attempt {attempt} are left")
        return attempt < order.attempt or (attempt == order.attempt and verdict is FinalizeResult.NEVER_STARTED)

    # -- observing

    def _see(self, run: RunId) -> RunStatus:
        folder = LocalRunFolder.of(self._folder, run)
        if folder is None:
            return RunStatus(run, RunPhase.ABSENT)
        try:
            stamps = folder.stamps()
            order, status, _, end = stamps
            if order is None and status is None and end is None:
                return RunStatus(run, self._without_records(run, folder))
            self._absences.pop(run, None)
            return self._sighting(run, self._watch(run, folder, stamps))
        except (OSError, RecordUnreadableError) as error:
            hint = f"make {folder.path} readable and writable for the controller"
            self._tell(run, "run.unreadable", str(error), hint)
            return RunStatus(run, RunPhase.UNKNOWN)

    def _without_records(self, run: RunId, folder: LocalRunFolder) -> RunPhase:
        """Return ABSENT once it is certain that no process of the run is left."""
        if _folder_identity(self._folder) != self._place:
            hint = "put it back (is its disk mounted?), or restart the controller if it was replaced on purpose"
            self._tell(run, "runs.folder_gone", f"{self._folder}, the folder of all runs, is gone", hint)
            return RunPhase.UNKNOWN
        absence = self._absences.get(run)
        if absence is None:
            if len(self._absences) >= CACHED_RUNS_MAX:
                self._absences = {known: kept for known, kept in self._absences.items() if not kept.clear}
            watch = self._watches.pop(run, None)
            absence = self._absences[run] = _RunWithoutRecords(known=watch is not None and not watch.never_started)
            if watch is not None:
                absence.status = watch.status
                self._let_go(watch)
        if absence.clear:
            return RunPhase.ABSENT
        if absence.known:
            hint = "remaining processes are being stopped; restore the folder to keep the record"
            self._tell(run, "run.folder_gone", f"{folder.path} was moved, removed or emptied", hint)
            self._clear_soon(run, folder, absence)
        return RunPhase.UNKNOWN

    def _must_look(self, run: RunId) -> bool:
        """Whether the run has no folder, and it is unknown whether it ever had one."""
        absence = self._absences.get(run)
        return absence is not None and not absence.known and not absence.clear

    async def _look_for_left(self, run: RunId) -> None:
        """Look for processes of such a run."""
        folder, absence = LocalRunFolder.of(self._folder, run), self._absences.get(run)
        if folder is None or absence is None or _folder_identity(self._folder) != self._place:
            return
        with contextlib.suppress(OSError):  # it stays in doubt, and is retried
            absence.known = await asyncio.to_thread(has_processes, folder, run)
            absence.clear = not absence.known

    def _refuse_if_gone(self, run: RunId) -> None:
        absence = self._absences.get(run)
        if absence is not None and absence.known:
            raise MooringsError(
                "run.unknown",
                f"the output of run {run} is gone: {self._folder / run} was moved, removed or emptied",
                hint="put that folder back to read it",
            )

    def _tell(self, run: RunId, event: str, detail: str, hint: str) -> None:
        """Log a problem of a run once, not at each look."""
        if len(self._told) >= CACHED_RUNS_MAX and run not in self._told:
            self._told.clear()
        told = self._told.setdefault(run, {})
        if told.get(event) == detail:
            return
        told[event] = detail
        log.warning(event, extra={"run": run, "detail": detail, "hint": hint})

    def _watch(self, run: RunId, folder: LocalRunFolder, stamps: RecordVersions) -> _TrackedRun:
        watch = self._watches.get(run)
        if watch is not None and watch.stamps == stamps:
            return watch
        remembered = watch.extent if watch is not None else None
        same = watch is not None and watch.stamps[0] == stamps[0] and not watch.damage
        found = folder.survey(order=remembered if same else None, remembered=remembered)
        if found is None:
            raise RecordUnreadableError(f"{folder.path} is changing")
        fresh = _TrackedRun(folder, stamps, found.extent, found.status, found.end, found.damage)
        if watch is not None:
            if fresh.damage and fresh.status is None and fresh.extent.attempt == watch.extent.attempt:
                fresh.status = watch.status
            fresh.settling = watch.settling
            if _supervisor_identity(watch) is not None and _supervisor_identity(watch) == _supervisor_identity(fresh):
                fresh.gone, fresh.witnessed = watch.gone, watch.witnessed
                fresh.held = watch.held or watch.pidfd is not None
            self._let_go(watch)
        elif len(self._watches) >= CACHED_RUNS_MAX:
            self._watches = {known: kept for known, kept in self._watches.items() if kept.end is None}
        self._watches[run] = fresh
        return fresh

    def _sighting(self, run: RunId, watch: _TrackedRun) -> RunStatus:
        if watch.damage and not watch.settled:
            hint = "nothing to do: it is settled once its supervisor has gone; put the file back to see it before"
            self._tell(run, "run.damaged", "; ".join(watch.damage), hint)
            if watch.status is not None:
                self._attach(run, watch, watch.status)
            if watch.pidfd is None:
                self._settle_soon(run, watch)
            return RunStatus(run, RunPhase.UNKNOWN)
        if watch.end is not None or not watch.gone:
            self._told.pop(run, None)
        if watch.end is not None:
            self._let_go(watch)
            end = watch.end.record
            return RunStatus(run, RunPhase.ENDED, end.started_at, end, attempt=watch.extent.attempt)
        if watch.status is None:
            if watch.never_started:
                return RunStatus(run, RunPhase.ABSENT)
            self._settle_soon(run, watch)
            return RunStatus(run, RunPhase.STARTING, attempt=watch.extent.attempt)
        self._attach(run, watch, watch.status)
        if watch.gone:
            self._settle_soon(run, watch)
        return RunStatus(run, watch.status.phase, watch.status.started_at, attempt=watch.extent.attempt)

    def _attach(self, run: RunId, watch: _TrackedRun, status: SupervisorStatus) -> None:
        """Watch the supervisor's end in the event loop."""
        if watch.pidfd is not None or watch.gone:
            return
        if status.boot != boot_id():
            watch.gone = True
            return
        try:
            watch.pidfd = open_pidfd(status.supervisor.pid, status.supervisor.ticks)
        except OSError:
            return  # out of descriptors: conclude nothing, and retry at the next look
        if watch.pidfd is None:
            watch.gone, watch.witnessed = True, watch.held
            return
        asyncio.get_running_loop().add_reader(watch.pidfd, self._on_gone, run, watch)

    def _on_gone(self, run: RunId, watch: _TrackedRun) -> None:
        self._let_go(watch)
        watch.gone = watch.witnessed = True
        self._news.set()

    def _let_go(self, watch: _TrackedRun) -> None:
        if watch.pidfd is None:
            return
        asyncio.get_running_loop().remove_reader(watch.pidfd)
        with contextlib.suppress(ChildProcessError):
            # In a container where we are process 1 the supervisor became our child, and only we can reap it.
            os.waitid(os.P_PIDFD, watch.pidfd, os.WEXITED | os.WNOHANG)
        os.close(watch.pidfd)
        watch.pidfd = None

    # -- settling

    def _settle_soon(self, run: RunId, watch: _TrackedRun) -> None:
        loop = asyncio.get_running_loop()
        if (watch.settling is None or watch.settling.done()) and loop.time() >= watch.settle_not_before:
            watch.settle_not_before = loop.time() + FINALIZE_RETRY_S
            watch.settling = loop.create_task(self._settle(run, watch), name=f"settle {run}")

    async def _settle(self, run: RunId, watch: _TrackedRun) -> None:
        memory = LastKnownRun(watch.extent, watch.status, watch.witnessed)
        try:
            verdict = await asyncio.to_thread(finalize_run, watch.folder, run, self._clock.now(), memory)
        except (OSError, RecordUnreadableError) as error:  # it stays in doubt, and is retried
            hint = f"see that {watch.folder.path} can be written and its disk has room"
            # Without the draft's name, which differs at each try: log the same problem once.
            why = (isinstance(error, OSError) and error.strerror) or str(error)
            self._tell(run, "run.unsettled", f"its end cannot be recorded: {why}", hint)
            return
        watch.never_started = verdict is FinalizeResult.NEVER_STARTED
        watch.settled = verdict is FinalizeResult.ENDED and watch.end is not None
        if verdict in (FinalizeResult.NEVER_STARTED, FinalizeResult.ENDED):
            self._news.set()

    def _clear_soon(self, run: RunId, folder: LocalRunFolder, absence: _RunWithoutRecords) -> None:
        if absence.clearing is None or absence.clearing.done():
            task = self._clear(run, folder, absence)
            absence.clearing = asyncio.get_running_loop().create_task(task, name=f"clear {run}")

    async def _clear(self, run: RunId, folder: LocalRunFolder, absence: _RunWithoutRecords) -> None:
        with contextlib.suppress(OSError):  # out of descriptors, for example: it is retried
            if await asyncio.to_thread(stop_leftovers, folder, run, absence.status, witnessed=False):
                absence.clear = True
                self._told.pop(run, None)
                log.info("run.cleared", extra={"run": run, "detail": "nothing of it is left"})
                self._news.set()


def check_launch(order: RunSubmission) -> None:
    """Raise if this engine cannot run the job.

    Raises:
        MooringsError: ``engine.rejected``.
    """
    job = order.job
    if job.resources.nodes > 1:
        raise MooringsError(
            "engine.rejected",
            f"the job asks for {job.resources.nodes} nodes, and the local engine has one machine",
            hint="leave nodes out of [resources], or use another engine",
        )
    if len(order.binding.gcds) != job.tasks:
        raise MooringsError(
            "engine.rejected", f"the partition has {len(order.binding.gcds)} GCDs for the job's {job.tasks} tasks"
        )


def _supervisor_identity(watch: _TrackedRun) -> tuple[int, ProcessIdentity] | None:
    return None if watch.status is None else (watch.extent.attempt, watch.status.supervisor)


def _folder_identity(folder: Path) -> tuple[int, int] | None:
    """Return the identity of a folder, to notice a replacement; None if it does not exist."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None


def _save_cancel(folder: LocalRunFolder, reason: str, memory: LastKnownRun) -> None:
    """Record a request to stop, keeping the first reason, and notify the supervisor.

    A run must be stoppable despite damaged records or a full disk (its own output may have filled it): then its
    supervisor is searched for, and gets TERM.
    """
    found = folder.survey(remembered=memory.extent)
    if found is None:
        return
    attempt = found.extent.attempt
    try:
        settled = found.end is not None or folder.read_cancel(attempt) is not None
    except RecordUnreadableError:
        settled = False
    written = True
    if not settled:
        try:
            folder.save_cancel(CancelRecord(attempt, reason))
        except OSError as error:
            written = False
            log.warning("run.cancel_not_written", extra={"run": folder.path.name, "detail": str(error)})
    if written and not found.damage:
        if found.status is not None:
            _signal_supervisor(found.status, WAKEUP_SIGNAL)
        return
    for supervisor in find_supervisors(folder.path, list_processes(), found.status or memory.status):
        send_signal(supervisor, signal.SIGTERM)


def _save_yield(folder: LocalRunFolder, order: YieldRecord, memory: LastKnownRun) -> None:
    """Record a request to yield, keeping the first, and notify the supervisor.

    Raises:
        OSError, RecordUnreadableError: it could not be recorded.
    """
    found = folder.survey(remembered=memory.extent)
    if found is None or found.end is not None or found.extent.attempt != order.attempt:
        return
    known: YieldRecord | None = None
    with contextlib.suppress(RecordUnreadableError):
        known = folder.read_yield(order.attempt)
    if known is None:
        folder.save_yield(order)
    elif time.monotonic() > known.by_s + YIELD_OVERDUE_S:
        _save_cancel(folder, order.reason, memory)
        return
    if found.status is not None:
        _signal_supervisor(found.status, WAKEUP_SIGNAL)


def _signal_supervisor(status: SupervisorStatus, signum: int) -> bool:
    """Send a signal to a supervisor; return whether it was running."""
    if status.boot != boot_id():
        return False
    pidfd = open_pidfd(status.supervisor.pid, status.supervisor.ticks)
    if pidfd is None:
        return False
    try:
        signal.pidfd_send_signal(pidfd, signum)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


def _launch(folder: LocalRunFolder, order: RunSubmission, life: int, output_bytes_max: int) -> None:
    """Start a supervisor that inherits the life lock; return when its tasks run, or never will.

    Raises:
        OSError: it could not be started.
        MooringsError: ``engine.unavailable``: it died before it could start its tasks.
    """
    ready, ready_inside = os.pipe()
    try:
        try:
            complaints = os.open(folder.complaints, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with os.fdopen(complaints, "ab") as output:
                starter = subprocess.Popen(
                    supervisor_command(folder.path, life, ready_inside, output_bytes_max),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={name: os.environ[name] for name in _INHERITED if name in os.environ},
                    cwd="/",
                    start_new_session=True,
                    pass_fds=(life, ready_inside),
                )
        finally:
            os.close(ready_inside)
        starter.wait()  # it forks and exits, so a supervisor is not our child
        waiting = select.poll()
        waiting.register(ready, select.POLLIN | select.POLLHUP)
        told = waiting.poll(START_WAIT_S * 1000)
    finally:
        os.close(ready)
    if told and folder.read_status(order.attempt) is None and folder.read_end(order.attempt) is None:
        raise MooringsError(
            "engine.unavailable",
            f"the supervisor of run {order.run} could not start",
            hint=f"{folder.complaints} tells why",
            retryable=True,
        )
