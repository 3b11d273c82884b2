"""Devices that were lent come back: a job of who is guaranteed them waits, and the borrower in Slurm makes room."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator

import pytest

from tests.slurm.ipus import IpuSite, ipu_site
from tests.waiting import until

pytestmark = pytest.mark.slow
YIELD_S = 12
ALL = ("--ipus=16", "--open-mode=append")
LAB, GUEST = ("--account=lab", *ALL), ("--account=guest", *ALL)
# Counts its starts and warnings. The second start is done; the first saves when it is warned, and does what it is told.
BORROWER = """#!/bin/bash
echo "start ${{SLURM_RESTART_COUNT:-0}} of $MOORINGS_PARTITION_ID"
[ "$SLURM_RESTART_COUNT" ] && exit 0
trap 'echo warned; {then}' USR1
echo ready
while :; do sleep 0.2 & wait $!; done
"""
GOES = BORROWER.format(then="scontrol requeue $SLURM_JOB_ID")
LEAVES = BORROWER.format(then="exit 85")
DEAF = BORROWER.format(then=":").replace("trap", "trap '' TERM; trap", 1)
NO = "return slurm.ESLURM_ACCESS_DENIED or slurm.ERROR"
HOLDS = "until [ -e over.$SLURM_JOB_ID ]; do sleep 0.1; done"
# The same in a program that srun starts.
STEP = """#!/bin/bash
cat > program.$SLURM_JOB_ID <<'END'
trap 'echo warned; exit 85' USR1
echo ready
while :; do sleep 0.2 & wait $!; done
END
[ "$SLURM_RESTART_COUNT" ] && exit 0
srun sh program.$SLURM_JOB_ID
"""


@pytest.fixture(scope="module")
def site(slurm_release: str) -> Iterator[IpuSite]:
    with ipu_site(slurm_release, nodes=2, accounting=True) as made:
        made.cluster.check("sacctmgr", "-i", "add", "account", "guest")
        made.cluster.check("sacctmgr", "-i", "add", "user", "games", "account=guest")
        (made.controller.data / "policy.toml").write_text(f'min_run = 0\nyield = "{YIELD_S}s"\n')
        made.controller.stop()
        made.controller.start()
        shares = [{"pool": "pod16", "blocks": {"16": 1}}]
        assert made.controller.ask("PUT", "/v1/projects/lab", {"shares": shares})[0] in (200, 201)
        assert made.controller.ask("PUT", "/v1/projects/guest", {})[0] in (200, 201)
        yield made


@pytest.fixture(autouse=True)
def _quiet(site: IpuSite) -> Iterator[None]:
    yield
    if not site.agent_lives:
        site.start_agent()
    for job in site.cluster.squeue():
        site.cluster.run("scancel", job.id)
    until(lambda: not left(site), 60, what=lambda: "\n".join([*left(site), site.log()[-4000:]]))


def left(site: IpuSite) -> list[str]:
    """What is left of jobs; that nothing is offered to those who do not wait yet is as it should be."""
    return [what for what in site.left() if not what.endswith(" kept")]


def borrow(site: IpuSite, script: str, signal_name: str = "B:USR1") -> int:
    """A job on devices that are guaranteed to another project."""
    job = site.cluster.sbatch(script, *GUEST, f"--ipu-preemptible={signal_name}", "--requeue", user="games")
    until(lambda: "ready" in site.cluster.output(job), what=lambda: f"{site.cluster.output(job)}\n{site.log()[-3000:]}")
    return job


def asked(site: IpuSite, job: int) -> str:
    """Its comment, once it was asked to make room."""
    return until(lambda: re.search(r" asked=.*", site.comment(job)), what=site.log).group()


def runs_again(site: IpuSite, job: int) -> None:
    """The borrower continues when there are devices; a requeued job would wait for two minutes."""
    fields = site.cluster.wait_job(job, "PENDING")
    assert fields["Restarts"] == "1"
    begun = int(time.time())  # a node takes no job again in the second in which it was killed there: it is FAILED then
    until(lambda: int(time.time()) > begun + 1)
    site.cluster.check("scontrol", "update", f"jobid={job}", "starttime=now")
    fields = site.cluster.wait_job(job, "COMPLETED")
    assert fields["Restarts"] == "1"
    assert f"start 1 of slurm_{job}_r1" in site.cluster.output(job)


@pytest.mark.parametrize("script", [GOES, LEAVES], ids=["requeues itself", "ends with another code"])
def test_a_borrower_saves_and_goes_on_when_the_owner_is_done(site: IpuSite, script: str) -> None:
    job = borrow(site, script)
    owner = site.cluster.sbatch(HOLDS, *LAB, user="man")
    site.cluster.wait_job(owner, "RUNNING")
    site.cluster.wait_job(job, "PENDING")
    assert site.cluster.output(job).count("warned") == 1
    (site.cluster.work / f"over.{owner}").touch()
    site.cluster.wait_job(owner, "COMPLETED")
    runs_again(site, job)
    assert site.log().count("job.warned") >= 1


@pytest.mark.smoke
def test_a_program_of_srun_is_warned_and_its_job_goes_on(site: IpuSite) -> None:
    job = borrow(site, STEP, "USR1")
    owner = site.cluster.sbatch("true", *LAB, user="man")
    site.cluster.wait_job(owner, "COMPLETED")
    assert "warned" in site.cluster.output(job)
    fields = site.cluster.wait_job(job, "PENDING")
    assert fields["Restarts"] == "1"


def test_who_does_not_hear_is_requeued_in_time(site: IpuSite) -> None:
    job = borrow(site, DEAF)
    owner = site.cluster.sbatch("true", *LAB, user="man")
    told = asked(site, job)
    assert f"needed for man's job {owner} " in told
    assert "requeued at " in told
    site.cluster.wait_job(owner, "COMPLETED")
    assert site.cluster.output(job).count("warned") == 1
    runs_again(site, job)


def test_an_agent_that_is_killed_after_the_warning_warns_nobody_twice_and_requeues(site: IpuSite) -> None:
    job = borrow(site, DEAF)
    owner = site.cluster.sbatch("true", *LAB, user="man")
    until(lambda: "warned" in site.cluster.output(job), what=site.log)
    site.end_agent(signal.SIGKILL)
    site.start_agent()
    site.cluster.wait_job(owner, "COMPLETED")
    assert site.cluster.output(job).count("warned") == 1
    runs_again(site, job)


def test_of_an_array_one_task_makes_room_and_the_other_runs_on(site: IpuSite) -> None:
    script = LEAVES.replace("echo ready", "echo ready > ready.$SLURM_ARRAY_TASK_ID").replace(
        "echo warned", "echo warned > warned.$SLURM_ARRAY_TASK_ID"
    )
    half = ("--ipus=8", "--open-mode=append")
    array = site.cluster.sbatch(
        script, "--account=guest", *half, "--array=1-2%1", "--ipu-preemptible=B:USR1", "--requeue", user="games"
    )
    until(lambda: [*site.cluster.work.glob("ready.*")], what=site.log)
    # The younger loses less. It is the array's last, so its number is the array's.
    site.cluster.check("scontrol", "update", f"jobid={array}", "arraytaskthrottle=2")
    until(lambda: len([*site.cluster.work.glob("ready.*")]) == 2, what=site.log)
    owner = site.cluster.sbatch("true", "--account=lab", *half, user="man")
    site.cluster.wait_job(owner, "COMPLETED")
    assert [path.name for path in site.cluster.work.glob("warned.*")] == ["warned.2"]
    assert "JobState=RUNNING" in site.cluster.check("scontrol", "-o", "show", "job", f"{array}_1")


def test_one_that_ends_well_is_done(site: IpuSite) -> None:
    job = borrow(site, BORROWER.format(then="exit 0"))
    owner = site.cluster.sbatch("true", *LAB, user="man")
    site.cluster.wait_job(owner, "COMPLETED")
    fields = site.cluster.job(job)
    assert (fields["JobState"], fields["Restarts"]) == ("COMPLETED", "0")


def test_a_user_cannot_keep_what_was_lent_by_forbidding_the_requeue(site: IpuSite) -> None:
    job = borrow(site, DEAF)
    assert site.cluster.run("scontrol", "update", f"jobid={job}", "requeue=0", user="games").returncode != 0
    owner = site.cluster.sbatch("true", *LAB, user="man")
    site.cluster.wait_job(owner, "COMPLETED")
    assert site.cluster.output(job).count("warned") == 1
    runs_again(site, job)


def test_an_admin_who_forbids_the_requeue_is_overruled_when_the_devices_are_needed(site: IpuSite) -> None:
    job = borrow(site, DEAF)
    site.cluster.check("scontrol", "update", f"jobid={job}", "requeue=0")
    owner = site.cluster.sbatch("true", *LAB, user="man")
    site.cluster.wait_job(owner, "COMPLETED")
    assert site.log().count(f"job.unlocked logger=moorings.slurm.agent job={job} ") == 1
    assert site.cluster.output(job).count("warned") == 1
    runs_again(site, job)


def test_one_that_slurm_does_not_let_be_requeued_is_warned_and_cancelled_in_time(site: IpuSite) -> None:
    job = borrow(site, DEAF)
    site.cluster.check("scontrol", "update", f"jobid={job}", "requeue=0")
    before, ours = site.log().count("job.cannot_yield"), (site.cluster.etc / "job_submit.lua").read_text()
    call = "return moorings.modify("
    site.cluster.write_conf("job_submit.lua", ours.replace(call, f"if desc.requeue == 1 then {NO} end {call}"))
    try:
        owner = site.cluster.sbatch("true", *LAB, user="man")
        site.cluster.wait_job(owner, "COMPLETED")
    finally:
        site.cluster.write_conf("job_submit.lua", ours)
    assert site.cluster.job(job)["JobState"] == "CANCELLED"
    assert site.cluster.output(job).count("warned") == 1
    ended = site.cluster.check("scontrol", "-o", "show", "job", str(job))
    assert "-- cancelled, for its devices are needed and it cannot be requeued " in ended
    assert site.log().count("job.cannot_yield") == before + 1


def test_a_borrower_that_slurm_starts_in_an_owners_place_steps_aside(site: IpuSite) -> None:
    first = borrow(site, GOES)
    second = site.cluster.sbatch(GOES, *GUEST, "--ipu-preemptible=B:USR1", user="games")
    until(lambda: site.cluster.job(second)["Reason"] == "Licenses")
    owner = site.cluster.sbatch("true", *LAB, user="man")
    site.cluster.wait_job(owner, "COMPLETED", 30)
    assert site.log().count(f"job.set_aside logger=moorings.slurm.agent job={second} ") == 1
    assert "start 0" not in site.cluster.output(second), "nothing of it has run"
    assert re.search(r" asked=0@\d+,\d+ -- ", site.comment(second)), "its place is kept"
    runs_again(site, first)


def test_who_waits_reads_why(site: IpuSite) -> None:
    owner = site.cluster.sbatch(HOLDS, *LAB, user="man")
    site.cluster.wait_job(owner, "RUNNING")
    waiting = site.cluster.sbatch("true", *GUEST, "--ipu-preemptible", user="games")
    blocked = site.cluster.sbatch("true", *GUEST, f"--dependency=afterok:{waiting}", user="games")
    until(lambda: f"held by man's job {owner}" in site.comment(waiting), what=lambda: site.comment(waiting))
    until(lambda: site.comment(blocked).endswith("for Slurm says Dependency"), what=lambda: site.comment(blocked))
    stepped = site.cluster.sbatch("true", *GUEST, "--array=1-7:2", user="games")  # squeue shows it so, too
    until(lambda: "waits for" in site.comment(stepped) or "kept for it" in site.comment(stepped), what=site.log)
    site.cluster.check("scancel", str(stepped))
    (site.cluster.work / f"over.{owner}").touch()
    site.cluster.wait_job(waiting, "COMPLETED")
