"""The machine: its partitions and their devices. It lives in a folder, so it outlives the controller's process.

It only remembers and isolates. ``faults`` holds the faults, ``driver`` the answers. Refused: hardware in the
controller's memory. A ``kill -9`` would wipe it, and no test could show that nothing leaks across one.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import Block
from moorings.drivers.simulated.journal import HardwareJournal, Record
from moorings.drivers.simulated.partition import (
    SimulatedPartition,
    parse_partition,
    parse_text,
    parse_whole,
)

JOURNAL_VERSION = 1
RECORDS_MAX = 20_000  # then the journal, some 4 MB, is compacted to the existing partitions


class SimulatedHardware:
    """The hardware of one pool, in its folder; several processes may drive it, one ``transaction`` at a time.

    Changes are written before they take effect, so no answered change is ever lost.

    Attributes:
        openings: how often a process has opened it; 1 is the first time.
        down_until: until when the vendor's controller does not answer.
        struck: how often each counted fault of the faults file has struck.

    Raises:
        MooringsError: ``driver.unavailable``: the folder cannot be used, or its content cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._device_files: set[int] = set()
        self._length_max = RECORDS_MAX
        self._clear()
        self._journal = HardwareJournal(self.folder)
        self.closed = False
        try:
            with self.transaction():
                self.openings += 1
                self._compact()
        except MooringsError:
            self._journal.close()
            raise

    def _clear(self) -> None:
        self.openings = 0
        self.down_until = Timestamp(0)
        self.struck: dict[str, int] = {}
        self._serial = 0
        self._partitions: dict[str, SimulatedPartition] = {}
        self._holders: dict[int, str] = {}

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Read the machine's current state, and keep other processes from changing it until the end of the block.

        Raises:
            MooringsError: ``driver.unavailable``.
        """
        if self.closed:
            raise MooringsError("driver.unavailable", "the driver is closed", retryable=True)
        with self._journal.lock():
            self._catch_up()
            yield

    def find_partition(self, name: str, now: Timestamp) -> SimulatedPartition | None:
        """Return the partition of that name, if it exists at ``now``."""
        partition = self._partitions.get(name)
        return partition if partition is not None and partition.state(now) is not None else None

    def find_holder(self, block: Block, now: Timestamp) -> SimulatedPartition | None:
        """Return a partition with a device of ``block`` at ``now``, or None if all are free."""
        holders = self._holders
        for index in block:
            if index not in holders:
                continue
            partition = self._partitions[holders[index]]
            if partition.state(now) is not None:
                return partition
            self._forget(partition)
        return None

    def partitions(self, now: Timestamp) -> list[SimulatedPartition]:
        """Return every partition that exists at ``now``, in the order of creation."""
        for partition in [one for one in self._partitions.values() if one.state(now) is None]:
            self._forget(partition)
        return list(self._partitions.values())

    @property
    def latest_completion(self) -> Timestamp:
        """Return when the last pending or finished action ends; 0: there is none."""
        return max((one.gone_at or one.ready_at for one in self._partitions.values()), default=Timestamp(0))

    def next_serial(self) -> int:
        """Return a number that no partition of this machine has had; ``put`` of such a partition takes it."""
        return self._serial + 1

    def save_partition(self, partition: SimulatedPartition, why: str) -> None:
        """Record a new or changed partition; ``why`` is for readers of the journal."""
        self._write({"is": "partition", "why": why, **partition.record()})
        self._remember(partition)

    def delete_partition(self, partition: SimulatedPartition) -> None:
        """Remove a partition, and free its devices."""
        self._write({"is": "gone", "name": partition.name})
        self._forget(partition)

    def lose_partitions(self) -> None:
        """Forget every partition, as a vendor's controller that restarts without its storage file."""
        self._write({"is": "lost"})
        self._partitions.clear()
        self._holders.clear()

    def set_down_until(self, until: Timestamp) -> None:
        """Stop the vendor's controller's answers until then."""
        self._write({"is": "down", "until": until})
        self.down_until = until

    def count_fault(self, fault: str) -> None:
        """Count a fault's strike, so that a new process continues the count."""
        self._write({"is": "strike", "fault": fault})
        self.struck[fault] = self.struck.get(fault, 0) + 1

    def retain_fault_counts(self, faults: Collection[str]) -> None:
        """Forget the strikes of all other faults."""
        if self.struck.keys() <= set(faults):
            return
        kept = {fault: count for fault, count in self.struck.items() if fault in faults}
        self._write({"is": "strikes", "struck": kept})
        self.struck = kept

    def device_file(self, index: int) -> Path:
        """Return a device's (empty) file; a job attaches to the device by ``flock(LOCK_EX)`` on it."""
        return self.folder / "devices" / str(index)

    def make_device_files(self, indices: Iterable[int]) -> None:
        """Create the devices' files, 0600; existing ones stay, with their locks.

        Raises:
            MooringsError: ``driver.unavailable``.
        """
        try:
            (self.folder / "devices").mkdir(mode=0o700, exist_ok=True)
            for index in indices:
                if index not in self._device_files:
                    os.close(os.open(self.device_file(index), os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
                    self._device_files.add(index)
        except OSError as error:
            raise MooringsError("driver.unavailable", f"no device files: {error}", retryable=True) from error

    def close(self) -> None:
        """Close the folder; its content stays."""
        self._journal.close()
        self.closed = True

    def _write(self, record: Record) -> None:
        if self._journal.length >= self._length_max:
            self._compact()
        self._journal.append(record)

    def _compact(self) -> None:
        self._journal.rewrite(self._snapshot())
        self._length_max = max(RECORDS_MAX, 2 * self._journal.length)

    def _remember(self, partition: SimulatedPartition) -> None:
        before = self._partitions.get(partition.name)
        if before is None or before.serial != partition.serial:
            if before is not None:
                self._forget(before)
            self._holders.update(dict.fromkeys(partition.block, partition.name))
        self._partitions[partition.name] = partition
        self._serial = max(self._serial, partition.serial)

    def _check(self, partition: SimulatedPartition) -> None:
        """Refuse a record with a device in two partitions: TypeError."""
        before = self._partitions.get(partition.name)
        if before is not None and before.serial == partition.serial and before.block != partition.block:
            raise TypeError(f"partition {partition.name!r:.80} has moved from {before.block} to {partition.block}")
        for index in partition.block:
            other = self._partitions.get(self._holders.get(index, partition.name))
            if other is None or other.name == partition.name:
                continue
            if other.gone_at is None and other.vanishes_at is None:  # else it may be gone, which is not written down
                raise TypeError(f"device {index} of {partition.name!r:.80} is held by {other.name!r:.80}")

    def _forget(self, partition: SimulatedPartition) -> None:
        if self._partitions.pop(partition.name, None) is None:
            return
        for index in partition.block:
            if self._holders.get(index) == partition.name:
                del self._holders[index]

    def _snapshot(self) -> Iterator[Record]:
        yield {
            "is": "machine",
            "version": JOURNAL_VERSION,
            "openings": self.openings,
            "serial": self._serial,
            "down_until": self.down_until,
            "struck": self.struck,
        }
        for partition in self._partitions.values():
            yield {"is": "partition", "why": "kept", **partition.record()}

    def _catch_up(self) -> None:
        """Apply the records that other processes have written."""
        from_start, line, records = self._journal.read_new()
        if from_start:
            self._clear()
        for number, record in enumerate(records, start=line):
            try:
                self._apply(record)
            except (TypeError, MooringsError) as error:
                raise self._journal.damage_error(number, str(error)) from error

    def _apply(self, record: Record) -> None:
        match record.get("is"):
            case "partition":
                partition = parse_partition(record)
                self._check(partition)
                self._remember(partition)
            case "gone":
                gone = self._partitions.get(parse_text(record, "name"))
                if gone is not None:
                    self._forget(gone)
            case "lost":
                self._partitions.clear()
                self._holders.clear()
            case "down":
                self.down_until = Timestamp(parse_whole(record, "until"))
            case "strike":
                fault = parse_text(record, "fault")
                self.struck[fault] = self.struck.get(fault, 0) + 1
            case "strikes":
                self.struck = _strikes(record)
            case "machine" if record.get("version") == JOURNAL_VERSION:
                self.openings = parse_whole(record, "openings")
                self._serial = parse_whole(record, "serial")
                self.down_until = Timestamp(parse_whole(record, "down_until"))
                self.struck = _strikes(record)
            case other:
                raise TypeError(f"a record of an unknown kind or version: {other!r:.80}")


def _strikes(record: Mapping[str, object]) -> dict[str, int]:
    struck = record.get("struck")
    if not isinstance(struck, dict):
        raise TypeError(f"struck is {struck!r:.80}, not an object")
    return {str(fault): parse_whole(struck, fault) for fault in struck}
