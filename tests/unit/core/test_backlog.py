"""How much may wait: quotas of subjects and projects, decided in the turn."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.invariants import find_violations
from moorings.core.model.access import Role
from moorings.core.model.backlog import Amount, Backlog, BacklogEntry, check_backlog_limits
from moorings.core.model.claims import Claim, ClaimId, ClaimSpec, ClaimState
from moorings.core.model.devices import PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import CreateClaim, ReleaseClaim, SetProject
from moorings.core.model.policy import Policy
from moorings.core.model.projects import Project, Projects
from moorings.core.model.timestamps import SECOND, Timestamp, add_seconds
from moorings.core.model.topology import Pool, PowerOfTwo
from moorings.core.placement.fleet import Fleet
from moorings.core.scheduling.turn import Turn
from tests.cases import cases

POD = Pool(PoolName("pod"), "ipu", "simulated", PowerOfTwo(1, 8, 8))
LAB = Projects([Project(name="lab", waiting_max=5), Project(name="lab/a", waiting_bytes_max=100)])


class Site:
    """A fleet of one pool whose devices are all held by somebody else; its turns are a second apart."""

    def __init__(self, policy: Policy) -> None:
        self.fleet = Fleet([POD])
        self.policy = policy
        self.now = Timestamp(1_700_000_000 * SECOND)
        self.take(ask("holder", subject="eve", role=Role.ADMIN))

    def take(self, *given: object) -> list[str]:
        """What became of each: a state, or the code of its error."""
        self.now = add_seconds(self.now, 1)
        with Turn(self.fleet, self.policy, self.now) as turn:
            replies = [turn.handle_input(one) for one in given]  # type: ignore[arg-type]
            turn.schedule()
        self.fleet.apply(turn.changes)
        assert find_violations(self.fleet) == []
        return [one.state if isinstance(one, Claim) else getattr(one, "code", "") for one in replies]


def ask(
    name: str, *, subject: str = "ann", role: Role | None = Role.USER, project: str = "default", owner: str = "user/x"
) -> CreateClaim:
    spec = ClaimSpec(kind="ipu", size=8, project=project)
    return CreateClaim(id=ClaimId(name), name=name, owner=owner, subject=subject, spec=spec, role=role)


def test_a_user_has_only_so_many_claims_waiting_also_of_those_that_come_at_once() -> None:
    site = Site(Policy(waiting_max=3))
    assert site.take(ask("a")) == ["PENDING"]
    assert site.take(*map(ask, "bcde")) == ["PENDING", "PENDING", "quota.waiting", "quota.waiting"]
    assert site.take(ask("f", subject="bob")) == ["PENDING"]
    assert set(site.fleet.claims) == {"holder", "a", "b", "c", "f"}


def test_who_gives_one_up_may_have_another_one_in_the_same_turn() -> None:
    site = Site(Policy(waiting_max=2))
    site.take(ask("a"), ask("b"))
    assert site.take(ask("c"), ReleaseClaim(ClaimId("a"), "over"), ask("d"), ask("e")) == [
        "quota.waiting",
        "CANCELLED",
        "PENDING",
        "quota.waiting",
    ]


def test_what_was_served_waits_no_longer() -> None:
    site = Site(Policy(waiting_max=1))
    site.take(ask("a"))
    assert site.fleet.backlog.for_subject("ann") == Amount(1)
    site.take(ReleaseClaim(ClaimId("a"), "over"))
    assert site.fleet.backlog == Backlog()


@cases(
    ("role", "owner"),
    [(Role.ADMIN, "user/ann"), (Role.AGENT, "slurm/pod/1/x/0/y"), (None, "user/ann")],
    ids=["an admin", "an agent, whose scheduler has limits of its own", "a log of before"],
)
def test_others_than_users_have_no_quota(role: Role | None, owner: str) -> None:
    site = Site(Policy(waiting_max=1))
    assert site.take(ask("a", role=role, owner=owner), ask("b", role=role, owner=owner)) == ["PENDING", "PENDING"]


def test_a_policy_of_before_has_no_quota() -> None:
    assert Site(Policy()).take(*map(ask, "abcdef")) == ["PENDING"] * 6


def test_a_project_s_quota_counts_its_parts_and_everybody() -> None:
    site = Site(Policy())
    site.take(SetProject(Project(name="lab", waiting_max=3), None), SetProject(Project(name="lab/a"), None))
    agent = ask("a", role=Role.AGENT, project="lab", owner="slurm/pod/1/x/0/y")
    assert site.take(agent, ask("b", project="lab/a"), ask("c", project="lab", subject="bob")) == ["PENDING"] * 3
    assert site.take(ask("d", project="lab/a"), ask("e", project="default")) == ["quota.waiting", "PENDING"]
    assert site.take(ask("f", project="lab", role=Role.ADMIN)) == ["PENDING"]


def test_a_refusal_says_the_limit_what_waits_and_who_can_change_it() -> None:
    claim = BacklogEntry(Role.USER, "ann", "x", "claims")
    with pytest.raises(MooringsError) as caught:
        check_backlog_limits(claim, Amount(7), Backlog().for_project, LAB, Policy(waiting_max=7))
    assert caught.value.code == "quota.waiting"
    assert caught.value.detail == "what ann has waiting is 7 claims, and may be 7"
    assert caught.value.hint.endswith("an admin can raise waiting_max in the policy file")
    run = BacklogEntry(Role.USER, "ann", "lab/a", "runs", 30)
    with pytest.raises(MooringsError) as caught:
        check_backlog_limits(run, Amount(), lambda _: Amount(1, 80), LAB, Policy())
    assert caught.value.detail == "what waits in project lab/a is 80 bytes of jobs; with 30 more it is above 100"
    assert caught.value.hint.endswith("an admin can raise waiting_bytes_max of project lab/a")


@cases(
    ("waits", "more", "refused"),
    [(60, 40, False), (60, 41, True), (0, 101, True), (200, 0, False)],
    ids=["up to the limit", "above it", "one that is too large alone", "a claim has no job"],
)
def test_bytes_are_counted_with_those_of_the_new_one(waits: int, more: int, refused: bool) -> None:
    asked = BacklogEntry(Role.USER, "ann", "x", "runs", more)
    with pytest.raises(MooringsError, match="above 100") if refused else nullcontext():
        check_backlog_limits(asked, Amount(1, waits), Backlog().for_project, Projects(), Policy(waiting_bytes_max=100))


Waiting = Sequence[tuple[str, str, Amount]]
AMOUNTS = st.builds(Amount, st.integers(1, 9), st.integers(0, 9))
WAITING = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["p", "p/q", "p/q/r", "s"]), AMOUNTS), max_size=8)


@given(WAITING, WAITING)
def test_what_came_and_went_leaves_what_stays(stays: Waiting, goes: Waiting) -> None:
    backlog, alone = Backlog(), Backlog()
    for one in goes:
        backlog.add(*one)
    for one in stays:
        backlog.add(*one)
        alone.add(*one)
    for subject, project, amount in reversed(goes):
        backlog.add(subject, project, -amount)
    assert backlog == alone
    assert backlog.for_project("p") == sum((amount for _, name, amount in stays if name[0] == "p"), Amount())
    assert backlog.for_subject("a") == sum((amount for name, _, amount in stays if name == "a"), Amount())


def test_the_counts_are_those_of_what_waits_when_a_fleet_is_read_again() -> None:
    site = Site(Policy())
    site.take(*map(ask, "abc"), ReleaseClaim(ClaimId("b"), "over"))
    again = Fleet.load([POD], site.fleet.claims.values(), site.fleet.partitions.values(), ())
    assert again.backlog == site.fleet.backlog
    assert {claim.state for claim in again.claims.values()} >= {ClaimState.PENDING, ClaimState.GRANTED}
