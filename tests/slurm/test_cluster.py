from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import debian
from tests.slurm import programs
from tests.slurm.cluster import ACCOUNT, License, Queued, SlurmCluster, new_folder, parse_record
from tests.slurm.conf import build_slurm_conf
from tests.waiting import until

FREE = License(total=64, used=0, free=64, reserved=0)


@pytest.fixture(scope="module")
def accounted(slurm_release: str) -> Iterator[SlurmCluster]:
    conf = "AccountingStorageTRES=license/ipu"
    with SlurmCluster(
        new_folder(), 1, accounting=True, licenses="ipu:64", extra_conf=conf, release=slurm_release
    ) as it:
        yield it


# -- jobs --------------------------------------------------------------------------------------------------------------


def test_it_is_the_release_that_was_asked_for(slurm, slurm_release):
    assert slurm.check("sinfo", "--version").split()[-1].startswith(f"{slurm_release}.")


def test_a_users_script_runs_its_steps_as_that_user_on_several_nodes(slurm):
    job = slurm.sbatch("id -un; srun sh -c 'echo $SLURMD_NODENAME $(id -un)'", "-N2", "-n2", user="games")
    assert slurm.wait_job(job, "COMPLETED")["UserId"].startswith("games(")
    said = slurm.output(job).splitlines()
    assert (said[0], sorted(said[1:])) == ("games", ["n1 games", "n2 games"])


def test_srun_and_salloc_run_for_users(slurm):
    assert slurm.check("srun", "-n1", "id", "-un", user="man") == "man\n"
    node = slurm.check("salloc", "-n1", "srun", "printenv", "SLURMD_NODENAME", user="backup")
    assert node in ("n1\n", "n2\n", "n3\n", "n4\n")  # the job before may still be completing on n1


def test_a_script_that_slurm_refuses_fails_with_its_words(slurm):
    with pytest.raises(AssertionError, match="invalid partition"):
        slurm.sbatch("true", "-p", "nowhere")


def test_a_job_waits_for_its_license_and_is_seen_to(slurm):
    assert slurm.licenses() == {"ipu": FREE}
    first = slurm.sbatch("sleep 100", "-L", "ipu:60")
    slurm.wait_job(first, "RUNNING")
    second = slurm.sbatch("true", "-L", "ipu:8", user="games")
    until(lambda: slurm.job(second)["Reason"] == "Licenses")
    assert slurm.licenses() == {"ipu": License(total=64, used=60, free=4, reserved=0)}
    assert Queued(str(second), "games", "PENDING", "Licenses", "") in slurm.squeue()
    slurm.check("scancel", str(first))
    slurm.wait_job(second, "COMPLETED")


def test_a_wait_that_ends_in_vain_says_what_there_is_instead(slurm):
    job = slurm.sbatch("echo so it is; false")
    slurm.wait_job(job, "FAILED")
    with pytest.raises(AssertionError, match=r"(?s)'JobState': 'FAILED'.*so it is"):
        slurm.wait_job(job, ["RUNNING", "PENDING"], timeout=0.1)


# -- faults ------------------------------------------------------------------------------------------------------------


def test_a_stopped_controller_comes_back_with_its_jobs(slurm):
    job = slurm.sbatch("sleep 100")
    slurm.wait_job(job, "RUNNING")
    slurm.stop_controller()
    assert "is DOWN" in slurm.run("scontrol", "ping").stdout
    slurm.start_controller()
    assert slurm.job(job)["JobState"] == "RUNNING"


def test_a_killed_controller_comes_back(slurm):
    slurm.kill_controller()
    slurm.start_controller()
    assert slurm.licenses() == {"ipu": FREE}
    assert slurm.check("srun", "echo", "here") == "here\n"


def test_a_power_cut_ends_a_nodes_processes_at_once(slurm):
    lock = slurm.work / "held"
    job = slurm.sbatch(f"exec flock {lock} sh -c 'echo up; exec sleep 100'", "--no-requeue", "-w", "n2")
    until(lambda: "up" in slurm.output(job))
    assert subprocess.run(["flock", "-n", lock, "true"], check=False).returncode == 1
    slurm.kill_node(2)
    until(lambda: subprocess.run(["flock", "-n", lock, "true"], check=False).returncode == 0, 2)


def test_a_failed_node_requeues_its_job_and_comes_back(slurm):
    again = slurm.sbatch("[ $SLURM_RESTART_COUNT ] || exec sleep 100", "--requeue", "-w", "n2")
    never = slurm.sbatch("sleep 100", "--no-requeue", "-w", "n2")
    slurm.wait_job(again, "RUNNING")
    slurm.wait_job(never, "RUNNING")
    slurm.fail_node(2)
    slurm.wait_job(never, "NODE_FAIL")
    slurm.check("scontrol", "update", f"jobid={again}", "starttime=now")  # a requeued job would wait for two minutes
    slurm.start_node(2)
    slurm.wait_job(again, "COMPLETED")
    assert slurm.check("srun", "-w", "n2", "echo", "back") == "back\n"


def test_settling_undoes_what_a_test_left(slurm):
    slurm.sbatch("sleep 100", "--array=0-3")
    slurm.sbatch("sleep 100", "--hold", user="games")
    slurm.check("scontrol", "create", "reservation=r", "starttime=now", "duration=10", "user=root", "nodes=n4")
    slurm.check("scontrol", "update", "nodename=n3", "state=drain", "reason=test")
    shell = slurm.spawn("salloc", "-n1", "sleep", "100")
    slurm.kill_node(1)
    slurm.kill_controller()
    slurm.settle()
    assert slurm.squeue() == []
    assert shell.poll() is not None
    assert "No reservations" in slurm.check("scontrol", "show", "reservation")
    assert slurm.check("srun", "-N4", "echo", "here").split() == ["here"] * 4


# -- configuration -----------------------------------------------------------------------------------------------------


def test_a_changed_slurm_conf_is_read_again(slurm_release):
    with SlurmCluster(new_folder(), 1, release=slurm_release) as cluster:
        cluster.configure("PartitionName=other Nodes=ALL Default=YES")
        cluster.reconfigure()
        until(lambda: cluster.check("sinfo", "-h", "-o", "%P").split() == ["other*"])
        cluster.stop_controller()  # a release that starts again to read it, starts as our child
        cluster.start_controller()
        assert cluster.check("srun", "echo", "here") == "here\n"


def test_a_file_beside_slurm_conf_is_seen_by_the_controller(slurm_release):
    cluster = SlurmCluster(new_folder(), 1, extra_conf="JobSubmitPlugins=lua", release=slurm_release)
    cluster.write_conf(
        "job_submit.lua",
        """
        function slurm_job_submit(desc, partitions, uid)
            slurm.log_user("not today")
            return slurm.ERROR
        end
        function slurm_job_modify(desc, record, partitions, uid) return slurm.SUCCESS end
        """,
    )
    with cluster:
        refused = cluster.run("sbatch", "--wrap", "true", user="games")
        assert (refused.returncode, "not today" in refused.stderr) == (1, True)


def test_a_line_of_ours_gives_way_to_one_under_the_same_key():
    text = build_slurm_conf(
        folder=Path("/f"),
        host="h",
        ports=range(20000, 20006),
        nodes=4,
        plugins=None,
        accounting=False,
        licenses="a:1",
        extra="# no line\nkillwait=9\n  PartitionName=one Nodes=n1\nPartitionName=two Nodes=n2",
    )
    lines = text.splitlines()
    assert [line for line in lines if line.lower().startswith(("killwait", "partitionname"))] == [
        "killwait=9",
        "PartitionName=one Nodes=n1",
        "PartitionName=two Nodes=n2",
    ]
    assert "Licenses=a:1" in lines
    assert any(line.startswith("NodeName=n[1-4] ") and "Port=[20002-20005] " in line for line in lines)


def test_a_record_of_scontrol_may_have_spaces_in_its_values():
    line = "JobId=7 JobName=a b  c Reason=None ReqB:S:C:T=0:0:*:* Comment=x=y CPUs/Task=1 Command=(null)"
    assert parse_record(line) == {
        "JobId": "7",
        "JobName": "a b  c",
        "Reason": "None",
        "ReqB:S:C:T": "0:0:*:*",
        "Comment": "x=y",
        "CPUs/Task": "1",
        "Command": "(null)",
    }


# -- accounting --------------------------------------------------------------------------------------------------------


def test_accounting_knows_users_jobs_steps_and_licenses(accounted):
    job = accounted.sbatch("srun true", "-L", "ipu:4", user="games")
    accounted.wait_job(job, "COMPLETED")
    rows = until(
        lambda: [row for row in accounted.sacct(job) if row["State"] == "COMPLETED"][2:] and accounted.sacct(job)
    )
    assert [row["JobID"] for row in rows] == [str(job), f"{job}.batch", f"{job}.0"]
    assert (rows[0]["User"], rows[0]["Account"]) == ("games", ACCOUNT)
    assert "license/ipu=4" in rows[0]["AllocTRES"].split(",")


def test_who_has_no_account_is_refused(accounted):
    assert "Invalid account" in accounted.run("sbatch", "--wrap", "true", user="daemon").stderr


def test_a_killed_controller_comes_back_with_accounting(accounted):
    accounted.kill_controller()
    accounted.start_controller()
    accounted.settle()
    assert accounted.check("srun", "echo", "here", user="man") == "here\n"


# -- nothing is left ---------------------------------------------------------------------------------------------------


def left_of(folder: Path) -> list[str]:
    """What runs with this folder in its words, its variables or as its own."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            known = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            if str(folder).encode() in known or (process / "cwd").readlink().is_relative_to(folder):
                found.append(f"{process.name} {known[:200]!r}")
        except OSError:  # it has ended, or is of the kernel
            continue
    return found


def test_two_clusters_do_not_know_each_other_and_leave_nothing(slurm, slurm_release):
    with SlurmCluster(new_folder(), 2, release=slurm_release) as other:
        job = other.sbatch("setsid sleep 1000 & sleep 1000", "-N2", "--parsable")
        other.spawn("srun", "-n1", "sleep", "1000", user="games")
        other.spawn("salloc", "-n1", "sh", "-c", "sleep 1000 & wait")
        other.wait_job(job, "RUNNING")
        assert slurm.squeue() == []
        assert left_of(other.folder) != []
    assert left_of(other.folder) == []
    assert not other.folder.exists()


STORY = """
import sys, time
from pathlib import Path
from tests.slurm.cluster import SlurmCluster

cluster = SlurmCluster(Path(sys.argv[1]), 2, accounting=True, release=sys.argv[2])
cluster.start()
cluster.spawn("srun", "-N2", "-n2", "sleep", "1000", user="games")
cluster.spawn("salloc", "-n1", "sleep", "1000", user="man")
cluster.wait_job(cluster.sbatch("sleep 1000", user="games"), "RUNNING")
print("up", flush=True)
time.sleep(1000)
"""


def test_whoever_is_killed_takes_its_cluster_along(slurm_release):
    folder = new_folder()
    victim = subprocess.Popen(
        [sys.executable, "-c", STORY, folder, slurm_release], cwd=debian.ROOT, stdout=subprocess.PIPE, text=True
    )
    with victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "up\n"
        assert len(left_of(folder)) > 8
        victim.send_signal(signal.SIGKILL)
    until(lambda: not folder.exists() and left_of(folder) == [], what=lambda: "\n".join(left_of(folder)))


def test_a_folder_with_somebodys_files_is_not_taken(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(AssertionError, match="not empty"):
        SlurmCluster(tmp_path)
    assert (tmp_path / "mine").exists()


def test_programs_that_users_could_not_read_are_copied(slurm_release, tmp_path, monkeypatch):
    found = programs.find(slurm_release, tmp_path)
    if not found.libraries:
        pytest.skip(f"Slurm {slurm_release} is not unpacked here: it is this machine's own, or in a chroot")
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    shutil.copytree(found.root, hidden / found.root.name, symlinks=True)
    monkeypatch.setattr(debian, "CACHE", hidden)
    with SlurmCluster(new_folder(), 1, release=slurm_release) as cluster:
        assert cluster.programs.root.is_relative_to(cluster.folder)
        assert cluster.check("srun", "id", "-un", user="games") == "games\n"
