"""A run's folder, shared by controller and nodes; the controller makes it, 0700.

::

    looks-<digest>.pyz     the nodes' program
    terminal-<digest>.pyz  the program of the first task's terminal
    <run id>/
        door                   lock: held by the submitting controller
        <attempt>/
            batch.sh task.sh environment    the scripts, and the tasks' variables
            order.json         the submitted job, as far as it is needed later
            asked              sbatch was, or is about to be, called
            job                the job's id, from sbatch
            cancel             why it must stop; the first reason stays
            claimed            the id of the job that began; of two jobs only this one counts
            began.<restart>    the first task began
            tasks/<rank>       a task's exit code; ``<rank>.why``: why it could not be started
            done               the script's last record: restart, and why it stopped the tasks
            logs/<rank>.log    output
            job.log step.log   output of Slurm and srun about the script, and about the tasks
            srun               srun's exit code
            watched.json       what the nodes' program has to know of the job (engines/node_program.py)
            checkpoints.json   the checkpoints that it last saw
            unseen             why nobody looks at the checkpoints of the last start
            looks.log          output of that program
            hears.<restart>.<node>    there a program waits for the next
            warn.<restart>     the tasks are to be warned: the signals, the first choice first
            resume.<restart>   what it gave to that start of the job
            terminal.json      what the terminal's program has to know of the job (slurm/engine/node_terminal.py)
            terminal.<restart>    shell commands by which a step on its node attaches to it
            unattended         it has stopped its program, because no one was there
            end.json           how it ended; ours, and final

Files of the nodes are small, and an incomplete one does not count. Times are those of the files: one clock for all
nodes, the file server's. Each read opens the folder again, so that NFS asks its server.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from moorings.core.model.serialization import OMIT_IF_DEFAULT, from_plain
from moorings.core.model.timestamps import Timestamp
from moorings.engines.checkpoint_watch import CheckpointRecord
from moorings.engines.node_program import FAULT_CHARS_MAX, read_record
from moorings.engines.run_folder import AttemptFolder, ScheduledRunFolder, to_json
from moorings.files import hold_lock, lock_file
from moorings.workloads.runs import EndRecord

TEXT_BYTES_MAX = 64 << 10
TAIL_BYTES = 4000

_NUMBER = re.compile(r"[0-9]{1,10}")  # a job's folder is its user's, and int() refuses thousands of digits
_DONE = re.compile(r"restart=([0-9]{1,9})\nstop=([a-z]{1,10})\n")


@dataclass(frozen=True, slots=True)
class SubmittedSlurmJob:
    """The submitted job, as far as it is needed later."""

    tasks: int
    grace_s: float
    time_limit_s: float | None = None
    uid: int | None = field(default=None, metadata=OMIT_IF_DEFAULT)  # of the person who submits it


@dataclass(frozen=True, slots=True)
class ScriptEnd:
    """The batch script's last record: start of the job, and reason to stop the tasks (``none``: it did not)."""

    restart: int
    stop: str
    at: Timestamp


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """How a task ended: exit code, time, and the reason if it could not start."""

    code: int
    at: Timestamp
    why: str = ""


@dataclass(frozen=True, slots=True)
class SlurmAttemptState:
    """The state in an attempt's folder.

    Attributes:
        asked: the submitted job.
        submitting: sbatch was called, or is about to be.
        job: the attempt's job; None: unknown.
        claimed: its script has begun.
        cancel: why it must stop; None: it need not.
        cancelled_at: since when.
        began: when the first task began, by restart count of the job.
        done: the script's last record.
        end: how the attempt ended; final.
        checkpoints: as last seen on its first node; None: nobody has looked.
    """

    asked: SubmittedSlurmJob
    submitting: bool = False
    job: int | None = None
    claimed: bool = False
    cancel: str | None = None
    cancelled_at: Timestamp | None = None
    began: Mapping[int, Timestamp] = field(default_factory=dict)
    done: ScriptEnd | None = None
    end: EndRecord | None = None
    checkpoints: CheckpointRecord | None = None

    @property
    def is_submitted(self) -> bool:
        """Whether Slurm may know it."""
        return self.job is not None


class SlurmRunFolder(ScheduledRunFolder["SlurmAttempt"]):
    """One run's folder; it need not exist."""

    def attempt(self, number: int) -> SlurmAttempt:
        """Return that attempt."""
        return SlurmAttempt(self.path / str(number), number)

    def try_lock(self) -> int | None:
        """Return a descriptor with the door's lock, in a folder made if missing; None: another process has the lock.

        Raises:
            OSError: the folder cannot be written.
        """
        self.path.mkdir(mode=0o700, exist_ok=True)
        return lock_file(self.path / "door")

    def keep_idle(self) -> AbstractContextManager[bool]:
        """Lock the door, so that the run is not submitted."""
        return hold_lock(self.path / "door")


@dataclass(frozen=True, slots=True)
class SlurmAttempt(AttemptFolder):
    """One attempt of a run."""

    def read_state(self) -> SlurmAttemptState:
        """Return the folder's state now.

        Raises:
            OSError, ValueError: it cannot be read, or holds foreign data.
        """
        names = _names(self.path)
        claimed = _integer(self.path / "claimed") if "claimed" in names else None
        asked = from_plain(SubmittedSlurmJob, json.loads(_text(self.path / "order.json")))
        return SlurmAttemptState(
            asked=asked,
            submitting="asked" in names,
            job=claimed or (_integer(self.path / "job") if "job" in names else None),
            claimed=claimed is not None,
            cancel=_text(self.path / "cancel") if "cancel" in names else None,
            cancelled_at=_at(self.path / "cancel") if "cancel" in names else None,
            began={int(name[6:]): _at(self.path / name) for name in names if re.fullmatch(r"began\.[0-9]{1,9}", name)},
            done=self._done() if "done" in names else None,
            end=from_plain(EndRecord, json.loads(_text(self.path / "end.json"))) if "end.json" in names else None,
            checkpoints=self._checkpoints(names),
        )

    def tasks(self, asked: SubmittedSlurmJob) -> tuple[TaskEnd | None, ...]:
        """Return how each task of the last start ended, by rank.

        Raises:
            OSError: the folder cannot be read.
        """
        folder = self.path / "tasks"
        try:
            names = _names(folder)
        except FileNotFoundError:
            names = frozenset()
        return tuple(_task(folder, str(rank), names) if str(rank) in names else None for rank in range(asked.tasks))

    def last_error_line(self) -> str:
        """Return the last line of srun's output for the tasks, else of the script's; empty: there is none."""
        return _last_line(self.path / "step.log") or _last_line(self.path / "job.log")

    def save_order(self, asked: SubmittedSlurmJob, files: Mapping[str, bytes]) -> None:
        """Write the files for the nodes, then the record that this attempt was submitted."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        (self.path / "logs").mkdir(mode=0o700, exist_ok=True)
        for name, content in files.items():
            self.write(name, content)
        self.write("order.json", to_json(asked))

    def _checkpoints(self, names: frozenset[str]) -> CheckpointRecord | None:
        record = read_record(self.path) if "checkpoints.json" in names else None
        if "unseen" in names:
            with contextlib.suppress(OSError):
                why = _text(self.path / "unseen")[:FAULT_CHARS_MAX].encode("utf-8", "replace").decode()
                return replace(record or CheckpointRecord(0, ()), fault=why)
        return record

    def _done(self) -> ScriptEnd | None:
        found = _DONE.fullmatch(_text(self.path / "done"))
        return ScriptEnd(int(found[1]), found[2], _at(self.path / "done")) if found is not None else None


def _names(folder: Path) -> frozenset[str]:
    return frozenset(entry.name for entry in folder.iterdir())


def _task(folder: Path, name: str, names: frozenset[str]) -> TaskEnd | None:
    text = _text(folder / name).strip()
    if not _NUMBER.fullmatch(text):
        return None  # it was killed while writing
    why = _text(folder / f"{name}.why").strip() if f"{name}.why" in names else ""
    return TaskEnd(int(text), _at(folder / name), why)


def _last_line(path: Path) -> str:
    with contextlib.suppress(OSError), path.open("rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - TAIL_BYTES))
        lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines()]
        return next((line for line in reversed(lines) if line), "")
    return ""


def _at(path: Path) -> Timestamp:
    return Timestamp(path.stat().st_mtime_ns // 1000)


def _integer(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if _NUMBER.fullmatch(text) else None


def _text(path: Path) -> str:
    # The job may have replaced it by a pipe or a link: do not wait for one or follow one.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.read(descriptor, TEXT_BYTES_MAX).decode("utf-8", "surrogateescape")
    finally:
        os.close(descriptor)
