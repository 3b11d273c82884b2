"""A stand-in V-IPU controller for tests, with the conformance suite's handles: a cluster of eight IPUs."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from moorings.app.clock import SystemClock
from moorings.core.model.devices import PoolName
from moorings.core.model.topology import Pool, PowerOfTwo
from moorings.drivers.vipu.driver import VipuDriver
from moorings.drivers.vipu.settings import VipuSettings
from moorings.testing.fake_vipu import partitions_of, set_faults, write_command

ORDERS = ["create", "delete", "reset"]
AS_ORDERED = ("--index", "{index}")


class VipuRig:
    """One V-IPU controller and the process that drives it: ``open`` again is a new process."""

    def __init__(
        self, folder: Path, *, settings: Mapping[str, object] | None = None, n_devices: int = 8, **machine: object
    ) -> None:
        self.machine = folder / "machine"
        self.data = folder / "data"
        self.command = write_command(self.machine, ipus=n_devices, domain_size=n_devices, **machine)
        usual: dict[str, object] = {"command": str(self.command), "create_arguments": AS_ORDERED, "timeout_s": 30.0}
        self.settings = VipuSettings(**{**usual, **(settings or {})})  # type: ignore[arg-type]
        self.pool = Pool(
            PoolName("pod8"), "ipu", "vipu", PowerOfTwo(domains=1, domain_size=n_devices, max_block=n_devices)
        )

    async def open(self) -> VipuDriver:
        return VipuDriver(self.pool, self.settings, self.data, SystemClock())

    async def pass_time(self) -> None:
        await asyncio.sleep(0.005)  # the suite asks again, with a limit; a listing takes far longer

    def trouble(self, *faults: dict[str, object]) -> None:
        set_faults(self.machine, *faults)

    def lose_next_answer(self) -> None:
        self.trouble({"kind": "fail_after", "on": ORDERS, "times": 1})

    def show_unknown_state(self, name: str) -> None:
        self.trouble({"kind": "state", "name": name, "state": "PS_RETRAINING"})

    def stop_answering(self) -> None:
        self.trouble({"kind": "fail_before"})

    def there(self) -> dict[str, list[int]]:
        """The IPUs of each partition that really exists."""
        return partitions_of(self.machine)
