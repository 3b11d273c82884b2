"""One turn: inputs and a fleet in, changes and events out. The whole life of claims and partitions is decided here.

``Turn`` works on a ``TurnState``: it leaves the fleet unchanged, and the caller applies the changes when the database
holds them. Nothing here waits, fails half way or does IO; an input that cannot be met is answered with its error and
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Never, Self, cast

from moorings.core.model.claims import Claim, ClaimId, PartitionId
from moorings.core.model.devices import Device
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import (
    CancelPendingClaim,
    CheckpointSaved,
    CreateClaim,
    DefragmentPool,
    DeleteProject,
    DrainDevice,
    DriverResultReceived,
    ForeignPartitionsListed,
    Input,
    PoolReachability,
    QueueReported,
    ReleaseClaim,
    RenewClaim,
    ResetPartition,
    ResumeDevice,
    RetryRemoval,
    SetPriority,
    SetProject,
    StrayPartitionFound,
    YieldClaim,
)
from moorings.core.model.partitions import Partition
from moorings.core.model.policy import Policy
from moorings.core.model.projects import Project, Projects
from moorings.core.model.timestamps import Timestamp
from moorings.core.placement.fleet import Fleet
from moorings.core.placement.plans import MovePlan, SchedulePlan
from moorings.core.scheduling.turn_drivers import handle_driver_result
from moorings.core.scheduling.turn_requests import (
    cancel_pending,
    check_claim,
    create_claim,
    delete_project,
    drain_device,
    record_checkpoint,
    record_stray,
    release_claim,
    renew_claim,
    reset_partition,
    resume_device,
    retry_removal,
    set_pool_reachability,
    set_priority,
    set_project,
    take_queue_report,
    update_foreign_partitions,
    yield_claim,
)
from moorings.core.scheduling.turn_schedule import defragment, expire_leases, schedule_queue
from moorings.core.scheduling.turn_state import TurnState

Reply = Claim | Partition | Device | Project | MovePlan | MooringsError | None

HANDLERS: Final[Mapping[type[Input], Callable[[TurnState, Never], Reply]]] = {
    CreateClaim: create_claim,
    ReleaseClaim: release_claim,
    CancelPendingClaim: cancel_pending,
    RenewClaim: renew_claim,
    SetPriority: set_priority,
    YieldClaim: yield_claim,
    CheckpointSaved: record_checkpoint,
    DriverResultReceived: handle_driver_result,
    ResetPartition: reset_partition,
    RetryRemoval: retry_removal,
    StrayPartitionFound: record_stray,
    ForeignPartitionsListed: update_foreign_partitions,
    PoolReachability: set_pool_reachability,
    DrainDevice: drain_device,
    ResumeDevice: resume_device,
    QueueReported: take_queue_report,
    SetProject: set_project,
    DeleteProject: delete_project,
    DefragmentPool: defragment,
}
"""The handler of each kind of input."""


class Turn:
    """A turn in progress: ``handle_input`` each input, then ``schedule`` once; read ``changes`` and ``events``."""

    def __init__(self, fleet: Fleet, policy: Policy, now: Timestamp) -> None:
        self.state = TurnState(fleet, policy, now)
        self.changes = self.state.changes
        self.events = self.state.events

    def __enter__(self) -> Self:
        self.state.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.state.roll_back()

    def handle_input(self, given: Input) -> Reply:
        """Process one input and return the reply to its sender.

        An error is returned, not raised: the other inputs of the turn are not affected.
        """
        handle = cast("Callable[[TurnState, Input], Reply]", HANDLERS[type(given)])
        try:
            return handle(self.state, given)
        except MooringsError as error:
            return error

    def check_claim(self, given: CreateClaim) -> MooringsError | None:
        """Why a claim would be refused now, beside its name and the limits on what is pending; None: it would not."""
        try:
            check_claim(self.state, given)
        except MooringsError as error:
            return error
        return None

    def expire_leases(self, since: Timestamp, in_use: Callable[[ClaimId], bool] = lambda _: False) -> list[Claim]:
        """As ``core.scheduling.expire_leases``."""
        return expire_leases(self.state, since, in_use)

    def schedule(self, in_use: Callable[[ClaimId], bool] = lambda _: False) -> list[tuple[ClaimId, MooringsError]]:
        """As ``core.scheduling.schedule_queue``."""
        return schedule_queue(self.state, in_use)

    def claim(self, ident: ClaimId) -> Claim | None:
        """The claim as this turn sees it."""
        return self.state.claim(ident)

    def partition(self, ident: PartitionId | None) -> Partition | None:
        """The partition as this turn sees it; None once it is removed."""
        return self.state.partition(ident)

    @property
    def projects(self) -> Projects:
        """The projects as this turn sees them."""
        return self.state.projects

    @property
    def plan(self) -> SchedulePlan:
        """The decision of ``schedule``."""
        return self.state.plan
