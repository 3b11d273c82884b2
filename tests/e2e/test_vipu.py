"""A whole controller over a stand-in V-IPU controller: claims become partitions where they were ordered, or none."""

import asyncio

import pytest

from moorings.core.laws import check
from moorings.testing.vipu_stand_in import calls_of, partitions_of, set_faults, write_command
from tests.e2e.rig import running

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


@pytest.fixture
def anyio_backend():
    return "asyncio"


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
        assert check(rig.fleet) == []
        await rig.until(lambda: free_ipus(tmp_path) == 16 - sum(sizes), wait_s=40)
        real = partitions_of(tmp_path / "machine")
        for partition in rig.fleet.partitions.values():
            assert list(partition.block) == real[partition.name], "what we believe is what is"
        await asyncio.gather(*(rig.release(claim, wait_s=40) for claim in claims))
        await rig.until(lambda: not rig.fleet.partitions and free_ipus(tmp_path) == 16, wait_s=40)
        await rig.until(lambda: not rig.fleet.pools["pod16"].foreign, wait_s=40)
        assert rig.fleet.pools["pod16"].free.free == 16


async def test_a_vendor_that_chooses_other_ipus_gets_rest_and_keeps_nothing(tmp_path):
    async with running(tmp_path, pool(tmp_path, "[]", picks="last")) as rig:
        claim = await rig.claim(4, wait_s=0.0)

        def told() -> bool:
            return any("next try in" in delay for delay in rig.assembly.hardware.delays.values())

        await rig.until(told, wait_s=40)
        before = len(tried(tmp_path))
        assert before <= 12, "that many blocks were tried"
        await rig.until(lambda: len(tried(tmp_path)) > before, wait_s=40)
        assert rig.fleet.claims[claim.id].state.value in ("PENDING", "GRANTED"), "it keeps its place"
        await rig.release(rig.fleet.claims[claim.id], wait_s=40)
        await rig.until(lambda: not rig.fleet.partitions and free_ipus(tmp_path) == 16, wait_s=40)
        await rig.until(lambda: rig.fleet.pools["pod16"].free.free == 16, wait_s=40)


def tried(tmp_path) -> list[dict[str, object]]:
    return [call for call in calls_of(tmp_path / "machine") if "create" in call["argv"]]


async def test_partitions_outlive_a_vendor_that_is_away_and_a_controller_that_dies(tmp_path):
    pools = pool(tmp_path, '["--index", "{index}"]')
    async with running(tmp_path, pools) as rig:
        claim = await rig.claim(4, wait_s=20)
        set_faults(tmp_path / "machine", {"kind": "fail_before"})
        waiting = asyncio.create_task(rig.claim(2, wait_s=40))
        await rig.until(lambda: bool(rig.fleet.pools["pod16"].problem), wait_s=20)
        set_faults(tmp_path / "machine")
        assert (await waiting).state.value == "READY"
    async with running(tmp_path, pools) as rig:
        kept = rig.fleet.claims[claim.id]
        assert kept.state.value == "READY"
        await rig.release(kept, wait_s=20)
        await rig.until(lambda: free_ipus(tmp_path) == 14, wait_s=20)
