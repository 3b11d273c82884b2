"""The engine ``slurm`` where people submit their jobs themselves, as the controller sees it (``ports.personal``).

Each person's ``moor`` calls sbatch, so a job has its person's account, home and share. The controller reaches neither
their folders nor Slurm: it keeps a copy of each attempt's folder, made from reports, and the last listings of agents.
The copy has the same files as the folder (``run_folder``), so a run's state and its end follow by the same rules. They
differ in one: a report ends nothing. An end needs Slurm's word, in an agent's listing or else in the person's own.

What is reported is another user's: only files with known names are copied, bounded, and read as foreign data.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moorings.core.model.claims import CheckpointContract
from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp, seconds_between
from moorings.engines.launch import rejected_error, unavailable_error
from moorings.engines.node_report import MIRRORED, output_bytes_max
from moorings.engines.run_folder import AttemptFolder, to_json
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
from moorings.slurm.engine.run_folder import SlurmAttempt, SlurmAttemptState, SlurmRunFolder, SubmittedSlurmJob
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

LISTING_S = 20.0  # for so long an agent's listing counts
OWN_LISTING_S = 90.0  # and a person's own, which is made less often
SETTLE_S = 10.0  # after Slurm's end of a job, for a report
LATE_S = 30.0  # and for the last one of a job that has reported before
GIVE_UP_S = 600.0  # a cancelled run that nobody has submitted by then never is
UNREPORTED_S = 15.0  # a running job that has reported nothing by then will not soon
STUCK_S = 60.0  # after its grace period and this, Slurm ends a run that must stop
FILE_BYTES_MAX = 256 << 10
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


@dataclass(frozen=True, slots=True)
class AgentListing:
    """The jobs of runs, as one agent listed them at one moment."""

    at: Timestamp
    uids: frozenset[int]
    by_attempt: Mapping[tuple[RunId, int, int], Sequence[ListedJob]]  # run, attempt, uid


@dataclass(frozen=True, slots=True)
class FollowedAttempt:
    """The newest attempt of a run that is looked at, and the state in its copy."""

    attempt: SlurmAttempt
    state: SlurmAttemptState
    uid: int
    seen_by: str  # the agent that has listed its job: queue and instance; empty: none has


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
        self._folder = folder
        self._copying = asyncio.Lock()
        self._listings: dict[str, AgentListing] = {}
        self._own: dict[RunId, tuple[Timestamp, ListedJob]] = {}
        self._past: dict[tuple[str, int], ListedJob] = {}  # by the agent that has looked it up
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
            await asyncio.to_thread(self._ensure_copy, order.run, order.attempt, asked)
        self._changed.set()
        return ""

    def _ensure_copy(self, run: RunId, number: int, asked: SubmittedSlurmJob) -> SlurmAttempt:
        folder = SlurmRunFolder.find(self._folder, run)
        if folder is None:
            raise rejected_error(f"{run[:120]!r} cannot be the id of a run on Slurm")
        self._folder.mkdir(mode=0o700, exist_ok=True)
        folder.path.mkdir(mode=0o700, exist_ok=True)
        attempt = folder.attempt(number)
        if not (attempt.path / "order.json").exists():
            for path in (attempt.path, attempt.path / "logs", attempt.path / "tasks"):
                path.mkdir(mode=0o700, exist_ok=True)
            attempt.write("order.json", to_json(asked))
        return attempt

    def _ensure_known(self, known: PersonalJob) -> SlurmAttempt:
        """The copy of an attempt; another controller may have led when it began."""
        newest = self._newest_copy(known.run)
        if newest is not None and newest.number >= known.attempt:
            return newest
        grace_s = CheckpointContract().grace_s
        return self._ensure_copy(
            known.run, known.attempt, SubmittedSlurmJob(known.tasks, grace_s, uid=known.submitter.uid)
        )

    def _newest_copy(self, run: RunId) -> SlurmAttempt | None:
        folder = SlurmRunFolder.find(self._folder, run)
        return folder.newest_attempt() if folder is not None else None

    # -- what is reported --------------------------------------------------------------------------------------------

    async def accept_report(self, known: PersonalJob, report: RunReport) -> dict[int, int]:
        with self._as_unavailable(f"the report of run {known.run} could not be saved"):
            async with self._copying:
                sizes = await asyncio.to_thread(self._copy, known, report)
        if report.job is not None and report.job.uid == known.submitter.uid:
            before = self._own.get(known.run)
            is_over = report.job.ended_at is not None or not report.job.state
            since = before[0] if is_over and before is not None and before[1] == report.job else self._clock.now()
            self._own[known.run] = since, report.job
        self._changed.set()
        return sizes

    def _copy(self, known: PersonalJob, report: RunReport) -> dict[int, int]:
        attempt = self._ensure_known(known)
        tasks = known.tasks
        if report.attempt < attempt.number:
            raise MooringsError("report.outdated", f"run {known.run} has attempt {attempt.number} by now")
        if report.attempt == attempt.number:
            for file in report.files:
                _check_name(file.name, tasks)
            if report.present is not None:
                _remove_others(attempt.path, frozenset(report.present))
            for part in report.output:
                if not 0 <= part.task < tasks:
                    raise MooringsError("report.invalid", f"run {known.run} has no task {part.task}")
                _append(attempt.log_path(part.task), part.offset, part.data, output_bytes_max(tasks))
            for file in report.files:
                _write_copy(attempt.path / file.name, file.text, min(file.modified_at, self._clock.now()))
            if report.is_abandoned:
                attempt.write_once("abandoned", b"")
        return {task: _size(attempt.log_path(task)) for task in range(tasks)}

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
                    await asyncio.to_thread(self._ensure_known, each)
        by_attempt: dict[tuple[RunId, int, int], list[ListedJob]] = {}
        for job in jobs:
            by_attempt.setdefault((job.run, job.attempt, job.uid), []).append(job)
        self._listings[agent] = AgentListing(self._clock.now(), frozenset(uids), by_attempt)
        self._past |= {(agent, job.job_id): job for job in past}
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
                attempt = self._newest_copy(run)
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
        agent, listed = self._listed(run, each)
        if listed is not None and agent:
            await self._note_seen(each, agent, listed)
        job = SeenJob(listed) if listed is not None else None
        if listed is not None and not listed.state:
            return await self._forgotten_status(run, each, listed)
        if listed is None and each.seen_by and self._is_missing(each):
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

    def _listed(self, run: RunId, each: FollowedAttempt) -> tuple[str, ListedJob | None]:
        """The job of an attempt, and the agent that lists it; no agent: its person has listed it."""
        now = self._clock.now()
        for agent, listing in self._listings.items():
            if seconds_between(listing.at, now) > LISTING_S:
                continue
            jobs = listing.by_attempt.get((run, each.attempt.number, each.uid), ())
            for job in jobs:
                if each.state.job in (None, job.job_id) or len(jobs) == 1:
                    return agent, job
        own = self._own.get(run)
        if own is None or own[1].attempt != each.attempt.number:
            return "", None
        if own[1].ended_at is not None or not own[1].state:
            is_awaited = seconds_between(own[0], now) < SETTLE_S and self._has_fresh_listing(each.uid)
            return "", own[1] if not is_awaited else None  # an agent's word has the id of the job, too
        # Its person looks seldom: what the job itself says of its start is newer.
        is_current = seconds_between(own[0], now) <= OWN_LISTING_S and not each.state.began
        return "", own[1] if is_current else None

    def _has_fresh_listing(self, uid: int) -> bool:
        """Whether some agent lists this user's jobs now."""
        now = self._clock.now()
        return any(uid in one.uids for one in self._listings.values() if seconds_between(one.at, now) <= LISTING_S)

    def _is_missing(self, each: FollowedAttempt) -> bool:
        """Whether the agent that has listed the job before has listed this user's since, without it."""
        listing = self._listings.get(each.seen_by)
        fresh = listing is not None and seconds_between(listing.at, self._clock.now()) <= LISTING_S
        return fresh and listing is not None and each.uid in listing.uids

    async def _missing_status(self, run: RunId, each: FollowedAttempt) -> RunStatus:
        """The status of a job that its agent lists no more: it ended long ago, or was lost."""
        job = each.state.job
        assert job is not None, "it was listed before"
        order = JobOrder(run, each.attempt.number, each.uid, JobAction.LOOK_UP, job)
        self._lookups.setdefault(each.seen_by, []).append(order)
        past = self._past.get((each.seen_by, job))
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
        return waited_s > GIVE_UP_S and self._has_fresh_listing(each.uid)

    async def _conclude_unsubmitted(self, run: RunId, each: FollowedAttempt) -> RunStatus:
        end = EndRecord(
            EndReason.CANCELLED, SIGTERM_EXIT_CODE, ended_at=self._clock.now(), detail=each.state.cancel or ""
        )
        with self._as_unavailable(f"the end of run {run} could not be saved"):
            await asyncio.to_thread(each.attempt.save_end, end)
        return self._ended(run, end)

    async def _forgotten_status(self, run: RunId, each: FollowedAttempt, listed: ListedJob) -> RunStatus:
        """The status of a job that its person's listing and accounting know no more; each report counts once."""
        self._own.pop(run, None)
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
        end = JobEnd(number, job.state, job.ended_at) if job is not None else JobEnd(number, "")

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
        self._own.pop(run, None)
        self._orders.pop(run, None)
        self._running_since.pop(run, None)
        self._unreported.pop(run, None)
        followed = self._followed.get(run)
        if followed is not None and followed.state.job is not None:
            self._past.pop((followed.seen_by, followed.state.job), None)

    # -- stopping ------------------------------------------------------------------------------------------------------

    async def cancel(self, run: RunId, reason: str) -> None:
        """Have the agent stop its job; its person's ``moor`` may do so before."""
        with self._as_unavailable(f"run {run} could not be cancelled"):
            attempt = await asyncio.to_thread(self._newest_copy, run)
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
            attempt = await asyncio.to_thread(self._newest_copy, run)
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


def _check_name(name: str, tasks: int) -> None:
    found = re.fullmatch(r"tasks/([0-9]{1,6})(\.why)?", name)
    if MIRRORED.fullmatch(name) is None or (found is not None and int(found[1]) >= tasks):
        raise MooringsError("report.invalid", f"{name[:80]!r} is no file of an attempt that is reported")


def _remove_others(folder: Path, present: frozenset[str]) -> None:
    """Remove copies of files that are there no more: a later start of the job begins without them."""
    for path in (*folder.iterdir(), *(folder / "tasks").iterdir()):
        name = str(path.relative_to(folder))
        if MIRRORED.fullmatch(name) and name not in present and name != "claimed":
            path.unlink(missing_ok=True)


def _write_copy(path: Path, text: str, modified_at: Timestamp) -> None:
    content = text.encode("utf-8", "surrogateescape")
    if len(content) > FILE_BYTES_MAX:
        raise MooringsError("report.invalid", f"{path.name} has more than {FILE_BYTES_MAX} bytes")
    if path.exists() and path.stat().st_mtime_ns // 1000 > modified_at:
        return  # a later report has overtaken this one
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(content)
    os.utime(draft, ns=(modified_at * 1000, modified_at * 1000))
    draft.replace(path)


def _append(path: Path, offset: int, data: bytes, bytes_max: int) -> None:
    """Add output that follows what is known; a part that does not is left out: the answer says where to go on."""
    size = _size(path)
    if offset != size or size >= bytes_max:
        return
    with path.open("ab") as file:
        file.write(data[: bytes_max - size])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
