"""Arrays at the command line: found by id or name, followed in one line, shown in one row while they wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from moorings.client.requests import RunFilter
from moorings.core.model.claims import is_id
from moorings.core.model.errors import MooringsError
from moorings.terminal.durations import Deadline
from moorings.terminal.following import REASON_FRESH_S, run_exit_code
from moorings.wire.shapes import RunBody
from moorings.workloads.arrays import format_indexes
from moorings.workloads.runs import ENDED, RunState

if TYPE_CHECKING:
    from moorings.cli.queue_entries import QueueEntry
    from moorings.client.client import Client
    from moorings.terminal.progress import Progress

_WAITS = (RunState.WAITING, RunState.PAUSED)


def array_instead(client: Client, name: str, error: MooringsError) -> str:
    """The id of the array with that id, or of the newest that has not ended with that name.

    Args:
        client: asks the controller.
        name: of no run.
        error: the answer to a request for a run of that name.

    Raises:
        MooringsError: ``error``: it is none of an array either.
    """
    if error.code != "run.unknown":
        raise error
    if is_id(name):
        if list_elements(client, name):
            return name
        raise error
    named = [run.array for run in client.list_runs() if run.array and run.name == f"{name}-{run.array.index}"]
    if not named:
        raise error
    return named[-1].id


def list_elements(client: Client, array: str) -> Sequence[RunBody]:
    """The runs of an array, by index; those that have ended, too."""
    found = client.list_runs(RunFilter(array=array, all=True))
    return sorted(found, key=lambda run: run.array.index if run.array is not None else 0)


def cancel_array(client: Client, array: str) -> int:
    """Cancel all runs of an array; returns how many had not ended. The last come first: none starts meanwhile."""
    left = [run for run in list_elements(client, array) if run.state not in ENDED]
    for run in sorted(left, key=lambda run: run.claim is not None or run.started_at is not None):
        client.cancel_run(run.id)
    return len(left)


def follow_array(client: Client, progress: Progress, array: str, limit: Deadline) -> Sequence[RunBody]:
    """The runs of an array once all have ended; reports how many have.

    Raises:
        MooringsError: ``wait.timeout``.
    """
    while True:
        runs = list_elements(client, array)
        left = [run for run in runs if run.state not in ENDED]
        if not left:
            progress.clear()
            return runs
        if limit.is_over:
            progress.clear()
            hint = f"it goes on: 'moor wait {array}'"
            raise MooringsError("wait.timeout", f"{array}: {progress_text(runs)}; the time is up", hint=hint)
        progress.show_waiting(f"{array}: {progress_text(runs)}")
        client.get_run(left[-1].id, wait_s=limit.remaining_s(REASON_FRESH_S))


def progress_text(runs: Sequence[RunBody]) -> str:
    """How far an array is: ``12 of 100 ended, 8 run, 80 wait``."""
    ended, waiting = (sum(run.state in states for run in runs) for states in (ENDED, _WAITS))
    return f"{ended} of {len(runs)} ended, {len(runs) - ended - waiting} run, {waiting} wait"


def end_text(array: str, runs: Sequence[RunBody]) -> str:
    """How the runs of an array have ended, in one line."""
    counts = Counter(run.state for run in runs)
    texts = []
    for state, count in sorted(counts.items()):
        which = format_indexes(run.array.index for run in runs if run.state == state and run.array is not None)
        texts.append(f"{count} {state}" if state == RunState.SUCCEEDED else f"{count} {state} ({which})")
    return f"{array}: {', '.join(texts)}"


def worst_exit_code(runs: Iterable[RunBody]) -> int:
    """The highest exit code of these runs."""
    return max((run_exit_code(run) for run in runs), default=0)


def fold_waiting(entries: Sequence[QueueEntry]) -> list[QueueEntry]:
    """The entries, with those elements of an array that wait as one, in the place of the first."""
    waiting: dict[str, list[QueueEntry]] = {}
    for entry in entries:
        if entry.array is not None and entry.is_waiting:
            waiting.setdefault(entry.array.id, []).append(entry)
    folded = []
    for entry in entries:
        if entry.array is None or not entry.is_waiting:
            folded.append(entry)
        elif entry is waiting[entry.array.id][0]:
            folded.append(_fold(waiting[entry.array.id]))
    return folded


def _fold(elements: Sequence[QueueEntry]) -> QueueEntry:
    first = elements[0]
    assert first.array is not None
    indexes = format_indexes(sorted(each.array.index for each in elements if each.array is not None))
    limit = f"%{first.array.limit}" if first.array.limit else ""
    name = first.name.removesuffix(f"-{first.array.index}")
    return replace(first, name=f"{name}[{indexes}{limit}]", run=first.array.id, claim=None)
