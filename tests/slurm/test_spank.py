from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorings.slurm.host.bind_protocol import BATCH_STEP, INTERACTIVE_STEP, BindReply, BindRequest
from moorings.slurm.munge import Munge
from tests.slurm import programs
from tests.slurm.answers import GOOD, HOSTILE, head, written
from tests.slurm.cluster import SlurmCluster, new_folder
from tests.slurm.node_agent import NodeAgent, binding, refused, retry
from tests.slurm.spank import LICENSES, build_plugin, copy_lua, plug, run_dir
from tests.waiting import patient, until

USER = "games"
SINGLE_GCD_JOB = """#!/bin/bash
#SBATCH --job-name single-gcd-job
#SBATCH --ipus 2
#SBATCH -n 1
#SBATCH --time=00:30:00
srun ./ipu_program.sh
wait
"""
MULTI_GCD_JOB = """#!/bin/bash
#SBATCH --job-name multi-gcd-job
#SBATCH --ipus 2
#SBATCH -n 2
#SBATCH --time=00:30:00
srun ./ipu_program.sh
wait
"""
TELL = (
    'echo "$SLURM_STEP_ID $RANK/$WORLD_SIZE $LOCAL_RANK $MASTER_ADDR:$MASTER_PORT $MOORINGS_PARTITION_ID'
    ' $MOORINGS_DEVICES api=$IPUOF_VIPU_API_HOST,$IPUOF_VIPU_API_GCD_ID file=${IPUOF_CONFIG_PATH##*/}"'
)


@pytest.fixture(scope="module")
def cluster(slurm_release: str) -> Iterator[SlurmCluster]:
    conf = "JobSubmitPlugins=lua\nLaunchParameters=use_interactive_step\nKillWait=900"
    cluster = SlurmCluster(new_folder(), 2, release=slurm_release, licenses=LICENSES, extra_conf=conf)
    build_plugin(cluster)
    copy_lua(cluster)
    plug(cluster, "127.0.0.1:1")
    program = cluster.work / "ipu_program.sh"
    program.write_text(f"#!/bin/bash\n{TELL}\n")
    program.chmod(0o755)
    with cluster:
        yield cluster


@pytest.fixture
def munge(cluster) -> Munge:
    return Munge(str(cluster.munge_socket), str(programs.munge_library()))


@pytest.fixture
def folder(cluster) -> Iterator[Path]:
    """IpuofDir."""
    folder = cluster.folder / "ipuof"
    yield folder
    if folder.exists():
        shutil.rmtree(folder)


@pytest.fixture
def agent(cluster, munge) -> Iterator[NodeAgent]:
    with NodeAgent(munge, lambda request: binding(request)) as agent:
        plug(cluster, f"127.0.0.1:{agent.port}")
        yield agent
        cluster.settle()
    assert agent.faults == []


def left(folder: Path) -> list[str]:
    """What lies in IpuofDir, but for its own lock."""
    return sorted(each.name for each in folder.iterdir() if each.name != ".lock") if folder.exists() else []


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["sbatch", "srun", "salloc"])
def test_the_commands_tell_of_the_options(cluster, command):
    text = cluster.check(command, "--help")
    assert "--ipus=N" in text
    assert "--num-replicas=R" in text
    assert "--ipu-preemptible" in text


@pytest.mark.parametrize("word", ["3", "0", "-1", "512", "two", "", "4.0", "0x4", " 4", "4 ", "9" * 40])
@pytest.mark.parametrize("command", ["sbatch", "srun", "salloc"])
def test_a_wrong_number_of_ipus_is_refused_with_what_is_allowed(cluster, command, word):
    program = [] if command == "sbatch" else ["true"]
    done = cluster.run(command, f"--ipus={word}", *program, input="#!/bin/sh\n")
    assert done.returncode != 0
    assert f"--ipus={word}: the number of IPUs must be a power of two from 1 to 256 (1, 2, 4, 8, ...)" in done.stderr
    assert cluster.squeue() == []


@pytest.mark.parametrize("word", ["0", "-2", "many", "65537"])
def test_a_wrong_number_of_replicas_is_refused(cluster, word):
    done = cluster.run("sbatch", "--ipus=2", f"--num-replicas={word}", input="#!/bin/sh\n")
    assert done.returncode != 0
    assert "must be from 1 to 65536" in done.stderr


def test_a_wrong_option_in_a_script_is_refused(cluster):
    done = cluster.run("sbatch", input="#!/bin/sh\n#SBATCH --ipus=3\ntrue\n")
    assert done.returncode != 0
    assert "--ipus=3: the number of IPUs must be a power of two" in done.stderr


# -- what a job gets ---------------------------------------------------------------------------------------------------


def test_the_single_gcd_script_of_the_manual_runs(cluster, agent):
    job = cluster.sbatch(SINGLE_GCD_JOB, user=USER)
    cluster.wait_job(job, "COMPLETED")
    assert cluster.output(job).splitlines() == [f"0 0/1 0 n1:29500 p{job} pod1:0,pod1:1 api=vipu1,0 file="]
    assert [(request.step, request.node) for request in agent.requests] == [(BATCH_STEP, "n1"), (0, "n1")]
    assert agent.uids == {0}


def test_the_multi_gcd_script_of_the_manual_runs_each_task_with_its_own_gcd(cluster, agent):
    agent.answer = lambda request: binding(request, gcds=2)
    job = cluster.sbatch(MULTI_GCD_JOB, user=USER)
    cluster.wait_job(job, "COMPLETED")
    assert sorted(cluster.output(job).splitlines()) == [
        f"0 0/2 0 n1:29500 p{job} pod1:0,pod1:1 api=vipu1,0 file=",
        f"0 1/2 1 n1:29500 p{job} pod1:2,pod1:3 api=vipu1,1 file=",
    ]
    assert len(agent.requests) == 2  # the script's, and one for both tasks


def test_files_are_the_jobs_alone_and_gone_with_the_step(cluster, agent, folder):
    agent.answer = lambda request: binding(request, gcds=2, folder=str(folder))
    look = (
        'cat $IPUOF_CONFIG_PATH; stat -c "%U %a" $IPUOF_CONFIG_PATH $(dirname $IPUOF_CONFIG_PATH);'
        " touch $(dirname $IPUOF_CONFIG_PATH)/x; ls $(dirname $IPUOF_CONFIG_PATH);"
        " env | grep IPUOF_VIPU; cp $IPUOF_CONFIG_PATH copy; echo x >> $IPUOF_CONFIG_PATH"
    )
    done = cluster.run(
        "srun", "-n1", "--ipus=2", "bash", "-c", look, user=USER, env={"IPUOF_VIPU_API_HOST": "old", "LC_ALL": "C"}
    )
    job = agent.requests[0].job
    assert done.stdout.splitlines() == [f"GCD 0 of job {job}", f"{USER} 400", "root 711"]
    assert done.stderr.count("Permission denied") == 3  # touch, ls and the appended line
    assert oct(folder.stat().st_mode & 0o7777) == "0o711"
    assert left(folder) == []


def test_another_user_cannot_read_the_files(cluster, agent, folder):
    agent.answer = lambda request: binding(request, folder=str(folder))
    first = cluster.spawn("srun", "--ipus=1", "sh", "-c", "echo $IPUOF_CONFIG_PATH; exec sleep 60", user=USER)
    assert first.stdout
    path = first.stdout.readline().strip()
    assert Path(path).read_text().startswith("GCD 0")
    assert "Permission denied" in cluster.run("cat", path, user="man").stderr
    assert cluster.run("cat", path, user=USER).returncode == 0
    cluster.check("scancel", str(agent.requests[0].job))
    until(lambda: left(folder) == [])


def test_a_form_that_the_environment_brings_along_is_taken_away(cluster, agent):
    old = {"IPUOF_CONFIG_PATH": "/old", "IPUOF_VIPU_API_TIMEOUT": "1", "RANK": "9", "MASTER_PORT": "1"}
    text = cluster.run("srun", "--ipus=1", "env", env=old).stdout
    assert "IPUOF_CONFIG_PATH" not in text
    assert "IPUOF_VIPU_API_TIMEOUT" not in text
    assert "\nRANK=0\n" in text
    assert "\nMASTER_PORT=29500\n" in text


def test_a_step_on_two_nodes_asks_from_both(cluster, agent, folder):
    agent.answer = lambda request: binding(request, gcds=2, folder=str(folder))
    job = cluster.sbatch(f"srun bash -c 'cat $IPUOF_CONFIG_PATH; {TELL}'", "-N2", "-n2", "--ipus=4", user=USER)
    cluster.wait_job(job, "COMPLETED")
    said = sorted(cluster.output(job).splitlines())
    assert said[2:] == [f"GCD 0 of job {job}", f"GCD 1 of job {job}"]
    assert [line.split()[1] for line in said[:2]] == ["0/2", "1/2"]
    assert sorted(request.node for request in agent.requests if request.step == 0) == ["n1", "n2"]
    assert left(folder) == []


def test_more_tasks_than_gcds_share_them_in_order(cluster, agent):
    agent.answer = lambda request: binding(request, gcds=2)
    text = cluster.check("srun", "-n4", "--ipus=4", "sh", "-c", "echo $RANK $IPUOF_VIPU_API_GCD_ID")
    assert sorted(text.splitlines()) == ["0 0", "1 0", "2 1", "3 1"]


def test_each_task_of_an_array_is_a_job_of_its_own(cluster, agent):
    job = cluster.sbatch("echo $SLURM_JOB_ID $MOORINGS_PARTITION_ID", "--ipus=1", "--array=1-3", "-o", "array-%a")
    until(lambda: cluster.squeue() == [])
    said = [(cluster.work / f"array-{task}").read_text().split() for task in (1, 2, 3)]
    assert [partition for _, partition in said] == [f"p{id}" for id, _ in said]
    assert str(job) in [id for id, _ in said]
    assert len(set(agent.jobs())) == 3


def test_a_requeued_jobs_steps_say_so(cluster, agent):
    script = '[ "$SLURM_RESTART_COUNT" ] && exec srun true; touch first; exec sleep 60'
    job = cluster.sbatch(script, "--ipus=1", "--requeue", "--open-mode=append")
    cluster.wait_job(job, "RUNNING")
    until((cluster.work / "first").exists)
    (cluster.work / "first").unlink()
    cluster.check("scontrol", "requeue", str(job))
    cluster.wait_job(job, "PENDING")
    # Not at once: a job that is back on its node within a second is failed by Slurm ("already killed, do not launch").
    cluster.check("scontrol", "update", f"jobid={job}", "StartTime=now+3")
    cluster.wait_job(job, "COMPLETED")
    assert [(request.step, request.restart) for request in agent.requests] == [(BATCH_STEP, 0), (BATCH_STEP, 0), (0, 1)]


def test_a_salloc_shell_and_its_steps_are_bound(cluster, agent):
    lines = f"{TELL}\nsrun --overlap bash -c '{TELL}'\n"
    done = cluster.run("salloc", "--ipus=1", user=USER, input=lines, env={"SHELL": "/bin/bash"})
    job = agent.requests[0].job
    said = [line.partition(" ")[2] for line in done.stdout.splitlines()]
    assert said == [f"0/1 0 n1:29500 p{job} pod1:0,pod1:1 api=vipu1,0 file="] * 2
    assert [request.step for request in agent.requests] == [INTERACTIVE_STEP, 0]


def test_a_command_of_salloc_on_the_submit_host_has_bound_steps(cluster, agent):
    text = cluster.check("salloc", "--ipus=1", "srun", "./ipu_program.sh", user=USER)
    assert f"p{agent.requests[0].job} pod1:0,pod1:1" in text


@pytest.mark.parametrize("export", ["NONE", "A=1"])
def test_a_step_without_its_users_environment_is_bound(cluster, agent, export):
    job = cluster.sbatch(f"srun --export={export} /bin/sh -c 'echo at $MOORINGS_PARTITION_ID'", "--ipus=1")
    cluster.wait_job(job, "COMPLETED")
    assert cluster.output(job) == f"at p{job}\n"


def test_a_program_inherits_nothing_of_ours(cluster, agent, folder):
    agent.answer = lambda request: binding(request, folder=str(folder))
    look = "ls /proc/self/fd; grep -E '^(Name|SigBlk|SigIgn|SigPnd)' /proc/self/status; ! grep moorings /proc/self/maps"
    plain = cluster.check("srun", "sh", "-c", look)
    assert "Name:\tgrep" in plain
    assert cluster.check("srun", "--ipus=1", "sh", "-c", look) == plain


def test_a_plain_job_asks_nobody(cluster, agent):
    job = cluster.sbatch("srun env", "-n2", user=USER)
    cluster.wait_job(job, "COMPLETED")
    cluster.check("srun", "true")
    assert "MOORINGS" not in cluster.output(job)
    assert agent.requests == []


def test_a_job_submitted_by_an_ipu_job_takes_no_ipus_unasked(cluster, agent):
    submit = "sbatch --parsable -H --wrap true; sbatch --parsable -H --ipus=1 --wrap true"
    job = cluster.sbatch(f"{submit}; unset SLURM_JOB_ID SLURM_JOBID; srun printenv SLURM_JOB_ID", "--ipus=2", user=USER)
    cluster.wait_job(job, "COMPLETED")
    licenses = [cluster.job(id)["Licenses"] for id in cluster.output(job).split()]
    assert licenses == ["(null)", "ipu:1,ipu_1:1", "(null)"]


@pytest.mark.parametrize("form", ["api", "file"])
def test_a_job_submitted_by_an_ipu_job_has_nothing_of_its_binding(cluster, agent, folder, form):
    agent.answer = lambda request: binding(request, folder=str(folder) if form == "file" else "")
    look = "env | grep -E '^(IPUOF|MOORINGS|MASTER|WORLD|RANK|LOCAL_RANK|MINE)' | sort; echo end"
    submit = f'sbatch -W -o child --wrap "{look}"; env -u SLURM_JOB_ID -u SLURM_JOBID srun sh -c "{look}"'
    job = cluster.sbatch(f"export MINE=1 IPUOF_LOG=1\n{look}\n{submit}", "--ipus=2", "-n1", user=USER)
    cluster.wait_job(job, "COMPLETED")
    own, sruns = cluster.output(job).split("end\n")[:2]
    assert own.count("IPUOF_VIPU" if form == "api" else "IPUOF_CONFIG_PATH=") > 0
    assert own.count("\n") > 6
    bare = "IPUOF_LOG=1\nMINE=1\n"  # its user's own
    given = sruns.partition("\n")[2]  # after what sbatch says
    assert given == bare
    assert (cluster.work / "child").read_text() == f"{bare}end\n"
    plain = cluster.run("srun", "sh", "-c", "echo $RANK", env={"RANK": "7"})
    assert plain.stdout == "7\n"  # not of a binding


def test_a_step_of_a_job_without_ipus_gets_the_agents_answer(cluster, agent):
    agent.answer = lambda _: refused("it was not submitted with --ipus")
    done = cluster.run("salloc", "-n1", "srun", "--ipus=4", "echo", "ran", user=USER)
    assert "ran" not in done.stdout
    assert "it was not submitted with --ipus" in done.stderr
    forged = {"SLURM_SPANK__SLURM_SPANK_OPTION_moorings_ipus": "4"}
    assert cluster.run("srun", "echo", "ran", user=USER, env=forged).stdout == "ran\n"  # and takes no IPUs


# -- steps from another shell than the job's ---------------------------------------------------------------------------


def attach(cluster, job: int, *flags: str) -> str:
    """What a step prints that a shell starts which knows of the job nothing but its id."""
    words = ["--overlap", "--mem=0", "-n1", *flags, "sh", "-c", "echo $SLURMD_NODENAME $MOORINGS_PARTITION_ID"]
    return str(cluster.check("srun", f"--jobid={job}", *words, user=USER)).strip()


def notes(cluster) -> list[str]:
    return left(run_dir(cluster))


def test_a_step_from_another_shell_is_bound_where_the_job_is(cluster, agent):
    job = cluster.sbatch("echo up; exec sleep 100", "-N2", "--ipus=2", user=USER)
    until(lambda: cluster.output(job) == "up\n")
    assert notes(cluster) == [f"{job}.{BATCH_STEP}.n1"]
    assert attach(cluster, job) == f"n1 p{job}"
    asked = len(agent.requests)
    # Of n2 nothing is known: no step with a partition lives there. Slurm hands no trustworthy word of the job on.
    assert attach(cluster, job, "-w", "n2") == "n2"
    assert len(agent.requests) == asked
    assert attach(cluster, job, "-w", "n2", "--ipus=2") == f"n2 p{job}"
    until(lambda: notes(cluster) == [f"{job}.{BATCH_STEP}.n1"])
    cluster.check("scancel", str(job))
    until(lambda: notes(cluster) == [])


def test_a_step_from_another_shell_into_an_srun_is_bound_on_each_node(cluster, agent):
    agent.answer = lambda request: binding(request, gcds=2)
    cluster.spawn("srun", "-N2", "-n2", "--ipus=2", "sleep", "100", user=USER)
    until(lambda: len(notes(cluster)) == 2)
    job = agent.jobs()[0]
    assert [attach(cluster, job, "-w", node) for node in ("n1", "n2")] == [f"n1 p{job}", f"n2 p{job}"]
    cluster.check("scancel", str(job))
    until(lambda: notes(cluster) == [])


@pytest.mark.parametrize("how", ["refused", "not ready"])
def test_a_look_into_a_job_that_gets_no_binding_runs_without_one(cluster, agent, how):
    job = cluster.sbatch("echo up; exec sleep 100", "--ipus=2", user=USER)
    until(lambda: cluster.output(job) == "up\n")
    agent.answer = lambda _: refused("it is over") if how == "refused" else retry()
    words = ["srun", f"--jobid={job}", "--overlap", "--mem=0", "-n1"]
    brought = {"MOORINGS_PARTITION_ID": "another", "IPUOF_VIPU_API_GCD_ID": "3", "RANK": "5"}
    look = ["sh", "-c", "echo ran ${MOORINGS_PARTITION_ID-no} ${IPUOF_VIPU_API_GCD_ID-no} ${RANK-no}"]
    done = cluster.run(*words, *look, user=USER, env=brought)
    assert (done.returncode, done.stdout) == (0, "ran no no no\n"), done.stderr
    assert "it is over" in done.stderr if how == "refused" else "was not ready within 5 s" in done.stderr
    assert done.stderr.count("this step starts without a binding") == 1
    agent.answer = lambda _: refused("it is over")
    real = cluster.run(*words, "--ipus=2", *look, user=USER)
    assert (real.returncode, real.stdout) == (121, "")
    cluster.check("scancel", str(job))


def test_a_step_of_another_job_on_the_node_asks_nobody(cluster, agent):
    bound = cluster.sbatch("echo up; exec sleep 100", "-w", "n1", "--ipus=1", user=USER)
    plain = cluster.sbatch("echo up; exec sleep 100", "-w", "n1", user=USER)
    until(lambda: cluster.output(bound) == cluster.output(plain) == "up\n")
    asked = len(agent.requests)
    assert attach(cluster, plain) == "n1"
    forged = {"SLURM_JOB_LICENSES": "ipu:1,ipu_1:1", "SLURM_JOB_ID": str(plain)}
    assert cluster.run("srun", "--overlap", "echo", "ran", user=USER, env=forged).stdout == "ran\n"
    assert len(agent.requests) == asked
    cluster.check("scancel", str(bound), str(plain))


def test_a_note_of_a_step_that_was_killed_counts_for_nothing(cluster, agent):
    first = cluster.sbatch("echo up; exec sleep 100", "-w", "n1", "--ipus=1", user=USER)
    until(lambda: cluster.output(first) == "up\n")
    kill_step(cluster, "n1", first, "batch")
    plain = cluster.sbatch("echo up; exec sleep 100", "-w", "n1", user=USER)
    until(lambda: cluster.output(plain) == "up\n")
    (stale,) = notes(cluster)
    (run_dir(cluster) / stale).rename(run_dir(cluster) / f"{plain}.{BATCH_STEP}.n1")  # as if the id had come again
    asked = len(agent.requests)
    assert attach(cluster, plain) == "n1"
    assert len(agent.requests) == asked
    cluster.check("srun", "-w", "n1", "--ipus=1", "true")  # sweeps
    until(lambda: notes(cluster) == [])


@pytest.mark.parametrize("how", ["writable by all", "a link", "a file"])
def test_a_folder_of_notes_that_others_could_change_is_not_used(cluster, agent, how):
    where = cluster.folder / "notes"
    plug(cluster, f"127.0.0.1:{agent.port}", extra=f"run_dir={where}")
    job = cluster.sbatch("echo up; exec sleep 100", user=USER)
    until(lambda: cluster.output(job) == "up\n")
    if how == "a link":
        where.symlink_to(cluster.work)
    elif how == "a file":
        where.touch()
    else:
        where.mkdir()
        where.chmod(0o1777)
        (where / f"{job}.0.n1").mkdir()
    before = sorted(cluster.work.iterdir())
    descriptor = os.open(where / f"{job}.0.n1", os.O_RDONLY) if how == "writable by all" else -1
    try:
        if descriptor >= 0:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # as a user could, to send another's steps to the agent
        assert attach(cluster, job) == "n1"
        assert agent.requests == []
        assert cluster.check("srun", "--ipus=1", "echo", "ran", user=USER) == "ran\n"  # without a note
        assert sorted(cluster.work.iterdir()) == before
    finally:
        if descriptor >= 0:
            os.close(descriptor)
        cluster.check("scancel", str(job))
        shutil.rmtree(where) if where.is_dir() and not where.is_symlink() else where.unlink()


# -- the wait ----------------------------------------------------------------------------------------------------------


class Gate:
    """An answer that says retry until it is opened."""

    def __init__(self, folder: Path | None = None) -> None:
        self.open = threading.Event()
        self.folder = str(folder or "")

    def __call__(self, request: BindRequest) -> BindReply:
        return binding(request, folder=self.folder) if self.open.wait(0.3) else retry()


def test_no_process_starts_before_the_partition_is_active(cluster, agent):
    agent.answer = gate = Gate()
    job = cluster.sbatch("echo script; srun echo step", "--ipus=1")
    until(lambda: len(agent.requests) >= 3)
    assert cluster.job(job)["JobState"] == "RUNNING"
    assert cluster.output(job) == ""
    gate.open.set()
    cluster.wait_job(job, "COMPLETED")
    assert cluster.output(job) == "script\nstep\n"


def test_a_long_wait_is_told(cluster, agent):
    agent.answer = gate = Gate()
    job = cluster.sbatch("echo script", "--ipus=1")
    until(lambda: "waiting for the partition" in cluster.output(job), 20)
    gate.open.set()
    cluster.wait_job(job, "COMPLETED")
    assert (
        cluster.output(job) == f"moorings: waiting for the partition of job {job}: the partition is CREATING\nscript\n"
    )


@pytest.mark.parametrize("what", ["batch", "step", "srun"])
def test_a_job_that_is_cancelled_while_it_waits_ends_at_once(cluster, agent, folder, what):
    agent.answer = gate = Gate(folder)
    plug(cluster, f"127.0.0.1:{agent.port}", wait_s=600)  # it does not end because it has waited long enough
    if what == "batch":
        job = cluster.sbatch("echo ran", "--ipus=1", user=USER)
    elif what == "step":
        agent.answer = lambda request: binding(request) if request.step == BATCH_STEP else gate(request)
        job = cluster.sbatch("srun echo ran", "-n2", "--ipus=2", user=USER)
        until(lambda: any(request.step == 0 for request in agent.requests))
    else:
        cluster.spawn("srun", "-n2", "--ipus=2", "sh", "-c", "echo ran > srun-ran", user=USER)
        job = until(lambda: agent.jobs() and agent.jobs()[0])
    until(lambda: job in agent.jobs())
    cluster.check("scancel", str(job), user=USER)
    until(lambda: cluster.squeue() == [], what="it ends before KillWait")
    assert cluster.job(job)["JobState"] == "CANCELLED"
    gate.open.set()
    assert "ran\n" not in cluster.output(job)
    assert not (cluster.work / "srun-ran").exists()
    assert left(folder) == []
    assert "idle" in cluster.check("sinfo", "-h", "-o", "%T")


def test_an_interrupted_srun_ends_while_it_waits(cluster, agent):
    agent.answer = Gate()
    plug(cluster, f"127.0.0.1:{agent.port}", wait_s=600)
    srun = cluster.spawn("srun", "-n2", "--ipus=2", "echo", "ran", user=USER)
    until(lambda: agent.requests != [])
    srun.send_signal(signal.SIGTERM)
    out, _ = srun.communicate(timeout=patient(20))
    assert out == ""
    until(lambda: cluster.squeue() == [])


def test_an_agent_that_starts_late_is_found(cluster, munge):
    with NodeAgent(munge, binding) as agent:
        port = agent.port
    plug(cluster, f"127.0.0.1:{port}")
    job = cluster.sbatch("echo $MOORINGS_PARTITION_ID", "--ipus=1")
    cluster.wait_job(job, "RUNNING")
    with NodeAgent(munge, binding, port):
        cluster.wait_job(job, "COMPLETED")
    assert cluster.output(job) == f"p{job}\n"


def test_a_second_agent_is_asked_where_the_first_is_away(cluster, agent):
    plug(cluster, f"127.0.0.2,[::1],127.0.0.1:{agent.port}")
    assert cluster.check("srun", "--ipus=1", "echo", "here") == "here\n"


def test_an_agent_that_hangs_up_is_asked_again(cluster, agent):
    agent.answer = lambda request: binding(request) if len(agent.requests) > 3 else None
    assert cluster.check("srun", "--ipus=1", "echo", "here") == "here\n"
    assert len(agent.requests) == 4
    assert len({request.nonce for request in agent.requests}) == 4


def test_a_wait_in_vain_ends_with_a_sentence_and_no_task(cluster, agent):
    plug(cluster, "127.0.0.1:1", wait_s=2)
    done = cluster.run("srun", "-n2", "--ipus=2", "echo", "ran", user=USER)
    assert (done.returncode, done.stdout) == (121, "")
    assert "the partition was not ready within 2 s: no agent answers at 127.0.0.1 port 1" in done.stderr
    agent.answer = Gate()
    plug(cluster, f"127.0.0.1:{agent.port}", wait_s=2)
    job = cluster.sbatch("echo ran", "--ipus=1", user=USER)
    assert cluster.wait_job(job, "FAILED")["ExitCode"] == "122:0"  # RequeueExit would have it wait again
    said = f"moorings: job {job}: the partition was not ready within 2 s: "
    assert cluster.output(job).startswith(said)
    assert "ran" not in cluster.output(job)


def test_a_refusal_reaches_the_human_and_nothing_runs(cluster, agent):
    agent.answer = lambda _: refused("the partition could not be created: IPU 3 is broken")
    job = cluster.sbatch("echo ran", "--ipus=1", user=USER)
    assert cluster.wait_job(job, "FAILED")["ExitCode"] == "121:0"
    said = "gets no partition: the partition could not be created: IPU 3 is broken\n"
    assert f"moorings: job {job} {said}" in cluster.output(job)  # slurmstepd may add that a task ended on it
    done = cluster.run("srun", "-n4", "--ipus=4", "echo", "ran", user=USER)
    assert (done.returncode, done.stdout, done.stderr.count(said)) == (121, "", 1)


@pytest.mark.slow
def test_the_time_limit_ends_a_job_that_waits(cluster, agent):
    plug(cluster, f"127.0.0.1:{agent.port}", wait_s=600)
    agent.answer = Gate()
    job = cluster.sbatch("echo ran", "--ipus=1", "--time=1")
    cluster.wait_job(job, "TIMEOUT", timeout=110)
    assert "ran\n" not in cluster.output(job)


# -- whom to trust -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile(cluster) -> dict[str, str]:
    """What jobs print that got a hostile answer, by the answer's name; all of them at once."""
    munge = Munge(str(cluster.munge_socket), str(programs.munge_library()))
    expected: dict[int, str] = {}
    told = threading.Condition()

    def other_user(payload: bytes) -> bytes:
        command = programs.munged().parents[1] / "bin" / "munge"
        words = ["setpriv", "--reuid=games", "--regid=games", "--clear-groups", str(command)]
        done = subprocess.run(
            [*words, f"--socket={cluster.munge_socket}"],
            input=payload,
            env=cluster.env,
            capture_output=True,
            check=True,
        )
        return done.stdout.strip() + b"\n"

    def answer(request: BindRequest) -> BindReply | bytes:
        with told:
            assert told.wait_for(lambda: request.job in expected, patient(30))
        name = expected[request.job]
        good = written(head(request), GOOD)
        match name:
            case "no credential":
                return b"status=ok\n"
            case "a credential of another user":
                return other_user(good)
            case "a replayed credential":
                line = liar.sealed(good)
                munge.decode(line.decode().strip())
                return line
            case "an endless line":
                return b"x" * (1 << 21)
            case "half a line":
                return liar.sealed(good)[:-20]
            case "a NUL":
                return liar.sealed(good + b"\0")
            case "an honest answer":
                return liar.sealed(good)
            case _:
                return liar.sealed(HOSTILE[name](request))

    with NodeAgent(munge, answer) as liar:
        plug(cluster, f"127.0.0.1:{liar.port}", wait_s=3)
        for name in (*WIRE, "an honest answer", *HOSTILE):
            job = cluster.sbatch("echo ran", "--ipus=1", "--overcommit", user=USER)
            with told:
                expected[job] = name
                told.notify_all()
        until(lambda: cluster.squeue() == [], 90)
        return {name: cluster.output(job) for job, name in expected.items()}


WIRE = (
    "no credential",
    "a credential of another user",
    "a replayed credential",
    "an endless line",
    "half a line",
    "a NUL",
)


@pytest.mark.parametrize("name", [*WIRE, *HOSTILE])
def test_nothing_runs_on_a_hostile_answer(hostile, name):
    told = [line for line in hostile[name].splitlines() if "to unblock task" not in line]  # Slurm's, of its haste
    assert len(told) == 1, "what the job would print is another line"
    assert re.match(r"moorings: job \d+\b", told[0])
    assert not Path("/tmp/moorings-hostile").exists()


def test_the_hostile_answers_are_near_misses(hostile):
    assert hostile["an honest answer"] == "ran\n"


@pytest.mark.parametrize("how", ["a user's", "writable by all", "a link", "a file", "without its parent"])
def test_a_folder_that_others_could_change_is_not_used(cluster, agent, folder, how):
    if how == "a link":
        folder.symlink_to(cluster.work)
    elif how == "a file":
        folder.touch()
    elif how != "without its parent":
        folder.mkdir()
        folder.chmod(0o777 if how == "writable by all" else 0o755)
        if how == "a user's":
            os.chown(folder, 5, 60)
    path = folder / "x" / "y" if how == "without its parent" else folder
    agent.answer = lambda request: binding(request, folder=str(path))
    before = sorted(cluster.work.iterdir())
    done = cluster.run("srun", "--ipus=1", "echo", "ran", user=USER)
    assert (done.returncode, done.stdout) == (121, "")
    assert f"{path} cannot be used for files" in done.stderr
    assert sorted(cluster.work.iterdir()) == before
    if folder.is_symlink() or folder.is_file():
        folder.unlink()


def test_what_a_killed_step_left_is_swept_by_the_next_and_a_live_ones_is_not(cluster, agent, folder):
    agent.answer = lambda request: binding(request, folder=str(folder))
    dead, live, other = (
        cluster.sbatch("echo up; exec sleep 100", "--ipus=1", "-w", node) for node in ("n1", "n1", "n2")
    )
    folders = {job: f"{job}.{BATCH_STEP}.{node}" for job, node in ((dead, "n1"), (live, "n1"), (other, "n2"))}
    until(lambda: all(cluster.output(job) == "up\n" for job in folders))
    assert left(folder) == sorted(folders.values())
    kill_step(cluster, "n1", dead, "batch")
    assert folders[dead] in left(folder)
    cluster.check("srun", "-w", "n2", "--ipus=1", "true")
    assert folders[dead] in left(folder)  # another node's
    cluster.check("srun", "-w", "n1", "--ipus=1", "true")
    assert left(folder) == sorted([folders[live], folders[other]])
    cluster.check("scancel", str(live), str(other))
    until(lambda: left(folder) == [])


def kill_step(cluster, node: str, job: int, step: str) -> None:
    """SIGKILL the slurmstepd of a step; other clusters of this machine have jobs of that id too."""
    outside = cluster.processes[node].pid
    (first,) = _read(Path(f"/proc/{outside}/task/{outside}/children")).split()
    ours = Path(f"/proc/{first}/ns/pid").readlink()  # a node has a namespace of its own
    (found,) = (
        entry.name
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit()
        and f"slurmstepd: [{job}.{step}]" in _read(entry / "cmdline")
        and (entry / "ns" / "pid").readlink() == ours
    )
    os.kill(int(found), signal.SIGKILL)
    until(lambda: not Path(f"/proc/{found}").exists())


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


@pytest.mark.parametrize(
    "extra", ["wait=0", "max=x", "munge_socket=relative", "run_dir=run", "agent_uid=-1", "colour=blue", "agent=:1"]
)
def test_wrong_settings_stop_jobs_with_ipus_and_no_other(cluster, agent, extra):
    plug(cluster, f"127.0.0.1:{agent.port}", extra=extra)
    done = cluster.run("srun", "--ipus=1", "echo", "ran")
    assert (done.returncode, done.stdout) == (121, "")
    assert "settings in plugstack.conf are wrong" in done.stderr
    assert cluster.check("srun", "echo", "ran") == "ran\n"


def test_a_node_without_munge_says_so(cluster, agent):
    plug(cluster, f"127.0.0.1:{agent.port}", wait_s=2, extra=f"munge_socket={cluster.folder}/none")
    done = cluster.run("srun", "--ipus=1", "echo", "ran")
    assert (done.returncode, done.stdout) == (121, "")
    assert "munge: " in done.stderr
