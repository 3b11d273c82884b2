"""The controller's copies of runs that people submit to Slurm themselves, made from what their jobs report.

A copy has the files of the attempt's folder (``run_folder``). What is reported is another user's: only files with known
names are copied, bounded, and read as foreign data.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from moorings.core.model.claims import CheckpointContract
from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp
from moorings.engines.launch import rejected_error
from moorings.engines.node_report import MIRRORED, output_bytes_max
from moorings.engines.run_folder import to_json
from moorings.ports.clock import Clock
from moorings.ports.personal import PersonalJob, RunReport
from moorings.slurm.engine.run_folder import SlurmAttempt, SlurmRunFolder, SubmittedSlurmJob
from moorings.workloads.runs import RunId

FILE_BYTES_MAX = 256 << 10


class RunCopies:
    """The copies in one folder; all methods block, and raise OSError or ValueError where a copy cannot be used.

    Args:
        folder: made if missing.
        clock: no file is newer than its now.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock

    def ensure(self, run: RunId, number: int, asked: SubmittedSlurmJob) -> SlurmAttempt:
        """The copy of an attempt, made unless it is there.

        Raises:
            MooringsError: ``engine.rejected``: this cannot be the id of a run.
        """
        folder = SlurmRunFolder.find(self._folder, run)
        if folder is None:
            raise rejected_error(f"{run[:120]!r} cannot be the id of a run on Slurm")
        self._folder.mkdir(mode=0o700, exist_ok=True)
        folder.path.mkdir(mode=0o700, exist_ok=True)
        attempt = folder.attempt(number)
        if not (attempt.path / "order.json").exists():
            for path in (attempt.path, attempt.path / "logs", attempt.path / "tasks"):
                path.mkdir(mode=0o700, exist_ok=True)
            attempt.write("order.json", to_json(asked))
        return attempt

    def ensure_known(self, known: PersonalJob) -> SlurmAttempt:
        """The copy of an attempt; another controller may have led when it began."""
        newest = self.newest_attempt(known.run)
        if newest is not None and newest.number >= known.attempt:
            return newest
        grace_s = CheckpointContract().grace_s
        return self.ensure(known.run, known.attempt, SubmittedSlurmJob(known.tasks, grace_s, uid=known.submitter.uid))

    def newest_attempt(self, run: RunId) -> SlurmAttempt | None:
        """The copy of a run's newest attempt; None: there is none."""
        folder = SlurmRunFolder.find(self._folder, run)
        return folder.newest_attempt() if folder is not None else None

    def add(self, known: PersonalJob, report: RunReport) -> dict[int, int]:
        """Copy what a report has; returns the size of each task's output so far.

        Raises:
            MooringsError: ``report.outdated``, ``report.invalid``.
        """
        attempt = self.ensure_known(known)
        tasks = known.tasks
        if report.attempt < attempt.number:
            raise MooringsError("report.outdated", f"run {known.run} has attempt {attempt.number} by now")
        if report.attempt == attempt.number:
            for file in report.files:
                _check_name(file.name, tasks)
            if report.present is not None:
                _remove_others(attempt.path, frozenset(report.present))
            for part in report.output:
                if not 0 <= part.task < tasks:
                    raise MooringsError("report.invalid", f"run {known.run} has no task {part.task}")
                _append(attempt.log_path(part.task), part.offset, part.data, output_bytes_max(tasks))
            for file in report.files:
                _write_copy(attempt.path / file.name, file.text, min(file.modified_at, self._clock.now()))
            if report.is_abandoned:
                attempt.write_once("abandoned", b"")
        return {task: _size(attempt.log_path(task)) for task in range(tasks)}


def _check_name(name: str, tasks: int) -> None:
    found = re.fullmatch(r"tasks/([0-9]{1,6})(\.why)?", name)
    if MIRRORED.fullmatch(name) is None or (found is not None and int(found[1]) >= tasks):
        raise MooringsError("report.invalid", f"{name[:80]!r} is no file of an attempt that is reported")


def _remove_others(folder: Path, present: frozenset[str]) -> None:
    """Remove copies of files that are there no more: a later start of the job begins without them."""
    for path in (*folder.iterdir(), *(folder / "tasks").iterdir()):
        name = str(path.relative_to(folder))
        if MIRRORED.fullmatch(name) and name not in present and name != "claimed":
            path.unlink(missing_ok=True)


def _write_copy(path: Path, text: str, modified_at: Timestamp) -> None:
    content = text.encode("utf-8", "surrogateescape")
    if len(content) > FILE_BYTES_MAX:
        raise MooringsError("report.invalid", f"{path.name} has more than {FILE_BYTES_MAX} bytes")
    if path.exists() and path.stat().st_mtime_ns // 1000 > modified_at:
        return  # a later report has overtaken this one
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(content)
    os.utime(draft, ns=(modified_at * 1000, modified_at * 1000))
    draft.replace(path)


def _append(path: Path, offset: int, data: bytes, bytes_max: int) -> None:
    """Add output that follows what is known; a part that does not is left out: the answer says where to go on."""
    size = _size(path)
    if offset != size or size >= bytes_max:
        return
    with path.open("ab") as file:
        file.write(data[: bytes_max - size])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
