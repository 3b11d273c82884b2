"""The driver: the controller's interface to hardware."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from moorings.core.model.bindings import Binding
from moorings.core.model.driver_results import Capability, DriverResult, ListedPartition, PartitionSpec


class Driver(Protocol):
    """The hardware of one pool.

    Orders are idempotent: ``create`` of a name that exists with the same mark returns the existing partition; with
    another mark, or on devices in use, the result is *unavailable* (the listing shows who uses them, and the controller
    tries another name and block); ``remove`` of an absent partition is OK and ABSENT. An order never raises for a
    hardware failure: the result is *unavailable* if no answer came (the order may still have been executed).
    No order waits until the partition is ready: it returns when the order is accepted; ``list_partitions`` shows the
    progress.
    """

    @property
    def capability(self) -> Capability:
        """The capabilities of this driver."""
        ...

    def register_partitions(self, held: Sequence[PartitionSpec]) -> None:
        """Accept these partitions as ours, whichever controller, on whatever machine, ordered them: they are recorded.

        Called before a new leader orders anything, and after it has read its database again.
        """
        ...

    async def create(self, order: PartitionSpec) -> DriverResult:
        """Create a partition."""
        ...

    async def reset(self, name: str, mark: str) -> DriverResult:
        """Reset the partition of that name and mark: its devices get into a clean state, the partition stays."""
        ...

    async def remove(self, name: str, mark: str) -> DriverResult:
        """Remove the partition of that name and mark. One with another mark is not touched: then ours is ABSENT."""
        ...

    async def list_partitions(self) -> Sequence[ListedPartition]:
        """All partitions of the hardware, ours or not.

        Raises:
            MooringsError: ``driver.unavailable``; an incomplete listing is never returned.
        """
        ...

    async def binding(self, order: PartitionSpec) -> Binding:
        """The binding for a job on that ACTIVE partition.

        Raises:
            MooringsError: ``driver.unavailable``, or ``partition.not_active``.
        """
        ...

    async def close(self) -> None:
        """Close connections and files; the hardware is not affected."""
        ...
