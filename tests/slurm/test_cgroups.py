"""Nodes that track and confine jobs by cgroups, v1 and v2: IPU jobs as ever, and no process outlives its partition."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lives import made_by, orders
from tests.slurm.cgroups import VERSIONS, why_not
from tests.slurm.ipus import IpuSite, ipu_site
from tests.slurm.kills.acting import PROVISION_S, REMOVE_S
from tests.waiting import until

# A daemon: its parent has gone, its session is its own, and it writes on.
DAEMON = "(setsid sh -c 'while :; do date +%s%N >> beat; sleep 0.02; done' &); until [ -s beat ]; do sleep 0.1; done"
TELL = 'echo "$SLURM_PROCID $MOORINGS_DEVICES $MOORINGS_PARTITION_ID"; grep -E "^(0:|.*:freezer:)" /proc/self/cgroup'


@pytest.fixture(scope="module", params=VERSIONS)
def site(slurm_release: str, request: pytest.FixtureRequest) -> Iterator[IpuSite]:
    if reason := why_not(request.param):
        pytest.skip(reason)
    with ipu_site(slurm_release, nodes=1, cgroups=request.param) as made:
        yield made


@pytest.fixture(autouse=True)
def _quiet(site: IpuSite) -> Iterator[None]:
    yield
    site.clear()


def test_each_step_in_its_cgroup_has_its_devices(site: IpuSite) -> None:
    job = site.cluster.sbatch(f"srun sh -c '{TELL}'", "--ipus=4", "-n2", user="games")
    site.cluster.wait_job(job, "COMPLETED")
    told = site.cluster.output(job).splitlines()
    assert {f"0 pod16:0,pod16:1 slurm_{job}", f"1 pod16:2,pod16:3 slurm_{job}"} <= set(told)
    assert sum("/step_0" in line for line in told) == 2, "it is in no cgroup of its step"


def test_a_daemon_of_a_cancelled_job_is_dead_before_its_partition_goes(site: IpuSite) -> None:
    """proctrack/linuxproc lets it go."""
    beat: Path = site.cluster.work / "beat"
    job = site.cluster.sbatch(f"{DAEMON}; sleep 1000", "--ipus=2")
    until(
        lambda: beat.exists() and len(beat.read_text().split()) > 1, what=lambda: site.cluster.output(job) + site.log()
    )
    site.cluster.check("scancel", str(job))
    until(lambda: site.claims() == [], what=site.log)
    partitions = made_by(orders(site.controller.data), PROVISION_S, REMOVE_S)
    (made,) = [one for one in partitions if one.name == f"slurm_{job}"]
    assert made.gone is not None
    assert int(beat.read_text().split()[-2]) / 1e9 < made.gone  # the last may be cut
