"""Reconciliation: what is wanted against what is there, as decisions.

``judge`` compares our partitions with one good listing of a driver. ``orphans`` compares claims with what a scheduler
says is alive. Both end nothing on one listing: what is missing must be missing several times in a row (law 3), and only
what carries our mark is ever removed (law 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from moorings.core.claims import Claim, ClaimId, PartitionId
from moorings.core.hardware import Answer, Seen, Sighting, Verdict
from moorings.core.partitions import Partition, PartitionState
from moorings.core.topology import Block

LISTINGS_NEEDED = 3

_TELLING: dict[PartitionState, frozenset[Seen]] = {
    PartitionState.PROVISIONING: frozenset({Seen.ACTIVE, Seen.ERROR}),
    PartitionState.ACTIVE: frozenset({Seen.ERROR}),
    PartitionState.RESETTING: frozenset({Seen.ACTIVE, Seen.ERROR}),
}


def mark_of(installation: str, partition: PartitionId) -> str:
    """The mark by which a driver's partition is known as ours, and as which."""
    return f"moorings/{installation}/{partition}"


@dataclass(slots=True)
class Memory:
    """What is remembered from listing to listing of one pool.

    Attributes:
        missing: how many good listings in a row a partition was not in.
        strays: how many good listings in a row a partition with our mark, that nobody holds, was in.
    """

    missing: dict[PartitionId, int] = field(default_factory=dict)
    strays: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What follows from a listing.

    Attributes:
        answers: what it says of partitions, where that matters.
        again: partitions whose order the driver must be given again (it does not know them any more).
        strays: names of partitions with our mark that nobody holds: to be removed.
        foreign: blocks of partitions that are not ours, by name.
        memory: for the next listing.
    """

    answers: tuple[tuple[PartitionId, Answer], ...]
    again: tuple[PartitionId, ...]
    strays: tuple[str, ...]
    foreign: Mapping[str, Block]
    memory: Memory


def judge(
    partitions: Iterable[Partition],
    ordered: frozenset[PartitionId],
    sightings: Sequence[Sighting],
    memory: Memory,
    installation: str,
) -> Judgement:
    """What one good listing says.

    Args:
        partitions: ours in that pool, as they were when the listing was *begun* and are still.
        ordered: those whose present order the driver took before the listing was begun.
        sightings: the listing.
        memory: of the listing before.
        installation: our id; marks hold it.
    """
    ours = mark_of(installation, PartitionId(""))
    by_mark = {sighting.mark: sighting for sighting in sightings if sighting.mark.startswith(ours)}
    answers: list[tuple[PartitionId, Answer]] = []
    again: list[PartitionId] = []
    missing: dict[PartitionId, int] = {}
    held: set[str] = set()
    for partition in partitions:
        mark = mark_of(installation, partition.id)
        held.add(mark)
        sighting = by_mark.get(mark)
        if sighting is None:
            missing[partition.id] = memory.missing.get(partition.id, 0) + 1
            if partition.state is PartitionState.REMOVING and partition.id in ordered:
                again.append(partition.id)  # the driver's own answer to another removal is what counts
            elif missing[partition.id] >= LISTINGS_NEEDED:
                if partition.state is PartitionState.PROVISIONING and partition.id in ordered:
                    again.append(partition.id)
                elif partition.state in (PartitionState.ACTIVE, PartitionState.RESETTING):
                    detail = f"it was missing in {missing[partition.id]} listings in a row"
                    answers.append((partition.id, Answer(Verdict.OK, Seen.ABSENT, detail)))
        elif sighting.seen in _TELLING.get(partition.state, ()) and (
            partition.state is not PartitionState.RESETTING or partition.id in ordered
        ):
            answers.append(
                (partition.id, Answer(Verdict.OK, sighting.seen, f"the driver reports {sighting.raw or sighting.seen}"))
            )
    strays = {mark: memory.strays.get(mark, 0) + 1 for mark in by_mark if mark not in held}
    return Judgement(
        answers=tuple(answers),
        again=tuple(again),
        strays=tuple(sorted(by_mark[mark].name for mark, seen in strays.items() if seen >= LISTINGS_NEEDED)),
        foreign={s.name: s.block for s in sightings if not s.mark.startswith(ours)},
        memory=Memory(missing, strays),
    )


def orphans(claims: Iterable[Claim], prefix: str, alive: Sequence[frozenset[str]]) -> tuple[ClaimId, ...]:
    """The claims whose owner begins with ``prefix`` and is in none of the last listings of what is alive.

    Args:
        claims: all that have not ended.
        prefix: whose claims: ``local/``, ``slurm/alpha/``.
        alive: owners alive, one set a good listing, in order; fewer than ``LISTINGS_NEEDED`` end nothing.
    """
    recent = alive[-LISTINGS_NEEDED:]
    if len(recent) < LISTINGS_NEEDED:
        return ()
    known = frozenset().union(*recent)
    return tuple(sorted(claim.id for claim in claims if claim.owner.startswith(prefix) and claim.owner not in known))
