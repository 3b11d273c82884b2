"""The driver of simulated accelerators: it puts faults between the port and the vendor's controller.

Refused: a simulated controller behind a real socket. It would add a process to start and show nothing more through the
port: the effects of a network on a request (lost, late, spoilt, still carried out) are faults here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from moorings.core.model.bindings import Binding, GcdBinding
from moorings.core.model.devices import device_id
from moorings.core.model.driver_results import (
    Capability,
    DriverResult,
    ListedPartition,
    ObservedState,
    PartitionSpec,
    ResultCode,
)
from moorings.core.model.errors import MooringsError
from moorings.core.model.partitions import gcd_blocks
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import Block, Catalogue, Pool, PowerOfTwo
from moorings.drivers.simulated.faults import AGENT_DEVICES, FaultKind, VendorCall, VendorFaults
from moorings.drivers.simulated.faults_file import FaultsFile
from moorings.drivers.simulated.hardware import SimulatedHardware
from moorings.drivers.simulated.partition import SimulatedPartition, VendorState
from moorings.drivers.simulated.settings import SimulatedSettings
from moorings.drivers.simulated.spontaneous import apply_spontaneous_faults
from moorings.drivers.simulated.vendor_controller import VendorController, parse_state
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
        self.faults = VendorFaults(settings.seed, self._machine.openings, self._machine.count_fault)
        self._faults_file = FaultsFile(self._machine.folder / FAULTS_FILE)
        self._vendor = VendorController(pool, settings, self._machine, self.faults)
        self._looked_at = -FAULTS_POLL_US
        self._ahead = 0  # microseconds by which the hardware's time is ahead of the clock, after that was set back
        self._latest = (
            self._machine.latest_completion
            if self._machine.latest_completion - clock.now() > CLOCK_JUMP_US
            else Timestamp(0)
        )

    @property
    def capability(self) -> Capability:
        facts = {
            "hardware": f"simulated, in {self._machine.folder}",
            "api": f"{self._settings.api_host}:{self._settings.api_port}",
            "clusters": str(self._settings.clusters),
        }
        return Capability(name_chars_max=self._settings.name_chars_max, details=facts)

    @property
    def hardware(self) -> SimulatedHardware:
        """Return the hardware itself, for tests of its state; faults may affect the driver's answers."""
        return self._machine

    def register_partitions(self, held: Sequence[PartitionSpec]) -> None:
        """Do nothing: this hardware keeps our mark beside each partition."""

    async def create(self, order: PartitionSpec) -> DriverResult:
        return await self._execute(VendorCall.CREATE, order.name, order.block, partial(self._vendor.create, order))

    async def reset(self, name: str, mark: str) -> DriverResult:
        return await self._execute(VendorCall.RESET, name, None, partial(self._vendor.reset, name, mark))

    async def remove(self, name: str, mark: str) -> DriverResult:
        return await self._execute(VendorCall.REMOVE, name, None, partial(self._vendor.remove, name, mark))

    async def list_partitions(self) -> Sequence[ListedPartition]:
        with self._machine.transaction():
            now = self._advance()
            if not self.faults:
                return [self._listed(partition, now) for partition in self._machine.partitions(now)]
            sightings = self._faulty_listing(now)
            hang_s = self._injected_delay_s(VendorCall.LIST, "", None)
        await self._pause(hang_s)
        return sightings

    async def binding(self, order: PartitionSpec) -> Binding:
        with self._machine.transaction():
            now = self._advance()
            if self.faults.inject(FaultKind.TIMEOUT_BEFORE, VendorCall.BINDING, order.name, order.block):
                raise _unavailable(_LOST)
            self._check_active(order, now)
            if self._pool.kind == "ipu":
                self._machine.make_device_files(order.block)
            hang_s = self._injected_delay_s(VendorCall.BINDING, order.name, order.block)
        binding = build_binding(order, self._pool, self._settings, self._wiring, self._machine.device_file)
        await self._pause(hang_s)
        return binding

    async def close(self) -> None:
        self._machine.close()

    # ---- one request, from its arrival to its answer

    async def _execute(
        self, call: VendorCall, name: str, block: Block | None, do: Callable[[Timestamp], DriverResult]
    ) -> DriverResult:
        hang_s = 0.0
        try:
            with self._machine.transaction():
                now = self._advance()
                answer, hang_s = (
                    self._execute_with_faults(call, name, block, do, now) if self.faults else (do(now), 0.0)
                )
        except MooringsError as error:
            answer = DriverResult(ResultCode.UNAVAILABLE, detail=error.detail)
        await self._pause(hang_s)
        complaint = self._faults_file.problem
        return replace(answer, detail=f"{answer.detail}; {complaint}".strip("; ")) if complaint else answer

    def _execute_with_faults(
        self, call: VendorCall, name: str, block: Block | None, do: Callable[[Timestamp], DriverResult], now: Timestamp
    ) -> tuple[DriverResult, float]:
        """Return the answer that arrives, and its delay in seconds."""
        held = self._machine.find_partition(name, now)
        block = block if held is None else held.block
        answer = self._fault_before(call, name, block, held, now) or self._fault_after(call, name, block, do(now))
        return answer, self._injected_delay_s(call, name, block)

    def _fault_before(
        self, call: VendorCall, name: str, block: Block | None, held: SimulatedPartition | None, now: Timestamp
    ) -> DriverResult | None:
        """Return the answer of a fault that prevents this request, or None."""
        shown = None if held is None else self._vendor.reported_state(held, now)
        seen = ObservedState.ABSENT if shown is None else parse_state(shown)
        down = self.faults.agent_down(block) if block is not None and shown != VendorState.REMOVING else None
        if down is not None:
            return DriverResult(
                down.answer, seen, f"the agent of an IPU-Machine with devices of {block} is unreachable"
            )
        if self.faults.inject(FaultKind.TIMEOUT_BEFORE, call, name, block):
            return DriverResult(ResultCode.UNAVAILABLE, detail=_LOST)
        if self.faults.inject(FaultKind.REJECT, call, name, block):
            return DriverResult(ResultCode.REJECTED, seen, f"{call} of {name} refused (error 9)")
        if held is not None and call in _FAILS and self.faults.inject(_FAILS[call], call, name, block):
            self._machine.save_partition(replace(held, breaks_at=now, gone_at=None), f"{call} failed")
            return DriverResult(ResultCode.BROKEN, ObservedState.ERROR, f"{call} of {name} failed: link training error")
        return None

    def _fault_after(self, call: VendorCall, name: str, block: Block | None, answer: DriverResult) -> DriverResult:
        """Return the answer as it arrives, for a request that was carried out."""
        if answer.verdict is not ResultCode.OK:
            return answer
        if self.faults.inject(FaultKind.TIMEOUT_AFTER_SUCCESS, call, name, block):
            return DriverResult(ResultCode.UNAVAILABLE, detail=_LOST)
        if self.faults.inject(FaultKind.ERROR_ON_RESULT, call, name, block):
            return DriverResult(ResultCode.UNAVAILABLE, detail="502 Bad Gateway: upstream closed the connection")
        return answer

    def _injected_delay_s(self, call: VendorCall, name: str, block: Block | None) -> float:
        fault = self.faults.inject(FaultKind.HANG, call, name, block)
        return 0.0 if fault is None else fault.seconds

    async def _pause(self, seconds: float) -> None:
        if seconds:
            await self._clock.sleep(seconds)

    def _listed(self, partition: SimulatedPartition, now: Timestamp) -> ListedPartition:
        shown = self._vendor.reported_state(partition, now)
        several = self._settings.clusters > 1
        raw = f"{shown} {self._wiring.cluster(partition.block.start)}" if several else str(shown)
        return ListedPartition(partition.name, parse_state(shown), partition.block, partition.mark, raw)

    def _faulty_listing(self, now: Timestamp) -> list[ListedPartition]:
        if self.faults.inject(FaultKind.LISTING_FAILS):
            raise _unavailable("the listing failed: 502 Bad Gateway")
        if self.faults.inject(FaultKind.LISTING_EMPTY):
            return []
        return [
            self._listed(partition, now)
            for partition in self._machine.partitions(now)
            if not self.faults.inject(FaultKind.LISTING_PARTIAL, None, partition.name, partition.block)
        ]

    def _check_active(self, order: PartitionSpec, now: Timestamp) -> None:
        held = self._machine.find_partition(order.name, now)
        ours = held is not None and (held.mark, held.block) == (order.mark, order.block)
        shown = self._vendor.reported_state(held, now) if held is not None and ours else "not there, or another's"
        if shown != VendorState.ACTIVE:
            raise MooringsError(
                "partition.not_active",
                f"partition {order.name} is not active: {shown}",
                hint="wait until it is",
                retryable=True,
            )

    # ---- changes without a request

    def _advance(self) -> Timestamp:
        """Return a call's time of arrival, after applying all changes until then.

        Raises:
            MooringsError: ``driver.unavailable``.
        """
        now, clock = self._hardware_now(), self._clock.now()
        if not 0 <= clock - self._looked_at < FAULTS_POLL_US:
            self._looked_at = clock
            self._reload_faults()
        if self.faults:
            apply_spontaneous_faults(self._machine, self._pool, self.faults, self._settings.restart, now)
        if now < self._machine.down_until:
            raise _unavailable("connection refused: the hardware's controller is restarting")
        return now

    def _hardware_now(self) -> Timestamp:
        """Return the hardware's time: it never goes back, because machines undo nothing when our clock is set."""
        clock = self._clock.now()
        self._ahead = max(self._ahead, self._latest - clock)
        self._latest = Timestamp(clock + self._ahead)
        return self._latest

    def _reload_faults(self) -> None:
        """Follow changes of the faults file."""
        before = self._faults_file.problem
        faults = self._faults_file.read_if_changed()
        complaint = self._faults_file.problem
        if faults is not None:
            self._machine.retain_fault_counts(self.faults.replace_file_faults(faults, self._machine.struck))
            _log.info("faults.changed pool=%s faults=%d", self._pool.name, len(faults))
        if complaint and complaint != before:
            _log.warning("faults.invalid pool=%s problem=%s", self._pool.name, complaint)


def _unavailable(detail: str) -> MooringsError:
    return MooringsError("driver.unavailable", detail, hint="Moorings asks again by itself", retryable=True)


# -- binding -----------------------------------------------------------------------------------------------------------
# The binding of a job on a simulated partition, made from values alone. IPUs get IPUoF files and the V-IPU variables,
# GPUs get ``CUDA_VISIBLE_DEVICES``. The schema of an IPUoF file is not public (facts: vipu section 8): file name,
# ``attributes`` as strings and ``devices`` are as in PopTorch's reader, the rest is the nearest guess. ``simulated``
# is ours: a job locks the device on that file, so that a second job on it is noticed.

IPUOF_PORT = 50_052  # the IPUoF port of IPU-Machines on their RDMA address (facts: vipu section 1)

_SUBNET = 250  # IPU-Machines for each last octet, .1 to .250
_NETWORK = _SUBNET * 256  # IPU-Machines for each second octet


class DeviceLayout:
    """The location of a pool's devices: their clusters, IPU-Machines and domains."""

    def __init__(self, pool: Pool, clusters: int) -> None:
        self._pool = pool
        self._clusters = clusters
        self._cluster_size = max(1, pool.topology.n_devices // clusters)
        self._networks = -(-self._cluster_size // (AGENT_DEVICES * _NETWORK))

    @property
    def problem(self) -> str:
        """Return why the pool cannot be divided among that many clusters; empty if it can."""
        topology = self._pool.topology
        if self._clusters == 1:
            return ""
        if topology.n_devices % self._clusters:
            return f"{topology.n_devices} devices cannot be divided evenly among {self._clusters} clusters"
        match topology:
            case PowerOfTwo():
                inside = self._cluster_size % topology.max_block == 0
            case Catalogue():
                inside = all(self.cluster(block.start) == self.cluster(max(block)) for block in topology.blocks)
            case _:
                inside = False
        return "" if inside else f"some blocks would lie in two of the {self._clusters} clusters"

    def cluster(self, index: int) -> str:
        """Return the name of a device's cluster."""
        return f"c{index // self._cluster_size}"

    def host(self, index: int) -> str:
        """Return the RDMA address of a device's IPU-Machine: ``10.<cluster>.<x>.<y>``."""
        cluster, within = divmod(index, self._cluster_size)
        network, agent = divmod(within // AGENT_DEVICES, _NETWORK)
        third, last = divmod(agent, _SUBNET)
        return f"10.{1 + cluster * self._networks + network}.{third}.{last + 1}"

    def link_topology(self, block: Block) -> dict[str, str]:
        """Return the IPU-Link configuration of a partition on ``block``, in the vendor's words.

        A whole link domain is closed to a torus, a slice of one is a mesh (facts: vipu section 2).
        """
        topology = self._pool.topology
        domain_size = topology.domain_size if isinstance(topology, PowerOfTwo) else topology.n_devices
        whole = len(block) >= domain_size
        return {
            "IPU-Link Domain Size": str(min(len(block), domain_size)),
            "IPU-Link Topology": "torus" if whole else "mesh",
            "IPU-Link Configuration": "slidingWindow" if whole else "default",
        }


def build_binding(
    order: PartitionSpec,
    pool: Pool,
    settings: SimulatedSettings,
    wiring: DeviceLayout,
    device_file: Callable[[int], Path],
) -> Binding:
    """Return the binding of a partition.

    Args:
        order: the partition.
        pool: its pool; the kind decides the form of the binding.
        settings: with the address of the vendor's controller.
        wiring: the location of the pool's devices.
        device_file: returns the file on which a job locks the device with that index.
    """
    shares = list(enumerate(gcd_blocks(order.block, order.gcds)))
    match pool.kind:
        case "ipu":
            gcds = [_ipu_gcd(order, pool, wiring, device_file, gcd, members) for gcd, members in shares]
        case "gpu":
            gcds = [_gpu_gcd(pool, gcd, members) for gcd, members in shares]
        case _:
            gcds = [GcdBinding(gcd, tuple(device_id(pool.name, index) for index in members)) for gcd, members in shares]
    if settings.device_files:
        named = [tuple(settings.device_files.replace("{}", str(index)) for index in members) for _, members in shares]
        gcds = [replace(gcd, device_files=files) for gcd, files in zip(gcds, named, strict=True)]
    api = _vipu_api(order, settings) if pool.kind == "ipu" else {}
    return Binding(order.name, api, tuple(gcds))


def _vipu_api(order: PartitionSpec, settings: SimulatedSettings) -> dict[str, str]:
    return {
        "IPUOF_VIPU_API_HOST": settings.api_host,
        "IPUOF_VIPU_API_PORT": str(settings.api_port),
        "IPUOF_VIPU_API_PARTITION_ID": order.name,
        "IPUOF_VIPU_API_TIMEOUT": str(settings.api_timeout_s),
    }


def _gpu_gcd(pool: Pool, gcd: int, members: tuple[int, ...]) -> GcdBinding:
    return GcdBinding(
        gcd,
        tuple(device_id(pool.name, index) for index in members),
        environment={"CUDA_VISIBLE_DEVICES": ",".join(map(str, members))},
    )


def _ipu_gcd(
    order: PartitionSpec,
    pool: Pool,
    wiring: DeviceLayout,
    device_file: Callable[[int], Path],
    gcd: int,
    members: tuple[int, ...],
) -> GcdBinding:
    attributes = {
        "Partition Id": order.name,
        "GCD Id": str(gcd),
        "Num GCDs": str(order.gcds),
        "Num Replicas": str(order.gcds * order.replicas_per_gcd),
        "Partition Size": str(len(order.block)),
        "Cluster": wiring.cluster(order.block.start),
        **wiring.link_topology(order.block),
    }
    devices = [
        {
            "id": device_id(pool.name, index),
            "host": wiring.host(index),
            "port": IPUOF_PORT,
            "index": index % AGENT_DEVICES,
            "simulated": str(device_file(index)),
        }
        for index in members
    ]
    return GcdBinding(
        gcd,
        tuple(device_id(pool.name, index) for index in members),
        file_name=f"{order.name}_gcd{gcd}_ipuof.conf",
        file_text=json.dumps({"attributes": attributes, "devices": devices}, indent=2) + "\n",
    )
