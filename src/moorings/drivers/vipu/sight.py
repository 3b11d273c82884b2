"""What the vendor shows, in our words: whose a partition is, on which of our devices, and how far it is; pure.

Device ``i`` of the pool is the ``i``-th IPU of the vendor's cluster. The vendor chooses the IPUs of a partition, so it
is looked at, each time, where a partition really is. One of ours that is not on the devices that were ordered is shown
where it is, with a mark that nobody holds (``<mark>/misplaced``). What follows is what follows from every such sighting
without a line in the controller: its devices are given to nobody, the claim that waits for it tries another block under
another name, and the partition is removed. Refused: to take such a block for the ordered one (the controller's map of
free devices would be wrong from then on), and to delete it at once (the same order would go to the same IPUs for ever).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from moorings.core.hardware import ListedPartition, ObservedState, PartitionSpec
from moorings.core.topology import Block
from moorings.drivers.vipu.commands import VendorPartition, parse_state
from moorings.drivers.vipu.orders import PartitionIntent, Shape

MISPLACED = "/misplaced"


@dataclass(frozen=True, slots=True)
class VipuPartition:
    """A partition as it stands.

    Attributes:
        sighting: in the port's words.
        record: our order, if it is ours.
        elsewhere: IPUs of it that are none of the pool's.
        shape: how many IPUs it has, and how many GCDs (None if not said).
    """

    sighting: ListedPartition
    record: PartitionIntent | None = None
    elsewhere: int = 0
    shape: Shape = (0, None)

    @property
    def misplaced(self) -> bool:
        """Whether it is ours, and not on the devices that were ordered."""
        return self.record is not None and self.sighting.mark.endswith(MISPLACED)


def match_listing(
    partitions: Sequence[VendorPartition], places: Mapping[str, int], records: Mapping[str, PartitionIntent]
) -> dict[str, VipuPartition]:
    """What is seen of a pool, by name.

    Args:
        partitions: the vendor's listing.
        places: the index in the pool of each IPU, by what names it.
        records: our orders.
    """
    seen = {partition.name: _match(partition, places, records.get(partition.name)) for partition in partitions}
    return {name: sight for name, sight in seen.items() if sight.record is not None or len(sight.sighting.block)}


def find_unrecorded_orders(
    partitions: Sequence[VendorPartition],
    places: Mapping[str, int],
    held: Mapping[str, PartitionSpec],
    records: Mapping[str, PartitionIntent],
) -> list[PartitionSpec]:
    """Orders of partitions that are there as ordered, and were written down on another machine.

    A record of the same name may be left here from before that one led; the database says whose the name is now.

    Args:
        partitions: the vendor's listing.
        places: the index in the pool of each IPU, by what names it.
        held: the orders that the database holds, by name.
        records: our orders, as they are written down on this machine.
    """
    news = []
    for partition in partitions:
        order, record = held.get(partition.name), records.get(partition.name)
        if order is None or (record is not None and record.order.mark == order.mark):
            continue
        sight = _match(partition, places, PartitionIntent(order))
        if sight.record is not None and not sight.misplaced:
            news.append(order)
    return news


def _match(partition: VendorPartition, places: Mapping[str, int], record: PartitionIntent | None) -> VipuPartition:
    inside = [places[ipu] for ipu in partition.ipus if ipu in places]
    elsewhere = len(partition.ipus) - len(inside)
    sighting = ListedPartition(
        partition.name, parse_state(partition.state), Block.of(sorted(set(inside))), raw=partition.state or "no state"
    )
    if record is None or not matches_intent(partition, record):
        return VipuPartition(sighting, elsewhere=elsewhere, shape=_shape(partition))
    placed = sighting.block == record.order.block and not elsewhere and partition.gcds in (None, record.order.gcds)
    mark = record.order.mark if placed else record.order.mark + MISPLACED
    return VipuPartition(replace(sighting, mark=mark), record, elsewhere, _shape(partition))


def matches_intent(partition: VendorPartition, record: PartitionIntent) -> bool:
    """Whether a partition of that name can have come of our order: by its size and its GCDs, as ordered or as made."""
    same_size = len(partition.ipus) == len(record.order.block)
    return (same_size and partition.gcds in (None, record.order.gcds)) or _shape(partition) == record.made


def _shape(partition: VendorPartition) -> Shape:
    return len(partition.ipus), partition.gcds


def with_states(partitions: Sequence[VendorPartition], states: Mapping[str, str]) -> list[VendorPartition]:
    """The partitions with the states of a table, where they have none of their own."""
    return [one if one.state else replace(one, state=states.get(one.name, "")) for one in partitions]


def with_pending_state(sight: VipuPartition, seen: ObservedState) -> VipuPartition:
    """The same while an order to it is still being carried out: a state from before the order is not believed."""
    if sight.sighting.seen is ObservedState.ACTIVE:
        return replace(sight, sighting=replace(sight.sighting, seen=seen))
    return sight
