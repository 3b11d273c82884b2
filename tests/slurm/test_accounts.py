"""The owner of a job: without enforcement ``sbatch -A`` names any account, and takes no project's guarantee by it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.slurm.admin import told
from tests.slurm.ipus import IpuSite, ipu_site
from tests.waiting import until

pytestmark = pytest.mark.slow
ENFORCED = "AccountingStorageEnforce=associations"
ALL = ("--ipus=16", "--ipu-preemptible=B:USR1", "--requeue")
HOLDS = "until [ -e over.$SLURM_JOB_ID ]; do sleep 0.1; done"


@pytest.fixture(scope="module")
def site(slurm_release: str) -> Iterator[IpuSite]:
    with ipu_site(slurm_release, nodes=2, accounting=True, extra_conf=ENFORCED) as made:
        made.cluster.check("sacctmgr", "-i", "add", "account", "gold,pure")
        made.cluster.check("sacctmgr", "-i", "add", "user", "man", "account=gold")
        shares = [{"pool": "pod16", "blocks": {"16": 1}}]
        rich = {"shares": shares, "aliases": [f"slurm/{made.name}/gold"]}
        assert made.controller.ask("PUT", "/v1/projects/rich", rich)[0] in (200, 201)
        assert made.controller.ask("PUT", "/v1/projects/pure", {})[0] in (200, 201)
        yield made


@pytest.fixture(autouse=True)
def _quiet(site: IpuSite) -> Iterator[None]:
    yield
    for job in site.cluster.squeue():
        site.cluster.run("scancel", job.id)
    until(lambda: site.cluster.squeue() == [] and site.claims() == [], what=site.log)


@pytest.fixture
def loose(site: IpuSite) -> Iterator[None]:
    """Slurm as it comes, with accounting, enforces nothing."""
    conf = site.cluster.etc / "slurm.conf"
    enforced = conf.read_text()
    assert ENFORCED in enforced
    for text in (enforced.replace(ENFORCED, ""), enforced):
        site.cluster.stop_controller()
        conf.write_text(text)
        site.cluster.start_controller()
        site.cluster.wait_nodes()
        site.end_agent()
        site.start_agent()
        if text != enforced:
            yield


def project_of(site: IpuSite, job: int) -> str:
    def found() -> Any:
        return next((claim["project"] for claim in site.claims() if claim["name"] == f"slurm_{job}"), None)

    return str(until(found, what=site.log))


def finish(site: IpuSite, job: int) -> None:
    (site.cluster.work / f"over.{job}").touch()
    site.cluster.wait_job(job, "COMPLETED")


def verdict(site: IpuSite, code: int) -> tuple[str, str]:
    items = told(site.cluster, "slurm", "doctor", "--only", "slurm.accounts", code=code)["items"]
    return next((item["verdict"], item["evidence"]) for item in items)


@pytest.mark.usefixtures("loose")
def test_without_enforcement_an_account_is_nobodys_project(site: IpuSite) -> None:
    for account in ("gold", "rich", "pure"):  # an alias, and what projects themselves are called
        job = site.cluster.sbatch(HOLDS, *ALL, f"--account={account}", user="games")
        assert project_of(site, job) == "default", account
        finish(site, job)
    greedy = site.cluster.sbatch("true", "--ipus=16", "--account=gold", user="games")

    def why() -> Any:
        """Its reason, in the queue or, where Slurm has started it before it was told of, of its claim."""
        waiting = site.controller.ask("GET", f"/v1/queues/slurm/{site.name}")[1].get("jobs", [])
        mine = [one for one in (*waiting, *site.claims()) if one["owner"].split("/")[2] == str(greedy)]
        return mine and mine[0].get("reason", {}).get("code")

    # What is guaranteed to the rich is not given to who merely calls himself so.
    until(lambda: why() == "project.guaranteed", what=lambda: f"{why()} {site.log()}")
    assert verdict(site, 8)[0] == "FAIL"
    assert "gold (project rich)" in verdict(site, 8)[1]


def test_with_enforcement_it_is_the_project_of_who_may_use_it(site: IpuSite) -> None:
    forged = site.cluster.run("sbatch", "--ipus=16", "--account=gold", "--wrap", "true", user="games")
    assert "Invalid account" in forged.stderr
    job = site.cluster.sbatch(HOLDS, "--ipus=16", "--account=gold", user="man")
    site.cluster.wait_job(job, "RUNNING")
    assert project_of(site, job) == "rich"
    finish(site, job)
    assert verdict(site, 0)[0] == "PASS"
