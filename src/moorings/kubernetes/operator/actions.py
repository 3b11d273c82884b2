"""The possible actions for one IPUJob: ``plan`` chooses them, ``executor`` executes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Add our finalizer: the job must not be removed before its partitions."""


@dataclass(frozen=True, slots=True)
class DropFinalizer:
    """Remove our finalizer: the job may be removed."""


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the job: it has ended, and its time to live is over."""


@dataclass(frozen=True, slots=True)
class AcquirePartition:
    """Request the partition of an instance."""

    instance: int


@dataclass(frozen=True, slots=True)
class ReleasePartition:
    """Release the partition of an instance."""

    instance: int


@dataclass(frozen=True, slots=True)
class FencePartition:
    """Release the partition of an instance although its programs may still run on these nodes, which are not Ready."""

    instance: int
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class CleanPartition:
    """Reset the partition of an instance; the instance's next actions wait for it."""

    instance: int


@dataclass(frozen=True, slots=True)
class YieldPartition:
    """Release the partition of an instance on request: the instance waits again, in its old place of the queue."""

    instance: int


@dataclass(frozen=True, slots=True)
class EnsureJobObjects:
    """Make the objects beside the Pods current: the launchers' ConfigMap and rights, or the workers' Service."""


@dataclass(frozen=True, slots=True)
class CreateWorker:
    """Create a worker Pod."""

    number: int
    restart: int


@dataclass(frozen=True, slots=True)
class CreateLauncher:
    """Create a launcher Pod; ``reset``: its partition may have been used."""

    instance: int
    restart: int
    reset: bool


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete exactly this Pod; ``grace_s``: its grace period in seconds (None: the Pod's own)."""

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
