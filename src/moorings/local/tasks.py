"""Starts one process of a job: its environment, its output, its session, and the command without a shell."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from moorings.core.bindings import Rendezvous, task_environment
from moorings.engines.orders import checkpoint_environment
from moorings.local.processes import die_with_parent
from moorings.ports.engine import RunSubmission

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
        order.binding, rank, meeting, run=order.run, folder=str(bindings) if bindings is not None else None
    )
    return variables | checkpoint_environment(order)


def start_task(
    command: tuple[str, ...], workdir: str, environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Start one task in a session of its own; the kernel KILLs it if the caller dies.

    Its output goes directly to the file, not through a pipe, so that it does not break when the supervisor does. The
    caller reaps the process itself and sets ``returncode``: a Popen that reaps would take the exit status away.

    Raises:
        TaskNotStartedError: the program, its folder or its log cannot be used.
    """
    parent = os.getpid()

    def before_exec() -> None:
        die_with_parent(parent)
        for signum in _SETTABLE:  # a controller under nohup ignores HUP, and exec would keep that
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    try:
        for folder in (log.parent.parent, log.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise TaskNotStartedError(NOT_EXECUTABLE, f"its log cannot be written: {error.strerror} ({log})") from error
    try:
        return subprocess.Popen(
            command,
            cwd=workdir,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=before_exec,  # safe: a supervisor has one thread
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise _start_error(error, command[0], workdir) from error
    finally:
        os.close(output)


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
