"""How guarantees stand, in numbers: what is held and borrowed, who is owed something, and who is late."""

from __future__ import annotations

import pytest

from moorings.controller.metrics import PROJECTS_MEASURED_MAX, collect_guarantee_metrics
from moorings.core.model.claims import ClaimState
from moorings.core.model.inputs import SetProject
from moorings.core.model.policy import Policy
from moorings.core.model.projects import Project, ProjectShare
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.core.placement.fleet import Fleet
from tests.unit.core.worlds import CROSS, POD, World

POLICY = Policy(min_run_s=0, yield_s=10)


@pytest.fixture
def world() -> World:
    """The lab is guaranteed half of the pool, which guests have borrowed whole."""
    made = World(POD, CROSS, policy=POLICY)
    made.step(SetProject(Project(name="lab", shares=(ProjectShare(POD.name, ((8, 1),)),), user_devices_max=8), None))
    made.step(SetProject(Project(name="guests"), None))
    for _ in range(2):
        made.ready(8, project="guests", preemptible=True, owner="local/run-1")
    return made


def test_what_projects_hold_is_told_by_its_use(world):
    found = collect_guarantee_metrics(world.fleet, POLICY, world.now).devices
    assert found["lab", "pod", "guaranteed"] == 8
    assert found["lab", "pod", "held"] == 0
    assert found["guests", "pod", "borrowed"] == 16


def test_who_waits_for_a_guarantee_is_counted_and_who_does_not_is_not(world):
    before = collect_guarantee_metrics(world.fleet, POLICY, world.now)
    assert (before.due_claims, before.oldest_s, before.bound_s) == (
        {"pod": 0, "cross": 0},
        {"pod": 0.0, "cross": 0.0},
        10.0,
    )
    world.create(8, project="lab")
    world.create(8, project="guests")
    found = collect_guarantee_metrics(world.fleet, POLICY, Timestamp(world.now + 60 * SECOND))
    assert found.due_claims == {"pod": 1, "cross": 0}
    assert found.oldest_s["pod"] == pytest.approx(61)


def test_nothing_is_owed_to_who_holds_all_that_he_may(world):
    mine = world.create(8, project="lab")
    asked = next(claim for claim in world.fleet.claims.values() if claim.state is ClaimState.RECLAIMING)
    world.end(asked)
    assert world.claim(mine.id).state is ClaimState.GRANTED
    world.create(8, project="lab")
    assert collect_guarantee_metrics(world.fleet, POLICY, world.now).due_claims["pod"] == 0


def test_a_limit_of_users_does_not_count_for_jobs_of_an_agent():
    world = World(POD, policy=POLICY)
    world.step(SetProject(Project(name="lab", shares=(ProjectShare(POD.name, ((8, 1),)),), user_devices_max=4), None))
    world.step(SetProject(Project(name="guests"), None))
    for _ in range(2):
        world.ready(8, project="guests", preemptible=True, owner="local/run-1")
    world.create(8, project="lab", owner="slurm/vt/1/00000000/0/0")
    assert collect_guarantee_metrics(world.fleet, POLICY, world.now).due_claims["pod"] == 1


def test_who_was_asked_is_overdue_when_the_time_is_over(world):
    world.create(8, project="lab")
    assert collect_guarantee_metrics(world.fleet, POLICY, world.now).overdue == {"pod": 0, "cross": 0}
    late = Timestamp(world.now + 11 * SECOND)
    assert collect_guarantee_metrics(world.fleet, POLICY, late).overdue == {"pod": 1, "cross": 0}


def test_no_more_projects_are_told_than_labels_may_be():
    world = World(POD)
    fleet = Fleet.load([POD], [], [], [], [Project(name=f"p{n}") for n in range(200)], [])
    assert collect_guarantee_metrics(fleet, POLICY, world.now).devices == {}
    shares = (ProjectShare(POD.name, ((1, 1),)),)
    fleet = Fleet.load([POD], [], [], [], [Project(name=f"p{n}", shares=shares) for n in range(16)], [])
    assert len(collect_guarantee_metrics(fleet, POLICY, world.now).devices) == 16 * 3
    deep = [Project(name="p0/deep"), *(Project(name=f"p{n}") for n in range(PROJECTS_MEASURED_MAX + 9))]
    world.step(*(SetProject(one, None) for one in deep[1:]), SetProject(deep[0], None))
    world.create(1, project="p0/deep")
    told = {project for project, _, _ in collect_guarantee_metrics(world.fleet, POLICY, world.now).devices}
    assert told == {"p0"}


def test_without_projects_any_name_is_taken_and_none_is_told():
    world = World(POD)
    world.ready(8, project="whatever")
    assert collect_guarantee_metrics(world.fleet, POLICY, world.now).devices == {}
