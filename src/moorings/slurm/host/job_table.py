"""Matches Slurm's IPU jobs with the controller's claims, as decisions.

A claim belongs to one start of one job: its owner names cluster, job, the nonce from ``job_submit`` (job ids are reused
after a crash) and the number of restarts. It is released when Slurm *says* that this start has ended. A missing job
must be missing for long (law 3).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from moorings.core.model.access import is_subject
from moorings.core.model.claims import NAME_CHARS_MAX, TIME_LIMIT_S_MAX
from moorings.core.model.queue_reports import QUEUE_JOBS_MAX
from moorings.core.model.timestamps import Timestamp
from moorings.core.reconcile import LISTINGS_REQUIRED, Streak
from moorings.slurm.formats import JobRecord, SlurmJobPhase, SubmittedOptions
from moorings.wire.codec import format_time
from moorings.wire.shapes import ClaimBody, ClaimRequest, QueuedJobShape, QueueRequest

KIND = "ipu"
_PROJECT = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
STARTED = ("RUNNING", "CONFIGURING")  # a job needs its partition in these states
COMPLETING = "COMPLETING"
# What a reported pending job waits for. All other reasons are not ours to solve (nodes, a dependency, a limit), and no
# block may be reserved for them.
REASON_LICENSES = "Licenses"
REASONS_NONE = ("None", "")
REASON_PRIORITY = "Priority"
_STARTS = 6  # parts of an owner: slurm, cluster, job, nonce, restarts, instance


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """The identity of a Slurm: its ClusterName and the id of its state of jobs.

    The name alone does not suffice: of two Slurms with one name, each would take the other's claims for leftovers.
    """

    cluster: str
    instance: str

    @property
    def queue(self) -> str:
        """Return the prefix of all owners of its claims."""
        return queue_of(self.cluster)

    def owns_claim(self, owner: str) -> bool:
        """Whether this Slurm's state of jobs can prove anything about a claim."""
        return start_of(owner) is None or owner.rpartition("/")[2] == self.instance


@dataclass(frozen=True, slots=True)
class JobStart:
    """One start of one job."""

    job_id: int
    nonce: str
    restarts: int

    @classmethod
    def of(cls, job: JobRecord, order: SubmittedOptions) -> JobStart:
        """Return the current start of a job, or the next one if it is pending."""
        return cls(job.job_id, order.nonce, job.restarts)

    def owner(self, home: ClusterIdentity) -> str:
        """Return the owner of its claim."""
        return f"{home.queue}/{self.job_id}/{self.nonce}/{self.restarts}/{home.instance}"

    def idempotency_key(self, home: ClusterIdentity) -> str:
        """Return the idempotency key of its claim."""
        return f"{home.cluster}/{self.job_id}/{self.nonce}/{self.restarts}/{home.instance}"

    def partition_names(self) -> tuple[str, str]:
        """Return two names of its partition: the V-IPU plugin's form, and with the nonce if that is taken."""
        short = f"slurm_{self.job_id}" + (f"_r{self.restarts}" if self.restarts else "")
        return short[:NAME_CHARS_MAX], f"{short}_{self.nonce}"[:NAME_CHARS_MAX]


def queue_of(cluster: str) -> str:
    """Return the queue of a cluster: the prefix of all owners of its claims."""
    return f"slurm/{cluster}"


def start_of(owner: str) -> JobStart | None:
    """Return the start that an owner names; None: it names none."""
    parts = owner.split("/")
    if len(parts) != _STARTS or not parts[2].isdecimal() or not parts[4].isdecimal():
        return None
    return JobStart(int(parts[2]), parts[3], int(parts[4]))


def request_for(
    job: JobRecord, home: ClusterIdentity, pool: str, *, long_name: bool = False, is_private: bool = True
) -> ClaimRequest:
    """Return the claim request of a started job; it names no person if users must not see others' jobs."""
    assert job.order is not None
    order, start = job.order, JobStart.of(job, job.order)
    return ClaimRequest(
        size=order.ipus,
        accelerator=KIND,
        name=start.partition_names()[long_name],
        gcds=order.gcds,
        replicas_per_gcd=_replicas_per_gcd(order),
        pool=pool or None,
        owner=start.owner(home),
        project=project_of(job),
        time_limit_s=_limit(job),
        preemptible=bool(order.signal),
        person=job.user if not is_private and is_subject(job.user) else None,
    )


def project_of(job: JobRecord) -> str:
    """Return the project of a job: its account; the controller may have it as an alias.

    Where Slurm does not enforce accounts, jobs have none here (``formats.parse_jobs``), because ``sbatch -A`` can name
    any.
    """
    return job.account if _PROJECT.fullmatch(job.account) else "default"


def build_queue_payload(
    jobs: Mapping[int, JobRecord],
    home: ClusterIdentity,
    pool: str,
    valid_for_s: float,
    tier: Callable[[JobRecord], int] = lambda _: 1,
    withheld: Collection[str] = (),
    on_trial: Collection[str] = (),
) -> QueueRequest:
    """Report the first pending jobs with IPUs in Slurm's order: by the tier of their partitions, then by priority.

    A job behind others is reported only if one before it in a partition waits for IPUs. Measured on 22.05, 24.11 and
    26.05: a job that waits for licenses delays no other, so ``Priority`` means that it is behind one that waits for
    nodes (or, since 24.11, that it is new), and blocks would be reserved for jobs that cannot start.

    Args:
        jobs: a complete listing.
        home: the jobs' cluster.
        pool: for the jobs; empty: any of the kind.
        valid_for_s: how long the report is valid.
        tier: of a job's partitions.
        withheld: owners of next claims of jobs without a right to reserved devices.
        on_trial: owners of next claims of jobs that may start now: reported whatever Slurm says.
    """
    asked = [job for job in jobs.values() if job.order is not None and job.phase is SlurmJobPhase.WAITING]
    first: dict[str, tuple[int, int]] = {}  # by partition, the first job there that waits for IPUs
    for job in asked:
        if job.reason == REASON_LICENSES:
            for name in job.partition.split(","):
                first[name] = min(first.get(name, queue_order(job)), queue_order(job))
    numbers = {start.job_id for start in map(start_of, on_trial) if start is not None}
    may = [job for job in asked if job.job_id in numbers or _is_announced(job, first)]
    waiting = [(-tier(job), *queue_order(job), job, job.order) for job in may]
    shapes: list[QueuedJobShape] = []
    for *_, job, order in sorted(waiting, key=lambda one: one[:3]):
        assert order is not None
        owner = JobStart.of(job, order).owner(home)
        if owner in withheld or (owner not in on_trial and not _is_announced(job, first)):
            continue
        if len(shapes) == QUEUE_JOBS_MAX:
            break
        since = queued_since(job)
        shapes.append(
            QueuedJobShape(
                owner=owner,
                size=order.ipus,
                gcds=order.gcds,
                replicas_per_gcd=_replicas_per_gcd(order),
                pool=pool or None,
                since=format_time(since) if since is not None else None,
                time_limit_s=_limit(job),
                project=project_of(job),
                preemptible=True if order.signal else None,
            )
        )
    return QueueRequest(queue=home.queue, accelerator=KIND, jobs=tuple(shapes), for_s=valid_for_s)


def queued_since(job: JobRecord) -> Timestamp | None:
    """Return since when a job has its place; after a yield, the time of its first start, which Slurm forgets."""
    since = job.eligible or job.submit_time
    if job.asked is not None:
        return min(job.asked.since, since) if since is not None else job.asked.since
    return since


def _is_announced(job: JobRecord, first: Mapping[str, tuple[int, int]]) -> bool:
    if job.reason == REASON_PRIORITY:
        return any(name in first and first[name] < queue_order(job) for name in job.partition.split(","))
    return job.reason in (REASON_LICENSES, *REASONS_NONE)


def queue_order(job: JobRecord) -> tuple[int, int]:
    """Return a job's sort key among those of a partition: the least is first."""
    return -job.priority, job.job_id


def _replicas_per_gcd(order: SubmittedOptions) -> int:
    return max(order.replicas // order.gcds, 1)


def _limit(job: JobRecord) -> float | None:
    return min(max(job.limit_s, 1.0), TIME_LIMIT_S_MAX) if job.limit_s is not None else None


@dataclass(frozen=True, slots=True)
class ClaimReview:
    """The consequences of one complete listing.

    Attributes:
        starts: jobs that need a partition and have no claim.
        releases: claims of ended starts, by id, with the reason.
        lost: claims without a known job for long, by id, with the reason; next, ask Slurm for their jobs.
        missed_listings: claims without a job in the listing, by owner; kept for the next.
    """

    starts: tuple[JobRecord, ...] = ()
    releases: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    missed_listings: Mapping[str, Streak] = field(default_factory=dict)


def review_claims(
    jobs: Mapping[int, JobRecord],
    claims: Collection[ClaimBody],
    doubts: Mapping[str, Streak],
    home: ClusterIdentity,
    apart_s: float,
) -> ClaimReview:
    """Judge claims and jobs by a complete listing.

    Args:
        jobs: the listing: all IPU jobs that have not ended, and those of ``claims`` that Slurm still knows.
        claims: the cluster's, not ended, and known *before* the listing began.
        doubts: from the previous listing.
        home: the jobs' cluster; claims of another Slurm of this name are not judged.
        apart_s: minimum seconds since the previous listing.
    """
    releases: dict[str, str] = {}
    lost: dict[str, str] = {}
    remembered: dict[str, Streak] = {}
    held = {claim.owner for claim in claims}
    for claim in claims:
        if not home.owns_claim(claim.owner):
            continue
        start = start_of(claim.owner)
        job = jobs.get(start.job_id) if start is not None else None
        why = _over(start, job)
        if why:
            releases[claim.id] = why
        elif start is None or job is None or not may_be_running(start, job):
            streak = doubts.get(claim.owner, Streak()).extended(apart_s)
            remembered[claim.owner] = streak
            if streak.is_conclusive(LISTINGS_REQUIRED):
                what = f"of job {start.job_id} nothing is known" if start is not None else "its owner is no job"
                lost[claim.id] = f"{what} for {streak.lasted_s:.0f} s"
    starts = tuple(
        job
        for job in jobs.values()
        if job.state in STARTED and job.order is not None and JobStart.of(job, job.order).owner(home) not in held
    )
    return ClaimReview(starts, releases, lost, remembered)


def _over(start: JobStart | None, job: JobRecord | None) -> str:
    """Return why a start has certainly ended; empty: it is not certain."""
    if start is None or job is None or job.order is None or job.order.nonce != start.nonce:
        return ""
    if job.state == COMPLETING:  # requeued, it has its next count while processes are being killed
        return ""
    if job.restarts > start.restarts:
        return f"job {start.job_id} was requeued"
    if job.restarts == start.restarts and job.phase is SlurmJobPhase.ENDED:
        return f"job {start.job_id} is {job.state}"
    return ""


def may_be_running(start: JobStart, job: JobRecord) -> bool:
    """Whether this may be the job of that start, and run; an admin may have overwritten its nonce."""
    same = job.order is None or job.order.nonce == start.nonce
    restarts = (start.restarts, start.restarts + 1) if job.state == COMPLETING else (start.restarts,)
    return same and job.phase is SlurmJobPhase.LIVE and job.restarts in restarts


def has_ended(start: JobStart, jobs: Mapping[int, JobRecord]) -> bool:
    """Whether a start has certainly ended, by a complete listing."""
    return bool(_over(start, jobs.get(start.job_id)))


def uses_licenses(job: JobRecord) -> bool:
    """Whether a job has its licenses; Slurm takes them back when it begins to complete."""
    return job.phase is SlurmJobPhase.LIVE and job.state != COMPLETING
