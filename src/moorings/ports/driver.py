"""What the controller needs of hardware."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from moorings.core.bindings import Binding
from moorings.core.hardware import Capability, DriverResult, ListedPartition, PartitionSpec


class Driver(Protocol):
    """One pool's hardware.

    Orders are idempotent: ``create`` of a name that exists with the same mark answers for the existing partition; with
    another mark, or on devices that are in use, it is *unavailable* (whoever has them shows in the listing, and the
    controller looks for another name and block); ``remove`` of an absent partition is OK and ABSENT. An order never
    raises for what the hardware does: it answers *unavailable* when no answer came (it may have been done all the
    same).
    No order waits for the partition to get ready: it returns when the order is taken; ``list_partitions`` tells.
    """

    @property
    def capability(self) -> Capability:
        """What this driver can do."""
        ...

    def adopt(self, held: Sequence[PartitionSpec]) -> None:
        """Know these orders as ours, whichever controller, on whatever machine, gave them: the database holds them.

        Called before a controller that begins to lead orders anything, and when it has read its database again.
        """
        ...

    async def create(self, order: PartitionSpec) -> DriverResult:
        """Make a partition."""
        ...

    async def reset(self, name: str, mark: str) -> DriverResult:
        """Reset the partition of that name and mark: its devices are put into a clean state, it stays."""
        ...

    async def remove(self, name: str, mark: str) -> DriverResult:
        """Remove the partition of that name and mark. One with another mark is not touched: ours is ABSENT then."""
        ...

    async def list_partitions(self) -> Sequence[ListedPartition]:
        """Every partition the hardware has, ours or not.

        Raises:
            MooringsError: ``driver.unavailable``; an incomplete listing is never returned.
        """
        ...

    async def binding(self, order: PartitionSpec) -> Binding:
        """What a job on that ACTIVE partition is given.

        Raises:
            MooringsError: ``driver.unavailable``, or ``partition.not_active``.
        """
        ...

    async def close(self) -> None:
        """Let go of connections and files; the hardware stays as it is."""
        ...
