"""Work in the terminal of a run: wait until it runs, attach, and say how it ended or how to come back."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from moorings.cli.slurm_terminals import SlurmTerminal, is_on_slurm
from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import duration_text
from moorings.terminal.attaching import Relay, RelayEnd, RelayResult, connect, raw_terminal, window_size
from moorings.terminal.context import CommandContext
from moorings.terminal.following import END_WAIT_S, RunFollower, requeued_text, run_end_text, run_exit_code
from moorings.terminal.progress import Progress
from moorings.wire.errors import ExitCode
from moorings.wire.frames import TerminalAction, TerminalRequest
from moorings.wire.shapes import RunBody, TaskContainerBody, TerminalBody
from moorings.workloads.runs import ENDED, RunState

SIGHUP_EXIT = 129  # 128 + 1: its terminal has gone
EARLIER_BYTES_MAX = 1 << 16
REFERENCE_POLL_S = 1.0
ENDED_POLL_S = 0.2
ENDED_WAIT_S = 15.0  # in which the controller sees that a container has ended
LOST_S = 3.0  # the same, where kubectl says that the connection was lost
_PRESENT = frozenset({RunState.RUNNING, RunState.YIELDING, RunState.STOPPING})


def check_terminal() -> None:
    """Raise unless a person can type here.

    Raises:
        MooringsError: ``terminal.missing``.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        hint = "leave -i out; 'moor exec RUN -- COMMAND' also takes pipes"
        raise MooringsError("terminal.missing", "standard input and output are no terminal", hint=hint)


class TerminalSession:
    """This terminal as the one of a run.

    Args:
        session: its client retries, so that it survives a restart of the controller.
        progress: where to report.
    """

    def __init__(self, session: CommandContext, progress: Progress) -> None:
        self._session = session
        self._client = session.client
        self._progress = progress
        self._print = session.console.print_bytes  # earlier output
        self._follower = RunFollower(self._client, progress, lambda _chunk: None)
        self._term = session.environment.get("TERM", "")
        self._is_told = False
        self.is_attached = False  # whether it has been: from then on Ctrl-C is the program's

    def follow(self, run: RunBody) -> int:
        """Stay in the terminal until the run has ended or the person leaves; the exit code of ``moor``.

        Raises:
            MooringsError: as the controller or the run's supervisor says; ``kubernetes.*``, as the cluster says.
        """
        if run.engine == "kubernetes":
            run = self._check_may_attach(run)
        while True:
            run = self._follower.wait_for_processes(run)
            if run.state in ENDED:
                break
            try:
                result = self._use_terminal(run)
            except MooringsError as error:
                run = self._after_failure(run, error)
                continue
            if result.end in (RelayEnd.DETACHED, RelayEnd.CLOSED):
                self.report_left(run)
                return ExitCode.OK if result.end is RelayEnd.DETACHED else SIGHUP_EXIT
            try:
                run = self._await_outcome(run)
            except MooringsError:
                if result.end is RelayEnd.LOST:
                    raise
                return result.exit_code
            if run.state in ENDED:
                break
            self._progress.report(f"{run.id}: {requeued_text(run)}")
        if not self.is_attached:  # it was too quick; what it printed is in its log
            for chunk in self._client.logs(run.id):
                self._print(chunk)
        self._progress.report(run_end_text(run))
        return run_exit_code(run)

    def report_left(self, run: RunBody) -> None:
        """Say how to come back to a run, and until when."""
        keep_s = run.job.terminal_keep_s
        until = f"; it gets HUP in {duration_text(keep_s)} if you do not" if keep_s is not None else ""
        self._progress.report(f"{run.id}: detached; 'moor attach {run.id}' comes back{until}")

    def _use_terminal(self, run: RunBody) -> RelayResult:
        if is_on_slurm(run):
            self._begin(run, "Ctrl-P Ctrl-Q detaches")
            return SlurmTerminal(self._session, self._progress).attach(run)
        where = self._client.get_terminal(run.id, attended=True)
        if where.container is not None:
            return self._use_container(run, where.container)
        connected = connect(
            socket_of(where), TerminalRequest(action=TerminalAction.ATTACH, term=self._term, size=window_size(0))
        )
        with connected:
            self._begin(run, "Ctrl-P Ctrl-Q detaches")
            with raw_terminal(0):
                return Relay(connected, terminal=True).run()

    def _begin(self, run: RunBody, how_to_leave: str) -> None:
        if not self._is_told:
            self._is_told = True
            self._progress.report(f"{run.id}: {_held_text(run)}; {how_to_leave}")
        self.is_attached = True

    def _check_may_attach(self, run: RunBody) -> RunBody:
        """The run, once its namespace is known and the person may attach there: at once, not after a long wait.

        Raises:
            MooringsError: ``kubernetes.*``; a run that never ran is cancelled.
        """
        from moorings.cli.pod_terminal import check_right
        from moorings.kubernetes.engine.kubectl import PodRight

        while run.reference is None and run.state not in ENDED:
            self._progress.show_waiting(f"{run.id}: {run.reason.message if run.reason else 'being submitted'}")
            run = self._client.get_run(run.id, wait_s=REFERENCE_POLL_S)
        if run.state in ENDED:
            return run
        try:
            check_right((run.reference or "").partition("/")[0], PodRight.ATTACH)
        except MooringsError:
            if run.started_at is None:
                self._client.cancel_run(run.id)
            raise
        return run

    def _use_container(self, run: RunBody, place: TaskContainerBody) -> RelayResult:
        """Attach by ``kubectl``, which shows nothing earlier: the run's log has that."""
        from moorings.cli.pod_terminal import attach

        self._begin(run, "close the terminal to detach")
        earlier = b""
        for chunk in self._client.logs(run.id, task=0):
            earlier = (earlier + chunk)[-EARLIER_BYTES_MAX:]
        self._print(earlier)
        failure = attach(self._session, run.id, place)
        limit = time.monotonic() + (LOST_S if failure else ENDED_WAIT_S)
        while time.monotonic() < limit:
            try:
                self._client.get_terminal(run.id)
            except MooringsError as error:
                if error.code == "run.not_running":
                    return RelayResult(RelayEnd.EXITED)
                raise
            time.sleep(ENDED_POLL_S)
        if failure:
            self._progress.report(f"{run.id}: kubectl: {failure}")
        return RelayResult(RelayEnd.CLOSED)

    def _after_failure(self, run: RunBody, error: MooringsError) -> RunBody:
        """The run, if its terminal was not reached because this attempt has ended.

        Raises:
            MooringsError: ``error``, if it has not.
        """
        if error.code not in ("run.not_running", "terminal.unreachable"):
            raise error
        now = self._client.get_run(run.id, wait_s=END_WAIT_S)
        if now.state not in ENDED and now.attempt == run.attempt:
            raise error
        return now

    def _await_outcome(self, run: RunBody) -> RunBody:
        """The run once this attempt of it is over."""
        attempt = run.attempt
        while run.state in _PRESENT and run.attempt == attempt:
            run = self._client.get_run(run.id, wait_s=END_WAIT_S)
        return run


def _held_text(run: RunBody) -> str:
    """What a run holds, and until when."""
    job = run.job
    size = job.accelerators.size
    devices = f"{run.pool} devices {run.devices}" if run.devices else f"{size or 'no'} devices"
    if is_on_slurm(run):
        devices = f"Slurm job {run.reference}"
    limit = f", at most {duration_text(job.time_limit_s)}" if job.time_limit_s is not None else ""
    return f"holds {devices} until you leave it{limit}"


def socket_of(where: TerminalBody) -> Path:
    """The socket of the run's supervisor.

    Raises:
        MooringsError: ``terminal.refused``.
    """
    if where.socket is None:
        raise MooringsError("terminal.refused", f"the controller names no terminal of run {where.run}")
    return Path(where.socket)


def find_command(environment: Mapping[str, str], *, in_container: bool = False) -> tuple[str, ...]:
    """The person's own shell, as a login starts it; in a container what its image has."""
    import pwd

    if in_container:
        from moorings.kubernetes.engine.kubectl import CONTAINER_SHELL

        return CONTAINER_SHELL

    shell = environment.get("SHELL")
    if not shell:
        try:
            shell = pwd.getpwuid(os.getuid()).pw_shell
        except KeyError:
            shell = ""
    return (shell or "/bin/sh", "-l")
