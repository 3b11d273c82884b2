"""Law 7: nobody starves. Who waits first is told when its turn comes, and nobody who came later delays that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorings.core.model.claims import Claim, ClaimId, ClaimState
from moorings.core.model.devices import PoolName
from moorings.core.model.driver_results import DriverResult, ObservedState, ResultCode
from moorings.core.model.inputs import CreateClaim, DriverResultReceived, Input, ReleaseClaim
from moorings.core.model.partitions import PartitionState
from moorings.core.model.policy import Policy
from moorings.core.model.timestamps import SECOND, Timestamp, add_seconds
from moorings.core.model.topology import AnySubset, Block, Catalogue, Pool, PowerOfTwo, Topology
from moorings.core.placement.free_map import NO_RELEASE
from tests.sampling import examples
from tests.unit.core.worlds import World

MAKING_S = 2  # a partition is asked for in one turn, and there in the next
SLACK_S = 3  # a release, a removal and a grant take a turn each, of a second
BACKFILL = Policy(making_s=MAKING_S)
TOPOLOGIES: tuple[Topology, ...] = (
    PowerOfTwo(2, 8, 16),
    PowerOfTwo(3, 4, 8),
    AnySubset(10, 8),
    Catalogue(12, tuple(Block(range(s, s + n)) for n in (1, 2, 3, 6, 12) for s in range(0, 12, n))),
    Catalogue(7, (*(Block.single(i) for i in range(7)), *map(Block, ((0, 2), (1, 3), (2, 4, 6), (0, 1, 5, 6))))),
)


class Site(World):
    """A world whose hardware does as it is told, and whose jobs end at their limits."""

    def __init__(self, topology: Topology, policy: Policy = BACKFILL) -> None:
        super().__init__(Pool(PoolName("pool"), "ipu", "simulated", topology), policy=policy)
        self.sizes = tuple(topology.sizes)
        self.promised: dict[ClaimId, Timestamp] = {}

    def asks_for(self, size: int, limit_s: float | None, priority: int = 0) -> CreateClaim:
        owner = f"local/run-{self.n_created}"
        gcds = size  # enough for any domains
        return self.asks(size, gcds=gcds, time_limit_s=limit_s, owner=owner, priority=priority)

    def go_on(self) -> list[Input]:
        said: list[Input] = []
        for partition in self.fleet.partitions.values():
            creates = partition.state is PartitionState.PROVISIONING
            if creates or partition.state is PartitionState.REMOVING:
                answer = DriverResult(ResultCode.OK, ObservedState.ACTIVE if creates else ObservedState.ABSENT)
                order = "create" if creates else "remove"
                said.append(DriverResultReceived(partition.id, partition.version, order, answer))
        for claim in self.fleet.claims.values():
            limit_s = claim.spec.time_limit_s
            if claim.state is not ClaimState.READY or claim.ready_at is None or limit_s is None:
                continue
            if add_seconds(claim.ready_at, limit_s) <= self.now + SECOND:
                said.append(ReleaseClaim(claim.id, "its time is over"))
        return said

    def second(self, *inputs: Input) -> None:
        """A turn; who is told an instant starts by then."""
        self.step(*inputs, *self.go_on())
        for kept in self.fleet.reserved_blocks:
            if 0 < kept.until < NO_RELEASE:
                self.promised.setdefault(kept.claim, kept.until)
        for ident, until in self.promised.items():
            claim = self.claim(ident)
            if claim.state is ClaimState.PENDING:
                assert self.now <= until + SLACK_S * SECOND, f"{ident} was told {until}"

    @property
    def waiting(self) -> list[Claim]:
        return list(self.fleet.pending_claims())


limits = st.sampled_from([None, 1.0, 2.0, 4.0, 7.0, 12.0, 20.0])
happenings = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 100), limits),
        st.tuples(st.just("ask"), st.integers(0, 100), limits),
        st.tuples(st.just("end"), st.integers(0, 100), st.none()),
        st.tuples(st.just("pass"), st.integers(1, 6), st.none()),
    ),
    max_size=50,
)


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=repr)
@pytest.mark.parametrize("policy", [BACKFILL, replace(BACKFILL, backfill=False)], ids=["backfill", "none"])
@settings(max_examples=examples(50), deadline=None)
@given(happenings)
def test_who_was_told_an_instant_starts_by_then(
    topology: Topology, policy: Policy, given: list[tuple[str, int, float | None]]
) -> None:
    """All are equals, so who comes later comes after; jobs without a limit end when they please."""
    site = Site(topology, policy)
    for what, number, limit_s in given:
        if what == "ask":
            site.second(site.asks_for(site.sizes[number % len(site.sizes)], limit_s))
        elif what == "end":
            endless = [c.id for c in site.fleet.claims.values() if c.state is ClaimState.READY and not limit_of(c)]
            site.second(
                *(ReleaseClaim(ident, "done") for ident in sorted(endless)[number % max(1, len(endless)) :][:1])
            )
        else:
            for _ in range(number):
                site.second()
    for _ in range(600):  # all jobs end some time
        if not site.waiting:
            break
        endless = sorted(c.id for c in site.fleet.claims.values() if c.state is ClaimState.READY and not limit_of(c))
        site.second(*(ReleaseClaim(ident, "done") for ident in endless[:1]))
    assert not site.waiting


def limit_of(claim: Claim) -> float | None:
    return claim.spec.time_limit_s


def crowd(site: Site, limits_s: Sequence[float], seconds: int, wanted: ClaimId | None = None) -> bool:
    """A stream of small claims, more than there is room for; whether the claim has started."""
    for _ in range(seconds):
        many = max(0, 6 - len(site.waiting))
        site.second(*(site.asks_for(1, limits_s[(site.n_created + at) % len(limits_s)]) for at in range(many)))
        if wanted is not None and site.claim(wanted).state is not ClaimState.PENDING:
            return True
    return False


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=repr)
@pytest.mark.parametrize("backfill", [True, False])
@pytest.mark.parametrize("limits_s", [(3.0,), (2.0, 9.0, 5.0)])
def test_a_large_claim_does_not_starve_in_a_stream_of_small_ones(
    topology: Topology, backfill: bool, limits_s: tuple[float, ...]
) -> None:
    site = Site(topology, replace(BACKFILL, backfill=backfill))
    crowd(site, limits_s, 30)
    large = site.asks_for(site.sizes[-1], 5.0)
    ahead = len(site.waiting)
    site.second(large)
    assert crowd(site, limits_s, round((max(limits_s) + MAKING_S + SLACK_S) * (1 + ahead)), large.id)


@pytest.mark.parametrize("topology", [TOPOLOGIES[0], TOPOLOGIES[2], TOPOLOGIES[3]], ids=repr)
def test_without_a_reservation_it_would_starve(topology: Topology) -> None:
    """So the stream above is one that can starve somebody."""
    site = Site(topology, replace(BACKFILL, reserve=False))
    crowd(site, (2.0, 9.0, 5.0), 30)
    large = site.asks_for(site.sizes[-1], 5.0)
    site.second(large)
    assert not crowd(site, (2.0, 9.0, 5.0), 200, large.id)


def test_what_is_kept_is_used_meanwhile_by_those_that_end_before() -> None:
    site = Site(TOPOLOGIES[0])
    held = site.asks_for(8, 30.0)
    site.second(held)
    large = site.asks_for(16, 5.0)
    site.second(large)
    short, long = site.asks_for(8, 10.0), site.asks_for(8, 40.0)
    site.second(long)
    site.second(short)
    assert site.claim(short.id).state is ClaimState.GRANTED
    assert site.claim(long.id).state is ClaimState.PENDING
    for _ in range(45):
        site.second()
    assert site.claim(large.id).is_ended
    assert site.claim(short.id).is_ended


def test_a_limit_just_as_long_as_what_is_left_is_not_short_enough() -> None:
    """A partition takes time to make: whose limit ends with the window would end after it."""
    site = Site(TOPOLOGIES[0])
    held = site.asks_for(8, 30.0)
    site.second(held)
    site.second(site.asks_for(16, 5.0))
    [kept] = site.fleet.reserved_blocks
    left_s = (kept.until - site.now) / SECOND - 1  # in the next turn
    exact, shorter = site.asks_for(8, left_s), site.asks_for(8, left_s - MAKING_S)
    site.second(exact, shorter)
    assert site.claim(exact.id).state is ClaimState.PENDING
    assert site.claim(shorter.id).state is ClaimState.GRANTED


def test_a_higher_priority_may_go_first() -> None:
    """Only those that come later, of the same priority, may not delay it: an admin's choice is another matter."""
    site = Site(TOPOLOGIES[0])
    site.second(site.asks_for(16, 10.0))
    first, urgent = site.asks_for(16, 5.0), site.asks_for(16, 5.0, priority=1)
    site.second(first)
    site.promised.clear()
    site.second(urgent)
    site.promised.pop(first.id, None)
    for _ in range(16):
        site.second()
    assert site.claim(urgent.id).partition is not None
    assert site.claim(first.id).state is ClaimState.PENDING
