"""The devices of this process: read from the binding, checked, and attached.

Moorings promises that a partition is this job's alone. A job that merely believes it would compute happily
beside a stranger, so this one looks: it compares the two descriptions it was given (the IPUoF file and the
environment), and locks each simulated device for as long as it runs. On a real pool the vendor's runtime
attaches; there is no device file to lock, and `attached` yields those ids so that the caller can say so.

Refused: falling back to "no devices" when the binding is missing. It would look like success.
"""

import errno
import fcntl
import json
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path


class DeviceError(Exception):
    """The binding is absent, unsafe, contradictory, or not ours alone."""


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator of the GCD; `simulated` is its device file, None on real hardware."""

    id: str
    simulated: Path | None


@dataclass(frozen=True, slots=True)
class Binding:
    """What one IPUoF file says: `partition_size` counts the devices of all the GCDs together."""

    partition_id: str
    gcd: int
    gcds: int
    partition_size: int
    devices: tuple[Device, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(device.id for device in self.devices)


def load(path: Path) -> Binding:
    """The binding in the IPUoF file at `path`.

    Raises DeviceError if it is missing, can be touched by other users, or is not what an IPUoF file is.
    """
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise DeviceError(f"cannot read the IPUoF file {path}: {error}") from error
    if mode & 0o077:
        raise DeviceError(f"the IPUoF file {path} has mode {mode:04o}: other users could read or change it")
    try:
        return parse(text)
    except (ValueError, KeyError, TypeError) as error:
        raise DeviceError(f"{path} is not an IPUoF file: {type(error).__name__}: {error}") from error


def parse(text: str) -> Binding:
    """The binding that an IPUoF file's text describes. Raises ValueError, KeyError or TypeError."""
    document = json.loads(text)
    attributes = document["attributes"]
    return Binding(
        partition_id=attributes["Partition Id"],
        gcd=int(attributes["GCD Id"]),
        gcds=int(attributes["Num GCDs"]),
        partition_size=int(attributes["Partition Size"]),
        devices=tuple(
            Device(entry["id"], Path(entry["simulated"]) if "simulated" in entry else None)
            for entry in document["devices"]
        ),
    )


def check(binding: Binding, *, rank: int, world_size: int, partition_id: str, ids: Sequence[str]) -> None:
    """Nothing, if the file says what the environment says. Raises DeviceError naming the first difference."""
    pairs: list[tuple[str, object, str, object]] = [
        ("Partition Id", binding.partition_id, "MOORINGS_PARTITION_ID", partition_id),
        ("GCD Id", binding.gcd, "RANK", rank),
        ("Num GCDs", binding.gcds, "WORLD_SIZE", world_size),
        ("devices", ",".join(binding.ids), "MOORINGS_DEVICES", ",".join(ids)),
    ]
    for field, in_file, variable, in_environment in pairs:
        if in_file != in_environment:
            raise DeviceError(f"the IPUoF file has {field} {in_file}, but {variable} is {in_environment}")
    if not binding.devices:
        raise DeviceError(f"GCD {binding.gcd} of partition {binding.partition_id} has no devices")


def check_shares(shares: Sequence[Sequence[str]], partition_size: int) -> None:
    """Nothing, if the ranks' device ids are disjoint and together make up the partition.

    `shares[r]` holds rank r's ids. Raises DeviceError naming a device that two hold, or the count that is wrong.
    """
    counts = Counter(device for share in shares for device in share)
    if twice := [device for device, count in counts.items() if count > 1]:
        owners = [str(rank) for rank, share in enumerate(shares) for device in share if device == twice[0]]
        raise DeviceError(f"device {twice[0]} was given more than once, to ranks {' and '.join(owners)}")
    if len(counts) != partition_size:
        raise DeviceError(f"the ranks hold {len(counts)} devices together, but the partition has {partition_size}")


@contextmanager
def attached(devices: Sequence[Device]) -> Iterator[tuple[str, ...]]:
    """Holds every simulated device of `devices` for this process alone; yields the ids of the real ones.

    The kernel lets go of a lock when its holder dies, however it dies, so no crash leaves a device attached.
    Raises DeviceError naming the device that is missing or attached already; then none is held.
    """
    with ExitStack() as stack:
        for device in devices:
            if device.simulated is not None:
                stack.callback(os.close, _attach(device.id, device.simulated))
        yield tuple(device.id for device in devices if device.simulated is None)


def _attach(device_id: str, path: Path) -> int:
    """The open, locked file descriptor of one device."""
    try:
        # Read-only is enough for flock(2), and the file's content is the driver's to write, not ours.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise DeviceError(f"cannot open device {device_id} at {path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno == errno.EWOULDBLOCK:
            raise DeviceError(f"device {device_id} is already attached by another process ({path} is locked)") from None
        raise DeviceError(f"cannot lock device {device_id} at {path}: {error.strerror}") from error
    return descriptor
