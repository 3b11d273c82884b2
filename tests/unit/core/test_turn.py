"""The life of claims and partitions, turn by turn: the laws hold whatever comes in, in whatever order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from moorings.core.model.claims import Claim, ClaimState, PartitionId, QueueMode
from moorings.core.model.devices import DeviceState, PoolName
from moorings.core.model.driver_results import DriverResult, ObservedState, ResultCode
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import (
    CancelPendingClaim,
    DrainDevice,
    DriverResultReceived,
    ForeignPartitionsListed,
    Input,
    PoolReachability,
    ReleaseClaim,
    RenewClaim,
    ResetPartition,
    ResumeDevice,
    RetryRemoval,
)
from moorings.core.model.partitions import PartitionState
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.core.model.topology import AnySubset, Block, Pool, PowerOfTwo
from moorings.core.placement.free_map import NO_RELEASE
from moorings.core.scheduling.explain import explain_wait
from moorings.core.scheduling.turn import HANDLERS
from tests.cases import cases
from tests.sampling import examples
from tests.unit.core.worlds import CROSS, CROSS2, POD, POOLS, RACK, World

# -- the table of handlers -------------------------------------------------------------------------------------------


def test_every_input_has_a_handler_that_takes_it() -> None:
    assert set(HANDLERS) == set(get_args(Input))
    assert {get_type_hints(handle)["given"]: handle for handle in HANDLERS.values()} == HANDLERS


# -- one claim's life -----------------------------------------------------------------------------------------------


def test_a_claim_from_wish_to_release() -> None:
    world = World(POD)
    claim = world.create(4, gcds=2)
    assert claim.state is ClaimState.GRANTED
    partition = world.partition(claim)
    assert (partition.state, str(partition.block), partition.name) == (PartitionState.PROVISIONING, "0-3", claim.id)
    world.says(partition, ObservedState.ACTIVE)
    assert world.claim(claim.id).state is ClaimState.READY
    world.step(ReleaseClaim(claim.id, "done"))
    assert world.claim(claim.id).state is ClaimState.RELEASING
    assert world.fleet.pools[POD.name].free.n_free == 12, "the devices are not free while the driver may have them"
    world.says(world.fleet.partitions[partition.id], ObservedState.ABSENT, order="remove")
    assert world.claim(claim.id).state is ClaimState.RELEASED
    assert world.fleet.pools[POD.name].free.n_free == 16
    told = [name for name in world.names() if name != "turn.decided"]
    assert told == [
        "claim.created",
        "claim.granted",
        "partition.active",
        "claim.ready",
        "claim.releasing",
        "partition.removed",
        "claim.released",
    ]


def test_a_pending_claim_that_is_cancelled_never_held_anything() -> None:
    world = World(POD)
    world.ready(16, gcds=2)
    waiting = world.create(1)
    assert waiting.state is ClaimState.PENDING
    world.step(ReleaseClaim(waiting.id, "changed my mind"))
    assert world.claim(waiting.id).state is ClaimState.CANCELLED


def test_a_claim_that_waits_can_be_withdrawn() -> None:
    world = World(POD)
    world.ready(16, gcds=2)
    waiting = world.create(1)
    world.step(CancelPendingClaim(waiting.id, "another one was served"))
    assert world.claim(waiting.id).state is ClaimState.CANCELLED
    (again,) = world.step(CancelPendingClaim(waiting.id, "another one was served"))
    assert again is None, "it has ended, and the fleet knows it no more"


@pytest.mark.parametrize("ready", [False, True])
def test_a_claim_that_was_granted_meanwhile_is_not_withdrawn(ready: bool) -> None:
    """Law 3: who withdraws does not know yet that it holds a partition."""
    world = World(POD)
    claim = world.ready(4) if ready else world.create(4)
    before = world.claim(claim.id)
    (refused,) = world.step(CancelPendingClaim(claim.id, "another one was served"))
    assert isinstance(refused, MooringsError)
    assert refused.code == "claim.held"
    assert world.claim(claim.id) == before
    assert world.partition(claim).state is not PartitionState.REMOVING


def test_of_a_grant_and_a_withdrawal_in_one_turn_the_withdrawal_comes_first() -> None:
    world = World(POD)
    held = world.ready(16, gcds=2)
    waiting = world.create(16, gcds=2)
    world.step(ReleaseClaim(held.id, "done"))
    gone = DriverResultReceived(
        world.partition(held).id,
        world.partition(held).version,
        "remove",
        DriverResult(ResultCode.OK, ObservedState.ABSENT),
    )
    world.step(gone, CancelPendingClaim(waiting.id, "another one was served"))
    assert world.claim(waiting.id).state is ClaimState.CANCELLED
    assert world.fleet.pools[POD.name].free.n_free == 16


def test_withdrawing_what_is_released_already_changes_nothing() -> None:
    world = World(POD)
    claim = world.ready(4)
    world.step(ReleaseClaim(claim.id, "done"))
    (answer,) = world.step(CancelPendingClaim(claim.id, "another one was served"))
    assert isinstance(answer, Claim)
    assert answer.state is ClaimState.RELEASING


@pytest.mark.parametrize("seen", [s for s in ObservedState if s not in (ObservedState.ACTIVE, ObservedState.ERROR)])
def test_nothing_but_active_makes_a_claim_ready(seen: ObservedState) -> None:
    """Law 4: an unknown vendor state is not ready (and not broken either)."""
    world = World(POD)
    claim = world.create(4)
    world.says(world.partition(claim), seen)
    assert world.claim(claim.id).state is ClaimState.GRANTED


def test_a_lost_answer_changes_nothing() -> None:
    world = World(POD)
    claim = world.create(4)
    world.says(world.partition(claim), ObservedState.ACTIVE, ResultCode.UNAVAILABLE, order="create")
    assert world.claim(claim.id).state is ClaimState.GRANTED


def test_a_rejected_claim_fails_with_the_driver_s_words_and_leaves_nothing() -> None:
    world = World(POD)
    claim = world.create(4)
    partition = world.partition(claim)
    world.says(partition, ObservedState.UNKNOWN, ResultCode.REJECTED, order="create")
    failed = world.claim(claim.id)
    assert failed.state is ClaimState.FAILED
    assert failed.reason is not None
    assert "so it says" in failed.reason.message
    world.says(world.fleet.partitions[partition.id], ObservedState.ABSENT, order="remove")
    assert world.fleet.pools[POD.name].free.n_free == 16


def test_a_block_that_breaks_is_quarantined_and_the_claim_gets_another_at_once() -> None:
    world = World(POD)
    claim = world.create(4)
    world.says(world.partition(claim), ObservedState.ERROR)
    again = world.claim(claim.id)
    assert again.state is ClaimState.GRANTED
    assert (again.attempt, again.broken) == (1, 1)
    assert str(world.partition(claim).block) == "4-7"
    assert world.partition(claim).name == f"{claim.id}-1"
    assert {d.state for d in world.devices.values()} == {DeviceState.QUARANTINED}
    assert again.arrival == claim.arrival, "it keeps its place"


def test_three_broken_blocks_fail_the_claim() -> None:
    world = World(POD)
    claim = world.create(1)
    for _ in range(3):
        assert world.claim(claim.id).state is ClaimState.GRANTED
        world.says(world.partition(claim), ObservedState.ERROR)
    assert world.claim(claim.id).state is ClaimState.FAILED
    assert sum(d.state is DeviceState.QUARANTINED for d in world.devices.values()) == 3


def test_a_partition_that_vanishes_under_a_job_is_lost_and_its_devices_wait_for_the_job() -> None:
    world = World(POD)
    claim = world.ready(4)
    partition = world.partition(claim)
    world.says(partition, ObservedState.ABSENT)
    assert world.claim(claim.id).state is ClaimState.LOST
    assert world.fleet.pools[POD.name].free.n_free == 12, "law 3: a live job's devices are nobody else's"
    world.step(ReleaseClaim(claim.id, "job ended"))
    world.says(world.fleet.partitions[partition.id], ObservedState.ABSENT, order="remove")
    assert world.claim(claim.id).state is ClaimState.RELEASED
    assert world.fleet.pools[POD.name].free.n_free == 16


def test_a_partition_that_cannot_be_removed_drains_its_devices_and_lets_the_claim_go() -> None:
    world = World(POD)
    claim = world.ready(4)
    partition = world.partition(claim)
    world.step(ReleaseClaim(claim.id, "done"))
    world.says(world.fleet.partitions[partition.id], ObservedState.UNKNOWN, ResultCode.BROKEN, order="remove")
    assert world.claim(claim.id).state is ClaimState.RELEASED, "a job's end does not wait for ever on the vendor"
    assert {d.state for d in world.devices.values()} == {DeviceState.DRAINED}
    world.step(RetryRemoval(partition.id))
    world.says(world.fleet.partitions[partition.id], ObservedState.ABSENT, order="remove")
    assert partition.id not in world.fleet.partitions
    assert world.fleet.pools[POD.name].free.n_free == 12, "drained, not reused"
    world.step(*(ResumeDevice(POD.name, index) for index in range(4)))
    assert world.fleet.pools[POD.name].free.n_free == 16


def test_a_late_answer_to_an_overtaken_order_is_dropped() -> None:
    world = World(POD)
    claim = world.create(4)
    partition = world.partition(claim)
    world.step(ReleaseClaim(claim.id, "changed my mind"))
    world.says(world.fleet.partitions[partition.id], ObservedState.ABSENT, order="create")
    assert world.claim(claim.id).state is ClaimState.RELEASING, "only the answer to a removal frees the devices"


def test_reset() -> None:
    world = World(POD)
    claim = world.ready(4)
    partition = world.partition(claim)
    world.step(ResetPartition(partition.id))
    partition = world.partition(claim)
    assert partition.state is PartitionState.RESETTING
    refused = world.step(ResetPartition(PartitionId("nobody")))[0]
    assert isinstance(refused, MooringsError)
    assert refused.code == "partition.unknown"
    world.says(partition, ObservedState.ACTIVE, order="reset")
    assert world.partition(claim).state is PartitionState.ACTIVE
    assert world.claim(claim.id).state is ClaimState.READY


def test_a_claim_for_no_devices_holds_only_resources() -> None:
    world = World(CROSS)
    first = world.create(0, "gpu", resources={"memory": 60})
    second = world.create(0, "gpu", resources={"memory": 60})
    assert (first.state, second.state) == (ClaimState.READY, ClaimState.PENDING)
    assert explain_wait(world.fleet, second, world.now).reasons[-1].code == "pool.resource_short"
    world.step(ReleaseClaim(first.id, "done"))
    assert world.claim(first.id).state is ClaimState.RELEASED
    assert world.claim(second.id).state is ClaimState.READY


def test_a_lease_that_is_not_renewed_lapses_and_one_that_is_does_not() -> None:
    world = World(POD)
    claim = world.ready(4, lease_s=10.0)
    world.now = Timestamp(world.now + 8 * SECOND)
    world.step(RenewClaim(claim.id))
    world.now = Timestamp(world.now + 8 * SECOND)
    world.step()
    assert world.claim(claim.id).state is ClaimState.READY
    world.now = Timestamp(world.now + 8 * SECOND)
    world.step()
    assert world.claim(claim.id).state is ClaimState.RELEASING
    assert "claim.lapsed" in world.names()


def test_names_are_unique_among_the_living() -> None:
    world = World(POD)
    world.create(1, name="bert")
    refused = world.step(world.asks(1, name="bert"))[0]
    assert isinstance(refused, MooringsError)
    assert refused.code == "claim.name_taken"


def test_a_retry_s_partition_never_takes_the_name_of_another() -> None:
    """Law 5: ``<name>-1`` may belong to somebody; then the next free number is taken; 36 characters always suffice."""
    world = World(POD)
    long_name = "x" * 36
    first = world.create(1, name=long_name)
    other = world.create(1, name="x" * 34 + "-1")
    world.says(world.partition(first), ObservedState.ERROR)
    assert world.partition(other).name == "x" * 34 + "-1"
    assert world.partition(first).name == "x" * 34 + "-2"


# -- room, refusals, the queue --------------------------------------------------------------------------------------


@cases(
    ("size", "more", "code", "hint"),
    [
        (3, {}, "claim.size_not_allowed", "2 or 4"),
        (24, {}, "claim.size_not_allowed", "16"),
        (32, {"gcds": 32}, "claim.too_large", "16 or fewer"),
        (1 << 19, {}, "claim.too_large", "16 or fewer"),
        (16, {"gcds": 1}, "claim.gcds_too_few", "2 GCDs"),
        (4, {"pool": "nowhere"}, "pool.unknown", "pod"),
        (4, {"kind": "tpu"}, "kind.unknown", "csx, gpu, ipu"),
        (4, {"kind": "gpu", "pool": "pod"}, "kind.unknown", "ipu"),
        (4, {"kind": "csx"}, "claim.size_not_allowed", "1, 2, 3, 6"),
        (7, {"kind": "gpu"}, "claim.too_large", "6 or fewer"),
        (1, {"kind": "gpu", "resources": {"memory": 101}}, "claim.too_large", ""),
    ],
)
def test_what_no_pool_could_ever_serve_is_refused_at_once_with_a_hint(
    size: int, more: dict[str, Any], code: str, hint: str
) -> None:
    world = World(*POOLS)
    refusal = world.step(world.asks(size, str(more.pop("kind", "ipu")), **more))[0]
    assert isinstance(refusal, MooringsError)
    assert refusal.code == code
    assert hint in refusal.hint
    assert world.log == []


def test_who_will_not_wait_is_refused_when_there_is_no_room_and_leaves_no_trace() -> None:
    world = World(POD)
    world.ready(16, gcds=2)
    n_events = len(world.log)
    refusal = world.step(world.asks(2, queue=QueueMode.NEVER))[0]
    assert isinstance(refusal, MooringsError)
    assert (refusal.code, refusal.retryable) == ("claim.no_room", True)
    assert not world.fleet.queue
    assert len(world.log) == n_events


def test_priority_then_arrival() -> None:
    world = World(POD)
    holder = world.ready(16, gcds=2)
    low, high, late_high = world.create(8), world.create(8, priority=5), world.create(8, priority=5)
    world.end(holder)
    granted = {c.id for c in (low, high, late_high) if world.claim(c.id).state is ClaimState.GRANTED}
    assert granted == {high.id, late_high.id}


def test_a_large_claim_is_not_starved_by_small_ones() -> None:
    """Law 7: it gets a reservation, and those that come later may only use what is not kept for it."""
    world = World(POD)
    small = [world.ready(1) for _ in range(8)]
    large = world.create(16, gcds=2)
    assert large.state is ClaimState.PENDING
    late = world.create(1)
    assert late.state is ClaimState.PENDING, "all that is free is kept for the large one"
    reason = explain_wait(world.fleet, late, world.now).reasons[0]
    assert (reason.code, reason.blockers) == ("queue.kept_for_other", (large.id,))
    for claim in small:
        world.end(claim)
    assert world.claim(large.id).state is ClaimState.GRANTED


def test_a_reserved_block_is_not_one_with_a_broken_device() -> None:
    world = World(Pool(PoolName("two"), "ipu", "simulated", PowerOfTwo(2, 4, 4)))
    world.step(DrainDevice(PoolName("two"), 0, "smells burnt"))
    for _ in range(5):
        world.ready(1)
    world.create(4)
    (kept,) = world.fleet.reserved_blocks
    assert str(kept.block) == "4-7"


def test_explain_says_who_holds_the_reserved_block_and_until_when() -> None:
    world = World(POD)
    first = world.ready(8, time_limit_s=600.0)
    second = world.ready(8)
    waiting = world.create(8)
    wait = explain_wait(world.fleet, waiting, world.now)
    assert wait.position == 1
    assert wait.reasons[0].blockers == (first.id,)
    assert wait.reasons[0].until == first.ready_at + 600 * SECOND  # type: ignore[operator]
    assert "0 of 16 free" in wait.reasons[1].message
    world.end(first)
    assert world.claim(waiting.id).state is ClaimState.GRANTED
    assert world.claim(second.id).state is ClaimState.READY


def test_explain_fragmentation() -> None:
    world = World(Pool(PoolName("pod16"), "ipu", "simulated", PowerOfTwo(1, 16, 16)))
    claims = [world.ready(4) for _ in range(4)]
    world.end(claims[0])
    world.end(claims[2])
    waiting = world.create(8)
    reasons = explain_wait(world.fleet, waiting, world.now).reasons
    assert [reason.code for reason in reasons] == ["queue.reserved", "pool.fragmented"]
    assert "8 free, largest block 4" in reasons[1].message
    assert "with 4 devices" in reasons[1].hint


def test_an_unreachable_pool_gets_nothing_new_and_says_so() -> None:
    world = World(POD)
    world.step(PoolReachability(POD.name, "connection refused"))
    waiting = world.create(2)
    assert explain_wait(world.fleet, waiting, world.now).reasons[0].code == "pool.unreachable"
    world.step(PoolReachability(POD.name, ""))
    assert world.claim(waiting.id).state is ClaimState.GRANTED


def test_devices_in_foreign_partitions_are_not_given_out() -> None:
    world = World(POD)
    world.step(ForeignPartitionsListed(POD.name, {"by-hand": Block(range(8))}))
    claim = world.create(8)
    assert str(world.partition(claim).block) == "8-15"
    waiting = world.create(8)
    assert waiting.state is ClaimState.PENDING
    world.step(ForeignPartitionsListed(POD.name, {}))
    world.step()
    assert world.claim(waiting.id).state is ClaimState.GRANTED


def test_ours_gives_way_to_a_foreign_partition_that_was_there_first() -> None:
    world = World(POD)
    claim = world.create(4)
    ours = world.partition(claim)
    world.step(ForeignPartitionsListed(POD.name, {"by-hand": Block(range(2, 4))}))
    assert world.fleet.partitions[ours.id].state is PartitionState.REMOVING
    assert str(world.partition(claim).block) == "4-7"
    world.says(world.fleet.partitions[ours.id], ObservedState.ABSENT, order="remove")
    assert world.fleet.pools[POD.name].free.n_free == 16 - 4 - 2


def test_a_word_on_a_state_that_has_passed_changes_nothing() -> None:
    world = World(POD)
    claim = world.ready(4)
    before = world.partition(claim)
    gone = DriverResultReceived(before.id, before.version, "list", DriverResult(ResultCode.OK, ObservedState.ABSENT))
    world.step(ReleaseClaim(claim.id, "done"), gone)
    assert world.claim(claim.id).state is ClaimState.RELEASING, "only the answer to a removal frees the devices"
    world.step(replace(gone, version=world.fleet.partitions[before.id].version))
    assert world.claim(claim.id).state is ClaimState.RELEASING, "nor does a listing"


def test_a_listing_from_before_a_reset_does_not_end_it() -> None:
    world = World(POD)
    claim = world.ready(4)
    before = world.partition(claim)
    active = DriverResultReceived(before.id, before.version, "list", DriverResult(ResultCode.OK, ObservedState.ACTIVE))
    world.step(ResetPartition(before.id), active)
    assert world.partition(claim).state is PartitionState.RESETTING


def test_no_lease_runs_while_nobody_could_be_heard() -> None:
    """Law 3: a controller that was down for longer than a lease does not end live claims at its first turn."""
    world = World(POD)
    claim = world.ready(4, lease_s=10.0)
    world.now = world.since = Timestamp(world.now + 3600 * SECOND)
    world.step()
    assert world.claim(claim.id).state is ClaimState.READY
    world.now = Timestamp(world.now + 11 * SECOND)
    world.step()
    assert world.claim(claim.id).state is ClaimState.RELEASING


def test_no_lease_runs_longer_than_was_asked_for_when_the_clock_is_set_back() -> None:
    world = World(POD)
    claim = world.ready(4, lease_s=10.0)
    world.now = Timestamp(world.now - 600 * SECOND)
    world.since = Timestamp(world.now + SECOND)  # the next turn's time
    world.step()
    assert world.claim(claim.id).lease_until == world.now + 10 * SECOND
    assert world.names()[-1] == "claim.renewed"
    world.now = Timestamp(world.now + 8 * SECOND)
    world.step()
    assert world.claim(claim.id).state is ClaimState.READY
    world.now = Timestamp(world.now + 2 * SECOND)
    world.step()
    assert world.claim(claim.id).state is ClaimState.RELEASING


def test_one_that_does_not_fit_for_its_gcds_does_not_hide_one_that_does() -> None:
    """Claims of one size differ in more than size: a shape that fits nowhere says nothing of the others."""
    wide = Pool(PoolName("wide"), "ipu", "simulated", PowerOfTwo(2, 4, 8))
    narrow = Pool(PoolName("narrow"), "ipu", "simulated", PowerOfTwo(1, 8, 8))
    world = World(wide, narrow)
    world.ready(8, gcds=1)  # takes narrow
    assert world.create(8, gcds=1).state is ClaimState.PENDING, "wide needs a GCD in each domain"
    assert world.create(8, gcds=1).state is ClaimState.PENDING
    assert world.create(8, gcds=2).state is ClaimState.GRANTED


def test_resources_follow_a_claim_from_pool_to_pool() -> None:
    one, two = (
        Pool(PoolName(name), "gpu", "simulated", AnySubset(2, 2), (("memory", 100),)) for name in ("one", "two")
    )
    world = World(one, two)
    claim = world.create(2, "gpu", resources={"memory": 60})
    world.says(world.partition(claim), ObservedState.ERROR)
    assert world.claim(claim.id).pool == "two"
    assert {name: state.used_resources.get("memory", 0) for name, state in world.fleet.pools.items()} == {
        "one": 0,
        "two": 60,
    }


def test_one_who_waits_for_memory_alone_does_not_take_the_place_of_one_who_waits_for_devices() -> None:
    world = World(CROSS)
    holder = world.ready(4, kind="gpu", resources={"memory": 100})
    world.create(0, "gpu", resources={"memory": 100})
    large = world.create(6, "gpu")
    late = world.create(1, "gpu")
    assert (large.state, late.state) == (ClaimState.PENDING, ClaimState.PENDING)
    assert [len(kept.block) for kept in world.fleet.reserved_blocks] == [0, 6]
    world.end(holder)
    assert world.claim(large.id).state is ClaimState.GRANTED


def test_of_pools_that_may_never_empty_the_one_with_fewer_devices_held_is_kept() -> None:
    pools = [Pool(PoolName(name), "ipu", "simulated", PowerOfTwo(1, 4, 4)) for name in ("a", "b")]
    world = World(*pools)
    world.ready(4, pool="a")
    for _ in range(3):
        world.ready(1, pool="b")
    world.create(4)
    (kept,) = world.fleet.reserved_blocks
    assert kept.pool == "b"


def test_a_holder_whose_limit_has_passed_in_vain_is_not_the_soonest() -> None:
    pools = [Pool(PoolName("two"), "ipu", "simulated", PowerOfTwo(2, 4, 4))]
    world = World(*pools)
    world.ready(4, time_limit_s=5.0)
    world.ready(4, time_limit_s=600.0)
    world.now = Timestamp(world.now + 60 * SECOND)
    world.create(4)
    (kept,) = world.fleet.reserved_blocks
    assert str(kept.block) == "4-7"


def test_a_foreign_partition_beyond_the_pool_is_clipped() -> None:
    for pool in (POD, CROSS):
        world = World(pool)
        free = world.fleet.pools[pool.name].free.n_free
        world.step(
            ForeignPartitionsListed(
                pool.name, {"by-hand": Block(range(free - 2, free + 2)), "far": Block(range(90, 92))}
            )
        )
        assert world.fleet.pools[pool.name].free.n_free == free - 2
        world.step(ForeignPartitionsListed(pool.name, {}))
        assert world.fleet.pools[pool.name].free.n_free == free


def test_a_name_that_a_foreign_partition_has_is_not_ours() -> None:
    world = World(POD)
    world.step(ForeignPartitionsListed(POD.name, {"bert": Block(range(8, 12))}))
    claim = world.create(1, name="bert")
    assert world.partition(claim).name == "bert-1"


def test_ours_gives_way_to_a_foreign_partition_that_took_its_name() -> None:
    """The vendor takes a name once: waiting for ours to become ACTIVE would be waiting for ever."""
    world = World(POD)
    claim = world.create(4, name="bert")
    ours = world.partition(claim)
    world.step(ForeignPartitionsListed(POD.name, {"bert": Block(range(8, 12))}))
    assert world.fleet.partitions[ours.id].state is PartitionState.REMOVING
    assert (world.partition(claim).name, world.claim(claim.id).state) == ("bert-1", ClaimState.GRANTED)


@pytest.mark.parametrize("ended", [False, True])
def test_a_claim_that_is_released_has_no_lease_to_renew(ended: bool) -> None:
    """Its owner would believe that it still holds what is being removed."""
    world = World(POD)
    claim = world.ready(4, lease_s=10.0)
    partition = world.partition(claim)
    world.step(ReleaseClaim(claim.id, "done"))
    if ended:
        world.says(world.fleet.partitions[partition.id], ObservedState.ABSENT, order="remove")
    (refused,) = world.step(RenewClaim(claim.id))
    assert isinstance(refused, MooringsError)
    assert refused.code == "claim.no_lease"


# -- guards that no other test misses -------------------------------------------------------------------------------


def test_what_is_left_of_a_broken_block_is_removed() -> None:
    world = World(POD)
    claim = world.create(4)
    first = world.partition(claim)
    world.says(first, ObservedState.ERROR)
    assert world.fleet.partitions[first.id].state is PartitionState.REMOVING, "law 2"


def test_a_device_drained_in_a_turn_is_granted_to_nobody_in_it() -> None:
    world = World(POD)
    _, claim = world.step(DrainDevice(POD.name, 0, "smells burnt"), world.asks(1))
    assert isinstance(claim, Claim)
    assert 0 not in world.partition(claim).block


def test_a_device_that_is_resumed_under_a_partition_stays_its() -> None:
    world = World(POD)
    claim = world.ready(1)
    assert list(world.partition(claim).block) == [0]
    world.step(DrainDevice(POD.name, 0, "smells burnt"))
    world.step(ResumeDevice(POD.name, 0))
    assert world.fleet.pools[POD.name].free.n_free == 15


def test_devices_in_foreign_partitions_are_not_given_out_in_the_turn_that_sees_them() -> None:
    world = World(POD)
    _, claim = world.step(ForeignPartitionsListed(POD.name, {"by-hand": Block(range(4))}), world.asks(4))
    assert isinstance(claim, Claim)
    assert str(world.partition(claim).block) == "4-7"


def test_an_answer_to_an_overtaken_order_does_not_end_a_live_job_s_partition() -> None:
    """Law 3: whatever its version says, the answer to a creation is none about a partition that is ACTIVE."""
    world = World(POD)
    claim = world.ready(4)
    world.says(world.partition(claim), ObservedState.ERROR, ResultCode.BROKEN, order="create")
    assert world.partition(claim).state is PartitionState.ACTIVE
    assert world.claim(claim.id).state is ClaimState.READY


def test_a_late_answer_to_the_making_does_not_end_a_reset() -> None:
    """Law 4: until the driver has answered the reset, what runs in it may be the past."""
    world = World(POD)
    claim = world.ready(4)
    world.step(ResetPartition(world.partition(claim).id))
    world.says(world.partition(claim), ObservedState.ACTIVE, order="create")
    assert world.partition(claim).state is PartitionState.RESETTING


def test_no_block_is_kept_that_nobody_s_end_will_free() -> None:
    pool = Pool(PoolName("one"), "ipu", "simulated", PowerOfTwo(1, 4, 4))
    world = World(pool)
    world.step(DrainDevice(pool.name, 0, "smells burnt"))
    assert world.create(4).state is ClaimState.PENDING
    assert world.fleet.reserved_blocks == ()
    assert world.create(1).state is ClaimState.GRANTED, "it would wait behind a block that never empties"


def test_those_who_come_in_one_turn_arrive_one_after_the_other() -> None:
    world = World(POD)
    replies = world.step(*(world.asks(1) for _ in range(3)))
    arrivals = [reply.arrival for reply in replies if isinstance(reply, Claim)]
    assert len(arrivals) == 3
    assert arrivals == sorted(set(arrivals))


def test_of_those_who_come_in_one_turn_the_highest_priority_is_first() -> None:
    world = World(POD)
    low, high = world.asks(16, gcds=2), world.asks(16, gcds=2, priority=5)
    world.step(low, high)
    assert world.claim(high.id).state is ClaimState.GRANTED
    assert world.claim(low.id).state is ClaimState.PENDING


def test_who_will_not_wait_is_told_why_there_is_no_room() -> None:
    world = World(POD)
    world.ready(16, gcds=2)
    (refused,) = world.step(world.asks(4, queue=QueueMode.NEVER))
    assert isinstance(refused, MooringsError)
    assert refused.detail.startswith("no room for 4 devices in pod: 0 of 16 free")
    assert refused.hint


def test_leases_that_ran_out_together_lapse_in_the_order_of_their_claims() -> None:
    world = World(POD)
    long, short = world.ready(1, lease_s=20.0), world.ready(1, lease_s=10.0)
    world.now = Timestamp(world.now + 60 * SECOND)
    world.step()
    assert [event.claim for event in world.log if event.name == "claim.lapsed"] == [long.id, short.id]


def test_a_partition_whose_claim_holds_another_by_now_is_not_free_when_that_claim_s_time_is_up() -> None:
    """Law 9 too: memory, which saw the claim with it, and a reload, which never did, must say the same."""
    world = World(POD)
    claim = world.create(4, time_limit_s=600.0)
    first = world.partition(claim)
    world.says(first, ObservedState.ERROR)
    world.says(world.fleet.partitions[first.id], ObservedState.UNKNOWN, ResultCode.BROKEN, order="remove")
    assert world.partition(claim).id != first.id
    assert world.fleet.pools[POD.name].held_blocks[first.id].until == NO_RELEASE


# -- anything, in any order -----------------------------------------------------------------------------------------


class FleetMachine(RuleBasedStateMachine):
    """Random demands, answers and faults; ``World.step`` checks every law after each (and law 9 at each)."""

    @initialize()
    def start(self) -> None:
        self.world = World(*POOLS, CROSS2)

    @rule(
        kind=st.sampled_from(["ipu", "gpu", "csx"]),
        size=st.sampled_from([0, 1, 1, 2, 3, 4, 8, 16]),
        priority=st.integers(-1, 2),
        limit=st.sampled_from([None, 5.0, 100.0]),
        lease=st.sampled_from([None, None, 10.0]),
        memory=st.sampled_from([0, 0, 40]),
        wait=st.booleans(),
    )
    def create(
        self, kind: str, size: int, priority: int, limit: float | None, lease: float | None, memory: int, wait: bool
    ) -> None:
        given = self.world.asks(
            size,
            kind,
            gcds=2 if size == 16 else 1,
            priority=priority,
            time_limit_s=limit,
            lease_s=lease,
            resources={"memory": memory} if memory else {},
            queue=QueueMode.WAIT if wait else QueueMode.NEVER,
        )
        self.world.step(given)

    @precondition(lambda self: self.world.fleet.claims)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        ident = data.draw(st.sampled_from(sorted(self.world.fleet.claims)))
        self.world.step(ReleaseClaim(ident, "over"))

    @precondition(lambda self: self.world.fleet.claims)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        ident = data.draw(st.sampled_from(sorted(self.world.fleet.claims)))
        before = self.world.fleet.claims[ident]
        self.world.step(CancelPendingClaim(ident, "over"))
        if before.state is ClaimState.PENDING:
            assert ident not in self.world.fleet.claims
        elif before.lease_until is None or before.lease_until > self.world.now:  # else it has lapsed in that turn
            assert self.world.claim(ident).state is before.state, "what holds a partition is left alone"

    @precondition(lambda self: self.world.fleet.partitions)
    @rule(
        data=st.data(),
        verdict=st.sampled_from([ResultCode.OK] * 6 + list(ResultCode)),
        seen=st.sampled_from([ObservedState.ACTIVE] * 4 + [ObservedState.ABSENT] * 4 + list(ObservedState)),
        order=st.sampled_from(["create", "reset", "remove", "remove", "list", "list", "list"]),
    )
    def driver_says(self, data: st.DataObject, verdict: ResultCode, seen: ObservedState, order: str) -> None:
        ident = data.draw(st.sampled_from(sorted(self.world.fleet.partitions)))
        before = self.world.fleet.partitions[ident]
        self.world.step(DriverResultReceived(ident, before.version, order, DriverResult(verdict, seen, "said so")))
        after = self.world.fleet.partitions.get(ident)
        if after is None:
            assert (before.state, seen, order) == (PartitionState.REMOVING, ObservedState.ABSENT, "remove"), (
                "only a removal frees"
            )
        elif after.state is PartitionState.ACTIVE and before.state is not PartitionState.ACTIVE:
            assert (verdict, seen) == (ResultCode.OK, ObservedState.ACTIVE), "law 4"

    @precondition(lambda self: self.world.fleet.partitions)
    @rule(data=st.data())
    def removal_ends(self, data: st.DataObject) -> None:
        leaving = [p for p in self.world.fleet.partitions.values() if p.state is PartitionState.REMOVING]
        if leaving:
            self.world.says(data.draw(st.sampled_from(leaving)), ObservedState.ABSENT, order="remove")

    @precondition(lambda self: self.world.fleet.partitions)
    @rule(data=st.data(), retry=st.booleans())
    def reset_or_retry(self, data: st.DataObject, retry: bool) -> None:
        ident = data.draw(st.sampled_from(sorted(self.world.fleet.partitions)))
        self.world.step(RetryRemoval(ident) if retry else ResetPartition(ident))

    @rule(pool=st.sampled_from([POD, CROSS, RACK]), index=st.integers(0, 7), resume=st.booleans())
    def service(self, pool: Pool, index: int, resume: bool) -> None:
        self.world.step(ResumeDevice(pool.name, index) if resume else DrainDevice(pool.name, index, "why not"))

    @rule(start=st.integers(0, 14), width=st.integers(0, 2))
    def foreigner(self, start: int, width: int) -> None:
        blocks = {"by-hand": Block(range(start, start + width))} if width else {}
        ours = [p for p in self.world.fleet.partitions.values() if p.pool == POD.name]
        if not any(
            p.block.overlaps(b) and p.state is not PartitionState.PROVISIONING for p in ours for b in blocks.values()
        ):
            self.world.step(ForeignPartitionsListed(POD.name, blocks))

    @rule(down=st.booleans())
    def reachability(self, down: bool) -> None:
        self.world.step(PoolReachability(POD.name, "gone" if down else ""))

    @rule(seconds=st.integers(1, 30))
    def time_passes(self, seconds: int) -> None:
        self.world.now = Timestamp(self.world.now + seconds * SECOND)
        self.world.step()

    @invariant()
    def nothing_that_fits_waits_without_a_reason(self) -> None:
        """Law 8: every waiting claim has a reason, and 'it fits' is never the last word."""
        if not hasattr(self, "world"):
            return
        for claim in list(self.world.fleet.pending_claims()):
            wait = explain_wait(self.world.fleet, claim, self.world.now)
            assert wait.reasons
            assert all(reason.message and reason.code for reason in wait.reasons)

    def teardown(self) -> None:
        """At the end everything can be given back: nothing leaks (law 2)."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.step(*(ReleaseClaim(ident, "all over") for ident in list(world.fleet.claims)))
        for _ in range(3):
            world.step(*(RetryRemoval(ident) for ident in list(world.fleet.partitions)))
            for partition in list(world.fleet.partitions.values()):
                world.says(partition, ObservedState.ABSENT, order="remove")
        assert not world.fleet.partitions
        assert not world.fleet.claims
        assert not world.fleet.queue
        for state in world.fleet.pools.values():
            foreign = {index for block in state.foreign_blocks.values() for index in block}
            assert state.free.n_free == state.pool.topology.n_devices - len(set(state.out_of_service) | foreign)
            assert not any(state.used_resources.values())


TestFleetMachine = FleetMachine.TestCase
TestFleetMachine.settings = settings(max_examples=examples(80), stateful_step_count=50, deadline=None)
