"""A controller's parts that go on only step by step: no loop serves, no clock runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from moorings.controller.loop import TurnLoop
from moorings.core.model.claims import Claim, ClaimId, ClaimSpec, ClaimState
from moorings.core.model.devices import PoolName
from moorings.core.model.driver_results import PartitionSpec
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import CreateClaim, ReleaseClaim
from moorings.core.model.policy import Policy
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.core.model.topology import Block, Pool, PowerOfTwo
from moorings.drivers.simulated.driver import SimulatedDriver
from tests.databases import open_new
from tests.unit.drivers.simulated_rig import AT_ONCE

T = TypeVar("T")

POOL = Pool(PoolName("pod8"), "ipu", "simulated", PowerOfTwo(1, 8, 8))


def made_of(name: str, devices: str, mark: str) -> PartitionSpec:
    return PartitionSpec(name, Block.parse(devices), 1, 1, mark)


class StandingClock:
    """Time that passes only when told to; then every nap is over."""

    def __init__(self) -> None:
        self.time = Timestamp(1_700_000_000_000_000)
        self.naps: list[asyncio.Future[None]] = []

    def now(self) -> Timestamp:
        return self.time

    async def sleep(self, seconds: float) -> None:
        nap: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.naps.append(nap)
        try:
            await nap
        finally:
            self.naps.remove(nap)

    @property
    def sleepers(self) -> int:
        """How many naps are not over."""
        return sum(not nap.done() for nap in self.naps)

    def forward(self, seconds: float) -> None:
        self.time = add_seconds(self.time, seconds)
        for nap in self.naps:
            if not nap.done():
                nap.set_result(None)


class Stepper:
    """Store, loop and hardware of one controller; ``tasks`` says what acts beside the turns."""

    def __init__(self, folder: Path) -> None:
        self.clock = StandingClock()
        self.store = open_new(folder / "moorings.db")
        self.installation = self.store.installation()
        self.loop = TurnLoop(self.store, [POOL], Policy(), self.clock, self.store.begin_epoch("test", self.clock.now()))
        self.driver = SimulatedDriver(POOL, AT_ONCE, folder / "machine", self.clock)
        self._n_claims = 0

    def tasks(self) -> list[asyncio.Task[None]]:
        """Whatever acts beside the turns."""
        return []

    async def done(self, work: Awaitable[T]) -> T:
        """What came of something that may need a turn."""
        task = asyncio.ensure_future(work)
        await asyncio.sleep(0)
        await self.settle()
        return await task

    async def refused(self, work: Awaitable[object]) -> str:
        with pytest.raises(MooringsError) as caught:
            await self.done(work)
        return caught.value.code

    async def settle(self) -> None:
        """Take turns until nothing is left to be done before time passes."""
        while True:
            self.clock.time = Timestamp(self.clock.time + 1)
            if self.loop._inbox:
                await self._turn()
                continue
            unfinished = [task for task in self.tasks() if not task.done()]
            if len(unfinished) <= self.clock.sleepers:
                return
            await asyncio.sleep(0)  # one of them is on its way through driver, database or engine

    async def _turn(self) -> None:
        try:
            await self.loop.turn()
        except MooringsError as error:  # a controller that was replaced hears of it here
            if error.code != "store.fenced":
                raise

    async def until(self, true: Callable[[], bool]) -> None:
        """Let what is under way continue, without time or turns, until that is true."""
        while not true():  # noqa: ASYNC110 - what is waited for is a step inside a task
            await asyncio.sleep(0)

    async def post(self, given: CreateClaim | ReleaseClaim) -> Claim:
        reply = asyncio.create_task(self.loop.submit(given))
        await asyncio.sleep(0)
        await self.settle()
        claim = await reply
        assert isinstance(claim, Claim)
        return claim

    async def claim(self, size: int = 4, owner: str = "user/ann") -> ClaimId:
        """A claim, served as far as the driver serves it at once."""
        self._n_claims += 1
        ident = ClaimId(f"claim-{self._n_claims}")
        spec = ClaimSpec(kind="ipu", size=size)
        await self.post(CreateClaim(id=ident, name=ident, owner=owner, subject="ann", spec=spec))
        return ident

    async def release(self, claim: ClaimId) -> None:
        await self.post(ReleaseClaim(claim, "done"))

    def state(self, claim: ClaimId) -> ClaimState:
        found = self.store.get_claim(claim)
        assert found is not None
        return found.state

    async def names(self) -> set[str]:
        """What the hardware really has."""
        return {sighting.name for sighting in await self.driver.list_partitions()}

    def lose_the_lead(self) -> None:
        """Another controller leads from now on, and nobody has told this one."""
        self.store.begin_epoch("another", self.clock.now())

    async def end(self) -> None:
        for task in (tasks := self.tasks()):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.loop.close()
        self.driver.hardware.close()
        self.store.close()
