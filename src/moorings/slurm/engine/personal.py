"""The engine ``slurm`` where people submit their jobs themselves, as the controller sees it (``ports.personal``).

Each person's ``moor`` calls sbatch, so a job has its person's account, home and share. The controller reaches neither
their folders nor Slurm: it keeps a copy of each attempt's folder, made from reports, and the last listings of agents.
The copy has the same files as the folder (``run_folder``), so a run's state and its end follow by the same rules. They
differ in one: a report ends nothing. An end needs Slurm's word, in an agent's listing or else in the person's own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp, seconds_between
from moorings.engines.launch import rejected_error, unavailable_error
from moorings.engines.run_folder import AttemptFolder
from moorings.engines.scheduled import NewestAttempt, ScheduledEngine
from moorings.ports.clock import Clock
from moorings.ports.engine import RunSubmission
from moorings.ports.personal import (
    JobAction,
    JobOrder,
    ListedJob,
    ListingReply,
    PersonalJob,
    RunReport,
    SubmissionTarget,
)
from moorings.ports.store import Epoch
from moorings.slurm.engine.job_listings import FollowedAttempt, JobListings
from moorings.slurm.engine.run_copies import RunCopies
from moorings.slurm.engine.run_folder import SlurmAttemptState, SubmittedSlurmJob
from moorings.slurm.engine.run_status import (
    JobEnd,
    RunObservation,
    build_end_record,
    end_by_slurm,
    observe_job,
    phase_of,
    reason_of,
)
from moorings.slurm.engine.settings import SlurmEngineSettings
from moorings.slurm.engine.submission import check_job, describe_differences
from moorings.slurm.formats import SlurmJobPhase
from moorings.slurm.formats import phase_of as job_phase_of
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import SIGTERM_EXIT_CODE, EndReason, EndRecord, RunId, RunPhase, RunStatus

log = logging.getLogger("moorings.slurm.engine")

SETTLE_S = 10.0  # after Slurm's end of a job, for a report
LATE_S = 30.0  # and for the last one of a job that has reported before
GIVE_UP_S = 600.0  # a cancelled run that nobody has submitted by then never is
UNREPORTED_S = 15.0  # a running job that has reported nothing by then will not soon
STUCK_S = 60.0  # after its grace period and this, Slurm ends a run that must stop
LOOKUPS_MAX = 10  # jobs to look up in the accounting, at a time


@dataclass(frozen=True, slots=True)
class SeenJob:
    """A job of a run in a listing (``run_status.SlurmJob``)."""

    listed: ListedJob

    @property
    def job_id(self) -> int:
        """Slurm's id."""
        return self.listed.job_id

    @property
    def state(self) -> str:
        """Slurm's word."""
        return self.listed.state

    @property
    def phase(self) -> SlurmJobPhase:
        """Its meaning."""
        return job_phase_of(self.listed.state)

    @property
    def reason(self) -> str:
        """Why it waits."""
        return self.listed.reason

    @property
    def restarts(self) -> int:
        """How often it was requeued."""
        return self.listed.restarts


class PersonalSlurmEngine(ScheduledEngine):
    """Follows the jobs that people submit to Slurm themselves.

    Args:
        settings: the target of jobs.
        folder: for the copies; made if missing.
        clock: the time.
    """

    scheduler = "Slurm"
    settle_s = SETTLE_S

    def __init__(self, settings: SlurmEngineSettings, folder: Path, clock: Clock) -> None:
        super().__init__(clock)
        self._settings = settings
        self._copies = RunCopies(folder, clock)
        self._copying = asyncio.Lock()
        self._listings = JobListings()
        self._followed: dict[RunId, FollowedAttempt] = {}
        self._orders: dict[RunId, JobOrder] = {}
        self._unreported: dict[RunId, int] = {}  # the start of its job that was said to run without a report
        self._running_since: dict[RunId, tuple[int, Timestamp]] = {}  # a start of its job, and when it was first listed
        self._lookups: dict[str, list[JobOrder]] = {}  # by the agent that has listed the job before

    def check_job(self, job: JobSpec) -> Sequence[str]:
        check_job(job)
        target = self._settings.target_for(job.project)
        return describe_differences(job, target, "your own user")

    def target_for(self, project: str) -> SubmissionTarget:
        """Where a project's jobs go."""
        place = self._settings.target_for(project)
        return SubmissionTarget(place.account, place.partition, place.qos, self._settings.python)

    async def fence_below(self, epoch: Epoch) -> None:
        """Nothing to fence: no controller starts a job here."""

    async def submit(self, order: RunSubmission) -> str:
        """Begin to follow an attempt, which its person submits."""
        if order.submitter is None:
            hint = "start it with 'moor run --engine slurm', where sbatch is installed"
            raise rejected_error("jobs on this Slurm are submitted by their people, and nobody submits this one", hint)
        asked = SubmittedSlurmJob(
            order.job.tasks, order.job.checkpoint.grace_s, order.job.time_limit_s, order.submitter.uid
        )
        with self._as_unavailable(f"run {order.run} could not be followed"):
            await asyncio.to_thread(self._copies.ensure, order.run, order.attempt, asked)
        self._changed.set()
        return ""

    # -- what is reported --------------------------------------------------------------------------------------------

    async def accept_report(self, known: PersonalJob, report: RunReport) -> dict[int, int]:
        with self._as_unavailable(f"the report of run {known.run} could not be saved"):
            async with self._copying:
                sizes = await asyncio.to_thread(self._copies.add, known, report)
        if report.job is not None and report.job.uid == known.submitter.uid:
            self._listings.add_own(known.run, report.job, self._clock.now())
        self._changed.set()
        return sizes

    async def accept_listing(
        self,
        agent: str,
        known: Sequence[PersonalJob],
        uids: Sequence[int],
        jobs: Sequence[ListedJob],
        past: Sequence[ListedJob],
    ) -> ListingReply:
        with self._as_unavailable("a listing could not be taken in"):
            for each in known:
                if each.run not in self._followed:  # another controller led before
                    await asyncio.to_thread(self._copies.ensure_known, each)
        self._listings.add_listing(agent, uids, jobs, past, self._clock.now())
        self._changed.set()
        followed = self._followed
        orders = [order for run, order in self._orders.items() if run in followed]
        orders += self._lookups.get(agent, ())[:LOOKUPS_MAX]
        return ListingReply(sorted({each.uid for each in followed.values()}), sorted(followed), orders)

    # -- observing -----------------------------------------------------------------------------------------------------

    async def observe(self, runs: Sequence[RunId]) -> Sequence[RunStatus]:
        found = await asyncio.to_thread(self._read_copies, runs)
        self._followed = {run: each for run, each in found.items() if isinstance(each, FollowedAttempt)}
        self._lookups = {}
        seen = []
        for run in runs:
            each = found[run]
            if isinstance(each, RunStatus):
                seen.append(each)
                continue
            status = await self._status(run, each)
            seen.append(await self._of_attempt(status, each.attempt, each.state.checkpoints))
            if status.phase is RunPhase.ENDED:
                self._forget(run)
        return seen

    def _read_copies(self, runs: Sequence[RunId]) -> dict[RunId, FollowedAttempt | RunStatus]:
        found: dict[RunId, FollowedAttempt | RunStatus] = {}
        for run in runs:
            try:
                attempt = self._copies.newest_attempt(run)
                if attempt is None:
                    found[run] = RunStatus(run, RunPhase.ABSENT)
                    continue
                facts = attempt.read_state()
                seen_by = attempt.path / "seen_by"
                text = seen_by.read_text() if seen_by.exists() else ""
                assert facts.asked.uid is not None, "only personal runs lie here"
                found[run] = FollowedAttempt(attempt, facts, facts.asked.uid, text)
            except (OSError, ValueError) as error:
                log.warning("run.unreadable", extra={"run": run, "detail": str(error)})
                found[run] = RunStatus(run, RunPhase.UNKNOWN)
        return found

    async def _status(self, run: RunId, each: FollowedAttempt) -> RunStatus:
        facts = each.state
        if facts.end is not None:
            return self._ended(run, facts.end, str(facts.job) if each.seen_by else None)
        agent, listed = self._listings.find(run, each, self._clock.now())
        if listed is not None and agent:
            await self._note_seen(each, agent, listed)
        job = SeenJob(listed) if listed is not None else None
        if listed is not None and not listed.state:
            return await self._forgotten_status(run, each, listed)
        if listed is None and each.seen_by and self._listings.is_missing(each, self._clock.now()):
            return await self._missing_status(run, each)
        if listed is None:
            if facts.cancel is not None and self._was_never_submitted(each):
                return await self._conclude_unsubmitted(run, each)
            return self._unlisted_status(run, each)
        self._missing.clear(run)
        seen = observe_job(replace(facts, submitting=True, job=listed.job_id), job)
        reference = str(listed.job_id) if agent else None
        if seen is RunObservation.OVER:
            return replace(await self._conclude(run, each, listed), reference=reference)
        if seen is RunObservation.WAITING and self._runs_unreported(run, facts, listed):
            seen = RunObservation.RUNNING
        began = facts.began.get(listed.restarts)
        return RunStatus(run, phase_of(seen), began, reference=reference, reason=reason_of(seen, job))

    def _runs_unreported(self, run: RunId, facts: SlurmAttemptState, listed: ListedJob) -> bool:
        """Whether a job runs whose nodes report nothing: after a while Slurm's word has to do, for this start of it.

        A job of which a report is there, and no task has begun, waits for its partition; once it was said to run, it
        does.
        """
        if listed.state != "RUNNING":
            return False
        if self._unreported.get(run) == listed.restarts:
            return True
        now = self._clock.now()
        start, since = self._running_since.setdefault(run, (listed.restarts, now))
        if start != listed.restarts:
            self._running_since[run] = listed.restarts, now
        elif not facts.claimed and seconds_between(since, now) >= UNREPORTED_S:
            self._unreported[run] = listed.restarts
            return True
        return False

    async def _missing_status(self, run: RunId, each: FollowedAttempt) -> RunStatus:
        """The status of a job that its agent lists no more: it ended long ago, or was lost."""
        job = each.state.job
        assert job is not None, "it was listed before"
        order = JobOrder(run, each.attempt.number, each.uid, JobAction.LOOK_UP, job)
        self._lookups.setdefault(each.seen_by, []).append(order)
        past = self._listings.looked_up.get((each.seen_by, job))
        if past is not None and past.ended_at is not None:
            return await self._conclude(run, each, past)
        if self._missing.record_miss(run, self._clock.now()):
            return await self._conclude(run, each, None)
        return RunStatus(run, RunPhase.UNKNOWN)

    def _was_never_submitted(self, each: FollowedAttempt) -> bool:
        """Whether no job of a cancelled attempt will come: its person says so, or long listings of them show none."""
        if each.state.claimed or each.state.began or each.seen_by:
            return False
        if (each.attempt.path / "abandoned").exists():
            return True
        now = self._clock.now()
        waited_s = seconds_between(each.state.cancelled_at or now, now)
        return waited_s > GIVE_UP_S and self._listings.has_fresh(each.uid, now)

    async def _conclude_unsubmitted(self, run: RunId, each: FollowedAttempt) -> RunStatus:
        end = EndRecord(
            EndReason.CANCELLED, SIGTERM_EXIT_CODE, ended_at=self._clock.now(), detail=each.state.cancel or ""
        )
        with self._as_unavailable(f"the end of run {run} could not be saved"):
            await asyncio.to_thread(each.attempt.save_end, end)
        return self._ended(run, end)

    async def _forgotten_status(self, run: RunId, each: FollowedAttempt, listed: ListedJob) -> RunStatus:
        """The status of a job that its person's listing and accounting know no more; each report counts once."""
        self._listings.own.pop(run, None)
        if not self._missing.record_miss(run, self._clock.now()):
            return RunStatus(run, RunPhase.UNKNOWN)
        return await self._conclude(run, replace(each, state=replace(each.state, job=listed.job_id)), None)

    def _unlisted_status(self, run: RunId, each: FollowedAttempt) -> RunStatus:
        """The status of a job that no listing shows: reports alone end nothing."""
        facts = each.state
        if facts.done is not None:
            return RunStatus(
                run, RunPhase.UNKNOWN, reason="its job reports its end, and Slurm has not confirmed it yet"
            )
        if facts.began:
            return RunStatus(run, RunPhase.RUNNING, min(facts.began.values()))
        if each.seen_by or facts.claimed:
            return RunStatus(run, RunPhase.UNKNOWN)
        reason = "no listing of Slurm shows its job yet: it is submitted by its person's 'moor'"
        return RunStatus(run, RunPhase.STARTING, reason=reason)

    async def _note_seen(self, each: FollowedAttempt, agent: str, job: ListedJob) -> None:
        """Record which agent lists the job: only that one can say that it is gone."""
        if each.seen_by == agent and each.state.job is not None:
            return

        def write() -> None:
            each.attempt.write("job", str(job.job_id).encode())
            each.attempt.write("seen_by", agent.encode())

        with self._as_unavailable("the id of a job could not be saved"):
            await asyncio.to_thread(write)

    async def _conclude(self, run: RunId, each: FollowedAttempt, job: ListedJob | None) -> RunStatus:
        """Record how a run ended; its last report may be late, and one that never started has none."""
        facts = each.state
        awaited = job is None or job.was_started
        if awaited and facts.done is None and not self._is_settled(run, LATE_S if facts.claimed else None):
            return RunStatus(run, RunPhase.UNKNOWN)
        number = job.job_id if job is not None else facts.job or 0
        end = JobEnd(number, job.state, job.ended_at, job.reason) if job is not None else JobEnd(number, "")

        def write() -> SlurmAttemptState:
            if job is not None and not facts.claimed and not facts.began:
                record = end_by_slurm(end, (job.exit_code, job.exit_signal), facts, self._clock.now())
            else:
                tasks = each.attempt.tasks(facts.asked)
                record = build_end_record(facts, tasks, end, each.attempt.last_error_line(), self._clock.now())
            each.attempt.save_end(record)
            return each.attempt.read_state()

        try:
            written = await asyncio.to_thread(write)
        except (OSError, ValueError) as error:
            log.warning("run.unsettled", extra={"run": run, "detail": str(error)})
            return RunStatus(run, RunPhase.UNKNOWN)
        return self._ended(run, written.end)

    def _forget(self, run: RunId) -> None:
        self._listings.forget(run, self._followed.get(run))
        self._orders.pop(run, None)
        self._running_since.pop(run, None)
        self._unreported.pop(run, None)

    # -- stopping ------------------------------------------------------------------------------------------------------

    async def cancel(self, run: RunId, reason: str) -> None:
        """Have the agent stop its job; its person's ``moor`` may do so before."""
        with self._as_unavailable(f"run {run} could not be cancelled"):
            attempt = await asyncio.to_thread(self._copies.newest_attempt, run)
            if attempt is None:
                return
            await asyncio.to_thread(attempt.write_once, "cancel", " ".join(reason.split()).encode())
            facts = await asyncio.to_thread(attempt.read_state)
        stuck_s = seconds_between(facts.cancelled_at or self._clock.now(), self._clock.now())
        is_stuck = stuck_s >= facts.asked.grace_s + STUCK_S
        if facts.end is None and facts.asked.uid is not None:
            action = JobAction.END if is_stuck else JobAction.STOP
            self._orders[run] = JobOrder(run, attempt.number, facts.asked.uid, action)
        self._changed.set()

    async def _warn_of_pause(self, attempt: AttemptFolder, seen: RunStatus) -> None:
        followed = self._followed.get(seen.run)
        if followed is not None and seen.run not in self._orders:
            self._orders[seen.run] = JobOrder(seen.run, attempt.number, followed.uid, JobAction.WARN)

    async def signal(self, run: RunId, signal_name: str) -> None:
        """Refused: only its person's ``scancel --signal`` reaches the job."""
        raise rejected_error(f"run {run} is a job of its person in Slurm", "scancel --signal sends it a signal")

    # -- output --------------------------------------------------------------------------------------------------------

    async def _newest_attempt(self, run: RunId) -> NewestAttempt | None:
        try:
            attempt = await asyncio.to_thread(self._copies.newest_attempt, run)
            if attempt is None:
                return None
            facts = await asyncio.to_thread(attempt.read_state)
        except (OSError, ValueError) as error:
            raise unavailable_error(f"run {run} cannot be looked at now: {error}") from error
        return NewestAttempt(attempt, facts.asked.tasks, facts.end is not None, facts.asked.grace_s)

    def _engine_error(self, error: MooringsError, what: str) -> MooringsError:
        return error

    async def close(self) -> None:
        """Nothing to close."""
