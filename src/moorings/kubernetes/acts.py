"""What can be done about one IPUJob: ``plan`` chooses, ``doing`` does it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """The job is not to go before its partitions."""


@dataclass(frozen=True, slots=True)
class DropFinalizer:
    """The job may go."""


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """The job has ended and was kept for as long as it is to be."""


@dataclass(frozen=True, slots=True)
class AcquirePartition:
    """Ask for the partition of an instance."""

    instance: int


@dataclass(frozen=True, slots=True)
class ReleasePartition:
    """Give the partition of an instance back."""

    instance: int


@dataclass(frozen=True, slots=True)
class FencePartition:
    """Give the partition of an instance back though programs of it may run on these nodes, which are not Ready."""

    instance: int
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class CleanPartition:
    """Have the partition of an instance cleaned; what follows of the instance waits for it."""

    instance: int


@dataclass(frozen=True, slots=True)
class YieldPartition:
    """Give the partition of an instance back as it was asked for: the instance waits again, in its old place."""

    instance: int


@dataclass(frozen=True, slots=True)
class EnsureJobObjects:
    """What stands beside the Pods is as it must be: the launchers' ConfigMap and rights, or the workers' Service."""


@dataclass(frozen=True, slots=True)
class CreateWorker:
    """Make a worker Pod."""

    number: int
    restart: int


@dataclass(frozen=True, slots=True)
class CreateLauncher:
    """Make a launcher Pod; ``reset``: its partition may have been used."""

    instance: int
    restart: int
    reset: bool


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete that very Pod; ``grace_s``: it has so many seconds to end (None: what it says itself)."""

    name: str
    uid: str
    grace_s: int | None = None


JobAction = (
    AddFinalizer
    | DropFinalizer
    | DeleteJob
    | AcquirePartition
    | ReleasePartition
    | FencePartition
    | CleanPartition
    | YieldPartition
    | EnsureJobObjects
    | CreateWorker
    | CreateLauncher
    | DeletePod
)
