"""Decides which jobs must yield, and how: from claims that the controller asked to yield.

The controller reclaims a claim (RECLAIMING, with a deadline). The claim's job is warned once, and requeued before the
deadline, early enough for Slurm to kill processes that ignore TERM. Each action is recorded in the job's AdminComment,
so an agent restarted in between continues and warns no job twice. A job that ends with an exit code other than 0 after
its warning is requeued, too: without a handler the signal ends it.

No job keeps reclaimed devices: requeue is allowed for a job that forbids it, and if Slurm refuses that, the job is
still warned, and cancelled at the deadline.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from moorings.core.model.queue_reports import QUEUE_JOBS_MAX
from moorings.core.model.timestamps import SECOND, Timestamp, add_seconds, seconds_between
from moorings.slurm.formats import LICENSE, JobRecord, License, SlurmJobPhase, YieldNotice
from moorings.slurm.host.job_table import (
    COMPLETING,
    REASON_LICENSES,
    REASON_PRIORITY,
    REASONS_NONE,
    ClusterIdentity,
    JobStart,
    queued_since,
    start_of,
)
from moorings.wire.codec import parse_time
from moorings.wire.shapes import ClaimBody, ReasonBody

RECLAIMING = "RECLAIMING"
FAILED = "FAILED"  # Slurm's state for an exit code other than 0, or a signal
MARGIN_S = 3.0  # for the list of jobs, and for Slurm's messages to its nodes
NOTE_CHARS_MAX = 1000  # longer than any sentence of the controller; Slurm itself has no limit
WRITES_MAX = 20  # at a time: each is a command, and makes slurmctld reconsider the job
REMARK_AGAIN_S = 60.0  # minimum interval of changes of a job's note
_OWNER = re.compile(r"slurm/([A-Za-z0-9_.-]+)/([0-9]+)/[0-9a-f]{16}/[0-9]+/[0-9a-f]{16}")
_JOB = re.compile(r"job ([0-9]{1,10}) on slurm/([A-Za-z0-9_.-]+)")


@dataclass(frozen=True, slots=True)
class UserNames:
    """Names of jobs' users for sentences: the user's name for this cluster's jobs, the cluster for others.

    Attributes:
        cluster: ClusterName.
        jobs: a complete listing; empty where users must not see each other's jobs.
    """

    cluster: str
    jobs: Mapping[int, JobRecord] = field(default_factory=dict)

    def name(self, text: str) -> str:
        """Return a sentence of the controller with Slurm's names of the jobs."""
        return _JOB.sub(self._name, _OWNER.sub(r"job \2 on slurm/\1", text))

    def _name(self, found: re.Match[str]) -> str:
        if found[2] != self.cluster:
            return found[0]
        job = self.jobs.get(int(found[1]))
        return f"{job.user}'s job {found[1]}" if job is not None else f"job {found[1]}"


@dataclass(frozen=True, slots=True)
class WarnJob:
    """Warn a job to yield: first record the request, with a note for its users."""

    job: JobRecord
    asked: YieldNotice
    note: str


@dataclass(frozen=True, slots=True)
class YieldPlan:
    """The actions on jobs of reclaimed claims.

    Attributes:
        warnings: jobs without a warning yet.
        requeues: jobs past their deadline, and jobs that ended because of the warning; with the text to log.
        allow_requeue: jobs whose requeue must be allowed before the warning.
        cancels: jobs past their deadline that cannot be requeued; with the text to log.
        kept: claims, by id, to keep until their ended job is requeued: that job's id and start.
        unable_to_yield: claims, by id, whose jobs cannot yield and resume later, with the reason.
    """

    warnings: tuple[WarnJob, ...] = ()
    requeues: tuple[tuple[JobRecord, str], ...] = ()
    allow_requeue: tuple[JobRecord, ...] = ()
    cancels: tuple[tuple[JobRecord, str], ...] = ()
    kept: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    unable_to_yield: Mapping[str, str] = field(default_factory=dict)


def plan_yields(
    jobs: Mapping[int, JobRecord],
    claims: Collection[ClaimBody],
    home: ClusterIdentity,
    now: Timestamp,
    kill_wait_s: float,
    locked: Collection[tuple[int, int]] = (),
    people: UserNames | None = None,
) -> YieldPlan:
    """Return the actions on jobs of reclaimed claims.

    Args:
        jobs: a complete listing, with the ended jobs of ``claims``.
        claims: the cluster's, not ended.
        home: the jobs' cluster.
        now: the time.
        kill_wait_s: seconds from Slurm's TERM to its KILL.
        locked: starts, by job id and restarts, that Slurm does not let us requeue.
        people: names of users for the notes; None: no names.
    """
    people = people or UserNames(home.cluster)
    warnings: list[WarnJob] = []
    requeues: list[tuple[JobRecord, str]] = []
    unlocks: list[JobRecord] = []
    cancels: list[tuple[JobRecord, str]] = []
    kept: dict[str, tuple[int, int]] = {}
    stuck: dict[str, str] = {}
    for claim in claims:
        start = start_of(claim.owner)
        if claim.state != RECLAIMING or start is None or not home.owns_claim(claim.owner):
            continue
        job = jobs.get(start.job_id)
        if job is None or job.order is None or (job.order.nonce, job.restarts) != (start.nonce, start.restarts):
            continue
        warned = job.asked if job.asked is not None and job.asked.restarts == job.restarts else None
        if job.phase is SlurmJobPhase.ENDED:
            if warned is not None and job.state == FAILED and job.batch and job.requeue:
                requeues.append((job, f"it ended with {_end_of(job)} after it was asked to make room"))
                kept[claim.id] = (job.job_id, job.restarts)
            continue
        if job.phase is not SlurmJobPhase.LIVE or job.state == COMPLETING:
            continue
        resumable = job.batch and job.requeue
        if job.batch and not resumable and (job.job_id, job.restarts) not in locked:
            unlocks.append(job)
            continue
        if not resumable:
            stuck[claim.id] = f"job {job.job_id} was asked to make room, and cannot be requeued"
        if warned is None:
            warnings.append(_warning(job, claim, now, kill_wait_s, people, is_requeueable=resumable))
        elif now >= warned.requeue_at and resumable:
            requeues.append((job, "its time to make room is over"))
        elif now >= warned.requeue_at:
            cancels.append((job, "cancelled, for its devices are needed and it cannot be requeued"))
    return YieldPlan(tuple(warnings), tuple(requeues), tuple(unlocks), tuple(cancels), kept, stuck)


def find_blocking_jobs(
    jobs: Mapping[int, JobRecord],
    claims: Collection[ClaimBody],
    offered: Collection[str],
    licenses: Mapping[str, License],
) -> dict[str, JobRecord]:
    """Return the started jobs, by the id of their claim, that hold the licenses of a job with reserved devices.

    Slurm does not know which of its jobs an offer is for, and may start another one on it. That job gets no devices,
    and the owner of the devices cannot start beside it.

    Args:
        jobs: a complete listing.
        claims: the cluster's, not ended.
        offered: the owners of the jobs with free devices reserved for them.
        licenses: as Slurm has them.
    """
    sizes = [job.order.ipus for job in _starting(jobs, offered) if job.order is not None]
    blocked_sizes = [
        size for size in sizes if any(licenses[name].free < size for name in _twins(size) if name in licenses)
    ]
    if not blocked_sizes:
        return {}
    found = {}
    for claim in claims:
        start = start_of(claim.owner)
        job = jobs.get(start.job_id) if start is not None and claim.state == "PENDING" else None
        if (
            start is None
            or job is None
            or job.order is None
            or job.phase is not SlurmJobPhase.LIVE
            or job.state == COMPLETING
        ):
            continue
        same = (job.order.nonce, job.restarts) == (start.nonce, start.restarts)
        if same and job.batch and job.requeue:
            found[claim.id] = job
    return found


def _starting(jobs: Mapping[int, JobRecord], owners: Collection[str]) -> Iterator[JobRecord]:
    """Yield the jobs of these next claims that only wait for licenses."""
    for start in map(start_of, owners):
        job = jobs.get(start.job_id) if start is not None else None
        if job is not None and job.phase is SlurmJobPhase.WAITING and job.reason == REASON_LICENSES:
            yield job


def _twins(size: int) -> list[str]:
    return [f"{LICENSE}_{1 << power}" for power in range(size.bit_length())]


def _end_of(job: JobRecord) -> str:
    code, signal = job.status
    return f"signal {signal}" if signal else f"exit code {code}"


def _warning(
    job: JobRecord, claim: ClaimBody, now: Timestamp, kill_wait_s: float, people: UserNames, *, is_requeueable: bool
) -> WarnJob:
    until = parse_time(claim.asked_until) if claim.asked_until is not None else now
    left_s = max(seconds_between(now, until), 0.0)
    at = add_seconds(until, -min(kill_wait_s + MARGIN_S, left_s / 2)) if left_s else now
    since = queued_since(job)
    asked = YieldNotice(job.restarts, _whole(at), _whole(min(since, now) if since is not None else now))
    why = claim.reason.message if claim.reason is not None else "its devices are needed"
    then = "requeued" if is_requeueable else "it cannot be requeued, so cancelled"
    return WarnJob(job, asked, format_note(f"{why}; {then} at {clock_text(asked.requeue_at)} at the latest", people))


def _whole(at: Timestamp) -> Timestamp:
    return Timestamp(at // SECOND * SECOND)


def clock_text(at: Timestamp) -> str:
    """Return the time of day."""
    second = at // SECOND
    return f"{second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d} UTC"


def format_note(text: str, people: UserNames) -> str:
    """Return a sentence of the controller for an AdminComment: one bounded line, with Slurm's names of jobs."""
    text = people.name(" ".join(text.split()))
    text = "".join(char if char.isascii() and char.isprintable() else "?" for char in text)
    return text if len(text) <= NOTE_CHARS_MAX else f"{text[: NOTE_CHARS_MAX - 3]}..."


# -- why jobs wait -----------------------------------------------------------------------------------------------------


BEHIND = (
    f"it waits for IPUs behind the first {QUEUE_JOBS_MAX} jobs that do; once it is one of them, it says here for which"
)


def wait_note(reason: ReasonBody, people: UserNames) -> str:
    """Return why a job waits, as shown in squeue."""
    return format_note(reason.sentence, people)


def default_wait_note(job: JobRecord, *, crowded: bool) -> str:
    """Return why a job waits without a reason from the controller; empty: not known yet.

    Args:
        job: the pending job.
        crowded: whether the report to the controller is full.
    """
    if job.reason in REASONS_NONE:
        return ""
    if job.reason in (REASON_LICENSES, REASON_PRIORITY) and crowded:
        return BEHIND
    if job.reason == REASON_LICENSES:
        return ""
    return format_note(f"it does not wait for IPUs yet, for Slurm says {job.reason}", UserNames(""))


def plan_wait_notes(
    jobs: Mapping[int, JobRecord],
    reasons: Mapping[str, ReasonBody],
    written: Mapping[int, tuple[str, Timestamp]],
    now: Timestamp,
    people: UserNames,
    withheld: Mapping[str, str] | None = None,
) -> list[tuple[JobRecord, str]]:
    """Return the jobs that need a new note, with it; few at a time, in order of urgency.

    Args:
        jobs: a complete listing.
        reasons: why each of the first pending jobs waits, by the owner of its next claim, in the queue's order.
        written: by job, the last note and its time.
        now: the time.
        people: names of the jobs' users.
        withheld: why no devices are reserved for a job, by the owner of its next claim; it precedes other reasons.
    """
    found = []
    for job, text in _wait_reasons(jobs, reasons, written, people, withheld or {}):
        if not job.is_note_ours or job.is_cut_array:
            continue  # only the whole array could get a note, and it would overwrite the requests to its started tasks
        known, at = written.get(job.job_id, (job.note, None))  # a note cut by the column is written again
        young = at is not None and seconds_between(at, now) < REMARK_AGAIN_S
        if known != text and not young:
            found.append((job, text))
    for job in jobs.values():
        waits_no_more = job.phase is SlurmJobPhase.LIVE and job.note and job.is_note_ours
        if waits_no_more and (job.asked is None or job.asked.restarts != job.restarts):
            found.append((job, ""))
    return found[:WRITES_MAX]


def _wait_reasons(
    jobs: Mapping[int, JobRecord],
    reasons: Mapping[str, ReasonBody],
    written: Mapping[int, tuple[str, Timestamp]],
    people: UserNames,
    withheld: Mapping[str, str],
) -> Iterator[tuple[JobRecord, str]]:
    """Yield every job that waits for IPUs, with the reason: in the queue's order, then by the age of its last note."""
    explained = set()
    sentences = {owner: wait_note(reason, people) for owner, reason in reasons.items() if owner not in withheld}
    for owner, text in {**sentences, **withheld}.items():
        start = start_of(owner)
        job = jobs.get(start.job_id) if start is not None else None
        if (
            job is not None
            and job.order is not None
            and job.phase is SlurmJobPhase.WAITING
            and JobStart.of(job, job.order) == start
        ):
            explained.add(job.job_id)
            yield job, format_note(text, people)
    rest = [job for job in jobs.values() if job.order is not None and job.phase is SlurmJobPhase.WAITING]
    for job in sorted(rest, key=lambda job: written[job.job_id][1] if job.job_id in written else 0):
        text = default_wait_note(job, crowded=len(reasons) >= QUEUE_JOBS_MAX) if job.job_id not in explained else ""
        if text:
            yield job, text
