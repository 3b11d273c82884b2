"""The CPUs and memory of the controller's machine: counted for all jobs, and granted with devices or not at all."""

from dataclasses import replace

import pytest

from moorings.core.forecast.estimate import estimate_start
from moorings.core.model.claims import ClaimState, claim_spec_payload
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import ReleaseClaim
from moorings.core.model.machine import MACHINE_KIND, MACHINE_POOL, machine_pool
from moorings.core.model.timestamps import SECOND
from moorings.core.scheduling.explain import explain_wait, list_start_options
from tests.unit.core.worlds import POD, World

GIB = 1 << 30
MACHINE = machine_pool({"cpus": 16, "memory": 64 * GIB})


@pytest.fixture
def world() -> World:
    return World(POD, MACHINE)


def cpus(world: World, count: int, **more):
    """A claim of a job without devices."""
    return world.create(0, MACHINE_KIND, owner=f"local/r{world.n_created}", resources={"cpus": count}, **more)


def devices(world: World, size: int, count: int, **more):
    """A claim of a job with devices that names CPUs."""
    return world.create(size, owner=f"local/r{world.n_created}", machine={"cpus": count}, **more)


def free_cpus(world: World) -> int:
    return 16 - world.fleet.pools[MACHINE_POOL].used_resources.get("cpus", 0)


def why(world: World, claim) -> tuple[str, str]:
    reason = explain_wait(world.fleet, world.claim(claim.id), world.now).reasons[0]
    return reason.code, reason.message


def test_a_job_without_devices_starts_at_once_and_holds_its_cpus(world):
    claim = cpus(world, 6)
    assert (claim.state, claim.pool, claim.partition) == (ClaimState.READY, MACHINE_POOL, None)
    assert free_cpus(world) == 10
    world.step(ReleaseClaim(claim.id, "over"))
    assert free_cpus(world) == 16


def test_a_job_waits_until_the_machine_has_room(world):
    running = cpus(world, 13)
    waiting = cpus(world, 8)
    assert waiting.state is ClaimState.PENDING
    assert why(world, waiting) == ("machine.full", "waits for 8 CPUs of this machine: 3 of 16 are free")
    world.step(ReleaseClaim(running.id, "over"))
    assert world.claim(waiting.id).state is ClaimState.READY


def test_memory_is_counted_too(world):
    world.create(0, MACHINE_KIND, resources={"cpus": 1, "memory": 60 * GIB})
    waiting = world.create(0, MACHINE_KIND, resources={"cpus": 1, "memory": 8 * GIB})
    assert why(world, waiting) == (
        "machine.full", "waits for 8 GiB of memory of this machine: 4 GiB of 64 GiB are free",
    )  # fmt: skip


def test_small_jobs_do_not_starve_a_large_one(world):
    small = [cpus(world, 4) for _ in range(4)]
    large = cpus(world, 16)
    for claim in small[:3]:
        world.step(ReleaseClaim(claim.id, "over"))
    late = cpus(world, 1)
    assert late.state is ClaimState.PENDING
    assert why(world, late)[0] == "queue.kept_for_other"
    world.step(ReleaseClaim(small[3].id, "over"))
    assert world.claim(large.id).state is ClaimState.READY
    assert world.claim(late.id).state is ClaimState.PENDING


def test_small_jobs_do_not_starve_one_with_devices(world):
    running = cpus(world, 12)
    large = devices(world, 4, 16)
    late = cpus(world, 1)
    assert late.state is ClaimState.PENDING
    assert why(world, late)[0] == "queue.kept_for_other"
    world.step(ReleaseClaim(running.id, "over"))
    assert world.claim(large.id).state is ClaimState.GRANTED
    assert world.claim(late.id).state is ClaimState.PENDING


def test_devices_and_cpus_are_granted_together(world):
    running = cpus(world, 12)
    both = devices(world, 4, 8)
    assert (both.state, both.partition) == (ClaimState.PENDING, None)
    assert why(world, both) == ("machine.full", "waits for 8 CPUs of this machine: 4 of 16 are free")
    assert list_start_options(world.fleet, world.policy, world.now, both) == ()
    assert free_cpus(world) == 4
    world.step(ReleaseClaim(running.id, "over"))
    assert world.claim(both.id).state is ClaimState.GRANTED
    assert free_cpus(world) == 8


def test_two_grants_of_one_turn_share_the_machine(world):
    asked = [world.asks(4, owner=f"local/r{number}", machine={"cpus": 10}) for number in range(2)]
    world.step(*asked)
    states = [world.claim(one.id).state for one in asked]
    assert states == [ClaimState.GRANTED, ClaimState.PENDING]


def test_a_job_that_lacks_devices_holds_no_cpus(world):
    world.ready(16, gcds=2)
    waiting = devices(world, 4, 2)
    assert why(world, waiting)[0] == "queue.reserved"
    assert free_cpus(world) == 16


def test_devices_that_wait_for_cpus_go_to_no_later_claim_for_ever(world):
    """The first claim that must wait keeps what it needs: the block, too."""
    cpus(world, 12)
    first = devices(world, 16, 8, gcds=2)
    later = world.create(4)
    assert [world.claim(one.id).state for one in (first, later)] == [ClaimState.PENDING] * 2


def test_a_claim_with_devices_gives_its_cpus_back_when_its_partition_is_gone(world):
    held = world.ready(4, owner="local/a", machine={"cpus": 16})
    assert free_cpus(world) == 0
    world.end(held)
    assert free_cpus(world) == 16


def test_a_job_larger_than_the_machine_is_refused(world):
    for asked in (
        world.asks(0, MACHINE_KIND, resources={"cpus": 17}),
        world.asks(4, machine={"cpus": 17}),
    ):
        (error,) = world.step(asked)
        assert isinstance(error, MooringsError)
        assert error.code == "claim.too_large"
        assert error.detail == "17 CPUs are more than the 16 that this machine has for jobs"
        assert error.hint


def test_what_is_not_counted_is_never_short():
    world = World(POD, machine_pool({"cpus": 0, "memory": 4}))
    claims = [cpus(world, 1000), devices(world, 4, 1000)]
    assert [claim.state for claim in claims] == [ClaimState.READY, ClaimState.GRANTED]


def test_without_a_machine_nothing_is_counted():
    world = World(POD)
    assert devices(world, 4, 1000).state is ClaimState.GRANTED
    (error,) = world.step(world.asks(0, MACHINE_KIND, resources={"cpus": 1}))
    assert isinstance(error, MooringsError)
    assert error.code == "kind.unknown"


def test_an_estimate_counts_the_machine(world):
    cpus(world, 12, time_limit_s=100.0)
    waiting = devices(world, 4, 8, time_limit_s=50.0)
    found = estimate_start(world.fleet, world.policy, world.now, waiting)
    assert found.starts_at is not None
    assert 90 * SECOND <= found.starts_at - world.now <= 101 * SECOND


def test_a_claim_that_names_nothing_of_the_machine_is_written_as_before(world):
    spec = devices(world, 4, 2).spec
    assert claim_spec_payload(spec)["machine"] == {"cpus": 2}
    assert "machine" not in claim_spec_payload(replace(spec, machine={}))
