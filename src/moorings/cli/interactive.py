"""Work in the terminal of a run: wait until it runs, attach, and say how it ended or how to come back."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from moorings.client.client import Client
from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import duration_text
from moorings.terminal.attaching import Relay, RelayEnd, RelayResult, connect, raw_terminal, window_size
from moorings.terminal.following import END_WAIT_S, RunFollower, requeued_text, run_end_text, run_exit_code
from moorings.terminal.progress import Progress
from moorings.wire.errors import ExitCode
from moorings.wire.frames import TerminalAction, TerminalRequest
from moorings.wire.shapes import RunBody
from moorings.workloads.runs import ENDED

SIGHUP_EXIT = 129  # 128 + 1: its terminal has gone


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
        client: retries, so that it survives a restart of the controller.
        progress: where to report.
        write: receives the output of a run that ends before it is attached to.
        environment: for ``TERM``.
    """

    def __init__(
        self, client: Client, progress: Progress, write: Callable[[bytes], None], environment: Mapping[str, str]
    ) -> None:
        self._client = client
        self._progress = progress
        self._print = write
        self._follower = RunFollower(client, progress, lambda _chunk: None)
        self._term = environment.get("TERM", "")
        self._is_told = False
        self.is_attached = False  # whether it has been: from then on Ctrl-C is the program's

    def follow(self, run: RunBody) -> int:
        """Stay in the terminal until the run has ended or the person leaves; the exit code of ``moor``.

        Raises:
            MooringsError: as the controller or the run's supervisor says.
        """
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
        where = self._client.get_terminal(run.id)
        connected = connect(
            Path(where.socket), TerminalRequest(action=TerminalAction.ATTACH, term=self._term, size=window_size(0))
        )
        with connected:
            if not self._is_told:
                self._is_told = True
                self._progress.report(f"{run.id}: {_held_text(run)}")
            self.is_attached = True
            with raw_terminal(0):
                return Relay(connected, terminal=True).run()

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
        while run.state not in ENDED and run.attempt == attempt:
            run = self._client.get_run(run.id, wait_s=END_WAIT_S)
        return run


def _held_text(run: RunBody) -> str:
    """What a run holds, and until when."""
    job = run.job
    devices = f"{run.pool} devices {run.devices}" if run.devices else "no devices"
    limit = f", at most {duration_text(job.time_limit_s)}" if job.time_limit_s is not None else ""
    return f"holds {devices} until you leave it{limit}; Ctrl-P Ctrl-Q detaches"


def find_command(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The person's own shell, as a login starts it."""
    import pwd

    shell = environment.get("SHELL")
    if not shell:
        try:
            shell = pwd.getpwuid(os.getuid()).pw_shell
        except KeyError:
            shell = ""
    return (shell or "/bin/sh", "-l")
