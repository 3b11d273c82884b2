"""For which waiting jobs nothing is kept, as they cannot start or did not start when they could: decisions.

Slurm looks at licenses first, and says ``Licenses`` of a job also when its nodes or another license are missing. IPUs
kept for such a job are of no use to anybody. What is known exactly decides at once: another license in use, required
nodes whose CPUs belong to jobs without IPUs. Everything else is learned by trying: after IPUs were free for a job and
it did not start, none are kept for it for a while, each time for twice as long. Such a job has its place in the queue
all the same, and Slurm may start it when it finds enough; so nothing here needs to survive a restart of the agent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from moorings.core.instants import SECOND, Instant
from moorings.slurm.formats import GATE, LICENSE, JobRecord, License, Order, Phase
from moorings.slurm.host.gate import twins
from moorings.slurm.host.ledger import BEHIND_OTHERS, NOT_SEEN_YET, WAITS_FOR_US, Home, Start, place_of, start_of
from moorings.slurm.host.reclaim import clock_text
from moorings.slurm.needs import Needs

REFUSED_S = 5.0  # beside free IPUs Slurm says for so long that something is missing: a node may just be cleared
UNSEEN_S = 60.0  # it says nothing: its backfill looks at a long queue every 30 s
PAUSE_S, PAUSE_MAX_S = 60.0, 900.0  # the first pause, and the longest
DOUBLINGS_MAX = 4  # enough for the longest
NOT_ITS_TURN = ("JobHeldUser", "JobHeldAdmin", "Dependency", "DependencyNeverSatisfied", "BeginTime")
_SAYS_NOTHING = (WAITS_FOR_US, BEHIND_OTHERS, *NOT_SEEN_YET)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What came of keeping IPUs for a waiting job. Times are the loop's, in seconds.

    Attributes:
        demand: what it asks Slurm for; when that changes all begins anew.
        refused: how often it could have started, for all we know, and did not.
        free_since: since when IPUs are free for it and Slurm may start it; None: they are not.
        again_at: none are kept for it before.
        refusal: that as a sentence.
        why: why none are kept for it now; empty: they are.
    """

    demand: tuple[object, ...]
    refused: int = 0
    free_since: float | None = None
    again_at: float = 0.0
    refusal: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Queue:
    """What is decided from.

    Attributes:
        home: whose jobs they are.
        jobs: a good listing.
        offered: the owners of the jobs for which devices are kept, free.
        licenses: as last listed.
        needs: what the jobs need of nodes; None: not known, or not to be gone by, where jobs may be preempted.
    """

    home: Home
    jobs: Mapping[int, JobRecord]
    offered: Collection[str]
    licenses: Mapping[str, License]
    needs: Needs | None = None

    def waiting(self) -> Iterator[tuple[JobRecord, Order]]:
        """The jobs that wait, with what was asked for."""
        for job in self.jobs.values():
            if job.order is not None and job.phase is Phase.WAITING:
                yield job, job.order

    def demand(self, job: JobRecord) -> tuple[object, ...]:
        """What a job asks Slurm for, to see that it has changed."""
        known = self.needs.jobs.get(job.job_id) if self.needs is not None else None
        words = known.words if known is not None else ()
        return (job.partition, job.qos, job.limit_s, job.array_tasks, tuple(sorted(job.licenses.items())), *words)


def open_for(
    queue: Queue, before: Mapping[str, Standing], reserved: Mapping[str, int], at_s: float
) -> Mapping[str, Standing]:
    """How the jobs stand once the reservation holds ``reserved``: which of those offered IPUs Slurm may start.

    The offer alone does not tell: other jobs may have started on it a moment ago.
    """
    sizes = {size: queue.licenses[name] for size, name in twins(queue.licenses).items() if name in reserved}
    room = {size: one.total - one.used - reserved[f"{LICENSE}_{size}"] for size, one in sizes.items()}
    found = dict(before)
    numbers = {start.job_id for start in map(start_of, queue.offered) if start is not None}
    offered = [(job, order) for job, order in queue.waiting() if job.job_id in numbers] if numbers else []
    for job, order in sorted(offered, key=lambda one: place_of(one[0])):
        owner, n_ipus = Start.of(job, order).owner(queue.home), order.ipus
        if owner not in queue.offered or any(left < n_ipus for size, left in room.items() if size <= n_ipus):
            continue
        room = {size: left - n_ipus if size <= n_ipus else left for size, left in room.items()}
        known = found.get(owner) or Standing(demand=queue.demand(job))
        if known.free_since is None and not known.why:
            found[owner] = replace(known, free_since=at_s)
    return found


def follow(
    queue: Queue, before: Mapping[str, Standing], listed_at: float, at_s: float, now: Instant
) -> dict[str, Standing]:
    """How the waiting jobs stand by a new listing, by the owner of the next claim; of most there is nothing to say.

    Args:
        queue: with the new listing.
        before: what ``open_for`` and this said last.
        listed_at: when the listing was asked for; the loop's time.
        at_s: the loop's time.
        now: the wall clock's, for people.
    """
    found = {}
    others = {name: one for name, one in queue.licenses.items() if not _is_ours(name)}
    for job, order in queue.waiting():
        lacks = _lacking_licenses(job, others) or _lacking_cpus(job, queue.needs)
        if not lacks and not before:
            continue  # of a queue of thousands there is nothing to say, and it is listed each second
        owner = Start.of(job, order).owner(queue.home)
        known = before.get(owner)
        if known is None and not lacks:
            continue
        new = Standing(demand=queue.demand(job))
        if known is None or known.demand != new.demand:
            known = new
        if lacks:
            stands = replace(known, free_since=None, why=f"no IPUs are kept for it, for it also needs {lacks}")
        elif at_s < known.again_at:
            stands = replace(known, free_since=None, why=known.refusal)
        elif known.free_since is None or listed_at <= known.free_since:
            stands = replace(known, why="")
        elif job.reason in NOT_ITS_TURN:
            stands = replace(known, free_since=None, why="")
        elif owner in queue.offered and at_s - known.free_since < _patience_s(job):
            stands = replace(known, why="")
        else:  # they are free still, or others took them
            stands = _refuse(known, job, at_s, now)
        if stands != new:
            found[owner] = stands
    return found


def _patience_s(job: JobRecord) -> float:
    return UNSEEN_S if job.reason in _SAYS_NOTHING else REFUSED_S


def _refuse(known: Standing, job: JobRecord, at_s: float, now: Instant) -> Standing:
    pause_s = min(PAUSE_S * 2 ** min(known.refused, DOUBLINGS_MAX), PAUSE_MAX_S)
    refused = known.refused + 1
    often = "once" if refused == 1 else f"{refused} times"
    until = clock_text(Instant(now + round(pause_s * SECOND)))
    says = f", and said {job.reason}" if job.reason not in _SAYS_NOTHING else ""
    refusal = (
        f"IPUs were free for it {often} and Slurm did not start it{says}: something else that it needs is missing; "
        f"none are kept for it until {until}, but it may start before"
    )
    return replace(known, refused=refused, free_since=None, again_at=at_s + pause_s, refusal=refusal, why=refusal)


def whys(standings: Mapping[str, Standing]) -> dict[str, str]:
    """Why no IPUs are kept for jobs that wait, by the owner of the next claim."""
    return {owner: stands.why for owner, stands in standings.items() if stands.why}


def on_trial(standings: Mapping[str, Standing]) -> set[str]:
    """The owners of jobs for which IPUs are free: they stay announced for a moment, whatever Slurm says meanwhile."""
    return {owner for owner, stands in standings.items() if stands.free_since is not None}


def _is_ours(license_name: str) -> bool:
    return license_name in (LICENSE, GATE) or license_name.startswith(f"{LICENSE}_")


def _lacking_licenses(job: JobRecord, others: Mapping[str, License]) -> str:
    """Which other license is in use; what reservations hold is not counted, for a job may run in one of them."""
    for name, one in others.items():
        count, left = job.licenses.get(name, 0), max(one.total - one.used, 0)
        if left < count:
            return f"the license {name}:{count}, of which {left} of {one.total} are free"
    return ""


def _lacking_cpus(job: JobRecord, needs: Needs | None) -> str:
    """Which required nodes have too few CPUs, even if no IPU job ran there."""
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
