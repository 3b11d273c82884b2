"""Which jobs must make room, and what is done about it: decisions on claims that were asked to yield.

The controller asks a claim (RECLAIMING, with the time by which); its job is warned once, and put back into Slurm's
queue before that time is over, early enough for Slurm to kill what does not hear TERM. What was done stands in the
job's AdminComment, so an agent that was killed in between goes on and warns nobody twice. A job that ends with another
exit code than 0 after it was warned is put back, too: whoever does not know the signal ends by it.

No job keeps the devices that it was asked for: who may not be requeued is made so, and where Slurm will not have that,
the job is warned all the same and cancelled when its time is over.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from moorings.core.announced import QUEUE_JOBS_MAX
from moorings.core.instants import SECOND, Timestamp, add_seconds, seconds_between
from moorings.slurm.formats import LICENSE, JobRecord, License, SlurmJobPhase, YieldNotice
from moorings.slurm.host.ledger import (
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
FAILED = "FAILED"  # Slurm's word for another exit code than 0, or a signal
MARGIN_S = 3.0  # for the list of jobs, and for Slurm's messages to its nodes
NOTE_CHARS_MAX = 1000  # longer than any sentence of the controller's; Slurm itself keeps any length
WRITES_MAX = 20  # at a time: each is a command, and makes slurmctld look at the job anew
REMARK_AGAIN_S = 60.0  # a job's remark changes so often at most
_OWNER = re.compile(r"slurm/([A-Za-z0-9_.-]+)/([0-9]+)/[0-9a-f]{16}/[0-9]+/[0-9a-f]{16}")
_JOB = re.compile(r"job ([0-9]{1,10}) on slurm/([A-Za-z0-9_.-]+)")


@dataclass(frozen=True, slots=True)
class UserNames:
    """Whose the jobs are, for sentences: the users' names of a cluster's own; of others' jobs the cluster is told.

    Attributes:
        cluster: ClusterName.
        jobs: a good listing; none, where users are to see nothing of each other's jobs.
    """

    cluster: str
    jobs: Mapping[int, JobRecord] = field(default_factory=dict)

    def name(self, text: str) -> str:
        """A sentence of the controller's, with jobs called as Slurm's users know them."""
        return _JOB.sub(self._name, _OWNER.sub(r"job \2 on slurm/\1", text))

    def _name(self, found: re.Match[str]) -> str:
        if found[2] != self.cluster:
            return found[0]
        job = self.jobs.get(int(found[1]))
        return f"{job.user}'s job {found[1]}" if job is not None else f"job {found[1]}"


@dataclass(frozen=True, slots=True)
class WarnJob:
    """Warn a job that it has to make room: what is noted of it first, and what its users read."""

    job: JobRecord
    asked: YieldNotice
    note: str


@dataclass(frozen=True, slots=True)
class YieldPlan:
    """What is to be done about the jobs of claims that were asked to yield.

    Attributes:
        warnings: jobs that were not warned yet.
        requeues: jobs whose time is over, and jobs that ended because they were warned; with what is logged.
        unlocks: jobs that must be allowed a second start before they are warned.
        cancels: jobs whose time is over and that cannot be requeued; with what is logged.
        kept: claims, by id, that are not released before their job, which has ended, is back in the queue: that job's
            number and start.
        stuck: claims, by id, whose jobs cannot make room and go on later, with the reason.
    """

    warnings: tuple[WarnJob, ...] = ()
    requeues: tuple[tuple[JobRecord, str], ...] = ()
    unlocks: tuple[JobRecord, ...] = ()
    cancels: tuple[tuple[JobRecord, str], ...] = ()
    kept: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    stuck: Mapping[str, str] = field(default_factory=dict)


def plan_yields(
    jobs: Mapping[int, JobRecord],
    claims: Collection[ClaimBody],
    home: ClusterIdentity,
    now: Timestamp,
    kill_wait_s: float,
    locked: Collection[tuple[int, int]] = (),
    people: UserNames | None = None,
) -> YieldPlan:
    """What the claims that were asked to yield demand of their jobs.

    Args:
        jobs: a good listing, with the ended jobs of ``claims``.
        claims: of this cluster, unended.
        home: whose jobs they are.
        now: the time.
        kill_wait_s: seconds that Slurm leaves a job between TERM and KILL.
        locked: starts, by number and restarts of their job, that Slurm does not let be requeued.
        people: whose the jobs are, for what is noted; None: that is not told.
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
        if claim.state != RECLAIMING or start is None or not home.may_judge(claim.owner):
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
        goes_on = job.batch and job.requeue
        if job.batch and not goes_on and (job.job_id, job.restarts) not in locked:
            unlocks.append(job)
            continue
        if not goes_on:
            stuck[claim.id] = f"job {job.job_id} was asked to make room, and cannot be requeued"
        if warned is None:
            warnings.append(_warning(job, claim, now, kill_wait_s, people, goes_on=goes_on))
        elif now >= warned.requeue_at and goes_on:
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
    """The started jobs, by the id of their claim, that hold the licenses of a job for which devices are kept.

    Slurm does not know for which of its jobs an offer is, and may start another one on it: that one gets no devices,
    and the owner of the devices cannot start beside it.

    Args:
        jobs: a good listing.
        claims: of this cluster, unended.
        offered: the owners of the jobs for which devices are kept, free.
        licenses: as Slurm has them.
    """
    sizes = [job.order.ipus for job in _starting(jobs, offered) if job.order is not None]
    kept_out = [size for size in sizes if any(licenses[name].free < size for name in _twins(size) if name in licenses)]
    if not kept_out:
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
    """The jobs of these next claims that only wait for licenses."""
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
    job: JobRecord, claim: ClaimBody, now: Timestamp, kill_wait_s: float, people: UserNames, *, goes_on: bool
) -> WarnJob:
    until = parse_time(claim.asked_until) if claim.asked_until is not None else now
    left_s = max(seconds_between(now, until), 0.0)
    at = add_seconds(until, -min(kill_wait_s + MARGIN_S, left_s / 2)) if left_s else now
    since = queued_since(job)
    asked = YieldNotice(job.restarts, _whole(at), _whole(min(since, now) if since is not None else now))
    why = claim.reason.message if claim.reason is not None else "its devices are needed"
    then = "requeued" if goes_on else "it cannot be requeued, so cancelled"
    return WarnJob(job, asked, format_note(f"{why}; {then} at {clock_text(asked.requeue_at)} at the latest", people))


def _whole(at: Timestamp) -> Timestamp:
    return Timestamp(at // SECOND * SECOND)


def clock_text(at: Timestamp) -> str:
    """The time of day."""
    second = at // SECOND
    return f"{second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d} UTC"


def format_note(text: str, people: UserNames) -> str:
    """A sentence of the controller's for an AdminComment: one line, bounded, jobs called as Slurm's users know them."""
    text = people.name(" ".join(text.split()))
    text = "".join(char if char.isascii() and char.isprintable() else "?" for char in text)
    return text if len(text) <= NOTE_CHARS_MAX else f"{text[: NOTE_CHARS_MAX - 3]}..."


# -- why jobs wait -----------------------------------------------------------------------------------------------------


BEHIND = (
    f"it waits for IPUs behind the first {QUEUE_JOBS_MAX} jobs that do; once it is one of them, it says here for which"
)


def wait_note(reason: ReasonBody, people: UserNames) -> str:
    """Why a job waits, as its users read it in squeue."""
    return format_note(reason.sentence, people)


def default_wait_note(job: JobRecord, *, crowded: bool) -> str:
    """Why a job waits of which the controller says nothing; empty: that is not known yet.

    Args:
        job: that waits.
        crowded: whether the controller is told of no more jobs than it is.
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
    """The jobs that are to have another remark, with it; few at a time, those first that come first.

    Args:
        jobs: a good listing.
        reasons: why each of the first that wait does, by the owner of its next claim, in the queue's order.
        written: by job, what was written last, and when.
        now: the time.
        people: whose the jobs are.
        withheld: why no devices are kept for a job, by the owner of its next claim; it goes before other reasons.
    """
    found = []
    for job, text in _wait_reasons(jobs, reasons, written, people, withheld or {}):
        if not job.note_is_ours or job.is_cut_array:
            continue  # a note could be written only to all of its array, and over what the started ones were asked
        known, at = written.get(job.job_id, (job.note, None))  # what the column has cut is written once more
        young = at is not None and seconds_between(at, now) < REMARK_AGAIN_S
        if known != text and not young:
            found.append((job, text))
    for job in jobs.values():
        waits_no_more = job.phase is SlurmJobPhase.LIVE and job.note and job.note_is_ours
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
    """Every job that waits for IPUs, with the reason: in the queue's order, then who was told nothing for longest."""
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
