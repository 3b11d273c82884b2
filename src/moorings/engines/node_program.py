"""What sees a job's checkpoints where Moorings is not installed: beside a batch script, or in a container.

``build_archive`` packs this file and what it imports into one that ``python3`` runs::

    python3 ARCHIVE check                 do nothing: this Python will do
    python3 ARCHIVE begin FOLDER START    look, and write what this start of the job resumes from
    python3 ARCHIVE watch FOLDER START    look until WINCH comes (no other signal ends it) or the parent is gone
    python3 ARCHIVE report FOLDER START   report to the controller until WINCH comes or the parent is gone
    python3 ARCHIVE hear FOLDER START     once there is a file warn.START, warn the programs of the tasks on this node

FOLDER is the attempt's, with ``watched.json`` (``WatchedJob``). The program writes ``checkpoints.json`` there
(``CheckpointRecord``), and ``resume.START``: shell commands for the tasks of a later start.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from moorings.core.model.serialization import OMIT_IF_DEFAULT, from_plain, to_plain
from moorings.core.model.timestamps import Timestamp
from moorings.engines.checkpoint_watch import SHOWN_MAX, CheckpointRecord, CheckpointStore, CheckpointWatch
from moorings.engines.node_archive import pack
from moorings.engines.node_report import report_until_ended
from moorings.engines.processes import (
    ProcessTable,
    descendants,
    has_variable,
    list_processes,
    read_command_line,
    warn_task,
)
from moorings.files import write_atomically
from moorings.workloads.checkpoints import RunCheckpoint, newest_whole

RECORD_BYTES_MAX = 256 << 10
FAULT_CHARS_MAX = 500
PATH_CHARS_MAX = 4096
WRITTEN_AT_MAX = 4_102_444_800_000_000  # the year 2100, in microseconds
WRITE_S_MAX = 1e9
BEGIN_S_MAX = 20.0  # how long the start of a job waits for a look: its disk may hang
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
_CANNOT_START = 126  # a shell's code
_PARENT_S = 1.0  # between two looks whether the parent lives
_HEAR_S = 1.0  # between two looks for a word to warn
_TASKS_EVERY = 10  # of these looks one is for the tasks, too

_MODULES = (
    "__init__",
    "core.__init__",
    *(f"core.model.{name}" for name in ("__init__", "devices", "errors", "reasons", "serialization", "state_machine")),
    *(f"core.model.{name}" for name in ("timestamps", "topology")),
    *(
        f"engines.{name}"
        for name in ("__init__", "checkpoint_scan", "checkpoint_watch", "node_archive", "node_program")
    ),
    *(f"engines.{name}" for name in ("node_report", "processes")),
    "files",
    "workloads.__init__",
    "workloads.checkpoints",
)


@dataclass(frozen=True, slots=True)
class WatchedJob:
    """What the program has to know of a job.

    Attributes:
        directory: its checkpoint folder.
        command: program and arguments of its tasks, of a start that does not resume.
        resume_args: as in the job.
        resumable: whether a later start is given a checkpoint.
        since: only checkpoints that were saved later are given; None: all, and its first start is given none.
        attempt: its attempt; the starts of each are counted from 0.
        ordered: the checkpoint that a start is given for which no later one is found; None: none.
    """

    directory: str
    command: tuple[str, ...]
    resume_args: tuple[str, ...]
    resumable: bool
    since: Timestamp | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    attempt: int = field(default=0, metadata=OMIT_IF_DEFAULT)
    ordered: str | None = field(default=None, metadata=OMIT_IF_DEFAULT)

    def watch(self, record: CheckpointStore, start: int, pids: Callable[[], list[int]]) -> CheckpointWatch:
        """The looks of one start."""
        return CheckpointWatch(record, start, self.directory, pids, is_later=start + self.attempt > 0)


@cache
def build_archive() -> bytes:
    """The program, as one file."""
    return pack("engines.node_program", _MODULES, "checkpoints cannot be seen")


def read_record(folder: Path) -> CheckpointRecord | None:
    """What was last recorded of the checkpoints of an attempt; None: nothing, or nothing that is a record.

    The folder is the job's user's: whatever lies there is taken for a record only if it could be one.
    """
    text = b""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder / "checkpoints.json", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                text = os.read(descriptor, RECORD_BYTES_MAX)
        finally:
            os.close(descriptor)
    return parse_record(text)


def parse_record(text: bytes) -> CheckpointRecord | None:
    """A record that the job's user may have written; None: it could be none."""
    try:
        given = json.loads(text)
        if len(given["found"]) > SHOWN_MAX:  # before each is looked at: that is slow
            return None
        record = from_plain(CheckpointRecord, given)
        json.dumps(to_plain(record), ensure_ascii=False).encode()  # an API has no word for a lone surrogate
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    resumed = (record.resumed_from,) if record.resumed_from is not None else ()
    if not all(map(_is_possible, (*record.found, *resumed))):
        return None
    return replace(record, fault=record.fault[:FAULT_CHARS_MAX])


def _is_possible(found: RunCheckpoint) -> bool:
    numbers = (found.size_bytes, found.step or 0)
    return (
        0 <= found.written_at < WRITTEN_AT_MAX
        and all(0 <= number < 1 << 63 for number in numbers)
        and (found.write_s is None or 0 <= found.write_s < WRITE_S_MAX)
        and max(len(found.path), len(found.why)) <= PATH_CHARS_MAX
    )


class AttemptCheckpoints:
    """The record in an attempt's folder (``CheckpointStore``)."""

    def __init__(self, folder: Path, resumed_from: RunCheckpoint | None = None) -> None:
        self._folder = folder
        self.resumed_from = resumed_from

    def last_checkpoints(self) -> CheckpointRecord | None:
        """The last record; None: there is none that can be read."""
        return read_record(self._folder)

    def save(self, record: CheckpointRecord, *, durable: bool = True) -> None:
        """Save a record."""
        text = json.dumps(to_plain(replace(record, resumed_from=self.resumed_from)))
        write_atomically(self._folder / "checkpoints.json", text.encode(), durable=durable)


def main(words: Sequence[str]) -> None:
    """Do one of these and end, whatever thread still waits for a disk."""
    if words[0] == "check":
        return
    what, folder, start = words[0], Path(words[1]), int(words[2])
    if what == "hear":
        _hear(folder, start)
        os._exit(0)
    if what == "report":
        report_until_ended(folder, start)
        os._exit(0)
    job = from_plain(WatchedJob, json.loads((folder / "watched.json").read_text()))
    if what == "begin":
        begin(folder, start, job, f"resume.{start}")
    else:
        _watch(folder, start, job)
    sys.stdout.flush()
    os._exit(0)


def begin(folder: Path, start: int, job: WatchedJob, name: str) -> None:
    """Look before a start, and write the file ``name`` for the tasks if it resumes."""
    _within(BEGIN_S_MAX, lambda: _begin(folder, start, job, name), lambda: _record_timeout(folder, start, job))


def _within(limit_s: float, work: Callable[[], object], otherwise: Callable[[], object]) -> None:
    """Do some work, or something else if that takes longer.

    Raises:
        Exception: that of the work.
    """
    failed: list[Exception] = []

    def carry_out() -> None:
        try:
            work()
        except Exception as error:  # raised again by the thread that waits
            failed.append(error)

    thread = threading.Thread(target=carry_out, daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        otherwise()
    if failed:
        raise failed[0]


def _record_timeout(folder: Path, start: int, job: WatchedJob) -> None:
    store = AttemptCheckpoints(folder)
    known = store.last_checkpoints()
    fault = f"{job.directory} could not be looked at within {BEGIN_S_MAX:g} s"
    store.save(CheckpointRecord(start, known.found if known is not None else (), fault), durable=False)


def _begin(folder: Path, start: int, job: WatchedJob, name: str) -> None:
    record = AttemptCheckpoints(folder)
    watch = job.watch(record, start, list)
    found = watch.look_now()
    # Not each start is known for a later one: a Pod that was drained is made again as it was.
    may_resume = job.resumable and (start > 0 or job.since is not None)
    chosen = newest_whole(found, job.since) if may_resume else None
    if chosen is not None:
        write_atomically(folder / name, resume_commands(job, chosen).encode("utf-8", "surrogateescape"))
        record.resumed_from = chosen
        record.save(watch.record(), durable=False)
    elif job.ordered is not None and (fault := watch.fault_of(job.ordered, found)):
        # The scripts of the tasks have this function: it ends a task before its program starts.
        refusal = f"_moorings_refuse {_CANNOT_START} {shlex.quote(fault)}\n"
        write_atomically(folder / name, refusal.encode("utf-8", "surrogateescape"))


def resume_commands(job: WatchedJob, chosen: RunCheckpoint) -> str:
    """The shell commands that give a task that checkpoint."""
    arguments = (*job.command, *(each.replace("{}", chosen.path) for each in job.resume_args))
    step = f"export MOORINGS_RESUME_STEP={chosen.step}" if chosen.step is not None else "unset MOORINGS_RESUME_STEP"
    return f"export MOORINGS_RESUME_FROM={shlex.quote(chosen.path)}\n{step}\nset -- {shlex.join(arguments)}\n"


def _watch(folder: Path, start: int, job: WatchedJob) -> None:
    parent = os.getppid()
    # Slurm sends TERM to all of a batch step while the tasks may still save.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH, *STOP_SIGNALS})
    watch = job.watch(record_of_start(AttemptCheckpoints(folder), start), start, _pids_of_job)
    watch.start()
    while os.getppid() == parent:
        if signal.sigtimedwait({signal.SIGWINCH}, _PARENT_S) is not None:
            watch.finish()
            return
    watch.finish(processes_left=True)


def record_of_start(record: AttemptCheckpoints, start: int) -> AttemptCheckpoints:
    """The record, with what this start was given."""
    before = record.last_checkpoints()
    record.resumed_from = before.resumed_from if before is not None and before.attempt == start else None
    return record


def _pids_of_job() -> list[int]:
    """The job's processes on this node."""
    job = os.environ.get("SLURM_JOB_ID", "")
    return [pid for pid in list_processes() if job and has_variable(pid, "SLURM_JOB_ID", job)]


def _hear(folder: Path, start: int) -> None:
    """Wait for the word to warn, or until no task of this node is left."""
    (folder / f"hears.{start}.{_node()}").touch()
    looks = 0
    while looks % _TASKS_EVERY or _task_shells(folder, list_processes()):
        looks += 1
        with contextlib.suppress(OSError):  # its server may be away
            if f"warn.{start}" in os.listdir(folder):  # noqa: PTH208 - to list a folder anew makes NFS ask its server
                names = (folder / f"warn.{start}").read_text().split()
                _warn(folder, [signal.Signals[f"SIG{name}"] for name in names])
                return
        time.sleep(_HEAR_S)


def _node() -> str:
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def _task_shells(folder: Path, table: ProcessTable) -> set[int]:
    """The processes of this node that run the tasks' script."""
    node = os.environ.get("SLURMD_NODENAME")
    script = f"{folder}/task.sh".encode()
    shells = {pid for pid in table if script in read_command_line(pid)[:3]}
    if node is None:
        return shells
    return {pid for pid in shells if has_variable(pid, "SLURMD_NODENAME", node)}  # a machine may be several nodes


def _warn(folder: Path, signals: Sequence[signal.Signals]) -> None:
    """Warn each task's programs with the first signal that one of them handles."""
    table = list_processes()
    shells = _task_shells(folder, table)
    sent = []
    for task in (pid for pid in shells if table[pid].parent not in shells):
        below = [each for each in descendants([task], table) if each.pid not in (*shells, os.getpid())]
        signum = warn_task([each.pid for each in below if each.parent in shells], signals, table)
        sent.append(signum.name if signum is not None else "nothing")
    tasks = "1 task" if len(sent) == 1 else f"{len(sent)} tasks"
    sys.stderr.write(f"moorings: {_node()}: warned {tasks}: {', '.join(sent)}\n")
