"""Jobs of higher rank displace others for IPUs, by Slurm's own rules: Slurm itself never does so for a license."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.slurm.ipus import IpuSite, ipu_site
from tests.waiting import until

PARTITIONS = """
PartitionName=normal Nodes=ALL Default=YES PriorityTier=1
PartitionName=safe Nodes=ALL PriorityTier=1 PreemptMode=OFF
PartitionName=urgent Nodes=ALL PriorityTier=9
"""
BY_TIER = f"PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n{PARTITIONS}"
BY_QOS = f"PreemptType=preempt/qos\nPreemptMode=REQUEUE\n{PARTITIONS}"
HOLD = "[ $SLURM_RESTART_COUNT ] || sleep 100"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(slurm_release: str) -> Iterator[IpuSite]:
    with ipu_site(slurm_release, accounting=True, extra_conf=BY_TIER) as made:
        made.cluster.check("sacctmgr", "-i", "add", "qos", "high", "preempt=normal")
        made.cluster.check("sacctmgr", "-i", "modify", "user", "games", "set", "qos+=high")
        yield made


@pytest.fixture(autouse=True)
def _quiet(site: IpuSite) -> Iterator[None]:
    yield
    for job in site.cluster.squeue():
        site.cluster.run("scancel", job.id)
    for claim in site.controller.ask("GET", "/v1/claims?ownerPrefix=user/")[1]["items"]:
        site.controller.ask("DELETE", f"/v1/claims/{claim['id']}")
    site.settle()


def hold(site: IpuSite, ipus: int, *flags: str) -> int:
    """A job that has its partition, and has run for a second by Slurm's clock, which knows no less."""
    job = site.cluster.sbatch(HOLD, f"--ipus={ipus}", *flags, user="games")
    until(lambda: ready(site).get(f"slurm_{job}"), what=site.log)
    until(lambda: site.cluster.job(job)["RunTime"] > "00:00:01")
    return job


def ready(site: IpuSite) -> dict[str, str]:
    return {claim["name"]: claim["partitionId"] for claim in site.claims() if claim["state"] == "READY"}


def next_second() -> None:
    """Slurm's times are whole seconds: wait until what has happened lies before all that comes."""
    begun = int(time.time())
    until(lambda: int(time.time()) > begun)


def displace(site: IpuSite, *flags: str) -> None:
    """A job of 4 displaces the last that started, of those it may; all others stay as they are."""
    old, safe, young = hold(site, 8), hold(site, 4, "-p", "safe"), hold(site, 4)
    kept = {name: partition for name, partition in ready(site).items() if name != f"slurm_{young}"}
    urgent = site.cluster.sbatch("echo $MOORINGS_DEVICES", "--ipus=4", *flags, user="games")
    site.cluster.wait_job(urgent, "COMPLETED")
    assert len(site.cluster.output(urgent).split(",")) == 4
    assert kept.items() <= ready(site).items()
    assert site.log().count(f"for_job={urgent} ") + site.log().count(f"for_job={urgent}\n") == 1
    site.cluster.wait_job(young, "PENDING")
    next_second()  # a node takes no job again in the second in which it was killed there: it is FAILED then
    site.cluster.check("scontrol", "update", f"jobid={young}", "starttime=now")
    site.cluster.wait_job(young, "COMPLETED")
    assert [site.cluster.job(job)["JobState"] for job in (old, safe)] == ["RUNNING"] * 2


def test_a_job_of_a_higher_tier_displaces_who_started_last(site: IpuSite) -> None:
    displace(site, "-p", "urgent")


def test_a_job_of_the_same_tier_waits(site: IpuSite) -> None:
    held = hold(site, 16)
    other = site.cluster.sbatch("true", "--ipus=4", user="man")
    until(lambda: site.cluster.job(other)["Reason"] == "Licenses")
    above = site.cluster.sbatch("true", "--ipus=16", "-p", "urgent", user="man")
    site.cluster.wait_job(above, "COMPLETED")
    assert site.cluster.job(held)["Restarts"] == "1"
    site.cluster.wait_job(other, "COMPLETED")


def test_nobody_goes_for_a_claim_that_waits_before_the_job(site: IpuSite) -> None:
    held = hold(site, 16)
    rival = site.controller.ask("POST", "/v1/claims", {"size": 8})[1]
    assert rival["state"] == "PENDING"
    next_second()  # or the job would seem to have come earlier
    urgent = site.cluster.sbatch("true", "--ipus=16", "-p", "urgent", user="man")
    until(lambda: f"slurm/moorings/{urgent}/" in str(queue(site)["jobs"]), what=site.log)
    assert queue(site)["nextUp"] == {}
    looked = site.log().count("nobody.displaced")
    until(lambda: site.log().count("nobody.displaced") > looked + 2 or not keeps(site, held), what=site.log)
    assert keeps(site, held)
    site.controller.ask("DELETE", f"/v1/claims/{rival['id']}")
    site.cluster.wait_job(urgent, "COMPLETED")
    assert site.cluster.job(held)["Restarts"] == "1"


def queue(site: IpuSite) -> dict[str, Any]:
    """The cluster's queue, as the controller has it."""
    found: dict[str, Any] = site.controller.ask("GET", "/v1/queues/slurm/moorings")[1]
    return found


def keeps(site: IpuSite, job: int) -> bool:
    fields = site.cluster.job(job)
    return (fields["JobState"], fields["Restarts"]) == ("RUNNING", "0")


def test_a_qos_displaces_those_it_names(site: IpuSite) -> None:
    site.cluster.configure(f"JobSubmitPlugins=lua\n{BY_QOS}")
    site.cluster.stop_controller()
    site.cluster.start_controller()
    site.end_agent(signal.SIGTERM)  # it would read the rules again within a minute
    site.start_agent()
    until(lambda: site.room()[16] == 16, what=site.log)
    old, young = hold(site, 8), hold(site, 8)
    high = site.cluster.sbatch("true", "--ipus=8", "--qos=high", user="games")
    site.cluster.wait_job(high, "COMPLETED")
    assert site.cluster.job(young)["Restarts"] == "1"
    assert site.cluster.job(old)["JobState"] == "RUNNING"
