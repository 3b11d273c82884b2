import fcntl
import json
import os
import stat

import pytest

from moorings.core.model.driver_results import ObservedState
from moorings.core.model.errors import MooringsError
from moorings.core.model.topology import AnySubset, Block, PowerOfTwo
from moorings.drivers.simulated.settings import SimulatedSettings
from tests.unit.drivers.simulated_rig import MARK, SimulatedRig, order

POD = PowerOfTwo(domains=2, domain_size=64, max_block=128)


async def binding_of(rig, wanted):
    driver = rig.restart()
    await driver.create(wanted)
    rig.clock.forward(60)
    return await driver.binding(wanted)


@pytest.fixture
def pod(tmp_path):
    """Makes a pod of two link domains, or another."""
    made: list[SimulatedRig] = []

    def make(kind="ipu", topology=POD, **settings):
        made.append(SimulatedRig(tmp_path / "pod", SimulatedSettings(**settings), kind=kind, topology=topology))
        return made[0]

    yield make
    made[0].kill()


async def test_an_ipuof_file_names_partition_and_devices(pod):
    rig = pod()
    binding = await binding_of(rig, order("train", "8-15", gcds=2))
    second = json.loads(binding.gcds[1].file_text)
    assert binding.gcds[1].file_name == "train_gcd1_ipuof.conf"
    assert second["attributes"] == {
        "Partition Id": "train",
        "GCD Id": "1",
        "Num GCDs": "2",
        "Num Replicas": "2",
        "Partition Size": "8",
        "Cluster": "c0",
        "IPU-Link Domain Size": "8",
        "IPU-Link Topology": "mesh",
        "IPU-Link Configuration": "default",
    }
    assert second["devices"] == [
        {
            "id": f"pod8:{index}",
            "host": "10.1.0.4",  # the fourth IPU-Machine: devices 12 to 15
            "port": 50052,
            "index": index - 12,
            "simulated": str(rig.folder / "devices" / str(index)),
        }
        for index in range(12, 16)
    ]


async def test_whole_link_domains_are_tori(pod):
    binding = await binding_of(pod(), order("large", "0-127", gcds=2))
    attributes = json.loads(binding.gcds[0].file_text)["attributes"]
    assert attributes["IPU-Link Domain Size"] == "64"
    assert attributes["IPU-Link Topology"] == "torus"
    assert attributes["IPU-Link Configuration"] == "slidingWindow"


async def test_the_vendors_controller_is_named_as_the_settings_say(pod):
    binding = await binding_of(pod(api_host="vipu", api_port=9000, api_timeout_s=300), order("p", "0-3"))
    assert binding.api == {
        "IPUOF_VIPU_API_HOST": "vipu",
        "IPUOF_VIPU_API_PORT": "9000",
        "IPUOF_VIPU_API_PARTITION_ID": "p",
        "IPUOF_VIPU_API_TIMEOUT": "300",
    }


async def test_gpus_are_named_by_their_number_in_the_pool(pod):
    binding = await binding_of(pod(kind="gpu", topology=AnySubset(8, 8)), order("g", "1,4-6", gcds=2))
    assert [gcd.environment for gcd in binding.gcds] == [
        {"CUDA_VISIBLE_DEVICES": "1,4"},
        {"CUDA_VISIBLE_DEVICES": "5,6"},
    ]
    assert not binding.api


async def test_other_kinds_get_their_devices_and_nothing_else(pod):
    rig = pod(kind="wafer", topology=AnySubset(4, 4))
    binding = await binding_of(rig, order("w", "2"))
    (gcd,) = binding.gcds
    assert gcd.devices == ("pod8:2",)
    assert (gcd.file_name, gcd.file_text, dict(gcd.environment), dict(binding.api)) == ("", "", {}, {})
    assert not (rig.folder / "devices").exists()


async def test_clusters_show_in_hosts_and_listings(pod):
    rig = pod(topology=PowerOfTwo(2, 64, 64), clusters=2)
    binding = await binding_of(rig, order("p", "64-67"))
    file = json.loads(binding.gcds[0].file_text)
    assert file["attributes"]["Cluster"] == "c1"
    assert {device["host"] for device in file["devices"]} == {"10.2.0.1"}
    (sighting,) = await rig.driver.list_partitions()
    assert (sighting.vendor_state, sighting.state) == ("PS_ACTIVE c1", ObservedState.ACTIVE)


def test_every_ipu_machine_of_the_largest_pool_has_an_address_of_its_own(pod):
    rig = pod(topology=PowerOfTwo(1 << 14, 64, 64), clusters=8)
    wiring = rig.restart()._wiring
    hosts = {wiring.host(index) for index in range(0, 1 << 20, 4)}
    assert len(hosts) == 1 << 18
    assert all(0 <= int(part) <= 255 for host in hosts for part in host.split("."))


async def test_a_device_can_be_attached_by_one_job_only_and_binding_again_does_not_free_it(pod):
    rig = pod()
    binding = await binding_of(rig, order("p", "0"))
    (device,) = json.loads(binding.gcds[0].file_text)["devices"]
    first = os.open(device["simulated"], os.O_RDONLY)
    assert stat.S_IMODE(os.fstat(first).st_mode) == 0o600
    second = None
    try:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        await rig.restart().binding(order("p", "0"))
        second = os.open(device["simulated"], os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        for descriptor in filter(None, (first, second)):
            os.close(descriptor)


async def test_a_partition_on_other_devices_than_ordered_is_not_bound(pod):
    rig = pod()
    await binding_of(rig, order("p", "0-3"))
    with pytest.raises(MooringsError, match="not there, or another's"):
        await rig.driver.binding(order("p", "4-7", mark=MARK))
    assert rig.driver._machine.find_partition("p", rig.clock.now()).block == Block.parse("0-3")
