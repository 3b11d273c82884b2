"""Work elsewhere as steps of real jobs: what people see in squeue and sacct, and what is left after a kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from moorings.slurm.surrogate import mirror
from moorings.slurm.surrogate.mirror import SlurmMirror
from tests.debian import ROOT
from tests.slurm.admin import MOOR
from tests.slurm.cluster import SlurmCluster, new_folder
from tests.waiting import patient, until

COMPILE, TRAIN = "wsjob-vpd7iavtknrtvgonhe7mog", "wsjob-z3pbtbl8sgmfqtivpazrtn-csx1"
SEEDS_FORMAT = "JobID,JobName%34,Account,State,CPUTime,AllocCPUS,AllocNodes,ExitCode"
FAR_S = 300  # longer than any test


def _python() -> tuple[str, str | None]:
    """A Python that an ordinary user may run, and that user; else ours, which may lie in root's home, and root."""
    new_enough = ("-c", "import sys; sys.exit(sys.version_info < (3, 11))")
    for python in (sys.executable, "/usr/bin/python3"):
        try:  # not setpriv: what it starts keeps root's right to enter any folder
            done = subprocess.run([python, *new_enough], user="games", group="games", extra_groups=[], check=False)
        except OSError:
            continue
        if done.returncode == 0:
            return python, "games"
    return sys.executable, None


PYTHON, USER = _python()


def prepared(cluster: SlurmCluster) -> SlurmCluster:
    """With the client and what it needs where that user can read it: a checkout may be root's alone."""
    if cluster.programs.chrooted:
        cluster.remove()
        pytest.skip(f"Slurm {cluster.release} runs jobs in a chroot here, where there is no Python of ours")
    shutil.copytree(ROOT / "src" / "moorings", cluster.folder / "src" / "moorings")
    shutil.copy(ROOT / "tests" / "slurm" / "surrogates.py", cluster.folder / "src")
    return cluster


@pytest.fixture(scope="module")
def cluster(slurm_release: str) -> Iterator[SlurmCluster]:
    conf = "KillWait=5"
    with prepared(SlurmCluster(new_folder(), 2, accounting=True, extra_conf=conf, release=slurm_release)) as cluster:
        yield cluster


@pytest.fixture
def slurm(cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    yield cluster
    cluster.settle()


def client(*words: str) -> str:
    """A line of a script: the client, in the foreground."""
    return f"PYTHONPATH=$SLURM_SUBMIT_DIR/../src {PYTHON} -m surrogates {' '.join(words)}"


def story(text: str) -> list[dict]:
    """What a client has told, so far."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]


def events(slurm: SlurmCluster, job: int, what: str) -> list[dict]:
    return [each for each in story(slurm.output(job)) if each["what"] == what]


def live_steps(slurm: SlurmCluster, job: int) -> dict[str, str]:
    """Steps that run now, by their name, as ``squeue -s`` has them."""
    lines = slurm.check("squeue", "-h", "-s", "-j", str(job), "-o", "%i|%j").splitlines()
    found = [line.split("|") for line in lines]
    return {name: step for step, name in found if name not in ("batch", "interactive", "extern")}


def wait_step(slurm: SlurmCluster, job: int, name: str) -> str:
    """The id of a step, as soon as it runs and its placeholder hears signals."""

    def found() -> str | None:
        assert slurm.job(job)["JobState"] in ("PENDING", "RUNNING"), slurm.output(job)
        return live_steps(slurm, job).get(name)

    step = until(found, what=lambda: slurm.output(job))
    until(lambda: any(f"SLURM_STEP_ID={step.split('.')[1]}".encode() in _environ(pid) for pid in _placeholders(job)))
    return step


def _placeholders(job: int) -> list[int]:
    """Processes that stand for work of a job, and wait in their read."""
    return [pid for pid in _with_words(b"moorings-surrogate") if f"SLURM_JOB_ID={job}".encode() in _environ(pid)]


def _sruns(job: int) -> list[int]:
    return [pid for pid in _with_words(b"srun") if f"--jobid={job}".encode() in _words(pid)]


def _with_words(word: bytes) -> list[int]:
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if any(each.rpartition(b"/")[2] == word for each in _words(pid))]


def _words(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def finish(slurm: SlurmCluster, job: int, timeout: float = 60) -> dict[str, str]:
    """The fields of a job that ends well."""
    fields = slurm.wait_job(job, ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"), timeout)
    assert fields["JobState"] == "COMPLETED", slurm.output(job)
    return fields


def ended_steps(slurm: SlurmCluster, job: int, *names: str) -> dict[str, dict[str, str]]:
    """The rows of steps in the accounting, by name, as soon as all have ended there."""

    def found() -> dict[str, dict[str, str]] | None:
        rows = {row["JobName"]: row for row in slurm.sacct(job)}
        there = [rows[name]["State"] != "RUNNING" for name in names if name in rows]
        return rows if len(there) == len(names) and all(there) else None

    return until(found, what=lambda: f"{slurm.sacct(job)}\n{slurm.output(job)}")


def states(slurm: SlurmCluster, job: int, *names: str) -> list[str]:
    rows = ended_steps(slurm, job, *names)
    return [rows[name]["State"].split(" ")[0] for name in names]


def seconds(row: dict[str, str]) -> float:
    return (datetime.fromisoformat(row["End"]) - datetime.fromisoformat(row["Start"])).total_seconds()


# -- what people see ---------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_under_sbatch_each_work_is_a_step_of_its_name_and_length(slurm):
    script = client(f"{COMPILE}:2:ok", f"{TRAIN}:6:ok")
    job = slurm.sbatch(script, "-J", "gpt2-small-test", "--nodes=1", "--tasks=1", "--cpus-per-task=4", user=USER)
    wait_step(slurm, job, TRAIN)
    wanted = [
        (f"{job}", "gpt2-small-test", "RUNNING"),
        (f"{job}.batch", "batch", "RUNNING"),
        (f"{job}.0", COMPILE, "COMPLETED"),
        (f"{job}.1", TRAIN, "RUNNING"),
    ]

    def told() -> list[list[str]]:
        lines = slurm.check("sacct", "-n", "-j", str(job), f"--format={SEEDS_FORMAT}").splitlines()
        return [line.split() for line in lines]

    until(lambda: [(row[0], row[1], row[3]) for row in told()] == wanted, what=lambda: f"{told()}")
    rows = told()
    assert [row[5:] for row in rows] == [["4", "1", "0:0"]] * 4  # every step shows the job's CPUs
    assert finish(slurm, job)["ExitCode"] == "0:0"
    assert states(slurm, job, COMPILE, TRAIN) == ["COMPLETED", "COMPLETED"]
    steps = ended_steps(slurm, job, COMPILE, TRAIN)
    assert abs(seconds(steps[COMPILE]) - 2) <= 2
    assert abs(seconds(steps[TRAIN]) - 6) <= 2
    assert events(slurm, job, "warning") == events(slurm, job, "cancel") == []


def test_in_a_shell_of_salloc_too(slurm):
    script = f"{client(f'{COMPILE}:0.2:ok', f'{TRAIN}:0.2:failed')}\n"
    done = slurm.run(
        "salloc", "--cpus-per-task", "2", "--tasks", "1", input=script
    )  # a shell of root's: others have none
    assert done.returncode == 0, done.stderr
    job = int(done.stderr.partition("Granted job allocation ")[2].split()[0])
    assert states(slurm, job, "interactive", COMPILE, TRAIN) == ["COMPLETED", "COMPLETED", "FAILED"]
    assert [row["JobID"] for row in slurm.sacct(job)] == [f"{job}", f"{job}.0", f"{job}.1"]


def test_work_that_fails_is_a_step_that_failed_and_hurts_nothing_else(slurm):
    job = slurm.sbatch(client("first:0.2:failed", "second:0.2:ok"), user=USER)
    finish(slurm, job)
    rows = ended_steps(slurm, job, "first", "second")
    assert [(rows[name]["State"], rows[name]["ExitCode"]) for name in ("first", "second")] == [
        ("FAILED", "1:0"),
        ("COMPLETED", "0:0"),
    ]


def test_under_srun_there_is_none(slurm):
    lines = [
        f"PYTHONPATH=$SLURM_SUBMIT_DIR/../src srun {PYTHON} -m surrogates no-step:0.3:ok",
        f"srun {MOOR} slurm surrogate -- true; echo refused $?",
        f"srun {MOOR} slurm surrogate --if-slurm -- sh -c 'exit 3'; echo plain $?",
    ]
    job = slurm.sbatch("\n".join(lines), "-n1")
    finish(slurm, job)
    assert [each["none"] for each in events(slurm, job, "mirror")] == [True]
    assert "this runs under srun" in slurm.output(job)
    assert [line for line in slurm.output(job).splitlines() if line.startswith(("refused", "plain"))] == [
        "refused 2",
        "plain 3",
    ]
    rows = until(lambda: [row for row in slurm.sacct(job) if row["State"] in ("COMPLETED", "FAILED")][4:] or None)
    assert rows is not None
    assert [row["JobID"].partition(".")[2] for row in slurm.sacct(job)] == ["", "batch", "0", "1", "2"]


def test_a_job_that_a_step_submits_is_a_place_of_its_own(slurm):
    inner = slurm.work / "inner.sh"
    inner.write_text(f"#!/bin/bash\n{client('inner-step:0.2:ok')}\n")
    outer = slurm.sbatch(f"srun sbatch --parsable {inner}", "-n1", user=USER)
    slurm.wait_job(outer, "COMPLETED")
    job = int(slurm.output(outer).split()[0])
    finish(slurm, job)
    assert states(slurm, job, "inner-step") == ["COMPLETED"]


def test_two_at_once_in_a_job_of_one_task_with_limits_on_memory(slurm):
    job = slurm.sbatch(client("one:3:ok", "+two:3:failed"), "--tasks=1", "--mem-per-cpu=100", user=USER)
    until(lambda: {"one", "two"} <= live_steps(slurm, job).keys(), what=lambda: slurm.output(job))
    finish(slurm, job)
    assert states(slurm, job, "one", "two") == ["COMPLETED", "FAILED"]


def test_beside_a_step_that_fills_the_job_and_on_several_nodes(slurm):
    script = f"srun -N2 -n2 --exclusive sleep {FAR_S} & sleep 1; {client('beside:0.5:ok')}; kill %1; wait"
    job = slurm.sbatch(script, "-N2", "-n2", user=USER)
    slurm.wait_job(job, ["COMPLETED", "FAILED"])
    assert states(slurm, job, "beside") == ["COMPLETED"]
    assert ended_steps(slurm, job, "beside")["beside"]["NodeList"] == slurm.job(job)["BatchHost"]


def test_a_step_adds_little_to_a_job(slurm):
    job = slurm.sbatch(client(*(f"s{number}:0.3:ok" for number in range(10))), user=USER)
    finish(slurm, job)
    begun, ended = events(slurm, job, "begin"), events(slurm, job, "end")
    added = [before["took"] + after["took"] for before, after in zip(begun, ended, strict=True)]
    print(f"surrogate_added_s_p50 {statistics.median(added):.4f} max {max(added):.4f}")
    assert states(slurm, job, *(f"s{number}" for number in range(10))) == ["COMPLETED"] * 10
    assert max(added) < patient(1), "it does not wait its time-out for each step"


# -- cancelled from outside --------------------------------------------------------------------------------------------


def test_scancel_of_the_step_cancels_the_work(slurm):
    job = slurm.sbatch(f"{client(f'work:{FAR_S}:ok')}; echo script goes on; sleep 1", user=USER)
    slurm.check("scancel", wait_step(slurm, job, "work"), user=USER)
    finish(slurm, job)
    assert [each["why"] for each in events(slurm, job, "cancel")] == ["its Slurm step was ended from outside"]
    assert "script goes on" in slurm.output(job)
    assert states(slurm, job, "work") == ["CANCELLED"]


@pytest.mark.parametrize("number", ["TERM", "INT", "USR1"])
def test_a_signal_to_the_step_cancels_the_work_which_ends_in_order(slurm, number):
    job = slurm.sbatch(client(f"work:{FAR_S}:ok"), user=USER)
    slurm.check("scancel", "-s", number, wait_step(slurm, job, "work"), user=USER)
    finish(slurm, job)
    assert [each["why"] for each in events(slurm, job, "cancel")] == [f"Slurm sent its step SIG{number}"]
    assert states(slurm, job, "work") == ["FAILED"]


def test_scancel_of_the_job_cancels_the_work_and_leaves_no_step(slurm):
    job = slurm.sbatch(client(f"work:{FAR_S}:ok"), user=USER)
    wait_step(slurm, job, "work")
    slurm.check("scancel", str(job), user=USER)
    slurm.wait_job(job, "CANCELLED")
    ends = until(lambda: events(slurm, job, "end"), what=lambda: slurm.output(job))
    assert len(ends) == 1  # it was told, by its step or, like all of the script, by SIGTERM
    until(lambda: live_steps(slurm, job) == {} and not _placeholders(job) and not _sruns(job))
    assert states(slurm, job, "work")[0] in ("FAILED", "CANCELLED")


@pytest.mark.slow
def test_the_time_limit_warns_through_the_step(slurm):
    job = slurm.sbatch(
        f"{client(f'work:{FAR_S}:ok')}; echo in order", "--time=10", "--signal=TERM@30", "--tasks=1", user=USER
    )
    wait_step(slurm, job, "work")
    slurm.check("scontrol", "update", f"jobid={job}", "timelimit=1")  # now: Slurm may warn half a minute early
    finish(slurm, job, timeout=100)
    assert [each["why"] for each in events(slurm, job, "cancel")] == ["Slurm sent its step SIGTERM"]
    assert "in order" in slurm.output(job)
    assert states(slurm, job, "work") == ["FAILED"]


def test_work_that_waits_without_a_step_hears_of_the_time_limit(slurm):
    job = slurm.sbatch(f"{client('limit:56')}; echo in order", "--time=1", user=USER)
    finish(slurm, job)
    told = events(slurm, job, "cancel")
    assert [each["why"] for each in told] == ["the time limit of the Slurm job is near"]
    assert 2 < told[0]["at"] - events(slurm, job, "mirror")[0]["at"] < patient(6)
    assert live_steps(slurm, job) == {}


# -- somebody is killed ------------------------------------------------------------------------------------------------


def test_a_killed_client_leaves_a_step_that_failed_at_once(slurm):
    job = slurm.sbatch(f"{client(f'work:{FAR_S}:ok')}; echo killed $?; sleep {FAR_S}", user=USER)
    wait_step(slurm, job, "work")
    _kill_client(job)
    until(lambda: live_steps(slurm, job) == {}, 3, what=lambda: slurm.output(job))
    assert slurm.job(job)["JobState"] == "RUNNING"
    assert states(slurm, job, "work") == ["FAILED"]
    until(lambda: not _sruns(job) and not _placeholders(job), 3)


def _kill_client(job: int) -> None:
    """Its own number is one of the node's PID namespace."""
    for pid in _with_words(b"surrogates"):
        if f"SLURM_JOB_ID={job}".encode() in _environ(pid):
            os.kill(pid, signal.SIGKILL)


def test_a_killed_srun_cancels_the_work(slurm):
    job = slurm.sbatch(f"{client(f'work:{FAR_S}:ok')}; sleep {FAR_S}", user=USER)
    wait_step(slurm, job, "work")
    for pid in _sruns(job):
        os.kill(pid, signal.SIGKILL)
    until(lambda: live_steps(slurm, job) == {}, what=lambda: slurm.output(job))
    told = until(lambda: events(slurm, job, "cancel"), what=lambda: slurm.output(job))  # the step may be gone before
    assert [each["why"] for each in told] == ["its Slurm step was ended from outside"]
    assert slurm.job(job)["JobState"] == "RUNNING"
    assert states(slurm, job, "work") == ["CANCELLED"]


def test_a_killed_batch_script_leaves_no_step(slurm):
    job = slurm.sbatch(f"echo $$; {client(f'work:{FAR_S}:ok')}", user=USER)
    wait_step(slurm, job, "work")
    slurm.check("scancel", "--batch", "-s", "KILL", str(job))
    slurm.wait_job(job, ["FAILED", "CANCELLED"])
    until(lambda: live_steps(slurm, job) == {} and not _sruns(job) and not _placeholders(job))


# -- Slurm is no help --------------------------------------------------------------------------------------------------


def outside(slurm: SlurmCluster, job: int, *words: str, path: str = "") -> list[dict]:
    """What a client tells that says it is in a job: root's, on this machine."""
    env = {**os.environ, **slurm.env, "SLURM_JOB_ID": str(job), "PYTHONPATH": str(ROOT / "src")}
    env["PATH"] = path or env["PATH"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.slurm.surrogates", *words],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=patient(60),
    )
    return story(done.stdout)


def test_root_makes_no_step_in_anothers_job(slurm):
    job = slurm.sbatch(f"sleep {FAR_S}", user=USER)
    slurm.wait_job(job, "RUNNING")
    told = outside(slurm, job, "mine:0.5:ok")
    assert [each["text"] for each in told if each["what"] == "warning"] == [
        f"no Slurm step shows this work, which continues: job {job} is another user's"
    ]
    assert "mine" not in str(slurm.sacct(job))


def test_without_srun_the_work_goes_on(slurm, tmp_path):
    job = slurm.sbatch(f"sleep {FAR_S}")
    slurm.wait_job(job, "RUNNING")
    (tmp_path / "squeue").symlink_to(_which(slurm, "squeue"))
    told = outside(slurm, job, "work:0.5:ok", path=str(tmp_path))
    (warning,) = [each["text"] for each in told if each["what"] == "warning"]
    assert "which continues: srun cannot be run: No such file" in warning
    took_s = [each["took"] for each in told if each["what"] in ("begin", "end")]
    assert len(took_s) == 2
    assert max(took_s) < patient(1), "nobody waits for what cannot come"


def test_a_step_that_could_not_be_made_is_tried_again(slurm, tmp_path, monkeypatch):
    monkeypatch.setattr(mirror, "AGAIN_S", 0.5)
    job = slurm.sbatch(f"sleep {FAR_S}")
    slurm.wait_job(job, "RUNNING")
    (tmp_path / "squeue").symlink_to(_which(slurm, "squeue"))
    warnings: list[str] = []
    shown = SlurmMirror({**slurm.env, "PATH": str(tmp_path)}, job, warnings.append).begin("late", pytest.fail)
    until(lambda: warnings)
    (tmp_path / "srun").symlink_to(_which(slurm, "srun"))
    wait_step(slurm, job, "late")
    shown.end(True)
    assert states(slurm, job, "late") == ["COMPLETED"]
    assert len(warnings) == 1


def test_a_srun_that_hangs_delays_the_end_by_seconds_at_most(slurm, tmp_path):
    job = slurm.sbatch(f"sleep {FAR_S}")
    slurm.wait_job(job, "RUNNING")
    hanging = tmp_path / "srun"
    hanging.write_text(f"#!/bin/sh\ntrap '' TERM\nsleep {FAR_S} &\nwait; wait\n")
    hanging.chmod(0o755)
    told = outside(slurm, job, "work:0.2:ok", path=f"{tmp_path}:{slurm.env['PATH']}")
    (end,) = [each for each in told if each["what"] == "end"]
    assert 4 < end["took"] < patient(10), "it waits for srun, but not to its end"
    told = outside(slurm, job, "work:11:ok", path=f"{tmp_path}:{slurm.env['PATH']}")
    (warning,) = [each["text"] for each in told if each["what"] == "warning"]
    assert "srun made none within 10 s" in warning
    order = [each["what"] for each in told if each["what"] in ("begin", "warning", "end")]
    assert order == ["begin", "warning", "end"], "the work began without waiting for its step"
    for pid in _with_words(b"sleep"):
        if str(FAR_S).encode() in _words(pid) and _environ(pid) and f"PATH={tmp_path}" in str(_environ(pid)):
            os.kill(pid, signal.SIGKILL)


def _which(slurm: SlurmCluster, name: str) -> Path:
    folders = map(Path, slurm.env["PATH"].split(":"))
    return next(folder / name for folder in folders if (folder / name).exists())


def test_while_slurmctld_is_away_the_work_goes_on_and_so_do_steps(slurm):
    job = slurm.sbatch(client("before:4:ok", "during:0.2:ok"), user=USER)
    wait_step(slurm, job, "before")
    slurm.stop_controller()
    ends = until(lambda: [each for each in events(slurm, job, "end") if each["name"] == "during"], 60)
    assert len(ends) == 1, "it ended though slurmctld was away all the time"
    slurm.start_controller()
    finish(slurm, job)
    assert events(slurm, job, "cancel") == []
    until(lambda: live_steps(slurm, job) == {})


def test_while_slurmdbd_is_down_steps_come_and_go(slurm_release):
    with prepared(SlurmCluster(new_folder(), 1, accounting=True, release=slurm_release)) as cluster:
        cluster._kill("slurmdbd")
        job = cluster.sbatch(client("first:1:ok", "second:1:failed"), user=USER)
        assert wait_step(cluster, job, "second") == f"{job}.1"
        finish(cluster, job)
        assert live_steps(cluster, job) == {}
        assert [each["what"] for each in story(cluster.output(job))] == ["mirror", "begin", "end", "begin", "end"]


# -- the command -------------------------------------------------------------------------------------------------------


def surrogate(*words: str) -> str:
    return f"{MOOR} slurm surrogate {' '.join(words)}"


def test_the_command_shows_a_command_as_a_step_and_ends_as_it_does(slurm):
    script = (
        f"{surrogate('-- sleep 1')}; echo $?; {surrogate('--name other', '--', 'sh -c', chr(39) + 'exit 7' + chr(39))}"
    )
    job = slurm.sbatch(f"{script}; echo $?; {surrogate('-- no-such')}; echo $?")
    finish(slurm, job)
    said = slurm.output(job).splitlines()
    assert [line for line in said if line.isdecimal()] == ["0", "7", "127"]
    assert states(slurm, job, "sleep", "other") == ["COMPLETED", "FAILED"]
    assert "no-such" not in str(slurm.sacct(job))


def test_cancel_of_the_step_stops_a_command_that_does_not_listen(slurm):
    stubborn = f"sh -c 'trap \"\" TERM; echo up; sleep {FAR_S}; sleep {FAR_S}'"
    job = slurm.sbatch(f"{surrogate('--grace 1s --name deaf --', stubborn)}; echo $?")
    step = wait_step(slurm, job, "deaf")
    until(lambda: "up" in slurm.output(job))
    slurm.check("scancel", step)
    finish(slurm, job)
    assert "its Slurm step was ended from outside: stopping sh" in slurm.output(job)
    assert slurm.output(job).splitlines()[-1] == "137"


def test_signals_reach_the_command_and_all_it_has_started(slurm):
    inner = f"sh -c 'trap \"echo heard; exit 5\" TERM; echo up; sleep {FAR_S} & wait'"
    moor = f"{surrogate('--name ear --', inner)} & moor=$!"
    job = slurm.sbatch(f"rm -f go\n{moor}\nuntil [ -e go ]; do sleep 0.1; done\nkill $moor; wait $moor; echo $?")
    wait_step(slurm, job, "ear")
    until(lambda: "up" in slurm.output(job))
    (slurm.work / "go").touch()
    finish(slurm, job)
    assert slurm.output(job).split()[-2:] == ["heard", "5"]
    assert states(slurm, job, "ear") == ["FAILED"]
