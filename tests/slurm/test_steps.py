"""What the steps of one IPU job get, on real Slurm: GCDs of their own, and an address and a port to meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.processes import killed_on_failure
from tests.slurm.ipus import IpuSite, ipu_site
from tests.waiting import until

SHOW = 'echo "$SLURM_STEP_ID $RANK $MOORINGS_DEVICES $MASTER_ADDR $MASTER_PORT" >> seen.$SLURM_JOB_ID'
AT_ONCE = f"""
srun -n1 --exact sh -c '{SHOW}; while [ ! -e go.$SLURM_JOB_ID ]; do sleep 0.1; done' &
srun -n1 --exact sh -c '{SHOW}; while [ ! -e go.$SLURM_JOB_ID ]; do sleep 0.1; done' &
wait
"""


@dataclass(frozen=True)
class Told:
    """What one task saw."""

    step: str
    rank: str
    devices: str
    address: str
    port: str


@pytest.fixture(scope="module")
def site(slurm_release: str) -> Iterator[IpuSite]:
    with ipu_site(slurm_release, wait_s=8) as made:
        yield made


@pytest.fixture(autouse=True)
def _quiet(site: IpuSite) -> Iterator[None]:
    yield
    site.clear()


def seen(site: IpuSite, job: int, lines: int) -> list[Told]:
    """What so many tasks of a job saw, by step and rank."""
    path = site.cluster.work / f"seen.{job}"

    def told() -> list[Told] | None:
        found = [Told(*line.split()) for line in path.read_text().splitlines()] if path.exists() else []
        return sorted(found, key=lambda one: (one.step, one.rank)) if len(found) >= lines else None

    return until(told, what=lambda: f"{path.read_text() if path.exists() else ''}\n{site.cluster.output(job)}")


@pytest.mark.smoke
def test_two_steps_at_once_share_nothing(site: IpuSite) -> None:
    job = site.cluster.sbatch(AT_ONCE, "--ipus=2", "-n2", user="games")
    first, second = seen(site, job, 2)
    assert {first.devices, second.devices} == {"pod16:0", "pod16:1"}
    assert first.port != second.port
    (site.cluster.work / f"go.{job}").touch()
    site.cluster.wait_job(job, "COMPLETED")


def test_steps_one_after_the_other_have_all_gcds_each(site: IpuSite) -> None:
    job = site.cluster.sbatch(f"for i in 1 2 3; do srun -n2 sh -c '{SHOW}'; done", "--ipus=2", "-n2")
    site.cluster.wait_job(job, "COMPLETED")
    told = seen(site, job, 6)
    assert [(one.step, one.devices) for one in told] == [
        (str(step), device) for step in range(3) for device in ("pod16:0", "pod16:1")
    ]


def test_what_a_step_holds_outlives_the_agent(site: IpuSite) -> None:
    script = f"""
srun -n1 --exact sh -c '{SHOW}; while [ ! -e go.$SLURM_JOB_ID ]; do sleep 0.1; done' &
while [ ! -e again.$SLURM_JOB_ID ]; do sleep 0.1; done
srun -n1 --exact sh -c '{SHOW}'
wait
"""
    job = site.cluster.sbatch(script, "--ipus=2", "-n2")
    (first,) = seen(site, job, 1)
    site.end_agent()
    site.start_agent()
    (site.cluster.work / f"again.{job}").touch()
    _, second = seen(site, job, 2)
    (site.cluster.work / f"go.{job}").touch()
    site.cluster.wait_job(job, "COMPLETED")
    assert {first.devices, second.devices} == {"pod16:0", "pod16:1"}
    folder = site.cluster.folder / "state" / "moorings_steps"
    until(lambda: not list(folder.iterdir()), what=lambda: f"{list(folder.iterdir())}")


def test_a_second_agent_waits_until_the_first_is_gone(site: IpuSite) -> None:
    """Each would give out what it knows to be free, and a job's steps could be given one GCD by both."""
    second = site.launch_agent()
    with killed_on_failure(second):
        until(lambda: "agent.waits" in site.log(), what=site.log)
        job = site.cluster.sbatch("true", "--ipus=2")
        site.cluster.wait_job(job, "COMPLETED")
        begun = site.log().count("agent.started")
        site.replace_agent(second)
        until(lambda: site.log().count("agent.started") > begun, what=site.log)
        site.cluster.wait_job(site.cluster.sbatch("true", "--ipus=2"), "COMPLETED")


def test_a_step_waits_for_others_and_says_for_whom(site: IpuSite) -> None:
    script = f"""
srun -n2 --overlap sh -c '{SHOW}; while [ ! -e go.$SLURM_JOB_ID ]; do sleep 0.1; done' &
while [ ! -s seen.$SLURM_JOB_ID ]; do sleep 0.1; done
srun -n1 --overlap true; echo "it ended with $?"
touch go.$SLURM_JOB_ID; wait
srun -n1 --overlap sh -c '{SHOW}'
"""
    job = site.cluster.sbatch(script, "--ipus=2", "-n2")
    site.cluster.wait_job(job, "COMPLETED")
    output = site.cluster.output(job)
    assert "this step waits for 1 of the job's 2 GCDs: step 0 has 0, 1" in output
    assert "it ended with 121" in output
    assert [one.devices for one in seen(site, job, 3)] == ["pod16:0", "pod16:1", "pod16:0"]


def test_a_step_on_the_second_node_meets_there(site: IpuSite) -> None:
    script = f"""
srun -N1 -n1 -w "$(scontrol show hostnames | tail -1)" --exact sh -c '{SHOW}'
srun -N2 -n2 sh -c '{SHOW}'
"""
    job = site.cluster.sbatch(script, "--ipus=2", "-N2", "-n2")
    site.cluster.wait_job(job, "COMPLETED")
    alone, *both = seen(site, job, 3)
    nodes = site.cluster.job(job)["NodeList"]
    assert (alone.address, {one.address for one in both}) == ("n2", {"n1"}), nodes


def test_several_programs_of_one_step_have_a_gcd_each(site: IpuSite) -> None:
    """``--multi-prog``: the ranks of the step, whichever program they are."""
    cluster = site.cluster
    for name in ("first", "others"):
        program = cluster.work / f"{name}.sh"
        program.write_text(f"#!/bin/sh\n{SHOW}\necho {name} $RANK\n")
        program.chmod(0o755)
    (cluster.work / "programs").write_text("0 ./first.sh\n1-3 ./others.sh\n")
    job = cluster.sbatch("srun -n4 --multi-prog programs", "--ipus=4", "-N2", "-n4", user="games")
    cluster.wait_job(job, "COMPLETED")
    told = seen(site, job, 4)
    assert [(one.rank, one.devices) for one in told] == [(str(rank), f"pod16:{rank}") for rank in range(4)]
    assert len({(one.address, one.port) for one in told}) == 1
    assert sorted(cluster.output(job).splitlines()) == ["first 0", "others 1", "others 2", "others 3"]
