"""The gate: how many of Slurm's licenses are kept from its jobs, so that it starts only what gets a partition.

A job of ``s`` devices takes ``s`` of each untracked license ``ipu_k`` with ``k`` up to ``s``; ``ipu_k`` counts devices
in free blocks of at least ``k``. What Slurm may not start now is held by one reservation. A count of partitions by size
would admit too much: of free blocks of 4, 1 and 1 both a job of 4 and one of 2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from moorings.slurm.formats import GATE, LICENSE, License

_TWIN = re.compile(rf"{LICENSE}_([1-9][0-9]{{0,6}})")


def twins(licenses: Mapping[str, License]) -> dict[int, str]:
    """The names of the licenses that gate, by the size of block they count."""
    return {int(found[1]): name for name in licenses if (found := _TWIN.fullmatch(name)) is not None}


def to_reserve(licenses: Mapping[str, License], offer: Mapping[int, int] | None) -> dict[str, int]:
    """What the reservation must hold.

    Args:
        licenses: as Slurm has them now.
        offer: how many partitions of each size may be started; None: none, as nothing is known.
    """
    held = {}
    for size, name in sorted(twins(licenses).items()):
        now = licenses[name]
        free = size * (offer or {}).get(size, 0)
        held[name] = max(now.total - now.used - free, 0)
    return {**held, GATE: 1}


def is_kept(licenses: Mapping[str, License], wanted: Mapping[str, int]) -> bool:
    """Whether Slurm holds back what it should: then it need not be told."""
    return all(name in licenses and licenses[name].reserved == count for name, count in wanted.items())
