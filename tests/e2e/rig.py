"""One whole controller in the test's process: real store, real loops, real engine, simulated hardware, faster time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from moorings.app.folders import ARCHIVE
from moorings.app.wiring import Assembly, assemble
from moorings.controller.replay import Replay, TurnDifference
from moorings.controller.service import Controller
from moorings.core.invariants import find_violations
from moorings.core.model.access import Caller, Role
from moorings.core.model.claims import Claim, ClaimSpec
from moorings.core.model.policy import Policy
from moorings.core.model.pools import parse_pools
from moorings.core.model.projects import Project
from moorings.core.model.timestamps import Timestamp
from moorings.drivers.simulated.driver import SimulatedDriver
from moorings.ports.store import Seq, Store
from moorings.store.archive import list_archive_files, read_events
from moorings.store.log_position import LogPositionFile
from moorings.workloads.jobs import Accelerators, JobSpec
from tests.databases import open_new
from tests.waiting import patient

ADMIN = Caller("root", Role.ADMIN, "", "k1")
ANN = Caller("ann", Role.USER, "user/ann", "k2")
BOB = Caller("bob", Role.USER, "user/bob", "k3")
EVE = Caller("eve", Role.USER, "user/eve", "k4")  # of no project

POD16 = """
[[pool]]
name = "pod16"
kind = "ipu"
driver = "simulated"
topology = { type = "power-of-two", domains = 1, domain_size = 16, max_block = 16 }
[pool.simulated]
provision_s = 0.4
provision_per_device_s = 0.0
remove_s = 0.4
remove_per_device_s = 0.0
reset_s = 0.4
reset_per_device_s = 0.0
"""


class QuickClock:
    """The machine's time, ``SPEED`` times as fast: the loops' pauses and the hardware's delays shrink together."""

    SPEED = 10.0

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._wall = time.time()

    def now(self) -> Timestamp:
        return Timestamp(round((self._wall + (time.monotonic() - self._begun) * self.SPEED) * 1e6))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.SPEED)


@dataclass
class Rig:
    """A running controller and ways to look inside."""

    assembly: Assembly
    clock: QuickClock

    @property
    def controller(self) -> Controller:
        return self.assembly.controller

    @property
    def fleet(self):
        return self.assembly.loop.fleet

    def driver(self, pool: str = "pod16") -> SimulatedDriver:
        found = self.assembly.hardware.drivers[pool]  # type: ignore[index]
        assert isinstance(found, SimulatedDriver)
        return found

    async def claim(self, size: int, *, wait_s: float = 10, until: str = "READY", **more: object) -> Claim:
        spec = ClaimSpec(kind="ipu", size=size, **more)  # type: ignore[arg-type]
        view = await self.controller.create_claim(
            ANN, spec, name=None, owner=None, key=None, wait_s=patient(wait_s), until=until
        )
        return view.claim

    async def shared_project(self) -> str:
        """A project of ann's and bob's: each sees what the other has there, and is still not its owner."""
        project = Project(name="team", members=("ann", "bob"))
        return (await self.controller.projects.set_project(ADMIN, project, None)).name

    async def release(self, claim: Claim, wait_s: float = 10) -> Claim:
        return (await self.controller.release_claim(ANN, claim.id, wait_s=patient(wait_s))).claim

    async def until(self, true: Callable[[], bool] | Callable[[], Awaitable[bool]], wait_s: float = 15) -> None:
        """Wait for something that shows in the fleet or the hardware; looked at after every turn, and often."""
        async with asyncio.timeout(patient(wait_s)):
            while True:
                result = true()
                if await result if isinstance(result, Awaitable) else result:
                    return
                await self.assembly.loop.wait_for_change(self.assembly.loop.seq, 0.02)

    async def hardware(self, pool: str = "pod16") -> set[str]:
        """Names of the partitions the hardware really has."""
        return {sighting.name for sighting in await self.driver(pool).list_partitions()}

    async def nothing_left(self, pool: str = "pod16") -> None:
        """Law 2, at rest: no partition in the hardware, none in the records, every healthy device free."""
        await self.until(lambda: not self.fleet.partitions)
        assert await self.hardware(pool) == set()
        for state in self.fleet.pools.values():
            assert state.free.n_free == state.pool.topology.n_devices - len(state.out_of_service)


@contextlib.asynccontextmanager
async def running(
    folder: Path,
    pools: str = POD16,
    clock: QuickClock | None = None,
    store: Store | None = None,
    policy: Policy | None = None,
    machine: Mapping[str, int] | None = None,
) -> AsyncIterator[Rig]:
    """A controller over ``folder``; leaving the block is as sudden as a crash can be in one process."""
    clock = clock or QuickClock()
    store = store or open_new(folder / "moorings.db")
    assembly = await assemble(
        store=store,
        entries=parse_pools(pools),
        data=folder,
        runs=folder / "runs",
        mark=LogPositionFile(folder, store.installation()),
        pepper=b"pepper",
        policy=policy or Policy(),
        clock=clock,
        holder="test",
        machine=machine,
    )
    tasks = [asyncio.create_task(loop.serve()) for loop in (assembly.loop, assembly.hardware, assembly.running)]
    try:
        yield Rig(assembly, clock)
        assert find_violations(assembly.loop.fleet) == []
        assert decided_again(store, pools, folder / ARCHIVE) == []
        for task in tasks:
            assert not task.done(), task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assembly.loop.close()
        await assembly.close()
        store.close()


def decided_again(store: Store, pools: str, archive: Path | None = None) -> list[TurnDifference]:
    """Turns of the whole log that are decided otherwise when it is replayed (law 9)."""
    replay = Replay([entry.pool for entry in parse_pools(pools)])
    before = [row for one in list_archive_files(archive) for row in read_events(one)] if archive is not None else []
    return list(replay.replay_rows([*before, *store.list_events(before[-1].seq if before else Seq(0), 1_000_000)]))


def job(*command: str, size: int = 1, tasks: int = 1, workdir: str = "/tmp", **more: object) -> JobSpec:
    """A job of that command."""
    return JobSpec(
        name="job",
        command=command,
        workdir=workdir,
        environment={"PATH": "/usr/bin:/bin"},
        tasks=tasks,
        accelerators=Accelerators(size=size),
        **more,  # type: ignore[arg-type]
    )
