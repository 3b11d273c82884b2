"""Spontaneous faults: crashes, rival leaders, clocks that jump, outages, broken hardware; each kind at its own rate.

Every enabled kind is one task: it waits a drawn time, injects a fault, and waits again. A lasting fault is repaired
after a drawn time; ``calm`` repairs all of them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Protocol

from moorings.core.model.timestamps import add_seconds
from moorings.core.model.topology import Block, Pool
from moorings.drivers.simulated.faults import Fault, FaultKind, VendorCall
from moorings.testing.simulation.context import SimulationContext
from moorings.testing.simulation.fault_plan import FAULT_INTERVALS_S
from moorings.testing.simulation.invariant_checker import InvariantChecker
from moorings.workloads.runs import EndReason

OUTAGE_S_MAX = 20.0
STALL_S_MAX = 30.0
RIVAL_S_MAX = 25.0
BACK_S_MAX = 15.0  # how far the database is turned back at most
BACK_DOWN_OF = 0.5  # of these: while no controller leads
DOUBT_S = 120.0  # how long afterwards the records may say that partitions were in ERROR, or were gone for a while
JUMP_S = (45.0, 3_600.0, 86_400.0)


class FaultTargets(Protocol):
    """The controllers' side of the faults."""

    def crash(self, why: str) -> None:
        """Kill the leader; another one starts in its place."""
        ...

    def stall(self, lasts_s: float) -> None:
        """Stop the leader for a while."""
        ...

    def turn_back(self, *, down: bool) -> None:
        """Turn the database back to the remembered state; ``down``: the leader dies at that moment."""
        ...

    def rival(self, stopped_s: float, lasts_s: float) -> None:
        """Start another leader while the old one is still alive, stopped for a while at first."""
        ...


class FaultInjector:
    """Injects faults, until it is calm."""

    def __init__(self, stage: SimulationContext, witness: InvariantChecker, controllers: FaultTargets) -> None:
        self._stage = stage
        self._witness = witness
        self._controllers = controllers
        self._chance: random.Random = stage.odds.chance
        self._tasks: list[asyncio.Task[None]] = []
        self._strikers: dict[str, Callable[[], None]] = {
            "crash": lambda: controllers.crash("crash"),
            "zombie": lambda: controllers.rival(0.0, self._chance.uniform(1, RIVAL_S_MAX)),
            "zombie_paused": lambda: controllers.rival(
                self._chance.uniform(0.1, RIVAL_S_MAX), self._chance.uniform(1, RIVAL_S_MAX)
            ),
            "stall": lambda: controllers.stall(self._chance.uniform(0.1, STALL_S_MAX)),
            "clock_forward": lambda: self._set_clock(1),
            "clock_backward": lambda: self._set_clock(-1),
            "store_away": self._store_away,
            "store_back": self._store_back_in_time,
            "engine_away": self._engine_away,
            "node_lost": lambda: self._end_one(EndReason.LOST, "its node was lost"),
            "record_damaged": lambda: self._end_one(EndReason.LOST, "its record is damaged"),
        }

    def start(self) -> None:
        """Start every kind that is enabled in this episode."""
        for kind in FAULT_INTERVALS_S:
            if kind in self._stage.odds.kinds:
                self._tasks.append(self._stage.loop.create_task(self._go_on(kind), name=kind))

    def stop(self) -> None:
        """Inject no more faults, and repair the lasting ones."""
        for task in self._tasks:
            task.cancel()
        self._stage.odds.calm = True
        self._stage.store_away = self._stage.engine_away = False
        for driver in self._stage.drivers.values():
            driver.faults.clear()

    async def _go_on(self, kind: str) -> None:
        while True:
            await asyncio.sleep(self._stage.odds.next_fault_s(kind))
            if kind.startswith("vendor_"):
                self._vendor(FaultKind(kind.removeprefix("vendor_")))
            else:
                self._strikers[kind]()

    def _set_clock(self, sign: int) -> None:
        by_s = sign * self._chance.choice((self._chance.uniform(0.01, 0.5), *JUMP_S))
        self._stage.wall.set_by_s += by_s
        self._stage.story.add_fault("clock_forward" if sign > 0 else "clock_backward", f"{by_s:+.3f} s")

    def _store_away(self) -> None:
        self._stage.story.add_fault("store_away")
        self._stage.store_away = True
        self._stage.loop.call_later(self._chance.uniform(0.05, OUTAGE_S_MAX), self._store_back)

    def _store_back(self) -> None:
        self._stage.store_away = False

    def _store_back_in_time(self) -> None:
        assert self._stage.rewinds is not None
        self._stage.rewinds.save_snapshot()
        down, after_s = self._chance.random() < BACK_DOWN_OF, self._chance.uniform(0.1, BACK_S_MAX)
        self._stage.loop.call_later(after_s, self._turn_back, down)

    def _turn_back(self, down: bool) -> None:
        if not self._stage.odds.calm:
            self._controllers.turn_back(down=down)

    def _engine_away(self) -> None:
        self._stage.story.add_fault("engine_away")
        self._stage.engine_away = True
        self._stage.loop.call_later(self._chance.uniform(0.05, OUTAGE_S_MAX), self._engine_back)

    def _engine_back(self) -> None:
        self._stage.engine_away = False

    def _end_one(self, ending: EndReason, detail: str) -> None:
        clusters = (self._stage.cluster, self._stage.scheduler)
        live = [(run, cluster) for cluster in clusters for run in cluster.live]
        if live:
            run, cluster = self._chance.choice(live)
            self._stage.story.add_fault("node_lost" if "node" in detail else "record_damaged", run)
            cluster.end_run(run, ending, 1, detail)

    # -- hardware ----------------------------------------------------------------------------------------------------

    def _vendor(self, kind: FaultKind) -> None:
        pool = self._chance.choice(self._stage.pools)
        fault = self._drawn(kind, pool)
        lasts_s = self._chance.uniform(0.5, OUTAGE_S_MAX)
        self._stage.story.add_fault(f"vendor_{kind}", f"{pool.name}: {fault.describe()} for {lasts_s:.1f} s")
        faults = self._stage.drivers[pool.name].faults
        faults.add(fault)
        self._stage.loop.call_later(lasts_s, faults.remove, fault)
        if kind in (FaultKind.AGENT_DOWN, FaultKind.VANISHES, FaultKind.RESTART):
            self._witness.set_doubt_until(add_seconds(self._stage.steady.now(), lasts_s + DOUBT_S))

    def _drawn(self, kind: FaultKind, pool: Pool) -> Fault:
        chance = self._chance
        some = chance.choice((0.3, 1.0))
        one = Block.of([chance.randrange(pool.topology.n_devices)])
        seconds = chance.uniform(0, 10)
        match kind:
            case FaultKind.LISTING_EMPTY | FaultKind.LISTING_PARTIAL:
                return Fault(kind=kind, times=1)  # the promise is that *one* bad listing ends nothing
            case FaultKind.AGENT_DOWN:
                return Fault(kind=kind, devices=one)
            case FaultKind.BREAKS_WHILE_ACTIVE | FaultKind.VANISHES:
                return Fault(kind=kind, seconds=seconds, probability=some, times=2)
            case FaultKind.BREAKS_WHILE_PROVISIONING:
                return Fault(kind=kind, probability=some, times=2)
            case FaultKind.RESTART:
                return Fault(kind=kind, seconds=seconds, state=chance.choice(("kept", "kept", "lost")))
            case FaultKind.STRAY:
                return Fault(kind=kind, seconds=1 + 3 * seconds)
            case FaultKind.NAME_TOO_LONG:
                return Fault(kind=kind, chars=12, times=2)
            case FaultKind.HANG:
                calls = frozenset({*VendorCall})
                return Fault(kind=kind, seconds=chance.choice((2.0, 20.0, 70.0)), probability=0.3, calls=calls)
            case FaultKind.REJECT | FaultKind.REMOVAL_FAILS | FaultKind.RESET_FAILS:
                return Fault(kind=kind, probability=some, times=2)
            case _:
                return Fault(kind=kind, probability=some)
