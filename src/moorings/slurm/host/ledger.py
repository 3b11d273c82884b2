"""Whose partition is whose: Slurm's IPU jobs beside the controller's claims, as decisions.

A claim belongs to one start of one job: its owner names cluster, job, the nonce that ``job_submit`` drew (job ids come
again after a crash) and the number of restarts. It is released when Slurm *says* that this start is over; a job that is
merely missing must be missing for long (law 3).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from moorings.core.announced import QUEUE_JOBS_MAX
from moorings.core.claims import NAME_CHARS_MAX, TIME_LIMIT_S_MAX
from moorings.core.instants import Timestamp
from moorings.core.reconcile import LISTINGS_REQUIRED, Streak
from moorings.slurm.formats import JobRecord, SlurmJobPhase, SubmittedOptions
from moorings.wire.codec import format_time
from moorings.wire.shapes import ClaimBody, ClaimRequest, QueuedJobShape, QueueRequest

KIND = "ipu"
_PROJECT = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
STARTED = ("RUNNING", "CONFIGURING")  # states in which a job needs its partition
COMPLETING = "COMPLETING"
# What a waiting job that is told of waits for. All other reasons mean something that is not ours to give (nodes, a
# dependency, a limit), and nothing must be kept for it.
REASON_LICENSES = "Licenses"
REASONS_NONE = ("None", "")
REASON_PRIORITY = "Priority"
_STARTS = 6  # parts of an owner: slurm, cluster, job, nonce, restarts, instance


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """Whose jobs they are: a Slurm, by its ClusterName and by the id of what it remembers of its jobs.

    The name alone would not do: of two Slurms of one name each would take the other's claims for leftovers.
    """

    cluster: str
    instance: str

    @property
    def queue(self) -> str:
        """All owners of its claims begin so."""
        return queue_of(self.cluster)

    def may_judge(self, owner: str) -> bool:
        """Whether what this Slurm knows of its jobs says anything of a claim."""
        return start_of(owner) is None or owner.rpartition("/")[2] == self.instance


@dataclass(frozen=True, slots=True)
class JobStart:
    """One start of one job."""

    job_id: int
    nonce: str
    restarts: int

    @classmethod
    def of(cls, job: JobRecord, order: SubmittedOptions) -> JobStart:
        """The present start of a job, or its next one if it waits."""
        return cls(job.job_id, order.nonce, job.restarts)

    def owner(self, home: ClusterIdentity) -> str:
        """The owner of its claim."""
        return f"{home.queue}/{self.job_id}/{self.nonce}/{self.restarts}/{home.instance}"

    def key(self, home: ClusterIdentity) -> str:
        """The idempotency key of its claim."""
        return f"{home.cluster}/{self.job_id}/{self.nonce}/{self.restarts}/{home.instance}"

    def names(self) -> tuple[str, str]:
        """What its partition is called: as users of the V-IPU plugin know it; if that is taken, by the nonce too."""
        short = f"slurm_{self.job_id}" + (f"_r{self.restarts}" if self.restarts else "")
        return short[:NAME_CHARS_MAX], f"{short}_{self.nonce}"[:NAME_CHARS_MAX]


def queue_of(cluster: str) -> str:
    """The queue of a cluster: all owners of its claims begin so."""
    return f"slurm/{cluster}"


def start_of(owner: str) -> JobStart | None:
    """The start that an owner names; None: it names none."""
    parts = owner.split("/")
    if len(parts) != _STARTS or not parts[2].isdecimal() or not parts[4].isdecimal():
        return None
    return JobStart(int(parts[2]), parts[3], int(parts[4]))


def request_for(job: JobRecord, home: ClusterIdentity, pool: str, *, long_name: bool = False) -> ClaimRequest:
    """What a started job asks the controller for."""
    assert job.order is not None
    order, start = job.order, JobStart.of(job, job.order)
    return ClaimRequest(
        size=order.ipus,
        accelerator=KIND,
        name=start.names()[long_name],
        gcds=order.gcds,
        replicas_per_gcd=_replicas_per_gcd(order),
        pool=pool or None,
        owner=start.owner(home),
        project=project_of(job),
        time_limit_s=_limit(job),
        preemptible=bool(order.signal),
    )


def project_of(job: JobRecord) -> str:
    """The project a job asks for: its account, which the controller may know by another name.

    Where Slurm does not enforce accounts no job has one here (``formats.parse_jobs``), for ``sbatch -A`` may name any.
    """
    return job.account if _PROJECT.fullmatch(job.account) else "default"


def build_queue_payload(
    jobs: Mapping[int, JobRecord],
    home: ClusterIdentity,
    pool: str,
    believed_s: float,
    tier: Callable[[JobRecord], int] = lambda _: 1,
    withheld: Collection[str] = (),
    on_trial: Collection[str] = (),
) -> QueueRequest:
    """The first jobs that wait for IPUs, in Slurm's order: by the tier of their partitions, then by priority.

    One that stands behind others is told only if one before it in a partition waits for IPUs. Measured on 22.05, 24.11
    and 26.05: a job that waits for licenses holds up nobody, so ``Priority`` means behind one that waits for nodes (or,
    since 24.11, new), and blocks would be kept for jobs that cannot start.

    Args:
        jobs: a good listing.
        home: whose jobs they are.
        pool: to place them in; empty: any of the kind.
        believed_s: for how long this is believed.
        tier: of a job's partitions.
        withheld: owners of next claims for whose jobs no devices are to be kept.
        on_trial: owners of next claims of jobs that may start at this moment: told of whatever Slurm says.
    """
    asked = [job for job in jobs.values() if job.order is not None and job.phase is SlurmJobPhase.WAITING]
    first: dict[str, tuple[int, int]] = {}  # by partition, who waits there for IPUs before all others
    for job in asked:
        if job.reason == REASON_LICENSES:
            for name in job.partition.split(","):
                first[name] = min(first.get(name, queue_order(job)), queue_order(job))
    numbers = {start.job_id for start in map(start_of, on_trial) if start is not None}
    may = [job for job in asked if job.job_id in numbers or _is_announced(job, first)]
    waiting = [(-tier(job), *queue_order(job), job, job.order) for job in may]
    told: list[QueuedJobShape] = []
    for *_, job, order in sorted(waiting, key=lambda one: one[:3]):
        assert order is not None
        owner = JobStart.of(job, order).owner(home)
        if owner in withheld or (owner not in on_trial and not _is_announced(job, first)):
            continue
        if len(told) == QUEUE_JOBS_MAX:
            break
        since = queued_since(job)
        told.append(
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
    return QueueRequest(queue=home.queue, accelerator=KIND, jobs=tuple(told), for_s=believed_s)


def queued_since(job: JobRecord) -> Timestamp | None:
    """Since when a job has its place: one that made room has the place of its first start, which Slurm forgets."""
    since = job.eligible or job.submitted
    if job.asked is not None:
        return min(job.asked.since, since) if since is not None else job.asked.since
    return since


def _is_announced(job: JobRecord, first: Mapping[str, tuple[int, int]]) -> bool:
    if job.reason == REASON_PRIORITY:
        return any(name in first and first[name] < queue_order(job) for name in job.partition.split(","))
    return job.reason in (REASON_LICENSES, *REASONS_NONE)


def queue_order(job: JobRecord) -> tuple[int, int]:
    """Where a job stands among those of a partition: the least is first."""
    return -job.priority, job.job_id


def _replicas_per_gcd(order: SubmittedOptions) -> int:
    return max(order.replicas // order.gcds, 1)


def _limit(job: JobRecord) -> float | None:
    return min(max(job.limit_s, 1.0), TIME_LIMIT_S_MAX) if job.limit_s is not None else None


@dataclass(frozen=True, slots=True)
class ClaimReview:
    """What follows from one good listing.

    Attributes:
        starts: jobs that need a partition and have no claim.
        releases: claims whose start is over, by id, with the reason.
        lost: claims of which nothing is known for long, by id, with the reason; Slurm is to be asked for their jobs.
        doubts: claims of which the listing knows nothing, by owner; remembered for the next.
    """

    starts: tuple[JobRecord, ...] = ()
    releases: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    doubts: Mapping[str, Streak] = field(default_factory=dict)


def review_claims(
    jobs: Mapping[int, JobRecord],
    claims: Collection[ClaimBody],
    doubts: Mapping[str, Streak],
    home: ClusterIdentity,
    apart_s: float,
) -> ClaimReview:
    """What a good listing says of claims and jobs.

    Args:
        jobs: the listing: all IPU jobs that have not ended, and those of ``claims`` that Slurm still knows.
        claims: of this cluster, unended, and known *before* the listing was begun.
        doubts: of the listing before.
        home: whose jobs they are; of claims of another Slurm of this name nothing is said.
        apart_s: seconds since the listing before, at least.
    """
    releases: dict[str, str] = {}
    lost: dict[str, str] = {}
    remembered: dict[str, Streak] = {}
    held = {claim.owner for claim in claims}
    for claim in claims:
        if not home.may_judge(claim.owner):
            continue
        start = start_of(claim.owner)
        job = jobs.get(start.job_id) if start is not None else None
        why = _over(start, job)
        if why:
            releases[claim.id] = why
        elif start is None or job is None or not may_be_running(start, job):
            streak = doubts.get(claim.owner, Streak()).longer(apart_s)
            remembered[claim.owner] = streak
            if streak.is_proof(LISTINGS_REQUIRED):
                what = f"of job {start.job_id} nothing is known" if start is not None else "its owner is no job"
                lost[claim.id] = f"{what} for {streak.lasted_s:.0f} s"
    starts = tuple(
        job
        for job in jobs.values()
        if job.state in STARTED and job.order is not None and JobStart.of(job, job.order).owner(home) not in held
    )
    return ClaimReview(starts, releases, lost, remembered)


def _over(start: JobStart | None, job: JobRecord | None) -> str:
    """Why a start is certainly over; empty: that is not certain."""
    if start is None or job is None or job.order is None or job.order.nonce != start.nonce:
        return ""
    if job.state == COMPLETING:  # requeued, it has its next number already while its processes are being killed
        return ""
    if job.restarts > start.restarts:
        return f"job {start.job_id} was requeued"
    if job.restarts == start.restarts and job.phase is SlurmJobPhase.ENDED:
        return f"job {start.job_id} is {job.state}"
    return ""


def may_be_running(start: JobStart, job: JobRecord) -> bool:
    """Whether this may be the job of that start, and run; an admin may have written over what tells jobs apart."""
    same = job.order is None or job.order.nonce == start.nonce
    restarts = (start.restarts, start.restarts + 1) if job.state == COMPLETING else (start.restarts,)
    return same and job.phase is SlurmJobPhase.LIVE and job.restarts in restarts


def has_ended(start: JobStart, jobs: Mapping[int, JobRecord]) -> bool:
    """Whether a start is certainly over, by a good listing."""
    return bool(_over(start, jobs.get(start.job_id)))


def uses_licenses(job: JobRecord) -> bool:
    """Whether a job has its licenses; Slurm takes them back when it begins to end."""
    return job.phase is SlurmJobPhase.LIVE and job.state != COMPLETING
