"""Jobs beside claims: what is asked for, what is let go, and what only looks as if it were gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moorings.core.model.claims import check_owner
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.core.reconcile import Streak
from moorings.slurm.formats import JobRecord, SubmittedOptions, YieldNotice, phase_of
from moorings.slurm.host.job_table import (
    ClaimReview,
    ClusterIdentity,
    JobStart,
    build_queue_payload,
    may_be_running,
    request_for,
    review_claims,
    start_of,
)
from moorings.wire.shapes import ClaimBody
from tests.cases import cases

NONCE = "00c0ffee00c0ffee"
HOME = ClusterIdentity("vt", "0123456789abcdef")


def a_job(job_id: int, state: str = "RUNNING", *, ipus: int = 4, nonce: str = NONCE, **more: Any) -> JobRecord:
    known: dict[str, Any] = {
        "array_job": None,
        "array_tasks": "",
        "het_job": None,
        "het_offset": None,
        "reason": "None",
        "uid": 5,
        "user": "games",
        "account": "lab",
        "partition": "normal",
        "qos": "",
        "priority": 1,
        "start_time": None,
        "end_time": None,
        "limit_s": 600.0,
        "nodes": "n1",
        "nodes_whole": True,
        "restarts": 0,
        "requeue": True,
        "batch": True,
        "status": (0, 0),
        "submit_time": Timestamp(job_id * SECOND),
        "eligible": None,
        "order": SubmittedOptions(nonce=nonce, ipus=ipus, gcds=2, replicas=4),
    }
    return JobRecord(job_id=job_id, state=state, phase=phase_of(state), **(known | more))


def a_claim(job_id: int, *, restarts: int = 0, nonce: str = NONCE, state: str = "READY") -> ClaimBody:
    owner = JobStart(job_id, nonce, restarts).owner(HOME)
    return ClaimBody(
        id=f"claim-{job_id}-{restarts}",
        name=f"slurm_{job_id}",
        owner=owner,
        subject="agent",
        state=state,
        accelerator="ipu",
        size=4,
        gcds=2,
        replicas_per_gcd=1,
        project="default",
        priority=0,
        preemptible=False,
        attempt=0,
        created_at="2026-01-01T00:00:00Z",
    )


def by_id(*jobs: JobRecord) -> dict[int, JobRecord]:
    return {job.job_id: job for job in jobs}


def test_an_owner_names_one_start_of_one_job() -> None:
    start = JobStart(4711, NONCE, 2)
    assert check_owner(start.owner(HOME)) == f"slurm/vt/4711/{NONCE}/2/{HOME.instance}"
    assert start_of(start.owner(HOME)) == start
    assert start.partition_names() == ("slurm_4711_r2", f"slurm_4711_r2_{NONCE}")
    assert all(len(name) <= 36 for name in JobStart(2**32 - 1, NONCE, 10**6).partition_names())


@cases(
    "owner", ["", "slurm/a/b/c/d", "slurm/a/1/x", "slurm/a/1/x/0", "slurm/a/1/x/0/0/0", "user/ann", "slurm/a/1/x/-1/y"]
)
def test_an_owner_that_is_none_of_ours(owner: str) -> None:
    assert start_of(owner) is None


def test_what_a_started_job_asks_for() -> None:
    asked = request_for(a_job(12, ipus=8), HOME, "pod")
    assert (asked.size, asked.gcds, asked.replicas_per_gcd, asked.pool) == (8, 2, 2, "pod")
    assert (asked.name, asked.owner, asked.time_limit_s) == (
        "slurm_12",
        f"slurm/vt/12/{NONCE}/0/{HOME.instance}",
        600.0,
    )
    assert request_for(a_job(12), HOME, "", long_name=True).name == f"slurm_12_{NONCE}"
    assert request_for(a_job(12, limit_s=None), HOME, "").time_limit_s is None


def test_the_queue_is_told_in_slurm_s_order_and_only_what_waits_for_us() -> None:
    jobs = by_id(
        a_job(1, "PENDING", reason="Priority", priority=5),
        a_job(2, "PENDING", reason="Licenses", priority=9),
        a_job(3, "PENDING", reason="Dependency", priority=99),
        a_job(4, "PENDING", reason="Resources", priority=99),
        a_job(5, "PENDING", reason="QOSMaxLicensePerUser", priority=99),
        a_job(6, "RUNNING"),
        a_job(7, "PENDING", reason="Licenses", priority=5, order=None),
        a_job(8, "PENDING", reason="None", priority=5),
    )
    told = build_queue_payload(jobs, HOME, "", 120)
    assert [start_of(job.owner) for job in told.jobs] == [JobStart(n, NONCE, 0) for n in (2, 1, 8)]
    assert told.queue == "slurm/vt"
    assert told.jobs[0].since == "1970-01-01T00:00:02.000000Z"


def test_a_job_that_may_be_asked_to_make_room_is_told_and_asked_for_so() -> None:
    order = SubmittedOptions(nonce=NONCE, ipus=4, gcds=1, replicas=1, signal="USR1")
    jobs = by_id(a_job(1, "PENDING", reason="Licenses", order=order), a_job(2, "PENDING", reason="Licenses"))
    assert [job.preemptible for job in build_queue_payload(jobs, HOME, "", 120).jobs] == [True, None]
    assert request_for(a_job(1, order=order), HOME, "").preemptible
    assert not request_for(a_job(2), HOME, "").preemptible


def test_who_made_room_keeps_its_place_though_slurm_submits_it_anew() -> None:
    asked = YieldNotice(0, Timestamp(90 * SECOND), Timestamp(5 * SECOND))
    jobs = by_id(a_job(70, "PENDING", reason="Licenses", restarts=1, asked=asked))
    assert build_queue_payload(jobs, HOME, "", 120).jobs[0].since == "1970-01-01T00:00:05.000000Z"
    later = by_id(a_job(3, "PENDING", reason="Licenses", restarts=1, asked=asked))
    assert build_queue_payload(later, HOME, "", 120).jobs[0].since == "1970-01-01T00:00:03.000000Z"


def test_of_a_long_queue_the_first_are_told() -> None:
    jobs = by_id(*(a_job(n, "PENDING", reason="Licenses") for n in range(1, 1000)))
    assert len(build_queue_payload(jobs, HOME, "", 120).jobs) == 64


def test_a_job_that_runs_without_a_claim_gets_one() -> None:
    jobs = by_id(a_job(1), a_job(2, "CONFIGURING"), a_job(3, "PENDING"), a_job(4, "COMPLETING"), a_job(5, order=None))
    judged = review_claims(jobs, [a_claim(9)], {}, HOME, 1.0)
    assert [job.job_id for job in judged.starts] == [1, 2]


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"])
def test_a_start_is_over_when_slurm_says_so(state: str) -> None:
    judged = review_claims(by_id(a_job(1, state)), [a_claim(1)], {}, HOME, 1.0)
    assert judged.releases == {"claim-1-0": f"job 1 is {state}"}


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING", "STAGE_OUT", "SOMETHING_NEW"])
def test_what_may_still_run_keeps_its_partition(state: str) -> None:
    """Law 3: also a job whose processes are being killed, and one in a state that nobody has heard of."""
    doubts: dict[str, Streak] = {}
    for _ in range(100):
        judged = review_claims(by_id(a_job(1, state)), [a_claim(1)], doubts, HOME, 10.0)
        assert (judged.releases, judged.lost) == ({}, {})
        doubts = dict(judged.missed_listings)


def test_a_requeued_job_s_first_partition_goes_and_its_next_start_gets_another() -> None:
    job = a_job(1, "RUNNING", restarts=1)
    judged = review_claims(by_id(job), [a_claim(1)], {}, HOME, 1.0)
    assert judged.releases == {"claim-1-0": "job 1 was requeued"}
    assert judged.starts == (job,)
    assert review_claims(by_id(job), [a_claim(1, restarts=1)], {}, HOME, 1.0).releases == {}


def test_a_requeued_job_keeps_its_partition_until_its_processes_are_gone() -> None:
    """Slurm counts the restart at once, and ends the processes afterwards."""
    ending = by_id(a_job(1, "COMPLETING", restarts=1))
    assert review_claims(ending, [a_claim(1)], {}, HOME, 1.0) == ClaimReview()
    waiting = by_id(a_job(1, "PENDING", restarts=1, reason="BeginTime"))
    assert review_claims(waiting, [a_claim(1)], {}, HOME, 1.0).releases == {"claim-1-0": "job 1 was requeued"}


@pytest.mark.parametrize(
    "jobs",
    [
        {},
        by_id(a_job(1, "PENDING")),  # a list from before its start, or a requeue under way
        by_id(a_job(1, "RUNNING", nonce="ffffffffffffffff")),  # another job of that id: Slurm lost the first
        by_id(a_job(1, "COMPLETED", nonce="ffffffffffffffff")),
    ],
)
def test_what_is_missing_must_be_missing_for_long(jobs: dict[int, JobRecord]) -> None:
    """Law 3: one bad list ends nothing; and then Slurm is asked once more."""
    doubts: dict[str, Streak] = {}
    lost: list[int] = []
    for number in range(12):
        judged = review_claims(jobs, [a_claim(1)], doubts, HOME, 5.0)
        assert judged.releases == {}
        doubts = dict(judged.missed_listings)
        if judged.lost:
            lost.append(number)
    assert lost[0] * 5.0 >= 30.0
    seen_again = review_claims(by_id(a_job(1)), [a_claim(1)], doubts, HOME, 5.0)
    assert seen_again.missed_listings == {}, "one good word, and it counts anew"


def test_a_job_whose_record_an_admin_wrote_over_still_lives() -> None:
    job = a_job(1, order=None)
    assert review_claims(by_id(job), [a_claim(1)], {}, HOME, 1.0).missed_listings == {}
    assert may_be_running(JobStart(1, NONCE, 0), job)
    assert not may_be_running(
        JobStart(1, NONCE, 0), replace(job, order=SubmittedOptions(nonce="f" * 16, ipus=1, gcds=1, replicas=1))
    )


def test_a_claim_of_no_job_of_ours_goes_after_long_too() -> None:
    stranger = replace(a_claim(1), owner="slurm/vt/by-hand")
    doubts = {stranger.owner: Streak(10, 100.0)}
    assert review_claims({}, [stranger], doubts, HOME, 1.0).lost == {stranger.id: "its owner is no job for 101 s"}


def test_of_a_claim_of_another_slurm_of_this_name_nothing_is_said() -> None:
    """Law 3: a cloned head node knows of none of its jobs, or has given their ids to jobs of its own."""
    other = JobStart(1, NONCE, 0).owner(ClusterIdentity(HOME.cluster, "f" * 16))
    claim = replace(a_claim(1), owner=other)
    doubts = {other: Streak(100, 1000.0)}
    for jobs in ({}, by_id(a_job(1, "COMPLETED")), by_id(a_job(1, restarts=1))):
        judged = review_claims(jobs, [claim], doubts, HOME, 10.0)
        assert (judged.releases, judged.lost, judged.missed_listings) == ({}, {}, {})
    assert review_claims(by_id(a_job(1)), [claim], {}, HOME, 1.0).starts == (a_job(1),), (
        "it is not that job's partition"
    )


@pytest.mark.parametrize(
    ("account", "project"),
    [("lab", "lab"), ("lab-2.x", "lab-2.x"), ("(null)", "default"), ("", "default"), ("a/b", "default")],
)
def test_a_job_asks_in_the_name_of_its_account(account: str, project: str) -> None:
    job = a_job(7, account=account)
    assert request_for(job, HOME, "").project == project
    waiting = a_job(7, "PENDING", account=account, reason="Licenses", partition="all", priority=1)
    assert [told.project for told in build_queue_payload(by_id(waiting), HOME, "", 60.0).jobs] == [project]
