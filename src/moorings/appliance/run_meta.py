"""``run_meta.json`` in the model's folder: every job ever started for it, for people and for accounting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from moorings import __version__
from moorings.files import write_atomically
from moorings.wire.shapes import RunBody
from moorings.workloads.appliance import ApplianceJobType
from moorings.workloads.runs import ENDED, RunState

FILE_NAME: Final = "run_meta.json"
BYTES_MAX: Final = 16 << 20
_LISTS: Final = {ApplianceJobType.COMPILE: "compile_jobs", ApplianceJobType.EXECUTE: "execute_jobs"}


class RunMetaFile:
    """The file; each change replaces it whole.

    Args:
        folder: the model's.
        version: of this release.
    """

    def __init__(self, folder: Path, version: str = __version__) -> None:
        self._path = folder / FILE_NAME
        self._version = version
        self._jobs: dict[str, list[dict[str, Any]]] = {name: [] for name in _LISTS.values()}

    def load(self) -> str | None:
        """Load the file; return a sentence if it was unreadable and was moved aside.

        Raises:
            OSError: the file cannot be read, or cannot be moved aside.
        """
        if not self._path.exists():
            return None
        jobs = self._read()
        if jobs is None:
            aside = self._path.with_name(f"{FILE_NAME}.damaged")
            self._path.replace(aside)
            return f"{FILE_NAME} could not be read and is now {aside.name}"
        self._jobs = jobs
        return None

    def _read(self) -> dict[str, list[dict[str, Any]]] | None:
        """Its contents; None: it is not in our format."""
        with self._path.open("rb") as file:
            text = file.read(BYTES_MAX + 1)
        try:
            read = json.loads(text)
            jobs = {name: read[name] for name in self._jobs}
            sound = all(isinstance(each["id"], str) for entries in jobs.values() for each in entries)
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        return jobs if sound else None

    def list_unfinished(self) -> list[tuple[str, str]]:
        """The jobs without a recorded end, each with its workflow."""
        entries = [each for entries in self._jobs.values() for each in entries if not each.get("end_time")]
        return [(str(each["id"]), str(each.get("workflow", ""))) for each in entries]

    def update_job(self, run: RunBody, kind: ApplianceJobType, log: Path) -> None:
        """Record a job's state.

        Raises:
            OSError: the file is not writable.
        """
        entries = self._jobs[_LISTS[kind]]
        entry: dict[str, Any] | None = next((each for each in entries if each["id"] == run.id), None)
        if entry is None:
            entry = {"id": run.id, "workflow": run.job.appliance.workflow if run.job.appliance else ""}
            entries.append(entry)
        scheduled = run.scheduled_at or entry.get("scheduled_time")  # the claim's end removes it
        entry |= {"log_path": str(log), "queued_time": run.created_at, "scheduled_time": scheduled}
        entry |= {"start_time": run.started_at, "end_time": run.ended_at, "state": user_state(run)}
        if run.exit_code is not None:
            entry["exit_code"] = run.exit_code
        self._write()

    def mark_ended(self, run: RunBody | None, ident: str) -> None:
        """Record the end of an earlier start's job; None: it is no longer known, or another folder's.

        Raises:
            OSError: the file is not writable.
        """
        for entry in (each for entries in self._jobs.values() for each in entries if each["id"] == ident):
            entry["end_time"] = (run.ended_at if run is not None else None) or "unknown"
            entry["state"] = user_state(run) if run is not None else "UNKNOWN"
        self._write()

    def _write(self) -> None:
        write_atomically(self._path, json.dumps({"version": self._version, **self._jobs}, indent=2).encode() + b"\n")


def user_state(run: RunBody) -> str:
    """A job's state in the terms of appliances' users: FAILED if it ended, but neither succeeded nor was cancelled."""
    if run.state in ENDED and run.state not in (RunState.SUCCEEDED, RunState.CANCELLED):
        return "FAILED"
    words = {RunState.WAITING: "QUEUED", RunState.STARTING: "SCHEDULED", RunState.YIELDING: "RUNNING"}
    return words.get(RunState(run.state), str(run.state))
