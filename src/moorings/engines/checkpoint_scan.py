"""Looks at a job's checkpoint folder, without trusting it: links are not followed, and few bytes are read.

For whoever runs beside the tasks (a supervisor, a Slurm job's script, a sidecar). A look may hang with its disk: call
it in a thread of its own. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.workloads.checkpoints import (
    ORBAX_METADATA,
    PART_BYTES_MAX,
    TRACKERS,
    TRAINER_STATE,
    FolderEntry,
    RunCheckpoint,
    candidates,
    judge_entry,
    parse_tracker,
    step_of,
    unchanged_since,
)

NAMES_MAX = 10_000  # names of a folder that one look reads
JUDGED_MAX = 64  # of these the newest so many are judged
INNER_NAMES_MAX = 4096  # names of one checkpoint that is a folder, and of the folders in it
INNER_DEPTH_MAX = 4  # of folders in it
_NANOSECONDS = 1_000_000_000 // SECOND
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class CheckpointLook:
    """The result of one look.

    Attributes:
        found: the newest checkpoints, newest first.
        entries: the same entries as they were read, by name: for the next look.
        left_out: how many entries were not looked at, at least.
        fault: why the folder cannot be looked at; else empty.
    """

    found: tuple[RunCheckpoint, ...] = ()
    entries: Mapping[str, FolderEntry] = field(default_factory=dict)
    began: Mapping[str, Timestamp] = field(default_factory=dict)
    left_out: int = 0
    fault: str = ""


NO_LOOK = CheckpointLook()


def look_at_folder(
    folder: str,
    now: Timestamp,
    before: CheckpointLook = NO_LOOK,
    *,
    is_open: Callable[[str, Timestamp], bool] = lambda *_: False,
) -> CheckpointLook:
    """Look at a checkpoint folder; one that cannot be read is a fault in the result, and one not yet made is empty.

    Args:
        folder: absolute path.
        now: the time of the look.
        before: the look before.
        is_open: whether a process of the job has that path, which was last written then, or a file below it, open for
            writing.
    """
    try:
        base = os.open(folder, _FLAGS | os.O_DIRECTORY)
    except FileNotFoundError:
        return NO_LOOK
    except OSError as error:
        return CheckpointLook(fault=_fault(folder, error))
    try:
        return _look(folder, base, now, before, is_open)
    except OSError as error:
        return CheckpointLook(fault=f"{folder}: {error.strerror}")
    finally:
        os.close(base)


def _fault(folder: str, error: OSError) -> str:
    if Path(folder).is_symlink():
        return f"{folder} is a symbolic link: name the folder itself"
    return f"{folder}: {error.strerror}"


def _look(
    folder: str, base: int, now: Timestamp, before: CheckpointLook, is_open: Callable[[str, Timestamp], bool]
) -> CheckpointLook:
    names, left_out = _names(base, NAMES_MAX)
    dated: list[tuple[int, str, os.stat_result]] = []
    for name in candidates(names):
        with contextlib.suppress(OSError):  # it has gone
            found = os.stat(name, dir_fd=base, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
                dated.append((found.st_mtime_ns, name, found))
    dated.sort(reverse=True)
    left_out += max(0, len(dated) - JUDGED_MAX)
    tracker, tracked_at = _tracker_step(base)
    known = {Path(each.path).name: each for each in before.found}
    checkpoints: list[RunCheckpoint] = []
    entries: dict[str, FolderEntry] = {}
    began: dict[str, Timestamp] = {}
    for _, name, found in dated[:JUDGED_MAX]:
        try:
            entry = _read_entry(base, name, found)
        except OSError:  # it has gone, or may not be read
            continue
        entries[name] = entry
        path = f"{folder.rstrip('/')}/{name}"
        verdict = judge_entry(entry, tracker, tracked_at)
        whole, why = verdict.is_whole, verdict.why
        if whole is None:
            whole, why = unchanged_since(entry, before.entries, is_open=is_open(path, entry.modified_at))
        earlier = known.get(name)
        write_s = earlier.write_s if earlier is not None and earlier.is_whole else None
        if not whole:
            began[name] = before.began.get(name, now)
        elif name in before.began:
            write_s = max(0, entry.modified_at - before.began[name]) / SECOND
        written_at = Timestamp(min(entry.modified_at, now))  # another machine's clock may be ahead
        checkpoints.append(
            RunCheckpoint(path, step_of(name), entry.size_bytes, written_at, whole, verdict.rule, write_s, why)
        )
    checkpoints.sort(key=lambda each: each.written_at, reverse=True)
    return CheckpointLook(tuple(checkpoints), entries, began, left_out)


def _names(folder: int, most: int) -> tuple[list[str], int]:
    """At most so many names of a folder, and whether there are more (1) or not (0).

    A name that is not UTF-8 is left out: an API has no word for it.
    """
    names: list[str] = []
    with os.scandir(folder) as found:
        for each in found:
            if len(names) == most:
                return names, 1
            if each.name.isascii() or _is_text(each.name):
                names.append(each.name)
    return names, 0


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _time(nanoseconds: int) -> Timestamp:
    return Timestamp(max(0, nanoseconds // _NANOSECONDS))  # a user may set any time, also of the year -30,000


def _read_entry(base: int, name: str, found: os.stat_result) -> FolderEntry:
    if stat.S_ISDIR(found.st_mode):
        return _read_folder(base, name, found)
    entry = FolderEntry(name, False, found.st_size, _time(found.st_mtime_ns))
    if not found.st_size:
        return entry
    with _opened(base, name) as file:
        if name.endswith(".safetensors"):
            head = os.pread(file, 8, 0)
            header_bytes: int = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
            if 8 + header_bytes > found.st_size:
                return replace(entry, head=head)
            begin = max(8, 8 + header_bytes - PART_BYTES_MAX)
            return replace(entry, head=head, header_tail=os.pread(file, 8 + header_bytes - begin, begin))
        head = os.pread(file, 4, 0)
        tail = _tail(file, found.st_size) if head.startswith(b"PK") else b""
        return replace(entry, head=head, tail=tail)


def _read_folder(base: int, name: str, found: os.stat_result) -> FolderEntry:
    """The sizes and times of the files in it, and in folders in it."""
    with _opened(base, name, os.O_DIRECTORY) as folder:
        names, _ = _names(folder, INNER_NAMES_MAX)
        size, modified_ns, _ = _sum_files(folder, names, INNER_NAMES_MAX, INNER_DEPTH_MAX)
        tail = b""
        for told in (each for each in (TRAINER_STATE, ORBAX_METADATA) if each in names):
            with contextlib.suppress(OSError), _opened(folder, told) as state:
                tail = _tail(state, os.fstat(state).st_size)
                break
    modified_at = _time(found.st_mtime_ns if modified_ns is None else modified_ns)
    return FolderEntry(name, True, size, modified_at, tail=tail, names=frozenset(names))


def _sum_files(folder: int, names: list[str], left: int, depth: int) -> tuple[int, int | None, int]:
    """The bytes of the files, the newest change of one (None: there is none), and how many more names may be read."""
    size, newest = 0, None
    for inner in names:
        with contextlib.suppress(OSError):
            left -= 1
            found = os.stat(inner, dir_fd=folder, follow_symlinks=False)
            more, changed = 0, None
            if stat.S_ISREG(found.st_mode):
                more, changed = found.st_size, found.st_mtime_ns
            elif stat.S_ISDIR(found.st_mode) and depth and left > 0:
                with _opened(folder, inner, os.O_DIRECTORY) as below:
                    more, changed, left = _sum_files(below, _names(below, left)[0], left, depth - 1)
            size += more
            if changed is not None:
                newest = changed if newest is None else max(newest, changed)
    return size, newest, left


@contextlib.contextmanager
def _opened(base: int, name: str, flags: int = 0) -> Iterator[int]:
    file = os.open(name, _FLAGS | flags, dir_fd=base)
    try:
        yield file
    finally:
        os.close(file)


def _tail(file: int, size: int) -> bytes:
    begin = max(0, size - PART_BYTES_MAX)
    return os.pread(file, min(size, PART_BYTES_MAX), begin)


def _tracker_step(base: int) -> tuple[int | None, Timestamp | None]:
    """The step that a tracker file names, and when it was written."""
    for name in TRACKERS:
        with contextlib.suppress(OSError), _opened(base, name) as file:
            found = os.fstat(file)
            if stat.S_ISREG(found.st_mode):
                return parse_tracker(os.pread(file, 200, 0)), _time(found.st_mtime_ns)
    return None, None
