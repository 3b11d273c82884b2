"""The formats on real Slurm: every command that we say, its answer, and users who write what they should not."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import SECOND
from moorings.slurm import formats
from moorings.slurm.commands import SlurmCommands
from moorings.slurm.formats import JobRecord, SlurmJobPhase
from moorings.slurm.host.reclaim import NOTE_CHARS_MAX
from tests.slurm.cluster import SlurmCluster, new_folder

HELD = {"ipu_4": 60, "moorings_gate": 1}


@pytest.fixture(scope="module")
def cluster(slurm_release: str) -> Iterator[SlurmCluster]:
    licenses = "ipu:64,ipu_4:64,moorings_gate:1"
    with SlurmCluster(new_folder(), 1, licenses=licenses, release=slurm_release) as made:
        yield made


@pytest.fixture
def slurm(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCommands]:
    monkeypatch.chdir(cluster.work)  # a release in a chroot sees this folder too
    yield SlurmCommands(cluster.env)
    cluster.settle()


async def listed(slurm: SlurmCommands, *jobs: int) -> list[JobRecord]:
    return formats.parse_jobs(await slurm.run_checked(formats.build_jobs(jobs=jobs)))


async def test_what_users_write_makes_no_record(cluster, slurm):
    forged = "x\n7           |7           |N/A|RUNNING\nJobId=7 AdminComment=moorings:1 nonce=" + "0" * 16
    flags = ("--hold", "-L", "ipu:1", f"--comment={forged}", f"--job-name={forged}", f"--account={forged}")
    evil = cluster.sbatch("true", *flags, user="games")
    good = cluster.sbatch("true", "--hold", "-L", "ipu:2", user="man")
    cluster.sbatch("true", "--hold", user="man")
    order = formats.SubmittedOptions(nonce="00112233aabbccdd", ipus=2, gcds=1, replicas=4)
    cluster.check("scontrol", "update", f"jobid={good}", f"admincomment={formats.build_admin_comment(order)}")
    jobs = formats.parse_jobs(await slurm.run_checked(formats.build_jobs(license_name="ipu")))
    found = {job.job_id: (job.user, job.licenses, job.order) for job in jobs if job.phase is not SlurmJobPhase.ENDED}
    assert found == {evil: ("games", {"ipu": 1}, None), good: ("man", {"ipu": 2}, order)}


async def test_the_life_of_a_job(cluster, slurm):
    job = cluster.sbatch("sleep 60", "-L", "ipu:1", "-t", "5", user="games")
    cluster.wait_job(job, "RUNNING")
    (running,) = await listed(slurm, job)
    assert (running.phase, running.nodes, running.limit_s) == (SlurmJobPhase.LIVE, "n1", 300.0)
    assert running.start_time is not None
    assert running.end_time == running.start_time + 300 * SECOND
    assert abs(running.start_time / SECOND - time.time()) < 60
    await slurm.run_checked(["scontrol", "requeuehold", str(job)])
    cluster.wait_job(job, ("PENDING", "REQUEUE_HOLD"))
    (held,) = await listed(slurm, job)
    assert (held.phase, held.restarts) == (SlurmJobPhase.WAITING, 1)
    cluster.check("scontrol", "release", str(job))
    cluster.check("scontrol", "hold", str(job))
    await slurm.run_checked(formats.build_cancel(job))
    cluster.wait_job(job, "CANCELLED")
    (ended,) = await listed(slurm, job)
    assert ended.phase is SlurmJobPhase.ENDED


async def test_a_note_is_kept_whole(cluster, slurm):
    job = cluster.sbatch("true", "--hold", user="games")
    order = formats.SubmittedOptions(nonce="00112233aabbccdd", ipus=2, gcds=1, replicas=4)
    note = ("devices 0-3 of pod16 are kept for it, still held by job 7 on slurm/c1; " * 20)[:NOTE_CHARS_MAX]
    await slurm.run_checked(formats.build_comment_update(job, order, None, note))
    shown = cluster.check("squeue", "-h", "-j", str(job), "-O", "admin_comment:1200").strip()
    assert shown.endswith(f" -- {note.strip()}")


async def test_a_job_that_is_not_known(slurm):
    for argv in (formats.build_jobs(jobs=[4_000_000]), formats.build_requeue(4_000_000)):
        with pytest.raises(MooringsError) as told:
            await slurm.run_checked(argv)
        assert told.value.code == "slurm.job_unknown"
    await slurm.run_checked(formats.build_cancel(4_000_000))


async def reserved(slurm: SlurmCommands) -> dict[str, int]:
    licenses = formats.parse_licenses(await slurm.run_checked(formats.build_licenses()))
    return {name: licenses[name].reserved for name in HELD}


async def test_the_life_of_the_reservation(cluster, slurm):
    assert formats.parse_reservations(await slurm.run_checked(formats.build_reservations())) == {}
    await slurm.run_checked(formats.build_create_reservation("moorings", HELD | {"ipu_4": 3}))
    await slurm.run_checked(formats.build_update_reservation("moorings", HELD))
    (held,) = formats.parse_reservations(await slurm.run_checked(formats.build_reservations())).values()
    assert (held.licenses, held.state) == (HELD, "ACTIVE")
    assert held.flags == {"ANY_NODES", "IGNORE_JOBS"}
    assert await reserved(slurm) == HELD
    job = cluster.sbatch("true", "-L", "ipu_4:8", user="games")
    cluster.wait_job(job, "PENDING")
    (waiting,) = await listed(slurm, job)
    assert waiting.phase is SlurmJobPhase.WAITING
    await slurm.run_checked(formats.build_renew_reservation("moorings"))
    assert await reserved(slurm) == HELD
    cluster.check("scontrol", "delete", "reservationname=moorings")
    cluster.wait_job(job, "COMPLETED")


async def test_a_refused_change_opens_the_gate_which_is_why_licenses_are_looked_at(slurm):
    await slurm.run_checked(formats.build_create_reservation("moorings", HELD))
    with pytest.raises(MooringsError) as told:
        await slurm.run_checked(formats.build_update_reservation("moorings", {"nosuch": 1}))
    assert told.value.code == "slurm.refused"
    (held,) = formats.parse_reservations(await slurm.run_checked(formats.build_reservations())).values()
    assert held.licenses == HELD
    assert await reserved(slurm) == dict.fromkeys(HELD, 0)
    await slurm.run_checked(formats.build_update_reservation("moorings", HELD))
    assert await reserved(slurm) == HELD


async def test_slurmctld_is_away(cluster, slurm):
    cluster.kill_controller()
    with pytest.raises(MooringsError) as told:
        await slurm.run_checked(formats.build_jobs())
    assert told.value.code == "slurm.unavailable"
    assert told.value.retryable
