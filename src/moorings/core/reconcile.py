"""Reconciliation: the desired state against the observed one, as decisions.

``reconcile_listing`` compares our partitions with one good listing of a driver. ``find_orphans`` compares claims with
what a scheduler reports alive. One listing ends nothing: a missing object must be missing several times in a row
(law 3), and only partitions with our mark are ever removed (law 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from moorings.core.model.claims import Claim, ClaimId, PartitionId
from moorings.core.model.driver_results import DriverResult, ListedPartition, ObservedState, ResultCode
from moorings.core.model.partitions import Partition, PartitionState
from moorings.core.model.topology import Block

LISTINGS_REQUIRED = 3
# A job loses its partition only after this time, too: while a partition is created, listings come ten a second, and a
# restarted hardware controller may list nothing for a while. Being late costs nothing: a job without devices fails.
MISSING_S_MIN = 30.0
ERRORS_NEEDED = 5  # in a row, before a live job's partition counts as broken: an agent may be down and come back

_SIGNIFICANT_STATES: dict[PartitionState, frozenset[ObservedState]] = {
    PartitionState.PROVISIONING: frozenset({ObservedState.ACTIVE, ObservedState.ERROR}),
    PartitionState.ACTIVE: frozenset({ObservedState.ERROR}),
    PartitionState.RESETTING: frozenset({ObservedState.ACTIVE, ObservedState.ERROR}),
}


def mark_for(installation: str, partition: PartitionId) -> str:
    """The mark on a driver's partition that identifies it as ours, and which one it is."""
    return f"moorings/{installation}/{partition}"


@dataclass(frozen=True, slots=True)
class Streak:
    """The same bad state in ``times`` listings in a row, the first of them ``lasted_s`` seconds ago."""

    times: int = 0
    lasted_s: float = 0.0

    def extended(self, apart_s: float) -> Streak:
        """The streak with one more listing, so many seconds after the last."""
        return Streak(self.times + 1, self.lasted_s + apart_s if self.times else 0.0)

    def is_conclusive(self, times: int) -> bool:
        """Whether it is enough evidence to end something."""
        return self.times >= times and self.lasted_s >= MISSING_S_MIN


@dataclass(slots=True)
class ListingHistory:
    """The memory from one listing of a pool to the next.

    Attributes:
        missing: in how many good listings in a row a partition was missing, and for how long.
        strays: in how many good listings in a row there was a partition with our mark that no claim holds.
        errors: in how many good listings in a row an ACTIVE or RESETTING partition was in ERROR, and for how long.
        still_present: in how many good listings in a row a partition was there as if its removal had not been ordered.
    """

    missing: dict[PartitionId, Streak] = field(default_factory=dict)
    strays: dict[str, int] = field(default_factory=dict)
    errors: dict[PartitionId, Streak] = field(default_factory=dict)
    still_present: dict[PartitionId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """The consequences of a listing.

    Attributes:
        results: what it says of partitions, if that matters.
        to_repeat: partitions whose order must be sent again (the driver no longer knows it).
        strays: partitions with our mark that no claim holds: to be removed.
        foreign: blocks used by others than our claims (foreign partitions and strays), by name. A stray counts from its
            first listing: ending something takes several listings, withholding devices takes one.
        memory: for the next listing.
    """

    results: tuple[tuple[PartitionId, DriverResult], ...]
    to_repeat: tuple[PartitionId, ...]
    strays: tuple[ListedPartition, ...]
    foreign: Mapping[str, Block]
    memory: ListingHistory


def reconcile_listing(
    partitions: Iterable[Partition],
    operations_taken: frozenset[PartitionId],
    sightings: Sequence[ListedPartition],
    memory: ListingHistory,
    installation: str,
    apart_s: float,
) -> ReconcileResult:
    """The consequences of one good listing.

    Args:
        partitions: ours in that pool that did not change since the listing *began*.
        operations_taken: those whose present order the driver accepted before the listing began.
        sightings: the listing, without partitions of ours that changed during it.
        memory: from the listing before.
        installation: our id, part of our marks.
        apart_s: seconds since the listing before, at least.
    """
    ours = mark_for(installation, PartitionId(""))
    by_mark = {sighting.mark: sighting for sighting in sightings if sighting.mark.startswith(ours)}
    judge_one = _ListingReconciler(memory, operations_taken, apart_s)
    held: set[str] = set()
    for partition in partitions:
        mark = mark_for(installation, partition.id)
        held.add(mark)
        judge_one.check_partition(partition, by_mark.get(mark))
    strays = {mark: memory.strays.get(mark, 0) + 1 for mark in by_mark if mark not in held}
    judge_one.memory.strays = strays
    sure = [by_mark[mark] for mark, seen in sorted(strays.items()) if seen >= LISTINGS_REQUIRED]
    others = [sighting for sighting in sightings if sighting.mark not in held]
    return ReconcileResult(
        results=tuple(judge_one.answers),
        to_repeat=tuple(judge_one.again),
        strays=tuple(stray for stray in sure if stray.state is not ObservedState.REMOVING),
        foreign={sighting.name: sighting.block for sighting in sorted(others, key=lambda other: other.name)},
        memory=judge_one.memory,
    )


class _ListingReconciler:
    """Compares one listing with our partitions, one after the other; a single observation ends nothing."""

    def __init__(self, before: ListingHistory, ordered: frozenset[PartitionId], apart_s: float) -> None:
        self._before = before
        self._apart_s = apart_s
        self._ordered = ordered
        self.memory = ListingHistory()
        self.answers: list[tuple[PartitionId, DriverResult]] = []
        self.again: list[PartitionId] = []

    def check_partition(self, partition: Partition, sighting: ListedPartition | None) -> None:
        if sighting is None:
            self._handle_missing(partition)
        elif partition.state is PartitionState.REMOVING:
            self._still_there(partition, sighting)
        elif sighting.state in _SIGNIFICANT_STATES.get(partition.state, ()):
            if partition.state is PartitionState.RESETTING and partition.id not in self._ordered:
                return  # it is the state before the reset
            self._handle_state(partition, sighting)

    def _handle_missing(self, partition: Partition) -> None:
        streak = self._before.missing.get(partition.id, Streak()).extended(self._apart_s)
        self.memory.missing[partition.id] = streak
        if partition.state is PartitionState.REMOVING and partition.id in self._ordered:
            self.again.append(partition.id)  # only the driver's own answer to another removal counts
        elif partition.state is PartitionState.PROVISIONING:
            if streak.times >= LISTINGS_REQUIRED and partition.id in self._ordered:
                self.again.append(partition.id)
        elif streak.is_conclusive(LISTINGS_REQUIRED) and partition.state in (
            PartitionState.ACTIVE,
            PartitionState.RESETTING,
        ):
            detail = f"it was missing in {streak.times} listings in a row, for {streak.lasted_s:.0f} s"
            self.answers.append((partition.id, DriverResult(ResultCode.OK, ObservedState.ABSENT, detail)))

    def _still_there(self, partition: Partition, sighting: ListedPartition) -> None:
        """Order a removal again that the driver seems to have forgotten."""
        if partition.id in self._ordered and sighting.state not in (ObservedState.REMOVING, ObservedState.UNKNOWN):
            times = self.memory.still_present[partition.id] = self._before.still_present.get(partition.id, 0) + 1
            if times >= LISTINGS_REQUIRED:
                self.again.append(partition.id)

    def _handle_state(self, partition: Partition, sighting: ListedPartition) -> None:
        if sighting.state is ObservedState.ERROR and partition.state is not PartitionState.PROVISIONING:
            streak = self._before.errors.get(partition.id, Streak()).extended(self._apart_s)
            self.memory.errors[partition.id] = streak
            if not streak.is_conclusive(ERRORS_NEEDED):
                return
        detail = f"the driver reports {sighting.vendor_state or sighting.state}"
        self.answers.append((partition.id, DriverResult(ResultCode.OK, sighting.state, detail)))


def find_orphans(claims: Iterable[Claim], prefix: str, alive: Sequence[frozenset[str]]) -> tuple[ClaimId, ...]:
    """The claims whose owner begins with ``prefix`` and is in none of the last listings of live owners.

    Args:
        claims: all that have not ended.
        prefix: of the owners: ``local/``, ``slurm/alpha/``.
        alive: live owners, one set a good listing, in order; fewer than ``LISTINGS_REQUIRED`` end nothing.
    """
    recent = alive[-LISTINGS_REQUIRED:]
    if len(recent) < LISTINGS_REQUIRED:
        return ()
    known = frozenset().union(*recent)
    return tuple(sorted(claim.id for claim in claims if claim.owner.startswith(prefix) and claim.owner not in known))
