"""The surroundings of every controller: database, hardware, processes, clocks, randomness, and the checkers."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from moorings.core.model.claims import ClaimId
from moorings.core.model.devices import PoolName
from moorings.core.model.topology import Pool
from moorings.drivers.simulated.driver import SimulatedDriver
from moorings.ports.store import Store
from moorings.testing.simulation.committed_state import CommittedState
from moorings.testing.simulation.engine import SimulatedCluster
from moorings.testing.simulation.environments import SimulatedEnvironments
from moorings.testing.simulation.episode_log import EpisodeLog
from moorings.testing.simulation.fault_plan import FaultPlan
from moorings.testing.simulation.rewind import RewindableDatabase
from moorings.testing.simulation.scheduler import SimulatedScheduler
from moorings.testing.simulation.sharing import Sharing
from moorings.testing.simulation.virtual_time import SeededIds, SteadyClock, VirtualLoop, WallClock


@dataclass
class SimulationContext:
    """The parts that survive a controller.

    Attributes:
        store: the real one; each controller reaches it through its own gate, as processes would.
        drivers: the real simulated hardware, likewise.
        store_away: whether the database is unreachable now.
        cluster: the machines with processes on our partitions.
        scheduler: those with a queue of their own.
        engine_away: whether the engines are unreachable now.
        sharing: its policy, and whether it has projects.
        yielded_claims: claims whose holders have begun to report that they yield.
        rewinds: the state beside a database that is turned back; None: it never is here.
        environments: the values of jobs' variables.
    """

    loop: VirtualLoop
    odds: FaultPlan
    story: EpisodeLog
    ledger: CommittedState
    pools: tuple[Pool, ...]
    store: Store
    drivers: Mapping[PoolName, SimulatedDriver]
    cluster: SimulatedCluster
    scheduler: SimulatedScheduler
    wall: WallClock
    steady: SteadyClock
    ids: SeededIds
    installation: str
    sharing: Sharing
    yielded_claims: set[ClaimId]
    rewinds: RewindableDatabase | None
    environments: SimulatedEnvironments
    store_away: bool = False
    engine_away: bool = False
    outside: contextvars.Context = field(default_factory=contextvars.copy_context)
    _under_way: set[asyncio.Task[None]] = field(default_factory=set)

    def send_message(self, message: Coroutine[Any, Any, None]) -> None:
        """Send a message: it belongs to no controller, and survives its sender."""
        task = self.loop.create_task(message, context=self.outside)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def close(self) -> None:
        """Cancel everything in progress."""
        for task in list(self._under_way):
            task.cancel()
