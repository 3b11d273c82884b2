"""While a site is upgraded its controller, agent and plugin are of two releases: jobs start, end and lose nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.released.code import released_code
from tests.slurm.ipus import IpuSite, install, ipu_site
from tests.waiting import until

__all__ = ["released_code"]  # a fixture

SHOW = "srun sh -c 'echo $MOORINGS_PARTITION_ID $RANK of $WORLD_SIZE has $MOORINGS_DEVICES'"
LASTS = "echo ready; while [ ! -e over.$SLURM_JOB_ID ]; do sleep 0.2; done; srun -n2 true"


@pytest.fixture
def site(request: pytest.FixtureRequest, slurm_release: str, released_code: Path) -> Iterator[IpuSite]:
    """The parts that the parameter names are of the release."""
    controller, agent, plugin = (
        released_code if part in request.param else None for part in ("controller", "agent", "plugin")
    )
    with ipu_site(slurm_release, nodes=1, controller_code=controller, agent_code=agent, plugin_code=plugin) as made:
        yield made


def runs_and_waits(site: IpuSite) -> tuple[int, int]:
    """A job on half of the devices with its partition, and one behind it."""
    first = site.cluster.sbatch(LASTS, "--ipus=8", "-n2", user="games")
    until(lambda: "ready" in site.cluster.output(first), what=site.log)
    second = site.cluster.sbatch(SHOW, "--ipus=16", "-n2", user="games")
    until(lambda: site.cluster.job(second)["Reason"] == "Licenses", what=lambda: f"{site.cluster.job(second)}")
    until(lambda: [claim["state"] for claim in site.claims()] == ["READY"], what=site.log)
    return first, second


def all_ends(site: IpuSite, first: int, second: int) -> None:
    """The first job ends, then the second has its turn, and nothing is left of either."""
    (site.cluster.work / f"over.{first}").touch()
    assert site.cluster.wait_job(first, "COMPLETED")["Restarts"] == "0"
    assert site.cluster.wait_job(second, "COMPLETED")["Restarts"] == "0"
    devices = [",".join(f"pod16:{number}" for number in half) for half in (range(8), range(8, 16))]
    told = [f"slurm_{second} {rank} of 2 has {devices[rank]}" for rank in range(2)]
    assert sorted(site.cluster.output(second).splitlines()) == told
    site.settle()
    made = sorted((claim["name"], claim["state"], claim["attempt"]) for claim in site.claims(every=True))
    assert made == [(f"slurm_{first}", "RELEASED", 0), (f"slurm_{second}", "RELEASED", 0)]


@pytest.mark.parametrize(
    "site",
    [
        pytest.param(("controller", "plugin"), id="new agent between old ones", marks=pytest.mark.smoke),
        pytest.param(("agent",), id="old agent between new ones"),
    ],
    indirect=True,
)
def test_jobs_wait_start_and_end_with_parts_of_two_releases(site: IpuSite) -> None:
    all_ends(site, *runs_and_waits(site))


@pytest.mark.parametrize("site", [("controller", "agent", "plugin")], ids=["all old"], indirect=True)
def test_parts_exchanged_one_by_one_lose_no_job(site: IpuSite) -> None:
    first, second = runs_and_waits(site)
    (before,) = site.claims()

    def told() -> bool:
        status, queue = site.controller.ask("GET", f"/v1/queues/slurm/{site.name}")
        return status == 200 and [job["owner"].split("/")[2] for job in queue["jobs"]] == [str(second)]

    def as_before() -> None:
        (now,) = site.claims()
        same = ("id", "name", "state", "attempt", "partitionId", "devices")
        assert {name: now[name] for name in same} == {name: before[name] for name in same}
        assert [job.state for job in site.cluster.squeue()] == ["PENDING", "RUNNING"]

    assert site.controller.stop() == 0
    site.controller.code = None
    site.controller.start()
    until(told, what=site.log)
    as_before()

    site.agent_code = None
    offers = site.log().count("offer.taken")
    site.end_agent()
    site.start_agent()
    until(lambda: site.log().count("offer.taken") > offers and told(), what=site.log)
    as_before()

    install(site.cluster)
    reports = site.log().count("node.has_plugin")
    site.cluster.kill_slurmd(1)  # the node's init starts it again
    until(lambda: site.log().count("node.has_plugin") > reports, what=site.log)
    as_before()
    all_ends(site, first, second)
