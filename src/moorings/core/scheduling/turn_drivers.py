"""Results from drivers, and the moves of partitions and claims that follow."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from moorings.core.model.claims import BROKEN_BLOCKS_LIMIT, USABLE, Claim, ClaimEvent, ClaimState
from moorings.core.model.devices import DeviceEvent
from moorings.core.model.driver_results import DriverResult, ObservedState, ResultCode
from moorings.core.model.inputs import DriverResultReceived
from moorings.core.model.partitions import OPERATIONS, Partition, PartitionEvent, PartitionState
from moorings.core.model.reasons import Reason
from moorings.core.scheduling.turn_state import TurnState


def handle_driver_result(turn: TurnState, given: DriverResultReceived) -> Partition | None:
    """Handle what a driver says of a partition."""
    partition = turn.partition(given.partition)
    if partition is None or given.answer.verdict is ResultCode.UNAVAILABLE or partition.version != given.version:
        return partition  # it says nothing new, or it is about a past state
    handle = _HANDLERS.get(partition.state)
    # A later state may have overtaken the order of this result: a late ``create`` while REMOVING.
    if handle is not None and given.order in (OPERATIONS.get(partition.state), "list"):
        handle(turn, partition, given.answer, given.order)
    return turn.partition(given.partition)


def _while_provisioning(turn: TurnState, partition: Partition, answer: DriverResult, order: str) -> None:
    claim = turn.claim_holding(partition)
    if answer.verdict is ResultCode.REJECTED:
        turn.step_partition(partition, PartitionEvent.REMOVE, f"rejected: {answer.detail}")
        if claim is not None:
            reason = Reason("claim.rejected", f"the driver of {partition.pool} rejected it: {answer.detail}")
            claim = turn.step_claim(claim, ClaimEvent.REJECT, reason)
            turn.emit_event("claim.failed", claim, {"why": reason.message})
    elif answer.verdict is ResultCode.BROKEN or answer.seen is ObservedState.ERROR:
        _fail_provisioning(turn, partition, claim, answer.detail or f"the driver reports ERROR ({order})")
    elif answer.seen is ObservedState.ACTIVE:
        partition = turn.step_partition(partition, PartitionEvent.ACTIVE)
        turn.emit_event("partition.active", partition)
        if claim is not None and claim.state is ClaimState.GRANTED:
            turn.emit_event("claim.ready", turn.step_claim(claim, ClaimEvent.READY))


def _fail_provisioning(turn: TurnState, partition: Partition, claim: Claim | None, detail: str) -> None:
    partition = turn.fail_partition(partition, detail)
    turn.take_out_of_service(partition, DeviceEvent.BROKE, detail)
    turn.step_partition(partition, PartitionEvent.REMOVE, detail)
    if claim is None or claim.state is not ClaimState.GRANTED:
        return
    broken = claim.broken + 1
    if broken >= BROKEN_BLOCKS_LIMIT:
        reason = Reason(
            "claim.broken",
            f"{broken} blocks broke under it, the last with: {detail}",
            hint="the blocks are out of service now ('moor get devices'); ask again, and tell the admins",
        )
        claim = turn.step_claim(replace(claim, broken=broken), ClaimEvent.REJECT, reason)
        turn.emit_event("claim.failed", claim, {"why": reason.message})
        return
    reason = Reason("claim.broken", f"its block {partition.block} broke: {detail}; it keeps its place")
    turn.emit_event("claim.broken", claim, {"devices": str(partition.block), "why": detail})
    turn.step_claim(replace(claim, broken=broken), ClaimEvent.BROKE, reason)


def _while_active(turn: TurnState, partition: Partition, answer: DriverResult, order: str) -> None:
    if answer.verdict is ResultCode.BROKEN or answer.seen is ObservedState.ERROR:
        detail = answer.detail or "the driver reports ERROR"
        partition = turn.fail_partition(partition, detail)
        turn.take_out_of_service(partition, DeviceEvent.BROKE, detail)
    elif answer.seen is ObservedState.ABSENT and order == "list":
        detail = answer.detail or "it vanished from the driver's listings"
        partition = turn.fail_partition(partition, detail)
    else:
        return
    claim = turn.claim_holding(partition)
    if claim is not None and claim.state in USABLE:
        reason = Reason(
            "claim.lost",
            f"partition {partition.name} was lost: {detail}",
            hint="start the job again; if it happens again tell the admins, who see more with 'moor doctor'",
        )
        turn.emit_event("claim.lost", turn.step_claim(claim, ClaimEvent.LOSE, reason), {"why": detail})


def _while_resetting(turn: TurnState, partition: Partition, answer: DriverResult, order: str) -> None:
    if answer.verdict in (ResultCode.BROKEN, ResultCode.REJECTED) or answer.seen in (
        ObservedState.ERROR,
        ObservedState.ABSENT,
    ):
        _while_active(turn, partition, replace(answer, seen=ObservedState.ERROR), order)
    elif answer.seen is ObservedState.ACTIVE:
        turn.emit_event("partition.active", turn.step_partition(partition, PartitionEvent.ACTIVE))


def _while_removing(turn: TurnState, partition: Partition, answer: DriverResult, order: str) -> None:
    claim = turn.claim_holding(partition)
    if answer.verdict in (ResultCode.BROKEN, ResultCode.REJECTED) and order == "remove":
        detail = f"it could not be removed: {answer.detail}"
        partition = turn.fail_partition(partition, detail)
        turn.take_out_of_service(partition, DeviceEvent.REMOVAL_FAILED, detail)
    elif answer.seen is ObservedState.ABSENT and order == "remove":  # a listing may be wrong
        turn.remove_partition(partition)
    else:
        return
    if claim is not None and claim.state is ClaimState.RELEASING:
        turn.finish_release(claim)
    elif claim is not None and claim.state is ClaimState.YIELDING:
        turn.requeue(claim)


_HANDLERS: Final = {
    PartitionState.PROVISIONING: _while_provisioning,
    PartitionState.ACTIVE: _while_active,
    PartitionState.RESETTING: _while_resetting,
    PartitionState.REMOVING: _while_removing,
}
