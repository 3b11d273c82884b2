"""The supervisor: one detached process a run.

``python -m moorings.local.supervisor RUN_DIR LIFE_FD READY_FD [OUTPUT_BYTES_MAX]``

It starts the tasks, enforces the limits, and records the end when no process of the run is left. It is not a child of
the controller, so the controller may be killed and restarted; supervising inside the controller was refused for
that reason. It has one thread, blocks every signal and fetches them one by one, so no handler can interrupt it.

It never records an end while a process of the run is left. A process that cannot be killed (it hangs in the
kernel, or is another user's) keeps the run RUNNING and its partition held.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

from moorings.core.instants import Timestamp
from moorings.local.course import ObservedRun, RunLimits, SupervisorAction, SupervisorDecision, YieldState, decide_next
from moorings.local.output import OutputLimiter
from moorings.local.processes import (
    adopt_orphans,
    boot_id,
    descendants,
    find_signal_receivers,
    list_processes,
    read_process,
    send_signal,
)
from moorings.local.records import AttemptEnd, ProcessIdentity, RecordUnreadableError, SupervisorStatus
from moorings.local.rundir import LocalRunFolder
from moorings.local.tasks import NOT_EXECUTABLE, TaskNotStartedError, choose_rendezvous, start_task, task_environment_of
from moorings.ports.engine import RunSubmission
from moorings.workloads.runs import EndReason, EndRecord, RunPhase, exit_code

POLL_S = 1.0  # interval to look for requests even without a signal: a signal needs a process id, a file does not
KILL_RETRY_S = 0.02  # doubled each time, up to POLL_S: a process that survives may be beyond our reach
SAVE_RETRY_S = 1.0

WAKEUP_SIGNAL = signal.SIGRTMIN  # "read the request files"
FORWARDED_SIGNAL_MAX = (
    signal.SIGRTMAX - signal.SIGRTMIN
)  # SIGRTMIN + N requests to forward signal N; real-time signals queue up


def forwarding_signal(signum: int) -> int:
    """Return the signal that asks a supervisor to forward ``signum`` (1 to ``FORWARDED_SIGNAL_MAX``) to the tasks."""
    assert 1 <= signum <= FORWARDED_SIGNAL_MAX, signum
    return signal.SIGRTMIN + signum


_FETCHED = {signal.SIGCHLD, signal.SIGTERM, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1)}


@dataclass(slots=True)
class SupervisedTask:
    """One task: its process, and its exit code once it has ended."""

    rank: int
    process: subprocess.Popen[bytes]
    code: int | None = None


class Supervisor:
    """One run, from its order to its end.

    Args:
        folder: the run's folder.
        order: what to run.
        output_bytes_max: maximum log size of all tasks together; 0: no limit.
    """

    def __init__(self, folder: LocalRunFolder, order: RunSubmission, output_bytes_max: int = 0) -> None:
        self._folder = folder
        self._order = order
        self._limits = RunLimits(order.job.time_limit_s, order.job.checkpoint.warn_s, order.job.checkpoint.grace_s)
        self._output = OutputLimiter(
            [folder.log(order.attempt, rank) for rank in range(order.job.tasks)], output_bytes_max
        )
        self._tasks: list[SupervisedTask] = []
        self._started_s = time.monotonic()
        self._started_at: Timestamp | None = None
        self._status_saved = False
        self._childless = False
        self._warned = False
        self._stopping_since_s: float | None = None
        self._cancel: str | None = None
        self._asked: YieldState | None = None
        self._failure: tuple[int, str] | None = None
        self._ending = EndReason.EXITED
        self._detail = ""

    def begin(self) -> None:
        """Record this supervisor, then start the tasks unless the run must already stop.

        Raises:
            OSError: the record could not be written, so no task was started.
        """
        self._save_status(RunPhase.STARTING, durable=True)
        self._look_for_orders()
        if self._cancel is not None:
            self._ending, self._detail = EndReason.CANCELLED, self._cancel
            return
        if self._asked is not None:
            self._ending, self._detail = EndReason.YIELDED, self._asked.reason
            return
        try:
            self._start_tasks()
        except TaskNotStartedError as error:
            self._failure = (error.code, error.detail)
            self._stop(SupervisorDecision(SupervisorAction.STOP, ending=EndReason.NOT_STARTED, detail=error.detail))
            return
        self._try_save_running()

    def watch(self) -> None:
        """Supervise the run; return when no process of it is left."""
        pause_s = KILL_RETRY_S
        while True:
            self._reap()
            move = decide_next(self._situation(), self._limits)
            match move.act:
                case SupervisorAction.FINISH:
                    return
                case SupervisorAction.WAIT:
                    self._listen(min(self._output.look(), POLL_S if move.within_s is None else move.within_s))
                case SupervisorAction.WARN:
                    self._warn()
                case SupervisorAction.STOP:
                    self._stop(move)
                case SupervisorAction.KILL:
                    self._send_all(signal.SIGKILL)
                    self._listen(pause_s)
                    pause_s = min(pause_s * 2, POLL_S)

    def finish(self) -> None:
        """Remove the binding's files and record the end, retrying for as long as the disk refuses it."""
        self._output.look()
        codes = tuple(task.code for task in self._tasks)
        missing = (None,) * (self._order.job.tasks - len(codes))
        if self._asked is not None and self._failure is not None and self._stopping_since_s is None:
            self._ending, self._detail = EndReason.YIELDED, self._asked.reason  # it exited before it had to
        end = EndRecord(
            ending=self._ending,
            exit_code=exit_code(self._ending, self._failure[0] if self._failure else None),
            task_codes=codes + missing,
            started_at=self._started_at,
            ended_at=_now(),
            detail=self._detail or (self._failure[1] if self._failure else ""),
        )
        while True:
            try:
                self._folder.remove_bindings()
                self._folder.save_end(AttemptEnd(self._order.attempt, end))
                return
            except FileNotFoundError:
                return  # the whole folder was removed: the end has no reader
            except OSError as error:
                _log_error(f"the end cannot be recorded, trying again: {error}")
                time.sleep(SAVE_RETRY_S)

    # -- starting

    def _start_tasks(self) -> None:
        job = self._order.job
        try:
            bindings = self._folder.write_bindings(self._order)
            if job.checkpoint_directory is not None:
                Path(job.checkpoint_directory).mkdir(parents=True, exist_ok=True)
            meeting = choose_rendezvous()
        except (OSError, RecordUnreadableError) as error:
            raise TaskNotStartedError(NOT_EXECUTABLE, f"it could not be prepared: {error}") from error
        self._started_at, self._started_s = _now(), time.monotonic()
        for rank in range(job.tasks):
            environment = task_environment_of(self._order, rank, meeting, bindings)
            log = self._folder.log(self._order.attempt, rank)
            self._tasks.append(SupervisedTask(rank, start_task(job.command, job.workdir, environment, log)))

    def _try_save_running(self) -> None:
        """Record that the tasks run. A full disk must not end a job, so a failed write is retried later."""
        try:
            self._save_status(RunPhase.RUNNING, durable=False)
        except OSError as error:
            _log_error(f"the status cannot be saved, trying again: {error}")
            return
        self._status_saved = True

    def _save_status(self, phase: RunPhase, *, durable: bool) -> None:
        tasks = tuple(_identity(task.process.pid) for task in self._tasks)
        status = SupervisorStatus(
            self._order.attempt, phase, boot_id(), _identity(os.getpid()), self._started_at, tasks
        )
        self._folder.save_status(status, durable=durable)

    # -- watching

    def _situation(self) -> ObservedRun:
        return ObservedRun(
            elapsed_s=self._elapsed_s(),
            tasks_left=sum(task.code is None for task in self._tasks),
            childless=self._childless,
            failure=self._failure[1] if self._failure else None,
            cancel=self._cancel,
            asked=self._asked,
            warned=self._warned,
            stopping_since_s=self._stopping_since_s,
        )

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def _reap(self) -> None:
        """Record ended processes: tasks, and orphans that became our children."""
        tasks = {task.process.pid: task for task in self._tasks}
        failed = []
        try:
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                task = tasks.get(ended[0])
                if task is None:
                    continue
                code = os.waitstatus_to_exitcode(ended[1])
                task.process.returncode = code
                task.code = code if code >= 0 else 128 - code
                if task.code != 0:
                    failed.append(task)
        except ChildProcessError:
            self._childless = True
        if failed and self._failure is None:
            first = min(failed, key=lambda task: task.rank)  # found at the same time: their order is unknown
            assert first.code is not None
            self._failure = (first.code, describe_failure(first.rank, first.process.returncode))

    def _listen(self, within_s: float) -> None:
        """Wait for a signal, and act on it."""
        news = signal.sigtimedwait(_FETCHED, max(within_s, 0.0))
        if news is not None:
            self._look_for_orders()  # first: after a reason and then TERM, the reason counts
            if news.si_signo == signal.SIGTERM and self._cancel is None:
                self._cancel = "its supervisor was told to stop (SIGTERM)"
            elif news.si_signo > signal.SIGRTMIN:
                self._pass_on(news.si_signo - signal.SIGRTMIN)
        self._look_for_orders()
        if not self._status_saved and self._stopping_since_s is None:
            self._try_save_running()

    def _look_for_orders(self) -> None:
        if self._cancel is None and self._folder.cancel.exists():
            with contextlib.suppress(RecordUnreadableError):
                cancel = self._folder.read_cancel(self._order.attempt)
                self._cancel = cancel.reason if cancel is not None else None
        if self._asked is None and self._folder.yielding.exists():
            with contextlib.suppress(RecordUnreadableError):
                order = self._folder.read_yield(self._order.attempt)
                if order is not None:
                    now_s = self._elapsed_s()
                    self._asked = YieldState(order.reason, now_s, now_s + order.by_s - time.monotonic())

    def _running(self) -> list[int]:
        """Return process ids of the tasks that we have not reaped, so that their ids are not reused."""
        return [task.process.pid for task in self._tasks if task.code is None]

    def _warn(self) -> None:
        """Warn the processes with a handler that they will be stopped. No others: most programs die of a USR1."""
        self._warned = True
        if self._asked is not None:
            self._asked = replace(self._asked, warned=True)
        signum = signal.Signals[f"SIG{self._order.job.checkpoint.warn_signal}"]
        table = list_processes()
        for pid in self._running():
            for process in find_signal_receivers(pid, signum, table):
                send_signal(process, signum)

    def _pass_on(self, signum: int) -> None:
        """Forward a signal: to the processes with a handler, else to the task itself, whatever it does."""
        table = list_processes()
        for pid in self._running():
            told = find_signal_receivers(pid, signum, table)
            for process in told:
                send_signal(process, signum)
            if not told:
                os.kill(pid, signum)

    def _stop(self, move: SupervisorDecision) -> None:
        self._ending, self._detail = move.ending, move.detail
        self._stopping_since_s = self._elapsed_s()
        self._send_all(signal.SIGTERM)
        self._send_all(signal.SIGCONT)  # a stopped process cannot end itself

    def _send_all(self, signum: int) -> None:
        """Send a signal once to each process of the run.

        A task's own group is signalled in one call, so that no process can escape by forking. Processes outside the
        group are found by descent, because every orphan is our child.
        """
        groups = self._running()
        for group in groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signum)
        for process in descendants([os.getpid()], list_processes()):
            if process.group not in groups:
                send_signal(process, signum)


def describe_failure(rank: int, returncode: int) -> str:
    """Return how a task failed, as a sentence; ``returncode`` is negative for a signal."""
    if returncode >= 0:
        return f"task {rank} exited with {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    return f"task {rank} was killed by {name}"


def _identity(pid: int) -> ProcessIdentity:
    process = read_process(pid)
    assert process is not None, "we and our unreaped children are there"
    return ProcessIdentity(process.pid, process.ticks)


def _now() -> Timestamp:
    return Timestamp(time.time_ns() // 1000)


def _log_error(text: str) -> None:
    """Write to ``supervisor.log``, if the disk accepts it."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n")
        sys.stderr.flush()


def supervise(path: Path, ready: int, output_bytes_max: int = 0) -> None:
    """Run the order in the folder; return when its end is recorded.

    Args:
        path: the run's folder; the caller holds its life lock.
        ready: a descriptor that is closed once the tasks run or never will.
        output_bytes_max: maximum log size of all tasks together; 0: no limit.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    adopt_orphans()
    folder = LocalRunFolder(path)
    order = folder.read_order()
    assert order is not None, "whoever started us has saved it"
    supervisor = Supervisor(folder, order, output_bytes_max)
    supervisor.begin()
    os.close(ready)
    supervisor.watch()
    supervisor.finish()


def main() -> None:
    """Detach from the starting process, and supervise."""
    path, life, ready = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    output_bytes_max = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    if os.fork() != 0:
        os._exit(0)  # the starting process need not wait any longer: init adopts the child
    for fd in (life, ready):
        os.set_inheritable(fd, False)
    try:
        supervise(path, ready, output_bytes_max)
    except BaseException:
        _log_error(traceback.format_exc())
        os._exit(1)  # the kernel KILLs the tasks; the controller finds no end, and finalizes the run
    os._exit(0)  # at once: nothing needs cleanup, and the next attempt may wait for the life lock


if __name__ == "__main__":
    main()
