"""The log of our requests to the vendor: the file ``orders.json`` identifies our partitions.

V-IPU cannot store our mark beside a partition, and partition names are free (``p64`` may be a stranger's). So
each request is recorded, whole and on the disk, *before* it is sent, and forgotten only when its partition is
known to be gone. A partition is ours if, and only if, a request of that name is recorded and the partition has its
size and its GCDs (or those of the vendor's partition, if the vendor reported our request as done):

- After a kill before the write, nothing was requested. After a kill behind it, the record has the request's name, mark
  and devices, whether it was carried out or not.
- A stranger's partition is never taken for ours: if its name had been in the listing, we would not have recorded a
  request; and the vendor accepts a name only once.
- One case is left: a stranger makes a partition of our name, size and GCDs after a request of ours was lost (its
  outcome is unknown, so it is kept for ``LATE_S``, in case the vendor carries it out late), or in place of ours while
  our claim lives. Names of runs and of schedulers' jobs hold their ids, and are never made by hand.

Each machine has a file of its own. A new leader passes the database's partitions to its drivers
(``adopt``), and an existing partition of such a name, on exactly these IPUs, is ours, whichever machine requested it. A
partition that another machine requested, and the vendor made on other IPUs, counts as a stranger's: its IPUs are not
granted, and an admin must remove it. Refused: to accept it by name and size alone, as here; between two leaders a
stranger may have made it.

Refused: a mark in the name (jobs see the name, it has 36 characters and is promised to the claim), one allocation a
partition (admins only), and the controller's database (a driver knows no store, and the request must be on the disk
before the vendor gets it).
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

from moorings.core.model.driver_results import PartitionSpec
from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import Block
from moorings.files import write_atomically

FILE = "orders.json"
LATE_S = 3600.0  # the maximum time that sites allow the vendor's controller (facts: vipu section 7)
FILE_BYTES_MAX = 64 << 20

_Stamp = tuple[int, int, int]  # inode, size, mtime (ns)
Shape = tuple[int, int | None]  # a partition's number of IPUs, and of GCDs, if known


@dataclass(frozen=True, slots=True)
class PartitionIntent:
    """One request.

    Attributes:
        order: as requested.
        settled: whether its outcome is known (it was listed, or the vendor refused): then an absent partition is gone.
        given_up_at: when it was removed without a known outcome; the vendor may still create it late.
        made: the shape of the vendor's partition, if it differs from the requested one.
    """

    order: PartitionSpec
    settled: bool = False
    given_up_at: Timestamp | None = None
    made: Shape | None = None


class IntentLog:
    """The recorded requests in ``folder`` (0700, made if missing).

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

    def read_all(self) -> dict[str, PartitionIntent]:
        """Return every request, by name.

        Raises:
            MooringsError: ``driver.unavailable``: the file cannot be read, or is damaged. It never counts as empty: our
                partitions would look like strangers'.
        """
        with self._mutex:
            self._reload_if_changed()
            return dict(self._records)

    def _reload_if_changed(self) -> None:
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
        """Record a request, replacing one of the same name; it is on the disk at the return.

        Raises:
            MooringsError: ``driver.unavailable``: it was not written.
        """
        with self._locked_update() as records:
            records[record.order.name] = record

    def add_resolved(self, orders: Iterable[PartitionSpec]) -> None:
        """Record completed requests of another machine, replacing records of these names.

        Raises:
            MooringsError: ``driver.unavailable``: they were not written.
        """
        with self._locked_update() as records:
            records.update((order.name, PartitionIntent(order, settled=True)) for order in orders)

    def mark_resolved(self, names: Iterable[str]) -> None:
        """Record that the outcome of these requests is known.

        Raises:
            MooringsError: ``driver.unavailable``: it was not written.
        """
        known = self.read_all()
        news = [name for name in names if name in known and (not known[name].settled or known[name].given_up_at)]
        if news:
            with self._locked_update() as records:
                for name in news:
                    if name in records:
                        records[name] = replace(records[name], settled=True, given_up_at=None)

    def remove_after_delete(self, name: str, mark: str, now: Timestamp) -> None:
        """Forget a request without a partition; without a known outcome it is kept for a while.

        Raises:
            MooringsError: ``driver.unavailable``: it was not written.
        """
        known = self.read_all().get(name)
        if known is None or known.order.mark != mark:
            return
        with self._locked_update() as records:
            for other, record in list(records.items()):
                if record.given_up_at is not None and not 0 <= now - record.given_up_at < LATE_S * 1_000_000:
                    del records[other]
            if known.settled:
                records.pop(name, None)
            elif name in records and records[name].given_up_at is None:
                records[name] = replace(known, given_up_at=now)

    def forget(self, name: str) -> None:
        """Forget a request that was never sent.

        Raises:
            MooringsError: ``driver.unavailable``: it was not written.
        """
        with self._locked_update() as records:
            records.pop(name, None)

    def close(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @contextlib.contextmanager
    def _locked_update(self) -> Iterator[dict[str, PartitionIntent]]:
        with self._mutex:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                try:
                    records = self.read_all()
                    yield records
                    _write(self.path, records)
                    self._records, self._stamp = records, _stamp(self.path)
                finally:
                    fcntl.flock(self._lock, fcntl.LOCK_UN)
            except OSError as error:
                raise _unavailable(f"{self.path} cannot be written: {error}") from error


def is_readable(path: Path) -> bool:
    """Whether a file is a readable list of requests; raise ``OSError`` if it cannot be read."""
    content = path.read_bytes()
    try:
        _parse(content)
    except (ValueError, KeyError, TypeError, RecursionError, MooringsError):
        return False
    return True


def _write(path: Path, records: dict[str, PartitionIntent]) -> None:
    text = json.dumps({"version": 1, "orders": [_to_json(record) for record in records.values()]}, indent=1)
    # The lock is held: no other process has this temporary file.
    write_atomically(path, f"{text}\n".encode(), temporary=path.with_name(f".{path.name}.tmp"))


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
