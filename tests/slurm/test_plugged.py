"""On a real Slurm: a node whose slurmd has not loaded the plugin is drained, and taken back once it has."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from moorings.slurm.host.plugged import LATER_S, REASON
from tests.slurm.cluster import parse_record
from tests.slurm.ipus import IpuSite, ipu_site
from tests.waiting import until


@pytest.fixture(scope="module")
def site(slurm_release: str) -> Iterator[IpuSite]:
    with ipu_site(slurm_release, nodes=2, features="moorings,big,old") as made:
        limits = made.cluster.etc / "moorings_limits.lua"
        made.cluster.write_conf(limits.name, limits.read_text().replace("{ max", "{ feature = 'moorings', max", 1))
        until(lambda: made.log().count("node.has_plugin") == 2, what=made.log)
        yield made


def drained(site: IpuSite) -> dict[str, str]:
    """Why, by node."""
    lines = site.cluster.check("scontrol", "-o", "show", "node").splitlines()
    return {node["NodeName"]: node["Reason"] for node in map(parse_record, lines) if "DRAIN" in node["State"]}


def restart(site: IpuSite, number: int, *, plugins: bool) -> None:
    """Restart a node's slurmd, with or without the plugin."""
    began = site.cluster.launched[f"n{number}"]
    until(lambda: time.time() > began + LATER_S + 2)  # else it may be the slurmd that told
    site.cluster.kill_node(number)
    site.cluster.start_node(number, plugins=plugins)


@pytest.mark.smoke
@pytest.mark.slow
def test_a_node_without_the_plugin_gets_no_ipu_job(site: IpuSite) -> None:
    restart(site, 2, plugins=False)
    until(lambda: drained(site).get("n2", "").startswith(REASON), what=site.log)
    first = site.cluster.sbatch("sleep 100", "--exclusive", "--ipus=4", "--constraint=big|old")
    assert site.cluster.wait_job(first, "RUNNING")["NodeList"] == "n1"
    kinds = (["--ipus=1"], ["-N2", "-n2", "--ipus=2"], ["-wn2", "--ipus=1"])
    waiting = [site.cluster.sbatch("hostname", *flags) for flags in kinds]
    site.cluster.stop_controller()
    site.cluster.start_controller()
    site.cluster.wait_nodes("n1")
    site.end_agent(signal.SIGKILL)
    site.start_agent()  # it knows of n1 by its file
    time.sleep(2)  # for Slurm to have looked at its queue again and again
    states = [site.cluster.job(job) for job in waiting]
    assert {job["JobState"] for job in states} == {"PENDING"}, f"{states}\n{site.log()}"
    assert [*drained(site)] == ["n2"]

    restart(site, 2, plugins=True)
    until(lambda: not drained(site), what=site.log)
    site.cluster.check("scancel", str(first))
    for job in waiting:
        site.cluster.wait_job(job, "COMPLETED")
    site.settle()
