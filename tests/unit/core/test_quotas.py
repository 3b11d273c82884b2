"""What each project has: counted from who holds what, where, and within which guarantee."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moorings.core.model.claims import Claim, ClaimId, ClaimSpec, ClaimState, PartitionId
from moorings.core.model.devices import PoolName
from moorings.core.model.partitions import Partition, PartitionState
from moorings.core.model.policy import Policy
from moorings.core.model.projects import Project, ProjectShare, ProjectUsage
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.core.model.topology import Block, Pool, PowerOfTwo
from moorings.core.placement.fleet import Fleet
from moorings.core.scheduling.quotas import ProjectQuota, quota_rows

POD = Pool(PoolName("pod"), "ipu", "simulated", PowerOfTwo(1, 16, 16))
POD2 = replace(POD, name=PoolName("pod2"))
NOW = Timestamp(100_000 * SECOND)
HOUR = 3600 * SECOND
LAB = Project(name="lab", shares=(ProjectShare(POD.name, ((4, 2),)),), weight=2.0, devices_max=12)
VISION = Project(name="lab/vision", shares=(ProjectShare(POD.name, ((4, 1),)),))
IDLE = Project(name="idle")


def waits(name: str, size: int, project: str, pool: str | None = None) -> Claim:
    spec = ClaimSpec(kind="ipu", size=size, project=project, pool=PoolName(pool) if pool else None)
    return Claim(
        id=ClaimId(name),
        name=name,
        owner="user/ann",
        subject="ann",
        spec=spec,
        state=ClaimState.PENDING,
        arrival=Timestamp(1),
    )


def holds(
    name: str, devices: str, project: str, *, cell: str | None = None, since: Timestamp = NOW
) -> tuple[Claim, Partition]:
    block = Block.parse(devices)
    claim = replace(
        waits(name, len(block), project),
        state=ClaimState.READY,
        pool=POD.name,
        partition=PartitionId(f"part-{name}"),
        granted_at=since,
        ready_at=since,
        cell=Block.parse(cell) if cell else None,
    )
    partition = Partition(
        id=PartitionId(f"part-{name}"),
        name=name,
        claim=claim.id,
        pool=POD.name,
        block=block,
        gcds=1,
        replicas_per_gcd=1,
        state=PartitionState.ACTIVE,
        since=since,
    )
    return claim, partition


def rows(
    *projects: Project,
    held: list[tuple[Claim, Partition]] | None = None,
    waiting: list[Claim] | None = None,
    usage: list[ProjectUsage] | None = None,
    policy: Policy = Policy(),  # noqa: B008
) -> dict[tuple[str, str], ProjectQuota]:
    held = held or []
    claims = [claim for claim, _ in held] + (waiting or [])
    fleet = Fleet.load((POD, POD2), claims, [partition for _, partition in held], (), projects, usage or ())
    found = quota_rows(fleet, NOW, policy)
    assert [(row.project, row.pool) for row in found] == sorted((row.project, row.pool) for row in found)
    return {(row.project, row.pool): row for row in found}


def test_a_project_s_row_says_what_it_is_guaranteed_with_what_its_parts_are():
    found = rows(LAB, VISION)
    assert found["lab", "pod"] == ProjectQuota(
        project="lab", pool=POD.name, blocks=((4, 2),), held=0, weight=2.0, devices_max=12
    )
    assert (found["lab", "pod"].guaranteed, found["lab/vision", "pod"].guaranteed) == (8, 4)


def test_a_project_that_has_nothing_has_a_row_without_a_pool():
    assert rows(IDLE) == {("idle", ""): ProjectQuota(project="idle", pool=PoolName(""))}


def test_nobody_has_a_row_where_there_is_nothing():
    assert rows() == {}


def test_what_is_in_a_cell_is_held_and_the_rest_is_borrowed():
    found = rows(
        LAB,
        VISION,
        held=[holds("a", "0-1", "lab/vision", cell="0-3"), holds("b", "4-7", "lab/vision"), holds("c", "8", "lab")],
    )
    assert (found["lab/vision", "pod"].held, found["lab/vision", "pod"].borrowed) == (2, 4)
    assert (found["lab", "pod"].held, found["lab", "pod"].borrowed) == (2, 5), "its parts are counted, too"


def test_a_claim_waits_in_every_pool_that_could_serve_it_or_in_the_one_it_names():
    found = rows(LAB, VISION, waiting=[waits("a", 4, "lab/vision"), waits("b", 2, "lab/vision", "pod2")])
    told = {key: (row.waiting, row.waiting_devices) for key, row in found.items()}
    assert told == {
        ("lab", "pod"): (1, 4),
        ("lab", "pod2"): (2, 6),
        ("lab/vision", "pod"): (1, 4),
        ("lab/vision", "pod2"): (2, 6),
    }


@pytest.mark.parametrize("projects", [(), (IDLE,)])
def test_who_holds_or_waits_without_a_project_has_a_row(projects: tuple[Project, ...]):
    found = rows(*projects, held=[holds("a", "0-3", "default")], waiting=[waits("b", 16, "default", "pod")])
    assert found["default", "pod"] == ProjectQuota(
        project="default", pool=POD.name, borrowed=4, waiting=1, waiting_devices=16
    )
    assert len(found) == 1 + len(projects)


def test_use_fades_and_what_is_used_now_counts():
    ago = Timestamp(NOW - HOUR)
    half_life = Policy(half_life_s=3600.0)
    usage = [ProjectUsage("lab", 8 * HOUR, ago)]
    found = rows(LAB, VISION, held=[holds("a", "0-3", "lab", since=ago)], usage=usage, policy=half_life)
    assert found["lab", "pod"].used_device_hours == pytest.approx(8 / 2 + 4)
    assert found["lab/vision", "pod"].used_device_hours == 0.0
