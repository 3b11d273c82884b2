"""Jobs that must make room: who is warned, when who is put back, and what people are told."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from moorings.core.model.queue_reports import QUEUE_JOBS_MAX
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.slurm.formats import JobRecord, License, SubmittedOptions, YieldNotice
from moorings.slurm.host.job_table import ClusterIdentity, JobStart
from moorings.slurm.host.reclaim import (
    BEHIND,
    NOTE_CHARS_MAX,
    REMARK_AGAIN_S,
    WRITES_MAX,
    UserNames,
    YieldPlan,
    find_blocking_jobs,
    format_note,
    plan_wait_notes,
    plan_yields,
    wait_note,
)
from moorings.wire.codec import format_time
from moorings.wire.shapes import ClaimBody, ReasonBody
from tests.unit.slurm.test_ledger import HOME, NONCE, a_claim, a_job, by_id

NOW = Timestamp(1_795_400_000 * SECOND)
KILL_WAIT_S = 30.0
PEOPLE = UserNames(HOME.cluster)
ORDER = SubmittedOptions(nonce=NONCE, ipus=4, gcds=1, replicas=1, signal="B:USR1")
WARNED = YieldNotice(0, Timestamp(NOW + 60 * SECOND), Timestamp(5 * SECOND))


def borrower(job_id: int = 1, state: str = "RUNNING", **more: Any) -> JobRecord:
    return a_job(job_id, state, **({"order": ORDER} | more))


def reclaimed(job_id: int = 1, *, within_s: float = 120.0, **more: Any) -> ClaimBody:
    until = Timestamp(NOW + round(within_s * SECOND))
    why = f"its devices were lent and are needed for {JobStart(7, NONCE, 0).owner(HOME)}"
    reason = ReasonBody(code="claim.reclaiming", message=why)
    return replace(a_claim(job_id, state="RECLAIMING", **more), asked_until=format_time(until), reason=reason)


def decide(
    job: JobRecord,
    claim: ClaimBody | None = None,
    *,
    after_s: float = 0.0,
    home: ClusterIdentity = HOME,
    locked: Collection[tuple[int, int]] = (),
) -> YieldPlan:
    now = Timestamp(NOW + round(after_s * SECOND))
    return plan_yields(by_id(job), [claim or reclaimed(job.job_id)], home, now, KILL_WAIT_S, locked)


def requeued(found: YieldPlan) -> list[int]:
    return [job.job_id for job, _ in found.requeues]


def test_who_was_not_warned_is_warned() -> None:
    found = decide(borrower())
    assert not found.requeues
    (warning,) = found.warnings
    assert warning.asked.restarts == 0
    assert warning.asked.since == Timestamp(1 * SECOND), "its place is that of its submission"
    assert warning.asked.requeue_at == Timestamp(NOW + 87 * SECOND), "so that KILL has come within the 120 s"
    assert warning.note.startswith("its devices were lent and are needed for job 7; requeued at ")


def test_with_little_time_half_of_it_is_the_jobs() -> None:
    (warning,) = decide(borrower(), reclaimed(within_s=20.0)).warnings
    assert warning.asked.requeue_at == Timestamp(NOW + 10 * SECOND)
    (late,) = decide(borrower(), reclaimed(within_s=-5.0)).warnings
    assert late.asked.requeue_at == NOW


def test_who_was_warned_in_this_start_is_not_warned_again() -> None:
    assert decide(borrower(asked=WARNED)) == YieldPlan()


def test_who_was_warned_in_an_earlier_start_is_warned_in_this_one_and_keeps_its_place() -> None:
    (warning,) = decide(borrower(asked=WARNED, restarts=1), reclaimed(restarts=1)).warnings
    assert (warning.asked.restarts, warning.asked.since) == (1, Timestamp(1 * SECOND))
    (old,) = decide(borrower(job_id=50, asked=WARNED, restarts=1), reclaimed(50, restarts=1)).warnings
    assert old.asked.since == WARNED.since


def test_who_was_warned_is_requeued_when_its_time_is_over_and_not_before() -> None:
    assert decide(borrower(asked=WARNED), after_s=59.9) == YieldPlan()
    assert requeued(decide(borrower(asked=WARNED), after_s=60.0)) == [1]


def test_who_ends_badly_after_the_warning_is_put_back_before_its_claim_goes() -> None:
    found = decide(borrower(state="FAILED", asked=WARNED, status=(85, 0)))
    assert requeued(found) == [1]
    assert found.kept == {"claim-1-0": (1, 0)}


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL"])
def test_who_ends_otherwise_is_over_as_always(state: str) -> None:
    assert decide(borrower(state=state, asked=WARNED)) == YieldPlan()


def test_who_fails_without_a_warning_has_failed() -> None:
    assert decide(borrower(state="FAILED")) == YieldPlan()
    assert decide(borrower(state="FAILED", asked=WARNED, restarts=1), reclaimed(restarts=1)) == YieldPlan()
    assert decide(borrower(state="FAILED", asked=WARNED, requeue=False)) == YieldPlan()


@pytest.mark.parametrize("asked", [None, WARNED], ids=["not warned", "warned"])
def test_who_may_not_be_requeued_is_let_first(asked: YieldNotice | None) -> None:
    job = borrower(requeue=False, asked=asked)
    assert decide(job, after_s=600.0) == YieldPlan(allow_requeue=(job,))
    assert decide(job, after_s=600.0, locked=[(1, 1), (2, 0)]).allow_requeue == (job,), "another start, another job"


# Of one that is no batch job nothing is tried; of another, Slurm has said no.
HOPELESS = [({"requeue": False}, [(1, 0)]), ({"batch": False}, []), ({"batch": False, "requeue": False}, [])]


@pytest.mark.parametrize(("how", "locked"), HOPELESS, ids=str)
def test_who_cannot_be_requeued_is_warned_all_the_same_and_cancelled_when_its_time_is_over(
    how: Mapping[str, Any], locked: list[tuple[int, int]]
) -> None:
    found = decide(borrower(**how), locked=locked)
    assert list(found.unable_to_yield) == ["claim-1-0"]
    assert "; it cannot be requeued, so cancelled at " in found.warnings[0].note
    assert decide(borrower(asked=WARNED, **how), after_s=59.9, locked=locked) == YieldPlan(
        unable_to_yield=found.unable_to_yield
    )
    late = decide(borrower(asked=WARNED, **how), after_s=60.0, locked=locked)
    ((job, why),) = late.cancels
    assert job.job_id == 1
    assert "cancelled, for " in why
    assert late == YieldPlan(cancels=late.cancels, unable_to_yield=found.unable_to_yield)


def test_who_may_be_requeued_again_is_requeued_and_not_cancelled() -> None:
    found = decide(borrower(asked=WARNED), after_s=60.0, locked=[(1, 0)])
    assert requeued(found) == [1]
    assert not found.cancels
    assert not found.unable_to_yield


@pytest.mark.parametrize("state", ["COMPLETING", "PENDING"])
def test_who_is_on_its_way_is_left_alone(state: str) -> None:
    assert decide(borrower(state=state, asked=WARNED), after_s=600.0) == YieldPlan()


def test_nothing_follows_from_what_is_not_that_start_or_not_asked() -> None:
    assert decide(borrower(restarts=1), reclaimed()) == YieldPlan(), "its next start is not asked"
    assert decide(borrower(), reclaimed(nonce="f" * 16)) == YieldPlan(), "another job has its number"
    assert decide(borrower(order=None)) == YieldPlan()
    assert decide(borrower(), a_claim(1)) == YieldPlan(), "its claim is READY"
    assert decide(borrower(), home=ClusterIdentity(HOME.cluster, "f" * 16)) == YieldPlan(), "another Slurm's"
    assert decide(borrower(2), reclaimed(1)) == YieldPlan()


def way(
    *jobs: JobRecord, offered: int = 9, free: int = 0, claim: ClaimBody | None = None, reason: str = "Licenses"
) -> list[int]:
    owner = borrower(offered, "PENDING", reason=reason)
    licenses = {f"ipu_{size}": License(16, 16 - free, 0) for size in (1, 2, 4, 8, 16)}
    claims = [claim or a_claim(1, state="PENDING")]
    found = find_blocking_jobs(by_id(owner, *jobs), claims, [JobStart(9, NONCE, 0).owner(HOME)], licenses)
    return [job.job_id for job in found.values()]


def test_who_holds_the_licenses_of_an_owner_without_devices_is_in_its_way() -> None:
    assert way(borrower()) == [1]


def test_who_is_in_nobodys_way_stays() -> None:
    assert way(borrower(), free=4) == [], "the owner can start beside it"
    assert way(borrower(), offered=8) == [], "nothing is kept for one that waits"
    assert way(borrower(), reason="Dependency") == []
    assert way(borrower(), claim=a_claim(1, state="GRANTED")) == [], "it has its devices"
    assert way(borrower(), claim=a_claim(1, state="PENDING", nonce="f" * 16)) == []
    assert way(borrower(restarts=1)) == []
    assert way(borrower(state="COMPLETING")) == []
    assert way(borrower(requeue=False)) == []
    assert way(borrower(batch=False)) == []


def test_what_is_told_is_one_line_of_plain_characters_and_bounded() -> None:
    assert format_note("two\nlines\x1b[2J and \u202eword", PEOPLE) == "two lines?[2J and ?word"
    assert len(format_note("x" * 9999, PEOPLE)) == NOTE_CHARS_MAX


def test_jobs_are_called_as_their_users_know_them() -> None:
    people = UserNames(HOME.cluster, by_id(a_job(12, user="bert")))
    other = JobStart(12, NONCE, 3).owner(ClusterIdentity("other", HOME.instance))
    for owner, called in (
        (JobStart(12, NONCE, 3).owner(HOME), "bert's job 12"),
        (f"job 12 on slurm/{HOME.cluster}", "bert's job 12"),
        (f"job 13 on slurm/{HOME.cluster}", "job 13"),
        (other, "job 12 on slurm/other"),
        ("job 12 on slurm/other.site", "job 12 on slurm/other.site"),
        ("team/train on kubernetes/k1", "team/train on kubernetes/k1"),
    ):
        assert format_note(f"held by {owner}, and others", people) == f"held by {called}, and others"
    assert format_note("held by job 12 on slurm/vt", PEOPLE) == "held by job 12", (
        "where users see nothing of each other"
    )


# -- why jobs wait -----------------------------------------------------------------------------------------------------


def reasons(*jobs: int, message: str = "waits for 4 devices in pod") -> dict[str, ReasonBody]:
    return {JobStart(job, NONCE, 0).owner(HOME): ReasonBody(code="pool.full", message=message) for job in jobs}


def waiting(job_id: int, **more: Any) -> JobRecord:
    return borrower(job_id, "PENDING", **more)


def remarked(*jobs: JobRecord, **more: Any) -> list[tuple[int, str]]:
    known: dict[str, Any] = {
        "reasons": reasons(*(job.job_id for job in jobs)),
        "written": {},
        "now": NOW,
        "people": PEOPLE,
    }
    return [(job.job_id, text) for job, text in plan_wait_notes(by_id(*jobs), **(known | more))]


def test_who_waits_is_told_why_and_until_when() -> None:
    assert remarked(waiting(1)) == [(1, "waits for 4 devices in pod")]
    reason = ReasonBody(code="queue.reserved", message="held by slurm_3", until="2026-01-01T00:00:00Z")
    assert wait_note(reason, PEOPLE) == "held by slurm_3; until 2026-01-01T00:00:00Z at the latest"


def test_a_job_for_which_nothing_is_kept_is_told_that() -> None:
    lacks = {JobStart(1, NONCE, 0).owner(HOME): "it also needs the license matlab:1"}
    assert remarked(waiting(1), withheld=lacks) == [(1, "it also needs the license matlab:1")]
    assert remarked(waiting(1), withheld=lacks, reasons={}) == [(1, "it also needs the license matlab:1")]


def test_only_what_is_new_is_written_and_not_too_often() -> None:
    same, old = "waits for 4 devices in pod", Timestamp(NOW - round(REMARK_AGAIN_S * SECOND))
    assert remarked(waiting(1), written={1: (same, old)}) == []
    assert remarked(waiting(1), written={1: ("another", old)}) == [(1, same)]
    assert remarked(waiting(1), written={1: ("another", NOW)}) == []
    assert remarked(waiting(1, note=same)) == [], "an agent before wrote it"
    assert remarked(waiting(1, note="waits for 4 dev")) == [(1, same)], "what is behind the column's end may be another"
    assert remarked(waiting(1, note="another")) == [(1, same)]


def test_few_are_told_at_a_time_and_in_the_end_all() -> None:
    jobs, done = [waiting(n) for n in range(1, 41)], dict[int, tuple[str, Timestamp]]()
    for _ in range(2):
        found = remarked(*jobs, written=done)
        assert len(found) == WRITES_MAX
        done |= {number: (text, NOW) for number, text in found}
    assert done.keys() == set(range(1, 41))
    assert remarked(*jobs, written=done) == []


def test_who_is_behind_the_first_is_told_that() -> None:
    first = [waiting(n) for n in range(1, QUEUE_JOBS_MAX + 1)]
    done = {job.job_id: ("waits for 4 devices in pod", NOW) for job in first}
    behind = [waiting(n, reason=reason) for n, reason in ((101, "Licenses"), (102, "Priority"), (103, "None"))]
    why = reasons(*(job.job_id for job in first))
    assert remarked(*first, *behind, reasons=why, written=done) == [(101, BEHIND), (102, BEHIND)]
    few = dict(list(why.items())[:-1])
    assert remarked(behind[0], reasons=few) == [], "the controller has not spoken of it yet"


def test_who_waits_for_something_else_is_told_that() -> None:
    other = waiting(1, reason="Dependency")
    assert remarked(other, reasons={}) == [(1, "it does not wait for IPUs yet, for Slurm says Dependency")]
    assert remarked(waiting(1, reason="Dependency")) == [(1, "waits for 4 devices in pod")], "as long as it is told of"
    assert remarked(a_job(1, "PENDING", order=None, reason="Dependency"), reasons={}) == [], "it is no job of ours"


def test_those_of_whom_nothing_was_said_for_longest_come_first() -> None:
    """A queue whose reasons change all the time must not keep its end from being told anything."""
    jobs = [waiting(n, reason="Dependency") for n in range(1, WRITES_MAX + 2)]
    done = {n: ("another", Timestamp(n)) for n in range(1, WRITES_MAX + 1)}
    assert [job for job, _ in remarked(*jobs, reasons={}, written=done)] == [WRITES_MAX + 1, *range(1, WRITES_MAX)]


def test_a_reason_of_another_start_is_not_that_jobs() -> None:
    assert remarked(waiting(1, restarts=1)) == []


def test_a_reason_is_told_whole() -> None:
    long = "devices 0-63 of pod64 are kept for it, still held by " + ", ".join(
        f"job {n} on slurm/c1" for n in range(20)
    )
    assert 200 < len(long) < NOTE_CHARS_MAX
    why = {JobStart(1, NONCE, 0).owner(HOME): ReasonBody(code="queue.reserved", message=long)}
    assert remarked(waiting(1), reasons=why) == [(1, long)]


def test_of_an_array_that_cannot_be_named_whole_nothing_is_written() -> None:
    assert remarked(waiting(1, array_job=1, array_tasks="1,3,5...")) == []
    assert remarked(waiting(1, array_job=1, array_tasks="1,3,5%2")) == [(1, "waits for 4 devices in pod")]


def test_an_admins_words_and_who_waits_no_more_are_left_alone() -> None:
    assert remarked(waiting(1, note="ask carol", is_note_ours=False)) == []
    assert remarked(borrower(1)) == []
    assert remarked(borrower(1, note="mine", is_note_ours=False)) == []


def test_of_who_has_started_the_remark_goes_but_not_what_it_was_asked() -> None:
    assert remarked(borrower(1, note="waits for"), reasons={}) == [(1, "")]
    assert remarked(borrower(1, note="its devices", asked=WARNED), reasons={}) == []
    assert remarked(borrower(1, note="its devices", asked=WARNED, restarts=1), reasons={}) == [(1, "")]
