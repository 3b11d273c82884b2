"""What a run holds on Slurm: its terminal, commands beside its tasks, its ports. Each is a step of its job.

The person's own ``srun`` starts it, so Slurm itself decides whether they may, and nothing typed passes through the
controller. Slurm's part is imported only where such a run is met.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING

from moorings.core.model.errors import MooringsError
from moorings.engines.loopback import is_open
from moorings.submission.job_environment import JobPlace, find_place
from moorings.terminal.attaching import RelayEnd, RelayResult
from moorings.terminal.context import CommandContext
from moorings.terminal.progress import Progress
from moorings.wire.frames import TerminalRequest
from moorings.wire.shapes import RunBody, RunRequest
from moorings.workloads.runs import RunState

if TYPE_CHECKING:
    from moorings.slurm.formats import JobRecord

CONNECTIONS_MAX = 16  # at a time: each is a step that slurmctld starts
END_S = 5.0  # for an srun that must end
CLOSED_POLL_S = 1.0
ENDING_S, ENDING_LOOKS = 0.5, 4  # slurmctld ends the steps of a job before it shows that the job ends
READ_BYTES = 1 << 16
COMPLAINTS_MAX = 20  # lines
_HAS_PROCESSES = (RunState.RUNNING, RunState.YIELDING, RunState.STOPPING)
_COMPLAINT = re.compile(r"(?:srun|slurmstepd)[^:]*: (?:error: )?")
# It was never there, so it has not been left.
_NOT_STARTED = re.compile(r"unable to (create step|confirm|contact|allocate)|invalid job id|denied", re.IGNORECASE)
_ENDS = re.compile(r"force terminated|cancelled", re.IGNORECASE)  # perhaps with its job
_WAITS = re.compile(r"retry|temporarily|waiting|pending", re.IGNORECASE)


def is_on_slurm(run: RunBody) -> bool:
    """Whether a run is reached by a step of its job."""
    return run.engine == "slurm"


def check_is_ours(session: CommandContext, request: RunRequest) -> None:
    """Raise if this person could not reach the terminal of a new run: the controller submits it, as its own user.

    Raises:
        MooringsError: ``engine.rejected``.
    """
    if request.job.terminal_keep_s is None:
        return
    if find_place(session.configuration.text("server"), "local", session.environment) is not JobPlace.OWN:
        detail = "the controller submits all jobs as its own user, and only that user can reach their terminals"
        hint = "leave -i out; or have people submit their jobs themselves: no folder in [slurm] of its settings"
        raise MooringsError("engine.rejected", detail, hint=hint)


def become_step(found: RunBody, request: TerminalRequest) -> int:
    """Become the person's own ``srun``, which runs the command as a step of the run's job.

    Raises:
        MooringsError: ``run.not_running``, ``slurm.missing``.
    """
    from moorings.slurm.engine.beside import build_beside

    job = _job_of(found)
    call = build_beside(job, found.id, found.job.workdir, request.command, term=request.term, tty=request.tty)
    try:
        os.execvp(call[0], call)  # noqa: S606 - no shell
    except FileNotFoundError as error:
        raise _missing() from error


class SlurmTerminal:
    """This terminal as that of a run on Slurm."""

    def __init__(self, session: CommandContext, progress: Progress) -> None:
        self._session = session
        self._progress = progress

    def attach(self, run: RunBody) -> RelayResult:
        """Be at the terminal of a run until its program has ended or it is left.

        Of an end the controller has more to say, so it counts as LOST here.

        Raises:
            MooringsError: ``terminal.refused``, ``terminal.unreachable``, ``run.not_running``, ``slurm.*``.
        """
        from moorings.slurm.engine.beside import NO_TERMINAL, build_attach
        from moorings.slurm.engine.node_terminal import DETACHED

        job = check_own_job(self._session, run)
        code, complaints = self._run_step(build_attach(str(job.job_id), run.id))
        if code == 0:
            return RelayResult(RelayEnd.LOST)
        if code == DETACHED:
            return RelayResult(RelayEnd.DETACHED)
        if code == NO_TERMINAL:
            hint = "'moor exec RUN -- bash' starts a shell beside its tasks"
            raise MooringsError("terminal.refused", f"run {run.id} has no terminal", hint=hint)
        return self._explain_end(run, code, complaints)

    def _explain_end(self, run: RunBody, code: int, complaints: Sequence[str]) -> RelayResult:
        """What has become of a step that ended in another way: the job's state says it.

        Raises:
            MooringsError: it was never at the terminal.
        """
        from moorings.slurm.engine.node_terminal import UNREACHABLE

        said = complaints[-1] if complaints else f"srun ended with {code}"
        looks = ENDING_LOOKS if any(_ENDS.search(each) for each in complaints) else 1
        for look in range(looks):
            try:
                check_own_job(self._session, run)
            except MooringsError as error:
                if error.code == "run.not_running":
                    return RelayResult(RelayEnd.LOST)
                said = f"{said}; {error.detail}"
                break
            if look < looks - 1:
                time.sleep(ENDING_S)
        if code == UNREACHABLE or any(_NOT_STARTED.search(each) for each in complaints):
            detail = f"the terminal of run {run.id} cannot be reached: {said}"
            raise MooringsError("terminal.unreachable", detail, hint=f"moor attach {run.id}")
        self._progress.report(f"{run.id}: the connection to its terminal was lost: {said}")
        return RelayResult(RelayEnd.CLOSED)

    def _run_step(self, call: Sequence[str]) -> tuple[int, list[str]]:
        """The exit code of ``srun``, and its complaints."""
        before = termios.tcgetattr(0)
        process = _start(call, None, None)
        assert process.stderr is not None
        complaints: list[str] = []
        reader = threading.Thread(target=self._read_complaints, args=(process.stderr, complaints), daemon=True)
        reader.start()
        try:
            return process.wait(), complaints
        finally:
            _end(process)
            reader.join(END_S)
            with contextlib.suppress(termios.error):  # it has gone
                termios.tcsetattr(0, termios.TCSANOW, before)

    def _read_complaints(self, stream: IO[bytes], complaints: list[str]) -> None:
        for line in stream:
            text = _COMPLAINT.sub("", line.decode("utf-8", "replace"), count=1).strip()
            if len(complaints) < COMPLAINTS_MAX and text:
                complaints.append(text)
            if _WAITS.search(text):
                self._progress.report(f"Slurm: {text}")


def check_own_job(session: CommandContext, run: RunBody) -> JobRecord:
    """The live job of a run, which must be this person's.

    Raises:
        MooringsError: ``run.not_running``, ``terminal.refused``, ``slurm.*``.
    """
    import asyncio

    from moorings.slurm.commands import SlurmCommands
    from moorings.slurm.formats import SlurmJobPhase, build_jobs, parse_jobs

    number = int(_job_of(run))
    slurm = SlurmCommands(session.environment)
    try:
        listed = parse_jobs(asyncio.run(slurm.run_checked(build_jobs(jobs=[number]))))
    except MooringsError as error:
        if error.code == "slurm.missing":
            raise _missing() from error
        if error.code != "slurm.job_unknown":
            raise
        listed = []
    job = next((each for each in listed if each.job_id == number), None)
    if job is None or job.phase is not SlurmJobPhase.LIVE or job.state.startswith("COMPLETING"):
        state = job.state if job is not None else "not there any more"
        raise MooringsError("run.not_running", f"run {run.id} has no processes: its Slurm job {number} is {state}")
    if os.geteuid() not in (job.uid, 0):
        detail = f"Slurm job {number} of run {run.id} belongs to {job.user or job.uid}"
        raise MooringsError("terminal.refused", detail, hint="only the user of a job reaches its processes")
    return job


def _job_of(run: RunBody) -> str:
    """Slurm's number of a run's job.

    Raises:
        MooringsError: ``run.not_running``.
    """
    if run.state not in _HAS_PROCESSES or run.reference is None:
        raise MooringsError("run.not_running", f"run {run.id} is {run.state}", hint=f"moor describe run {run.id}")
    return run.reference


class StepForwarder:
    """Passes connections to ports of the node of a run's first task: each by a step of its own.

    Args:
        job: Slurm's number of the run's job.
        report: takes a sentence about a connection that failed.
    """

    connections_max = CONNECTIONS_MAX

    def __init__(self, job: str, report: Callable[[str], None]) -> None:
        self._job = job
        self._report = report
        self._steps: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._is_closed = False

    def forward(self, connection: socket.socket, port: int) -> None:
        """Pass bytes on until the connection or its other end is closed."""
        from moorings.slurm.engine.beside import build_forward

        try:
            with self._lock:
                if self._is_closed:
                    return
                step = _start(build_forward(self._job, port), subprocess.PIPE, subprocess.PIPE)
                self._steps.add(step)
        except MooringsError as error:
            self._report(error.detail)
            return
        outgoing = threading.Thread(target=_send_outgoing, args=(connection, step), daemon=True)
        outgoing.start()
        with step:  # closes its pipes
            try:
                self._pass_answers(connection, step, port)
            finally:
                _end(step)
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                outgoing.join()
                with self._lock:
                    self._steps.discard(step)

    def close(self) -> None:
        """End all of them."""
        with self._lock:
            self._is_closed = True
            for step in self._steps:
                with contextlib.suppress(OSError):
                    step.terminate()

    def _pass_answers(self, connection: socket.socket, step: subprocess.Popen[bytes], port: int) -> None:
        assert step.stdout is not None
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            while chunk := os.read(step.stdout.fileno(), READ_BYTES):
                connection.sendall(chunk)
            if step.wait(END_S) not in (0, -signal.SIGTERM) and not self._is_closed:
                self._report(f"port {port}: {_last_complaint(step)}")


def _send_outgoing(connection: socket.socket, step: subprocess.Popen[bytes]) -> None:
    """Pass on what the client sends; end the step once the client has closed its connection.

    Bash cannot close one direction alone. So a client that sends no more, but reads, keeps both.
    """
    assert step.stdin is not None
    with contextlib.suppress(OSError):
        while chunk := connection.recv(READ_BYTES):
            while chunk:
                chunk = chunk[os.write(step.stdin.fileno(), chunk) :]
    while step.poll() is None and is_open(connection):
        with contextlib.suppress(subprocess.TimeoutExpired):
            step.wait(CLOSED_POLL_S)
    with contextlib.suppress(OSError):
        step.terminate()


def _last_complaint(step: subprocess.Popen[bytes]) -> str:
    assert step.stderr is not None
    lines = step.stderr.read(READ_BYTES).decode("utf-8", "replace").splitlines()
    ours = [each.removeprefix("moorings: ") for each in lines if each.startswith("moorings: ")]
    return ours[-1] if ours else _COMPLAINT.sub("", lines[-1], count=1) if lines else "srun has failed"


def _start(call: Sequence[str], stdin: int | None, stdout: int | None) -> subprocess.Popen[bytes]:
    """Start an ``srun`` that ends with this process; a forwarding one gets no Ctrl-C of our terminal.

    Raises:
        MooringsError: ``slurm.missing``.
    """
    from moorings.engines.processes import die_with_parent

    parent = os.getpid()
    try:
        return subprocess.Popen(
            call,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=stdin is not None,
            preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),  # it takes no lock
        )
    except FileNotFoundError as error:
        raise _missing() from error


def _end(process: subprocess.Popen[bytes]) -> None:
    """End an ``srun``, and with it its step."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _missing() -> MooringsError:
    hint = "run it where 'srun' is, as the user of the job"
    return MooringsError("slurm.missing", "there is no srun here", hint=hint)
