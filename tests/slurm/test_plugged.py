"""On a real Slurm: a node whose slurmd has not loaded the plugin is drained, and taken back once it has."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorings.core.model.timestamps import SECOND
from moorings.slurm.host.node_state_file import FILE, load_node_state
from moorings.slurm.host.plugin_nodes import GRACE_S, REASON
from moorings.slurm.node_records import build_show_nodes, parse_show_nodes
from tests.slurm.cluster import parse_record
from tests.slurm.ipus import IpuSite, ipu_site
from tests.waiting import until

KNOWS = "moorings: the agent knows"
HEALTH_S = GRACE_S + 5  # before slurmd registers


@pytest.fixture(scope="module")
def health(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program for health checks: where the file ``slow`` lies beside it, it takes its time."""
    program = tmp_path_factory.mktemp("health") / "health"
    program.write_text(f"#!/bin/sh\n[ ! -e {program.parent}/slow ] || sleep {HEALTH_S}\n")
    program.chmod(0o755)
    return program


@pytest.fixture(scope="module")
def site(slurm_release: str, health: Path) -> Iterator[IpuSite]:
    checks = f"HealthCheckProgram={health}\nHealthCheckInterval=3000"
    with ipu_site(slurm_release, nodes=2, features="moorings,big,old", extra_conf=checks) as made:
        limits = made.cluster.etc / "moorings_limits.lua"
        made.cluster.write_conf(limits.name, limits.read_text().replace("{ max", "{ feature = 'moorings', max", 1))
        until(lambda: made.log().count("node.has_plugin") == 2, what=made.log)
        yield made


def drained(site: IpuSite) -> dict[str, str]:
    """Why, by node."""
    lines = site.cluster.check("scontrol", "-o", "show", "node").splitlines()
    return {node["NodeName"]: node["Reason"] for node in map(parse_record, lines) if "DRAIN" in node["State"]}


def is_seen(site: IpuSite, name: str) -> bool:
    """Whether the agent has seen the start of the slurmd that runs there: a later one is told apart by that."""
    (node,) = parse_show_nodes(site.cluster.check(*build_show_nodes(), name).encode())
    start = load_node_state(site.cluster.folder / "state" / FILE).starts.get(name)
    return start is not None and node.started is not None and node.started // SECOND == start.started_s


def restart(site: IpuSite, number: int, *, plugins: bool) -> None:
    """Restart a node's slurmd, with or without the plugin."""
    until(lambda: is_seen(site, f"n{number}"), what=site.log)
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


@pytest.mark.slow
def test_a_slurmd_may_register_long_after_it_loaded_the_plugin(site: IpuSite, health: Path) -> None:
    begin = len(site.log())
    slow = health.with_name("slow")
    slow.touch()
    restart(site, 2, plugins=True)
    slow.unlink()
    time.sleep(GRACE_S + 3)
    assert "node.drained" not in site.log()[begin:]


@pytest.mark.slow
def test_a_slurmd_that_goes_into_the_background_tells_of_its_plugin(site: IpuSite) -> None:
    site.cluster.kill_node(2)
    site.end_agent()
    begin, already = len(site.log()), site.cluster.log("n2", 1 << 20).count(KNOWS)
    site.cluster.launch_node(2, background=True)
    site.cluster.wait_nodes("n2")
    site.start_agent()
    until(lambda: "msg=node.has_plugin" in site.log()[begin:], what=site.log)
    until(lambda: site.cluster.log("n2", 1 << 20).count(KNOWS) > already)
    time.sleep(2)  # a second thread would have told, too
    assert site.cluster.log("n2", 1 << 20).count(KNOWS) == already + 1
    restart(site, 2, plugins=True)
