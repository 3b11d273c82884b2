"""What we ordered of the vendor: the file ``orders.json`` that makes our partitions recognisable as ours.

V-IPU has no text of ours to keep beside a partition, and its names are the user's own (``p64`` may be a stranger's). So
each order is written down, whole and on the disk, *before* it is given, and is forgotten only when the partition is
known to have gone. A partition is ours if, and only if, an order of that name is written down and the partition has its
size and its GCDs (or those that the vendor made of it, where it said that it had done our order):

- Killed before the file was written: nothing was ordered. Killed after: the order is found again, whether it was done
  or not, and so are its name, its mark and its devices.
- A stranger's partition is never taken for ours: its name was not in the listing when we wrote ours down, or we would
  not have ordered; and the vendor takes a name only once.
- What is left is a stranger who makes one of our name, size and GCDs after an order of ours was lost on the way (its
  fate is not known, so it is remembered for ``LATE_S``, in case the vendor does it late), or in place of ours while our
  claim lives. Names of runs and of schedulers' jobs hold their ids, and are never made by hand.

Each machine has a file of its own. A controller that begins to lead tells its drivers what the database holds
(``adopt``), and a partition that is there under such a name, on just these IPUs, is ours whoever ordered it. One that
another machine ordered, and the vendor made on other IPUs, passes for a stranger's: nobody is given its IPUs, and it is
left to an admin. Refused: to take it by its name and size alone, as here; in a moment between two leaders a stranger
may have made it.

Refused: a mark in the name (jobs see the name, it has 36 characters and is a promise to the claim), one allocation a
partition (admins only), and the controller's database (a driver knows no store, and the order must be on the disk
before the vendor hears of it).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from moorings.core.errors import MooringsError
from moorings.core.hardware import PartitionSpec
from moorings.core.instants import Timestamp
from moorings.core.topology import Block

FILE = "orders.json"
LATE_S = 3600.0  # as long as sites let the vendor's controller take (facts: vipu section 7)
FILE_BYTES_MAX = 64 << 20

_Stamp = tuple[int, int, int]  # inode, size, mtime (ns)
Shape = tuple[int, int | None]  # how many IPUs a partition has, and how many GCDs, if that is known


@dataclass(frozen=True, slots=True)
class PartitionIntent:
    """One order.

    Attributes:
        order: as it was given.
        settled: whether its fate is known (it was listed, or the vendor said no): then absence is the end of it.
        given_up_at: when it was removed without being settled; it may still be made late.
        made: the shape in which the vendor made it, where that is not the ordered one.
    """

    order: PartitionSpec
    settled: bool = False
    given_up_at: Timestamp | None = None
    made: Shape | None = None


class IntentLog:
    """The orders written down in ``folder`` (0700, made if need be).

    Any number of processes may use one folder, and any number of threads one object.

    Raises:
        MooringsError: ``driver.unavailable``: the folder cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._records: dict[str, PartitionIntent] = {}
        self._stamp: _Stamp | None = None
        self._lock = -1
        self._mutex = threading.RLock()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unavailable(f"the folder {folder} of a V-IPU pool cannot be used: {error}") from error

    def all(self) -> dict[str, PartitionIntent]:
        """Every order, by name.

        Raises:
            MooringsError: ``driver.unavailable``: the file cannot be read, or is damaged. It never counts as empty: our
                partitions would pass for strangers'.
        """
        with self._mutex:
            self._follow()
            return dict(self._records)

    def _follow(self) -> None:
        """Read the file, if another process has written it."""
        try:
            stamp = _stamp(self.path)
            if stamp != self._stamp:
                self._records = _parse(self.path.read_bytes()) if stamp is not None else {}
                self._stamp = stamp
        except OSError as error:
            raise _unavailable(f"{self.path} cannot be read: {error}") from error
        except (ValueError, KeyError, TypeError, RecursionError, MooringsError) as error:
            raise _unavailable(
                f"{self.path} is damaged: {error}",
                hint="put it back from a copy; without it, partitions made by Moorings pass for others' and stay",
            ) from error

    def write(self, record: PartitionIntent) -> None:
        """Write an order down, in place of one of the same name; it is on the disk when this returns.

        Raises:
            MooringsError: ``driver.unavailable``: it was not written.
        """
        with self._changing() as records:
            records[record.order.name] = record

    def adopt(self, orders: Iterable[PartitionSpec]) -> None:
        """Write down orders that were given from another machine and done, in place of what is left of these names.

        Raises:
            MooringsError: ``driver.unavailable``: they were not written.
        """
        with self._changing() as records:
            records.update((order.name, PartitionIntent(order, settled=True)) for order in orders)

    def settle(self, names: Iterable[str]) -> None:
        """Note that the fate of these orders is known.

        Raises:
            MooringsError: ``driver.unavailable``: it was not written.
        """
        known = self.all()
        news = [name for name in names if name in known and (not known[name].settled or known[name].given_up_at)]
        if news:
            with self._changing() as records:
                for name in news:
                    if name in records:
                        records[name] = replace(records[name], settled=True, given_up_at=None)

    def gone(self, name: str, mark: str, now: Timestamp) -> None:
        """Forget an order whose partition is not there; one whose fate is not known is kept a while.

        Raises:
            MooringsError: ``driver.unavailable``: it was not written.
        """
        known = self.all().get(name)
        if known is None or known.order.mark != mark:
            return
        with self._changing() as records:
            for other, record in list(records.items()):
                if record.given_up_at is not None and not 0 <= now - record.given_up_at < LATE_S * 1_000_000:
                    del records[other]
            if known.settled:
                records.pop(name, None)
            elif name in records and records[name].given_up_at is None:
                records[name] = replace(known, given_up_at=now)

    def forget(self, name: str) -> None:
        """Forget an order that was never given.

        Raises:
            MooringsError: ``driver.unavailable``: it was not written.
        """
        with self._changing() as records:
            records.pop(name, None)

    def close(self) -> None:
        """Let go of the lock; a second call does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, PartitionIntent]]:
        with self._mutex:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                try:
                    records = self.all()
                    yield records
                    _write(self.path, records)
                    self._records, self._stamp = records, _stamp(self.path)
                finally:
                    fcntl.flock(self._lock, fcntl.LOCK_UN)
            except OSError as error:
                raise _unavailable(f"{self.path} cannot be written: {error}") from error


def is_readable(path: Path) -> bool:
    """Whether a file is a list of orders that can be read; raises ``OSError`` if it cannot be looked at."""
    content = path.read_bytes()
    try:
        _parse(content)
    except (ValueError, KeyError, TypeError, RecursionError, MooringsError):
        return False
    return True


def _write(path: Path, records: dict[str, PartitionIntent]) -> None:
    text = json.dumps({"version": 1, "orders": [_to_json(record) for record in records.values()]}, indent=1)
    draft = path.with_name(f".{path.name}.tmp")  # the lock is held: nobody else writes it
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)  # or a power cut would take the new name away
    finally:
        os.close(folder)


def _to_json(record: PartitionIntent) -> dict[str, object]:
    order = record.order
    return {
        "name": order.name,
        "mark": order.mark,
        "devices": str(order.block),
        "gcds": order.gcds,
        "replicas_per_gcd": order.replicas_per_gcd,
        "settled": record.settled,
        "given_up_at": record.given_up_at,
        **({"made": list(record.made)} if record.made is not None else {}),
    }


def _parse(content: bytes) -> dict[str, PartitionIntent]:
    if len(content) > FILE_BYTES_MAX:
        raise ValueError("it is too large")
    value = json.loads(content)
    if value["version"] != 1:
        raise ValueError(f"version {value['version']!r} is not known")
    records = [_record(entry) for entry in value["orders"]]
    return {record.order.name: record for record in records}


def _record(entry: dict[str, object]) -> PartitionIntent:
    name, mark, devices, at = entry["name"], entry["mark"], entry["devices"], entry["given_up_at"]
    gcds, replicas = entry["gcds"], entry["replicas_per_gcd"]
    texts = isinstance(name, str) and isinstance(mark, str) and isinstance(devices, str)
    if not (texts and isinstance(gcds, int) and isinstance(replicas, int) and isinstance(at, int | None)):
        raise TypeError("an order is not as we write them")
    order = PartitionSpec(str(name), Block.parse(str(devices)), gcds, replicas, str(mark))
    return PartitionIntent(
        order, entry["settled"] is True, None if at is None else Timestamp(at), _made(entry.get("made"))
    )


def _made(value: object) -> Shape | None:
    match value:
        case None:
            return None
        case [int(n_ipus), int() | None as n_gcds]:
            return n_ipus, n_gcds
        case _:
            raise TypeError("an order is not as we write them")


def _stamp(path: Path) -> _Stamp | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _unavailable(detail: str, hint: str = "") -> MooringsError:
    return MooringsError("driver.unavailable", detail, hint=hint, retryable=True)
