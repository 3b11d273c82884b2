"""Reconciliation: what is wanted against what is there, as decisions.

``judge`` compares our partitions with one good listing of a driver. ``orphans`` compares claims with what a scheduler
says is alive. Both end nothing on one listing: what is missing must be missing several times in a row (law 3), and only
what carries our mark is ever removed (law 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from moorings.core.claims import Claim, ClaimId, PartitionId
from moorings.core.hardware import DriverResult, ListedPartition, ObservedState, ResultCode
from moorings.core.partitions import Partition, PartitionState
from moorings.core.topology import Block

LISTINGS_REQUIRED = 3
# For so long, too, before a job loses its partition: while something is made, listings come ten a second, and the
# controller of the hardware may restart and show nothing for a while. Late costs nothing: a job without devices fails.
MISSING_S_MIN = 30.0
ERRORS_NEEDED = 5  # in a row, before a live job's partition counts as broken: an agent that is down comes back

_SIGNIFICANT_STATES: dict[PartitionState, frozenset[ObservedState]] = {
    PartitionState.PROVISIONING: frozenset({ObservedState.ACTIVE, ObservedState.ERROR}),
    PartitionState.ACTIVE: frozenset({ObservedState.ERROR}),
    PartitionState.RESETTING: frozenset({ObservedState.ACTIVE, ObservedState.ERROR}),
}


def mark_for(installation: str, partition: PartitionId) -> str:
    """The mark by which a driver's partition is known as ours, and as which."""
    return f"moorings/{installation}/{partition}"


@dataclass(frozen=True, slots=True)
class Streak:
    """The same bad word in ``times`` listings in a row, the first of them ``lasted_s`` seconds ago."""

    times: int = 0
    lasted_s: float = 0.0

    def longer(self, apart_s: float) -> Streak:
        """With one more listing, so many seconds after the last."""
        return Streak(self.times + 1, self.lasted_s + apart_s if self.times else 0.0)

    def is_proof(self, times: int) -> bool:
        """Whether it is enough to end something by."""
        return self.times >= times and self.lasted_s >= MISSING_S_MIN


@dataclass(slots=True)
class ListingHistory:
    """What is remembered from listing to listing of one pool.

    Attributes:
        missing: in how many good listings in a row a partition was not, and for how long.
        strays: how many good listings in a row a partition with our mark, that nobody holds, was in.
        errors: in how many good listings in a row an ACTIVE or RESETTING partition was in ERROR, and for how long.
        unmoved: how many good listings in a row a partition was there as if its removal had not been ordered.
    """

    missing: dict[PartitionId, Streak] = field(default_factory=dict)
    strays: dict[str, int] = field(default_factory=dict)
    errors: dict[PartitionId, Streak] = field(default_factory=dict)
    unmoved: dict[PartitionId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """What follows from a listing.

    Attributes:
        answers: what it says of partitions, where that matters.
        again: partitions whose order the driver must be given again (it does not know them any more).
        strays: partitions with our mark that nobody holds: to be removed.
        foreign: blocks that are used and not by our claims (of strangers, and of strays), by name. A stray's too, from
            its first sighting: to end something takes several listings, to give nothing away takes one.
        memory: for the next listing.
    """

    answers: tuple[tuple[PartitionId, DriverResult], ...]
    again: tuple[PartitionId, ...]
    strays: tuple[ListedPartition, ...]
    foreign: Mapping[str, Block]
    memory: ListingHistory


def reconcile_listing(
    partitions: Iterable[Partition],
    ordered: frozenset[PartitionId],
    sightings: Sequence[ListedPartition],
    memory: ListingHistory,
    installation: str,
    apart_s: float,
) -> ReconcileResult:
    """What one good listing says.

    Args:
        partitions: ours in that pool, as they were when the listing was *begun* and are still.
        ordered: those whose present order the driver took before the listing was begun.
        sightings: the listing, without partitions of ours that changed while it was made.
        memory: of the listing before.
        installation: our id; marks hold it.
        apart_s: seconds since the listing before, at least.
    """
    ours = mark_for(installation, PartitionId(""))
    by_mark = {sighting.mark: sighting for sighting in sightings if sighting.mark.startswith(ours)}
    judge_one = _ListingReconciler(memory, ordered, apart_s)
    held: set[str] = set()
    for partition in partitions:
        mark = mark_for(installation, partition.id)
        held.add(mark)
        judge_one.see(partition, by_mark.get(mark))
    strays = {mark: memory.strays.get(mark, 0) + 1 for mark in by_mark if mark not in held}
    judge_one.memory.strays = strays
    sure = [by_mark[mark] for mark, seen in sorted(strays.items()) if seen >= LISTINGS_REQUIRED]
    others = [sighting for sighting in sightings if sighting.mark not in held]
    return ReconcileResult(
        answers=tuple(judge_one.answers),
        again=tuple(judge_one.again),
        strays=tuple(stray for stray in sure if stray.seen is not ObservedState.REMOVING),
        foreign={sighting.name: sighting.block for sighting in sorted(others, key=lambda other: other.name)},
        memory=judge_one.memory,
    )


class _ListingReconciler:
    """One listing's word on one partition after the other; nothing follows from seeing something once."""

    def __init__(self, before: ListingHistory, ordered: frozenset[PartitionId], apart_s: float) -> None:
        self._before = before
        self._apart_s = apart_s
        self._ordered = ordered
        self.memory = ListingHistory()
        self.answers: list[tuple[PartitionId, DriverResult]] = []
        self.again: list[PartitionId] = []

    def see(self, partition: Partition, sighting: ListedPartition | None) -> None:
        if sighting is None:
            self._missing(partition)
        elif partition.state is PartitionState.REMOVING:
            self._still_there(partition, sighting)
        elif sighting.seen in _SIGNIFICANT_STATES.get(partition.state, ()):
            if partition.state is PartitionState.RESETTING and partition.id not in self._ordered:
                return  # it shows the state before the reset
            self._told(partition, sighting)

    def _missing(self, partition: Partition) -> None:
        streak = self._before.missing.get(partition.id, Streak()).longer(self._apart_s)
        self.memory.missing[partition.id] = streak
        if partition.state is PartitionState.REMOVING and partition.id in self._ordered:
            self.again.append(partition.id)  # the driver's own answer to another removal is what counts
        elif partition.state is PartitionState.PROVISIONING:
            if streak.times >= LISTINGS_REQUIRED and partition.id in self._ordered:
                self.again.append(partition.id)
        elif streak.is_proof(LISTINGS_REQUIRED) and partition.state in (
            PartitionState.ACTIVE,
            PartitionState.RESETTING,
        ):
            detail = f"it was missing in {streak.times} listings in a row, for {streak.lasted_s:.0f} s"
            self.answers.append((partition.id, DriverResult(ResultCode.OK, ObservedState.ABSENT, detail)))

    def _still_there(self, partition: Partition, sighting: ListedPartition) -> None:
        """Order a removal again that the driver seems to have forgotten."""
        if partition.id in self._ordered and sighting.seen not in (ObservedState.REMOVING, ObservedState.UNKNOWN):
            times = self.memory.unmoved[partition.id] = self._before.unmoved.get(partition.id, 0) + 1
            if times >= LISTINGS_REQUIRED:
                self.again.append(partition.id)

    def _told(self, partition: Partition, sighting: ListedPartition) -> None:
        if sighting.seen is ObservedState.ERROR and partition.state is not PartitionState.PROVISIONING:
            streak = self._before.errors.get(partition.id, Streak()).longer(self._apart_s)
            self.memory.errors[partition.id] = streak
            if not streak.is_proof(ERRORS_NEEDED):
                return
        detail = f"the driver reports {sighting.raw or sighting.seen}"
        self.answers.append((partition.id, DriverResult(ResultCode.OK, sighting.seen, detail)))


def find_orphans(claims: Iterable[Claim], prefix: str, alive: Sequence[frozenset[str]]) -> tuple[ClaimId, ...]:
    """The claims whose owner begins with ``prefix`` and is in none of the last listings of what is alive.

    Args:
        claims: all that have not ended.
        prefix: whose claims: ``local/``, ``slurm/alpha/``.
        alive: owners alive, one set a good listing, in order; fewer than ``LISTINGS_NEEDED`` end nothing.
    """
    recent = alive[-LISTINGS_REQUIRED:]
    if len(recent) < LISTINGS_REQUIRED:
        return ()
    known = frozenset().union(*recent)
    return tuple(sorted(claim.id for claim in claims if claim.owner.startswith(prefix) and claim.owner not in known))
