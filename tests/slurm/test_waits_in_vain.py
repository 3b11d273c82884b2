"""What becomes of a job that Slurm starts and nobody gives a partition: it waits again, or its user is told why not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from moorings.slurm.formats import parse_config
from moorings.slurm.host.install_plan import InstallOptions, build_limits
from moorings.slurm.host.site import Site, parse_site
from tests.slurm.ipus import N_IPUS, IpuSite, ipu_site
from tests.waiting import until

USER = "games"
WAIT_S, PATIENCE_S = 8, 3
CHOICES = InstallOptions(
    library=Path("/none"), agent="", agent_uid=0, ipus=N_IPUS, largest=N_IPUS, domain=None, wait_s=WAIT_S
)


@pytest.fixture(scope="module")
def site(slurm_release: str) -> Iterator[IpuSite]:
    with ipu_site(slurm_release, ApiTimeout=str(PATIENCE_S)) as made:
        change_wait(made, WAIT_S)
        yield made


@pytest.fixture(autouse=True)
def _quiet(site: IpuSite) -> Iterator[None]:
    yield
    if "slurmctld" not in site.cluster.processes:
        site.cluster.start_controller()
    if not site.agent_lives:
        site.start_agent()
    for claim in site.controller.ask("GET", "/v1/claims?ownerPrefix=user/")[1]["items"]:
        site.controller.ask("DELETE", f"/v1/claims/{claim['id']}?wait=20s")
    for job in site.cluster.squeue():
        site.cluster.run("scancel", job.id)
    change_wait(site, WAIT_S)
    site.settle()


def change_wait(site: IpuSite, wait_s: int) -> None:
    """How long nodes wait for an answer."""
    conf = site.cluster.etc / "plugstack.conf"
    words = [f"wait={wait_s}" if word.startswith("wait=") else word for word in conf.read_text().split()]
    new = site.cluster.write_conf("plugstack.conf.new", " ".join(words) + "\n")
    new.rename(conf)


def find_site(site: IpuSite) -> Site:
    """What an installation would find now."""
    return parse_site(parse_config(site.cluster.check("scontrol", "show", "config").encode()))


def take_all(site: IpuSite) -> str:
    """Another user takes the pool, and the gate does not know; the claim's id."""
    status, claim = site.controller.ask("POST", "/v1/claims?wait=20s", {"size": N_IPUS})
    assert (status, claim["state"]) == (201, "READY"), claim
    return str(claim["id"])


def start_now(site: IpuSite, job: int) -> None:
    """Slurm lets a job that came back wait for two minutes; one that is on its node again within a second it fails."""
    site.cluster.check("scontrol", "update", f"jobid={job}", "starttime=now+3")


# -- no agent ----------------------------------------------------------------------------------------------------------


def test_a_batch_job_that_no_agent_answers_waits_again_and_runs_later(site: IpuSite) -> None:
    site.end_agent()
    change_wait(site, 2)
    script = "touch ran; echo $SLURM_RESTART_COUNT $MOORINGS_PARTITION_ID"
    job = site.cluster.sbatch(script, "--ipus=4", user=USER)
    fields = site.cluster.wait_job(job, "PENDING")
    until(lambda: site.cluster.job(job)["Restarts"] == "1", what=lambda: str(site.cluster.job(job)))
    assert not (site.cluster.work / "ran").exists()
    assert "the partition was not ready within 2 s: no agent answers at" in site.cluster.output(job)
    assert fields["Requeue"] == "1"
    site.start_agent()
    start_now(site, job)
    site.cluster.wait_job(job, "COMPLETED")
    assert site.cluster.output(job) == f"1 slurm_{job}_r1\n"


@pytest.mark.parametrize("array", [[], ["--array=3"]])
def test_a_batch_job_that_must_not_start_twice_fails_and_says_why(site: IpuSite, array: list[str]) -> None:
    site.end_agent()
    change_wait(site, 2)
    job = site.cluster.sbatch("echo ran", "--ipus=4", "--no-requeue", "-o", "told-%A", *array, user=USER)
    fields = site.cluster.wait_job(job, "FAILED")
    assert (fields["ExitCode"], fields["Restarts"]) == ("121:0", "0")
    told = (site.cluster.work / f"told-{job}").read_text()
    assert "the partition was not ready within 2 s: no agent answers at" in told
    assert "ran\n" not in told


def test_a_job_that_does_not_say_goes_by_job_requeue_of_slurm_conf(site: IpuSite) -> None:
    conf = site.cluster.etc / "slurm.conf"
    text, limits = conf.read_text(), (site.cluster.etc / "moorings_limits.lua").read_text()
    conf.write_text(f"{text}JobRequeue=0\n")
    try:
        site.cluster.check("scontrol", "reconfigure")
        until(lambda: not find_site(site).job_requeue)
        site.cluster.write_conf("moorings_limits.lua", build_limits(find_site(site), CHOICES).decode())
        until(lambda: site.room()[N_IPUS] == N_IPUS, what=site.log)  # 26.05 begins again to read its configuration
        site.end_agent()
        change_wait(site, 2)
        silent = site.cluster.sbatch("echo ran", "--ipus=2", user=USER)
        asks = site.cluster.sbatch("echo ran", "--ipus=2", "--requeue", user=USER)
        fields = site.cluster.wait_job(silent, "FAILED")
        assert (fields["ExitCode"], fields["Restarts"]) == ("121:0", "0")
        until(lambda: site.cluster.job(asks)["Restarts"] == "1", what=lambda: str(site.cluster.job(asks)))
        assert "ran\n" not in site.cluster.output(silent) + site.cluster.output(asks)
    finally:
        conf.write_text(text)
        site.cluster.write_conf("moorings_limits.lua", limits)
        site.cluster.check("scontrol", "reconfigure")
        until(lambda: find_site(site).job_requeue)


def test_a_look_into_a_running_job_does_not_fail_for_want_of_an_agent(site: IpuSite) -> None:
    job = site.cluster.sbatch("echo up; exec sleep 100", "--ipus=2", user=USER)
    until(lambda: site.cluster.output(job) == "up\n", what=site.log)
    site.end_agent()
    words = [f"--jobid={job}", "--overlap", "--mem=0", "-n1", "sh", "-c", "echo ran ${MOORINGS_PARTITION_ID-no}"]
    done = site.cluster.run("srun", *words, user=USER)
    assert (done.returncode, done.stdout) == (0, "ran no\n"), done.stderr
    assert "the partition was not ready within 5 s: no agent answers at" in done.stderr  # wait= is 8 s
    assert "this step starts without a binding" in done.stderr


def test_srun_and_the_steps_of_a_script_are_told_and_bring_no_script_back(site: IpuSite) -> None:
    step = site.cluster.sbatch("touch up; until [ -e go ]; do sleep 0.1; done; srun echo ran", "--ipus=4", user=USER)
    until((site.cluster.work / "up").exists, what=site.log)
    site.end_agent()
    change_wait(site, 2)
    direct = site.cluster.run("srun", "--ipus=4", "echo", "ran", user=USER)
    assert (direct.returncode, direct.stdout) == (121, "")
    assert "the partition was not ready within 2 s: no agent answers at" in direct.stderr
    (site.cluster.work / "go").touch()  # its script has run, so it is not for us to start it again
    fields = site.cluster.wait_job(step, "FAILED")
    assert (fields["ExitCode"], fields["Restarts"]) == ("121:0", "0")
    assert "the partition was not ready within 2 s" in site.cluster.output(step)


def test_the_mark_of_a_job_that_must_not_start_twice_is_not_handed_on(site: IpuSite) -> None:
    """Neither to its steps nor to what it submits."""
    look = "env | grep -c ^MOORINGS_NO_REQUEUE="
    script = f"{look}; srun sh -c '{look}; true'; env | grep -c ^MOORINGS_PARTITION"
    job = site.cluster.sbatch(script, "--ipus=1", "--no-requeue")
    site.cluster.wait_job(job, "COMPLETED")
    assert site.cluster.output(job).split() == ["0", "0", "1"]


# -- an agent that has nothing to give ---------------------------------------------------------------------------------


def test_a_batch_job_that_must_not_start_twice_is_told_what_the_agent_waited_for(site: IpuSite) -> None:
    site.end_agent()
    take_all(site)
    job = site.cluster.sbatch("echo ran", "--ipus=4", "--no-requeue", user=USER)
    site.cluster.wait_job(job, "RUNNING")
    site.start_agent()
    fields = site.cluster.wait_job(job, "FAILED")
    assert fields["ExitCode"] == "121:0"
    assert f"gets no partition: no partition within {PATIENCE_S} s: " in site.cluster.output(job)
    assert "ran\n" not in site.cluster.output(job)
    until(lambda: site.claims() == [], what=site.log)


def test_a_job_that_slurm_cannot_take_back_now_waits_until_it_can(site: IpuSite) -> None:
    """slurmctld is away when the agent's patience ends: refused, the job would end FAILED."""
    change_wait(site, 60)
    site.end_agent()
    other = take_all(site)
    job = site.cluster.sbatch("echo $MOORINGS_PARTITION_ID", "--ipus=4", user=USER)
    site.cluster.wait_job(job, "RUNNING")
    site.start_agent()
    until(lambda: [claim for claim in site.claims() if claim["state"] == "PENDING"], what=site.log)
    site.cluster.stop_controller()
    until(lambda: "job.give_up" in site.log(), 60, what=site.log)
    assert "gets no partition" not in site.cluster.output(job)
    site.cluster.start_controller()
    until(lambda: site.cluster.job(job)["Restarts"] == "1", what=lambda: f"{site.cluster.job(job)}\n{site.log()}")
    assert site.cluster.job(job)["JobState"] in ("PENDING", "COMPLETING")
    site.controller.ask("DELETE", f"/v1/claims/{other}?wait=20s")
    site.cluster.wait_job(job, "PENDING")
    start_now(site, job)
    site.cluster.wait_job(job, "COMPLETED")
    assert site.cluster.output(job).split()[-1] == f"slurm_{job}_r1"


def test_on_what_does_not_come_back_nobody_starts(site: IpuSite) -> None:
    """Beside a stranger's partition, of a job's own devices one goes out of service while it runs."""
    status, _ = site.controller.ask("POST", "/v1/claims?wait=20s", {"size": N_IPUS // 2})
    assert status == 201
    first = site.cluster.sbatch("sleep 600", "--ipus=8")
    site.cluster.wait_job(first, "RUNNING")
    held = until(lambda: [p for p in site.partitions() if p["name"] == f"slurm_{first}" and p["state"] == "ACTIVE"])
    device = f"pod16:{held[0]['devices'].rpartition(':')[2].partition('-')[0]}"
    others = [site.cluster.sbatch("true", "--ipus=8") for _ in range(3)]
    until(lambda: [job.reason for job in site.cluster.squeue() if job.state == "PENDING"] == ["Licenses"] * 3)
    status, told = site.controller.ask("POST", f"/v1/devices/{device}/drain", {"reason": "a fan"})
    assert status == 200, (device, told, held)
    until(lambda: site.room()[1] == -8, what=lambda: f"{site.room()}\n{site.log()}")
    site.cluster.check("scancel", str(first))
    until(lambda: len(site.claims()) == 1, what=site.log)
    until(lambda: site.room() == dict.fromkeys(site.room(), 0) | {1: 7, 2: 6, 4: 4}, what=lambda: f"{site.room()}")
    assert {(job.state, site.cluster.job(job.id)["Restarts"]) for job in site.cluster.squeue()} == {("PENDING", "0")}
    assert site.controller.ask("POST", f"/v1/devices/{device}/resume")[0] == 200
    for job in others:
        site.cluster.wait_job(job, "COMPLETED")
