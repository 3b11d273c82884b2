"""The device files that only jobs open, each only those that it was given.

On cgroup v1 by the list of its ``devices`` controller, on v2 by a program of a few instructions that the kernel runs
for each open (bpf(2)); it is attached beside systemd's own, and the kernel asks all of them. Whole majors are closed,
so a device file that appears later is closed to the jobs that run by then.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fnmatch
import os
import stat
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from moorings.privileged.refusals import Refused

PATTERNS_FILE = Path("/etc/moorings/devices")
PATTERNS = ("/dev/nvidia[0-9]*", "/dev/nvidia-caps/nvidia-cap[0-9]*")  # without that file
DEV = Path("/dev")
_BPF_NUMBERS = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_PROG_LOAD, _PROG_ATTACH, _CGROUP_DEVICE_PROGRAM, _CGROUP_DEVICE, _ALLOW_MULTI = 5, 8, 15, 6, 2  # linux/bpf.h
_ATTRIBUTES_BYTES = 120


@dataclass(frozen=True, slots=True)
class DeviceAccess:
    """What a job may open: every device of other majors, and of the closed ones these.

    Attributes:
        closed: majors of character devices.
        allowed: major and minor of those among them that it may open.
    """

    closed: frozenset[int] = frozenset()
    allowed: frozenset[tuple[int, int]] = frozenset()


ALL_DEVICES = DeviceAccess()


def read_patterns() -> tuple[str, ...]:
    """The names of the device files that belong to jobs, as shell patterns: a line each in the admin's file.

    Raises:
        OSError, ValueError: the file cannot be read.
    """
    try:
        lines = [line.partition("#")[0].strip() for line in PATTERNS_FILE.read_text().splitlines()]
    except FileNotFoundError:
        return PATTERNS
    return tuple(line for line in lines if line)


def device_access(patterns: Sequence[str], given: Collection[str]) -> DeviceAccess:
    """What a job may open that was given these device files.

    Raises:
        Refused: ``device.unknown``: one of them is no device file that belongs to jobs.
    """
    numbers = dict(_character_devices())
    closed = _matching(numbers, patterns)
    if unknown := sorted(set(given) - closed):
        hint = f"{PATTERNS_FILE} names those that do"
        raise Refused("device.unknown", f"{unknown[0][:200]!r} is no device file that belongs to jobs", hint)
    majors = frozenset(numbers[path][0] for path in closed)
    others = {at for at in numbers.values() if at[0] in majors} - {numbers[path] for path in closed}
    return DeviceAccess(majors, frozenset(others | {numbers[path] for path in given}))


def closed_files(patterns: Sequence[str]) -> list[str]:
    """The device files of this machine that belong to jobs."""
    return sorted(_matching(dict(_character_devices()), patterns))


def _matching(paths: Iterable[str], patterns: Sequence[str]) -> set[str]:
    return {path for path in paths if any(fnmatch.fnmatchcase(path, each) for each in patterns)}


def _character_devices() -> Iterator[tuple[str, tuple[int, int]]]:
    for top, folders, files in os.walk(DEV):
        # Not where others make files, as in /dev/shm: a tree of any depth and size would be in everybody's way.
        folders[:] = [name for name in folders if not _is_open_to_others(f"{top}/{name}")]
        for name in files:
            path = f"{top}/{name}"
            try:
                found = os.lstat(path)
            except FileNotFoundError:
                continue
            if stat.S_ISCHR(found.st_mode):
                yield path, (os.major(found.st_rdev), os.minor(found.st_rdev))


def _is_open_to_others(folder: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return bool(os.lstat(folder).st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    return True


def v1_lines(access: DeviceAccess) -> list[str]:
    """What is to be written to ``devices.allow``, after all was denied: there is no way to deny all but some."""
    text = Path("/proc/devices").read_text().partition("Block devices:")[0]
    majors = {int(words[0]) for line in text.splitlines() if (words := line.split()) and words[0].isdecimal()}
    lines = ["b *:* rwm", *(f"c {major}:* rwm" for major in sorted(majors - access.closed))]
    return [*lines, *(f"c {major}:{minor} rwm" for major, minor in sorted(access.allowed))]


def load_program(access: DeviceAccess) -> int:
    """A descriptor of the program for a cgroup of v2.

    Raises:
        OSError: the kernel does not take it.
    """
    code = _instructions(access)
    text, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
    addresses = (ctypes.addressof(text), ctypes.addressof(licence))
    return _bpf(_PROG_LOAD, struct.pack("<IIQQ", _CGROUP_DEVICE_PROGRAM, len(code) // 8, *addresses))


def program_fault() -> str:
    """Why the kernel takes no program; empty: it does."""
    try:
        os.close(load_program(ALL_DEVICES))
    except OSError as error:
        return str(error)
    return ""


def attach_program(cgroup: Path, program: int) -> None:
    """Attach a program to a cgroup of v2; it ends with the cgroup.

    Raises:
        OSError: that failed.
    """
    folder = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _bpf(_PROG_ATTACH, struct.pack("<IIII", folder, program, _CGROUP_DEVICE, _ALLOW_MULTI))
    finally:
        os.close(folder)


def _instructions(access: DeviceAccess) -> bytes:
    """``return major not in closed or (major, minor) in allowed`` of a character device (struct bpf_cgroup_dev_ctx)."""
    tests = [(*each, True) for each in sorted(access.allowed)] + [(each, 0, False) for each in sorted(access.closed)]
    steps = [(0x61, 2, 1, 0, 0), (0x57, 2, 0, 0, 0xFFFF), (0x61, 3, 1, 4, 0), (0x61, 4, 1, 8, 0)]  # type, major, minor
    steps += [(0x15, 2, 0, 2, 2), (0xB7, 0, 0, 0, 1), (0x95, 0, 0, 0, 0)]  # another type than a character device: yes
    for major, minor, is_open in tests:
        if is_open:
            steps += [(0x55, 3, 0, 3, major), (0x55, 4, 0, 2, minor)]
        else:
            steps += [(0x55, 3, 0, 2, major)]
        steps += [(0xB7, 0, 0, 0, int(is_open)), (0x95, 0, 0, 0, 0)]
    steps += [(0xB7, 0, 0, 0, 1), (0x95, 0, 0, 0, 0)]
    return b"".join(
        struct.pack("<BBhi", code, to | source << 4, jump, value) for code, to, source, jump, value in steps
    )


def _bpf(command: int, attributes: bytes) -> int:
    number = _BPF_NUMBERS.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, f"the number of bpf(2) on {os.uname().machine} is not known")
    given = ctypes.create_string_buffer(attributes, _ATTRIBUTES_BYTES)
    done = int(ctypes.CDLL(None, use_errno=True).syscall(number, command, given, _ATTRIBUTES_BYTES))
    if done < 0:
        raise OSError(ctypes.get_errno(), f"bpf(2): {os.strerror(ctypes.get_errno())}")
    return done
