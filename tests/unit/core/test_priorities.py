"""The highest priorities: limits of roles and projects (law 7)."""

from __future__ import annotations

import pytest

from moorings.core.model.access import Role
from moorings.core.model.claims import Claim, ClaimId, ClaimSpec
from moorings.core.model.devices import PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import CreateClaim, SetPriority, SetProject
from moorings.core.model.policy import Policy
from moorings.core.model.projects import Project, Projects
from moorings.core.model.timestamps import SECOND, Timestamp, add_seconds
from moorings.core.model.topology import Pool, PowerOfTwo
from moorings.core.placement.fleet import Fleet
from moorings.core.scheduling.turn import Turn
from moorings.core.scheduling.turn_requests import max_priority
from tests.cases import cases

POD = Pool(PoolName("pod"), "ipu", "simulated", PowerOfTwo(1, 8, 8))
NOW = Timestamp(1_700_000_000 * SECOND)
LAB = Projects([Project(name="lab", priority_max=50), Project(name="lab/a"), Project(name="lab/b", priority_max=3)])


@cases(
    ("role", "project", "most"),
    [
        (Role.USER, "other", 0),
        (Role.AGENT, "other", 1_000_000),
        (Role.ADMIN, "lab/b", None),
        (None, "lab/b", None),
        (Role.USER, "lab", 50),
        (Role.USER, "lab/a", 50),
        (Role.USER, "lab/b", 3),
        (Role.AGENT, "lab", 50),
    ],
)
def test_a_project_s_ceiling_takes_the_place_of_the_role_s(role: Role | None, project: str, most: int | None) -> None:
    assert max_priority(role, project, LAB, Policy()) == most


class Site:
    """A fleet of one pool, its turns a second apart."""

    def __init__(self, policy: Policy = Policy()) -> None:  # noqa: B008
        self.fleet = Fleet([POD])
        self.policy = policy
        self.now = NOW

    def take(self, *given: object, later_s: float = 1.0) -> list[object]:
        self.now = add_seconds(self.now, later_s)
        with Turn(self.fleet, self.policy, self.now) as turn:
            replies = [turn.handle_input(one) for one in given]  # type: ignore[arg-type]
            turn.schedule()
        self.fleet.apply(turn.changes)
        for reply in replies:
            if isinstance(reply, MooringsError):
                raise reply
        return list(replies)

    def ask(self, name: str, priority: int = 0, *, size: int = 8, subject: str = "ann", **more: object) -> Claim:
        spec = ClaimSpec(kind="ipu", size=size, priority=priority)
        given = CreateClaim(
            id=ClaimId(name),
            name=name,
            owner=f"user/{subject}",
            subject=subject,
            spec=spec,
            **more,  # type: ignore[arg-type]
        )
        (claim,) = self.take(given)
        assert isinstance(claim, Claim)
        return claim


def test_nobody_goes_before_all_others_who_may_not() -> None:
    site = Site()
    with pytest.raises(MooringsError) as caught:
        site.ask("greedy", 1_000_000, role=Role.USER)
    assert (caught.value.code, "above 0" in caught.value.detail, "--priority-max" in caught.value.hint) == (
        "priority.denied",
        True,
        True,
    )
    assert site.fleet.claims == {}
    assert site.ask("fair", 0, role=Role.USER).spec.priority == 0
    assert site.ask("modest", -7, role=Role.USER).spec.priority == -7
    assert site.ask("admin", 9, role=Role.ADMIN).spec.priority == 9
    assert site.ask("before", 9).spec.priority == 9, "in a log of before"


def test_a_project_s_word_is_taken_in_the_turn_that_asks() -> None:
    site = Site()
    site.take(SetProject(Project(name="default", priority_max=5), None))
    assert site.ask("one", 5, role=Role.USER).spec.priority == 5
    with pytest.raises(MooringsError, match="above 5"):
        site.ask("two", 6, role=Role.USER)


def test_what_waits_with_an_old_priority_keeps_it_and_may_only_be_lowered() -> None:
    site = Site()
    site.ask("held")
    old = site.ask("old", 500)
    site.take(SetPriority(old.id, 400, Role.USER))
    assert site.fleet.claims[old.id].spec.priority == 400
    with pytest.raises(MooringsError, match="above 0"):
        site.take(SetPriority(old.id, 401, Role.USER))
    site.take(SetPriority(old.id, 401, Role.ADMIN))
    assert site.fleet.claims[old.id].spec.priority == 401


def test_an_agent_s_claim_is_lowered_for_its_scheduler_has_started_the_job() -> None:
    site = Site()
    site.take(SetProject(Project(name="default", priority_max=5), None))
    assert site.ask("one", 9, role=Role.AGENT).spec.priority == 5
    assert site.ask("two", 0, role=Role.AGENT).spec.priority == 0
