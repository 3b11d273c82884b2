"""A run's files on the controller's disk, 0700: Kubernetes forgets Pods, their ends and their output.

::

    <run id>/<attempt>/
        order.json        the order, as far as it is needed later
        alive             the IPUJob was, or is about to be, activated: it is not created again
        stop.json         why it must stop; the first reason stays
        warned            uid of the first Pod of the start that was warned that its time limit is near
        pods/<rank>.<uid> where a Pod's output begins in its task's
        checkpoints.json  the checkpoints that its Pods last saw
        tasks/<rank>.json how a task ended
        logs/<rank>.log   its output
        end.json          how the attempt ended; final
"""

from __future__ import annotations

import contextlib
import json
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from moorings.core.model.serialization import OMIT_IF_DEFAULT, from_plain
from moorings.core.model.timestamps import Timestamp
from moorings.engines.checkpoint_watch import CheckpointRecord
from moorings.engines.node_program import read_record
from moorings.engines.run_folder import AttemptFolder, ScheduledRunFolder, to_json
from moorings.workloads.runs import EndRecord

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SubmittedIPUJob:
    """The order of an attempt, as far as it is needed later.

    ``warn_signal``: one or more, the first choice first. ``unseen``: why nobody looks at its checkpoints; else empty.
    ``keep_s``: how long its terminal may stay unattended; None: it has none.
    """

    namespace: str
    name: str
    tasks: int
    grace_s: float
    time_limit_s: float | None = None
    warn_s: float = 0.0
    warn_signal: str = "USR1"
    unseen: str = field(default="", metadata=OMIT_IF_DEFAULT)
    keep_s: float | None = field(default=None, metadata=OMIT_IF_DEFAULT)

    @property
    def reference(self) -> str:
        """``namespace/name`` of its IPUJob."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class StopRecord:
    """Why a run must stop: ``asked`` or ``limit``."""

    why: str
    detail: str
    at: Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """The observed state of a task.

    Attributes:
        began_at: when its process began; None: it did not.
        ended_at: when it ended; None: it has not, or the time is unknown.
        code: its exit code; None: it has not ended, or the code is unknown.
        over: nothing of it runs any more.
        stopped: it was told to end before it did.
        unstarted: its program could not be started; ``why`` has the reason.
        why: kubelet's message about its end.
        cause: Kubernetes' reason for ending its Pod: ``Evicted``, ``NodeLost``...
        uid: of its Pod; empty: a record of an earlier release.
    """

    began_at: Timestamp | None = None
    ended_at: Timestamp | None = None
    code: int | None = None
    over: bool = False
    stopped: bool = False
    unstarted: bool = False
    why: str = ""
    cause: str = ""
    uid: str = field(default="", metadata=OMIT_IF_DEFAULT)


@dataclass(frozen=True, slots=True)
class KubernetesAttemptState:
    """The content of an attempt's folder."""

    asked: SubmittedIPUJob
    alive: bool = False
    stop: StopRecord | None = None
    end: EndRecord | None = None

    @property
    def is_submitted(self) -> bool:
        """Whether its IPUJob was, or is about to be, activated."""
        return self.alive


class KubernetesRunFolder(ScheduledRunFolder["KubernetesAttempt"]):
    """One run's folder; need not exist."""

    id_pattern = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")  # the rule of a label's value

    def attempt(self, number: int) -> KubernetesAttempt:
        """The attempt with this number."""
        return KubernetesAttempt(self.path / str(number), number)

    def keep_idle(self) -> AbstractContextManager[bool]:
        """Take no lock: only the calling controller starts runs here."""
        return contextlib.nullcontext(enter_result=True)


@dataclass(frozen=True, slots=True)
class KubernetesAttempt(AttemptFolder):
    """One attempt of a run."""

    def read_state(self) -> KubernetesAttemptState:
        """The present content of the folder.

        Raises:
            OSError, ValueError: it cannot be read, or has content that we did not write.
        """
        return KubernetesAttemptState(
            asked=from_plain(SubmittedIPUJob, json.loads((self.path / "order.json").read_bytes())),
            alive=(self.path / "alive").exists(),
            stop=_load(StopRecord, self.path / "stop.json"),
            end=_load(EndRecord, self.path / "end.json"),
        )

    def last_checkpoints(self) -> CheckpointRecord | None:
        """The checkpoints that its Pods last saw; None: nobody has looked."""
        return read_record(self.path)

    def tasks(self) -> dict[int, TaskStatus]:
        """The recorded ends of tasks, by rank.

        Raises:
            OSError, ValueError: the folder cannot be read.
        """
        found = {}
        for path in (self.path / "tasks").glob("*.json"):
            task = _load(TaskStatus, path)
            if task is not None and path.stem.isdecimal():
                found[int(path.stem)] = task
        return found

    def save_order(self, asked: SubmittedIPUJob) -> None:
        """Record the order of this attempt."""
        for folder in (self.path.parent, *(self.path / name for name in ("", "logs", "tasks"))):
            folder.mkdir(mode=0o700, exist_ok=True)
        self.write_once("order.json", to_json(asked))

    def save_alive(self) -> None:
        """Record that its IPUJob is about to be activated."""
        self.write_once("alive", b"")

    def save_stop(self, stop: StopRecord) -> None:
        """Record why it must stop; the first reason stays."""
        self.write_once("stop.json", to_json(stop))

    def has_warned(self, start: str) -> bool:
        """Whether that start of it was warned; an earlier release recorded no start, and there was only one."""
        try:
            return (self.path / "warned").read_text() in (start, "")
        except FileNotFoundError:
            return False

    def save_warned(self, start: str) -> None:
        """Record that that start of it was warned."""
        self.write("warned", start.encode())

    def output_start(self, rank: int, uid: str) -> int:
        """Where a Pod's output begins in its task's: behind that of the Pods before it.

        Raises:
            OSError, ValueError: that cannot be read or recorded.
        """
        folder, log = self.path / "pods", self.log_path(rank)
        folder.mkdir(mode=0o700, exist_ok=True)
        # An earlier release may have copied some of the first one's.
        size = log.stat().st_size if any(folder.glob(f"{rank}.*")) and log.exists() else 0
        self.write_once(f"pods/{rank}.{uid}", str(size).encode())
        return int((folder / f"{rank}.{uid}").read_text())

    def save_task(self, rank: int, task: TaskStatus) -> None:
        """Record how a task ended."""
        self.write(f"tasks/{rank}.json", to_json(task))


def _load(kind: type[T], path: Path) -> T | None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    return from_plain(kind, json.loads(content))
