"""Decides for which pending jobs no IPUs are reserved, because they cannot start, or did not start when they could.

Slurm looks at licenses first, and says ``Licenses`` of a job also when its nodes or another license are missing. IPUs
reserved for such a job would idle. Known facts decide at once: another license in use, required nodes whose CPUs belong
to jobs without IPUs. Everything else is learned by trying: after Slurm could have started a job and did not, none are
reserved for it for a while, each time for twice as long. Such a job keeps its place in the queue, and Slurm may start
it when it finds enough; so this state need not survive a restart of the agent.

A withdrawn offer proves nothing about the job: another cluster may have claimed, or a device failed. A change that the
job's user can make at will must not start another trial each time, or one job could keep the pool idle.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf

from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.slurm.formats import GATE, LICENSE, JobRecord, License, SlurmJobPhase, SubmittedOptions
from moorings.slurm.host.job_table import (
    REASON_LICENSES,
    REASON_PRIORITY,
    REASONS_NONE,
    ClusterIdentity,
    JobStart,
    queue_order,
    start_of,
)
from moorings.slurm.host.license_gate import gate_licenses
from moorings.slurm.host.reclaim import clock_text
from moorings.slurm.node_requirements import NodeRequirements

REFUSED_S = 5.0  # how long Slurm must report a missing resource beside free IPUs: a node may be about to be cleared
UNSEEN_S = 60.0  # without such a report: its backfill looks at a long queue every 30 s
STEP_S_MAX = 3.0  # counted at most between two listings: while slurmctld is down it starts nothing
PAUSE_S, PAUSE_MAX_S = 60.0, 900.0  # the first pause, and the longest
DOUBLINGS_MAX = 4  # enough for the longest
REMEMBERED_S = 3600.0  # how long the outcome of a vanished job counts
REMEMBERED_MAX = 300  # number of such jobs
NOT_ITS_TURN = ("JobHeldUser", "JobHeldAdmin", "Dependency", "DependencyNeverSatisfied", "BeginTime")
_VAGUE_REASONS = (REASON_LICENSES, REASON_PRIORITY, *REASONS_NONE)


@dataclass(frozen=True, slots=True)
class JobDemand:
    """A user's job's demand of Slurm, as far as it decides whether the job can start; without its time limit.

    Attributes:
        uid: the user.
        ipus: its size.
        asked: its partition, QOS and licenses.
        words: its requirements of nodes; empty: unknown.
    """

    uid: int
    ipus: int
    asked: tuple[object, ...] = ()
    words: tuple[str, ...] = ()

    def differs(self, other: JobDemand) -> bool:
        """Whether it certainly is another demand."""
        known = bool(self.words and other.words)
        return replace(self, words=()) != replace(other, words=()) or (known and self.words != other.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartBackoff:
    """The outcome of reserving IPUs for a pending job, or for a vanished one. Times are the loop's, in seconds.

    Attributes:
        demand: its demand of Slurm.
        limit_s: its time limit; ``inf``: none.
        failed_trials: how many times it could have started, as far as we know, and did not.
        free_since: since when IPUs are free for it and Slurm may start it; None: they are not.
        free_at: the same moment by the wall clock, or that of the previous trial.
        is_open: whether the gate was open for it when licenses were last listed.
        seen_at: until when ``open_s`` was counted.
        open_s: total time in this trial in which Slurm could start it.
        retry_at: none are reserved for it before.
        was_hastened: whether a change of it has cut the last pause short, or restarted the trial; allowed once.
        refusal: the outcome of the last trial, as a sentence; empty: none yet.
        like_job: the other job with that outcome and the same demand; 0: it is its own.
        gone_at: since when it no longer waits; None: it waits.
        withheld_reason: why none are reserved for it now; empty: they are.
    """

    demand: JobDemand
    limit_s: float = inf
    failed_trials: int = 0
    free_since: float | None = None
    free_at: Timestamp = Timestamp(0)
    is_open: bool = False
    seen_at: float = 0.0
    open_s: float = 0.0
    retry_at: float = 0.0
    was_hastened: bool = False
    refusal: str = ""
    like_job: int = 0
    gone_at: float | None = None
    withheld_reason: str = ""


@dataclass(frozen=True, slots=True)
class WaitingJobs:
    """The input of the decision.

    Attributes:
        home: the jobs' cluster.
        jobs: a complete listing.
        offered: the owners of the jobs with free devices reserved for them.
        licenses: as last listed.
        needs: the jobs' requirements of nodes; None: unknown, or not applicable, because jobs may be preempted.
        aside: the ids of jobs that hold another's licenses and will be requeued.
        tier: of a job's partitions.
    """

    home: ClusterIdentity
    jobs: Mapping[int, JobRecord]
    offered: Collection[str]
    licenses: Mapping[str, License]
    needs: NodeRequirements | None = None
    aside: Collection[int] = ()
    tier: Callable[[JobRecord], int] = lambda _: 1

    def waiting(self) -> Iterator[tuple[JobRecord, SubmittedOptions]]:
        """Yield the pending jobs with their submitted options."""
        for job in self.jobs.values():
            if job.order is not None and job.phase is SlurmJobPhase.WAITING:
                yield job, job.order

    def new(self, job: JobRecord, order: SubmittedOptions) -> StartBackoff:
        """Return the initial standing of a job."""
        needs = self.needs.jobs.get(job.job_id) if self.needs is not None else None
        asked = (job.partition, job.qos, tuple(sorted(job.licenses.items())))
        demand = JobDemand(job.uid, order.ipus, asked, needs.fingerprint if needs is not None else ())
        return StartBackoff(demand=demand, limit_s=inf if job.limit_s is None else job.limit_s)

    def place(self, job: JobRecord) -> tuple[int, ...]:
        """Return a job's sort key in Slurm's order: the least is first."""
        return (-self.tier(job), *queue_order(job))


def open_trials(
    queue: WaitingJobs, before: Mapping[str, StartBackoff], reserved: Mapping[str, int], at_s: float, now: Timestamp
) -> Mapping[str, StartBackoff]:
    """Return the standings once the reservation holds ``reserved``: which jobs with offered IPUs Slurm may start.

    The offer alone is no proof: other jobs may have just started on it.
    """
    sizes = {size: queue.licenses[name] for size, name in gate_licenses(queue.licenses).items() if name in reserved}
    room = {size: one.total - one.used - reserved[f"{LICENSE}_{size}"] for size, one in sizes.items()}
    found = {owner: replace(known, is_open=False) if known.is_open else known for owner, known in before.items()}
    numbers = {start.job_id for start in map(start_of, queue.offered) if start is not None}
    offered = [(job, order) for job, order in queue.waiting() if job.job_id in numbers] if numbers else []
    for job, order in sorted(offered, key=lambda one: queue_order(one[0])):
        owner, n_ipus = JobStart.of(job, order).owner(queue.home), order.ipus
        if owner not in queue.offered or any(left < n_ipus for size, left in room.items() if size <= n_ipus):
            continue
        room = {size: left - n_ipus if size <= n_ipus else left for size, left in room.items()}
        known = found.get(owner) or queue.new(job, order)
        if known.free_since is None and not known.withheld_reason:
            known = replace(known, free_since=at_s, free_at=now, seen_at=at_s)
        found[owner] = replace(known, is_open=known.free_since is not None)
    return found


def update_backoffs(
    queue: WaitingJobs, before: Mapping[str, StartBackoff], listed_at: float, at_s: float, now: Timestamp
) -> dict[str, StartBackoff]:
    """Return the standings of pending jobs by a new listing, by the owner of the next claim; most jobs have none.

    Vanished jobs are remembered for a while, for the user's next job with the same demand.

    Args:
        queue: with the new listing.
        before: the last result of ``open_trials`` and of this function.
        listed_at: when the listing began; the loop's time.
        at_s: the loop's time.
        now: the wall clock's, for people.
    """
    found = {}
    others = {name: one for name, one in queue.licenses.items() if not _is_ours(name)}
    started = _demands_started(queue, before)
    left = {owner: stands for owner, stands in before.items() if stands.demand not in started}
    tried: dict[tuple[int, int], list[str]] = {}  # by user and size
    for owner, stands in left.items():
        if stands.refusal or stands.gone_at is not None:
            tried.setdefault((stands.demand.uid, stands.demand.ipus), []).append(owner)
    waiting = set()
    for job, order in queue.waiting():
        lacks = _lacking_licenses(job, others) or _lacking_cpus(job, queue.needs)
        if not lacks and not before:
            continue  # a queue of thousands is listed each second, and most of its jobs have no standing
        owner = JobStart.of(job, order).owner(queue.home)
        known, alike = left.get(owner), tried.get((job.uid, order.ipus), ())
        if known is None and not lacks and not alike:
            continue
        waiting.add(owner)
        new = queue.new(job, order)
        known = _change(known, new) if known is not None else new
        for other in alike:
            if other != owner and other in left and _applies_to(left[other], known):
                known = _inherit_backoff(known, left[other], other)
                if left[other].gone_at is not None:
                    del left[other]  # this job takes its place
        if lacks:
            stands = replace(
                known, free_since=None, withheld_reason=f"no IPUs are kept for it, for it also needs {lacks}"
            )
        else:
            stands = _update_backoff(queue, job, known, owner, listed_at, at_s, now)
        if stands != new:
            found[owner] = stands
    return _remember({owner: stands for owner, stands in left.items() if owner not in waiting}, at_s) | found


def _update_backoff(
    queue: WaitingJobs, job: JobRecord, known: StartBackoff, owner: str, listed_at: float, at_s: float, now: Timestamp
) -> StartBackoff:
    """Return the standing of a job that lacks nothing as far as known."""
    is_offered = owner in queue.offered
    if known.free_since is not None and listed_at > known.seen_at:
        step_s = min(listed_at - known.seen_at, STEP_S_MAX) if known.is_open and is_offered else 0.0
        known = replace(known, seen_at=listed_at, open_s=known.open_s + step_s)
    if at_s < known.retry_at:
        of = f"job {known.like_job} asked for the same: " if known.like_job else ""
        return replace(known, free_since=None, withheld_reason=of + known.refusal)
    if known.free_since is None or listed_at <= known.free_since:
        return replace(known, withheld_reason="")
    if job.reason in NOT_ITS_TURN:
        return replace(known, free_since=None, withheld_reason="")  # else a short hold would restart the trial
    if is_offered:
        is_refused = known.is_open and known.open_s >= _patience_s(job)
        return _fail_trial(known, job, at_s, now) if is_refused else replace(known, withheld_reason="")
    if _is_passed_over(queue, job, known.free_at):
        return _fail_trial(known, job, at_s, now)
    return replace(known, free_since=None, open_s=0.0, withheld_reason="")


def _patience_s(job: JobRecord) -> float:
    return UNSEEN_S if job.reason in _VAGUE_REASONS else REFUSED_S


def _is_passed_over(queue: WaitingJobs, job: JobRecord, at: Timestamp) -> bool:
    """Whether Slurm has started a job behind this one since: it looked at its queue, and at this job first."""
    behind = queue.place(job)
    return any(
        other.order is not None
        and _has_run(other)
        and _is_since(other, at)
        and other.job_id not in queue.aside
        and queue.place(other) > behind
        for other in queue.jobs.values()
    )


def _has_run(job: JobRecord) -> bool:
    return job.phase is not SlurmJobPhase.WAITING and bool(job.nodes)


def _is_since(job: JobRecord, at: Timestamp) -> bool:
    """Whether a job started in that second or later: Slurm shows whole seconds."""
    return job.start_time is not None and job.start_time >= at // SECOND * SECOND


def _fail_trial(known: StartBackoff, job: JobRecord, at_s: float, now: Timestamp) -> StartBackoff:
    pause_s = min(PAUSE_S * 2 ** min(known.failed_trials, DOUBLINGS_MAX), PAUSE_MAX_S)
    refused = known.failed_trials + 1
    often = "once" if refused == 1 else f"{refused} times"
    until = clock_text(Timestamp(now + round(pause_s * SECOND)))
    given = f", and said {job.reason}" if job.reason not in _VAGUE_REASONS else ""
    refusal = (
        f"IPUs were free for it {often} and Slurm did not start it{given}: something else that it needs is missing; "
        f"none are kept for it until {until}, but it may start before"
    )
    return replace(
        known,
        failed_trials=refused,
        free_since=None,
        is_open=False,
        open_s=0.0,
        retry_at=at_s + pause_s,
        was_hastened=known.was_hastened and not known.retry_at,
        refusal=refusal,
        like_job=0,
        withheld_reason=refusal,
    )


# -- jobs that are changed, start or go --------------------------------------------------------------------------------


def _change(known: StartBackoff, new: StartBackoff) -> StartBackoff:
    """Return the standing of a job with a changed demand: once, a change restarts the trial; refusals still count."""
    if not known.demand.differs(new.demand):
        demand = new.demand if new.demand.words else known.demand
        return replace(known, demand=demand, limit_s=new.limit_s, gone_at=None)
    if not known.failed_trials and known.free_since is None and not known.open_s:
        return new
    known = replace(known, demand=new.demand, limit_s=new.limit_s, gone_at=None)
    if known.was_hastened:
        return known
    return replace(
        known, was_hastened=True, free_since=None, open_s=0.0, retry_at=0.0, refusal="", like_job=0, withheld_reason=""
    )


def _applies_to(tried: StartBackoff, known: StartBackoff) -> bool:
    """Whether another job's outcome applies to this one: same demand, and no time limit of less than half."""
    if not known.demand.words or tried.demand != known.demand or 2 * known.limit_s < tried.limit_s:
        return False
    open_s = tried.open_s if tried.gone_at is not None else 0.0
    return (tried.failed_trials, open_s) > (known.failed_trials, known.open_s)


def _inherit_backoff(known: StartBackoff, tried: StartBackoff, owner: str) -> StartBackoff:
    """Return the standing of a job that continues from another one's."""
    start = start_of(owner)
    return replace(
        known,
        failed_trials=tried.failed_trials,
        open_s=tried.open_s if tried.gone_at is not None else known.open_s,
        retry_at=tried.retry_at,
        was_hastened=tried.was_hastened,
        refusal=tried.refusal,
        like_job=tried.like_job or (start.job_id if start is not None else 0),
    )


def _demands_started(queue: WaitingJobs, before: Mapping[str, StartBackoff]) -> set[JobDemand]:
    """Return the demands of jobs that have started, also of array tasks: their refusals no longer count."""
    found = set()
    starts = {start.job_id: (start, stands) for owner, stands in before.items() if (start := start_of(owner))}
    for job in queue.jobs.values() if starts else ():
        known = starts.get(job.job_id) or starts.get(job.array_job or 0)
        if known is None or job.order is None or job.order.nonce != known[0].nonce:
            continue
        start, stands = known
        if job.job_id != start.job_id:
            is_new = _has_run(job) and _is_since(job, stands.free_at)
        else:
            is_new = _has_run(job) or job.restarts > start.restarts
        if is_new:
            found.add(stands.demand)
    return found


def _remember(gone: Mapping[str, StartBackoff], at_s: float) -> dict[str, StartBackoff]:
    """Return the standings of vanished jobs that were tried recently, the latest of them."""
    kept = {}
    for owner, stands in gone.items():
        gone_at = at_s if stands.gone_at is None else stands.gone_at
        if (stands.refusal or stands.open_s) and at_s - gone_at < REMEMBERED_S:
            kept[owner] = replace(stands, free_since=None, is_open=False, gone_at=gone_at, withheld_reason="")
    last = sorted(kept.items(), key=lambda one: one[1].gone_at or 0.0)[-REMEMBERED_MAX:]
    return dict(last)


def withheld_reasons(standings: Mapping[str, StartBackoff]) -> dict[str, str]:
    """Return why no IPUs are reserved for pending jobs, by the owner of the next claim."""
    return {owner: stands.withheld_reason for owner, stands in standings.items() if stands.withheld_reason}


def on_trial(standings: Mapping[str, StartBackoff]) -> set[str]:
    """Return the owners of jobs with free IPUs: they stay reported for a moment, whatever Slurm says."""
    return {owner for owner, stands in standings.items() if stands.free_since is not None}


def _is_ours(license_name: str) -> bool:
    return license_name in (LICENSE, GATE) or license_name.startswith(f"{LICENSE}_")


def _lacking_licenses(job: JobRecord, others: Mapping[str, License]) -> str:
    """Return another license that is in use; reserved ones are not counted, because a job may run in a reservation."""
    for name, one in others.items():
        count, left = job.licenses.get(name, 0), max(one.total - one.used, 0)
        if left < count:
            return f"the license {name}:{count}, of which {left} of {one.total} are free"
    return ""


def _lacking_cpus(job: JobRecord, needs: NodeRequirements | None) -> str:
    """Return the required nodes with too few CPUs, even without any IPU job there."""
    asked = needs.jobs.get(job.job_id) if needs is not None else None
    if needs is None or asked is None or not asked.required:
        return ""
    left = {name: needs.left[name] for name in asked.required if name in needs.left}
    full = sorted(name for name, cpus in left.items() if cpus < 1)
    if full:
        return f"the node {full[0]}, which is away, or full with jobs without IPUs"
    is_known = asked.cpus is not None and len(left) == len(asked.required) == asked.nodes_max
    if not is_known or sum(left.values()) >= (asked.cpus or 0):
        return ""
    return f"{asked.cpus} CPUs of {','.join(sorted(left))}, of which jobs without IPUs leave {sum(left.values())}"
