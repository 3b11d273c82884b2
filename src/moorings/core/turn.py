"""One turn: inputs and a fleet in, changes and events out. The whole life of claims and partitions is decided here.

``Turn`` works on an overlay: it leaves the fleet unchanged, and the caller applies the changes when the database holds
them. Nothing here waits, fails half way or does IO; an input that cannot be met is answered with its error and changes
nothing.
"""

from __future__ import annotations

from typing import assert_never

from moorings.core.claims import Claim
from moorings.core.devices import Device
from moorings.core.errors import MooringsError
from moorings.core.inputs import (
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
from moorings.core.partitions import Partition
from moorings.core.plans import MovePlan
from moorings.core.projects import Project
from moorings.core.scheduling import ScheduleTurn

Reply = Claim | Partition | Device | Project | MovePlan | MooringsError | None


class Turn(ScheduleTurn):
    """A turn in progress: ``take`` each input, then ``schedule`` once; read ``changes`` and ``events``."""

    def take(self, given: Input) -> Reply:
        """Process one input and return the reply to its sender.

        An error is returned, not raised: the other inputs of the turn are not affected.
        """
        try:
            return self._handle(given)
        except MooringsError as error:
            return error

    def _handle(self, given: Input) -> Reply:  # noqa: C901 - one case for each kind of input
        match given:
            case CreateClaim():
                return self.create(given)
            case ReleaseClaim():
                return self.release(given)
            case CancelPendingClaim():
                return self.withdraw(given)
            case DriverResultReceived():
                return self.answered(given)
            case RenewClaim():
                return self.renew(given)
            case SetPriority():
                return self.prioritise(given)
            case ResetPartition():
                return self.reset(given)
            case RetryRemoval():
                return self.retry(given)
            case ForeignPartitionsListed():
                self.foreign(given)
            case PoolReachability():
                self.health(given)
            case QueueReported():
                self._elsewhere.take(given.told, self._started(given.told))
            case StrayPartitionFound():
                self._tell("partition.stray_found", given.pool, {"name": given.name})
            case DrainDevice():
                return self.drain(given)
            case ResumeDevice():
                return self.resume(given)
            case YieldClaim():
                return self.give_way(given)
            case CheckpointSaved():
                return self.checkpoint(given)
            case SetProject():
                return self.set_project(given)
            case DeleteProject():
                self.delete_project(given)
            case DefragmentPool():
                return self.make_room(given)
            case _:
                assert_never(given)
        return None
