"""Removes old folders of ended runs, with their output: otherwise disks fill up.

The run's engine decides whether it has ended, and holds it meanwhile; a doubtful folder stays. It is renamed first, so
that a crash half way leaves a folder that is clearly not a run's and is removed next time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from pathlib import Path

from moorings.core.instants import Timestamp
from moorings.workloads.runs import RunId

PRUNED_PREFIX = ".pruned-"  # no run's id begins like this

# Holds a run in the folder of all runs, so that nothing of it starts before the end of the block; gives whether it
# ended before that time. An OSError means: try again next time.
HoldEnded = Callable[[Path, RunId, Timestamp], AbstractContextManager[bool]]


def prune(runs: Path, before: Timestamp, spared: Collection[str], hold: HoldEnded) -> list[RunId]:
    """Remove the folders of runs that ended before a time; return their ids.

    Args:
        runs: the folder of all runs of an engine.
        before: runs that ended later stay.
        spared: ids of runs that stay in any case: in the records they have not ended.
        hold: the engine's function.
    """
    removed: list[RunId] = []
    with contextlib.suppress(OSError):  # it no longer exists
        for entry in sorted(os.scandir(runs), key=lambda entry: entry.name):
            if entry.name.startswith(PRUNED_PREFIX):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif (
                entry.is_dir(follow_symlinks=False)
                and entry.name not in spared
                and _prune_one(runs, RunId(entry.name), before, hold)
            ):
                removed.append(RunId(entry.name))
    return removed


def _prune_one(runs: Path, run: RunId, before: Timestamp, hold: HoldEnded) -> bool:
    doomed = runs / f"{PRUNED_PREFIX}{run}"
    try:
        with hold(runs, run, before) as ended:
            if not ended:
                return False
            (runs / run).rename(doomed)
    except OSError:
        return False
    shutil.rmtree(doomed, ignore_errors=True)
    return True
