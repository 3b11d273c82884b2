"""What a caller is shown: records joined with what stands around them. Values; ``api`` gives them their wire form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moorings.core.claims import Claim
from moorings.core.devices import Device
from moorings.core.partitions import Partition
from moorings.core.reasons import Reason
from moorings.core.topology import Pool
from moorings.workloads.runs import Run


@dataclass(frozen=True, slots=True)
class ClaimView:
    """A claim, the partition it holds, its place in the queue (1 is next) and why it waits or ended."""

    claim: Claim
    partition: Partition | None
    position: int | None
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class RunView:
    """A run and what its claim has come to."""

    run: Run
    claim: Claim | None
    partition: Partition | None
    position: int | None
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool now. ``available``: how many partitions of each size could be formed; ``problem`` if unreachable."""

    pool: Pool
    free: int
    out_of_service: int
    largest: int
    waiting: int
    partitions: int
    available: Mapping[int, int]
    reachable: bool
    problem: str


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition and whose it is."""

    partition: Partition
    owner: str
    kind: str


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device, where it is wired, and who holds it (names, not ids, of the partition)."""

    device: Device
    kind: str
    domain: int
    in_service: bool
    partition: str | None
    claim: str | None
    owner: str | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a claim is where it is."""

    claim: Claim
    summary: str
    position: int | None
    reasons: tuple[Reason, ...]
