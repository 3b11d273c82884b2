"""A run's folder: all that the controller and a run's supervisor share.

::

    <run id>/               0700
        door                lock: held briefly by a controller that submits or finalizes this run
        life                lock: held by the supervisor until its end
        order.json          what to run, and the attempt
        status.json         the supervisor's identity and phase; on disk before the first task starts
        cancel.json         a request to stop that attempt
        yield.json          a request that that attempt yields, with a deadline: its devices are needed elsewhere
        end.json            how that attempt ended
        checkpoints.json    the newest checkpoints, as its supervisor last saw them
        ipuof/              files of the binding, while the run lives
        logs/<attempt>/<rank>.log
        logs/<attempt>/<rank>.times  when it grew (engines/output_times.py)
        supervisor.log      errors of supervisors
        terminal            socket: where the supervisor listens for the run's person

Every record names its attempt; a record of another attempt than ``order.json`` is history. Files are replaced
whole, by rename, so a reader sees the old or the new one. Locks are ``flock``: they end with the last process that has
them open, however it dies, and a child inherits them without a gap; a file with a process id does neither. Controller
and supervisor use no socket: it could be lost, and a dead supervisor would not answer on it. That for terminals is the
person's, and decides nothing about the run.

A process may try ``life`` only while it holds ``door``. So, with ``door`` held, a locked ``life`` means one thing: a
supervisor lives.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from moorings.core.model.timestamps import Timestamp
from moorings.engines.checkpoint_watch import CheckpointRecord
from moorings.engines.output_times import times_path
from moorings.engines.run_folder import RunFolder, to_json
from moorings.files import fsync_path, hold_lock, lock_file, write_atomically
from moorings.local.records import (
    AttemptEnd,
    CancelRecord,
    RecordDamagedError,
    RecordT,
    RecordUnreadableError,
    SupervisorStatus,
    YieldRecord,
    from_json,
)
from moorings.ports.engine import RunSubmission
from moorings.wire.frames import SOCKET_NAME

RECORD_BYTES_MAX = 64 << 20  # an order of 4096 tasks with the longest environment is far smaller

_DRAFT = re.compile(r"\.(order|status|cancel|yield|end|checkpoints)\.json\.\d+-\d+")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")

FileVersion = tuple[int, int, int] | None  # inode, size, mtime (ns); None: no such file
AttemptRecord = SupervisorStatus | CancelRecord | YieldRecord | AttemptEnd | CheckpointRecord
AttemptRecordT = TypeVar("AttemptRecordT", SupervisorStatus, CancelRecord, YieldRecord, AttemptEnd, CheckpointRecord)
RecordVersions = tuple[FileVersion, FileVersion, FileVersion, FileVersion, FileVersion]


@dataclass(frozen=True, slots=True)
class AttemptExtent:
    """An attempt of a run, and its number of tasks."""

    attempt: int
    tasks: int


@dataclass(frozen=True, slots=True)
class RunRecords:
    """The newest attempt in a run's folder, as far as its records are undamaged.

    Attributes:
        extent: that attempt; the best guess if ``order.json`` is unreadable.
        status: its supervisor's record, if there is one.
        end: its recorded end, if there is one.
        damage: a sentence, with the path, about each damaged record, or about a missing order.
        checkpoints: as its supervisor last saw them; None: it has not looked, or their record is damaged.
    """

    extent: AttemptExtent
    status: SupervisorStatus | None
    end: AttemptEnd | None
    damage: tuple[str, ...] = ()
    checkpoints: CheckpointRecord | None = None


class LocalRunFolder(RunFolder):
    """One run's folder.

    Args:
        path: the folder; it need not exist.
        requests: the folder of the requests to the supervisor; None: the same one.
        group_reads: whether the folder's group reads the supervisor's records and the output.
    """

    def __init__(self, path: Path, requests: Path | None = None, *, group_reads: bool = False) -> None:
        super().__init__(path)
        self._file_mode, self._folder_mode = (0o640, 0o2750) if group_reads else (0o600, 0o700)
        self.order = path / "order.json"
        self.status = path / "status.json"
        self.cancel = (requests or path) / "cancel.json"
        self.yield_file = (requests or path) / "yield.json"
        self.end = path / "end.json"
        self.checkpoints = path / "checkpoints.json"
        self._files = {
            RunSubmission: self.order,
            SupervisorStatus: self.status,
            CancelRecord: self.cancel,
            YieldRecord: self.yield_file,
            AttemptEnd: self.end,
            CheckpointRecord: self.checkpoints,
        }
        self.bindings = path / "ipuof"
        self.terminal = path / SOCKET_NAME
        self.supervisor_log = path / "supervisor.log"

    def log_path(self, attempt: int, rank: int) -> Path:
        """Return the path of a task's output."""
        return self.path / "logs" / str(attempt) / f"{rank}.log"

    def open_log(self, attempt: int, rank: int) -> int:
        """Return a descriptor of a task's output, which is made if it is missing.

        Raises:
            OSError: that failed.
        """
        return self._open_output(self.log_path(attempt, rank))

    def open_times(self, attempt: int, rank: int) -> int:
        """Return a descriptor of the times of a task's output (``engines.output_times``), which are made if missing.

        Raises:
            OSError: that failed.
        """
        return self._open_output(times_path(self.log_path(attempt, rank)))

    def _open_output(self, path: Path) -> int:
        for folder in (path.parent.parent, path.parent):
            if not folder.exists():
                folder.mkdir(mode=0o700)
                folder.chmod(self._folder_mode)
        output = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        os.fchmod(output, self._file_mode)
        return output

    def previous_attempts(self, attempt: int) -> list[int]:
        """Return the earlier attempts with output, the oldest first."""
        return sorted(
            extent.attempt for extent in _attempts_with_output(self.path / "logs") if extent.attempt < attempt
        )

    def create(self) -> None:
        """Make the folder, durably."""
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
            fsync_path(self.path.parent)

    def record_versions(self) -> RecordVersions:
        """Return stamps of all records but a request to yield, to detect changes: equal stamps mean equal contents.

        Raises:
            OSError: the folder cannot be read.
        """
        return (
            _file_version(self.order),
            _file_version(self.status),
            _file_version(self.cancel),
            _file_version(self.end),
            _file_version(self.checkpoints),
        )

    def read_records(
        self, *, order: AttemptExtent | None = None, last_known: AttemptExtent | None = None
    ) -> RunRecords | None:
        """Return all records together, or None if there is neither order nor status nor end.

        Args:
            order: the content of ``order.json``, if the caller has read it before.
            last_known: its content before it was damaged, if known.

        Raises:
            RecordUnreadableError: a record exists and cannot be read now; conclude nothing.
        """
        damage: list[str] = []
        if order is None:
            whole = _read_or_note_damage(self.order, RunSubmission, damage)
            order = AttemptExtent(whole.attempt, whole.job.tasks) if whole is not None else None
            missing = whole is None and not damage
        else:
            missing = False
        status = _read_or_note_damage(self.status, SupervisorStatus, damage)
        end = _read_or_note_damage(self.end, AttemptEnd, damage)
        if missing:
            if status is None and end is None and not damage:
                return None
            damage.append(f"{self.order} is missing")
        saved: CheckpointRecord | None = None
        with contextlib.suppress(RecordUnreadableError):  # what it says decides nothing about processes
            saved = _read_record(self.checkpoints, CheckpointRecord)
        extent = order or _infer_extent(status, end, last_known, _attempts_with_output(self.path / "logs"))
        return RunRecords(
            extent,
            status if status is not None and status.attempt == extent.attempt else None,
            end if end is not None and end.attempt == extent.attempt else None,
            tuple(damage),
            saved if saved is not None and saved.attempt == extent.attempt else None,
        )

    # -- records: None if missing; RecordUnreadableError if unreadable or damaged

    def read_order(self) -> RunSubmission | None:
        """Return the newest order."""
        return _read_record(self.order, RunSubmission)

    def read(self, kind: type[AttemptRecordT], attempt: int) -> AttemptRecordT | None:
        """Return the record of that kind if it is of that attempt."""
        record = _read_record(self._files[kind], kind)
        return record if record is not None and record.attempt == attempt else None

    def last_checkpoints(self) -> CheckpointRecord | None:
        """Return the checkpoints that were last seen, by whichever attempt."""
        return _read_record(self.checkpoints, CheckpointRecord)

    def save(self, record: RunSubmission | AttemptRecord, *, durable: bool = True) -> None:
        """Save a record."""
        write_atomically(self._files[type(record)], to_json(record), mode=self._file_mode, durable=durable)

    def save_end(self, end: AttemptEnd) -> None:
        """Save an end, durably, after removing the drafts of killed processes."""
        for draft in self.path.iterdir():
            if _DRAFT.fullmatch(draft.name):
                draft.unlink(missing_ok=True)
        self.save(end)

    # -- the binding's files

    def write_bindings(self, order: RunSubmission) -> Path | None:
        """Write the files of a binding, 0600; return their folder, or None without files (a binding in API form).

        Raises:
            RecordUnreadableError: a file's name would lead out of the folder.
        """
        files = {gcd.file_name: gcd.file_text for gcd in order.binding.gcds if gcd.file_name}
        if not files:
            return None
        self.bindings.mkdir(mode=0o700, exist_ok=True)
        for name, text in files.items():
            if not _FILE_NAME.fullmatch(name):
                raise RecordUnreadableError(f"{name[:80]!r} cannot be the name of a binding's file")
            write_atomically(self.bindings / name, text.encode(), durable=False)
        return self.bindings

    def remove_bindings(self) -> None:
        """Remove the files of the binding; missing ones are not an error.

        A job runs as the same user and may have put anything in their place: a link is removed, never followed.
        """
        if self.bindings.is_symlink():
            self.bindings.unlink(missing_ok=True)
            return
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for entry in os.scandir(self.bindings):
                if not entry.is_dir(follow_symlinks=False):
                    Path(entry.path).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # a folder that the job made is left alone
                self.bindings.rmdir()

    # -- locks

    def hold_submit_lock(self, *, wait_s: float) -> AbstractContextManager[bool]:
        """Lock the door; yield False if another process holds it for all of ``wait_s`` seconds."""
        return hold_lock(self.path / "door", wait_s)

    def acquire_liveness_lock(self, *, wait_s: float = 0) -> int | None:
        """Return a descriptor with the life lock, or None if a supervisor lives. Call it only with the door held.

        Args:
            wait_s: how long to wait for a supervisor that is about to exit.
        """
        return lock_file(self.path / "life", wait_s)

    @contextlib.contextmanager
    def keep_idle(self) -> Iterator[bool]:
        """Lock door and life, so that no process of the run starts; yield False if one may live."""
        with self.hold_submit_lock(wait_s=0) as ours:
            life = self.acquire_liveness_lock() if ours else None
            try:
                yield life is not None
            finally:
                if life is not None:
                    os.close(life)

    def ended_before(self, before: Timestamp) -> bool:
        """Whether its recorded end, in undamaged records, is before a time."""
        try:
            found = self.read_records()
        except RecordUnreadableError:
            return False
        ended = found.end.record.ended_at if found is not None and found.end is not None else None
        return found is not None and not found.damage and ended is not None and ended < before


def _open_nonblocking(path: str, flags: int) -> int:
    """Open without blocking: a job may have put a pipe in the place of a record."""
    return os.open(path, flags | os.O_NONBLOCK)


def _read_record(path: Path, kind: type[RecordT]) -> RecordT | None:
    try:
        with open(path, "rb", opener=_open_nonblocking) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise RecordDamagedError(f"{path} is no file")
            content = file.read(RECORD_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except IsADirectoryError as error:
        raise RecordDamagedError(f"{path} is a folder") from error
    except OSError as error:
        raise RecordUnreadableError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(content) > RECORD_BYTES_MAX:
        raise RecordDamagedError(f"{path} is larger than {RECORD_BYTES_MAX} bytes")
    try:
        return from_json(kind, content)
    except RecordDamagedError as error:
        raise RecordDamagedError(f"{path} is damaged: {error}") from error


def _read_or_note_damage(path: Path, kind: type[RecordT], damage: list[str]) -> RecordT | None:
    """Return the record in that file, or None: it is missing, or damaged and added to ``damage``."""
    try:
        return _read_record(path, kind)
    except RecordDamagedError as error:
        damage.append(str(error))
        return None


def _attempts_with_output(logs: Path) -> list[AttemptExtent]:
    """Return the attempts with output."""
    with contextlib.suppress(OSError):
        return [
            AttemptExtent(int(of.name), len(list(of.glob("*.log")))) for of in logs.iterdir() if of.name.isdecimal()
        ]
    return []


def _infer_extent(
    status: SupervisorStatus | None,
    end: AttemptEnd | None,
    remembered: AttemptExtent | None,
    logged: list[AttemptExtent],
) -> AttemptExtent:
    """Return the newest known attempt."""
    known = [*logged, remembered] if remembered is not None else [*logged]
    if status is not None:
        known.append(AttemptExtent(status.attempt, len(status.tasks)))
    if end is not None:
        known.append(AttemptExtent(end.attempt, len(end.record.task_codes)))
    return max(known, key=lambda extent: (extent.attempt, extent.tasks), default=AttemptExtent(0, 0))


def _file_version(path: Path) -> FileVersion:
    try:
        found = os.stat(path)  # noqa: PTH116 - asked hundreds of times a second
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
