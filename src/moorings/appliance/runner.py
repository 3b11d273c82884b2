"""One job of a workflow after the other: created, followed, recorded, and cancelled on request."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from moorings.appliance.checkpoints import CheckpointFile, find_newest
from moorings.appliance.console import JobOutput, format_seconds
from moorings.appliance.job_follower import JobFollower
from moorings.appliance.job_spec import ApplianceJobSpec, write_job_spec
from moorings.appliance.jobs import GRACE_S, build_appliance_job
from moorings.appliance.lease_renewal import LeaseRenewer
from moorings.appliance.run_meta import RunMetaFile, user_state
from moorings.appliance.workflow_config import WorkflowConfig
from moorings.client.client import Client
from moorings.client.jobs import job_shape
from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import seconds_between
from moorings.ports.mirror import Mirror
from moorings.terminal.interrupts import Interrupted
from moorings.terminal.patience import make_patience
from moorings.terminal.progress import Progress
from moorings.wire.codec import parse_time
from moorings.wire.errors import ExitCode
from moorings.wire.shapes import ClaimBody, RunBody, RunRequest
from moorings.workloads.appliance import ApplianceJobType
from moorings.workloads.runs import RunState

CANCEL_S: Final = GRACE_S + 40.0  # the wait for a job's end, and for the controller's responses
LIMIT_S_MIN: Final = 1.0  # the shortest time limit of a job
STOPPED: Final = 128 + 15  # Slurm stopped the job, with TERM


class WorkflowEnded(Exception):  # noqa: N818 - an end, not an error
    """The workflow has ended with this exit code; every message has been written."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class ControllerClients:
    """Clients of the controller: one for the main thread, and a function for other threads."""

    client: Client
    connect: Callable[[], Client]


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """The context of the process that starts a job.

    Attributes:
        script: the user's program.
        folder: the working folder.
        environment: of this process.
        lease_s: of every job.
        memory: whether jobs request memory of the management node.
    """

    script: Path
    folder: Path
    environment: Mapping[str, str]
    lease_s: float
    memory: bool


class JobRunner:
    """Runs the jobs of a workflow, one at a time.

    Args:
        wish: their workflow.
        workflow: its name.
        controllers: its clients.
        progress: where to report.
        mirror: shows jobs elsewhere.
        record: records them.
        show: receives their output.
        start: the context of this process.

    Attributes:
        reservation: the claim that jobs run in, if the workflow holds its systems.
        cancel_reason: the reason for which the workflow was stopped, if it was.
        start_message: a message for when the first job has been created: until then the controller may refuse it.
        lease_renewer: renews leases.
    """

    def __init__(
        self,
        wish: WorkflowConfig,
        workflow: str,
        controllers: ControllerClients,
        progress: Progress,
        mirror: Mirror,
        record: RunMetaFile,
        *,
        show: Callable[[bytes], None],
        start: LaunchContext,
    ) -> None:
        self.reservation: ClaimBody | None = None
        self.cancel_reason = ""
        self.start_message = ""
        self.lease_renewer = LeaseRenewer(controllers.connect, start.lease_s, progress.report)
        self._wish = wish
        self._workflow = workflow
        self._client = controllers.client
        self._connect = controllers.connect
        self._progress = progress
        self._mirror = mirror
        self._record = record
        self._show = show
        self._start = start
        self._used_s = 0.0
        self._pending_request: tuple[RunRequest, str] | None = None  # a job that may have been created
        self._job: JobFollower | None = None
        self._order: ApplianceJobSpec | None = None
        self._output: JobOutput | None = None

    def run_job(self, order: ApplianceJobSpec) -> RunBody:
        """Run a job until it succeeds.

        Raises:
            WorkflowEnded: it did not succeed.
        """
        limit_s = self._remaining_s()
        if self.cancel_reason or (limit_s is not None and limit_s < LIMIT_S_MIN):
            self._progress.report(f"{self._workflow}  FAILED: {self.cancel_reason or self._limit_text()}")
            raise WorkflowEnded(STOPPED if self.cancel_reason else ExitCode.TIMEOUT)
        try:
            write_job_spec(order)
        except OSError as error:
            raise MooringsError("order.invalid", f"{order.spec_file} cannot be written: {error.strerror}") from error
        start = self._start
        job = build_appliance_job(
            order,
            self._wish,
            script=start.script,
            folder=start.folder,
            workflow=self._workflow,
            environment=start.environment,
            lease_s=start.lease_s,
            memory=start.memory,
            time_limit_s=limit_s,
        )
        claim = self.reservation.id if self.reservation is not None else None
        self._order = order
        self._pending_request = (RunRequest(job=job_shape(job), claim=claim), secrets.token_hex(16))
        job_made = self._create_job()
        if self.start_message:
            self._progress.report(self.start_message)
            self.start_message = ""
        return self._record_end(job_made.follow())

    def _create_job(self) -> JobFollower:
        """The current job, created if it was not yet: the same key gives the same job."""
        if self._job is not None:
            return self._job
        assert self._pending_request is not None
        assert self._order is not None
        made = self._client.create_run(*self._pending_request)
        if made.claim is not None:
            self.lease_renewer.add(made.claim, made.id)
        self._update_record(made)
        self._output = JobOutput(self._show, self._log)
        title = f"{made.id}  {_title(self._order):<13}"
        self._job = JobFollower(
            self._client,
            self._progress,
            self._mirror,
            made,
            title=title,
            write=self._output.write,
            changed=self._update_record,
            on_cancel=self.cancel_externally,
        )
        return self._job

    def _record_end(self, ended: RunBody) -> RunBody:
        """Record a job's end.

        Raises:
            WorkflowEnded: it did not succeed.
        """
        assert self._job is not None
        title = self._job.title
        self._update_record(ended)
        if self._output is not None:
            self._output.close()
        if ended.claim is not None and self.reservation is None:
            self.lease_renewer.remove(ended.claim)
        self._used_s += _run_seconds(ended)
        self._pending_request = self._job = None
        if ended.state == RunState.SUCCEEDED:
            return ended
        timed_out = ended.state == RunState.TIMED_OUT
        why = self.cancel_reason or (self._limit_text() if timed_out else ended.detail)
        why = why or (ended.reason.message if ended.reason is not None else "")
        self._progress.report(f"{title}  {end_text(ended)}: {why or 'see above'}")
        self._report_resume_hint(ended)
        if timed_out:
            raise WorkflowEnded(ExitCode.TIMEOUT)
        raise WorkflowEnded(STOPPED if self.cancel_reason else ExitCode.FAILED)

    def report_end(self, ended: RunBody, what: str) -> None:
        """Report the result of a job."""
        order = self._order
        assert order is not None
        title = f"{ended.id}  {_title(order):<13}"
        self._progress.report(f"{title}  done after {format_seconds(_run_seconds(ended))}: {what}")

    def _report_resume_hint(self, ended: RunBody) -> None:
        """Report how to resume, and where the output is."""
        assert self._order is not None
        with contextlib.suppress(OSError):
            newest = (
                find_newest(self._wish.model_dir)[0]
                if self._wish.includes_training and not self._wish.checkpoint
                else None
            )
            if newest is not None and can_resume(ended, self._order, newest):
                self._progress.report(
                    f"run the same command again to resume from {newest.path.name}, step {newest.step}"
                )
        self._progress.report(f"its output: {self._log}")

    def _update_record(self, job: RunBody) -> None:
        assert self._order is not None
        kind = ApplianceJobType.COMPILE if self._order.act == "compile" else ApplianceJobType.EXECUTE
        try:
            self._record.update_job(job, kind, self._log)
        except OSError as error:  # the work matters more
            self._progress.report(f"run_meta.json cannot be written: {error.strerror or error}")

    @property
    def _log(self) -> Path:
        assert self._order is not None
        return Path(self._order.folder) / "output.log"

    def _remaining_s(self) -> float | None:
        limit_s = self._wish.config.job_time_sec
        return None if limit_s is None else limit_s - self._used_s

    def _limit_text(self) -> str:
        return f"job_time_sec {self._wish.config.job_time_sec} s is over"

    # -- ends from outside ---------------------------------------------------------------------------------------------

    def interrupt(self, stop: Interrupted) -> None:
        """Cancel the running job, and wait for its end; a second signal leaves it to its lease."""
        if self._pending_request is None:
            self._progress.report(f"{self._workflow}  {stop.name}: ended; nothing was running")
            return
        self.cancel_reason = f"{stop.name} to run.py"
        try:
            self._progress.report(
                f"{self._workflow}  {stop.name}: cancelling; once more leaves at once: the job is ended all the same, "
                f"at the latest when its lease of {self._start.lease_s:g} s is over"
            )
            self._client.retry_policy = make_patience(self._progress, CANCEL_S)
            job = self._create_job()
            self._client.cancel_run(job.job.id)
            with contextlib.suppress(WorkflowEnded):
                self._record_end(job.follow())
        except Interrupted:
            self._progress.report(f"{self._workflow}  not waited for; 'moor wafer get jobs' shows it")
        except MooringsError as error:
            raise self.with_job_hint(error) from error
        finally:
            if self._job is not None:
                self._job.end(ok=False)

    def cancel_externally(self, why: str) -> None:
        """Cancel the job, because its display elsewhere was cancelled. Called in a thread of the mirror."""
        self.cancel_reason = self.cancel_reason or why
        self._progress.report(f"{self._workflow}  {why}: cancelling")
        job, claim = self._job, self.reservation
        try:
            with self._connect() as client:
                client.retry_policy = make_patience(self._progress, CANCEL_S)
                if job is not None:
                    client.cancel_run(job.job.id)
                elif claim is not None:
                    client.delete_claim(claim.id)
        except MooringsError as error:
            self._progress.report(f"{self._workflow}  it could not be cancelled: {error.detail}")

    def cancel_quietly(self) -> None:
        """Cancel the running job without messages: the terminal is gone, or this process is failing."""
        if self._job is not None:
            self._job.end(ok=False)
            with contextlib.suppress(MooringsError):
                self._client.cancel_run(self._job.job.id)

    def with_job_hint(self, error: MooringsError) -> MooringsError:
        """``error``, with what happens to the job that was being followed."""
        if self._job is None:
            return error
        self._job.end(ok=False)
        hint = f"its lease is no longer renewed; the job ends within {self._start.lease_s:g} s; then start again"
        detail = f"{self._job.job.id}: {error.detail}"
        return MooringsError(error.code, detail, hint=hint, retryable=error.retryable)


def end_text(job: RunBody) -> str:
    """How a job ended that did not succeed, and after what time."""
    if job.started_at is None:
        return f"{user_state(job)} {'while it waited' if job.state == RunState.CANCELLED else 'before it ran'}"
    code = "" if job.exit_code is None or job.state == RunState.TIMED_OUT else f", exit code {job.exit_code}"
    return f"{user_state(job)} after {format_seconds(_run_seconds(job))}{code}"


def can_resume(ended: RunBody, order: ApplianceJobSpec, newest: CheckpointFile) -> bool:
    """Whether a new start may get further: a job that failed on a checkpoint fails on it again."""
    return ended.state != RunState.FAILED or order.checkpoint != str(newest.path)


def _title(order: ApplianceJobSpec) -> str:
    return f"compile {order.program}" if order.act == "compile" else order.act


def _run_seconds(job: RunBody) -> float:
    """Seconds that a job ran; at least 0, as clocks may disagree."""
    if job.started_at is None or job.ended_at is None:
        return 0.0
    return max(0.0, seconds_between(parse_time(job.started_at), parse_time(job.ended_at)))
