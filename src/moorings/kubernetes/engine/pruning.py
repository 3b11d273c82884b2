"""Which runs' folders may be deleted for age: those whose end is recorded, or whose IPUJob was never activated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from moorings.core.instants import SECOND, Timestamp
from moorings.kubernetes.engine.rundir import KubernetesRunFolder
from moorings.workloads.runs import RunId


@contextlib.contextmanager
def hold_ended(runs: Path, run: RunId, before: Timestamp) -> Iterator[bool]:
    """Yield whether a run ended before a time. Takes no lock: only the calling controller starts runs here.

    Raises:
        OSError: its folder cannot be read.
    """
    folder = KubernetesRunFolder.of(runs, run)
    yield folder is not None and _ended_before(folder, before)


def _ended_before(folder: KubernetesRunFolder, before: Timestamp) -> bool:
    try:
        newest = folder.newest()
        facts = newest.facts() if newest is not None else None
    except ValueError:  # damaged
        return False
    if newest is None or facts is None or (facts.end is None and facts.alive):
        return False
    if facts.end is not None and facts.end.ended_at is not None:
        return facts.end.ended_at < before
    return newest.path.stat().st_mtime < before / SECOND
