from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.slurm.cluster import SlurmCluster, new_folder
from tests.slurm.spank import LICENSES, LIMITS, SOURCES, build_plugin, copy_lua, plug
from tests.waiting import until

USER = "games"
SIGNALS = re.findall(r"\w+", "HUP INT QUIT ABRT ALRM TERM USR1 USR2 URG CONT TSTP TTIN TTOU XCPU")
RECORD = re.compile(r" AdminComment=moorings:1 nonce=([0-9a-f]{16}) ipus=(\d+) gcds=(\d+) replicas=(\d+) ")
REFUSALS = {
    ("--ipus=256",): "--ipus=256: the number of IPUs must be one of 1, 2, 4, 8, 16, 32, 64, 128",
    (
        "--ipus=4",
        "-n3",
    ): "--ipus=4 with 3 tasks: each task has its own GCD, so --ntasks must be a power of two from 1 to 4",
    ("--ipus=4", "-n8"): "--ipus=4 with 8 tasks",
    ("--ipus=2", "-N2", "--ntasks-per-node=2"): "--ipus=2 with 4 tasks",
    ("--ipus=128", "-n1"): "an IPU-Link domain has 64 IPUs and a GCD lies in one, so --ntasks must be 2 or more",
    (
        "--ipus=4",
        "-n2",
        "--num-replicas=3",
    ): "--num-replicas=3: replicas of the whole job must be a multiple of its 2 tasks",
    ("--ipus=4", "-n2", "--num-replicas=1"): "--num-replicas=1",
    ("--ipus=4", "-n2", "--num-replicas=8"): "that divides its 4 IPUs",
    ("--num-replicas=2",): "--num-replicas needs --ipus=N",
    ("--ipu-preemptible",): "--ipu-preemptible needs --ipus=N",
    ("-L", "ipu:1"): "the license 'ipu:1' cannot be asked for by hand: use --ipus=N",
    ("-L", "matlab:1,ipu_16:4"): "the license 'ipu_16:4'",
    ("-L", "matlab:1;ipu_16"): "the license 'ipu_16'",
    ("-L", "moorings_gate:1"): "the license 'moorings_gate:1'",
    ("-L", "ipu@server:1"): "the license 'ipu@server:1'",
    ("-L", "IPU:1"): "the license 'IPU:1'",
    ("--ipus=2", "-L", "ipu:2"): "the license 'ipu:2'",
    ("-L", "(ipu:1)"): "the license '(ipu:1)'",
    ("-L", "matlab:1|ipu_2:2"): "the license 'ipu_2:2'",
    ("-L", "ipu_2:2|matlab:1,fluent:1"): "the license 'ipu_2:2'",
    (
        "--ipus=2",
        "-L",
        "matlab:1|fluent:1",
    ): "the licenses 'matlab:1|fluent:1': one or the other ('|') cannot be had beside IPUs",
}


@pytest.fixture(scope="module")
def cluster(slurm_release: str) -> Iterator[SlurmCluster]:
    cluster = SlurmCluster(
        new_folder(),
        2,
        release=slurm_release,
        licenses=LICENSES,
        features="moorings,a,b",
        extra_conf="JobSubmitPlugins=lua",
    )
    build_plugin(cluster)
    copy_lua(cluster)
    plug(cluster, "127.0.0.1:1")
    with cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _quiet(cluster: SlurmCluster) -> Iterator[None]:
    yield
    cluster.write_conf("moorings_limits.lua", LIMITS)
    cluster.settle()


def held(cluster: SlurmCluster, *flags: str) -> int:
    return cluster.sbatch("true", "--hold", *flags, user=USER)


def full_record(cluster: SlurmCluster, job: int) -> tuple[str, ...]:
    """Nonce, IPUs, GCDs and replicas."""
    text = cluster.check("scontrol", "-o", "show", "job", str(job))
    found = RECORD.search(text)
    assert found, text
    return found.groups()


def record(cluster: SlurmCluster, job: int) -> tuple[int, ...]:
    """IPUs, GCDs and replicas."""
    return tuple(map(int, full_record(cluster, job)[1:]))


# -- submitting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--ipus=1"], (1, 1, 1)),
        (["--ipus=4"], (4, 1, 1)),
        (["--ipus=4", "-n2"], (4, 2, 2)),
        (["--ipus=4", "-n2", "--num-replicas=4"], (4, 2, 4)),
        (["--ipus=8", "-N2"], (8, 2, 2)),
        (["--ipus=8", "-N2", "--ntasks-per-node=4"], (8, 8, 8)),
        (["--ipus=64", "-n64", "--overcommit"], (64, 64, 64)),
    ],
)
def test_what_was_asked_for_is_recorded(cluster, flags, expected):
    assert record(cluster, held(cluster, *flags)) == expected


@pytest.mark.parametrize(
    ("flag", "signal"),
    [("--ipu-preemptible", "USR1"), ("--ipu-preemptible=TERM", "TERM"), ("--ipu-preemptible=B:USR2", "B:USR2")],
)
def test_how_a_job_is_asked_to_make_room_is_recorded(cluster, flag, signal):
    job = held(cluster, "--ipus=2", flag, "--requeue")
    assert f"replicas=1 preemptible={signal} " in cluster.check("scontrol", "-o", "show", "job", str(job))
    assert "preemptible" not in cluster.check("scontrol", "-o", "show", "job", str(held(cluster, "--ipus=2")))


@pytest.mark.parametrize(
    "word",
    [
        "usr1",
        "B:",
        "USR1@60",
        "X" * 10,
        "U",
        "B:B:USR1",
        "USR1 asked=0@1,1",
        *("ZZTOP", "B:ZZTOP", "KILL", "B:STOP", "PIPE", "SIGUSR1", "USR1 USR2", "US"),
    ],
)
def test_a_signal_that_is_none_is_refused(cluster, word):
    done = cluster.run("sbatch", "--ipus=2", f"--ipu-preemptible={word}", input="#!/bin/sh\n", user=USER)
    assert done.returncode != 0
    assert "say which signal warns its steps" in done.stderr.replace("the job's steps", "its steps")
    assert f"; one of {' '.join(SIGNALS)}\n" in done.stderr


@pytest.mark.parametrize("word", ["ZZTOP", "KILL", "B:STOP", "SIGUSR1", "PIPE"])
def test_the_submit_script_does_not_rely_on_the_plugin(cluster, tmp_path, word):
    source = (SOURCES / "moorings_spank.c").read_text()
    assert source.count('TTOU XCPU"') == 1
    (tmp_path / "lets.c").write_text(source.replace('TTOU XCPU"', f'TTOU XCPU {word.removeprefix("B:")}"'))
    build_plugin(cluster, tmp_path / "lets.c")
    try:
        done = cluster.run("sbatch", "--ipus=2", f"--ipu-preemptible={word}", input="#!/bin/sh\n", user=USER)
    finally:
        build_plugin(cluster)
    assert done.returncode != 0
    assert f"say which signal warns its steps (USR1), or its batch script (B:USR1); one of {SIGNALS[0]} " in done.stderr


@pytest.mark.parametrize("signal", SIGNALS)
def test_a_signal_that_warns_is_one_that_scancel_knows(cluster, signal):
    assert "Unknown job signal" in cluster.run("scancel", "--signal=ZZTOP", "99999").stderr
    assert "Invalid job id" in cluster.run("scancel", f"--signal={signal}", "99999").stderr


def test_only_a_job_that_may_be_requeued_can_make_room(cluster):
    words = ("sbatch", "--ipus=2", "--ipu-preemptible")
    done = cluster.run(*words, "--no-requeue", input="#!/bin/sh\n", user=USER)
    assert done.returncode != 0
    assert "so it needs --requeue" in done.stderr


def test_only_a_batch_job_can_make_room(cluster):
    done = cluster.run("srun", "--ipus=2", "--ipu-preemptible", "true", user=USER)
    assert done.returncode != 0
    assert "only a batch job can make room and go on later" in done.stderr


def test_a_job_takes_its_ipus_of_every_twin_up_to_its_size(cluster):
    assert cluster.job(held(cluster, "--ipus=1"))["Licenses"] == "ipu:1,ipu_1:1"
    assert cluster.job(held(cluster, "--ipus=8"))["Licenses"] == "ipu:8,ipu_1:8,ipu_2:8,ipu_4:8,ipu_8:8"


def test_a_jobs_own_licenses_stay(cluster):
    job = held(cluster, "--ipus=2", "-L", "matlab:2")
    assert cluster.job(job)["Licenses"] == "matlab:2,ipu:2,ipu_1:2,ipu_2:2"
    assert cluster.job(held(cluster, "-L", "matlab:1"))["Licenses"] == "matlab:1"


@pytest.mark.parametrize("between", [",", ";", ",,", ";,"])
def test_licenses_beside_ipus_are_all_taken(cluster, between):
    plug(cluster, "127.0.0.1:1", wait_s=600)
    job = cluster.sbatch("true", "--ipus=2", "-L", f"matlab:1{between}fluent:2{between[0]}", user=USER)
    cluster.wait_job(job, "RUNNING")
    used = {name: each.used for name, each in cluster.licenses().items() if each.used}
    assert used == {"matlab": 1, "fluent": 2, "ipu": 2, "ipu_1": 2, "ipu_2": 2}


def test_one_license_or_the_other_is_a_plain_jobs_own_affair(cluster, slurm_release):
    done = cluster.run("sbatch", "--hold", "-L", "matlab:1|fluent:1", input="#!/bin/sh\n", user=USER)
    assert "moorings" not in done.stderr
    assert (done.returncode == 0) == (slurm_release == "26.05")  # 22.05 and 24.11 know no such list


def test_each_job_has_its_own_nonce(cluster):
    assert len({full_record(cluster, held(cluster, "--ipus=1"))[0] for _ in range(20)}) == 20


def test_a_plain_job_is_left_alone(cluster):
    fields = cluster.job(held(cluster, "-n2"))
    assert fields["Licenses"] == "(null)"
    assert "AdminComment" not in fields


def test_a_job_waits_for_its_licenses_and_a_smaller_one_does_not(cluster):
    plug(cluster, "127.0.0.1:1", wait_s=600)
    flags = ("flags=any_nodes,ignore_jobs", "licenses=ipu_4:61,moorings_gate:1")
    cluster.check("scontrol", "create", "reservation=r", "starttime=now", "duration=10", "user=root", *flags)
    waiting, small = cluster.sbatch("true", "--ipus=4"), cluster.sbatch("true", "--ipus=2")
    cluster.wait_job(small, "RUNNING")
    until(lambda: cluster.job(waiting)["Reason"] == "Licenses")
    assert cluster.licenses()["ipu"].used == 2


@pytest.mark.parametrize("flags", REFUSALS, ids=" ".join)
def test_a_wish_that_cannot_be_is_refused_with_what_is_allowed(cluster, flags):
    for command in ("sbatch", "srun", "salloc"):
        done = cluster.run(command, *flags, *([] if command == "sbatch" else ["true"]), input="#!/bin/sh\n", user=USER)
        assert done.returncode != 0
        assert REFUSALS[flags] in done.stderr
    assert cluster.squeue() == []


@pytest.mark.parametrize("words", [["--ipus=2", "true", ":", "true"], ["true", ":", "--ipus=2", "true"]])
def test_a_heterogeneous_job_has_no_ipus(cluster, words):
    done = cluster.run("srun", *words, user=USER)
    assert done.returncode != 0
    assert "a heterogeneous job cannot have IPUs; submit the part that needs them as a job of its own" in done.stderr
    assert cluster.run("srun", "-n1", "true", ":", "-n1", "true", user=USER).returncode == 0


# -- changing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", ["licenses=", "licenses=matlab:1", "licenses=matlab:1|ipu:2", "numtasks=2", "licenses=ipu:64"]
)
def test_a_user_cannot_change_what_opens_the_gate(cluster, change):
    job = held(cluster, "--ipus=2", "-L", "matlab:1")
    done = cluster.run("scontrol", "update", f"jobid={job}", change, user=USER)
    assert done.returncode != 0
    assert cluster.job(job)["Licenses"] == "matlab:1,ipu:2,ipu_1:2,ipu_2:2"
    assert cluster.job(job)["NumTasks"] == "1"


def test_a_user_cannot_forbid_the_requeue_of_a_job_that_borrows(cluster):
    job = held(cluster, "--ipus=2", "--ipu-preemptible", "--requeue")
    done = cluster.run("scontrol", "update", f"jobid={job}", "requeue=0", user=USER)
    assert done.returncode != 0
    assert cluster.job(job)["Requeue"] == "1"
    cluster.check("scontrol", "update", f"jobid={job}", "requeue=1", "comment=mine", user=USER)
    cluster.check("scontrol", "update", f"jobid={job}", "requeue=0")
    assert cluster.job(job)["Requeue"] == "0", "an admin may"
    other = held(cluster, "--ipus=2", "--requeue")
    cluster.check("scontrol", "update", f"jobid={other}", "requeue=0", user=USER)


def test_a_running_jobs_licenses_stay_taken(cluster):
    plug(cluster, "127.0.0.1:1", wait_s=600)
    job = cluster.sbatch("true", "--ipus=2", user=USER)
    cluster.wait_job(job, "RUNNING")
    assert cluster.run("scontrol", "update", f"jobid={job}", "licenses=", user=USER).returncode != 0
    assert cluster.licenses()["ipu"].used == 2


def test_a_user_cannot_add_ipus_to_a_job(cluster):
    job = held(cluster)
    changes = ("licenses=ipu:1", "licenses=matlab:1,ipu_2:1", "licenses=matlab:1|ipu:1", "licenses=ipu:1|matlab:1")
    for change in (*changes, "licenses=(ipu:1)", "admincomment=moorings:1 nonce=0"):
        assert cluster.run("scontrol", "update", f"jobid={job}", change, user=USER).returncode != 0
    assert cluster.job(job)["Licenses"] == "(null)"


def test_other_changes_are_nobodys_business(cluster):
    job = held(cluster, "--ipus=2")
    for change in ("timelimit=5", "comment=mine", "nice=10"):
        cluster.check("scontrol", "update", f"jobid={job}", change, user=USER)
    plain = held(cluster)
    cluster.check("scontrol", "update", f"jobid={plain}", "licenses=matlab:1", user=USER)
    cluster.check("scontrol", "update", f"jobid={plain}", "numtasks=2", user=USER)


def test_root_may_change_everything(cluster):
    job = held(cluster, "--ipus=2")
    cluster.check("scontrol", "update", f"jobid={job}", "licenses=ipu:2,ipu_1:2", "admincomment=moorings:1 by hand")
    assert cluster.job(job)["Licenses"] == "ipu:2,ipu_1:2"


# -- nodes with the plugin ---------------------------------------------------------------------------------------------


@pytest.fixture
def kept_to_nodes(cluster: SlurmCluster) -> Iterator[None]:
    """Jobs are kept to n1: n2 has not the feature of nodes that have the plugin."""
    cluster.write_conf("moorings_limits.lua", LIMITS.replace("{", "{ feature = 'moorings',", 1))
    for node, features in (("n1", "moorings,a"), ("n2", "a,b")):
        cluster.check("scontrol", "update", f"nodename={node}", f"activefeatures={features}")
    yield
    cluster.check("scontrol", "update", "nodename=n[1-2]", "activefeatures=moorings,a,b")


FORMS = {  # of a constraint, and the nodes that it names without us
    "": ("n1", "n2"),
    "a": ("n1", "n2"),
    "b": ("n2",),
    "a&b": ("n2",),
    "a|b": ("n1", "n2"),
    "b|a": ("n1", "n2"),
    "b&a|a": ("n1", "n2"),
    "(a&b)|a": ("n1", "n2"),
    "(a|b)&(b|a)": ("n1", "n2"),
    "a,b": ("n2",),
    "[a|b]": ("n1", "n2"),
    "moorings|b": ("n1", "n2"),
}


@pytest.mark.usefixtures("kept_to_nodes")
def test_a_constraint_of_any_form_is_kept_to_nodes_with_the_plugin(cluster: SlurmCluster) -> None:
    for form, nodes in FORMS.items():
        words = [f"--constraint={form}"] if form else []
        for node in ("n1", "n2"):
            plain = cluster.run("sbatch", "--parsable", "-w", node, *words, input="#!/bin/sh\n", user=USER)
            ours = cluster.run("sbatch", "--parsable", "-w", node, "--ipus=1", *words, input="#!/bin/sh\n", user=USER)
            assert (plain.returncode == 0) == (node in nodes), f"{form} {node}: {plain.stderr}"
            assert (ours.returncode == 0) == (node in nodes and node == "n1"), f"{form} {node}: {ours.stderr}"


@pytest.mark.usefixtures("kept_to_nodes")
def test_a_constraint_is_kept_to_nodes_with_the_plugin_when_it_is_changed(cluster: SlurmCluster) -> None:
    job = held(cluster, "--ipus=2", "--constraint=a", "--prefer=b|a")
    assert (cluster.job(job)["Features"], cluster.job(job)["Prefer"]) == ("a&moorings", "b|a&moorings")
    for change, expected in (("a|b", "a|b&moorings"), ("a&moorings", "a&moorings"), ("", "moorings")):
        for user in (USER, None):
            cluster.check("scontrol", "update", f"jobid={job}", f"features={change}", user=user)
            assert cluster.job(job)["Features"] == expected
    plain = held(cluster, "--constraint=a")
    cluster.check("scontrol", "update", f"jobid={plain}", "features=b", user=USER)
    assert cluster.job(plain)["Features"] == "b"


@pytest.mark.usefixtures("kept_to_nodes")
def test_counts_of_nodes_in_a_constraint_are_refused(cluster: SlurmCluster) -> None:
    job = held(cluster, "--ipus=2")
    for form in ("a*1", "[a*1&b*1]"):
        done = cluster.run("sbatch", "--ipus=1", f"--constraint={form}", input="#!/bin/sh\n", user=USER)
        assert f"the constraint '{form}': nodes cannot be counted (*) beside IPUs; say --nodes=N" in done.stderr
        assert cluster.run("scontrol", "update", f"jobid={job}", f"features={form}", user=USER).returncode != 0
    assert cluster.job(job)["Features"] == "moorings"
    held(cluster, "--constraint=a*1")


# -- faults ------------------------------------------------------------------------------------------------------------


def test_new_limits_count_at_once(cluster):
    cluster.write_conf("moorings_limits.lua", "return { max = 4 }")
    done = cluster.run("sbatch", "--ipus=8", input="#!/bin/sh\n")
    assert "must be one of 1, 2, 4\n" in done.stderr
    assert record(cluster, held(cluster, "--ipus=4")) == (4, 1, 1)


@pytest.mark.parametrize("text", ["", "return {", "return 7", "error('x')", "return { max = 'x' }", None])
def test_limits_that_cannot_be_read_leave_the_last_ones(cluster, text):
    held(cluster, "--ipus=4")  # reads the good ones
    if text is None:
        (cluster.etc / "moorings_limits.lua").unlink()
    else:
        cluster.write_conf("moorings_limits.lua", text)
    assert record(cluster, held(cluster, "--ipus=4")) == (4, 1, 1)
    assert cluster.run("sbatch", "--ipus=256", input="#!/bin/sh\n").returncode != 0


def test_a_bug_of_ours_refuses_jobs_with_ipus_and_no_other(cluster):
    cluster.write_conf("moorings_limits.lua", "return { max = 64, domain = 'broken' }")
    done = cluster.run("sbatch", "--ipus=4", input="#!/bin/sh\n")
    assert done.returncode != 0
    assert "an error of its own, which slurmctld's log tells" in done.stderr
    assert "moorings_submit" in cluster.log("slurmctld")
    held(cluster)


def test_a_sites_own_script_goes_on_after_ours(cluster):
    ours = (cluster.etc / "job_submit.lua").read_text()
    cluster.write_conf(
        "job_submit.lua",
        f"""
        package.path = "{cluster.etc}/?.lua;" .. package.path
        local moorings = require("moorings_submit")
        function slurm_job_submit(desc, parts, uid)
            local rc = moorings.submit(desc, parts, uid)
            if rc ~= slurm.SUCCESS then return rc end
            desc.comment = "the site's"
            return slurm.SUCCESS
        end
        function slurm_job_modify(desc, job, parts, uid)
            return moorings.modify(desc, job, parts, uid)
        end
        return slurm.SUCCESS
        """,
    )
    try:
        job = held(cluster, "--ipus=2")
        assert cluster.job(job)["Comment"] == "the site's"
        assert record(cluster, job) == (2, 1, 1)
        assert cluster.run("sbatch", "--ipus=4", "-n3", input="#!/bin/sh\n").returncode != 0
        assert cluster.run("scontrol", "update", f"jobid={job}", "licenses=", user=USER).returncode != 0
    finally:
        cluster.write_conf("job_submit.lua", ours)
