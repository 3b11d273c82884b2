"""The database is turned back to an earlier state, under a live controller or without one.

The state beside it is not turned back: the known position of its log (the real high-water mark, in a real file), and
the note that protects partitions without a record. The product finds out by itself; some time later the simulated admin
ends the protection (``moor restore --finish``).

The rows are written back into the same file, as a promoted standby would show them: replacing the file is another
fault, and ends a controller at once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path

from moorings.controller.rewind_recovery import EngineObservations, LiveRun, StartedRun, recover_if_rewound
from moorings.core.model.timestamps import Timestamp
from moorings.ports.store import Store
from moorings.store.log_position import LogPositionFile
from moorings.testing.simulation.committed_state import CommittedSnapshot, CommittedState
from moorings.testing.simulation.engine import ENGINE_NAME, SimulatedCluster, SimulatedProcess
from moorings.testing.simulation.episode_log import EpisodeLog
from moorings.workloads.runs import RunId


class RewindableDatabase:
    """The earlier state, and the state that is not turned back with the database.

    Args:
        story: records it.
        ledger: is turned back with the database.
        database: its file.
        cluster: knows the started runs.
        installation: of the database.
        later: calls a function after a drawn time, in which an admin would look around.
    """

    def __init__(
        self,
        story: EpisodeLog,
        ledger: CommittedState,
        database: Path,
        cluster: SimulatedCluster,
        installation: str,
        later: Callable[[Callable[[], None]], None],
    ) -> None:
        self._story = story
        self._ledger = ledger
        self._database = database
        self._copy = database.with_name("before.db")
        self._cluster = cluster
        self._installation = installation
        self._later = later
        self._picture: CommittedSnapshot | None = None
        self._why = ""
        self._ready = True

    @property
    def is_sparing(self) -> bool:
        """Whether partitions without a record are left alone."""
        return bool(self._why)

    def is_in_use(self, partition: str) -> bool:
        """Whether a partition without a record may be in use, as a controller finds out."""
        return self.is_sparing or any(one.order.binding.partition == partition for one in self._cluster.live.values())

    def open_log_position(self) -> LogPositionFile:
        """The high-water mark, as a new process reads it."""
        return LogPositionFile(self._database.parent, self._installation)

    # -- the fault ---------------------------------------------------------------------------------------------------

    def save_snapshot(self) -> None:
        """Remember this moment for turning back."""
        self._copy.unlink(missing_ok=True)
        _copy(self._database, self._copy)
        self._picture = self._ledger.snapshot()

    def restore_snapshot(self) -> int:
        """Restore the remembered state; return how many of its events are lost."""
        assert self._picture is not None
        gone = self._ledger.seq - self._picture.seq
        _copy(self._copy, self._database)
        self._ledger.rewind(self._picture)
        return gone

    # -- the product, and its admin ----------------------------------------------------------------------------------

    def recover_if_rewound(self, store: Store, mark: LogPositionFile, now: Timestamp) -> None:
        """Do what a controller does before it leads, as ``app`` arranges it.

        Raises:
            MooringsError: ``store.*``.
        """
        known = mark.read()
        if known is not None:
            world = EngineObservations(self._started, self._living, lambda: self._cluster.epoch)
            recover_if_rewound(store, known, world, now, self._spare, mark.record_blocking, unready=not self._ready)
        mark.record_blocking(store.log_position())

    def _started(self, run: RunId) -> StartedRun | None:
        process = self._cluster.processes.get(run)
        return _started(process) if process is not None else None

    def _living(self, known: Collection[RunId]) -> list[LiveRun]:
        live = self._cluster.live.items()
        return [LiveRun(run, one.order.job, ENGINE_NAME, _started(one)) for run, one in live if run not in known]

    def _spare(self, why: str, ready: bool) -> None:
        self._why, self._ready = why, ready
        if ready:
            self._story.count("database made ready")
            self._story.add_line("RESTORED", why)
            self._later(self._finish)

    def _finish(self) -> None:
        if self._ready and self.is_sparing:
            self._why = ""
            self._ledger.finish_restore()
            self._story.count("restore finished")
            self._story.add_line("RESTORED", "an admin says that what no record knows may go")


def _started(process: SimulatedProcess) -> StartedRun:
    order = process.order
    return StartedRun(order.attempt, process.started_at, order.partition, order.binding.partition)


def _copy(source: Path, target: Path) -> None:
    """Copy a database into the existing file: open connections see other rows from now on."""
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)
