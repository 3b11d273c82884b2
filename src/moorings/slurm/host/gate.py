"""The gate: how many of Slurm's licenses are kept from its jobs, so that it starts only what gets a partition.

A job of ``s`` devices takes ``s`` of each untracked license ``ipu_k`` with ``k`` up to ``s``; ``ipu_k`` counts devices
in free blocks of at least ``k``. What Slurm may not start now is held by one reservation. A count of partitions by size
would admit too much: of free blocks of 4, 1 and 1 both a job of 4 and one of 2.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from moorings.core.claims import SERVED
from moorings.slurm.formats import GATE, LICENSE, License
from moorings.wire.shapes import ClaimBody, ReasonBody

_TWIN = re.compile(rf"{LICENSE}_([1-9][0-9]{{0,6}})")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOffer:
    """What the controller offers this cluster, and what it said of the jobs announced.

    Attributes:
        counts: how many partitions of each size may be started; None: nothing is known, so nothing may.
        asked_at: the loop's time; every claim that was made before is counted.
        held: how many partitions of each size this cluster's claims held then.
        alone: whether nobody but this cluster's jobs waits for what it is offered.
        reasons: why each of the jobs announced waits that has not been offered its devices, by owner, in order.
        offered: the owners of the jobs announced whose devices are kept for them, free.
        contested: whether another Slurm of this name was refused a little while ago: unknown jobs may be that one's.
    """

    counts: Mapping[int, int] | None = None
    asked_at: float = 0.0
    held: Mapping[int, int] = field(default_factory=dict)
    alone: bool = False
    reasons: Mapping[str, ReasonBody] = field(default_factory=dict)
    offered: frozenset[str] = frozenset()
    contested: bool = False


def gate_licenses(licenses: Mapping[str, License]) -> dict[int, str]:
    """The names of the licenses that gate, by the size of block they count."""
    return {int(found[1]): name for name in licenses if (found := _TWIN.fullmatch(name)) is not None}


def is_reusable_by_queue(held: Iterable[int], largest: int, *, alone: bool) -> bool:
    """Whether what jobs give back becomes the next jobs' of this cluster, whichever of them ends.

    Args:
        held: the sizes that its claims hold.
        largest: the size of the largest job of it that has no devices yet, in the queue or started.
        alone: whether nobody else waits for devices.
    """
    return alone and all(size >= largest for size in held)


def sizes_without_licenses(claims: Iterable[ClaimBody], live: Collection[str], releasing: Collection[str]) -> list[int]:
    """The sizes of the claims that hold devices for jobs without licenses: completing, or missing from a list.

    Args:
        claims: of the cluster, unended.
        live: owners of the jobs that have their licenses.
        releasing: ids of the claims whose jobs are over.
    """
    held = [claim for claim in claims if claim.owner not in live and claim.state in SERVED]
    return [claim.size for claim in held if claim.id not in releasing]


def sizes_awaiting_devices(claims: Iterable[ClaimBody], live: Collection[str]) -> list[int]:
    """The sizes of the live jobs whose claims have no devices yet."""
    return [claim.size for claim in claims if claim.owner in live and claim.state not in SERVED]


def to_reserve(
    licenses: Mapping[str, License],
    offer: Mapping[int, int] | None,
    counted: Sequence[int] = (),
    held: Mapping[int, int] | None = None,
) -> dict[str, int]:
    """What the reservation must hold.

    What is in use beyond ``counted`` belongs to jobs that have just been started: the offer still has their blocks, so
    as much of it is held back. Without that, beside others' partitions, Slurm would start two jobs onto one block.

    With ``held`` Slurm may have in use what is held and what is offered together, whoever of its jobs it is. That sum
    stays the same when a claim is made, and when a job ends: Slurm starts the next one at once, and need not wait until
    the partition is gone and the reservation is smaller, which costs short jobs a quarter of their rate
    (docs/adr/0006-offers-to-other-schedulers.md).

    Args:
        licenses: as Slurm has them now.
        offer: how many partitions of each size may be started; None: none, as nothing is known, and what running jobs
            give back is held as well.
        counted: sizes of the live jobs whose claims the offer has taken into account.
        held: how many partitions of each size this cluster's claims held at the moment of the offer, but for those
            whose jobs have given up their licenses and not yet their devices; None: what they give back may become
            another's.
    """
    kept = {}
    for size, name in sorted(gate_licenses(licenses).items()):
        now = licenses[name]
        if offer is None:
            ours = 0
        elif held is None:
            # Where no block is free to start on, what running jobs give back is held in advance: Slurm starts the next
            # job in the instant in which one ends, and piece by piece would take what is kept for a larger one.
            ours = min(sum(one for one in counted if one >= size), now.used) if offer.get(size) else 0
        else:
            ours = sum(one * count for one, count in held.items() if one >= size)
        kept[name] = max(now.total - ours - size * (offer or {}).get(size, 0), 0)
    return kept | ({GATE: 1} if GATE in licenses else {})  # one unknown name in it, and Slurm holds nothing at all


def is_reserved(licenses: Mapping[str, License], wanted: Mapping[str, int]) -> bool:
    """Whether Slurm holds back what it should: then it need not be told."""
    return all(name in licenses and licenses[name].reserved == count for name, count in wanted.items())


def describe_missing_licenses(licenses: Mapping[str, License], offer: Mapping[int, int] | None) -> str:
    """What is wrong with ``Licenses`` of slurm.conf, as a sentence for the admin; empty: nothing."""
    sizes = sorted(offer or {})
    wanted = {LICENSE, GATE, *(f"{LICENSE}_{size}" for size in sizes)}
    missing = sorted(wanted - licenses.keys())
    if missing:
        return f"Licenses of slurm.conf lacks {', '.join(missing)}: such jobs are not taken, or not kept waiting"
    few = [
        f"{name}:{licenses[name].total}"
        for size in sizes
        if (name := f"{LICENSE}_{size}") in licenses and licenses[name].total < size * (offer or {})[size]
    ]
    if few:
        return f"the pool has more than {', '.join(few)} of Licenses in slurm.conf: Slurm cannot use all of it"
    return ""
