"""A person's own runs on Slurm, for the commands that start, stop and show runs.

Slurm's part (``slurm.personal``) is imported only where such runs are, because most commands never meet one.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from moorings.client.requests import RunFilter
from moorings.core.model.errors import MooringsError
from moorings.terminal.configuration import data_folder
from moorings.terminal.context import CommandContext
from moorings.wire.shapes import RunBody, RunReportRequest, RunRequest, SubmissionBody, SubmitterShape
from moorings.workloads.arrays import parse_array

if TYPE_CHECKING:
    from moorings.slurm.personal.own_runs import OwnRun, OwnRuns
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
        self._secrets: list[str] = []
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
        count = len(parse_array(self._job.array)[0]) if self._job.array else 1
        tokens = [new_token() for _ in range(count)]
        self._secrets = [secret for secret, _ in tokens]
        digests = tuple(digest for _, digest in tokens)
        submitter = SubmitterShape(
            uid=os.getuid(), token_digest=digests[0], token_digests=digests if self._job.array else None
        )
        return replace(request, submitter=submitter)

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
        job = replace(self._job, after=made.job.after or ())  # by id: names may be another's later
        own = own_run(job, endpoint.server, self._secrets[0], *files)
        if made.array is not None:
            return self._submit_array(self._own, made.array.id, own, made.submission)
        try:
            self._own.save(made.id, own)
            number = self._own.submit(self._session.client, made.id, made.submission)
        except MooringsError as error:
            if error.code in _AWAY and self._own.has(made.id):
                return f"{made.id}: not submitted yet: {error.detail}; your next 'moor' command here submits it"
            with contextlib.suppress(MooringsError):  # Slurm will never have it
                cancel_own(self._session, self._session.client.cancel_run(made.id))
            raise
        return f"{made.id}: submitted as Slurm job {number}"

    def _submit_array(self, runs: OwnRuns, array: str, own: OwnRun, submission: SubmissionBody) -> str:
        """Submit the runs of an array; what Slurm takes of them stays, whatever comes behind it.

        Raises:
            MooringsError: not even the first can be, and all are cancelled.
        """
        from moorings.slurm.personal.own_arrays import element_runs, submit_elements

        elements = element_runs(array, own, self._secrets)
        before = self._session.if_interrupted
        self._session.if_interrupted = f"{array}: not all of it is submitted; your next 'moor' command here submits it"
        try:
            for ident, one in elements.items():
                runs.save(ident, one)
            done = submit_elements(runs, self._session.client, list(elements), submission)
            if done.error is not None and not done.jobs and done.error.code not in _AWAY:
                raise done.error
        except MooringsError:
            with contextlib.suppress(MooringsError):
                cancel_array(self._session, array)
            raise
        self._session.if_interrupted = before
        if done.error is None:
            return f"{array}: {len(done.jobs)} runs submitted as Slurm jobs {done.jobs[0]} to {done.jobs[-1]}"
        left = "your next 'moor' command here submits the others"
        return f"{array}: {len(done.jobs)} of {len(elements)} runs submitted, then: {done.error.detail}; {left}"

    def close(self, runs: Iterable[RunBody]) -> None:
        """Note that runs have ended: they are reported no more."""
        if self._own is not None:
            for run in runs:
                self._own.close(run.id)

    @contextlib.contextmanager
    def reported(self, run: str) -> Iterator[None]:
        """Report on a run every few seconds while it is followed: its nodes may have no way to the controller."""
        if self._own is None or not self._own.has(run):
            yield
            return
        with reporting(self._session, run):
            yield
        self._own.close(run)


@contextlib.contextmanager
def reporting(session: CommandContext, run: str) -> Iterator[None]:
    """Report on a run of this person every few seconds; it need not end meanwhile."""
    if not (runs_folder(session) / "open" / run).exists():
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_report_until, args=(session, done, run), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()


def _report_until(session: CommandContext, done: threading.Event, run: str) -> None:
    own = open_own_runs(session)
    with session.new_client() as client:
        while not done.wait(REPORT_S) and run in own.open_runs():
            with contextlib.suppress(MooringsError, OSError):
                own.report(client, [run])


def cancel_own(session: CommandContext, *runs: RunBody) -> None:
    """Cancel runs with one's own scancel, as far as they are this person's, and report that.

    Raises:
        MooringsError: ``engine.unavailable``: Slurm cannot be reached.
    """
    runs = tuple(run for run in runs if run.engine == "slurm")
    if not runs:
        return
    own, marks = open_own_runs(session), runs_folder(session) / "open"
    saved = [run for run in runs if (marks / run.id).exists()]
    idents = [run.id for run in saved]
    own.cancel(idents, f"cancelled by {runs[0].subject}")
    with contextlib.suppress(MooringsError):
        own.report(session.client, idents)
    for run in runs:
        if run not in saved and run.reference is None and not own.has(run.id):
            abandon_unsaved(session, own, run)


def cancel_array(session: CommandContext, array: str) -> int:
    """Cancel all runs of an array; returns how many had not ended. The last come first: none starts meanwhile."""
    from moorings.workloads.runs import ENDED  # the commands that only report need none of it

    left = [run for run in session.client.list_runs(RunFilter(array=array, all=True)) if run.state not in ENDED]
    last_first = sorted(left, key=lambda run: run.claim is not None or run.started_at is not None)
    cancel_own(session, *[session.client.cancel_run(run.id) for run in last_first])
    return len(left)


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
    own.submit(session.client, run.id, run.submission)
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
