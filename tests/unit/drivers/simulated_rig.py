"""A simulated machine for tests: a pool of eight devices, a clock moved by hand, the conformance suite's handles."""

from collections.abc import Sequence
from pathlib import Path

from moorings.core.model.devices import PoolName
from moorings.core.model.driver_results import ListedPartition, ObservedState, PartitionSpec
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.core.model.topology import Block, Pool, PowerOfTwo, Topology
from moorings.drivers.simulated.driver import SimulatedDriver
from moorings.drivers.simulated.faults import Fault, FaultKind
from moorings.drivers.simulated.settings import SimulatedSettings

AT_ONCE = SimulatedSettings(
    provision_s=0, provision_per_device_s=0, reset_s=0, reset_per_device_s=0, remove_s=0, remove_per_device_s=0
)
USUAL = SimulatedSettings()
PAIR = PowerOfTwo(domains=2, domain_size=4, max_block=8)
MARK = "ours"


class HandClock:
    """Time that passes only when told to, or when somebody sleeps."""

    def __init__(self) -> None:
        self.time = Timestamp(1_700_000_000_000_000)

    def now(self) -> Timestamp:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.forward(seconds)

    def forward(self, seconds: float) -> None:
        self.time = add_seconds(self.time, seconds)


class SimulatedRig:
    """One simulated machine and the process that drives it: ``open`` again is a new process."""

    def __init__(
        self,
        folder: Path,
        settings: SimulatedSettings = USUAL,
        *,
        kind: str = "ipu",
        topology: Topology = PAIR,
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.pool = Pool(PoolName("pod8"), kind, "simulated", topology)
        self.clock = HandClock()
        self._driver: SimulatedDriver | None = None

    @property
    def driver(self) -> SimulatedDriver:
        assert self._driver is not None, "no process drives the machine"
        return self._driver

    async def open(self) -> SimulatedDriver:
        return self.restart()

    def restart(self) -> SimulatedDriver:
        """The driver of a new process; the old one is as good as killed (closing writes nothing)."""
        self.kill()
        self._driver = SimulatedDriver(self.pool, self.settings, self.folder, self.clock)
        return self.driver

    def kill(self) -> None:
        if self._driver is not None:
            self._driver._machine.close()
            self._driver = None

    async def pass_time(self) -> None:
        self.clock.forward(0.05)

    def trouble(self, kind: FaultKind, **how: object) -> Fault:
        fault = Fault(kind=kind, **how)  # type: ignore[arg-type]
        self.driver.faults.add(fault)
        return fault

    def lose_next_answer(self) -> None:
        self.trouble(FaultKind.TIMEOUT_AFTER_SUCCESS, times=1)

    def show_unknown_state(self, name: str) -> None:
        self.trouble(FaultKind.LYING_UNKNOWN, names=(name,))

    def stop_answering(self) -> None:
        self.trouble(FaultKind.RESTART, seconds=3600)

    def write_faults(self, text: str) -> None:
        """Edit the faults file, and let enough time pass for it to be looked at."""
        (self.folder / "faults.toml").write_text(text)
        self.clock.forward(0.1)


def order(name: str, devices: str, *, mark: str = MARK, gcds: int = 1) -> PartitionSpec:
    return PartitionSpec(name, Block.parse(devices), gcds, 1, mark)


def states(listing: Sequence[ListedPartition]) -> dict[str, ObservedState]:
    return {sighting.name: sighting.state for sighting in listing}
