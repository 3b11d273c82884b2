"""Results from drivers, and the moves of partitions and claims that follow."""

from __future__ import annotations

from dataclasses import replace

from moorings.core.claims import BROKEN_BLOCKS_LIMIT, USABLE, Claim, ClaimEvent, ClaimState
from moorings.core.devices import DeviceEvent
from moorings.core.hardware import DriverResult, ObservedState, ResultCode
from moorings.core.inputs import DriverResultReceived
from moorings.core.overlay import TurnState
from moorings.core.partitions import Partition, PartitionEvent, PartitionState
from moorings.core.reasons import Reason


class DriverTurn(TurnState):
    """The part of a turn that handles driver results."""

    def answered(self, given: DriverResultReceived) -> Partition | None:
        partition = self.partition(given.partition)
        if partition is None or given.answer.verdict is ResultCode.UNAVAILABLE or partition.version != given.version:
            return partition  # it says nothing new, or it is about a past state
        handle = {
            PartitionState.PROVISIONING: self._while_provisioning,
            PartitionState.ACTIVE: self._while_active,
            PartitionState.RESETTING: self._while_resetting,
            PartitionState.REMOVING: self._while_removing,
        }.get(partition.state)
        if handle is not None and not _is_stale_result(partition.state, given.order):
            handle(partition, given.answer, given.order)
        return self.partition(given.partition)

    def _while_provisioning(self, partition: Partition, answer: DriverResult, order: str) -> None:
        claim = self._holder(partition)
        if answer.verdict is ResultCode.REJECTED:
            self._step_partition(partition, PartitionEvent.REMOVE, f"rejected: {answer.detail}")
            if claim is not None:
                reason = Reason("claim.rejected", f"the driver of {partition.pool} rejected it: {answer.detail}")
                claim = self._step_claim(claim, ClaimEvent.REJECT, reason)
                self._tell("claim.failed", claim, {"why": reason.message})
        elif answer.verdict is ResultCode.BROKEN or answer.seen is ObservedState.ERROR:
            self._broke_before_ready(partition, claim, answer.detail or f"the driver reports ERROR ({order})")
        elif answer.seen is ObservedState.ACTIVE:
            partition = self._step_partition(partition, PartitionEvent.ACTIVE)
            self._tell("partition.active", partition)
            if claim is not None and claim.state is ClaimState.GRANTED:
                self._tell("claim.ready", self._step_claim(claim, ClaimEvent.READY))

    def _broke_before_ready(self, partition: Partition, claim: Claim | None, detail: str) -> None:
        partition = self._break(partition, detail)
        self._out_of_service(partition, DeviceEvent.BROKE, detail)
        self._step_partition(partition, PartitionEvent.REMOVE, detail)
        if claim is None or claim.state is not ClaimState.GRANTED:
            return
        broken = claim.broken + 1
        if broken >= BROKEN_BLOCKS_LIMIT:
            reason = Reason(
                "claim.broken",
                f"{broken} blocks broke under it, the last with: {detail}",
                hint="the blocks are out of service now ('moor get devices'); ask again, and tell the admins",
            )
            claim = self._step_claim(replace(claim, broken=broken), ClaimEvent.REJECT, reason)
            self._tell("claim.failed", claim, {"why": reason.message})
            return
        reason = Reason("claim.broken", f"its block {partition.block} broke: {detail}; it keeps its place")
        self._tell("claim.broken", claim, {"devices": str(partition.block), "why": detail})
        self._step_claim(replace(claim, broken=broken), ClaimEvent.BROKE, reason)

    def _while_active(self, partition: Partition, answer: DriverResult, order: str) -> None:
        if answer.verdict is ResultCode.BROKEN or answer.seen is ObservedState.ERROR:
            detail = answer.detail or "the driver reports ERROR"
            partition = self._break(partition, detail)
            self._out_of_service(partition, DeviceEvent.BROKE, detail)
        elif answer.seen is ObservedState.ABSENT and order == "list":
            detail = answer.detail or "it vanished from the driver's listings"
            partition = self._break(partition, detail)
        else:
            return
        claim = self._holder(partition)
        if claim is not None and claim.state in USABLE:
            reason = Reason(
                "claim.lost",
                f"partition {partition.name} was lost: {detail}",
                hint="start the job again; if it happens again tell the admins, who see more with 'moor doctor'",
            )
            self._tell("claim.lost", self._step_claim(claim, ClaimEvent.LOSE, reason), {"why": detail})

    def _while_resetting(self, partition: Partition, answer: DriverResult, order: str) -> None:
        if answer.verdict in (ResultCode.BROKEN, ResultCode.REJECTED) or answer.seen in (
            ObservedState.ERROR,
            ObservedState.ABSENT,
        ):
            self._while_active(partition, replace(answer, seen=ObservedState.ERROR), order)
        elif answer.seen is ObservedState.ACTIVE:
            self._tell("partition.active", self._step_partition(partition, PartitionEvent.ACTIVE))

    def _while_removing(self, partition: Partition, answer: DriverResult, order: str) -> None:
        claim = self._holder(partition)
        if answer.verdict in (ResultCode.BROKEN, ResultCode.REJECTED) and order == "remove":
            detail = f"it could not be removed: {answer.detail}"
            partition = self._break(partition, detail)
            self._out_of_service(partition, DeviceEvent.REMOVAL_FAILED, detail)
            if claim is not None and claim.state is ClaimState.RELEASING:
                self._freed(claim)
            elif claim is not None and claim.state is ClaimState.YIELDING:
                self._requeue(claim)
        elif answer.seen is ObservedState.ABSENT and order == "remove":  # a listing may be wrong
            self._gone(partition)
            if claim is not None and claim.state is ClaimState.RELEASING:
                self._freed(claim)
            elif claim is not None and claim.state is ClaimState.YIELDING:
                self._requeue(claim)


def _is_stale_result(state: PartitionState, order: str) -> bool:
    """Whether a later state has overtaken the order of this result (a late ``create`` while REMOVING)."""
    wanted = {
        PartitionState.PROVISIONING: ("create", "list"),
        PartitionState.ACTIVE: ("list",),
        PartitionState.RESETTING: ("reset", "list"),
        PartitionState.REMOVING: ("remove", "list"),
    }
    return order not in wanted.get(state, ())
