"""Guards of what a V-IPU controller is believed: what it made of an order, and what we have ordered of it."""

from __future__ import annotations

from tests.guards.guard import Guard

FAULTS = "tests/contract/test_driver_vipu_faults.py::"
MISSES = "tests/unit/drivers/test_vipu_misses.py::"
BACKUP = "tests/unit/app/test_backup_orders.py::"

VENDOR = (
    Guard(
        law="2",
        what="a partition that the vendor made larger than ordered is ours, and is removed",
        file="drivers/vipu/listing.py",
        at="matches_intent",
        cut="_shape(partition) == record.made",
        put="False",
        tests=(f"{FAULTS}test_what_is_made_larger_than_ordered_is_ours_all_the_same",),
    ),
    Guard(
        law="2",
        what="a partition on other devices than ordered is not taken for the ordered one",
        file="drivers/vipu/listing.py",
        at="_match",
        cut="record.order.mark if placed else record.order.mark + MISPLACED",
        put="record.order.mark",
        tests=(f"{FAULTS}test_a_partition_made_elsewhere_is_shown_where_it_is_and_undone",),
    ),
    Guard(
        law="3",
        what="a stranger's partition that came before our order is not taken for ours",
        file="drivers/vipu/driver.py",
        at="VipuDriver._create",
        cut=(
            "except VipuCommandError as error:\n"
            "    if not commands.is_ambiguous_failure(error.detail):\n"
            "        await asyncio.to_thread(self._orders.mark_resolved, [order.name])\n"
            "    raise"
        ),
        put="except VipuCommandError:\n    pass",
        tests=(f"{FAULTS}test_another_size_is_no_proof_when_the_vendor_said_no",),
    ),
    Guard(
        law="3",
        what="a backup has what was ordered of V-IPU controllers",
        file="app/backup_create.py",
        at="create_backup",
        cut="parts |= _copy_vipu_files(data, Path(work))",
        put="",
        tests=(f"{BACKUP}test_a_new_disk_gets_what_was_ordered",),
    ),
    Guard(
        law="3",
        what="a restore does not turn back what was ordered of V-IPU controllers",
        file="app/backup_vipu.py",
        at="restore_vipu_files",
        cut="place.exists() and is_readable(place) and not from_other_installation",
        put="False",
        tests=(f"{BACKUP}test_a_list_that_is_there_is_newer_and_stays",),
    ),
    Guard(
        law="7",
        what="a claim does not wait for ever for a block that the vendor does not give",
        file="drivers/vipu/misplacements.py",
        at="Misplacements.verdict",
        cut="self._steered and len(self._by_block.get(ordered, ())) >= BLOCK_TRIES",
        put="False",
        tests=(
            f"{MISSES}test_nobody_tries_for_ever",
            f"{FAULTS}test_a_block_that_the_vendor_does_not_give_is_broken_and_no_other",
        ),
    ),
    Guard(
        law="7",
        what="a claim does not wait for ever for a vendor that follows no order",
        file="drivers/vipu/misplacements.py",
        at="Misplacements.verdict",
        cut="self.consecutive >= REJECTED_FROM",
        put="False",
        tests=(
            f"{MISSES}test_a_vendor_that_follows_no_order_breaks_no_more_blocks",
            f"{FAULTS}test_a_vendor_that_follows_no_order_is_told_in_the_end",
        ),
    ),
    Guard(
        law="8",
        what="an order's result is reported before its partition is listed elsewhere",
        file="drivers/vipu/driver.py",
        at="VipuDriver.list_partitions",
        cut="frozenset(self._creating)",
        put="frozenset()",
        tests=(f"{FAULTS}test_what_is_made_elsewhere_is_not_shown_before_its_order_is_answered",),
    ),
)
