"""The CPUs and the memory of the controller's machine, as a pool without devices.

All jobs of this machine are counted against them, also those with devices of another pool. A pool, so that the queue,
its reservations and the explanations are those of every other claim. Refused: a second queue for CPUs, which could
grant a job one half of what it needs.
"""

from __future__ import annotations

from collections.abc import Mapping

from moorings.core.model.devices import PoolName
from moorings.core.model.quantities import amount_text
from moorings.core.model.topology import AnySubset, Pool

MACHINE_KIND = "machine"
MACHINE_POOL = PoolName("machine")
MACHINE_CPUS = "cpus"
MACHINE_MEMORY = "memory"


def machine_pool(offered: Mapping[str, int]) -> Pool:
    """The pool of a machine that gives its jobs so many CPUs and bytes of memory; 0: these are not counted."""
    counted = tuple((name, amount) for name, amount in sorted(offered.items()) if amount)
    return Pool(MACHINE_POOL, MACHINE_KIND, MACHINE_KIND, AnySubset(0, 0), counted)


def machine_amount_text(name: str, amount: int) -> str:
    """So many CPUs, or so much memory, for a sentence."""
    if name == MACHINE_CPUS:
        return f"{amount} CPU" if amount == 1 else f"{amount} CPUs"
    return f"{amount_text(amount)} of {name}"
