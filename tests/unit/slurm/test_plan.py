"""What the agent does next, as a table of situations: from what was listed, claimed and offered to the acts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.core.reconcile import Streak
from moorings.slurm.formats import JobRecord, License, SubmittedOptions, YieldNotice
from moorings.slurm.host.job_table import ClusterIdentity, JobStart
from moorings.slurm.host.license_gate import QueueOffer
from moorings.slurm.host.plan import (
    ASIDE_S,
    FRESH_S,
    REMARKS_S,
    TRIES_MAX,
    ActionOutcomes,
    AgentAction,
    AgentPlan,
    AllowRequeue,
    AnnounceQueue,
    CancelJob,
    ClusterState,
    DeviceHolders,
    ListDevices,
    LogWarning,
    PlanState,
    PreemptJobs,
    PutBackJob,
    ReleaseIfJobGone,
    ReleaseJobClaim,
    RequeueJob,
    ServeJob,
    UpdateReservation,
    WriteNote,
    plan,
)
from moorings.slurm.host.reclaim import WarnJob
from moorings.slurm.node_requirements import JobNodeRequirements, NodeRequirements
from moorings.wire.codec import format_time
from moorings.wire.shapes import ClaimBody, ReasonBody
from tests.unit.slurm import test_preempt as ranks
from tests.unit.slurm.test_gate import licenses
from tests.unit.slurm.test_ledger import HOME, NONCE, a_claim, a_job, by_id

AT_S = 1000.0
NOW = Timestamp(1_795_400_000 * SECOND)
OTHER = ClusterIdentity(HOME.cluster, "f" * 16)


def owner(job_id: int) -> str:
    return JobStart(job_id, NONCE, 0).owner(HOME)


def a_view(*jobs: JobRecord, claims: tuple[ClaimBody, ...] = (), **more: Any) -> ClusterState:
    """A list of jobs that came just now, and the claims known before and since."""
    known: dict[str, Any] = {
        "at_s": AT_S,
        "jobs": by_id(*jobs),
        "listed_at": AT_S,
        "claims_before": {claim.owner: claim for claim in claims},
        "is_accepted": True,
        "claims": {claim.owner: claim for claim in claims},
        "claims_listed": True,
    }
    return ClusterState(home=HOME, **(known | more))


def acts(view: ClusterState) -> list[AgentAction]:
    """All that is to be done beside announcing, which is done with each list of jobs."""
    return [act for act in plan(view, NOW).acts if not isinstance(act, AnnounceQueue)]


def announced(found: AgentPlan) -> list[str]:
    (queue,) = [act.queue for act in found.acts if isinstance(act, AnnounceQueue)]
    return [job.owner for job in queue.jobs]


def waiting(job_id: int, **more: Any) -> JobRecord:
    return a_job(job_id, "PENDING", **({"reason": "Licenses"} | more))


def lent(**more: Any) -> JobRecord:
    return a_job(1, order=SubmittedOptions(nonce=NONCE, ipus=4, gcds=1, replicas=1, signal="USR1"), **more)


def reclaimed(within_s: float = 120.0) -> ClaimBody:
    until = Timestamp(NOW + round(within_s * SECOND))
    return replace(a_claim(1, state="RECLAIMING"), asked_until=format_time(until))


WARNED_LONG_AGO = YieldNotice(0, Timestamp(NOW - SECOND), Timestamp(SECOND))
DOUBTED = PlanState(judged_at=AT_S - 1, missed_listings={owner(1): Streak(10, 100.0)})
PENDING = a_claim(2, state="PENDING")
IN_THE_WAY: dict[str, Any] = {
    "offer": QueueOffer(offered=frozenset({owner(1)})),
    "licenses": {"ipu_1": License(16, 16, 0)},
}
SEEN_BLOCKING = PlanState(blocking_since={PENDING.id: AT_S - ASIDE_S})
REMARK_DUE = PlanState(remarked_at=AT_S - REMARKS_S)
WAITS = {owner(1): ReasonBody(code="pool.full", message="waits for 4 devices")}
FAILED_AFTER_WARNING = lent(state="FAILED", asked=WARNED_LONG_AGO, status=(85, 0))
OF_OTHER = replace(a_claim(1), owner=JobStart(1, NONCE, 0).owner(OTHER))

# What is seen, and the kinds of acts that follow, in order.
SITUATIONS: dict[str, tuple[ClusterState, list[type]]] = {
    "nothing": (a_view(), []),
    "a job runs, with its claim": (a_view(a_job(1), claims=(a_claim(1),)), []),
    "a job has started": (a_view(a_job(1)), [ServeJob]),
    "a job is over": (a_view(a_job(1, "COMPLETED"), claims=(a_claim(1),)), [ReleaseJobClaim]),
    "its claim went meanwhile": (a_view(a_job(1, "COMPLETED"), claims_before={owner(1): a_claim(1)}), []),
    "its claim came meanwhile": (a_view(a_job(1), claims=(a_claim(1),), claims_before={}), [ServeJob]),
    "a job is missing": (a_view(claims=(a_claim(1),)), []),
    "a job is missing for long": (a_view(claims=(a_claim(1),), memory=DOUBTED), [ReleaseIfJobGone]),
    "… and another Slurm reports this queue": (
        a_view(claims=(a_claim(1),), memory=DOUBTED, offer=QueueOffer(is_contested=True)),
        [],
    ),
    "a claim is of another Slurm": (a_view(claims=(OF_OTHER,), memory=DOUBTED), [LogWarning]),
    "the controller believes another Slurm": (
        a_view(a_job(1, "COMPLETED"), claims=(a_claim(1),), is_accepted=False),
        [],
    ),
    "the claims are not known yet": (a_view(a_job(1), claims_listed=False), []),
    "a claim is asked to yield": (a_view(lent(), claims=(reclaimed(),)), [WarnJob]),
    "… and its job may not be requeued": (a_view(lent(requeue=False), claims=(reclaimed(),)), [AllowRequeue]),
    "… nor can that be changed": (
        a_view(
            lent(requeue=False), claims=(reclaimed(),), outcomes=ActionOutcomes(not_requeueable=frozenset({(1, 0)}))
        ),
        [WarnJob, LogWarning],
    ),
    "… and its time is over": (
        a_view(
            lent(requeue=False, asked=WARNED_LONG_AGO),
            claims=(reclaimed(),),
            outcomes=ActionOutcomes(not_requeueable=frozenset({(1, 0)})),
        ),
        [CancelJob, LogWarning],
    ),
    "the time to yield is over": (a_view(lent(asked=WARNED_LONG_AGO), claims=(reclaimed(),)), [RequeueJob]),
    "a job failed after its warning": (a_view(FAILED_AFTER_WARNING, claims=(reclaimed(),)), [RequeueJob]),
    "… and Slurm does not take it back": (
        a_view(FAILED_AFTER_WARNING, claims=(reclaimed(),), outcomes=ActionOutcomes(requeues={(1, 0): TRIES_MAX})),
        [RequeueJob, ReleaseJobClaim],
    ),
    "a job stands in another's way": (a_view(waiting(1), a_job(2), claims=(PENDING,), **IN_THE_WAY), []),
    "… for long": (a_view(waiting(1), a_job(2), claims=(PENDING,), memory=SEEN_BLOCKING, **IN_THE_WAY), [PutBackJob]),
    "a job waits": (a_view(waiting(1), offer=QueueOffer(reasons=WAITS)), []),
    "… and its remark is due": (a_view(waiting(1), offer=QueueOffer(reasons=WAITS), memory=REMARK_DUE), [WriteNote]),
    "a job of higher rank waits": (
        a_view(waiting(1, partition="urgent"), ranks.running(2, 60), claims=(a_claim(2),), rules=ranks.TIERS),
        [ListDevices],
    ),
    "of equals nobody is preempted": (
        a_view(waiting(1), ranks.running(2, 60), claims=(a_claim(2),), rules=ranks.TIERS),
        [],
    ),
    "the gate is as it should be": (
        a_view(licenses=licenses({}, dict.fromkeys((1, 2, 4, 8, 16, 32), 32)), licenses_at=AT_S),
        [],
    ),
    "the gate is open without an offer": (a_view(licenses=licenses({}), licenses_at=AT_S), [UpdateReservation]),
    "a license is missing": (
        a_view(licenses={"ipu_1": License(1, 0, 0)}, licenses_at=AT_S, offer=QueueOffer(counts={1: 1})),
        [LogWarning],
    ),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_what_follows(name: str) -> None:
    view, expected = SITUATIONS[name]
    assert [type(act) for act in acts(view)] == expected


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_list_is_acted_on_once(name: str) -> None:
    """The same list again is no second proof, and what is reported is reported once."""
    view, _ = SITUATIONS[name]
    found = plan(view, NOW)
    again = plan(replace(view, memory=found.memory, at_s=AT_S + 0.1), NOW)
    assert (again.acts, again.memory, again.has_reviewed_claims) == ((), found.memory, False)


def test_a_missing_job_is_counted_by_lists_and_the_loops_clock() -> None:
    """Law 3: it must be missing for 30 s, however the wall clock jumps."""
    memory, released = PlanState(), []
    for number in range(12):
        at_s = AT_S + 5.0 * number
        view = a_view(claims=(a_claim(1),), at_s=at_s, listed_at=at_s, memory=memory)
        found = plan(view, Timestamp(NOW + number * 3600 * SECOND))
        released += [number for act in found.acts if isinstance(act, ReleaseIfJobGone)]
        memory = found.memory
    assert released[0] * 5.0 >= 30.0


def test_while_another_slurm_is_believed_doubts_are_forgotten() -> None:
    """What was missing before is missing again: the claims may be those of the other one."""
    memory = plan(a_view(claims=(a_claim(1),), is_accepted=False, memory=DOUBTED), NOW).memory
    later = a_view(claims=(a_claim(1),), listed_at=AT_S + 1, memory=memory)
    assert ReleaseIfJobGone not in map(type, acts(later))


def test_the_queue_is_announced_whether_or_not_it_is_accepted() -> None:
    """Else nobody would ever be."""
    assert announced(plan(a_view(waiting(1), is_accepted=False, claims_listed=False), NOW)) == [owner(1)]


def test_the_job_of_higher_rank_gets_the_devices_of_one_that_may_be_preempted() -> None:
    high, low = ranks.waiting(1, 4), ranks.running(2, 60)
    held = ranks.devices((low, range(4)), ("somebody", range(4, 16)))
    view = a_view(high, low, claims=(a_claim(2),), rules=ranks.TIERS, devices=DeviceHolders([(ranks.POOL, held)], {}))
    assert PreemptJobs not in map(type, plan(view, ranks.NOW).acts), "somebody else gets what becomes free"
    devices = DeviceHolders([(ranks.POOL, held)], {"pod": owner(1)})
    (act,) = [act for act in plan(replace(view, devices=devices), ranks.NOW).acts if isinstance(act, PreemptJobs)]
    assert act == PreemptJobs(high, ((low, True),))


def test_a_job_that_lacks_another_license_is_not_announced_and_told_so() -> None:
    needs_more = waiting(1, licenses={"ipu": 4, "matlab": 6})
    view = a_view(needs_more, waiting(2), licenses=licenses({}), memory=REMARK_DUE)  # there are 5
    found = plan(view, NOW)
    assert announced(found) == [owner(2)]
    (note,) = [act for act in found.acts if isinstance(act, WriteNote)]
    assert (note.job, "license matlab:6" in note.text) == (needs_more, True)


def test_a_job_that_does_not_start_when_the_gate_is_open_for_it_is_announced_later() -> None:
    offer = QueueOffer(counts={1: 4, 2: 2, 4: 1}, offered=frozenset({owner(1)}), asked_at=AT_S)
    opened = plan(a_view(waiting(1), offer=offer, licenses=licenses({}), licenses_at=AT_S), NOW)
    assert announced(opened) == [owner(1)]
    later = a_view(waiting(1, reason="Resources"), at_s=AT_S + 1, listed_at=AT_S + 1, memory=opened.memory, offer=offer)
    assert announced(plan(later, NOW)) == [owner(1)], "a node may just be cleared"
    assert announced(plan(replace(later, offer=QueueOffer()), NOW)) == [], "others took it"


def test_where_jobs_may_be_preempted_full_nodes_say_nothing() -> None:
    needs = NodeRequirements({1: JobNodeRequirements(("n1",), 4, 1, ())}, {"n1": 0})
    assert announced(plan(a_view(waiting(1), needs=needs), NOW)) == []
    assert announced(plan(a_view(waiting(1), needs=needs, rules=ranks.TIERS), NOW)) == [owner(1)]


# -- what the gate holds back ------------------------------------------------------------------------------------------

OPEN, SHUT = 8, 12  # of ipu_4 held back, of 32: others have 8 of them, two jobs of 4 hold 8, and 16 are offered
STARTED = licenses(dict.fromkeys((1, 2, 4), 4))  # one of the two has ended in Slurm since it was listed
OFFER = QueueOffer(counts={1: 16, 2: 8, 4: 4, 8: 2, 16: 1}, held_counts={4: 2}, is_sole_queue=True, asked_at=AT_S)


def running(number: int, state: str = "RUNNING", **more: Any) -> JobRecord:
    return a_job(number, state, ipus=4, **{"licenses": {"ipu": 4}, **more})


def two_jobs(*jobs: JobRecord, **more: Any) -> ClusterState:
    known: dict[str, Any] = {
        "offer": OFFER,
        "licenses": STARTED,
        "licenses_at": AT_S,
        "settled_at": {owner(1): AT_S, owner(2): AT_S},
    }
    return a_view(*(jobs or (running(1), running(2))), claims=(a_claim(1), a_claim(2)), **(known | more))


def kept(view: ClusterState) -> int:
    (act,) = [act for act in plan(view, NOW).acts if isinstance(act, UpdateReservation)]
    return act.licenses["ipu_4"]


def test_what_a_job_gives_back_is_open_for_the_next() -> None:
    assert kept(two_jobs()) == OPEN


def test_it_is_shut_where_others_wait_or_a_larger_job_does() -> None:
    assert kept(two_jobs(offer=replace(OFFER, is_sole_queue=False))) == SHUT
    found = plan(two_jobs(running(1), running(2), waiting(9, ipus=8)), NOW)
    assert found.memory.largest == 8
    assert kept(two_jobs(running(1), running(2), waiting(9, ipus=8))) == SHUT
    assert kept(two_jobs(memory=replace(found.memory, licenses_at=None))) == SHUT, "until the next list without it"
    assert kept(two_jobs(listed_at=AT_S - 1, memory=found.memory, licenses_at=AT_S + 1)) == OPEN


def test_it_is_shut_where_a_larger_job_has_begun_and_waits() -> None:
    large = replace(a_claim(3), state="PENDING", size=8)
    claims = {claim.owner: claim for claim in (a_claim(1), a_claim(2), large)}
    assert kept(replace(two_jobs(running(1), running(2), running(3)), claims=claims)) == SHUT


def test_it_is_shut_by_an_old_list() -> None:
    assert kept(two_jobs(listed_at=AT_S - FRESH_S)) == OPEN
    assert kept(two_jobs(listed_at=AT_S - FRESH_S - 1)) == SHUT


@pytest.mark.parametrize("job", [running(2, "COMPLETING"), None, running(2, licenses={})], ids=str)
def test_devices_in_use_without_licenses_are_not_open(job: JobRecord | None) -> None:
    """Its job is completing, merely missing from the list, or an admin has taken its licenses."""
    jobs = (running(1), job) if job is not None else (running(1),)
    assert kept(two_jobs(*jobs)) == SHUT


def test_devices_of_a_claim_that_is_being_released_are_open() -> None:
    assert kept(two_jobs(running(1), releasing=frozenset({a_claim(2).id}))) == OPEN
