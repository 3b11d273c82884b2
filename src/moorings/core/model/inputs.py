"""The inputs of a turn, as values: requests of users and admins, results of drivers, reports of agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from moorings.core.model.access import Role
from moorings.core.model.claims import ClaimId, ClaimSpec, PartitionId
from moorings.core.model.devices import PoolName
from moorings.core.model.driver_results import DriverResult
from moorings.core.model.projects import Project
from moorings.core.model.queue_reports import QueueReport
from moorings.core.model.serialization import OMIT_IF_DEFAULT
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import Block


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateClaim:
    """Request a partition; the id is fresh, everything else was checked for form."""

    id: ClaimId
    name: str
    owner: str
    subject: str
    spec: ClaimSpec
    role: Role | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    """The caller's role, which limits the priority; None: no limit, as in logs of before."""
    since: Timestamp | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    """The claim's place in the queue is that of one created then; None: of one created now."""


@dataclass(frozen=True, slots=True)
class ReleaseClaim:
    """Release or cancel a claim; ``why`` is for the log."""

    claim: ClaimId
    why: str


@dataclass(frozen=True, slots=True)
class CancelPendingClaim:
    """Cancel a claim only if it still holds nothing; ``why`` is for the log.

    It is a separate input and not a flag of ``ReleaseClaim``, which would change the bytes of all earlier logs.
    """

    claim: ClaimId
    why: str


@dataclass(frozen=True, slots=True)
class RenewClaim:
    """Renew the lease of a claim."""

    claim: ClaimId


@dataclass(frozen=True, slots=True)
class SetPriority:
    """Change the priority of a claim; higher is first."""

    claim: ClaimId
    priority: int
    role: Role | None = field(default=None, metadata=OMIT_IF_DEFAULT)


@dataclass(frozen=True, slots=True)
class ResetPartition:
    """Reset a partition to a clean state, at its owner's request."""

    partition: PartitionId


@dataclass(frozen=True, slots=True)
class DriverResultReceived:
    """A driver's result for a partition: the answer to an order, or a listing (``order`` is ``list``).

    ``version`` is the record's at the time of the order: a result about a past state means nothing.
    """

    partition: PartitionId
    version: int
    order: str
    answer: DriverResult


@dataclass(frozen=True, slots=True)
class RetryRemoval:
    """Remove a partition in ERROR again, if no claim may use it any more."""

    partition: PartitionId


@dataclass(frozen=True, slots=True)
class ForeignPartitionsListed:
    """All partitions of a pool that were made outside Moorings, by name."""

    pool: PoolName
    blocks: Mapping[str, Block]


@dataclass(frozen=True, slots=True)
class StrayPartitionFound:
    """A partition with our mark that no claim holds; the driver gets an order to remove it."""

    pool: PoolName
    name: str


@dataclass(frozen=True, slots=True)
class PoolReachability:
    """Whether a pool's driver answers; ``problem`` is empty if it does."""

    pool: PoolName
    problem: str


@dataclass(frozen=True, slots=True)
class DrainDevice:
    """Take a device out of service (after the partition it is in, if any)."""

    pool: PoolName
    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class ResumeDevice:
    """Put a device back into service."""

    pool: PoolName
    index: int


@dataclass(frozen=True, slots=True)
class QueueReported:
    """An agent reports what waits in its scheduler's queue."""

    told: QueueReport


@dataclass(frozen=True, slots=True)
class YieldClaim:
    """The job of a claim that was asked to yield has stopped and waits to resume; ``why`` is for the log."""

    claim: ClaimId
    why: str


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """The job of a claim has saved a checkpoint: work done before ``at`` is not lost if it stops."""

    claim: ClaimId
    at: Timestamp


@dataclass(frozen=True, slots=True)
class SetProject:
    """Create or change a project: ``version`` is the one to change (None: it must not exist)."""

    project: Project
    version: int | None


@dataclass(frozen=True, slots=True)
class DeleteProject:
    """Delete a project that is not in use."""

    name: str


@dataclass(frozen=True, slots=True)
class DefragmentPool:
    """Move claims so that a block becomes free: of a given size, or for a pending claim.

    Attributes:
        size: devices; taken from ``claim`` if that is given.
        pool: only in this pool.
        claim: the claim that the block is for.
        cost_max: only if the moves lose at most so many device-seconds.
    """

    size: int = 0
    pool: PoolName | None = None
    claim: ClaimId | None = None
    cost_max: float | None = None


Input = (
    CreateClaim
    | ReleaseClaim
    | CancelPendingClaim
    | RenewClaim
    | SetPriority
    | ResetPartition
    | DriverResultReceived
    | RetryRemoval
    | ForeignPartitionsListed
    | PoolReachability
    | StrayPartitionFound
    | DrainDevice
    | ResumeDevice
    | QueueReported
    | YieldClaim
    | CheckpointSaved
    | SetProject
    | DeleteProject
    | DefragmentPool
)
