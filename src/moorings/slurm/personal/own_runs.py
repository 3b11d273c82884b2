"""The runs that a person has submitted to Slurm with their own ``moor``.

::

    <folder>/
        open/<run>     the run has not ended, as far as is known here
        <run>/
            run.json   the job, its controller and the token of its reports; 0600
            closed     the controller knows its end
            abandoned  it was cancelled before it was submitted
            <attempt>/ as the engine has it (slurm/engine/run_folder.py)

The nodes see this folder under the same path. A kill at any point loses nothing: a submission of which the answer was
lost is found by its comment, and a report that could not be sent is made again from the folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from moorings.client.client import Client
from moorings.core.model.bindings import NO_BINDING
from moorings.core.model.errors import MooringsError
from moorings.core.model.serialization import from_plain
from moorings.core.model.timestamps import Timestamp
from moorings.engines.node_report import FolderReport, ReportSettings
from moorings.engines.processes import boot_id
from moorings.engines.run_folder import to_json
from moorings.files import write_atomically
from moorings.ports.engine import RunSubmission
from moorings.privileged.trust import trust_fault
from moorings.slurm.commands import SlurmCommands
from moorings.slurm.engine.engine import SlurmEngine
from moorings.slurm.engine.run_folder import SlurmAttempt, SlurmRunFolder
from moorings.slurm.engine.settings import DEFAULT_PYTHON, RUNS_FOLDER, SlurmEngineSettings, SubmitTarget
from moorings.slurm.engine.submission import parse_run_comment
from moorings.slurm.formats import JobRecord, build_jobs, parse_jobs
from moorings.slurm.personal.awaited_jobs import AwaitedJobs
from moorings.slurm.personal.run_jobs import listed_job_shape, past_job_shape
from moorings.wire.codec import decode, parse_time
from moorings.wire.shapes import RunReportBody, RunReportRequest, SlurmJobShape, SubmissionBody
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import ENDED, RunId, RunState

OPEN_MAX = 50  # runs that one command reports
FRESH_S = 5.0  # no second report of a run within this time
NEW_S = 10.0  # squeue may not list a job that was just submitted
REPORT_S = 10.0  # for all of one run's reports
KEEP_S = 30 * 86_400.0  # how long the folder of a run stays after its end
TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class OwnRun:
    """A run of this person.

    Attributes:
        server: the address of its controller.
        token: of its reports, without the prefix; empty: it reports nothing from its nodes.
        ca_file, cert_file, key_file: as in ``ReportSettings``.
        predecessor: the run of its array that must have ended before it starts; empty: none.
    """

    job: JobSpec
    server: str
    token: str = field(repr=False)
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    predecessor: str = ""


class WallTime:
    """The machine's clock (``ports.clock.Clock``)."""

    def now(self) -> Timestamp:
        """Microseconds since 1970 UTC."""
        return Timestamp(time.time_ns() // 1000)

    async def sleep(self, seconds: float) -> None:
        """Wait that many seconds."""
        await asyncio.sleep(seconds)


def new_token() -> tuple[str, str]:
    """A secret for the token of a run, and its digest."""
    secret = secrets.token_hex(TOKEN_BYTES)
    return secret, hashlib.sha256(secret.encode()).hexdigest()


class OwnRuns:
    """This person's runs.

    Args:
        folder: of the runs; made if missing.
        slurm: Slurm's commands.
    """

    def __init__(self, folder: Path, slurm: SlurmCommands) -> None:
        self._folder = folder
        self._slurm = slurm
        self._awaited: AwaitedJobs | None = None

    def check(self) -> None:
        """Raise if no run can be submitted from here.

        Raises:
            MooringsError: ``slurm.missing``, ``engine.rejected``.
        """
        try:
            self._slurm.check_installed("sbatch")
        except MooringsError as error:
            hint = "people submit their jobs to this Slurm themselves: run it on a login node"
            raise MooringsError(error.code, error.detail, hint=hint) from error
        if RUNS_FOLDER.fullmatch(str(self._folder)) is None:
            detail = (
                f"sbatch cannot take the folder {str(self._folder)[:120]!r}: it may have letters, digits and . _ @ + -"
            )
            raise MooringsError("engine.rejected", detail, hint="name another one with MOORINGS_SLURM_RUNS")

    def has(self, run: str) -> bool:
        """Whether that run was submitted from here."""
        found = SlurmRunFolder.find(self._folder, RunId(run))
        return found is not None and (found.path / "run.json").exists()

    def has_job(self, run: str) -> bool:
        """Whether Slurm lists a job of this user with the comment of that run.

        Raises:
            MooringsError: ``slurm.*``.
        """
        listed = parse_jobs(asyncio.run(self._slurm.run_checked(build_jobs(users=[os.getuid()]))))
        return any((named := parse_run_comment(job.comment)) is not None and named[0] == run for job in listed)

    def open_runs(self) -> list[str]:
        """The runs that have not ended, as far as is known here; the newest first."""
        with contextlib.suppress(FileNotFoundError):
            entries = sorted((self._folder / "open").iterdir(), key=lambda path: path.lstat().st_mtime, reverse=True)
            return [entry.name for entry in entries]
        return []

    def save(self, run: str, own: OwnRun) -> None:
        """Remember a run that was made, before it is submitted.

        Raises:
            MooringsError: ``engine.unavailable``: its folder cannot be written.
        """
        self._path(run)
        try:
            for path in (self._folder, self._folder / "open", self._path(run)):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self._path(run) / "run.json", to_json(own))
            (self._folder / "open" / run).touch(mode=0o600)
            self._prune()
        except OSError as error:
            detail = f"run {run} cannot be kept in {self._folder}: {error}"
            raise MooringsError(
                "engine.unavailable", detail, hint="MOORINGS_SLURM_RUNS names another folder"
            ) from error

    def submit(self, client: Client, run: str, submission: SubmissionBody) -> int:
        """Submit an attempt of a run, unless it was; returns the id of its job.

        Args:
            client: asks the controller how runs that it waits for have ended.
            run: its id.
            submission: where it goes.

        Raises:
            MooringsError: ``engine.rejected``: Slurm refuses it; ``run.never_starts``; ``engine.unavailable``.
        """
        own = self._read(run)
        given = submission
        _check_checkpoint(given.resume_from, own.job)
        order = RunSubmission(
            RunId(run),
            given.attempt,
            own.job,
            NO_BINDING,
            resume_from=given.resume_from,
            resume_step=given.resume_step,
            resume_since=parse_time(given.resume_since) if given.resume_since is not None else None,
        )
        target = SubmitTarget(given.account, given.partition, given.qos)
        engine = self._engine(own, target, given.python, lambda _: self._dependency(client, run, own))
        job = int(asyncio.run(engine.submit(order)))
        if (self._path(run) / "abandoned").exists():  # another moor has cancelled it meanwhile
            asyncio.run(engine.cancel(RunId(run), "cancelled before it was submitted"))
        return job

    def _dependency(self, client: Client, run: str, own: OwnRun) -> str:
        """What a run waits for, as sbatch has it; empty once an attempt of it has begun."""
        folder = SlurmRunFolder.find(self._folder, RunId(run))
        has_begun = folder is not None and any(folder.path.glob("*/claimed"))
        if has_begun or not (own.job.after or own.predecessor):
            return ""
        if self._awaited is None:
            engine = self._engine(own)
            self._awaited = AwaitedJobs(client, self._job_of, lambda: asyncio.run(engine.list_jobs()).by_id)
        return self._awaited.dependency(own.job.after, own.predecessor)

    def _job_of(self, run: str) -> int | None:
        """The job of a run's newest attempt; None: it was not submitted from here, or that is not known."""
        attempt = self._newest(run)
        return attempt.read_state().job if attempt is not None else None

    def cancel(self, runs: Sequence[str], reason: str) -> None:
        """Cancel the jobs of runs with one's own scancel.

        Raises:
            MooringsError: ``engine.unavailable``.
        """
        if not runs:
            return
        engine = self._engine(self._read(runs[0]))
        for run in runs:  # before Slurm is asked: what another moor submits later, that one cancels
            write_atomically(self._path(run) / "abandoned", b"")

        async def stop() -> None:
            listing = await engine.list_jobs()
            for run in runs:
                await engine.cancel(RunId(run), reason, listing)
                attempt = self._newest(run)
                facts = attempt.read_state() if attempt is not None else None
                if facts is not None and (
                    facts.job is not None or await engine.find_job(RunId(run), listing) is not None
                ):
                    (self._path(run) / "abandoned").unlink(missing_ok=True)

        asyncio.run(stop())

    def report(self, client: Client, runs: Sequence[str]) -> dict[str, str]:
        """Report on runs to their controller, with what Slurm shows; returns the state of each that it knows.

        A run that waits to be submitted is. One that has ended is closed here.

        Raises:
            MooringsError: ``controller.unreachable``, ``slurm.*``, ``engine.*``.
        """
        if not runs:
            return {}
        engine = self._engine(self._read(runs[0]))
        found = asyncio.run(self._look(engine, runs))
        states: dict[str, str] = {}
        failed: MooringsError | None = None
        for run in runs:
            try:
                states[run] = self._report(client, run, found.get(run))
            except MooringsError as error:
                if error.code in ("run.ended", "run.unknown"):
                    self.close(run)
                else:
                    failed = failed or error
        if failed is not None:
            raise failed
        return states

    def unreported(self, server: str, limit: int = OPEN_MAX) -> list[str]:
        """The open runs of that controller that were not reported a moment ago; they count as reported from now on."""
        found: list[str] = []
        for run in reversed(self.open_runs()):  # those that were reported longest ago first
            marker = self._folder / "open" / run
            with contextlib.suppress(OSError, ValueError, MooringsError):
                if time.time() - marker.lstat().st_mtime >= FRESH_S and self._read(run).server == server:
                    marker.touch()
                    found.append(run)
            if len(found) == limit:
                break
        return found

    def _report(self, client: Client, run: str, job: SlurmJobShape | None) -> str:
        attempt = self._newest(run)
        is_abandoned = (self._path(run) / "abandoned").exists()
        if attempt is None:
            answer = client.report_run(run, RunReportRequest(attempt=0, abandoned=is_abandoned))
        else:
            try:
                answer = self._send(client, run, attempt, job, is_abandoned=is_abandoned)
            except MooringsError as error:
                if error.code != "report.outdated":
                    raise
                body = client.get_run(run)  # it has another attempt by now
                if body.submission is not None and attempt.number < body.submission.attempt:
                    self._submit_late(client, run, body.submission)
                return body.state
        if answer.state in ENDED:
            self.close(run)
        elif answer.state == RunState.WAITING and job is None and not is_abandoned:
            body = client.get_run(run)
            if body.submission is not None and (attempt is None or attempt.number <= body.submission.attempt):
                self._submit_late(client, run, body.submission)
        return answer.state

    def _submit_late(self, client: Client, run: str, submission: SubmissionBody) -> None:
        """Submit a run that waits for it; one that can never start is cancelled."""
        try:
            self.submit(client, run, submission)
        except MooringsError as error:
            if error.code != "run.never_starts":
                raise
            client.cancel_run(run)
            self.cancel([run], error.detail)

    def _send(
        self, client: Client, run: str, attempt: SlurmAttempt, job: SlurmJobShape | None, *, is_abandoned: bool
    ) -> RunReportBody:
        report, give_up = FolderReport(attempt.path), time.monotonic() + REPORT_S
        while True:
            body, sent = report.build(attempt.number)
            request: RunReportRequest = decode(RunReportRequest, body)
            answer = client.report_run(
                run,
                RunReportRequest(
                    attempt=request.attempt,
                    files=request.files,
                    present=request.present,
                    output=request.output,
                    job=job,
                    abandoned=is_abandoned,
                ),
            )
            report.record(sent, {"outputBytes": answer.output_bytes})
            if report.is_current() or answer.state in ENDED or time.monotonic() >= give_up:
                return answer

    async def _look(self, engine: SlurmEngine, runs: Iterable[str]) -> dict[str, SlurmJobShape]:
        """The jobs of these runs."""
        listing = await engine.list_jobs()
        found: dict[str, SlurmJobShape] = {}
        for run in runs:
            job = await engine.find_job(RunId(run), listing)
            attempt = self._newest(run)
            if attempt is None:
                continue
            shape: SlurmJobShape | None
            if isinstance(job, JobRecord):
                shape = listed_job_shape(job)
            elif job is not None:
                shape = past_job_shape(job, run, attempt.number, os.getuid())
            else:
                shape = _forgotten_job_shape(run, attempt)
            if shape is not None:
                found[run] = shape
        return found

    def _engine(
        self,
        own: OwnRun,
        target: SubmitTarget = SubmitTarget(),  # noqa: B008 - a value
        python: str = "",
        dependency: Callable[[RunSubmission], str] = lambda _: "",
    ) -> SlurmEngine:
        settings = SlurmEngineSettings(python=_trusted_python(python), projects={own.job.project: target})

        def report_file(order: RunSubmission) -> bytes | None:
            if not own.token or not own.server.startswith(("http://", "https://")):
                return None
            token = f"moorrun_{order.run}_{own.token}"
            return to_json(
                ReportSettings(
                    own.server,
                    token,
                    order.run,
                    order.attempt,
                    own.ca_file,
                    own.cert_file,
                    own.key_file,
                    boot_id=boot_id(),
                )
            )

        clock = WallTime()
        return SlurmEngine(settings, self._folder, self._slurm, clock, report_file, dependency, is_told_of_ends=True)

    def _path(self, run: str) -> Path:
        """A run's folder: the controller says its id, which must not lead out of this one."""
        found = SlurmRunFolder.find(self._folder, RunId(run))
        if found is None:
            raise MooringsError("engine.rejected", f"{run[:80]!r} cannot be the id of a run")
        return found.path

    def _read(self, run: str) -> OwnRun:
        try:
            return from_plain(OwnRun, json.loads((self._path(run) / "run.json").read_text()))
        except (OSError, ValueError, TypeError, KeyError) as error:
            detail = f"the record of run {run} in {self._folder} cannot be read: {error}"
            raise MooringsError("engine.unavailable", detail, hint=f"moor cancel {run}") from error

    def _newest(self, run: str) -> SlurmAttempt | None:
        folder = SlurmRunFolder.find(self._folder, RunId(run))
        return folder.newest_attempt() if folder is not None else None

    def close(self, run: str) -> None:
        """Note that a run has ended: it is reported no more.

        Raises:
            MooringsError: ``engine.rejected``: this cannot be the id of a run.
        """
        folder = self._path(run)
        with contextlib.suppress(OSError):
            write_atomically(folder / "closed", b"")
        (self._folder / "open" / run).unlink(missing_ok=True)

    def _prune(self) -> None:
        """Remove the folders of runs that ended long ago."""
        for path in self._folder.glob("*/closed"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > KEEP_S:
                    shutil.rmtree(path.parent)


def _trusted_python(path: str) -> str:
    """The Python that the controller names for the nodes, if only root can have put it there; else the usual one."""
    with contextlib.suppress(OSError):
        if path.startswith("/") and Path(path).exists() and not trust_fault(Path(path)):
            return path
    return DEFAULT_PYTHON


def _check_checkpoint(path: str | None, job: JobSpec) -> None:
    """Raise if a checkpoint may be another user's: what is loaded from it may be code.

    Raises:
        MooringsError: ``checkpoint.invalid``.
    """
    if path is None:
        return
    folder = job.checkpoint_directory
    if folder is not None and Path(path).is_relative_to(folder) and ".." not in Path(path).parts:
        return
    with contextlib.suppress(OSError):
        if Path(path).stat().st_uid in (os.getuid(), 0):
            return
    detail = f"the checkpoint {path} is not in the job's folder of checkpoints, and not seen here to be yours"
    raise MooringsError("checkpoint.invalid", detail, hint="name another one with --from")


def _forgotten_job_shape(run: str, attempt: SlurmAttempt) -> SlurmJobShape | None:
    """A job that Slurm took and knows no more, as after a crash of slurmctld; None: it may only be too new."""
    with contextlib.suppress(OSError, ValueError):
        job = attempt.read_state().job
        if job is not None and time.time() - (attempt.path / "job").stat().st_mtime > NEW_S:
            return SlurmJobShape(run=run, attempt=attempt.number, job=job, uid=os.getuid(), state="")
    return None


def own_run(job: JobSpec, server: str, secret: str, ca_file: str, cert_file: str, key_file: str) -> OwnRun:
    """The record of a new run; paths are made absolute, because nodes read them."""
    files = [str(Path(path).absolute()) if path else "" for path in (ca_file, cert_file, key_file)]
    return OwnRun(job, server, secret, *files)
