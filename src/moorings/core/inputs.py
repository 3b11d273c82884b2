"""What can come into a turn, as values: demands of people, words of drivers, decisions of admins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from moorings.core.access import Role
from moorings.core.announced import QueueReport
from moorings.core.claims import ClaimId, ClaimSpec, PartitionId
from moorings.core.devices import PoolName
from moorings.core.hardware import DriverResult
from moorings.core.instants import Timestamp
from moorings.core.projects import Project
from moorings.core.records import OMIT_IF_DEFAULT
from moorings.core.topology import Block


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateClaim:
    """Somebody asks for a partition; the id is fresh, everything else was checked for form."""

    id: ClaimId
    name: str
    owner: str
    subject: str
    spec: ClaimSpec
    role: Role | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    """Whose priority is limited; None: nobody's, as in logs of before."""
    since: Timestamp | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    """Its place in the queue is that of a claim made then; None: of one that is made now."""


@dataclass(frozen=True, slots=True)
class ReleaseClaim:
    """Its owner is done, or it is cancelled; ``why`` is for the log."""

    claim: ClaimId
    why: str


@dataclass(frozen=True, slots=True)
class CancelPendingClaim:
    """Its owner needs it no more, unless it holds something by now; ``why`` is for the log.

    An input of its own, not a flag of ``ReleaseClaim``: that would change the bytes of every log written before.
    """

    claim: ClaimId
    why: str


@dataclass(frozen=True, slots=True)
class RenewClaim:
    """Its owner is alive."""

    claim: ClaimId


@dataclass(frozen=True, slots=True)
class SetPriority:
    """Somebody who may has it served earlier or later; higher is first."""

    claim: ClaimId
    priority: int
    role: Role | None = field(default=None, metadata=OMIT_IF_DEFAULT)


@dataclass(frozen=True, slots=True)
class ResetPartition:
    """Its owner wants it in a clean state."""

    partition: PartitionId


@dataclass(frozen=True, slots=True)
class DriverResultReceived:
    """What a driver said of a partition: in answer to an order, or in a listing (``order`` is ``list``).

    ``version`` is the record's, when it was asked: what is said of a state that has passed means nothing.
    """

    partition: PartitionId
    version: int
    order: str
    answer: DriverResult


@dataclass(frozen=True, slots=True)
class RetryRemoval:
    """A partition in ERROR that nobody may use any more is to be removed again."""

    partition: PartitionId


@dataclass(frozen=True, slots=True)
class ForeignPartitionsListed:
    """The partitions of a pool that were made outside Moorings: all of them, by name."""

    pool: PoolName
    blocks: Mapping[str, Block]


@dataclass(frozen=True, slots=True)
class StrayPartitionFound:
    """A partition with our mark that nobody holds; the driver is told to remove it."""

    pool: PoolName
    name: str


@dataclass(frozen=True, slots=True)
class PoolReachability:
    """Whether a pool's driver answers; ``problem`` is empty if it does."""

    pool: PoolName
    problem: str


@dataclass(frozen=True, slots=True)
class DrainDevice:
    """An admin takes a device out of service (after the partition it is in, if any)."""

    pool: PoolName
    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class ResumeDevice:
    """An admin puts a device back into service."""

    pool: PoolName
    index: int


@dataclass(frozen=True, slots=True)
class QueueReported:
    """Another scheduler's agent tells what waits in its queue."""

    told: QueueReport


@dataclass(frozen=True, slots=True)
class YieldClaim:
    """The job of a claim that was asked to yield has stopped, and waits to go on; ``why`` is for the log."""

    claim: ClaimId
    why: str


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """The job of a claim has saved its state: what it did before ``at`` is not lost if it is stopped."""

    claim: ClaimId
    at: Timestamp


@dataclass(frozen=True, slots=True)
class SetProject:
    """An admin makes a project, or changes it: ``version`` is the one that is changed (None: there must be none)."""

    project: Project
    version: int | None


@dataclass(frozen=True, slots=True)
class DeleteProject:
    """An admin removes a project that nobody uses."""

    name: str


@dataclass(frozen=True, slots=True)
class DefragmentPool:
    """An admin has claims go on elsewhere, so that a block becomes free: of that size, or for a claim that waits.

    Attributes:
        size: devices; what is asked for by ``claim``, if that is given.
        pool: only there.
        claim: for which the room is.
        cost_max: only if no more device-seconds are lost by it.
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
