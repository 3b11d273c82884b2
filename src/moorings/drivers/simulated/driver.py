"""The driver of simulated accelerators: it puts faults between the port and the vendor's controller.

Refused: a simulated controller behind a real socket. It would add a process to start and show nothing more through the
port: the effects of a network on a request (lost, late, spoilt, still carried out) are faults here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from moorings.core.bindings import Binding
from moorings.core.errors import MooringsError
from moorings.core.hardware import Capability, DriverResult, ListedPartition, ObservedState, PartitionSpec, ResultCode
from moorings.core.instants import Timestamp
from moorings.core.topology import Block, Pool
from moorings.drivers.simulated.binding import DeviceLayout, build_binding
from moorings.drivers.simulated.faults import FaultKind, VendorCall, VendorFaults
from moorings.drivers.simulated.faults_file import FaultsFile
from moorings.drivers.simulated.happenings import apply_spontaneous_faults
from moorings.drivers.simulated.hardware import SimulatedHardware
from moorings.drivers.simulated.partition import SimulatedPartition, VendorState
from moorings.drivers.simulated.settings import SimulatedSettings
from moorings.drivers.simulated.vendor import VendorController, parse_state
from moorings.ports.clock import Clock

FAULTS_FILE = "faults.toml"
FAULTS_POLL_US = (
    50_000  # microseconds between checks of the faults file: soon for a human, cheap beside 1,000 requests/s
)
CLOCK_JUMP_US = 3_600_000_000  # microseconds; no action takes so long: the clock was set back while no controller ran

_LOST = "deadline exceeded: no answer"

_log = logging.getLogger(__name__)

_FAILS = {VendorCall.RESET: FaultKind.RESET_FAILS, VendorCall.REMOVE: FaultKind.REMOVAL_FAILS}


class SimulatedDriver:
    """One pool of simulated accelerators, with its state in ``folder``.

    Args:
        pool: the devices.
        settings: their behaviour.
        folder: the machine; made if missing. Any number of processes may drive it, as with a vendor's controller.
        clock: its time.

    Attributes:
        faults: the active faults; those of ``<folder>/faults.toml`` follow that file.

    Raises:
        MooringsError: ``driver.unavailable`` (the folder cannot be used, or is damaged), ``pools.invalid`` (clusters).
    """

    def __init__(self, pool: Pool, settings: SimulatedSettings, folder: Path, clock: Clock) -> None:
        self._pool = pool
        self._settings = settings
        self._clock = clock
        self._wiring = DeviceLayout(pool, settings.clusters)
        if self._wiring.problem:
            raise MooringsError("pools.invalid", f"pool {pool.name}: {self._wiring.problem}")
        self._machine = SimulatedHardware(folder)
        self.faults = VendorFaults(settings.seed, self._machine.openings, self._machine.strike)
        self._faults_file = FaultsFile(self._machine.folder / FAULTS_FILE)
        self._vendor = VendorController(pool, settings, self._machine, self.faults)
        self._looked_at = -FAULTS_POLL_US
        self._ahead = 0  # microseconds by which the hardware's time is ahead of the clock, after that was set back
        self._latest = self._machine.latest if self._machine.latest - clock.now() > CLOCK_JUMP_US else Timestamp(0)

    @property
    def capability(self) -> Capability:
        facts = {
            "hardware": f"simulated, in {self._machine.folder}",
            "api": f"{self._settings.api_host}:{self._settings.api_port}",
            "clusters": str(self._settings.clusters),
        }
        return Capability(name_chars_max=self._settings.name_chars_max, facts=facts)

    @property
    def machine(self) -> SimulatedHardware:
        """Return the hardware itself, for tests of its state; faults may affect the driver's answers."""
        return self._machine

    def adopt(self, held: Sequence[PartitionSpec]) -> None:
        """Do nothing: this hardware keeps our mark beside each partition."""

    async def create(self, order: PartitionSpec) -> DriverResult:
        return await self._obey(VendorCall.CREATE, order.name, order.block, partial(self._vendor.create, order))

    async def reset(self, name: str, mark: str) -> DriverResult:
        return await self._obey(VendorCall.RESET, name, None, partial(self._vendor.reset, name, mark))

    async def remove(self, name: str, mark: str) -> DriverResult:
        return await self._obey(VendorCall.REMOVE, name, None, partial(self._vendor.remove, name, mark))

    async def list_partitions(self) -> Sequence[ListedPartition]:
        with self._machine.turn():
            now = self._begin()
            if not self.faults:
                return [self._sighting(partition, now) for partition in self._machine.partitions(now)]
            sightings = self._troubled_listing(now)
            hang_s = self._hang_s(VendorCall.LIST, "", None)
        await self._pause(hang_s)
        return sightings

    async def binding(self, order: PartitionSpec) -> Binding:
        with self._machine.turn():
            now = self._begin()
            if self.faults.strike(FaultKind.TIMEOUT_BEFORE, VendorCall.BINDING, order.name, order.block):
                raise _unavailable(_LOST)
            self._demand_active(order, now)
            if self._pool.kind == "ipu":
                self._machine.make_device_files(order.block)
            hang_s = self._hang_s(VendorCall.BINDING, order.name, order.block)
        binding = build_binding(order, self._pool, self._settings, self._wiring, self._machine.device_file)
        await self._pause(hang_s)
        return binding

    async def close(self) -> None:
        self._machine.close()

    # ---- one request, from its arrival to its answer

    async def _obey(
        self, call: VendorCall, name: str, block: Block | None, do: Callable[[Timestamp], DriverResult]
    ) -> DriverResult:
        hang_s = 0.0
        try:
            with self._machine.turn():
                now = self._begin()
                answer, hang_s = self._troubled(call, name, block, do, now) if self.faults else (do(now), 0.0)
        except MooringsError as error:
            answer = DriverResult(ResultCode.UNAVAILABLE, detail=error.detail)
        await self._pause(hang_s)
        complaint = self._faults_file.complaint
        return replace(answer, detail=f"{answer.detail}; {complaint}".strip("; ")) if complaint else answer

    def _troubled(
        self, call: VendorCall, name: str, block: Block | None, do: Callable[[Timestamp], DriverResult], now: Timestamp
    ) -> tuple[DriverResult, float]:
        """Return the answer that arrives, and its delay in seconds."""
        held = self._machine.find(name, now)
        block = block if held is None else held.block
        answer = self._prevented(call, name, block, held, now) or self._spoilt(call, name, block, do(now))
        return answer, self._hang_s(call, name, block)

    def _prevented(
        self, call: VendorCall, name: str, block: Block | None, held: SimulatedPartition | None, now: Timestamp
    ) -> DriverResult | None:
        """Return the answer of a fault that prevents this request, or None."""
        shown = None if held is None else self._vendor.shown(held, now)
        seen = ObservedState.ABSENT if shown is None else parse_state(shown)
        down = self.faults.agent_down(block) if block is not None and shown != VendorState.REMOVING else None
        if down is not None:
            return DriverResult(
                down.answer, seen, f"the agent of an IPU-Machine with devices of {block} is unreachable"
            )
        if self.faults.strike(FaultKind.TIMEOUT_BEFORE, call, name, block):
            return DriverResult(ResultCode.UNAVAILABLE, detail=_LOST)
        if self.faults.strike(FaultKind.REJECT, call, name, block):
            return DriverResult(ResultCode.REJECTED, seen, f"{call} of {name} refused (error 9)")
        if held is not None and call in _FAILS and self.faults.strike(_FAILS[call], call, name, block):
            self._machine.put(replace(held, breaks_at=now, gone_at=None), f"{call} failed")
            return DriverResult(ResultCode.BROKEN, ObservedState.ERROR, f"{call} of {name} failed: link training error")
        return None

    def _spoilt(self, call: VendorCall, name: str, block: Block | None, answer: DriverResult) -> DriverResult:
        """Return the answer as it arrives, for a request that was carried out."""
        if answer.verdict is not ResultCode.OK:
            return answer
        if self.faults.strike(FaultKind.TIMEOUT_AFTER_SUCCESS, call, name, block):
            return DriverResult(ResultCode.UNAVAILABLE, detail=_LOST)
        if self.faults.strike(FaultKind.ERROR_ON_RESULT, call, name, block):
            return DriverResult(ResultCode.UNAVAILABLE, detail="502 Bad Gateway: upstream closed the connection")
        return answer

    def _hang_s(self, call: VendorCall, name: str, block: Block | None) -> float:
        fault = self.faults.strike(FaultKind.HANG, call, name, block)
        return 0.0 if fault is None else fault.seconds

    async def _pause(self, seconds: float) -> None:
        if seconds:
            await self._clock.sleep(seconds)

    def _sighting(self, partition: SimulatedPartition, now: Timestamp) -> ListedPartition:
        shown = self._vendor.shown(partition, now)
        several = self._settings.clusters > 1
        raw = f"{shown} {self._wiring.cluster(partition.block.start)}" if several else str(shown)
        return ListedPartition(partition.name, parse_state(shown), partition.block, partition.mark, raw)

    def _troubled_listing(self, now: Timestamp) -> list[ListedPartition]:
        if self.faults.strike(FaultKind.LISTING_FAILS):
            raise _unavailable("the listing failed: 502 Bad Gateway")
        if self.faults.strike(FaultKind.LISTING_EMPTY):
            return []
        return [
            self._sighting(partition, now)
            for partition in self._machine.partitions(now)
            if not self.faults.strike(FaultKind.LISTING_PARTIAL, None, partition.name, partition.block)
        ]

    def _demand_active(self, order: PartitionSpec, now: Timestamp) -> None:
        held = self._machine.find(order.name, now)
        ours = held is not None and (held.mark, held.block) == (order.mark, order.block)
        shown = self._vendor.shown(held, now) if held is not None and ours else "not there, or another's"
        if shown != VendorState.ACTIVE:
            raise MooringsError(
                "partition.not_active",
                f"partition {order.name} is not active: {shown}",
                hint="wait until it is",
                retryable=True,
            )

    # ---- changes without a request

    def _begin(self) -> Timestamp:
        """Return a call's time of arrival, after applying all changes until then.

        Raises:
            MooringsError: ``driver.unavailable``.
        """
        now, clock = self._time(), self._clock.now()
        if not 0 <= clock - self._looked_at < FAULTS_POLL_US:
            self._looked_at = clock
            self._look()
        if self.faults:
            apply_spontaneous_faults(self._machine, self._pool, self.faults, self._settings.restart, now)
        if now < self._machine.down_until:
            raise _unavailable("connection refused: the hardware's controller is restarting")
        return now

    def _time(self) -> Timestamp:
        """Return the hardware's time: it never goes back, because machines undo nothing when our clock is set."""
        clock = self._clock.now()
        self._ahead = max(self._ahead, self._latest - clock)
        self._latest = Timestamp(clock + self._ahead)
        return self._latest

    def _look(self) -> None:
        """Follow changes of the faults file."""
        before = self._faults_file.complaint
        faults = self._faults_file.changed()
        complaint = self._faults_file.complaint
        if faults is not None:
            self._machine.keep_strikes(self.faults.of_file(faults, self._machine.struck))
            _log.info("faults.changed pool=%s faults=%d", self._pool.name, len(faults))
        if complaint and complaint != before:
            _log.warning("faults.invalid pool=%s problem=%s", self._pool.name, complaint)


def _unavailable(detail: str) -> MooringsError:
    return MooringsError("driver.unavailable", detail, hint="Moorings asks again by itself", retryable=True)
