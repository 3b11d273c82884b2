"""The engine ``slurm``, as the controller sees it.

All its state is in the runs' folders or in Slurm, so a new engine continues from there. Three things make sure that a
run is submitted once: the lock (``door``) of its folder, a search for its job by comment after a lost answer, and the
script, which claims its attempt before it starts anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import pwd
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import seconds_between
from moorings.engines.fence import FileFence
from moorings.engines.launch import not_startable_error, rejected_error, unavailable_error
from moorings.engines.node_program import build_archive
from moorings.engines.run_folder import AttemptFolder
from moorings.engines.scheduled import NewestAttempt, ScheduledEngine
from moorings.files import write_atomically
from moorings.ports.clock import Clock
from moorings.ports.engine import RunSubmission
from moorings.ports.store import Epoch
from moorings.slurm.commands import SlurmCommands
from moorings.slurm.engine.node_terminal import build_terminal_archive
from moorings.slurm.engine.run_folder import SlurmAttempt, SlurmAttemptState, SlurmRunFolder, SubmittedSlurmJob
from moorings.slurm.engine.run_status import (
    JobEnd,
    RunObservation,
    build_end_record,
    has_ended,
    observe_run,
    phase_of,
    reason_of,
)
from moorings.slurm.engine.settings import SlurmEngineSettings
from moorings.slurm.engine.submission import (
    build_files,
    build_submit,
    check_job,
    comment_of,
    describe_differences,
    explain_refusal,
    parse_submit,
    signal_of,
)
from moorings.slurm.formats import (
    AccountedJob,
    JobRecord,
    build_cancel,
    build_history,
    build_jobs,
    parse_history,
    parse_jobs,
)
from moorings.slurm.formats import SlurmJobPhase as JobPhase
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import RunId, RunPhase, RunStatus

log = logging.getLogger("moorings.slurm.engine")

LOCK_WAIT_S = 30.0  # a submission may take the timeout of sbatch
DOOR_POLL_S = 0.05
SETTLE_S = 2.0  # the node's last files may arrive after Slurm's end of the job: NFS
STUCK_S = 60.0  # after its grace period and this, Slurm ends a run that must stop
STOP, WARN = "USR2", "USR1"  # to the script


class UserJobs:
    """Our user's jobs, as Slurm listed them at one moment."""

    def __init__(self, jobs: Sequence[JobRecord]) -> None:
        self.by_id = {job.job_id: job for job in jobs}
        self.by_comment: dict[str, list[JobRecord]] = {}
        for job in jobs:
            self.by_comment.setdefault(job.comment, []).append(job)

    def find_job(self, run: RunId, attempt: SlurmAttempt, facts: SlurmAttemptState) -> JobRecord | None:
        """Return the job of an attempt; None: there is none. After a crash slurmctld reuses ids, but not comments."""
        jobs = self.by_comment.get(comment_of(run, attempt.number), ())
        return next((job for job in jobs if facts.job in (None, job.job_id)), None)

    def has_another(self, facts: SlurmAttemptState) -> bool:
        """Whether another job has the id of an attempt's missing job."""
        return facts.job in self.by_id


class SlurmEngine(ScheduledEngine):
    """Runs jobs as batch jobs of a Slurm cluster, as the user of this process.

    Args:
        settings: the target of jobs.
        folder: of the runs; controller or person and the nodes see it under this path.
        slurm: its commands.
        clock: for waiting, and for ends without a recorded time.
        report_file: content of the file by which a job reports to a controller (``engines.node_report``); None: it does
            not.
        dependency: the jobs that one waits for, as sbatch has it; called in a thread, when it is about to be submitted.
        is_told_of_ends: an attempt is submitted only when the controller knows that the one before has ended.
    """

    scheduler = "Slurm"
    settle_s = SETTLE_S

    def __init__(
        self,
        settings: SlurmEngineSettings,
        folder: Path,
        slurm: SlurmCommands,
        clock: Clock,
        report_file: Callable[[RunSubmission], bytes | None] = lambda _: None,
        dependency: Callable[[RunSubmission], str] = lambda _: "",
        *,
        is_told_of_ends: bool = False,
    ) -> None:
        super().__init__(clock)
        self._is_told_of_ends = is_told_of_ends
        self._report_file = report_file
        self._dependency = dependency
        self._settings = settings
        self._folder = folder
        self._slurm = slurm
        self._fence = FileFence(folder)

    def check_job(self, job: JobSpec) -> Sequence[str]:
        check_job(job)
        self._slurm.check_installed("sbatch")
        return describe_differences(job, self._settings.target_for(job.project), f"the user {_own_name()}")

    async def fence_below(self, epoch: Epoch) -> None:
        with self._as_unavailable(f"{self._folder} cannot be written"):
            await asyncio.to_thread(self._fence.raise_epoch, epoch, LOCK_WAIT_S)

    # -- submitting ----------------------------------------------------------------------------------------------------

    async def submit(self, order: RunSubmission) -> str:
        folder = SlurmRunFolder.find(self._folder, order.run)
        if folder is None:
            raise rejected_error(f"{order.run[:120]!r} cannot be the id of a run on Slurm")
        check_job(order.job)
        with self._as_unavailable(f"run {order.run} could not be submitted"):
            async with self._locked(folder, order):
                job = await self._submitted(folder, order)
        self._changed.set()
        return str(job)

    async def _submitted(self, folder: SlurmRunFolder, order: RunSubmission) -> int:
        """Return the job of this submission or a later one; the caller holds the door."""
        held = await asyncio.to_thread(folder.newest_attempt)
        if held is not None:
            facts = await asyncio.to_thread(held.read_state)
            if held.number >= order.attempt and facts.job is not None:
                return facts.job
            if facts.submitting and facts.job is None:
                lost = (await self.list_jobs()).find_job(order.run, held, facts)
                if lost is not None:
                    await asyncio.to_thread(held.write, "job", str(lost.job_id).encode())
                    return lost.job_id
            if not self._is_told_of_ends:
                await self._require_earlier_ended(order, held)
            elif (job := (await self.list_jobs()).find_job(order.run, held, facts)) and job.phase is not JobPhase.ENDED:
                raise not_startable_error(order, f"Slurm job {job.job_id} of attempt {held.number} has not ended")
        return await self._submit(folder.attempt(order.attempt), order)

    async def _submit(self, attempt: SlurmAttempt, order: RunSubmission) -> int:
        async with AsyncExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, self._fence.hold_epoch(order.epoch, LOCK_WAIT_S))
            job = order.job
            dependency = await asyncio.to_thread(self._dependency, order)
            asked = SubmittedSlurmJob(job.tasks, job.checkpoint.grace_s, job.time_limit_s)
            program = await asyncio.to_thread(self._program, "looks", build_archive())
            terminal = None
            if job.terminal_keep_s is not None:
                terminal = await asyncio.to_thread(self._program, "terminal", build_terminal_archive())
            python, report = self._settings.python, self._report_file(order)
            files = build_files(order, attempt.path, python, program, report, terminal)
            await asyncio.to_thread(attempt.save_order, asked, files)
            await asyncio.to_thread(attempt.write, "asked", b"")
            try:
                answer = await self._slurm.run_checked(
                    build_submit(order, self._settings.target_for(job.project), attempt.path, dependency)
                )
            except MooringsError as error:
                if not error.retryable:  # Slurm refused it
                    (attempt.path / "asked").unlink(missing_ok=True)
                raise explain_refusal(error, self._settings.target_for(job.project)) or _of_engine(error) from error
            number = parse_submit(answer)
            await asyncio.to_thread(attempt.write, "job", str(number).encode())
        return number

    def _program(self, name: str, content: bytes) -> Path:
        """Return a program of the nodes, in the runs' folder; runs of an earlier version keep theirs."""
        path = self._folder / f"{name}-{hashlib.sha256(content).hexdigest()[:16]}.pyz"
        with contextlib.suppress(OSError):
            if path.read_bytes() == content:
                return path
        write_atomically(path, content)
        return path

    @asynccontextmanager
    async def _locked(self, folder: SlurmRunFolder, order: RunSubmission) -> AsyncIterator[None]:
        give_up = time.monotonic() + LOCK_WAIT_S
        # Not waited for in a thread: with a crowd of them the holder of the door would get none.
        while (door := await asyncio.to_thread(folder.try_lock)) is None:
            if time.monotonic() >= give_up:
                raise unavailable_error(f"run {order.run}: another controller is at it")
            await self._clock.sleep(DOOR_POLL_S)
        try:
            yield
        finally:
            os.close(door)

    # -- observing -----------------------------------------------------------------------------------------------------

    async def observe(self, runs: Sequence[RunId]) -> Sequence[RunStatus]:
        found = await asyncio.to_thread(self._read_attempts, runs)
        listing, away = None, ""
        if any(facts is not None and facts.submitting and not has_ended(facts) for _, facts in found.values()):
            try:
                listing = await self.list_jobs()
            except MooringsError as error:
                log.warning("slurm.unseen", extra={"code": error.code, "detail": error.detail})
                away = f"Slurm cannot be asked: {error.detail}"
            found = await asyncio.to_thread(self._read_attempts, runs)  # news of an end must not be older
        seen = []
        for run in runs:
            attempt, facts = found[run]
            status = await self._sighting(run, attempt, facts, listing)
            if attempt is not None:
                status = await self._of_attempt(status, attempt, facts.checkpoints if facts is not None else None)
            seen.append(status)
        return [replace(one, reason=away) if one.phase is RunPhase.UNKNOWN and away else one for one in seen]

    def _read_attempts(
        self, runs: Sequence[RunId]
    ) -> dict[RunId, tuple[SlurmAttempt | None, SlurmAttemptState | None]]:
        """Return the newest attempt of each run and its folder's state; no state: the folder cannot be read."""
        found: dict[RunId, tuple[SlurmAttempt | None, SlurmAttemptState | None]] = {}
        for run in runs:
            folder = SlurmRunFolder.find(self._folder, run)
            attempt = None
            try:
                if folder is not None:
                    os.stat(self._folder)  # noqa: PTH116 - runs are not absent because their disk is
                    attempt = folder.newest_attempt()
                found[run] = attempt, attempt.read_state() if attempt is not None else None
            except (OSError, ValueError) as error:
                log.warning("run.unreadable", extra={"run": run, "detail": str(error)})
                found[run] = SlurmAttempt(self._folder / run, -1), None
        return found

    async def _sighting(
        self, run: RunId, attempt: SlurmAttempt | None, facts: SlurmAttemptState | None, listing: UserJobs | None
    ) -> RunStatus:
        if attempt is None:
            return RunStatus(run, RunPhase.ABSENT)
        if facts is None or (listing is None and facts.submitting and not has_ended(facts)):
            return RunStatus(run, RunPhase.UNKNOWN)
        job = listing.find_job(run, attempt, facts) if listing is not None else None
        seen = observe_run(facts, job)
        if seen is not RunObservation.MISSING:
            self._missing.clear(run)
        if seen is RunObservation.OVER:
            return await self._conclude(run, attempt, facts, job)
        if seen is RunObservation.MISSING:
            assert listing is not None
            return await self._observe_missing(run, attempt, facts, known=not listing.has_another(facts))
        if seen is RunObservation.ENDED:
            return self._ended(run, facts.end)
        began = facts.began.get(job.restarts) if job is not None else None
        number = str(job.job_id) if job is not None else None
        return RunStatus(run, phase_of(seen), began, reference=number, reason=reason_of(seen, job))

    async def _conclude(
        self, run: RunId, attempt: SlurmAttempt, facts: SlurmAttemptState, job: JobRecord | JobEnd | None
    ) -> RunStatus:
        """Record how a run ended."""
        end = JobEnd(job.job_id, job.state, job.end_time) if isinstance(job, JobRecord) else job
        now = self._clock.now()
        if facts.claimed and not has_ended(facts) and facts.done is None and not self._is_settled(run):
            return RunStatus(run, RunPhase.UNKNOWN)

        def write() -> SlurmAttemptState:
            tasks = attempt.tasks(facts.asked)
            attempt.save_end(build_end_record(facts, tasks, end, attempt.last_error_line(), now))
            return attempt.read_state()

        try:
            written = await asyncio.to_thread(write)
        except (OSError, ValueError) as error:
            log.warning("run.unsettled", extra={"run": run, "detail": str(error)})
            return RunStatus(run, RunPhase.UNKNOWN)
        return self._ended(run, written.end)

    async def _observe_missing(
        self, run: RunId, attempt: SlurmAttempt, facts: SlurmAttemptState, *, known: bool
    ) -> RunStatus:
        """Return the status of a job that Slurm does not list: it ended long ago, or was lost.

        One listing proves nothing.

        Args:
            run: its run.
            attempt: the newest attempt.
            facts: the state in its folder.
            known: whether the accounting may know it: no other job has its id.
        """
        assert facts.job is not None
        lost = self._missing.record_miss(run, self._clock.now())
        with contextlib.suppress(MooringsError):  # there is no accounting, or it is down
            for past in parse_history(await self._slurm.run_checked(build_history(facts.job))) if known else ():
                if past.job_id == facts.job and past.ended is not None:
                    return await self._conclude(run, attempt, facts, JobEnd(past.job_id, past.state, past.ended))
        if lost:
            return await self._conclude(run, attempt, facts, JobEnd(facts.job, ""))
        return RunStatus(run, RunPhase.UNKNOWN)

    async def find_job(self, run: RunId, listing: UserJobs) -> JobRecord | AccountedJob | None:
        """Return the job of a run's newest attempt, listed or in the accounting; None: there is none, or none any more.

        An id that was lost is found again by its comment, and recorded.

        Args:
            run: the run.
            listing: our user's jobs.
        """
        attempt, facts = (await asyncio.to_thread(self._read_attempts, [run]))[run]
        if attempt is None or facts is None:
            return None
        job = listing.find_job(run, attempt, facts)
        if job is not None:
            if facts.job is None:
                await asyncio.to_thread(attempt.write, "job", str(job.job_id).encode())
            return job
        if facts.job is None or listing.has_another(facts):
            return None
        with contextlib.suppress(MooringsError):  # there is no accounting, or it is down
            past = parse_history(await self._slurm.run_checked(build_history(facts.job)))
            return next((each for each in past if each.job_id == facts.job), None)
        return None

    async def list_jobs(self) -> UserJobs:
        """Return our user's jobs.

        Raises:
            MooringsError: ``slurm.*``.
        """
        return UserJobs(parse_jobs(await self._slurm.run_checked(build_jobs(users=[os.getuid()]))))

    # -- stopping ------------------------------------------------------------------------------------------------------

    async def cancel(self, run: RunId, reason: str, listing: UserJobs | None = None) -> None:
        """Stop a run; ``listing``: our user's jobs, if they were listed just now."""
        found = (await asyncio.to_thread(self._read_attempts, [run]))[run]
        attempt, facts = found
        if attempt is None:
            return
        with self._as_unavailable(f"run {run} could not be cancelled"):
            if facts is None:
                raise unavailable_error(f"run {run} cannot be looked at now")
            if has_ended(facts):
                return
            await asyncio.to_thread(attempt.write_once, "cancel", " ".join(reason.split()).encode())
            if facts.submitting:
                try:
                    await self._stop(run, attempt, facts, listing or await self.list_jobs())
                except MooringsError as error:
                    if error.code != "slurm.job_unknown":
                        raise _of_engine(error) from error
        self._changed.set()

    async def _stop(self, run: RunId, attempt: SlurmAttempt, facts: SlurmAttemptState, listing: UserJobs) -> None:
        """Have the script stop its tasks, if it runs; all else is left to Slurm."""
        ours = listing.find_job(run, attempt, facts)
        jobs = {job.job_id: job for job in listing.by_comment.get(comment_of(run, attempt.number), ())}
        if ours is not None:
            jobs[ours.job_id] = ours
        for job in jobs.values():
            stuck_s = seconds_between(facts.cancelled_at or self._clock.now(), self._clock.now())
            heard = job is ours and facts.claimed and job.phase is JobPhase.LIVE
            if heard and stuck_s < facts.asked.grace_s + STUCK_S:
                await self._slurm.run_checked(build_cancel(job.job_id, signal=STOP, batch_only=True))
            elif job.phase is not JobPhase.ENDED:
                await self._slurm.run_checked(build_cancel(job.job_id))

    async def _warn_of_pause(self, attempt: AttemptFolder, seen: RunStatus) -> None:
        """Have the script warn its tasks, as before a time limit."""
        if seen.reference is not None:
            await self._slurm.run_checked(build_cancel(int(seen.reference), signal=WARN, batch_only=True))

    async def signal(self, run: RunId, signal_name: str) -> None:
        name = signal_of(signal_name)
        (sighting,) = await self.observe([run])
        if sighting.phase is not RunPhase.RUNNING or sighting.reference is None:
            raise MooringsError("run.not_running", f"run {run} has no processes")
        try:
            await self._slurm.run_checked(build_cancel(int(sighting.reference), signal=name))
        except MooringsError as error:
            raise _of_engine(error) from error

    # -- output --------------------------------------------------------------------------------------------------------

    async def _newest_attempt(self, run: RunId) -> NewestAttempt | None:
        attempt, facts = (await asyncio.to_thread(self._read_attempts, [run]))[run]
        if attempt is None:
            return None
        if facts is None:
            raise unavailable_error(f"run {run} cannot be looked at now")
        return NewestAttempt(attempt, facts.asked.tasks, has_ended(facts), facts.asked.grace_s)

    def _engine_error(self, error: MooringsError, what: str) -> MooringsError:
        return _of_engine(error)

    async def close(self) -> None:
        """Nothing to close."""


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _of_engine(error: MooringsError) -> MooringsError:
    """Return the engine's error for an error of Slurm."""
    if not error.code.startswith("slurm."):
        return error
    if error.code in ("slurm.refused", "slurm.denied"):
        return rejected_error(error.detail, error.hint)
    return unavailable_error(error.detail, error.hint)
