"""The gate: how many of Slurm's licenses are kept from its jobs, so that it starts only what gets a partition.

A job of ``s`` devices takes ``s`` of each untracked license ``ipu_k`` with ``k`` up to ``s``; ``ipu_k`` counts devices
in free blocks of at least ``k``. What Slurm may not start now is held by one reservation. A count of partitions by size
would admit too much: of free blocks of 4, 1 and 1 both a job of 4 and one of 2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moorings.slurm.formats import GATE, LICENSE, License

_TWIN = re.compile(rf"{LICENSE}_([1-9][0-9]{{0,6}})")


def twins(licenses: Mapping[str, License]) -> dict[int, str]:
    """The names of the licenses that gate, by the size of block they count."""
    return {int(found[1]): name for name in licenses if (found := _TWIN.fullmatch(name)) is not None}


@dataclass(frozen=True, slots=True)
class Places:
    """What this cluster's jobs hold beside the offer, as sizes.

    Attributes:
        counted: of the live jobs whose claims the offer has taken into account.
        awaiting: of those of them whose claims have no devices yet.
        returning: of the claims whose jobs are over, and whose devices the offer does not have yet; None: what they
            give back may become another's.
    """

    counted: Sequence[int] = ()
    awaiting: Sequence[int] = ()
    returning: Sequence[int] | None = None


NOTHING = Places()


def stay_ours(places: Places, largest: int, *, alone: bool) -> bool:
    """Whether what jobs give back becomes the next jobs' of this cluster, whichever of them is over.

    Args:
        places: with what returns.
        largest: the size of the largest job that waits.
        alone: whether nobody else waits for devices.
    """
    return alone and all(size >= largest for size in (*places.counted, *(places.returning or ())))


def to_reserve(
    licenses: Mapping[str, License], offer: Mapping[int, int] | None, places: Places = NOTHING
) -> dict[str, int]:
    """What the reservation must hold.

    What is in use beyond ``counted`` belongs to jobs that have just been started: the offer still has their blocks, so
    as much of it is held back. Without that, beside others' partitions, Slurm would start two jobs onto one block.

    Where all that returns stays this cluster's, Slurm may start the next job at the end of one, as it does with all it
    has, and need not wait until the partition is gone and the reservation smaller: that is a second, and half of the
    throughput of short jobs (docs/benchmarks.md). The job waits on its node for what little remains.

    Args:
        licenses: as Slurm has them now.
        offer: how many partitions of each size may be started; None: none, as nothing is known, and what running jobs
            give back is held as well.
        places: what this cluster's jobs hold.
    """
    held = {}
    for size, name in sorted(twins(licenses).items()):
        now = licenses[name]
        offered = size * (offer or {}).get(size, 0)
        settled = sum(one for one in places.counted if one >= size)
        if offer is None:
            settled = 0
        elif places.returning is None:
            settled = min(settled, now.used)
        else:
            returns = sum(one for one in places.returning if one >= size)
            settled += max(returns - sum(max(one, size) for one in places.awaiting), 0)
        held[name] = max(now.total - settled - offered, 0)
    return held | ({GATE: 1} if GATE in licenses else {})  # one unknown name in it, and Slurm holds nothing at all


def is_kept(licenses: Mapping[str, License], wanted: Mapping[str, int]) -> bool:
    """Whether Slurm holds back what it should: then it need not be told."""
    return all(name in licenses and licenses[name].reserved == count for name, count in wanted.items())


def what_lacks(licenses: Mapping[str, License], offer: Mapping[int, int] | None) -> str:
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
