"""The binding of a job on a simulated partition, made from values alone.

IPUs get IPUoF files and the V-IPU variables, GPUs get ``CUDA_VISIBLE_DEVICES``. The schema of an IPUoF file is not
public (facts: vipu section 8): file name, ``attributes`` as strings and ``devices`` are as in PopTorch's reader, the
rest is the nearest guess. ``simulated`` is ours: a job locks the device on that file, so that a second job on it is
noticed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from moorings.core.bindings import Binding, GcdBinding
from moorings.core.devices import device_id
from moorings.core.hardware import PartitionSpec
from moorings.core.partitions import gcd_blocks
from moorings.core.topology import Block, Catalogue, Pool, PowerOfTwo
from moorings.drivers.simulated.faults import AGENT_DEVICES
from moorings.drivers.simulated.settings import SimulatedSettings

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

    def shape(self, block: Block) -> dict[str, str]:
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
        **wiring.shape(order.block),
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
