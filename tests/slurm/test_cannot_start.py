"""A job that cannot start holds up nobody, says what it lacks, and gets its block once it can (laws 6 to 8)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.admin import moor
from tests.slurm.ipus import LICENSES, IpuSite, ipu_site
from tests.waiting import until

HOLDS = "until [ -e over.$SLURM_JOB_ID ]; do sleep 0.1; done"


@pytest.fixture(scope="module")
def site(slurm_release: str) -> Iterator[IpuSite]:
    with ipu_site(slurm_release, extra_conf=f"Licenses={LICENSES},matlab:1") as made:
        yield made


@pytest.fixture
def halves(site: IpuSite) -> Iterator[list[int]]:
    """Two jobs that have all IPUs between them."""
    jobs = [site.cluster.sbatch(HOLDS, "--ipus=8", "-w", "n1") for _ in range(2)]
    for job in jobs:
        site.cluster.wait_job(job, "RUNNING")
    yield jobs
    site.clear()


def end(site: IpuSite, job: int) -> None:
    (site.cluster.work / f"over.{job}").touch()
    site.cluster.wait_job(job, "COMPLETED")


def submit_large(site: IpuSite, *flags: str) -> int:
    """A job that needs all IPUs, before all others."""
    job = site.cluster.sbatch("true", "--ipus=16", *flags, user="games")
    site.cluster.check("scontrol", "update", f"jobid={job}", "priority=900000")
    return job


def note(site: IpuSite, job: int) -> str:
    """What its user reads."""
    shown = site.cluster.check("squeue", "-h", "-j", str(job), "-O", "admin_comment:1200")
    return shown.partition(" -- ")[2].strip()


def explained(site: IpuSite, job: int) -> str:
    """What its user is told now; his comment changes once a minute at most."""
    return moor(site.cluster, "explain", "slurm", str(job), env={"MOORINGS_ACCESS_KEY": ""}).stdout


def shown(site: IpuSite, job: int) -> str:
    return f"{site.cluster.job(job)}\n{site.log()[-4000:]}"


@pytest.mark.parametrize(
    ("flags", "lacks"),
    [(("-L", "matlab:1"), "the license matlab:1, of which 0 of 1 are free"), (("-w", "n4", "-c16"), "the node n4")],
)
def test_a_job_that_lacks_something_else_holds_up_nobody(
    site: IpuSite, halves: list[int], flags: tuple[str, ...], lacks: str
) -> None:
    holder = site.cluster.sbatch("sleep 3600", *flags)
    site.cluster.wait_job(holder, "RUNNING")
    large = submit_large(site, *flags)
    until(lambda: lacks in note(site, large), what=lambda: shown(site, large))
    small = site.cluster.sbatch("true", "--ipus=8", user="man")
    until(lambda: site.cluster.job(small)["Reason"] == "Licenses", what=lambda: shown(site, small))
    end(site, halves[0])
    site.cluster.wait_job(small, "COMPLETED")
    assert site.cluster.job(large)["JobState"] == "PENDING"
    site.cluster.check("scancel", str(holder))
    end(site, halves[1])
    site.cluster.wait_job(large, "COMPLETED")


def test_ipus_that_slurm_did_not_take_for_a_job_are_not_kept_again_at_once(site: IpuSite, halves: list[int]) -> None:
    """It needs a CPU of each node: that one is full is not known beforehand."""
    holder = site.cluster.sbatch("sleep 3600", "-w", "n4", "-c16")
    site.cluster.wait_job(holder, "RUNNING")
    large = submit_large(site, "-N4")
    kept = "devices 0-15 of pod16 are kept for it"
    until(lambda: kept in explained(site, large), what=lambda: shown(site, large))
    small = site.cluster.sbatch(HOLDS, "--ipus=8", user="man")
    end(site, halves[0])
    until(lambda: len(site.claims()) == 1, what=site.log)
    assert site.cluster.job(small)["JobState"] == "PENDING", "it is the large one's turn"
    end(site, halves[1])
    site.cluster.wait_job(small, "RUNNING")
    told = "IPUs were free for it once and Slurm did not start it"
    until(lambda: told in explained(site, large), what=lambda: shown(site, large))
    other = site.cluster.sbatch("true", "--ipus=8", user="man")
    site.cluster.wait_job(other, "COMPLETED")
    site.cluster.check("scancel", str(holder))
    end(site, small)
    site.cluster.wait_job(large, "COMPLETED")


def test_a_large_job_gets_its_block_while_small_ones_keep_coming(site: IpuSite) -> None:
    """Law 7: Slurm starts the next of them in the instant in which one ends."""
    small = [site.cluster.sbatch("sleep 1", "--ipus=4", "--hold", user="man") for _ in range(40)]
    site.cluster.check(
        "scontrol", "release", ",".join(map(str, small))
    )  # at once: to submit them takes longer than to run
    site.cluster.wait_job(small[0], ("RUNNING", "COMPLETED"))
    large = submit_large(site)
    site.cluster.wait_job(large, "COMPLETED")
    left = [job.id for job in site.cluster.squeue() if job.state == "PENDING"]
    assert str(small[-1]) in left, "it did not wait until there were no more"
    site.clear()
