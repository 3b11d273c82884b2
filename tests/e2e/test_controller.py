"""The controller's loops over real parts: what is wanted and what is there become the same, whatever goes wrong."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from moorings.api.render import run_body
from moorings.core.model.access import Role
from moorings.core.model.claims import ClaimSpec, ClaimState, PartitionId, QueueMode
from moorings.core.model.devices import DeviceState
from moorings.core.model.driver_results import PartitionSpec
from moorings.core.model.errors import MooringsError
from moorings.core.model.partitions import PartitionState
from moorings.core.model.topology import Block
from moorings.core.reconcile import mark_for
from moorings.drivers.simulated.faults import Fault, FaultKind, VendorCall
from moorings.ports.store import Changes, PageQuery, Seq
from moorings.testing.builders import NEW, a_claim
from moorings.workloads.runs import RunPhase, RunState
from tests.e2e.rig import ADMIN, ANN, BOB, EVE, Rig, job, running
from tests.waiting import patient


@pytest.fixture
async def rig(tmp_path: Path):
    async with running(tmp_path) as made:
        yield made


# -- claims ---------------------------------------------------------------------------------------------------------


async def test_a_claim_from_wish_to_release_and_its_story_in_the_log(rig: Rig) -> None:
    claim = await rig.claim(4, gcds=2)
    assert claim.state is ClaimState.READY
    assert await rig.hardware() == {claim.name}
    binding = await rig.controller.get_binding(ANN, claim.id)
    assert [gcd.devices for gcd in binding.gcds] == [("pod16:0", "pod16:1"), ("pod16:2", "pod16:3")]
    released = await rig.release(claim)
    assert released.state is ClaimState.RELEASED
    rows = await rig.controller.list_events(ADMIN, Seq(0), 100, claim=claim.id)
    assert [row.event.name for row in rows] == [
        "claim.created",
        "claim.granted",
        "partition.active",
        "claim.ready",
        "claim.releasing",
        "partition.removed",
        "claim.released",
    ]
    await rig.nothing_left()


async def test_the_same_key_gives_the_same_claim_and_another_body_is_a_conflict(rig: Rig) -> None:
    async def ask(size: int, key: str, caller=ANN):
        spec = ClaimSpec(kind="ipu", size=size)
        return (await rig.controller.create_claim(caller, spec, name=None, owner=None, key=key)).claim

    first, twin = await asyncio.gather(ask(2, "k"), ask(2, "k"))
    assert first.id == twin.id
    assert (await ask(2, "k")).id == first.id
    with pytest.raises(MooringsError) as refused:
        await ask(4, "k")
    assert refused.value.code == "key.conflict"
    assert (await ask(2, "k", BOB)).id != first.id, "keys belong to a subject"
    await rig.release(first)
    assert (await ask(2, "k")).id == first.id, "for ever, also when it has ended"


async def test_a_claim_is_withdrawn_only_while_it_waits(rig: Rig) -> None:
    holder = await rig.claim(16)
    waiting = await rig.claim(8, wait_s=0)
    with pytest.raises(MooringsError) as refused:
        await rig.controller.release_claim(ANN, holder.id, only_waiting=True)
    assert refused.value.code == "claim.held"
    assert (await rig.controller.get_claim(ADMIN, holder.id)).claim == holder
    withdrawn = await rig.controller.release_claim(ANN, waiting.id, only_waiting=True)
    assert withdrawn.claim.state is ClaimState.CANCELLED
    again = await rig.controller.release_claim(ANN, waiting.id, only_waiting=True)
    assert again.claim.state is ClaimState.CANCELLED, "its answer may have been lost"


async def test_waiting_answers_when_it_is_ready_and_not_before(rig: Rig) -> None:
    holder = await rig.claim(16)
    waiting = asyncio.create_task(rig.claim(8, wait_s=20))
    await rig.until(lambda: len(rig.fleet.queue) == 1)
    view = (await rig.controller.list_claims(ADMIN, PageQuery(), states=frozenset({ClaimState.PENDING})))[0]
    assert view.position == 1
    assert view.reason is not None
    assert holder.id in view.reason.blockers
    assert not waiting.done()
    await rig.release(holder)
    assert (await waiting).state is ClaimState.READY


async def test_a_wait_that_runs_out_answers_with_what_there_is_and_leaves_nothing_behind(rig: Rig) -> None:
    await rig.claim(16)
    late = await rig.claim(1, wait_s=0.05)
    assert late.state is ClaimState.PENDING
    for _ in range(20):
        await rig.controller.get_claim(ADMIN, late.id, wait_s=0.001)
    assert not rig.controller._claims.follower.waiters  # a leak would show nowhere else


async def test_who_may_do_what(rig: Rig) -> None:
    claim = await rig.claim(1, project=await rig.shared_project())
    for attempt in (
        rig.controller.release_claim(BOB, claim.id),
        rig.controller.get_binding(BOB, claim.id),
        rig.controller.wait_for_binding(BOB, claim.id, 1),
        rig.controller.reset_partition(BOB, claim.name),
        rig.controller.create_claim(BOB, ClaimSpec(kind="ipu", size=1), name=None, owner="user/ann", key=None),
        rig.controller.create_claim(BOB, ClaimSpec(kind="ipu", size=1), name=None, owner="user/bobby", key=None),
    ):
        with pytest.raises(MooringsError) as refused:
            await attempt
        assert refused.value.code == "owner.denied"
    with pytest.raises(MooringsError) as refused:
        await rig.controller.drain_device(ANN, "pod16:3", "mine")
    assert refused.value.code == "auth.denied"


async def test_claims_of_local_runs_are_the_controller_s(rig: Rig) -> None:
    spec = ClaimSpec(kind="ipu", size=1)
    with pytest.raises(MooringsError) as refused:
        await rig.controller.create_claim(ADMIN, spec, name=None, owner="local/run-aaaaaaaaaaaa", key=None)
    assert refused.value.code == "owner.denied"


async def test_nobody_acts_on_leases_runs_or_output_of_another(rig: Rig) -> None:
    team = await rig.shared_project()
    leased = await rig.claim(16, lease_s=600.0, project=team)
    waiting = (await rig.controller.runs.create_run(ANN, job("true", project=team))).run
    for attempt in (
        lambda: rig.controller.renew_claim(BOB, leased.id),
        lambda: rig.controller.yield_claim(BOB, leased.id, ""),
        lambda: rig.controller.record_checkpoint(BOB, leased.id),
        lambda: rig.controller.runs.cancel_run(BOB, waiting.id),
        lambda: rig.controller.runs.pause_run(BOB, waiting.id),
        lambda: rig.controller.runs.resume_run(BOB, waiting.id),
        lambda: rig.controller.runs.set_run_priority(BOB, waiting.id, -9),
        lambda: rig.controller.runs.label_run(BOB, waiting.id, {"a": "b"}),
    ):
        with pytest.raises(MooringsError) as refused:
            await attempt()
        assert refused.value.code == "owner.denied"
    with pytest.raises(MooringsError) as refused:
        await rig.controller.runs.logs(EVE, waiting.id, task=None, follow=False)
    assert refused.value.code == "run.unknown"
    assert rig.assembly.loop.runs.by_id[waiting.id].state is RunState.WAITING
    await rig.controller.runs.cancel_run(ANN, waiting.id, wait_s=patient(20))


async def test_only_admins_have_to_do_with_keys(rig: Rig) -> None:
    key, _ = await rig.controller.create_key(ADMIN, "ann", Role.USER, None)
    for attempt in (
        lambda: rig.controller.create_key(ANN, "eve", Role.ADMIN, None),
        lambda: rig.controller.list_keys(ANN),
        lambda: rig.controller.revoke_key(ANN, key.id),
    ):
        with pytest.raises(MooringsError) as refused:
            await attempt()
        assert refused.value.code == "auth.denied"
    assert [(known.subject, known.revoked_at) for known in await rig.controller.list_keys(ADMIN)] == [("ann", None)]


async def test_a_name_that_could_be_an_id_is_refused(rig: Rig) -> None:
    """Law 5: what somebody else's claim is called can never be taken for this one."""
    victim = await rig.claim(1)
    for name in (victim.id, "run-aaaaaaaaaaaa", f"{victim.id}-1"):
        with pytest.raises(MooringsError) as refused:
            await rig.controller.create_claim(BOB, ClaimSpec(kind="ipu", size=1), name=name, owner=None, key=None)
        assert refused.value.code == "name.invalid"


async def test_a_job_s_name_reaches_the_caller_s_own_run(rig: Rig) -> None:
    team = await rig.shared_project()
    mine = await rig.controller.runs.create_run(ANN, job("sleep", "1000", project=team))
    theirs = await rig.controller.runs.create_run(BOB, job("sleep", "1000", project=team))
    await rig.until(lambda: rig.assembly.loop.runs.by_id[mine.run.id].state is RunState.RUNNING)
    gone = await rig.controller.runs.cancel_run(ANN, "job", wait_s=patient(20))
    assert gone.run.id == mine.run.id
    await rig.controller.runs.cancel_run(BOB, theirs.run.id, wait_s=patient(20))


async def test_a_job_s_environment_is_for_who_sees_the_run(rig: Rig) -> None:
    view = await rig.controller.runs.create_run(
        ANN, replace(job("true"), environment={"PATH": "/usr/bin:/bin", "TOKEN": "hunter2"})
    )
    for caller in (ANN, ADMIN):
        shown = await rig.controller.runs.get_run(caller, view.run.id)
        assert run_body(shown).job.environment["TOKEN"] == "hunter2"
    with pytest.raises(MooringsError, match="there is no run") as refused:
        await rig.controller.runs.get_run(BOB, view.run.id)
    assert refused.value.code == "run.unknown"
    rows = await rig.controller.list_events(ADMIN, Seq(0), 100)
    assert not any("hunter2" in row.event.data for row in rows)
    await rig.controller.runs.get_run(ADMIN, view.run.id, wait_s=patient(20))


async def test_no_room_and_no_wish_to_wait(rig: Rig) -> None:
    await rig.claim(16)
    with pytest.raises(MooringsError) as refused:
        await rig.claim(1, queue=QueueMode.NEVER)
    assert (refused.value.code, refused.value.retryable) == ("claim.no_room", True)


async def test_reset_makes_the_partition_unusable_until_it_is_done(rig: Rig) -> None:
    claim = await rig.claim(2)
    rig.driver().faults.add(Fault(kind=FaultKind.SLOW, factor=20))
    view = await rig.controller.reset_partition(ANN, claim.name)
    assert view.partition.state is PartitionState.RESETTING
    with pytest.raises(MooringsError) as refused:
        await rig.controller.get_binding(ANN, claim.id)
    assert refused.value.code in ("partition.not_active", "claim.not_ready")
    await rig.until(lambda: rig.controller.get_partition(ADMIN, claim.name).partition.state is PartitionState.ACTIVE)


async def test_no_binding_while_the_driver_has_not_heard_of_a_reset(rig: Rig) -> None:
    """Law 4: to the driver the partition is ACTIVE all the time, and its job would start into the reset."""
    claim = await rig.claim(2)
    rig.driver().faults.add(Fault(kind=FaultKind.TIMEOUT_BEFORE, calls=frozenset({VendorCall.RESET})))
    await rig.controller.reset_partition(ANN, claim.name)
    with pytest.raises(MooringsError) as refused:
        await rig.controller.get_binding(ANN, claim.id)
    assert refused.value.code == "partition.not_active"
    rig.driver().faults.clear()
    await rig.until(lambda: rig.controller.get_partition(ADMIN, claim.name).partition.state is PartitionState.ACTIVE)


async def test_a_replaced_controller_does_not_say_that_a_claim_is_released(rig: Rig) -> None:
    """It knows nothing of what the new leader grants, and its turn saves nothing that could be fenced off."""
    store = rig.assembly.loop.store
    epoch = store.begin_epoch("another", rig.clock.now())
    theirs = a_claim(1, owner="user/ann", subject="ann")
    store.commit(epoch, Changes(claims=[(theirs, NEW)]))
    with pytest.raises(MooringsError) as refused:
        await rig.controller.release_claim(ANN, theirs.id)
    assert refused.value.code == "store.fenced"


# -- hardware that fails --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [FaultKind.TIMEOUT_BEFORE, FaultKind.TIMEOUT_AFTER_SUCCESS, FaultKind.ERROR_ON_RESULT, FaultKind.LISTING_FAILS],
)
async def test_lost_answers_delay_and_nothing_else(rig: Rig, kind: FaultKind) -> None:
    rig.driver().faults.add(Fault(kind=kind, times=3))
    claim = await rig.claim(4)
    assert claim.state is ClaimState.READY
    rig.driver().faults.add(Fault(kind=kind, times=3))
    assert (await rig.release(claim)).state is ClaimState.RELEASED
    await rig.nothing_left()


async def test_a_rejected_claim_fails_with_the_vendor_s_words(rig: Rig) -> None:
    rig.driver().faults.add(Fault(kind=FaultKind.REJECT, calls=frozenset({VendorCall.CREATE}), times=1))
    claim = await rig.claim(4, until="READY")
    assert claim.state is ClaimState.FAILED
    assert claim.reason is not None
    assert "rejected" in claim.reason.message
    await rig.nothing_left()


async def test_a_broken_block_is_quarantined_and_another_is_used(rig: Rig) -> None:
    rig.driver().faults.add(Fault(kind=FaultKind.BREAKS_WHILE_PROVISIONING, times=1))
    claim = await rig.claim(4)
    assert (claim.state, claim.attempt) == (ClaimState.READY, 1)
    out = [view for view in rig.controller.list_devices(ADMIN, PageQuery(limit=100)) if not view.in_service]
    assert [view.device.state for view in out] == [DeviceState.QUARANTINED] * 4
    with pytest.raises(MooringsError) as refused:
        await rig.controller.resume_device(ADMIN, "pod16:9")
    assert refused.value.code == "state.illegal_move"
    for view in out:
        await rig.controller.resume_device(ADMIN, view.device.id)
    await rig.release(claim)
    await rig.nothing_left()
    assert rig.controller.get_pool("pod16").free == 16


async def test_an_unknown_vendor_state_is_not_ready(rig: Rig) -> None:
    fault = Fault(kind=FaultKind.LYING_UNKNOWN)
    rig.driver().faults.add(fault)
    claim = await rig.claim(4, wait_s=0.5)
    assert claim.state is ClaimState.GRANTED
    rig.driver().faults.clear()
    view = await rig.controller.get_claim(ADMIN, claim.id, wait_s=patient(10))
    assert view.claim.state is ClaimState.READY


@pytest.mark.parametrize("kind", [FaultKind.LISTING_EMPTY, FaultKind.LISTING_PARTIAL])
async def test_one_bad_listing_ends_nothing(rig: Rig, kind: FaultKind) -> None:
    """Law 3."""
    claim = await rig.claim(4)
    rig.driver().faults.add(Fault(kind=kind, times=2))
    seq = rig.controller.last_seq()
    await rig.clock.sleep(3.5 * 3)
    assert (await rig.controller.get_claim(ADMIN, claim.id)).claim.state is ClaimState.READY
    assert await rig.controller.list_events(ADMIN, seq, 10) == []


async def test_a_partition_that_vanished_is_lost_and_its_owner_told(rig: Rig) -> None:
    rig.driver().faults.add(Fault(kind=FaultKind.VANISHES, seconds=1.0, times=1))
    claim = await rig.claim(4)
    await rig.until(lambda: rig.fleet.claims[claim.id].state is ClaimState.LOST)
    lost = (await rig.controller.get_claim(ADMIN, claim.id)).claim
    assert lost.reason is not None
    assert "missing in" in lost.reason.message
    assert (await rig.release(claim)).state is ClaimState.RELEASED
    await rig.nothing_left()


async def test_a_removal_that_fails_drains_and_is_tried_again(rig: Rig) -> None:
    claim = await rig.claim(4)
    rig.driver().faults.add(Fault(kind=FaultKind.REMOVAL_FAILS, times=1))
    assert (await rig.release(claim)).state is ClaimState.RELEASED
    assert rig.controller.get_pool("pod16").out_of_service == 4
    await rig.nothing_left()
    assert rig.controller.get_pool("pod16").free == 12


async def test_a_stray_of_ours_is_removed_and_a_stranger_s_is_not(rig: Rig) -> None:
    ours = mark_for(rig.controller.installation, PartitionId("claim-gone-0"))
    await rig.driver().create(PartitionSpec("left-behind", Block(range(4)), 1, 1, ours))
    await rig.driver().create(PartitionSpec("by-hand", Block(range(8, 12)), 1, 1, "someone/else"))

    async def only_the_stranger_s() -> bool:
        return await rig.hardware() == {"by-hand"}

    await rig.until(only_the_stranger_s)
    view = rig.controller.get_device(ADMIN, "pod16:9")
    assert view.partition == "by-hand"
    claim = await rig.claim(8)
    assert rig.fleet.partitions[claim.partition].block == Block(range(8))


async def test_a_pool_that_does_not_answer_says_so_and_recovers(rig: Rig) -> None:
    rig.driver().faults.add(Fault(kind=FaultKind.LISTING_FAILS))
    await rig.until(lambda: not rig.controller.get_pool("pod16").reachable)
    claim = await rig.claim(1, wait_s=0)
    wait = await rig.controller.explain_claim(ADMIN, claim.id)
    assert wait.reasons[0].code == "pool.unreachable"
    rig.driver().faults.clear()
    assert (await rig.controller.get_claim(ADMIN, claim.id, wait_s=patient(10))).claim.state is ClaimState.READY


async def test_a_stranger_s_partition_survives_a_claim_of_its_name(rig: Rig) -> None:
    await rig.driver().create(PartitionSpec("by-hand", Block(range(8, 12)), 1, 1, "someone/else"))
    spec = ClaimSpec(kind="ipu", size=1)
    view = await rig.controller.create_claim(BOB, spec, name="by-hand", owner=None, key=None, wait_s=patient(10))
    assert view.claim.state is ClaimState.READY
    assert view.partition is not None
    assert view.partition.name != "by-hand"
    await rig.controller.release_claim(BOB, view.claim.id, wait_s=patient(10))
    assert await rig.hardware() == {"by-hand"}


async def test_an_agent_that_is_down_for_a_moment_ends_nothing(rig: Rig) -> None:
    """Law 3: its partitions show ERROR in listings; a live job keeps them."""
    claim = await rig.claim(4)
    rig.driver().faults.add(Fault(kind=FaultKind.AGENT_DOWN))
    await rig.clock.sleep(6)
    rig.driver().faults.clear()
    await rig.clock.sleep(10)
    assert (await rig.controller.get_claim(ADMIN, claim.id)).claim.state is ClaimState.READY


async def test_why_a_granted_claim_is_not_ready(rig: Rig) -> None:
    """Law 8, when the driver does not do what it is asked."""
    rig.driver().faults.add(Fault(kind=FaultKind.TIMEOUT_BEFORE, calls=frozenset({VendorCall.CREATE})))
    claim = await rig.claim(4, wait_s=0.3)
    told = await rig.controller.explain_claim(ADMIN, claim.id)
    assert [reason.code for reason in told.reasons] == ["driver.unavailable"]
    assert "no answer" in told.reasons[0].message


async def test_many_wait_for_the_same_claim_and_run(rig: Rig) -> None:
    view = await rig.controller.runs.create_run(ANN, job("sh", "-c", "sleep 0.3"))
    runs = [rig.controller.runs.get_run(ADMIN, view.run.id, wait_s=patient(20)) for _ in range(5)]
    assert view.run.claim is not None
    claims = [rig.controller.get_claim(ADMIN, view.run.claim, wait_s=patient(20), until="ENDED") for _ in range(5)]
    ended, released = await asyncio.gather(asyncio.gather(*runs), asyncio.gather(*claims))
    assert [one.run.state for one in ended] == [RunState.SUCCEEDED] * 5
    assert [one.claim.state for one in released] == [ClaimState.RELEASED] * 5


# -- controllers that end -------------------------------------------------------------------------------------------


async def test_a_controller_that_ends_anywhere_goes_on_from_what_is_there(tmp_path: Path) -> None:
    """Ended while provisioning, while waiting and while removing; every claim comes to what it would have come to."""
    async with running(tmp_path) as rig:
        kept = await rig.claim(4)
        leaving = await rig.claim(4)
        rig.driver().faults.add(Fault(kind=FaultKind.SLOW, factor=20.0))
        making = await rig.claim(8, wait_s=0)
        waiting = await rig.claim(2, wait_s=0)
        await rig.release(leaving, wait_s=0)
    async with running(tmp_path) as rig:
        assert (await rig.controller.get_claim(ADMIN, kept.id)).claim.state is ClaimState.READY
        assert (await rig.controller.get_claim(ADMIN, making.id, wait_s=patient(20))).claim.state is ClaimState.READY
        assert (
            await rig.controller.get_claim(ADMIN, leaving.id, wait_s=patient(20), until="ENDED")
        ).claim.state is ClaimState.RELEASED
        assert (await rig.controller.get_claim(ADMIN, waiting.id, wait_s=patient(20))).claim.state is ClaimState.READY
        for claim in (kept, making, waiting):
            await rig.release(claim)
        await rig.nothing_left()


async def test_a_pools_file_that_no_longer_holds_what_is_in_use_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await rig.claim(16)
    smaller = """
[[pool]]
name = "pod16"
kind = "ipu"
driver = "simulated"
topology = { type = "power-of-two", domain_size = 8 }
"""
    with pytest.raises(MooringsError) as refused:
        async with running(tmp_path, smaller):
            pass
    assert refused.value.code == "pools.invalid"
    assert "0-15" in refused.value.detail


# -- runs -----------------------------------------------------------------------------------------------------------


async def test_a_run_gets_its_partition_runs_and_gives_it_back(rig: Rig, tmp_path: Path) -> None:
    script = (
        'echo "$RANK of $WORLD_SIZE: $MOORINGS_DEVICES"; test -f "$IPUOF_CONFIG_PATH"; test -z "$IPUOF_VIPU_API_HOST"'
    )
    view = await rig.controller.runs.create_run(ANN, job("sh", "-ec", script, size=4, tasks=2))
    assert view.run.state is RunState.WAITING
    ended = await rig.controller.runs.get_run(ADMIN, view.run.id, wait_s=patient(20))
    assert (ended.run.state, ended.run.exit_code, ended.run.task_codes) == (RunState.SUCCEEDED, 0, (0, 0))
    chunks = [chunk async for chunk in await rig.controller.runs.logs(ANN, view.run.id, task=None, follow=False)]
    assert sorted(b"".join(chunks).decode().splitlines()) == [
        "[0] 0 of 2: pod16:0,pod16:1",
        "[1] 1 of 2: pod16:2,pod16:3",
    ]
    await rig.nothing_left()
    names = [row.event.name for row in await rig.controller.list_events(ADMIN, Seq(0), 100, run=view.run.id)]
    assert names == ["run.created", "run.starting", "run.started", "run.ended"] or names == [
        "run.created", "run.starting", "run.ended",
    ]  # fmt: skip


async def test_no_process_starts_before_its_partition_is_active(rig: Rig, tmp_path: Path) -> None:
    """Law 4, with hardware that stays unknown for a while."""
    rig.driver().faults.add(Fault(kind=FaultKind.LYING_UNKNOWN))
    flag = tmp_path / "started"
    view = await rig.controller.runs.create_run(ANN, job("touch", str(flag)))
    await rig.clock.sleep(5)
    assert not flag.exists()
    rig.driver().faults.clear()
    await rig.controller.runs.get_run(ADMIN, view.run.id, wait_s=patient(20))
    assert flag.exists()


async def test_a_failing_job_keeps_its_exit_code_and_leaves_nothing(rig: Rig) -> None:
    view = await rig.controller.runs.create_run(ANN, job("sh", "-c", "exit 7"))
    ended = await rig.controller.runs.get_run(ADMIN, view.run.id, wait_s=patient(20))
    assert (ended.run.state, ended.run.exit_code) == (RunState.FAILED, 7)
    await rig.nothing_left()


async def test_cancelling_while_waiting_and_while_running(rig: Rig) -> None:
    holder = await rig.claim(16)
    waiting = await rig.controller.runs.create_run(ANN, job("true"))
    assert waiting.reason is not None
    gone = await rig.controller.runs.cancel_run(ANN, waiting.run.id)
    assert gone.run.state is RunState.CANCELLED
    await rig.release(holder)
    going = await rig.controller.runs.create_run(ANN, job("sleep", "1000"))
    await rig.until(lambda: rig.assembly.loop.runs.by_id[going.run.id].state is RunState.RUNNING)
    assert going.run.claim is not None
    with pytest.raises(MooringsError) as refused:
        await rig.controller.release_claim(ANN, going.run.claim)
    assert refused.value.code == "claim.held_by_run"
    with pytest.raises(MooringsError) as refused:
        await rig.controller.runs.cancel_run(BOB, going.run.id)
    assert refused.value.code == "run.unknown"
    ended = await rig.controller.runs.cancel_run(ANN, going.run.id, wait_s=patient(20))
    assert ended.run.state is RunState.CANCELLED
    await rig.nothing_left()


async def test_a_job_is_stopped_though_that_cannot_be_saved(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, which its output may have filled: its processes end, and nothing is removed before that is saved."""
    team = await rig.shared_project()
    going = (await rig.controller.runs.create_run(ANN, job("sleep", "1000", project=team))).run
    await rig.until(lambda: rig.assembly.loop.runs.by_id[going.id].state is RunState.RUNNING)

    def full(*_: object) -> None:
        raise MooringsError("store.unavailable", "its disk is full", hint="free some space on its disk", retryable=True)

    with monkeypatch.context() as patched:
        patched.setattr(rig.assembly.loop.store, "commit", full)
        patched.setattr(rig.assembly.loop.store, "ping", full)
        with pytest.raises(MooringsError) as refused:
            await rig.controller.runs.cancel_run(BOB, going.id)
        assert refused.value.code == "owner.denied"
        with pytest.raises(MooringsError) as refused:
            await rig.controller.runs.cancel_run(ANN, going.id)
        assert (refused.value.code, "were told to stop" in refused.value.detail) == ("store.unavailable", True)

        async def ended() -> bool:
            (seen,) = await rig.assembly.running.engines["local"].observe([going.id])
            return seen.phase is RunPhase.ENDED

        await rig.until(ended)
        assert len(await rig.hardware()) == 1
    end = await rig.controller.runs.get_run(ADMIN, going.id, wait_s=patient(20))
    assert end.run.state is RunState.CANCELLED
    await rig.nothing_left()


async def test_cancelling_before_the_engine_ever_had_it(rig: Rig) -> None:
    rig.driver().faults.add(Fault(kind=FaultKind.TIMEOUT_BEFORE, calls=frozenset({VendorCall.BINDING})))
    view = await rig.controller.runs.create_run(ANN, job("true"))
    await rig.until(lambda: rig.assembly.loop.runs.by_id[view.run.id].state is RunState.STARTING)
    ended = await rig.controller.runs.cancel_run(ANN, view.run.id, wait_s=patient(20))
    assert ended.run.state is RunState.CANCELLED
    await rig.nothing_left()


async def test_a_partition_lost_before_the_start_ends_the_run(rig: Rig) -> None:
    rig.driver().faults.add(Fault(kind=FaultKind.TIMEOUT_BEFORE, calls=frozenset({VendorCall.BINDING})))
    rig.driver().faults.add(Fault(kind=FaultKind.VANISHES, seconds=10.0, times=1))
    view = await rig.controller.runs.create_run(ANN, job("true"))
    ended = await rig.controller.runs.get_run(ADMIN, view.run.id, wait_s=patient(20))
    assert ended.run.state is RunState.FAILED
    assert "was lost" in ended.run.detail
    await rig.nothing_left()


async def test_a_claim_is_held_until_its_run_s_processes_are_gone(rig: Rig) -> None:
    """Law 3, while a cancelled job takes its time to end."""
    script = "trap 'sleep 1; exit 3' TERM; echo up; while :; do sleep 0.05; done"
    view = await rig.controller.runs.create_run(ANN, job("sh", "-c", script))
    await rig.until(lambda: rig.assembly.loop.runs.by_id[view.run.id].state is RunState.RUNNING)
    await rig.controller.runs.cancel_run(ANN, view.run.id)
    await rig.clock.sleep(3)
    assert rig.fleet.claims[view.run.claim].state is ClaimState.READY
    assert len(await rig.hardware()) == 1
    assert (await rig.controller.runs.get_run(ADMIN, view.run.id, wait_s=patient(20))).run.is_ended
    await rig.nothing_left()


async def test_a_claim_that_a_run_holds_is_not_released_by_hand(rig: Rig) -> None:
    """Law 3: its partition would go from under its processes; whoever may release it may cancel the run."""
    await rig.claim(16)
    run = (await rig.controller.runs.create_run(ANN, job("true"))).run
    assert run.claim is not None
    for caller in (ANN, ADMIN):
        with pytest.raises(MooringsError) as refused:
            await rig.controller.release_claim(caller, run.claim)
        assert refused.value.code == "claim.held_by_run"
    await rig.controller.runs.cancel_run(ANN, run.id, wait_s=patient(20))


async def test_a_partition_under_a_run_is_not_reset(rig: Rig) -> None:
    view = await rig.controller.runs.create_run(ANN, job("sleep", "1000"))
    await rig.until(lambda: rig.assembly.loop.runs.by_id[view.run.id].state is RunState.RUNNING)
    with pytest.raises(MooringsError) as refused:
        await rig.controller.reset_partition(ANN, view.run.id)
    assert refused.value.code == "claim.held_by_run"
    with pytest.raises(MooringsError) as refused:
        await rig.controller.runs.logs(BOB, view.run.id, task=None, follow=False)
    assert refused.value.code == "run.unknown"
    await rig.controller.runs.cancel_run(ANN, view.run.id, wait_s=patient(20))


async def test_a_run_outlives_its_controller_and_is_found_again(tmp_path: Path) -> None:
    flag = tmp_path / "go"
    async with running(tmp_path / "data") as rig:
        script = f"until test -e {flag}; do sleep 0.05; done; echo done"
        view = await rig.controller.runs.create_run(ANN, job("sh", "-c", script))
        await rig.until(lambda: rig.assembly.loop.runs.by_id[view.run.id].state is RunState.RUNNING)
    flag.touch()
    async with running(tmp_path / "data") as rig:
        ended = await rig.controller.runs.get_run(ADMIN, view.run.id, wait_s=patient(20))
        assert (ended.run.state, ended.run.exit_code) == (RunState.SUCCEEDED, 0)
        await rig.nothing_left()


async def test_a_run_whose_partition_is_lost_is_stopped_and_told_why(rig: Rig) -> None:
    rig.driver().faults.add(Fault(kind=FaultKind.VANISHES, seconds=2.0, times=1))
    view = await rig.controller.runs.create_run(ANN, job("sleep", "1000"))
    ended = await rig.controller.runs.get_run(ADMIN, view.run.id, wait_s=patient(40))
    assert ended.run.state is RunState.FAILED, "nobody cancelled it"
    assert "was lost" in ended.run.detail
    await rig.nothing_left()


async def test_a_job_whose_claim_can_never_be_served_is_refused_before_anything_exists(rig: Rig) -> None:
    for size, code in ((3, "claim.size_not_allowed"), (32, "claim.too_large")):
        with pytest.raises(MooringsError) as refused:
            await rig.controller.runs.create_run(ANN, job("true", size=size))
        assert refused.value.code == code
    assert await rig.controller.runs.list_runs(ADMIN, PageQuery()) == []
    told = [row.event.name for row in await rig.controller.list_events(ADMIN, Seq(0), 10)]
    assert told == ["controller.led"]


async def test_the_same_key_starts_one_run(rig: Rig) -> None:
    first, twin = await asyncio.gather(
        *(rig.controller.runs.create_run(ANN, job("true"), key="once") for _ in range(2))
    )
    assert first.run.id == twin.run.id
    assert len(await rig.controller.runs.list_runs(ADMIN, PageQuery())) == 1
