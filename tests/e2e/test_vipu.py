"""A whole controller over a stand-in V-IPU controller: claims become partitions where they were ordered, or none."""

import asyncio
import re

import pytest

from moorings.core.invariants import find_violations
from moorings.drivers.vipu import misplacements
from moorings.testing.fake_vipu import calls_of, partitions_of, set_faults, write_command
from tests.e2e.rig import ADMIN, running

POOL = """
[[pool]]
name = "pod16"
kind = "ipu"
driver = "vipu"
topology = {{ type = "power-of-two", domain_size = 16 }}
[pool.vipu]
command = "{command}"
create_arguments = {arguments}
"""


def pool(tmp_path, arguments: str, **machine: object) -> str:
    command = write_command(tmp_path / "machine", ipus=16, domain_size=16, **machine)
    return POOL.format(command=command, arguments=arguments)


def free_ipus(tmp_path) -> int:
    held = [ipu for ipus in partitions_of(tmp_path / "machine").values() for ipu in ipus]
    assert len(held) == len(set(held)), "no IPU is in two partitions"
    return 16 - len(held)


@pytest.mark.parametrize("arguments", ['["--index", "{index}"]', "[]"], ids=["steered", "vendor chooses"])
async def test_claims_get_their_partitions_and_give_them_back(tmp_path, arguments):
    async with running(tmp_path, pool(tmp_path, arguments)) as rig:
        sizes = [4, 1, 2, 4, 1]
        claims = await asyncio.gather(*(rig.claim(size, wait_s=40) for size in sizes))
        assert [claim.state.value for claim in claims] == ["READY"] * len(sizes)
        assert find_violations(rig.fleet) == []
        await rig.until(lambda: free_ipus(tmp_path) == 16 - sum(sizes), wait_s=40)
        # One whose IPUs were not those that were wanted is removed, and its record goes a little later.
        await rig.until(lambda: len(rig.fleet.partitions) == len(sizes), wait_s=40)
        real = partitions_of(tmp_path / "machine")
        for partition in rig.fleet.partitions.values():
            assert list(partition.block) == real[partition.name], "what we believe is what is"
        await asyncio.gather(*(rig.release(claim, wait_s=40) for claim in claims))
        await rig.until(lambda: not rig.fleet.partitions and free_ipus(tmp_path) == 16, wait_s=40)
        await rig.until(lambda: not rig.fleet.pools["pod16"].foreign_blocks, wait_s=40)
        assert rig.fleet.pools["pod16"].free.n_free == 16


async def test_a_vendor_that_chooses_other_ipus_gets_rest_and_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(
        misplacements, "PAUSE_S", 40.0
    )  # 4 s of the test: longer than a busy machine takes to ask again
    async with running(tmp_path, pool(tmp_path, "[]", picks="last")) as rig:
        # Else, while what it made is still there, the next block to be ordered is the next that the vendor chooses.
        for index in range(4, 16):
            await rig.controller.drain_device(ADMIN, f"pod16:{index}", "for later")
        asking = asyncio.create_task(rig.claim(4, wait_s=1000))

        def told() -> bool:
            return any("next try in" in delay for delay in rig.assembly.hardware.delays.values())

        await rig.until(told, wait_s=120)
        assert [claim.state.value for claim in rig.fleet.claims.values()] in (["PENDING"], ["GRANTED"])
        claim = await asking
        assert claim.state.value == "FAILED"
        assert claim.reason is not None
        reason = claim.reason.message
        assert re.search("on (8-11|12-15) and not on 0-3", reason), "what was made, and what was asked"
        assert "create_arguments" in reason
        assert len(tried(tmp_path)) <= 12, "it was tried a few times"
        await rig.until(lambda: not rig.fleet.partitions and free_ipus(tmp_path) == 16, wait_s=40)
        for index in range(4, 16):
            await rig.controller.resume_device(ADMIN, f"pod16:{index}")
        await rig.until(lambda: rig.fleet.pools["pod16"].free.n_free == 16, wait_s=40)
        assert not rig.fleet.pools["pod16"].out_of_service, "nothing is wrong with the devices"


async def test_devices_that_the_vendor_does_not_give_go_out_of_service(tmp_path):
    pools = pool(tmp_path, '["--index", "{index}"]')
    async with running(tmp_path, pools) as rig:
        first = await rig.claim(8, wait_s=40)
        set_faults(tmp_path / "machine", {"kind": "avoids", "ipu": 8, "on": ["create"]})
        for index in range(12, 16):  # else it might get these before the others are tried again
            await rig.controller.drain_device(ADMIN, f"pod16:{index}", "for later")
        asking = asyncio.create_task(rig.claim(4, wait_s=400))
        await rig.until(lambda: len(rig.fleet.pools["pod16"].out_of_service) == 8, wait_s=60)
        broken = [rig.fleet.pools["pod16"].out_of_service[index] for index in range(8, 12)]
        assert [device.state.value for device in broken] == ["QUARANTINED"] * 4, "what was asked for, and nothing else"
        assert all("on 12-15 and not on 8-11" in device.reason for device in broken)
        for index in range(12, 16):
            await rig.controller.resume_device(ADMIN, f"pod16:{index}")
        claim = await asking
        assert claim.state.value == "READY"
        assert str(next(one.block for one in rig.fleet.partitions.values() if one.claim == claim.id)) == "12-15"
        await rig.until(lambda: free_ipus(tmp_path) == 4, wait_s=40)
        assert find_violations(rig.fleet) == []
        await asyncio.gather(rig.release(first, wait_s=40), rig.release(claim, wait_s=40))
        await rig.until(lambda: not rig.fleet.partitions and free_ipus(tmp_path) == 16, wait_s=40)


def tried(tmp_path) -> list[dict[str, object]]:
    return [call for call in calls_of(tmp_path / "machine") if "create" in call["argv"]]


async def test_partitions_outlive_a_vendor_that_is_away_and_a_controller_that_dies(tmp_path):
    pools = pool(tmp_path, '["--index", "{index}"]')
    async with running(tmp_path, pools) as rig:
        claim = await rig.claim(4, wait_s=20)
        set_faults(tmp_path / "machine", {"kind": "fail_before"})
        waiting = asyncio.create_task(rig.claim(2, wait_s=40))
        await rig.until(lambda: bool(rig.fleet.pools["pod16"].unreachable_reason), wait_s=20)
        set_faults(tmp_path / "machine")
        assert (await waiting).state.value == "READY"
    async with running(tmp_path, pools) as rig:
        kept = rig.fleet.claims[claim.id]
        assert kept.state.value == "READY"
        await rig.release(kept, wait_s=20)
        await rig.until(lambda: free_ipus(tmp_path) == 14, wait_s=20)
