"""Who holds a device: a descriptor can leave a job by a Unix socket, and outlive it."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DeviceHolder:
    """A process that has a device open."""

    pid: int
    uid: int


def find_device_holders(devices: Collection[int], inside: Collection[int] = ()) -> list[DeviceHolder]:
    """The processes with an open descriptor of one of these devices (root only).

    Call it in a process of its own with a time limit: a descriptor may be of a file system that a person serves, and
    looking at it then waits for that person. Not seen are devices that are only mapped (mmap(2)), and descriptors that
    lie in a socket unread.

    Args:
        devices: their numbers (``os.makedev``), of character and block devices.
        inside: processes that are not looked at, as those of the jobs that the devices are taken from.
    """
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            if int(process.name) not in inside and _holds(process / "fd", devices):
                found.append(DeviceHolder(int(process.name), process.stat().st_uid))
    return sorted(found, key=lambda holder: holder.pid)


def _holds(descriptors: Path, devices: Collection[int]) -> bool:
    for each in descriptors.iterdir():
        with contextlib.suppress(OSError):  # it was closed, or its file system does not answer
            seen = each.stat()
            if (stat.S_ISCHR(seen.st_mode) or stat.S_ISBLK(seen.st_mode)) and seen.st_rdev in devices:
                return True
    return False
