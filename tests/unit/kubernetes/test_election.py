"""The election: two never lead at the same time, whatever is slow, lost or stopped; and somebody does lead."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp
from moorings.kubernetes.kube.api import KubeApi, KubeError
from moorings.kubernetes.kube.election import (
    Elector,
    LeaseDecision,
    LeaseRecord,
    LeaseTimes,
    ObservedLease,
    build_released,
    build_spec,
    decide_lease,
    observe_lease,
    parse_lease,
)
from tests.sampling import examples

TERMS = LeaseTimes()
NOON = Timestamp(1_767_225_600_000_000)
RECORD = LeaseRecord(holder="other", lease_s=15.0, acquired="2026-01-01T00:00:00.000000Z", transitions=3, version="7")


def lease(spec, version="8"):
    return {"metadata": {"namespace": "n", "name": "l", "resourceVersion": version}, "spec": spec}


# -- deciding ------------------------------------------------------------------------------------------------------


def test_a_lease_is_over_when_we_saw_it_unchanged_for_its_length():
    assert decide_lease(ObservedLease(RECORD, 100), "me", 115, TERMS) is LeaseDecision.WAIT
    assert decide_lease(ObservedLease(RECORD, 100), "me", 115.1, TERMS) is LeaseDecision.TAKE


def test_the_length_that_the_holder_was_promised_counts_not_ours():
    assert decide_lease(ObservedLease(replace(RECORD, lease_s=60), 100), "me", 150, TERMS) is LeaseDecision.WAIT
    assert decide_lease(ObservedLease(replace(RECORD, lease_s=0), 100), "me", 114, TERMS) is LeaseDecision.WAIT
    assert decide_lease(ObservedLease(replace(RECORD, lease_s=0), 100), "me", 116, TERMS) is LeaseDecision.TAKE


@pytest.mark.parametrize("holder", ["", "me"])
def test_a_lease_of_nobody_and_our_own_are_taken_at_once(holder):
    assert decide_lease(ObservedLease(replace(RECORD, holder=holder), 100), "me", 100, TERMS) is LeaseDecision.TAKE


def test_any_change_begins_the_wait_anew_and_no_change_does_not():
    seen = observe_lease(None, RECORD, 100)
    assert observe_lease(seen, RECORD, 110) is seen
    assert observe_lease(seen, replace(RECORD, version="8"), 110) == ObservedLease(replace(RECORD, version="8"), 110)


def test_a_renewal_keeps_since_when_it_is_ours_and_taking_it_counts():
    taken = parse_lease(lease(build_spec("me", RECORD, TERMS, NOON)))
    assert (taken.holder, taken.transitions, taken.acquired) == ("me", 4, "2026-01-01T00:00:00.000000Z")
    renewed = build_spec("me", taken, TERMS, Timestamp(NOON + 2_000_000))
    assert renewed == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:02.000000Z",
        "leaseTransitions": 4,
    }
    assert build_spec("me", None, TERMS, NOON)["leaseTransitions"] == 0


def test_a_lease_given_back_is_nobodys_and_keeps_its_count():
    record = parse_lease(lease(build_released(RECORD, NOON)))
    assert (record.holder, record.transitions) == ("", 3)
    assert decide_lease(ObservedLease(record, 0), "me", 0, TERMS) is LeaseDecision.TAKE
    assert build_spec("me", record, TERMS, NOON)["leaseTransitions"] == 4


def test_a_lease_that_somebody_made_by_hand_can_be_read():
    assert parse_lease({"metadata": {"resourceVersion": "1"}}) == LeaseRecord(
        holder="", lease_s=0.0, acquired="", transitions=0, version="1"
    )


@pytest.mark.parametrize("times", [(10, 10, 2), (15, 2, 2), (15, 10, 0), (15, 2.3, 2)])
def test_times_that_cannot_work_are_refused(times):
    with pytest.raises(MooringsError) as caught:
        LeaseTimes(lease_s=times[0], renew_s=times[1], retry_s=times[2])
    assert caught.value.code == "kubernetes.terms_invalid"


# -- several candidates in virtual time ----------------------------------------------------------------------------


class World:
    """One Lease with the API server's rules; each call takes time, in which others act, and answers get lost."""

    def __init__(self, data: st.DataObject, count: int) -> None:
        self.data = data
        self.now = 1000.0
        self.lease: dict | None = None
        self.version = 0
        self.depth = 0
        self.electors = [self.candidate(number) for number in range(count)]

    def candidate(self, number: int) -> Elector:
        kube = cast("KubeApi", self)  # as much of it as an election needs
        apart = 1e6 * number  # nobody's clock shows what another's does
        return Elector(
            kube, "n", "l", f"e{number}", TERMS, boot_clock=lambda: self.now + apart, wall_clock=lambda: NOON
        )

    def check(self) -> None:
        leading = [one.identity for one in self.electors if one.is_leading()]
        assert len(leading) <= 1, leading

    async def pass_time(self) -> None:
        self.now += self.data.draw(st.sampled_from([0.0, 0.1, 2.0, 4.9, 9.0, 16.0]))
        self.check()
        if self.depth < 3 and self.data.draw(st.booleans()):
            self.depth += 1
            await self.data.draw(st.sampled_from(self.electors))._try_acquire_or_renew()
            self.depth -= 1
        self.check()

    async def answer(self, found: dict) -> dict:
        await self.pass_time()
        if self.data.draw(st.integers(0, 5)) == 0:
            raise KubeError(0, "Timeout", "the answer is lost")
        return found

    async def get(self, kind, name, namespace=None):
        await self.pass_time()
        if self.lease is None:
            raise KubeError(404, "NotFound", "none")
        return await self.answer(copy.deepcopy(self.lease))

    async def create(self, kind, body, namespace=None):
        await self.pass_time()
        if self.lease is not None:
            raise KubeError(409, "AlreadyExists", "there is one")
        return await self.answer(self.write(body))

    async def replace(self, kind, body, namespace=None):
        await self.pass_time()
        if self.lease is None:
            raise KubeError(404, "NotFound", "none")
        if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise KubeError(409, "Conflict", "somebody was quicker")
        return await self.answer(self.write(body))

    def write(self, body: dict) -> dict:
        self.version += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        self.check()
        return copy.deepcopy(self.lease)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_two_never_lead_at_the_same_time(data):
    async def story() -> None:
        world = World(data, 3)
        for _ in range(data.draw(st.integers(1, 15))):
            one = data.draw(st.sampled_from(world.electors))
            if data.draw(st.integers(0, 5)) == 0:
                await one._release()
            else:
                await one._try_acquire_or_renew()
            await world.pass_time()

    asyncio.run(story())


class Calm(World):
    """Nothing is slow or lost."""

    def __init__(self, count: int) -> None:
        self.data = None  # type: ignore[assignment]
        super().__init__(None, count)  # type: ignore[arg-type]

    async def pass_time(self) -> None:
        self.check()

    async def answer(self, found: dict) -> dict:
        return found


async def test_a_dead_leader_is_followed_after_the_lease_and_one_that_stops_at_once():
    world = Calm(2)
    first, second = world.electors
    assert await first._try_acquire_or_renew()
    assert not await second._try_acquire_or_renew()
    world.now += 14.9
    assert not first.is_leading(), "it stopped believing long before"
    assert not await second._try_acquire_or_renew()
    world.now += 0.2
    assert await second._try_acquire_or_renew()
    assert world.lease is not None
    assert world.lease["spec"]["leaseTransitions"] == 1
    await second._release()
    assert not second.is_leading()
    assert await first._try_acquire_or_renew(), "it need not wait"
    assert world.lease["spec"]["leaseTransitions"] == 2


async def test_who_renews_leads_on_and_who_cannot_stops_in_time():
    world = Calm(2)
    first, second = world.electors
    assert await first._try_acquire_or_renew()
    for _ in range(20):
        world.now += 2
        assert await first._try_acquire_or_renew()
        assert not await second._try_acquire_or_renew()
    world.now += 9.9
    assert first.is_leading()
    world.now += 0.2
    assert not first.is_leading()


async def test_a_lease_that_was_deleted_is_made_again():
    world = Calm(1)
    one = world.electors[0]
    assert await one._try_acquire_or_renew()
    world.lease = None
    assert not await one._try_acquire_or_renew()
    assert await one._try_acquire_or_renew()
