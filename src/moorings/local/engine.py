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
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp, seconds_between
from moorings.engines.checkpoint_watch import CheckpointRecord
from moorings.engines.containers import RUNTIME_VARIABLES, find_own_runtime
from moorings.engines.fence import FileFence
from moorings.engines.launch import (
    as_unavailable,
    log_files_of_tasks,
    not_startable_error,
    parse_signal,
    rejected_error,
    unavailable_error,
)
from moorings.engines.logs import TaskLog, read_logs, skip_until
from moorings.engines.polling import wait_for_change
from moorings.engines.processes import boot_id, list_processes, open_pidfd, send_signal
from moorings.local.finalize import (
    FinalizeResult,
    LastKnownRun,
    finalize_locked_run,
    finalize_run,
    find_supervisors,
    has_processes,
    stop_leftovers,
)
from moorings.local.records import (
    AttemptEnd,
    CancelRecord,
    ProcessIdentity,
    RecordUnreadableError,
    SupervisorStatus,
    YieldRecord,
)
from moorings.local.run_folder import AttemptExtent, LocalRunFolder, RecordVersions, RunRecords
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

# A supervisor gets the variables that Python needs to start and to read file names as we do, those by which a container
# runtime finds its user's images, and none of the controller's secrets.
_INHERITED = (
    *("LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONUTF8", "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE"),
    *RUNTIME_VARIABLES,
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
    attempt_extent: AttemptExtent
    status: SupervisorStatus | None  # the last undamaged one
    end: AttemptEnd | None
    checkpoints: CheckpointRecord | None = None
    damage: tuple[str, ...] = ()
    is_finalized: bool = False  # no process is left, so its end counts despite the damage
    pidfd: int | None = None
    had_pidfd: bool = False  # an earlier entry had a pidfd of its supervisor until just now
    supervisor_exited: bool = False  # its supervisor is not running (any more)
    exit_observed: bool = False  # and we saw it end
    never_started: bool = False
    finalize_not_before: float = 0.0  # by the event loop's clock
    finalize_task: asyncio.Task[None] | None = field(default=None, repr=False)


@dataclass(slots=True)
class _RunWithoutRecords:
    """A run without a folder, or with an empty one.

    Attributes:
        existed: it had a folder, or processes.
        has_no_processes: no process of it is left.
    """

    existed: bool
    status: SupervisorStatus | None = None
    has_no_processes: bool = False
    cleanup_task: asyncio.Task[None] | None = field(default=None, repr=False)


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
        self._folder_identity = _folder_identity(self._folder)
        self._fence = FileFence(self._folder)
        self._tracked: dict[RunId, _TrackedRun] = {}
        self._without_records_runs: dict[RunId, _RunWithoutRecords] = {}
        self._logged: dict[RunId, dict[str, str]] = {}  # last logged detail of a run, by event
        self._changed = asyncio.Event()

    @property
    def name(self) -> str:
        return "local"

    @property
    def has_scheduler(self) -> bool:
        return False

    def check_job(self, job: JobSpec) -> Sequence[str]:
        if job.image is not None:
            find_own_runtime(job.image)
        return ()

    async def fence_below(self, epoch: Epoch) -> None:
        with as_unavailable(f"{self._folder} cannot be written"):
            await asyncio.to_thread(self._fence.raise_epoch, epoch, SUBMIT_LOCK_WAIT_S)

    async def submit(self, order: RunSubmission) -> str:
        folder = LocalRunFolder.find(self._folder, order.run)
        if folder is None:
            raise rejected_error(f"{order.run[:120]!r} cannot be the id of a local run")
        check_launch(order)
        self._without_records_runs.pop(order.run, None)
        hint = f"look at {folder.path}: is the disk full, or a record damaged?"
        with as_unavailable(f"run {order.run} could not be started", hint):
            await asyncio.to_thread(self._submit, folder, order)
        self._without_records_runs.pop(order.run, None)  # observations in the meantime were too early
        self._observe_run(order.run)  # from now on its end wakes ``changed``
        self._changed.set()
        return f"{order.run}/{order.attempt}"

    async def observe(self, runs: Sequence[RunId]) -> Sequence[RunStatus]:
        seen = [self._observe_run(run) for run in runs]
        doubtful = [run for run in runs if self._needs_process_scan(run)]
        if not doubtful:
            return seen
        for run in doubtful:
            await self._scan_processes(run)
        return [
            self._observe_run(run) for run in runs
        ]  # all at one moment: an old status must not follow a new submission

    async def cancel(self, run: RunId, reason: str) -> None:
        folder = LocalRunFolder.find(self._folder, run)
        if folder is None:
            return
        with as_unavailable(f"run {run} could not be cancelled"):
            await asyncio.to_thread(_save_cancel, folder, reason, self._last_known(run))

    async def ask_to_yield(
        self, run: RunId, attempt: int, reason: str, deadline: Timestamp, *, until_saved: bool = False
    ) -> None:
        folder = LocalRunFolder.find(self._folder, run)
        if folder is None:
            return
        left_s = max(seconds_between(self._clock.now(), deadline), YIELD_S_MIN)
        order = YieldRecord(attempt, reason, time.monotonic() + left_s, until_saved=until_saved)
        with as_unavailable(f"run {run} could not be asked to yield"):
            await asyncio.to_thread(_save_yield, folder, order, self._last_known(run))

    async def signal(self, run: RunId, signal_name: str) -> None:
        signum = parse_signal(signal_name, FORWARDED_SIGNAL_MAX).value
        self._observe_run(run)
        watch = self._tracked.get(run)
        running = watch is not None and watch.end is None and watch.status is not None
        if watch is None or watch.status is None or not running or watch.status.phase is not RunPhase.RUNNING:
            raise MooringsError("run.not_running", f"run {run} has no processes")
        with as_unavailable(f"run {run}"):
            if not _signal_supervisor(watch.status, forwarding_signal(signum)):
                raise MooringsError("run.not_running", f"run {run} is ending")

    async def find_terminal(self, run: RunId, *, attended: bool = False) -> str:
        self._observe_run(run)
        watch = self._tracked.get(run)
        if watch is None or watch.end is not None or watch.status is None:
            raise MooringsError("run.not_running", f"run {run} has no processes")
        return str(watch.folder.terminal)

    async def logs(
        self, run: RunId, *, task: int | None, follow: bool, since: Timestamp | None = None
    ) -> AsyncIterator[bytes]:
        """Yield the output of a run, attempt by attempt; nothing, at once, for a run that was never submitted.

        Raises:
            MooringsError: ``run.unknown`` (its folder is gone), ``engine.rejected``, ``engine.unavailable``.
        """
        phase = (await self.observe([run]))[0].phase
        self._raise_if_folder_gone(run)
        if phase is RunPhase.ABSENT:
            return
        if run not in self._tracked:
            raise unavailable_error(f"run {run} cannot be looked at now")
        watch = self._tracked[run]
        attempt, tasks = watch.attempt_extent.attempt, watch.attempt_extent.tasks
        logs = [
            TaskLog(path, prefix, complete=of < attempt)
            for of in (*watch.folder.previous_attempts(attempt), attempt)
            for path, prefix in log_files_of_tasks(run, tasks, task, partial(watch.folder.log_path, of))
        ]

        async def ended() -> bool:
            phase = self._observe_run(run).phase
            self._raise_if_folder_gone(run)
            known = self._tracked.get(run)
            return phase in (RunPhase.ENDED, RunPhase.ABSENT) or (
                known is not None and known.attempt_extent.attempt != attempt
            )

        try:
            await skip_until(logs, since)
            async for chunk in read_logs(logs, ended=ended if follow else None, pause=self._clock.sleep):
                yield chunk
        except OSError as error:
            self._observe_run(run)  # the folder may have vanished before the read
            self._raise_if_folder_gone(run)
            raise unavailable_error(f"the output of run {run} cannot be read: {error}") from error

    async def wait_for_change(self) -> None:
        # A run that another controller has just started has no supervisor yet to wait for.
        starting = any(
            w.status is None and w.end is None and not w.never_started and not w.damage for w in self._tracked.values()
        )
        await wait_for_change(self._changed, self._clock, STARTING_POLL_S if starting else POLL_S)

    async def close(self) -> None:
        settling = [watch.finalize_task for watch in self._tracked.values() if watch.finalize_task is not None]
        settling += [
            absence.cleanup_task for absence in self._without_records_runs.values() if absence.cleanup_task is not None
        ]
        for watch in self._tracked.values():
            self._close_pidfd(watch)
        self._tracked.clear()
        self._without_records_runs.clear()
        await asyncio.gather(*settling, return_exceptions=True)

    # -- submitting (in a thread)

    def _submit(self, folder: LocalRunFolder, order: RunSubmission) -> None:
        if folder.read_records() is None and has_processes(folder, order.run) and folder.read_records() is None:
            raise not_startable_error(order, "its folder is gone, but processes of it are left")
        folder.create()
        with folder.hold_submit_lock(wait_s=SUBMIT_LOCK_WAIT_S) as ours:
            if not ours:
                raise not_startable_error(order, "another controller is at it")
            held = folder.read_records()
            if held is not None and held.extent.attempt >= order.attempt and held.status is not None:
                return  # it was started: ``observe`` reports its state
            leaving = held is not None and held.end is not None
            life = folder.acquire_liveness_lock(wait_s=EXIT_WAIT_S if leaving else 0)
            if life is None:
                if held is None or held.extent.attempt < order.attempt:
                    raise not_startable_error(order, "an earlier attempt has not ended")
                return
            try:
                if self._is_startable(folder, held, order):
                    with self._fence.hold_epoch(order.epoch, SUBMIT_LOCK_WAIT_S):
                        folder.save(order)
                        _launch(folder, order, life, self._output_bytes_max)
            finally:
                os.close(life)  # only our copy: a started supervisor holds the lock now

    def _is_startable(self, folder: LocalRunFolder, held: RunRecords | None, order: RunSubmission) -> bool:
        """With the life lock held: whether the submission never started, and no process of an earlier one is left."""
        if held is None:
            return True
        verdict = finalize_locked_run(folder, order.run, held, self._clock.now())
        attempt = held.extent.attempt
        if verdict is FinalizeResult.LEFT:
            raise not_startable_error(order, f"processes of attempt {attempt} are left")
        return attempt < order.attempt or (attempt == order.attempt and verdict is FinalizeResult.NEVER_STARTED)

    # -- observing

    def _observe_run(self, run: RunId) -> RunStatus:
        folder = LocalRunFolder.find(self._folder, run)
        if folder is None:
            return RunStatus(run, RunPhase.ABSENT)
        try:
            stamps = folder.record_versions()
            order, status, _, end, _ = stamps
            if order is None and status is None and end is None:
                return RunStatus(run, self._phase_without_records(run, folder))
            self._without_records_runs.pop(run, None)
            return self._sighting(run, self._track_run(run, folder, stamps))
        except (OSError, RecordUnreadableError) as error:
            hint = f"make {folder.path} readable and writable for the controller"
            self._log_once(run, "run.unreadable", str(error), hint)
            return RunStatus(run, RunPhase.UNKNOWN)

    def _last_known(self, run: RunId) -> LastKnownRun:
        self._observe_run(run)
        watch = self._tracked.get(run)
        return LastKnownRun(watch.attempt_extent, watch.status) if watch is not None else LastKnownRun()

    def _phase_without_records(self, run: RunId, folder: LocalRunFolder) -> RunPhase:
        """Return ABSENT once it is certain that no process of the run is left."""
        if _folder_identity(self._folder) != self._folder_identity:
            hint = "put it back (is its disk mounted?), or restart the controller if it was replaced on purpose"
            self._log_once(run, "runs.folder_gone", f"{self._folder}, the folder of all runs, is gone", hint)
            return RunPhase.UNKNOWN
        absence = self._without_records_runs.get(run)
        if absence is None:
            if len(self._without_records_runs) >= CACHED_RUNS_MAX:
                self._without_records_runs = {
                    known: kept for known, kept in self._without_records_runs.items() if not kept.has_no_processes
                }
            watch = self._tracked.pop(run, None)
            absence = self._without_records_runs[run] = _RunWithoutRecords(
                existed=watch is not None and not watch.never_started
            )
            if watch is not None:
                absence.status = watch.status
                self._close_pidfd(watch)
        if absence.has_no_processes:
            return RunPhase.ABSENT
        if absence.existed:
            hint = "remaining processes are being stopped; restore the folder to keep the record"
            self._log_once(run, "run.folder_gone", f"{folder.path} was moved, removed or emptied", hint)
            self._schedule_cleanup(run, folder, absence)
        return RunPhase.UNKNOWN

    def _needs_process_scan(self, run: RunId) -> bool:
        """Whether the run has no folder, and it is unknown whether it ever had one."""
        absence = self._without_records_runs.get(run)
        return absence is not None and not absence.existed and not absence.has_no_processes

    async def _scan_processes(self, run: RunId) -> None:
        """Look for processes of such a run."""
        folder, absence = LocalRunFolder.find(self._folder, run), self._without_records_runs.get(run)
        if folder is None or absence is None or _folder_identity(self._folder) != self._folder_identity:
            return
        with contextlib.suppress(OSError):  # it stays in doubt, and is retried
            absence.existed = await asyncio.to_thread(has_processes, folder, run)
            absence.has_no_processes = not absence.existed

    def _raise_if_folder_gone(self, run: RunId) -> None:
        absence = self._without_records_runs.get(run)
        if absence is not None and absence.existed:
            raise MooringsError(
                "run.unknown",
                f"the output of run {run} is gone: {self._folder / run} was moved, removed or emptied",
                hint="put that folder back to read it",
            )

    def _log_once(self, run: RunId, event: str, detail: str, hint: str) -> None:
        """Log a problem of a run once, not at each look."""
        if len(self._logged) >= CACHED_RUNS_MAX and run not in self._logged:
            self._logged.clear()
        logged = self._logged.setdefault(run, {})
        if logged.get(event) == detail:
            return
        logged[event] = detail
        log.warning(event, extra={"run": run, "detail": detail, "hint": hint})

    def _track_run(self, run: RunId, folder: LocalRunFolder, stamps: RecordVersions) -> _TrackedRun:
        watch = self._tracked.get(run)
        if watch is not None and watch.stamps == stamps:
            return watch
        remembered = watch.attempt_extent if watch is not None else None
        same = watch is not None and watch.stamps[0] == stamps[0] and not watch.damage
        found = folder.read_records(order=remembered if same else None, last_known=remembered)
        if found is None:
            raise RecordUnreadableError(f"{folder.path} is changing")
        fresh = _TrackedRun(folder, stamps, found.extent, found.status, found.end, found.checkpoints, found.damage)
        if watch is not None:
            if fresh.damage and fresh.status is None and fresh.attempt_extent.attempt == watch.attempt_extent.attempt:
                fresh.status = watch.status
            fresh.finalize_task = watch.finalize_task
            if _supervisor_identity(watch) is not None and _supervisor_identity(watch) == _supervisor_identity(fresh):
                fresh.supervisor_exited, fresh.exit_observed = watch.supervisor_exited, watch.exit_observed
                fresh.had_pidfd = watch.had_pidfd or watch.pidfd is not None
            self._close_pidfd(watch)
        elif len(self._tracked) >= CACHED_RUNS_MAX:
            self._tracked = {known: kept for known, kept in self._tracked.items() if kept.end is None}
        self._tracked[run] = fresh
        return fresh

    def _sighting(self, run: RunId, watch: _TrackedRun) -> RunStatus:
        if watch.damage and not watch.is_finalized:
            hint = "nothing to do: it is settled once its supervisor has gone; put the file back to see it before"
            self._log_once(run, "run.damaged", "; ".join(watch.damage), hint)
            if watch.status is not None:
                self._watch_supervisor(run, watch, watch.status)
            if watch.pidfd is None:
                self._schedule_finalize(run, watch)
            return RunStatus(run, RunPhase.UNKNOWN)
        if watch.end is not None or not watch.supervisor_exited:
            self._logged.pop(run, None)
        if watch.end is not None:
            self._close_pidfd(watch)
            end = watch.end.record
            seen = RunStatus(run, RunPhase.ENDED, end.started_at, end, attempt=watch.attempt_extent.attempt)
            return _with_checkpoints(seen, watch.checkpoints)
        if watch.status is None:
            if watch.never_started:
                return RunStatus(run, RunPhase.ABSENT)
            self._schedule_finalize(run, watch)
            return RunStatus(run, RunPhase.STARTING, attempt=watch.attempt_extent.attempt)
        self._watch_supervisor(run, watch, watch.status)
        if watch.supervisor_exited:
            self._schedule_finalize(run, watch)
        seen = RunStatus(run, watch.status.phase, watch.status.started_at, attempt=watch.attempt_extent.attempt)
        return _with_checkpoints(seen, watch.checkpoints)

    def _watch_supervisor(self, run: RunId, watch: _TrackedRun, status: SupervisorStatus) -> None:
        """Watch the supervisor's end in the event loop."""
        if watch.pidfd is not None or watch.supervisor_exited:
            return
        if status.boot != boot_id():
            watch.supervisor_exited = True
            return
        try:
            watch.pidfd = open_pidfd(status.supervisor.pid, status.supervisor.ticks)
        except OSError:
            return  # out of descriptors: conclude nothing, and retry at the next look
        if watch.pidfd is None:
            watch.supervisor_exited, watch.exit_observed = True, watch.had_pidfd
            return
        asyncio.get_running_loop().add_reader(watch.pidfd, self._on_supervisor_exit, run, watch)

    def _on_supervisor_exit(self, run: RunId, watch: _TrackedRun) -> None:
        self._close_pidfd(watch)
        watch.supervisor_exited = watch.exit_observed = True
        self._changed.set()

    def _close_pidfd(self, watch: _TrackedRun) -> None:
        if watch.pidfd is None:
            return
        asyncio.get_running_loop().remove_reader(watch.pidfd)
        with contextlib.suppress(ChildProcessError):
            # In a container where we are process 1 the supervisor became our child, and only we can reap it.
            os.waitid(os.P_PIDFD, watch.pidfd, os.WEXITED | os.WNOHANG)
        os.close(watch.pidfd)
        watch.pidfd = None

    # -- settling

    def _schedule_finalize(self, run: RunId, watch: _TrackedRun) -> None:
        loop = asyncio.get_running_loop()
        if (watch.finalize_task is None or watch.finalize_task.done()) and loop.time() >= watch.finalize_not_before:
            watch.finalize_not_before = loop.time() + FINALIZE_RETRY_S
            watch.finalize_task = loop.create_task(self._finalize_run(run, watch), name=f"settle {run}")

    async def _finalize_run(self, run: RunId, watch: _TrackedRun) -> None:
        memory = LastKnownRun(watch.attempt_extent, watch.status, watch.exit_observed)
        try:
            verdict = await asyncio.to_thread(finalize_run, watch.folder, run, self._clock.now(), memory)
        except (OSError, RecordUnreadableError) as error:  # it stays in doubt, and is retried
            hint = f"see that {watch.folder.path} can be written and its disk has room"
            # Without the draft's name, which differs at each try: log the same problem once.
            why = (isinstance(error, OSError) and error.strerror) or str(error)
            self._log_once(run, "run.unsettled", f"its end cannot be recorded: {why}", hint)
            return
        watch.never_started = verdict is FinalizeResult.NEVER_STARTED
        watch.is_finalized = verdict is FinalizeResult.ENDED and watch.end is not None
        if verdict in (FinalizeResult.NEVER_STARTED, FinalizeResult.ENDED):
            self._changed.set()

    def _schedule_cleanup(self, run: RunId, folder: LocalRunFolder, absence: _RunWithoutRecords) -> None:
        if absence.cleanup_task is None or absence.cleanup_task.done():
            task = self._clean_up(run, folder, absence)
            absence.cleanup_task = asyncio.get_running_loop().create_task(task, name=f"clear {run}")

    async def _clean_up(self, run: RunId, folder: LocalRunFolder, absence: _RunWithoutRecords) -> None:
        with contextlib.suppress(OSError):  # out of descriptors, for example: it is retried
            if await asyncio.to_thread(stop_leftovers, folder, run, absence.status, witnessed=False):
                absence.has_no_processes = True
                self._logged.pop(run, None)
                log.info("run.cleared", extra={"run": run, "detail": "nothing of it is left"})
                self._changed.set()


def check_launch(order: RunSubmission) -> None:
    """Raise if this engine cannot run the job.

    Raises:
        MooringsError: ``engine.rejected``.
    """
    job = order.job
    if job.resources.nodes > 1:
        raise rejected_error(
            f"the job asks for {job.resources.nodes} nodes, and the local engine has one machine",
            "leave nodes out of [resources], or use another engine",
        )
    if len(order.binding.gcds) != job.tasks:
        raise rejected_error(f"the partition has {len(order.binding.gcds)} GCDs for the job's {job.tasks} tasks")


def _supervisor_identity(watch: _TrackedRun) -> tuple[int, ProcessIdentity] | None:
    return None if watch.status is None else (watch.attempt_extent.attempt, watch.status.supervisor)


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
    found = folder.read_records(last_known=memory.extent)
    if found is None:
        return
    attempt = found.extent.attempt
    try:
        settled = found.end is not None or folder.read(CancelRecord, attempt) is not None
    except RecordUnreadableError:
        settled = False
    written = True
    if not settled:
        try:
            folder.save(CancelRecord(attempt, reason))
        except OSError as error:
            written = False
            log.warning("run.cancel_not_written", extra={"run": folder.path.name, "detail": str(error)})
    if written and not found.damage:
        if found.status is not None:
            _signal_supervisor(found.status, WAKEUP_SIGNAL)
        return
    for supervisor in find_supervisors(folder.path, list_processes(), found.status or memory.status):
        send_signal(supervisor, signal.SIGTERM)


def _with_checkpoints(seen: RunStatus, record: CheckpointRecord | None) -> RunStatus:
    """The status with what the supervisor has recorded of the checkpoint folder."""
    if record is None:
        return seen
    found = None if record.fault else record.found
    given = record.resumed_from if record.attempt == seen.attempt else None
    return replace(seen, checkpoint_fault=record.fault, checkpoints=found, resumed_from=given)


def _save_yield(folder: LocalRunFolder, order: YieldRecord, memory: LastKnownRun) -> None:
    """Record a request to yield, keeping the first's deadline unless others need a pause's devices; notify.

    Raises:
        OSError, RecordUnreadableError: it could not be recorded.
    """
    found = folder.read_records(last_known=memory.extent)
    if found is None or found.end is not None or found.extent.attempt != order.attempt:
        return
    known: YieldRecord | None = None
    with contextlib.suppress(RecordUnreadableError):
        known = folder.read(YieldRecord, order.attempt)
    if known is None:
        folder.save(order)
    elif known.until_saved and not order.until_saved:
        folder.save(replace(order, by_s=min(order.by_s, known.by_s)))
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
            complaints = os.open(folder.supervisor_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
        events = waiting.poll(START_WAIT_S * 1000)
    finally:
        os.close(ready)
    if (
        events
        and folder.read(SupervisorStatus, order.attempt) is None
        and folder.read(AttemptEnd, order.attempt) is None
    ):
        raise unavailable_error(
            f"the supervisor of run {order.run} could not start", f"{folder.supervisor_log} tells why"
        )
