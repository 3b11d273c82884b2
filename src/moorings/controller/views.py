"""Views: records joined with related ones, as values; ``api`` gives them their wire form."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from moorings.core.forecast.whatif import PolicyComparison
from moorings.core.model.claims import Claim, ClaimId, PoolBlock
from moorings.core.model.devices import Device, DeviceState, PoolName, parse_device_id
from moorings.core.model.errors import MooringsError
from moorings.core.model.owners import HIDDEN
from moorings.core.model.partitions import Partition
from moorings.core.model.reasons import Reason
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import AnySubset, Block, Pool
from moorings.core.model.visibility import SEES_ALL, Visibility
from moorings.core.placement.fleet import Fleet, PoolState
from moorings.ports.personal import SubmissionTarget
from moorings.ports.store import PageQuery
from moorings.wire.shapes import FOREIGN_REASON
from moorings.workloads.idleness import Idleness
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import Run

HIDDEN_BREAK: Final = "a partition broke on it"
ANY_SUBSET_SIZES_SHOWN = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class ClaimView:
    """A claim, the partition it holds, its queue position (1 is next) and why it waits or ended.

    An outline is another's claim for a ``viewer``: without any name, and for people of one machine with its subject.
    """

    claim: Claim
    partition: Partition | None
    position: int | None
    reason: Reason | None
    is_outline: bool = False
    shows_subject: bool = False


@dataclass(frozen=True, slots=True)
class RunView:
    """A run and the state of its claim.

    Attributes:
        notes: where its engine deviates from the job file.
        job: the whole job; None in a list of heads.
        idleness: that it holds devices and has not worked for long; None: it is not idle.
        submission: where its person's ``moor`` is to submit it; None: it need not.
    """

    run: Run
    claim: Claim | None
    partition: Partition | None
    position: int | None
    reason: Reason | None
    notes: tuple[str, ...] = ()
    job: JobSpec | None = None
    idleness: Idleness | None = None
    submission: SubmissionTarget | None = None


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
    used_resources: Mapping[str, int] = field(default_factory=dict)  # of its secondary resources


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition and its owner; an outline as in ``ClaimView``."""

    partition: Partition
    owner: str
    kind: str
    is_outline: bool = False


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device, where it is wired, and its holder (names, not ids, of the partition), as far as the caller sees it."""

    device: Device
    kind: str
    domain: int
    in_service: bool
    partition: str | None
    claim: str | None
    owner: str | None


@dataclass(frozen=True, slots=True)
class EstimateView:
    """When a claim would start, at the latest; ``starts_at`` is None if unknown, and ``why`` gives the reason."""

    starts_at: Timestamp | None
    starts_now: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class WhatIfView:
    """What another policy would change from ``at`` on, with those of its claims that the caller sees."""

    at: Timestamp
    found: PolicyComparison
    claims: Mapping[ClaimId, Claim]


@dataclass(frozen=True, slots=True)
class MovesView:
    """The block to be freed, the loss (device-seconds), and the moves: claim (None: not seen), from, to."""

    spot: PoolBlock
    cost: float
    moves: tuple[tuple[Claim | None, Block, Block], ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a claim is in its state, and when it would start, if that was requested."""

    claim: Claim
    summary: str
    position: int | None
    reasons: tuple[Reason, ...]
    estimate: EstimateView | None = None
    options: tuple[str, ...] = ()


def pool_view(fleet: Fleet, state: PoolState) -> PoolView:
    """A pool and its use."""
    pool = state.pool
    topology = pool.topology
    sizes = (
        [size for size in ANY_SUBSET_SIZES_SHOWN if size <= topology.max_block]
        if isinstance(topology, AnySubset)
        else topology.sizes
    )
    return PoolView(
        pool=pool,
        free=state.free.n_free,
        out_of_service=len(state.out_of_service),
        largest=state.free.largest_size(),
        waiting=sum(
            len(claims)
            for ((kind, named, *_), _, _), claims in fleet.pending_classes.items()
            if named == pool.name or (named is None and kind == pool.kind)
        ),
        partitions=len(state.held_blocks),
        available={size: state.free.count_blocks(size) for size in sizes},
        reachable=not state.unreachable_reason,
        problem=state.unreachable_reason,
        used_resources={name: state.used_resources.get(name, 0) for name, _ in pool.resources},
    )


def partitions_by_device(fleet: Fleet, state: PoolState) -> dict[int, Partition]:
    """The partition of each held device of a pool."""
    return {
        index: partition
        for partition in fleet.partitions.values()
        if partition.pool == state.pool.name
        for index in partition.block
    }


def device_view(
    fleet: Fleet,
    state: PoolState,
    index: int,
    partition: Partition | None,
    unheld: Container[str] = (),
    visible: Visibility = SEES_ALL,
) -> DeviceView:
    """A device of a pool, and its partition; ``unheld``: names of partitions with our mark and without a record."""
    pool = state.pool
    device = state.out_of_service.get(index) or Device(pool.name, index, DeviceState.IN_SERVICE, "", Timestamp(0))
    claim = fleet.claims.get(partition.claim) if partition is not None else None
    foreign = next((name for name, block in state.foreign_blocks.items() if index in block), None)
    if foreign is not None and device.state is DeviceState.IN_SERVICE:
        origin = "which no record knows" if foreign in unheld else FOREIGN_REASON
        device = replace(device, reason=f"used by partition {foreign!r}, {origin}")
    if device.state is DeviceState.QUARANTINED and not visible.sees_all:  # the reason names the partition
        device = replace(device, reason=HIDDEN_BREAK)
    holder: tuple[str, str, str | None] | None
    holder = (partition.name, partition.claim, claim.owner if claim is not None else None) if partition else None
    if partition is not None and not sees_partition(fleet, partition, visible):
        holder = (HIDDEN, partition.claim if visible.sees_outlines else HIDDEN, HIDDEN)
    name, held_by, owner = holder or (foreign, None, None)
    return DeviceView(
        device=device,
        kind=pool.kind,
        domain=pool.topology.domain_of(index),
        in_service=device.state is DeviceState.IN_SERVICE,
        partition=name,
        claim=held_by,
        owner=owner,
    )


def device_views(
    fleet: Fleet,
    states: Sequence[PoolState],
    page: PageQuery,
    unheld_in: Callable[[PoolName], Container[str]],
    visible: Visibility,
) -> list[DeviceView]:
    """A page of the devices of these pools.

    Raises:
        MooringsError: ``device.unknown`` (of ``page.after``).
    """
    first = 0
    if page.after is not None:
        name, index = parse_device_id(page.after)
        names = [state.pool.name for state in states]
        if name not in names:
            raise MooringsError("device.unknown", f"there is no device {page.after[:80]!r}")
        states, first = states[names.index(name) :], index + 1
    found: list[DeviceView] = []
    for state in states:
        held, unheld = partitions_by_device(fleet, state), unheld_in(state.pool.name)
        last = min(state.pool.topology.n_devices, first + page.limit - len(found))
        found += [device_view(fleet, state, at, held.get(at), unheld, visible) for at in range(first, last)]
        first = 0
        if len(found) >= page.limit:
            break
    return found


def sees_partition(fleet: Fleet, partition: Partition, visible: Visibility) -> bool:
    """Whether a caller sees a partition: with its claim; without one it is nobody's."""
    claim = fleet.claims.get(partition.claim)
    return visible.sees_all or (claim is not None and visible.includes_claim(claim))


def partition_view(fleet: Fleet, partition: Partition, visible: Visibility) -> PartitionView:
    """A partition and its owner."""
    claim, kind = fleet.claims.get(partition.claim), fleet.pools[partition.pool].pool.kind
    outline = not sees_partition(fleet, partition, visible)
    return PartitionView(partition, claim.owner if claim is not None else "", kind, is_outline=outline)


def describe_claim(claim: Claim, partition: Partition | None) -> str:
    """The state of a claim, in a sentence."""
    if partition is not None:
        return (
            f"claim {claim.name} is {claim.state}: partition {partition.name} ({partition.state}), "
            f"devices {partition.block} of {partition.pool}"
        )
    reason = f": {claim.reason.message}" if claim.reason is not None else ""
    return f"claim {claim.name} is {claim.state}{reason}"
