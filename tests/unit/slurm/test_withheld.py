"""For which jobs nothing is kept: what is known exactly, and what is learned by trying."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.slurm.formats import JobRecord, License
from moorings.slurm.host.job_table import JobStart, build_queue_payload
from moorings.slurm.host.start_backoff import (
    PAUSE_MAX_S,
    PAUSE_S,
    REFUSED_S,
    REMEMBERED_MAX,
    REMEMBERED_S,
    STEP_S_MAX,
    UNSEEN_S,
    StartBackoff,
    WaitingJobs,
    on_trial,
    open_trials,
    update_backoffs,
    withheld_reasons,
)
from moorings.slurm.node_requirements import JobNodeRequirements, NodeRequirements
from tests.unit.slurm.test_ledger import HOME, NONCE, a_job, by_id

NOW = Timestamp(1_795_400_000 * SECOND)
LICENSES = {"ipu_1": License(4, 0, 4), "ipu_2": License(4, 0, 4), "ipu_4": License(4, 0, 4)}
OPEN = dict.fromkeys(LICENSES, 0)
OFFERED = frozenset({JobStart(1, NONCE, 0).owner(HOME)})
TAKEN: dict[str, Any] = {"licenses": {"ipu": 4, "matlab": 2}}


def owner(job_id: int) -> str:
    return JobStart(job_id, NONCE, 0).owner(HOME)


def waiting(job_id: int = 1, reason: str = "Licenses", **more: Any) -> JobRecord:
    return a_job(job_id, "PENDING", reason=reason, **more)


def a_queue(*jobs: JobRecord, **more: Any) -> WaitingJobs:
    return WaitingJobs(**{"home": HOME, "jobs": by_id(*jobs), "offered": OFFERED, "licenses": LICENSES, **more})


def listed(queue: WaitingJobs, before: Mapping[str, StartBackoff], at_s: float) -> dict[str, StartBackoff]:
    return update_backoffs(queue, before, at_s, at_s, NOW)


def opened(queue: WaitingJobs, before: Mapping[str, StartBackoff], at_s: float) -> Mapping[str, StartBackoff]:
    return open_trials(queue, before, OPEN, at_s, NOW)


def at_work(
    queue: WaitingJobs, known: Mapping[str, StartBackoff], begin_s: float, end_s: float
) -> Mapping[str, StartBackoff]:
    """The agent looks at the gate and lists the jobs each second."""
    for at_s in range(round(begin_s), round(end_s)):
        known = listed(queue, opened(queue, known, at_s), at_s + 1.0)
    return known


def announced(queue: WaitingJobs, standings: Mapping[str, StartBackoff]) -> list[str]:
    keep = (set(withheld_reasons(standings)), on_trial(standings))
    return [job.owner for job in build_queue_payload(queue.jobs, HOME, "", 120, lambda _: 1, *keep).jobs]


# -- what is known exactly ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("matlab", "lacks"),
    [
        (License(2, 0, 0), False),
        (License(2, 1, 0), True),
        (License(2, 0, 2), False),  # reserved, perhaps for this very job
        (License(1, 3, 0), True),
    ],
)
def test_another_license_in_use(matlab: License, lacks: bool) -> None:
    queue = a_queue(waiting(**TAKEN), waiting(2), licenses={**LICENSES, "matlab": matlab})
    found = listed(queue, {}, 0.0)
    assert announced(queue, found) == [owner(2)] if lacks else [owner(1), owner(2)]
    assert ("license matlab:2" in withheld_reasons(found).get(owner(1), "")) == lacks


def test_once_the_license_is_free_devices_are_kept_at_once() -> None:
    queue = a_queue(waiting(**TAKEN), licenses={**LICENSES, "matlab": License(2, 2, 0)})
    found = listed(queue, {}, 0.0)
    queue = replace(queue, licenses={**LICENSES, "matlab": License(2, 0, 0)})
    assert announced(queue, listed(queue, found, 1.0)) == [owner(1)]


def test_own_licenses_and_those_that_slurm_does_not_tell_of_do_not_count() -> None:
    queue = a_queue(waiting(licenses={"ipu": 4, "ipu_4": 4, "moorings_gate": 1, "remote@server": 9}))
    assert listed(replace(queue, licenses={**LICENSES, "ipu": License(4, 4, 0)}), {}, 0.0) == {}


@pytest.mark.parametrize(
    ("required", "cpus", "nodes_max", "why"),
    [
        (("n4",), 16, 1, "16 CPUs of n4, of which jobs without IPUs leave 3"),
        (("n4",), 3, 1, ""),
        (("n4", "n3"), 20, 2, "20 CPUs of n3,n4"),
        (("n4", "n3"), 20, 3, ""),  # another node may have the rest
        (("n1",), 1, 1, "the node n1"),
        (("n1", "n3"), 1, 9, "the node n1"),
        (("n9",), 64, 1, ""),  # of which nothing is known
        (("n4", "n9"), 64, 2, ""),
        (("n4",), None, 1, ""),
        ((), 64, 1, ""),
    ],
)
def test_required_nodes(required: tuple[str, ...], cpus: int | None, nodes_max: int, why: str) -> None:
    needs = NodeRequirements({1: JobNodeRequirements(required, cpus, nodes_max, ())}, {"n1": 0, "n3": 16, "n4": 3})
    found = withheld_reasons(listed(a_queue(waiting(), needs=needs), {}, 0.0))
    assert why in found.get(owner(1), "")
    assert bool(why) == bool(found)


# -- what is learned by trying -----------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {"priority": 0, "start_time": NOW, "ipus": 2}  # behind the job that is tried


def tried(queue: WaitingJobs, at_s: float = 0.0) -> Mapping[str, StartBackoff]:
    found = opened(queue, listed(queue, {}, at_s), at_s)
    assert on_trial(found) == {owner(1)}
    return found


def passed_over(*jobs: JobRecord, **more: Any) -> WaitingJobs:
    """Slurm has started a job behind the one that was tried, and its offer is no more."""
    return a_queue(*(jobs or (waiting(),)), a_job(90, **SMALL), offered=frozenset(), **more)


def test_only_a_job_that_slurm_may_start_is_tried() -> None:
    queue = a_queue(waiting(), waiting(2))
    assert open_trials(queue, {}, dict.fromkeys(LICENSES, 1), 0.0, NOW) == {}, "others have started on it"
    assert on_trial(opened(replace(queue, offered=frozenset()), {}, 0.0)) == set()
    both = replace(queue, offered=frozenset({owner(1), owner(2)}))
    assert on_trial(opened(both, {}, 0.0)) == {owner(1)}, "there are 4 for the first of them"


@pytest.mark.parametrize(("reason", "patience_s"), [("Licenses", UNSEEN_S), ("", UNSEEN_S), ("Resources", REFUSED_S)])
def test_free_devices_are_kept_for_a_moment_whatever_slurm_says(reason: str, patience_s: float) -> None:
    queue = a_queue(waiting(reason=reason))
    known = at_work(queue, tried(a_queue(waiting())), 0, patience_s - 1)
    assert announced(queue, known) == [owner(1)]
    known = at_work(queue, known, patience_s - 1, patience_s)
    assert announced(queue, known) == []
    assert "once" in withheld_reasons(known)[owner(1)]
    assert ("said Resources" in withheld_reasons(known)[owner(1)]) == (reason == "Resources")


def test_an_offer_that_was_withdrawn_was_not_refused() -> None:
    """Another cluster has claimed, or a device failed."""
    gone = a_queue(waiting(), offered=frozenset())
    known = tried(a_queue(waiting()), at_s=5.0)
    assert on_trial(update_backoffs(gone, known, 5.0, 5.1, NOW)) == {owner(1)}, "the list was asked for before"
    known = update_backoffs(gone, known, 5.1, 5.2, NOW)
    assert (withheld_reasons(known), on_trial(known), announced(gone, known)) == ({}, set(), [owner(1)])
    queue = a_queue(waiting())
    assert announced(queue, at_work(queue, known, 6, 6 + UNSEEN_S - 1)) == [owner(1)], "the next trial is a whole one"


def test_devices_that_slurm_gave_to_one_behind_were_refused() -> None:
    """It looks at its first job first."""
    queue = passed_over()
    known = listed(queue, tried(a_queue(waiting())), 1.0)
    assert "once" in withheld_reasons(known)[owner(1)]
    assert announced(queue, known) == []


@pytest.mark.parametrize(
    "other",
    [
        a_job(90, **{**SMALL, "start_time": Timestamp(NOW - SECOND)}),
        a_job(90, **{**SMALL, "priority": 2}),
        a_job(90, "PENDING", reason="Priority", **SMALL),  # when it may start, for all that Slurm knows
        a_job(90, "CANCELLED", **{**SMALL, "nodes": ""}),
    ],
    ids=["before", "first in the queue", "waits", "never ran"],
)
def test_what_other_jobs_do_not_show(other: JobRecord) -> None:
    known = tried(a_queue(waiting()))
    assert withheld_reasons(listed(a_queue(waiting(), other, offered=frozenset()), known, 1.0)) == {}


def test_a_job_that_is_put_aside_shows_nothing_and_one_of_a_higher_tier_comes_first() -> None:
    known = tried(a_queue(waiting()))
    assert withheld_reasons(listed(replace(passed_over(), aside={90}), known, 1.0)) == {}
    assert withheld_reasons(listed(replace(passed_over(), tier=lambda job: job.job_id), known, 1.0)) == {}


def test_only_time_counts_in_which_slurm_could_have_started_it() -> None:
    queue = a_queue(waiting())
    known = at_work(queue, tried(queue), 0, UNSEEN_S - 9)
    for at_s in range(100, 200):  # the agent has closed the gate, for the controller is away
        known = listed(queue, open_trials(queue, known, dict.fromkeys(LICENSES, 4), at_s, NOW), at_s + 1.0)
    known = at_work(queue, known, 200, 208)
    assert announced(queue, known) == [owner(1)]
    assert announced(queue, at_work(queue, known, 208, 209)) == []


def test_while_slurmctld_is_away_it_starts_nothing() -> None:
    queue = a_queue(waiting(reason="Resources"))
    known = listed(queue, tried(queue), 300.0)
    assert announced(queue, known) == [owner(1)]
    assert announced(queue, listed(queue, opened(queue, known, 300.5), 300.0 + STEP_S_MAX)) == []


def test_a_job_that_starts_is_forgotten() -> None:
    assert listed(a_queue(a_job(1)), tried(a_queue(waiting())), 1.0) == {}
    again = waiting(restarts=1)
    assert listed(a_queue(again), tried(a_queue(waiting())), 1.0) == {}


def test_each_pause_is_twice_as_long_up_to_the_longest() -> None:
    free, gone, at_s = a_queue(waiting()), passed_over(), 0.0
    known: Mapping[str, StartBackoff] = {}
    pauses = []
    for _ in range(7):
        known = listed(gone, opened(free, known, at_s), at_s + 1)
        begun = at_s = at_s + 1
        assert announced(gone, known) == []
        assert opened(free, known, at_s) == known, "nothing is tried in the pause"
        while not announced(gone, known):
            at_s += 1
            known = listed(gone, known, at_s)
        pauses.append(at_s - begun)
    assert pauses == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S, 8 * PAUSE_S, *[PAUSE_MAX_S] * 3]


@pytest.mark.parametrize("reason", ["JobHeldUser", "Dependency", "BeginTime"])
def test_a_job_whose_turn_it_is_not_has_refused_nothing(reason: str) -> None:
    queue = passed_over(waiting(reason=reason))
    known = listed(queue, tried(a_queue(waiting())), 1.0)
    assert (withheld_reasons(known), on_trial(known), announced(queue, known)) == ({}, set(), [])


def test_who_holds_a_job_for_a_moment_begins_no_new_trial() -> None:
    queue, held = a_queue(waiting()), a_queue(waiting(reason="JobHeldUser"))
    known = at_work(queue, tried(queue), 0, UNSEEN_S - 1)
    known = listed(held, known, UNSEEN_S)
    assert on_trial(known) == set()
    assert announced(queue, at_work(queue, known, 100, 102)) == []


# -- what its user may change ------------------------------------------------------------------------------------------


def words(job_id: int = 1, nodes: str = "n[1-4]") -> NodeRequirements:
    return NodeRequirements({job_id: JobNodeRequirements((), 4, 1, (nodes,))}, {})


def refused(**more: Any) -> Mapping[str, StartBackoff]:
    """Job 1 has refused once at 1 s."""
    known = listed(passed_over(needs=words(), **more), tried(a_queue(waiting(), needs=words())), 1.0)
    assert list(withheld_reasons(known)) == [owner(1)]
    return known


@pytest.mark.parametrize("changed", [{"limit_s": 60.0}, {"array_tasks": "2-9"}, {"comment": "new"}], ids=str)
def test_what_cannot_help_begins_nothing_anew(changed: dict[str, Any]) -> None:
    queue = a_queue(waiting(**changed), needs=words())
    assert announced(queue, listed(queue, refused(), 2.0)) == []
    known = at_work(queue, tried(a_queue(waiting(), needs=words())), 0, UNSEEN_S)
    assert announced(queue, known) == [], "nor does it in a trial"


def test_what_is_not_known_of_a_job_for_a_moment_has_not_changed() -> None:
    queue = a_queue(waiting())
    known = listed(queue, refused(), 2.0)
    assert announced(queue, known) == []
    queue = replace(queue, needs=words())
    assert announced(queue, listed(queue, known, 3.0)) == []


@pytest.mark.parametrize(
    ("changed", "nodes"),
    [({"partition": "other"}, "n[1-4]"), ({"licenses": {"ipu": 4}}, "n[1-4]"), ({}, "n1")],
    ids=["partition", "licenses", "nodes"],
)
def test_a_change_that_can_help_gives_one_new_trial(changed: dict[str, Any], nodes: str) -> None:
    queue = a_queue(waiting(**changed), needs=words(nodes=nodes))
    known = listed(queue, refused(), 2.0)
    assert announced(queue, known) == [owner(1)]
    gone = passed_over(waiting(**changed), needs=words(nodes=nodes))
    known = listed(gone, opened(queue, known, 2.0), 3.0)
    assert "2 times" in withheld_reasons(known)[owner(1)]
    again = a_queue(waiting(**changed), needs=words(nodes="n7"))
    assert announced(again, listed(again, known, 4.0)) == [], "a second change waits for the end of the pause"
    assert announced(again, listed(again, known, 2.0 + 2 * PAUSE_S)) == []
    assert announced(again, listed(again, known, 3.0 + 2 * PAUSE_S)) == [owner(1)]


def test_a_trial_begins_anew_for_one_change_of_a_job() -> None:
    known = tried(a_queue(waiting(), needs=words()))
    for nodes, end_s in (("n1", 50), ("n2", 100), ("n3", 112)):
        queue = a_queue(waiting(), needs=words(nodes=nodes))
        known = at_work(queue, known, max(end_s - 50, 0), end_s)
    assert "once" in withheld_reasons(known)[owner(1)]


def test_a_job_submitted_again_goes_on_from_the_one_before() -> None:
    known = refused()
    queue = a_queue(waiting(2, limit_s=300.0), needs=words(2), offered=frozenset({owner(2)}))
    for at_s in (2.0, 3.0, PAUSE_S):
        known = listed(queue, known, at_s)
        assert (
            withheld_reasons(known).get(owner(2), "").startswith("job 1 asked for the same: IPUs were free for it once")
        )
    known = at_work(queue, known, PAUSE_S + 1, 2 * PAUSE_S + 2)
    assert "2 times" in withheld_reasons(known)[owner(2)]


def test_so_does_one_that_was_cancelled_in_its_trial() -> None:
    known = at_work(a_queue(waiting(), needs=words()), tried(a_queue(waiting(), needs=words())), 0, UNSEEN_S - 1)
    known = listed(a_queue(), known, UNSEEN_S)
    queue = a_queue(waiting(2), needs=words(2), offered=frozenset({owner(2)}))
    known = listed(queue, known, UNSEEN_S + 1)
    assert announced(queue, known) == [owner(2)]
    assert announced(queue, at_work(queue, known, UNSEEN_S + 1, UNSEEN_S + 3)) == []


def test_of_jobs_that_ask_for_the_same_each_waits() -> None:
    both = a_queue(waiting(), waiting(2), needs=NodeRequirements(dict(words(1).jobs) | dict(words(2).jobs), {}))
    assert announced(both, listed(both, refused(), 2.0)) == []


@pytest.mark.parametrize(
    ("other", "nodes"),
    [
        (waiting(2, uid=6), "n[1-4]"),
        (waiting(2, ipus=2), "n[1-4]"),
        (waiting(2, partition="other"), "n[1-4]"),
        (waiting(2, limit_s=299.0), "n[1-4]"),
        (waiting(2), "n1"),
    ],
    ids=["user", "size", "partition", "half its time", "nodes"],
)
def test_another_job_does_not_suffer(other: JobRecord, nodes: str) -> None:
    queue = a_queue(other, needs=words(2, nodes))
    assert announced(queue, listed(queue, refused(), 2.0)) == [owner(2)]
    queue = a_queue(other)
    assert announced(queue, listed(queue, refused(), 2.0)) == [owner(2)], "what it needs of nodes is not known yet"


def test_once_a_job_has_started_no_refusal_counts() -> None:
    needs = NodeRequirements(dict(words(1).jobs) | dict(words(2).jobs), {})
    queue = a_queue(a_job(1), waiting(2), needs=needs)
    assert announced(queue, listed(queue, refused(), 2.0)) == [owner(2)]


@pytest.mark.parametrize(("started", "waits"), [(NOW, False), (Timestamp(NOW - SECOND), True)])
def test_so_it_is_with_a_task_of_an_array(started: Timestamp, waits: bool) -> None:
    queue = a_queue(waiting(array_job=1, array_tasks="2-9"), a_job(7, array_job=1, array_tasks="1", start_time=started))
    assert (announced(queue, listed(queue, refused(), 2.0)) == []) == waits


def test_what_came_of_jobs_that_are_gone_is_forgotten() -> None:
    known = listed(a_queue(), refused(), 2.0)
    assert list(known) == [owner(1)]
    assert (withheld_reasons(known), on_trial(known)) == ({}, set())
    assert list(listed(a_queue(), known, REMEMBERED_S)) == [owner(1)]
    assert listed(a_queue(), known, REMEMBERED_S + 2.0) == {}


def test_so_many_are_remembered() -> None:
    one = refused()[owner(1)]
    known = listed(a_queue(), {owner(number): one for number in range(1, REMEMBERED_MAX + 9)}, 2.0)
    known = listed(a_queue(), {**known, owner(7000): one}, 3.0)
    assert len(known) == REMEMBERED_MAX
    assert owner(7000) in known
