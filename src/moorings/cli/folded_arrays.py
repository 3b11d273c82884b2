"""Rows of tables for arrays: elements that wait, or have ended alike, are one. What most tables need, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from moorings.wire.shapes import ArrayBody, RunBody
from moorings.workloads.arrays import format_indexes

if TYPE_CHECKING:
    from moorings.cli.queue_entries import QueueEntry


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


def fold_elements(runs: Sequence[RunBody]) -> list[RunBody]:
    """The runs, with those elements of an array that wait, or have ended alike, as one, in the place of the first."""
    from moorings.workloads.runs import ENDED, RunState  # a queue is shown without them

    alike: dict[tuple[object, ...], list[RunBody]] = {}
    for run in _by_index(runs):
        is_folded = run.array is not None and run.state in {*ENDED, RunState.WAITING, RunState.PAUSED}
        key = (run.array.id, run.state, run.exit_code) if run.array is not None and is_folded else (run.id,)
        alike.setdefault(key, []).append(run)
    return [_fold_runs(group) if len(group) > 1 else group[0] for group in alike.values()]


def _by_index(runs: Sequence[RunBody]) -> list[RunBody]:
    """The runs in their order, those of an array by index: ids are sorted as texts."""
    places: dict[str, int] = {}

    def place(at: int, run: RunBody) -> tuple[int, int]:
        return (places.setdefault(run.array.id, at), run.array.index) if run.array is not None else (at, 0)

    placed = [(place(at, run), run) for at, run in enumerate(runs)]
    return [run for _, run in sorted(placed, key=lambda pair: pair[0])]


def _fold_runs(elements: Sequence[RunBody]) -> RunBody:
    first = elements[0]
    assert first.array is not None
    parts = [each.array for each in elements if each.array is not None]
    return replace(first, id=first.array.id, name=_folded_name(first.name, parts), claim=None)


def _fold(elements: Sequence[QueueEntry]) -> QueueEntry:
    first = elements[0]
    assert first.array is not None
    name = _folded_name(first.name, [each.array for each in elements if each.array is not None])
    return replace(first, name=name, run=first.array.id, claim=None)


def _folded_name(name: str, parts: Sequence[ArrayBody]) -> str:
    """A name for elements of an array: ``sweep[1-3%2]``; the first is called ``name``."""
    limit = f"%{parts[0].limit}" if parts[0].limit else ""
    return f"{name.removesuffix(f'-{parts[0].index}')}[{format_indexes(sorted(each.index for each in parts))}{limit}]"
