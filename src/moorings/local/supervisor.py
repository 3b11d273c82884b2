"""The supervisor: one detached process a run.

``python -m moorings.local.supervisor RUN_DIR LIFE_FD READY_FD [OUTPUT_BYTES_MAX]``

It starts the tasks, enforces the limits, and records the end when no process of the run is left. It is not a child of
the controller, so the controller may be killed and restarted; supervising inside the controller was refused for
that reason. Its main thread blocks every signal and fetches them one by one, so no handler can interrupt it. Two more
threads, begun after the tasks, look at checkpoints and serve the run's person: its terminal, and commands beside it.

It never records an end while a process of the run is left. A process that cannot be killed (it hangs in the
kernel, or is another user's) keeps the run RUNNING and its partition held.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from moorings.core.model.bindings import Rendezvous, task_environment
from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp
from moorings.engines.checkpoint_watch import CheckpointWatch
from moorings.engines.launch import checkpoint_environment, warn_signals
from moorings.engines.output_times import OutputTimes
from moorings.engines.processes import (
    ProcessTable,
    adopt_orphans,
    boot_id,
    descendants,
    die_with_parent,
    find_signal_receivers,
    list_processes,
    read_process,
    send_signal,
    warn_task,
)
from moorings.engines.terminal_server import TerminalServer
from moorings.local.commands import CommandRunner, Streams
from moorings.local.lifecycle import (
    ObservedRun,
    RunLimits,
    SupervisorAction,
    SupervisorDecision,
    YieldState,
    decide_next,
)
from moorings.local.output_limit import OutputLimiter
from moorings.local.records import (
    AttemptEnd,
    CancelRecord,
    ProcessIdentity,
    RecordUnreadableError,
    SupervisorStatus,
    YieldRecord,
)
from moorings.local.run_folder import LocalRunFolder
from moorings.local.task_containers import TaskContainers
from moorings.ports.engine import RunSubmission
from moorings.workloads.checkpoints import newest_whole
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
        self._limits = RunLimits(
            order.job.time_limit_s,
            order.job.checkpoint.warn_s,
            order.job.checkpoint.grace_s,
            order.job.terminal_keep_s,
        )
        logs = [folder.log_path(order.attempt, rank) for rank in range(order.job.tasks)]
        self._output = OutputLimiter(logs, output_bytes_max)
        self._times = OutputTimes(logs, partial(folder.open_times, order.attempt), _now())
        self._tasks: list[SupervisedTask] = []
        self._started_s = time.monotonic()
        self._started_at: Timestamp | None = None
        self._status_saved = False
        self._childless = False
        self._warned = False
        self._was_warned_by_term = False
        self._stopping_since_s: float | None = None
        self._cancel: str | None = None
        self._asked: YieldState | None = None
        self._failure: tuple[int, str] | None = None
        self._ending = EndReason.EXITED
        self._detail = ""
        self._checkpoints: CheckpointWatch | None = None
        self._server = TerminalServer(folder.terminal, _wake_main_thread, _log_error)
        self._commands = CommandRunner(self._server, self._start_command)
        self._environment: Mapping[str, str] = {}  # of task 0
        self._containers: TaskContainers | None = None

    def start(self) -> None:
        """Record this supervisor, then start the tasks unless the run must already stop.

        Raises:
            OSError: the record could not be written, so no task was started.
        """
        self._save_status(RunPhase.STARTING, durable=True)
        self._read_requests()
        if self._cancel is not None:
            self._ending, self._detail = EndReason.CANCELLED, self._cancel
            return
        if self._asked is not None:
            self._ending, self._detail = EndReason.YIELDED, self._asked.reason
            return
        checkpoints = self._new_watch()
        try:
            self._listen()
            self._start_tasks(checkpoints)
        except TaskNotStartedError as error:
            self._failure = (error.code, error.detail)
            self._begin_stop(
                SupervisorDecision(SupervisorAction.STOP, ending=EndReason.NOT_STARTED, detail=error.detail)
            )
            if self._tasks:
                self._server.begin()  # one that runs may have a terminal
            return
        self._try_save_running()
        self._server.begin()
        if checkpoints is not None:
            self._checkpoints = checkpoints
            checkpoints.start()

    def wait_for_tasks(self) -> None:
        """Supervise the run; return when no process of it is left."""
        pause_s = KILL_RETRY_S
        while True:
            self._reap()
            if self._containers is not None and not self._running_pids():
                self._containers.end_pause(list_processes())
            self._times.note(_now())
            move = decide_next(self._observe(), self._limits)
            match move.act:
                case SupervisorAction.FINISH:
                    return
                case SupervisorAction.WAIT:
                    self._wait_for_signal(
                        min(self._output.enforce(), POLL_S if move.wait_at_most_s is None else move.wait_at_most_s)
                    )
                case SupervisorAction.WARN:
                    self._send_warning()
                case SupervisorAction.STOP:
                    self._begin_stop(move)
                case SupervisorAction.KILL:
                    self._signal_all(signal.SIGKILL)
                    self._wait_for_signal(pause_s)
                    pause_s = min(pause_s * 2, POLL_S)

    def record_end(self) -> None:
        """Remove the binding's files and record the end, retrying for as long as the disk refuses it."""
        codes = tuple(task.code for task in self._tasks)
        self._server.finish(codes[0] if codes and codes[0] is not None else NOT_EXECUTABLE)
        self._output.enforce()
        if self._checkpoints is not None:
            self._checkpoints.finish()
        missing = (None,) * (self._order.job.tasks - len(codes))
        stopped_itself = self._stopping_since_s is None and (self._failure is not None or self._was_warned_by_term)
        if self._asked is not None and stopped_itself:
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

    def _new_watch(self) -> CheckpointWatch | None:
        directory = self._order.job.checkpoint_directory
        if directory is None:
            return None
        return CheckpointWatch(self._folder, self._order.attempt, directory, self._pids_of_run)

    def _listen(self) -> None:
        """Let the run's person reach it. A run without a terminal also runs if that fails.

        Raises:
            TaskNotStartedError: it would have a terminal that cannot be reached.
        """
        try:
            self._server.listen()
        except OSError as error:
            _log_error(f"terminals and commands cannot reach the run: {error}")
            if self._order.job.terminal_keep_s is not None:
                raise TaskNotStartedError(NOT_EXECUTABLE, f"it could not be given a terminal: {error}") from error

    def _start_command(
        self, command: tuple[str, ...], environment: Mapping[str, str], streams: Streams
    ) -> subprocess.Popen[bytes] | TaskNotStartedError:
        if self._containers is not None:
            command, environment = self._containers.place_beside(command, environment, is_terminal=streams.is_terminal)
        try:
            return start_task(command, self._order.job.workdir, environment, streams)
        except TaskNotStartedError as error:
            return error

    def _start_tasks(self, checkpoints: CheckpointWatch | None) -> None:
        job = self._order.job
        try:
            bindings = self._folder.write_bindings(self._order)
            if job.checkpoint_directory is not None:
                Path(job.checkpoint_directory).mkdir(parents=True, exist_ok=True)
            meeting = choose_rendezvous()
        except (OSError, RecordUnreadableError) as error:
            raise TaskNotStartedError(NOT_EXECUTABLE, f"it could not be prepared: {error}") from error
        self._choose_checkpoint(checkpoints)
        self._prepare_containers()
        self._times.note(_now())
        self._started_at, self._started_s = _now(), time.monotonic()
        command = job.started_command(self._order.resume_from)
        for rank in range(job.tasks):
            environment = task_environment_of(self._order, rank, meeting, bindings)
            try:
                output = self._folder.open_log(self._order.attempt, rank)
            except OSError as error:
                detail = f"its log cannot be written: {error.strerror} ({error.filename})"
                raise TaskNotStartedError(NOT_EXECUTABLE, detail) from error
            if rank == 0:
                self._environment = environment
            streams = self._streams(rank, output)
            try:
                self._tasks.append(SupervisedTask(rank, self._start_task(rank, command, environment, streams)))
            finally:
                os.close(streams.stdout)

    def _prepare_containers(self) -> None:
        """Find what runs the job's image, if it has one.

        Raises:
            TaskNotStartedError: nothing here does.
        """
        if self._order.job.image is None:
            return
        try:
            self._containers = TaskContainers(self._order, self._folder.path)
        except MooringsError as error:
            raise TaskNotStartedError(NOT_EXECUTABLE, error.detail) from error

    def _start_task(
        self, rank: int, command: tuple[str, ...], environment: Mapping[str, str], streams: Streams
    ) -> subprocess.Popen[bytes]:
        if self._containers is not None:
            command, environment = self._containers.place(rank, command, environment, is_terminal=streams.is_terminal)
        return start_task(command, self._order.job.workdir, environment, streams)

    def _streams(self, rank: int, log: int) -> Streams:
        """What a task reads and writes; its caller closes the standard output.

        Raises:
            TaskNotStartedError: there is no terminal.
        """
        if rank != 0 or self._order.job.terminal_keep_s is None:
            return Streams(subprocess.DEVNULL, log, subprocess.STDOUT)
        try:
            slave = self._server.open_task_terminal(log)
        except OSError as error:
            os.close(log)
            raise TaskNotStartedError(NOT_EXECUTABLE, f"it could not be given a terminal: {error}") from error
        return Streams(slave, slave, slave, is_terminal=True)

    def _choose_checkpoint(self, checkpoints: CheckpointWatch | None) -> None:
        """Give a later attempt the newest whole one that is there now, or else what was ordered, if that is whole.

        Raises:
            TaskNotStartedError: it is torn by now, or gone.
        """
        order = self._order
        is_later = order.attempt > 0 and order.job.checkpoint.resumable
        if checkpoints is None or not (is_later or order.resume_from):
            return
        found = checkpoints.look_before()
        if found is None:
            return
        chosen = newest_whole(found, order.resume_since) if is_later else None
        checkpoints.resumed_from = chosen
        if chosen is not None:
            self._order = replace(order, resume_from=chosen.path, resume_step=chosen.step)
        elif order.resume_from and (fault := checkpoints.fault_of(order.resume_from, found)):
            raise TaskNotStartedError(NOT_EXECUTABLE, fault)

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
        self._folder.save(status, durable=durable)

    # -- watching

    def _observe(self) -> ObservedRun:
        return ObservedRun(
            elapsed_s=self._elapsed_s(),
            tasks_left=sum(task.code is None for task in self._tasks),
            has_no_processes=self._childless,
            first_failure=self._failure[1] if self._failure else None,
            cancel_reason=self._cancel,
            yielding=self._asked,
            warned=self._warned,
            has_saved=self._checkpoints is not None and self._checkpoints.has_saved(),
            stopping_since_s=self._stopping_since_s,
            unattended_s=self._server.unattended_s,
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
                code = os.waitstatus_to_exitcode(ended[1])
                if task is None:
                    self._commands.reaped(ended[0], code)
                    continue
                task.process.returncode = code
                task.code = code if code >= 0 else 128 - code
                if task.code != 0:
                    failed.append(task)
                if task.code > 128 and self._checkpoints is not None:  # also a shell's word for its child's end
                    self._checkpoints.writer_was_killed()
        except ChildProcessError:
            self._childless = True
        if failed and self._failure is None:
            first = min(failed, key=lambda task: task.rank)  # found at the same time: their order is unknown
            assert first.code is not None
            self._failure = self._explain_failure(first, first.code)

    def _explain_failure(self, task: SupervisedTask, code: int) -> tuple[int, str]:
        """The exit code of a failed task, and a sentence on it."""
        log = self._folder.log_path(self._order.attempt, task.rank)
        explained = self._containers.explain_failure(task.rank, code, log) if self._containers is not None else None
        return explained or (code, describe_failure(task.rank, task.process.returncode))

    def _wait_for_signal(self, within_s: float) -> None:
        """Wait for a signal, and act on it."""
        news = signal.sigtimedwait(_FETCHED, max(within_s, 0.0))
        if news is not None:
            self._read_requests()  # first: after a reason and then TERM, the reason counts
            if news.si_signo == signal.SIGTERM and self._cancel is None:
                self._cancel = "its supervisor was told to stop (SIGTERM)"
            elif news.si_signo > signal.SIGRTMIN:
                self._forward_signal(news.si_signo - signal.SIGRTMIN)
        self._read_requests()
        self._commands.serve(self._environment)
        if not self._status_saved and self._stopping_since_s is None:
            self._try_save_running()

    def _read_requests(self) -> None:
        if self._cancel is None and self._folder.cancel.exists():
            with contextlib.suppress(RecordUnreadableError):
                cancel = self._folder.read(CancelRecord, self._order.attempt)
                self._cancel = cancel.reason if cancel is not None else None
        if (self._asked is None or self._asked.until_saved) and self._folder.yield_file.exists():
            with contextlib.suppress(RecordUnreadableError):
                order = self._folder.read(YieldRecord, self._order.attempt)
                if order is not None:
                    self._asked = self._yield_state(order)

    def _yield_state(self, order: YieldRecord) -> YieldState:
        """The request to yield as it stands now: others may need the devices of a run that is being paused."""
        now_s, known = self._elapsed_s(), self._asked
        deadline_s = now_s + order.by_s - time.monotonic()
        if known is None:
            return YieldState(order.reason, now_s, deadline_s, until_saved=order.until_saved)
        if known.until_saved == order.until_saved:
            return known
        return replace(known, reason=order.reason, deadline_s=deadline_s, until_saved=order.until_saved)

    def _running_pids(self) -> list[int]:
        """Return process ids of the tasks that we have not reaped, so that their ids are not reused."""
        return [task.process.pid for task in self._tasks if task.code is None]

    def _programs(self, table: ProcessTable) -> list[int]:
        """Return the uppermost process of each running task's program."""
        running = self._running_pids()
        if self._containers is None:
            return running
        return [process.pid for process in self._containers.find_programs(running, table)]

    def _pids_of_run(self) -> list[int]:
        return [process.pid for process in descendants([os.getpid()], list_processes())]

    def _send_warning(self) -> None:
        """Warn the processes with a handler that they will be stopped. No others: most programs die of a USR1."""
        self._warned = True
        if self._asked is not None:
            self._asked = replace(self._asked, is_warned=True)
            if self._asked.until_saved and self._checkpoints is not None:
                self._checkpoints.expect_save()
        table = list_processes()
        to_yield = self._asked is not None
        for pid in self._programs(table):
            signum = warn_task([pid], warn_signals(self._order.job.checkpoint.warn_signal, to_yield=to_yield), table)
            self._was_warned_by_term |= to_yield and signum == signal.SIGTERM

    def _forward_signal(self, signum: int) -> None:
        """Forward a signal: to the processes with a handler, else to the task itself, whatever it does."""
        table = list_processes()
        for pid in self._programs(table):
            for process in find_signal_receivers(pid, signum, table) or [table[pid]]:
                send_signal(process, signum)

    def _begin_stop(self, move: SupervisorDecision) -> None:
        self._ending, self._detail = move.ending, move.detail
        self._stopping_since_s = self._elapsed_s()
        if self._limits.keep_s is not None:
            self._signal_all(signal.SIGHUP)  # an interactive shell ignores TERM
        self._commands.send_hangup()
        self._signal_all(signal.SIGTERM)
        self._signal_all(signal.SIGCONT)  # a stopped process cannot end itself

    def _signal_all(self, signum: int) -> None:
        """Send a signal once to each process of the run.

        A task's own group is signalled in one call, so that no process can escape by forking. Processes outside the
        group are found by descent, because every orphan is our child.
        """
        if self._containers is not None:
            everyone = descendants([os.getpid()], list_processes())
            for process in self._containers.choose_receivers(everyone, signum):
                send_signal(process, signum)
            return
        groups = self._running_pids()
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


def _wake_main_thread() -> None:
    main_thread = threading.main_thread().ident
    assert main_thread is not None, "it runs"
    signal.pthread_kill(main_thread, WAKEUP_SIGNAL)


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
    supervisor.start()
    os.close(ready)
    supervisor.wait_for_tasks()
    supervisor.record_end()


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


# -- starting a task ---------------------------------------------------------------------------------------------------
# Starts one process of a job: its environment, its output, its session, and the command without a shell.

NOT_EXECUTABLE = 126  # as shells exit
NOT_FOUND = 127

_SETTABLE = frozenset(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}


class TaskNotStartedError(Exception):
    """A task could not be started.

    Args:
        code: the run's exit code, as in shells: 127 if the program was not found, else 126.
        detail: a sentence that names the cause.
    """

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


def choose_rendezvous() -> Rendezvous:
    """Return a rendezvous for task 0: a port of this machine that is free now.

    The port is not held until task 0 binds it: a held one would be refused to a program without SO_REUSEADDR.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Rendezvous("127.0.0.1", probe.getsockname()[1])


def task_environment_of(order: RunSubmission, rank: int, meeting: Rendezvous, bindings: Path | None) -> dict[str, str]:
    """Return all variables of one task: the job's own, its binding's and Moorings'; none of the controller's.

    Args:
        order: the run.
        rank: the task's rank.
        meeting: the address and port of task 0.
        bindings: the folder of the binding's files; None for API form.
    """
    variables = dict(order.job.environment)
    variables |= task_environment(
        order.binding, rank, meeting, run=order.run, files_folder=str(bindings) if bindings is not None else None
    )
    return variables | checkpoint_environment(order)


def start_task(
    command: tuple[str, ...], workdir: str, environment: Mapping[str, str], streams: Streams
) -> subprocess.Popen[bytes]:
    """Start one task in a session of its own; the kernel KILLs it if the caller dies.

    Without a terminal its output goes directly to the file, not through a pipe, so that it does not break when the
    supervisor does. Call it from the main thread, with whose end the kernel kills it. The caller reaps the process
    itself and sets ``returncode``: a Popen that reaps would take the exit status away.

    Raises:
        TaskNotStartedError: the program or its folder cannot be used.
    """
    parent = os.getpid()

    def before_exec() -> None:
        die_with_parent(parent)
        if streams.is_terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        for signum in _SETTABLE:  # a controller under nohup ignores HUP, and exec would keep that
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    try:
        return subprocess.Popen(
            command,
            cwd=workdir,
            env=environment,
            stdin=streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr,
            start_new_session=True,
            preexec_fn=before_exec,  # safe beside other threads: it takes no lock that one of them may hold
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise _start_error(error, command[0], workdir) from error


def _start_error(error: Exception, program: str, workdir: str) -> TaskNotStartedError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if not Path(workdir).is_dir():
        return TaskNotStartedError(NOT_EXECUTABLE, f"its working folder {workdir} does not exist or is not a folder")
    if isinstance(error, OSError) and error.filename == workdir and workdir != program:
        return TaskNotStartedError(NOT_EXECUTABLE, f"its working folder {workdir} cannot be entered: {reason}")
    if isinstance(error, FileNotFoundError):
        if (Path(workdir) / program).is_file():
            detail = f"{program} cannot be started: the interpreter that its first line names was not found"
        else:
            detail = f"{program} was not found"
        return TaskNotStartedError(NOT_FOUND, detail)
    return TaskNotStartedError(NOT_EXECUTABLE, f"{program} cannot be started: {reason}")


if __name__ == "__main__":
    main()
