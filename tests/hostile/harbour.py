"""A whole controller on a real socket, in a thread of its own, so that a client of any kind can be let loose on it.

It is real but for one thing: whatever command a run names, ``true`` is started. Generated jobs would otherwise be
executed, as they should be.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import httpx2
import uvloop

from moorings.api.application import make_application
from moorings.api.limits import ApiLimits
from moorings.api.server import ApiServer
from moorings.core.model.access import Role
from moorings.core.model.policy import Policy
from moorings.local.engine import LocalEngine
from moorings.ports.engine import RunSubmission
from tests.e2e.rig import Rig, running
from tests.waiting import patient

T = TypeVar("T")

POOLS = """
[[pool]]
name = "pod64"
kind = "ipu"
driver = "simulated"
topology = { type = "power-of-two", domains = 1, domain_size = 64, max_block = 64 }
resources = { memory = "64G" }
[pool.simulated]
provision_s = 0.05
provision_per_device_s = 0.0
remove_s = 0.05
remove_per_device_s = 0.0
reset_s = 0.05
reset_per_device_s = 0.0

[[pool]]
name = "rack"
kind = "gpu"
driver = "simulated"
topology = { type = "any-subset", domains = 1, domain_size = 8 }
[pool.simulated]
provision_s = 0.05
provision_per_device_s = 0.0
remove_s = 0.05
remove_per_device_s = 0.0
"""


class HarmlessEngine(LocalEngine):
    """The local engine, on which every job is ``true``, in a folder that exists."""

    async def submit(self, order: RunSubmission) -> str:
        job = replace(order.job, command=("/bin/true",), workdir="/", environment={}, checkpoint_directory=None)
        return await super().submit(replace(order, job=job))


@dataclass
class Harbour:
    """A controller that runs. ``keys``: an access key for each role; ``ask`` runs a call where the controller lives."""

    rig: Rig
    port: int
    keys: dict[Role, str]
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def bearer(self, role: Role) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[role]}"}

    def give_everything_back(self) -> None:
        """End every run and claim over the API; then nothing is left in the hardware."""
        with httpx2.Client(base_url=self.url, headers=self.bearer(Role.ADMIN), timeout=patient(60)) as client:
            while items := client.get("/v1/runs?limit=1000").json()["items"]:
                for item in items:
                    client.post(f"/v1/runs/{item['id']}/cancel?wait=30s")
            while items := client.get("/v1/claims?limit=1000").json()["items"]:
                for item in items:
                    client.delete(f"/v1/claims/{item['id']}?wait=30s")
        self.ask(self.nothing_left)

    async def nothing_left(self) -> None:
        """Law 2, at rest, in every pool."""
        await self.rig.until(lambda: not self.rig.fleet.partitions)
        for name, state in self.rig.fleet.pools.items():
            if name in self.rig.assembly.hardware.drivers:  # the machine itself has none
                assert await self.rig.hardware(name) == set()
            assert state.free.n_free == state.pool.topology.n_devices - len(state.out_of_service)

    def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        async def asked() -> T:
            return await call()

        return asyncio.run_coroutine_threadsafe(asked(), self.loop).result(patient(60))


@contextlib.contextmanager
def harbour(folder: Path, limits: ApiLimits = ApiLimits(), policy: Policy = Policy()) -> Iterator[Harbour]:  # noqa: B008
    """A controller over ``folder``, in another thread. When the block ends the laws hold and every loop is alive."""
    ready: list[Harbour] = []
    begun, leave = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    def live() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_live(folder, limits, policy, ready, begun, leave))
        except BaseException as error:
            failed.append(error)
        finally:
            begun.set()

    thread = threading.Thread(target=live, name="harbour")
    thread.start()
    begun.wait()
    try:
        if ready:
            yield ready[0]
    finally:
        leave.set()
        thread.join()
    if failed:
        raise failed[0]


async def _live(
    folder: Path,
    limits: ApiLimits,
    policy: Policy,
    ready: list[Harbour],
    begun: threading.Event,
    leave: threading.Event,
) -> None:
    async with running(folder, POOLS, policy=policy) as rig:
        engines = rig.assembly.running.engines
        assert isinstance(engines, dict)
        idle, engines["local"] = engines["local"], HarmlessEngine(folder / "runs", rig.clock)
        await idle.close()  # only now: until this first pause no loop has looked at it
        keys = {
            role: rig.assembly.keys.create(role.value, role, "slurm/pod" if role is Role.AGENT else None, "test")[1]
            for role in Role
        }
        app = make_application(rig.controller, limits=limits)
        listening = socket.create_server(("127.0.0.1", 0), backlog=512)
        server = ApiServer(app)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        ready.append(Harbour(rig, listening.getsockname()[1], keys, asyncio.get_running_loop()))
        begun.set()
        await asyncio.to_thread(leave.wait)
        server.should_exit = True
        await serving
        listening.close()
