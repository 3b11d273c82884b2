"""What the controller keeps of the runs of a machine that people share, and what its root daemon says of them.

The folder of a run has ``run.json``, written before the daemon is asked to start an attempt. After a backup was
restored the daemon may know of attempts that no record has; they are found by these files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moorings.client.spool import exchange
from moorings.core.model.serialization import from_plain
from moorings.core.model.timestamps import Timestamp
from moorings.engines.run_folder import RunFolder, to_json
from moorings.files import write_atomically
from moorings.ports.engine import RunSubmission
from moorings.workloads.runs import RunId

FILE = "run.json"
ANSWER_S, ANSWER_BYTES_MAX = 10.0, 4 << 20
ENTRIES_MAX = 1000  # of one question for their state


@dataclass(frozen=True, slots=True)
class SharedRunRecord:
    """What is kept of a run's newest attempt.

    Attributes:
        order: its order.
        submitted_at: when it was first tried.
        control: the socket of the daemon that was asked.
    """

    order: RunSubmission
    submitted_at: Timestamp
    control: str

    def save(self, runs: Path) -> None:
        """Write it into the run's folder."""
        folder = runs / self.order.run
        folder.mkdir(mode=0o700, exist_ok=True)
        write_atomically(folder / FILE, to_json(self))


def read_shared_run(runs: Path, run: RunId) -> SharedRunRecord | None:
    """What is kept of a run; None: it is none of a shared machine.

    Raises:
        OSError: it cannot be read, or is damaged.
    """
    if not RunFolder.id_pattern.fullmatch(run):
        return None
    file = runs / run / FILE
    try:
        return from_plain(SharedRunRecord, json.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise OSError(f"{file} is damaged: {error}") from error


def call_daemon(control: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """The root daemon's answer.

    Raises:
        OSError, ValueError: there is none.
    """
    return dict(json.loads(exchange(control, request, ANSWER_S, ANSWER_BYTES_MAX)))


def read_states(control: Path, entries: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """What the daemon knows of entries, by entry.

    Raises:
        OSError, ValueError: it cannot be asked, or refuses.
    """
    states: dict[str, Mapping[str, Any]] = {}
    for begin in range(0, len(entries), ENTRIES_MAX):
        answer = call_daemon(control, {"op": "status", "entries": entries[begin : begin + ENTRIES_MAX]})
        if "error" in answer:
            raise OSError(f"the root daemon refuses: {answer.get('detail', '')}")
        states |= {state["entry"]: state for state in answer["states"]}
    return states


def find_live(records: Iterable[SharedRunRecord]) -> list[SharedRunRecord]:
    """Those of which the daemon says that their attempt has not ended.

    Raises:
        OSError: it cannot be asked.
    """
    by_control: dict[str, list[SharedRunRecord]] = {}
    for record in records:
        by_control.setdefault(record.control, []).append(record)
    live: list[SharedRunRecord] = []
    for control, asked in by_control.items():
        try:
            states = read_states(Path(control), [record.order.spool_entry for record in asked])
        except (OSError, ValueError, KeyError) as error:
            raise OSError(f"the root daemon does not answer at {control}: {error}; moor up --system") from error
        live += [record for record in asked if states[record.order.spool_entry]["state"] not in ("ABSENT", "ENDED")]
    return live
