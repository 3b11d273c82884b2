"""The gate: the number of Slurm's licenses withheld from its jobs, so that only jobs with a partition start.

A job of ``s`` devices takes ``s`` of each untracked license ``ipu_k`` with ``k`` up to ``s``; ``ipu_k`` counts devices
in free blocks of at least ``k``. One reservation holds what Slurm must not start now. A count of partitions by size
would admit too much: with free blocks of 4, 1 and 1 it admits both a job of 4 and one of 2.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from moorings.core.model.claims import SERVED
from moorings.slurm.formats import GATE, LICENSE, License
from moorings.wire.shapes import ClaimBody, ReasonBody

_TWIN = re.compile(rf"{LICENSE}_([1-9][0-9]{{0,6}})")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOffer:
    """The controller's offer to this cluster, and its reasons for the reported jobs.

    Attributes:
        counts: how many partitions of each size may start; None: unknown, so none may.
        asked_at: the loop's time; every claim made before it is counted.
        held_counts: how many partitions of each size this cluster's claims held then.
        is_sole_queue: whether only this cluster's jobs wait for the offered devices.
        reasons: by owner, in order, why each reported job without offered devices waits.
        offered: the owners of the reported jobs with free devices reserved for them.
        is_contested: whether another Slurm of this name was refused recently: unknown jobs may belong to that one.
    """

    counts: Mapping[int, int] | None = None
    asked_at: float = 0.0
    held_counts: Mapping[int, int] = field(default_factory=dict)
    is_sole_queue: bool = False
    reasons: Mapping[str, ReasonBody] = field(default_factory=dict)
    offered: frozenset[str] = frozenset()
    is_contested: bool = False


def gate_licenses(licenses: Mapping[str, License]) -> dict[int, str]:
    """Return the names of the gate's licenses, by the size of block they count."""
    return {int(found[1]): name for name in licenses if (found := _TWIN.fullmatch(name)) is not None}


def is_reusable_by_queue(held: Iterable[int], largest: int, *, alone: bool) -> bool:
    """Whether this cluster's next jobs get the devices that its jobs release, whichever ends.

    Args:
        held: the sizes that its claims hold.
        largest: the size of its largest job without devices yet, pending or started.
        alone: whether no other jobs wait for devices.
    """
    return alone and all(size >= largest for size in held)


def sizes_without_licenses(claims: Iterable[ClaimBody], live: Collection[str], releasing: Collection[str]) -> list[int]:
    """Return the sizes of claims that hold devices for jobs without licenses: completing, or not listed.

    Args:
        claims: the cluster's, not ended.
        live: owners of the jobs with their licenses.
        releasing: ids of the claims whose jobs have ended.
    """
    held = [claim for claim in claims if claim.owner not in live and claim.state in SERVED]
    return [claim.size for claim in held if claim.id not in releasing]


def sizes_awaiting_devices(claims: Iterable[ClaimBody], live: Collection[str]) -> list[int]:
    """Return the sizes of the live jobs whose claims have no devices yet."""
    return [claim.size for claim in claims if claim.owner in live and claim.state not in SERVED]


def to_reserve(
    licenses: Mapping[str, License],
    offer: Mapping[int, int] | None,
    counted: Sequence[int] = (),
    held: Mapping[int, int] | None = None,
) -> dict[str, int]:
    """Return the licenses that the reservation must hold.

    Licenses in use beyond ``counted`` belong to jobs that have just started. Their blocks are still in the offer, so as
    much of the offer is withheld. Otherwise, beside others' partitions, Slurm would start two jobs onto one block.

    With ``held`` Slurm may use the held and the offered devices together, for any of its jobs. That sum stays the same
    when a claim is made and when a job ends. So Slurm starts the next job at once, and need not wait until the
    partition is gone and the reservation is smaller; that wait costs short jobs a quarter of their rate
    (docs/adr/0006-offers-to-other-schedulers.md).

    Args:
        licenses: as Slurm has them now.
        offer: how many partitions of each size may start; None: unknown, so none may, and the licenses that running
            jobs
        release are withheld as well.
        counted: sizes of the live jobs whose claims are counted in the offer.
        held: how many partitions of each size this cluster's claims held at the time of the offer, without claims
        whose jobs have released their licenses but not yet their devices; None: what they release may go to others.
    """
    kept = {}
    for size, name in sorted(gate_licenses(licenses).items()):
        now = licenses[name]
        if offer is None:
            ours = 0
        elif held is None:
            # Where no block is free to start on, withhold in advance what running jobs release: Slurm starts the next
            # job the moment one ends, and would take, piece by piece, a block reserved for a larger one.
            ours = min(sum(one for one in counted if one >= size), now.used) if offer.get(size) else 0
        else:
            ours = sum(one * count for one, count in held.items() if one >= size)
        kept[name] = max(now.total - ours - size * (offer or {}).get(size, 0), 0)
    return kept | ({GATE: 1} if GATE in licenses else {})  # with one unknown name in it, Slurm holds nothing at all


def is_reserved(licenses: Mapping[str, License], wanted: Mapping[str, int]) -> bool:
    """Whether Slurm already withholds the right number, so that no update is needed."""
    return all(name in licenses and licenses[name].reserved == count for name, count in wanted.items())


def describe_missing_licenses(licenses: Mapping[str, License], offer: Mapping[int, int] | None) -> str:
    """Return a sentence for the admin on what is wrong with ``Licenses`` of slurm.conf; empty: nothing."""
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
