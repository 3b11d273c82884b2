"""A person's own runs on Slurm, for the commands that start, stop and show runs.

Slurm's part (``slurm.personal``) is imported only where such runs are, because most commands never meet one.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from moorings.core.model.errors import MooringsError
from moorings.terminal.configuration import data_folder
from moorings.terminal.context import CommandContext
from moorings.wire.shapes import RunBody, RunReportRequest, RunRequest, SubmitterShape

if TYPE_CHECKING:
    from moorings.slurm.personal.own_runs import OwnRuns
    from moorings.workloads.jobs import JobSpec

LOOK_S = 3.0  # for one of Slurm's commands, where something else was asked for
REPORT_S = 5.0  # between two reports while a run is followed
_AWAY = ("engine.unavailable", "slurm.unavailable", "controller.unreachable", "slurm.missing")


def runs_folder(session: CommandContext) -> Path:
    """The folder of this person's runs on Slurm, which the nodes see, too: ``MOORINGS_SLURM_RUNS``."""
    chosen = session.environment.get("MOORINGS_SLURM_RUNS")
    return Path(chosen).absolute() if chosen else data_folder(session.environment) / "slurm"


def open_own_runs(session: CommandContext, *, timeout_s: float = 20.0) -> OwnRuns:
    """This person's runs on Slurm; each of Slurm's commands may take so long."""
    from moorings.slurm.commands import SlurmCommands
    from moorings.slurm.personal.own_runs import OwnRuns

    return OwnRuns(runs_folder(session), SlurmCommands(session.environment, timeout_s=timeout_s))


class SlurmSubmission:
    """A new run that this person may have to submit to Slurm themselves."""

    def __init__(self, session: CommandContext, job: JobSpec) -> None:
        self._session = session
        self._job = job
        self._secret = ""
        self._own: OwnRuns | None = None

    def prepare(self, request: RunRequest) -> RunRequest:
        """The request, with its submitter where people submit themselves.

        Raises:
            MooringsError: ``slurm.missing``, ``engine.rejected``: no job can be submitted from here.
        """
        if request.engine != "slurm" or "slurm" not in self._session.client.who_am_i().submits_to:
            return request
        from moorings.slurm.personal.own_runs import new_token

        own = open_own_runs(self._session)
        own.check()
        self._own = own
        self._secret, digest = new_token()
        return replace(request, submitter=SubmitterShape(uid=os.getuid(), token_digest=digest))

    def submit(self, made: RunBody) -> str:
        """Submit the new run if that is ours to do; returns what to say of it, or nothing.

        If Slurm cannot be reached, the run waits for this person's next ``moor``.

        Raises:
            MooringsError: ``engine.rejected``: Slurm refuses it, and the run is cancelled; ``engine.unavailable``: its
                folder cannot be written.
        """
        if self._own is None or made.submission is None:
            return ""
        from moorings.slurm.personal.own_runs import own_run

        endpoint = self._session.build_endpoint()
        files = (endpoint.ca_file, endpoint.cert_file, endpoint.key_file)
        try:
            self._own.save(made.id, own_run(self._job, endpoint.server, self._secret, *files))
            job = self._own.submit(made.id, made.submission)
        except MooringsError as error:
            if error.code in _AWAY and self._own.has(made.id):
                return f"{made.id}: not submitted yet: {error.detail}; your next 'moor' command here submits it"
            with contextlib.suppress(MooringsError):  # Slurm will never have it
                cancel_own(self._session, self._session.client.cancel_run(made.id))
            raise
        return f"{made.id}: submitted as Slurm job {job}"

    @contextlib.contextmanager
    def reported(self, run: str) -> Iterator[None]:
        """Report on a run every few seconds while it is followed: its nodes may have no way to the controller."""
        if self._own is None or not self._own.has(run):
            yield
            return
        done = threading.Event()
        thread = threading.Thread(target=self._report_until, args=(done, run), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
        self._own.close(run)

    def _report_until(self, done: threading.Event, run: str) -> None:
        own = open_own_runs(self._session)
        with self._session.new_client() as client:
            while not done.wait(REPORT_S) and run in own.open_runs():
                with contextlib.suppress(MooringsError, OSError):
                    own.report(client, [run])


def cancel_own(session: CommandContext, run: RunBody) -> None:
    """Cancel a run with one's own scancel, if it is this person's, and report that.

    Raises:
        MooringsError: ``engine.unavailable``: Slurm cannot be reached.
    """
    if run.engine != "slurm":
        return
    own = open_own_runs(session)
    if (runs_folder(session) / "open" / run.id).exists():
        own.cancel(run.id, f"cancelled by {run.subject}")
        with contextlib.suppress(MooringsError):
            own.report(session.client, [run.id])
    elif run.reference is None and not own.has(run.id):
        abandon_unsaved(session, own, run)


def abandon_unsaved(session: CommandContext, own: OwnRuns, run: RunBody) -> None:
    """Report that a run was never submitted: its ``moor`` ended before it had saved anything here."""
    with contextlib.suppress(MooringsError):
        caller = session.client.who_am_i()
        if run.engine in caller.submits_to and caller.subject == run.subject and not own.has_job(run.id):
            session.client.report_run(run.id, RunReportRequest(attempt=run.attempt, abandoned=True))


def submit_own(session: CommandContext, run: RunBody) -> None:
    """Submit a run of this person again that was resumed.

    Raises:
        MooringsError: ``engine.rejected``, ``engine.unavailable``.
    """
    if run.submission is None or not (runs_folder(session) / run.id / "run.json").exists():
        return
    own = open_own_runs(session)
    own.submit(run.id, run.submission)
    with contextlib.suppress(MooringsError):
        own.report(session.client, [run.id])


def report_own(session: CommandContext) -> None:
    """Report on this person's runs that are not known to have ended; at once if there are none, and never an error."""
    marks = runs_folder(session) / "open"
    try:
        with os.scandir(marks) as entries:
            if next(entries, None) is None:
                return
    except OSError:
        return
    own = open_own_runs(session, timeout_s=LOOK_S)
    with contextlib.suppress(MooringsError, OSError):
        own.report(session.client, own.unreported(session.configuration.text("server")))
