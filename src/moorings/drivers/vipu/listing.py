"""Translates the vendor's listing: each partition's owner, our devices under it, and its progress; pure.

Device ``i`` of the pool is the ``i``-th IPU of the vendor's cluster. The vendor chooses the IPUs of a partition, so
each listing is checked for its real place. A partition of ours on other devices than requested is listed at its real
place, with a mark that no claim holds (``<mark>/misplaced``). The controller then treats it like any such listing: its
devices are not granted, the waiting claim tries another block under another name, and the partition is removed.
Refused: to take such a block for the requested one (the controller's map of free devices would be wrong from then on),
and to delete it at once (a retry would get the same IPUs forever).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from moorings.core.model.driver_results import ListedPartition, ObservedState, PartitionSpec
from moorings.core.model.topology import Block
from moorings.drivers.vipu.commands import VendorPartition, parse_state
from moorings.drivers.vipu.intents import PartitionIntent, Shape

MISPLACED = "/misplaced"


@dataclass(frozen=True, slots=True)
class VipuPartition:
    """A partition as last listed.

    Attributes:
        sighting: in the port's words.
        intent: our request, if it is ours.
        foreign_ipus: number of its IPUs outside the pool.
        shape: its number of IPUs, and of GCDs (None if unknown).
    """

    sighting: ListedPartition
    intent: PartitionIntent | None = None
    foreign_ipus: int = 0
    shape: Shape = (0, None)

    @property
    def is_misplaced(self) -> bool:
        """Whether it is ours, and not on the requested devices."""
        return self.intent is not None and self.sighting.mark.endswith(MISPLACED)


def match_listing(
    partitions: Sequence[VendorPartition], places: Mapping[str, int], records: Mapping[str, PartitionIntent]
) -> dict[str, VipuPartition]:
    """Return a pool's partitions by name.

    Args:
        partitions: the vendor's listing.
        places: the index in the pool of each IPU, by its identity.
        records: our requests.
    """
    seen = {partition.name: _match(partition, places, records.get(partition.name)) for partition in partitions}
    return {name: sight for name, sight in seen.items() if sight.intent is not None or len(sight.sighting.block)}


def find_unrecorded_orders(
    partitions: Sequence[VendorPartition],
    places: Mapping[str, int],
    held: Mapping[str, PartitionSpec],
    records: Mapping[str, PartitionIntent],
) -> list[PartitionSpec]:
    """Return the requests recorded on another machine whose partitions exist as requested.

    An older record of the same name may be left on this machine; the database tells the name's owner now.

    Args:
        partitions: the vendor's listing.
        places: the index in the pool of each IPU, by its identity.
        held: the requests in the database, by name.
        records: our requests, as recorded on this machine.
    """
    news = []
    for partition in partitions:
        order, record = held.get(partition.name), records.get(partition.name)
        if order is None or (record is not None and record.order.mark == order.mark):
            continue
        sight = _match(partition, places, PartitionIntent(order))
        if sight.intent is not None and not sight.is_misplaced:
            news.append(order)
    return news


def _match(partition: VendorPartition, places: Mapping[str, int], record: PartitionIntent | None) -> VipuPartition:
    inside = [places[ipu] for ipu in partition.ipus if ipu in places]
    elsewhere = len(partition.ipus) - len(inside)
    sighting = ListedPartition(
        partition.name,
        parse_state(partition.state),
        Block.of(sorted(set(inside))),
        vendor_state=partition.state or "no state",
    )
    if record is None or not matches_intent(partition, record):
        return VipuPartition(sighting, foreign_ipus=elsewhere, shape=_shape(partition))
    placed = sighting.block == record.order.block and not elsewhere and partition.gcds in (None, record.order.gcds)
    mark = record.order.mark if placed else record.order.mark + MISPLACED
    return VipuPartition(replace(sighting, mark=mark), record, elsewhere, _shape(partition))


def matches_intent(partition: VendorPartition, record: PartitionIntent) -> bool:
    """Whether our request can have made a partition of that name: by size and GCDs, as requested or as made."""
    same_size = len(partition.ipus) == len(record.order.block)
    return (same_size and partition.gcds in (None, record.order.gcds)) or _shape(partition) == record.made


def _shape(partition: VendorPartition) -> Shape:
    return len(partition.ipus), partition.gcds


def with_states(partitions: Sequence[VendorPartition], states: Mapping[str, str]) -> list[VendorPartition]:
    """Return the partitions with the states of a table, where they have none of their own."""
    return [one if one.state else replace(one, state=states.get(one.name, "")) for one in partitions]


def with_pending_state(sight: VipuPartition, seen: ObservedState) -> VipuPartition:
    """Return a partition under a running command: a state from before the command does not count."""
    if sight.sighting.state is ObservedState.ACTIVE:
        return replace(sight, sighting=replace(sight.sighting, state=seen))
    return sight
