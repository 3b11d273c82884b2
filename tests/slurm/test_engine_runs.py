"""``moor run --engine slurm``: the whole way from a command to its exit code, through controller, Slurm and agent."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from moorings.wire.errors import ExitCode
from tests.procfs import HEARING, every_process
from tests.pseudoterminal import Pseudoterminal
from tests.slurm.ipus import IpuSite, ipu_site
from tests.waiting import patient, until

Start = Callable[..., subprocess.Popen[str]]

USER = "games"  # whom the controller runs as: never root, and nobody who asks for a run


@pytest.fixture(scope="module")
def site(slurm_release: str) -> Iterator[IpuSite]:
    """A site whose controller submits to its cluster."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("MOORINGS_SERVER_USER", USER)  # for the agent, which is root's
        made = stack.enter_context(ipu_site(slurm_release, accounting=True))
        for name, value in made.cluster.env.items():
            patch.setenv(name, f"{made.cluster.path_for(USER)}:{os.environ['PATH']}" if name == "PATH" else value)
        made.cluster.check("sacctmgr", "-i", "add", "account", "guest")
        made.cluster.check("sacctmgr", "-i", "add", "user", USER, "account=guest")
        runs = made.cluster.work / "runs"
        runs.mkdir(mode=0o700)
        shutil.chown(runs, USER, USER)
        made.controller.stop()
        for path in (made.controller.folder, *made.controller.folder.rglob("*")):
            shutil.chown(path, USER, USER)
        made.controller.user = USER
        if made.cluster.programs.chrooted:  # only root gets into it
            made.controller.keeps += ",+setuid,+setgid"
        made.controller.flags = ("--config", str(configure(made)))
        made.controller.start()
        yield made


def configure(site: IpuSite, *more: str, folder: str = "runs") -> Path:
    """The controller's settings file, written again."""
    settings = site.cluster.folder / "controller.toml"
    lines = (f'folder = "{site.cluster.work}/{folder}"', f'conf = "{site.cluster.etc}/slurm.conf"', *more)
    settings.write_text("\n".join(["[slurm]", *lines, ""]))
    return settings


@contextmanager
def controller_with(site: IpuSite, *more: str, folder: str = "runs", path: str | None = None) -> Iterator[None]:
    """The controller with other settings, or another PATH, until the end of the block."""
    with pytest.MonkeyPatch.context() as patch:
        if path is not None:
            patch.setenv("PATH", path)
        configure(site, *more, folder=folder)
        site.controller.stop()
        site.controller.start()
        try:
            yield
        finally:
            configure(site)
            site.controller.stop()
            patch.undo()
            site.controller.start()


@pytest.fixture(autouse=True)
def _quiet(site: IpuSite) -> Iterator[None]:
    yield
    site.clear()


@pytest.fixture(scope="module")
def key(site: IpuSite) -> str:
    """Of ann, who may start runs and is nobody on the cluster."""
    return str(site.controller.ask("POST", "/v1/keys", {"subject": "ann", "role": "user"})[1]["secret"])


@pytest.fixture
def start(site: IpuSite, key: str) -> Iterator[Start]:
    """ann's ``moor run --engine slurm``, or another command; what a test leaves running ends with it."""
    started: list[subprocess.Popen[str]] = []

    def start_it(*words: str, command: Sequence[str] = ("run", "--engine", "slurm")) -> subprocess.Popen[str]:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(site.cluster.folder),
            "MOORINGS_SERVER": f"http://127.0.0.1:{site.controller.port}",
            "MOORINGS_SERVER_USER": USER,
            "MOORINGS_ACCESS_KEY": key,
        }
        argv = [*HEARING, sys.executable, "-m", "moorings.cli.main", *command, *words]
        pipe = subprocess.PIPE
        process = subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=site.cluster.work)
        started.append(process)
        return process

    yield start_it
    for process in started:
        process.kill()
        with process:  # closes its pipes
            pass


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, output and what was said meanwhile."""
    output, said = process.communicate(timeout=patient(90))
    return process.returncode, output, said


Run = dict[str, Any]


def runs(site: IpuSite) -> list[Run]:
    """All runs, the oldest first."""
    items: list[Run] = site.controller.ask("GET", "/v1/runs?all=1&limit=1000")[1]["items"]
    return sorted(items, key=lambda run: run["createdAt"])


def one_more(site: IpuSite, than: list[Run], true: Callable[[Run], object] = lambda _: True) -> Run:
    """The one run that is not among the others, as soon as it is as it shall be."""
    known = {run["id"] for run in than}

    def look() -> Run | None:
        fresh = [run for run in runs(site) if run["id"] not in known]
        return fresh[0] if fresh and true(fresh[0]) else None

    return until(look, 60, what=lambda: f"{runs(site)[-1:]}")


@pytest.mark.smoke
def test_a_command_runs_on_a_partition_of_its_own_and_its_exit_code_is_ours(site: IpuSite, start: Start) -> None:
    before = runs(site)
    script = 'echo "$RANK of $WORLD_SIZE: $MOORINGS_DEVICES in $MOORINGS_PARTITION_ID"; exit $((RANK * 7))'
    code, output, said = finish(start("--ipus", "4", "-n", "2", "--", "sh", "-c", script))
    run = one_more(site, before)
    job = run["reference"]
    assert sorted(output.splitlines()) == [
        f"[0] 0 of 2: pod16:0,pod16:1 in slurm_{job}",
        f"[1] 1 of 2: pod16:2,pod16:3 in slurm_{job}",
    ]
    assert (code, run["state"], run["exitCode"], run["taskCodes"]) == (7, "FAILED", 7, [0, 7]), said
    assert "claim" not in run
    assert "task 1 ended with exit code 7" in said


def test_setup_and_all_variables_of_the_shell_reach_the_tasks(site: IpuSite, start: Start) -> None:
    lines = ("--setup", "export A=$B", "--setup", "cd /")
    code, output, said = finish(
        start("--ipus", "1", "--env", "B=it is", *lines, "--", "sh", "-c", "echo $A $HOME; pwd")
    )
    assert (code, output) == (0, f"it is {site.cluster.folder}\n/\n"), said
    code, output, said = finish(start("--ipus", "1", "--setup", "(exit 5)", "--", "echo", "started"))
    assert (code, "setup line 1 ended with exit code 5: (exit 5)" in output, "started" in output) == (5, True, False), (
        said
    )


def test_it_says_in_slurms_words_why_it_waits_and_starts_when_there_is_room(site: IpuSite, start: Start) -> None:
    before = runs(site)
    blocker = site.cluster.sbatch("sleep 300", "--ipus=16")
    site.cluster.wait_job(blocker, "RUNNING")
    waiting = start("--ipus", "8", "--", "sh", "-c", "echo ran")
    run = one_more(site, before, lambda run: run.get("reference") and "Licenses" in str(run.get("reason")))
    assert (run["state"], run["reason"]["code"]) == ("WAITING", "engine.waiting")
    assert run["reason"]["message"] == f"Slurm job {run['reference']} is PENDING (Licenses)"
    site.cluster.check("scancel", str(blocker))
    code, output, said = finish(waiting)
    assert (code, output) == (0, "ran\n"), said


def test_a_run_that_waits_in_slurms_queue_is_cancelled_there(site: IpuSite, start: Start) -> None:
    before = runs(site)
    blocker = site.cluster.sbatch("sleep 300", "--ipus=16")
    site.cluster.wait_job(blocker, "RUNNING")
    waiting = start("--ipus", "8", "--", "sh", "-c", "echo ran")
    run = one_more(site, before, lambda run: run.get("reference"))
    assert run["state"] == "WAITING"
    waiting.send_signal(signal.SIGINT)
    code, output, said = finish(waiting)
    assert (code, output) == (130, ""), said
    assert one_more(site, before)["state"] == "CANCELLED"
    assert site.cluster.job(run["reference"])["JobState"] == "CANCELLED"


def test_a_running_one_that_is_interrupted_has_its_grace_period(site: IpuSite, start: Start) -> None:
    before = runs(site)
    script = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 300 & wait; done"
    process = start("--ipus", "2", "--", "sh", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    code, output, said = finish(process)
    assert (code, output) == (130, "saved\n"), said
    run = one_more(site, before)
    assert (run["state"], run["taskCodes"]) == ("CANCELLED", [0])


def test_a_controller_that_is_killed_submits_nothing_twice_and_loses_nothing(site: IpuSite, start: Start) -> None:
    """Killed while it submits, while jobs start and while they run; each command ran once, and each run has its end."""
    known = {run["id"] for run in runs(site)}
    marks = site.cluster.work / "marks"
    marks.mkdir()
    marks.chmod(0o1777)
    job = ("--ipus", "1", "--", "sh", "-c")
    started = [start(*job, f"mktemp {marks}/{number}.XXXXXX; sleep 1") for number in range(6)]

    def fresh() -> list[Run]:
        return [run for run in runs(site) if run["id"] not in known]

    for process in started:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("run-")  # it knows that it has a run
    for wanted in (0, 1, len(started)):
        until(partial(_holds, marks, wanted), 60, what=lambda: f"{fresh()}")
        site.controller.kill()
        site.controller.start()
    ended = [finish(process) for process in started]
    assert not [each for each in ended if each[0]], "\n".join(f"{code}: {said}" for code, _, said in ended)
    assert sorted(path.name.partition(".")[0] for path in marks.iterdir()) == [str(n) for n in range(len(started))]
    assert {run["state"] for run in fresh()} == {"SUCCEEDED"}
    assert len({run["reference"] for run in fresh()}) == len(started)


def test_a_run_that_slurm_puts_back_into_its_queue_waits_again_and_goes_on(site: IpuSite, start: Start) -> None:
    before = runs(site)
    job_file = site.cluster.work / "resumable.toml"
    script = 'echo "start $SLURM_RESTART_COUNT"; if [ -z "$SLURM_RESTART_COUNT" ]; then sleep 300 & wait; fi'
    job_file.write_text(
        f"command = {json.dumps(['sh', '-c', script])}\n[accelerators]\nsize = 2\n[checkpoint]\nresumable = true\n"
    )
    process = start(str(job_file))
    run = one_more(site, before, lambda run: run["state"] == "RUNNING")
    job = run["reference"]
    assert process.stdout is not None
    assert process.stdout.readline() == "start \n"
    site.cluster.check("scontrol", "requeue", job)
    waits = one_more(site, before, lambda run: run["state"] == "WAITING" and "PENDING" in str(run.get("reason")))
    assert (waits["reference"], waits["startedAt"]) == (job, run["startedAt"])
    # Not at once: 24.11 may take the end of the first start's script for that of the second.
    site.cluster.check("scontrol", "update", f"jobid={job}", "starttime=now+3")
    code, output, said = finish(process)
    assert (code, output) == (0, "start 1\n"), said
    names = [one["name"] for one in site.controller.ask("GET", f"/v1/events?run={run['id']}")[1]["items"]]
    assert names[:5] == ["run.created", "run.queued", "run.starting", "run.started", "run.requeued"]
    assert (names[5], names[-1]) == ("run.starting", "run.ended")  # it may end before it is seen to run


@pytest.fixture
def lent(site: IpuSite) -> Iterator[None]:
    """All devices are guaranteed to the lab; what it does not use is lent."""
    policy = site.controller.data / "policy.toml"
    policy.write_text('min_run = 0\nyield = "20s"\n')
    with controller_with(site):
        shares = [{"pool": "pod16", "blocks": {"16": 1}}]
        for name, project in (("lab", {"shares": shares}), ("guest", {})):
            assert site.controller.ask("PUT", f"/v1/projects/{name}", project)[0] in (200, 201)
        yield
        until(lambda: site.claims() == [] and site.cluster.squeue() == [], what=site.log)
        for name in ("lab", "guest"):
            site.controller.ask("DELETE", f"/v1/projects/{name}")
    policy.unlink()


@pytest.mark.usefixtures("lent")
@pytest.mark.parametrize("hears", ["USR1", "USR2", "TERM", ""], ids=lambda name: f"it saves at {name or 'nothing'}")
def test_a_run_on_lent_devices_makes_room_and_goes_on(site: IpuSite, start: Start, hears: str) -> None:
    if hears not in ("", "USR1") and site.cluster.programs.chrooted:
        pytest.skip("these nodes have no Python, so each program gets USR1")
    before = runs(site)
    job_file = site.cluster.work / "preemptible.toml"
    script = "echo start $SLURM_RESTART_COUNT; [ $SLURM_RESTART_COUNT ] && exit 0; "
    script += f"trap 'echo saved; exit 85' {hears}; " if hears else "trap '' USR1 TERM; "
    script += "while :; do sleep 0.2 & wait $!; done"
    words = json.dumps(["sh", "-c", script])
    job_file.write_text(
        f'command = {words}\nproject = "guest"\npreemptible = true\n[accelerators]\nsize = 16\n'
        "[checkpoint]\nresumable = true\n"
    )
    process = start(str(job_file))
    run = one_more(site, before, lambda run: run["state"] == "RUNNING")
    job = run["reference"]
    owner = site.cluster.sbatch("true", "--ipus=16", "--account=lab", user="man")
    site.cluster.wait_job(owner, "COMPLETED")
    one_more(site, before, lambda run: run["state"] == "WAITING")
    begun = int(time.time())  # a node takes no job again in the second in which it was killed there
    until(lambda: int(time.time()) > begun + 1)
    site.cluster.check("scontrol", "update", f"jobid={job}", "starttime=now")
    code, output, said = finish(process)
    lines = output.splitlines()  # among them what the shell says of its sleep
    assert (code, lines[0], lines[-1], lines.count("saved")) == (0, "start", "start 1", int(bool(hears))), said
    assert site.cluster.job(job)["Restarts"] == "1"
    names = [one["name"] for one in site.controller.ask("GET", f"/v1/events?run={run['id']}")[1]["items"]]
    assert names.count("run.requeued") == 1


def test_a_run_is_the_controllers_users_job_whoever_asks_and_whatever_for(site: IpuSite, start: Start) -> None:
    """Law 10: ann's key says who she is to the controller, and nothing of what she says makes her a user of Slurm."""
    before = runs(site)
    asserted = [f"{name}=0" for name in ("SBATCH_UID", "SLURM_UID", "SLURM_JOB_UID")] + ["USER=root", "SUDO_USER=root"]
    words = [word for one in asserted for word in ("--env", one)]
    code, output, said = finish(start("--ipus", "1", *words, "--", "id", "-un"))
    assert (code, output) == (0, f"{USER}\n"), said
    run = one_more(site, before)
    assert run["subject"] == "ann"
    assert site.cluster.job(run["reference"])["UserId"].startswith(f"{USER}(")
    assert f"in Slurm it is a job of the user {USER}, " in said
    folder = site.cluster.work / "runs" / run["id"]
    assert folder.owner() == USER


def test_command_beside_a_run_is_a_step_that_leases_nothing(site: IpuSite, start: Start) -> None:
    before = runs(site)
    begun = site.cluster.work / "begun"
    process = start("--ipus", "2", "--env", "COLOUR=red", "--", "sh", "-c", f"touch {begun}; sleep 600")
    run = one_more(site, before, lambda run: run["state"] == "RUNNING")
    until(begun.exists)
    until(lambda: site.controller.ask("GET", f"/v1/runs/{run['id']}")[1].get("reference"))
    script = 'echo "$MOORINGS_RUN_ID $COLOUR $RANK ${MOORINGS_PARTITION_ID:-none}"; cat; pwd; echo err >&2; exit 9'
    for _ in range(2):  # the task holds the only GCD: a step that wanted one would wait
        done = as_user(site, "exec", run["id"], "--", "sh", "-c", script, given="given\n")
        shown = done.stdout.splitlines()
        assert done.returncode == 9, done.stderr
        assert shown[0].split()[:3] == [run["id"], "red", "0"]
        assert shown[0].split()[3] != "none"
        assert shown[1:] == ["given", str(site.cluster.work)]
        assert "err\n" in done.stderr
        assert "without a binding" not in done.stderr
    with Pseudoterminal(
        user_words(site, "exec", run["id"], "--", "bash", "--norc"), user_environment(site)
    ) as terminal:
        terminal.type("echo t''ty=$(stty size) $TERM; exit 5\n")
        terminal.wait_for("tty=24 80 xterm")
        assert terminal.wait() == 5
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 130


def user_environment(site: IpuSite) -> dict[str, str]:
    """Of the user of the jobs, with a key of the controller."""
    server = f"http://127.0.0.1:{site.controller.port}"
    conf = {"SLURM_CONF": f"{site.cluster.etc}/slurm.conf"}
    return {
        **os.environ,
        **conf,
        "TERM": "xterm",
        "MOORINGS_SERVER": server,
        "MOORINGS_ACCESS_KEY": site.controller.key,
    }


def user_words(site: IpuSite, *words: str) -> list[str]:
    """``moor`` as the user of the jobs."""
    keeps = site.controller.keeps
    become = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", f"--inh-caps={keeps}")
    return [*become, f"--ambient-caps={keeps}", "--", sys.executable, "-m", "moorings.cli.main", *words]


def as_user(site: IpuSite, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """What ``moor`` does as the user of the jobs."""
    call, environment = user_words(site, *words), user_environment(site)
    return subprocess.run(
        call, env=environment, input=given, capture_output=True, text=True, timeout=patient(60), check=False
    )


def test_a_run_of_somebody_else_is_neither_read_nor_cancelled(site: IpuSite, start: Start) -> None:
    before = runs(site)
    process = start("--ipus", "1", "--", "sleep", "300")
    run = one_more(site, before, lambda run: run["state"] == "RUNNING")
    other = site.controller.ask("POST", "/v1/keys", {"subject": "bob", "role": "user"})[1]["secret"]
    for method, path in (("POST", "cancel"), ("GET", "logs")):
        status, told = site.controller.ask(method, f"/v1/runs/{run['id']}/{path}", key=other)
        assert (status, told["code"]) == (404, "run.unknown")
    process.send_signal(signal.SIGINT)
    finish(process)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--ipus", "1", "--priority", "5"), "priority 5: a user of Slurm can only lower"),
        (("--ipus", "1", "--pool", "pod16"), "a job on Slurm cannot choose a pool"),
        (("--kind", "gpu", "--size", "1"), "none of kind 'gpu'"),
        (("--ipus", "1", "--env", "UID=0"), "the variable UID is the shell's own"),
    ],
)
def test_what_slurm_cannot_do_is_refused_before_there_is_a_run(
    site: IpuSite, start: Start, words: Sequence[str], told: str
) -> None:
    before = runs(site)
    code, output, said = finish(start(*words, "--", "true"))
    assert (code, output) == (1, "")
    assert told in said
    assert "hint: " in said
    assert runs(site) == before


def test_what_slurm_refuses_is_told_with_its_own_words(site: IpuSite, start: Start) -> None:
    before = runs(site)
    code, output, said = finish(start("--ipus", "3", "--", "true"))
    assert (code, output) == (126, "")
    assert "Slurm refuses it: --ipus=3: the number of IPUs must be a power of two" in said
    assert "sbatch: error" not in said
    assert one_more(site, before)["state"] == "FAILED"


def test_a_partition_that_slurm_does_not_have_is_told_with_where_it_stands(site: IpuSite, start: Start) -> None:
    with controller_with(site, 'partition = "nope"'):
        code, _, said = finish(start("--ipus", "1", "--", "true"))
    assert code == 126
    assert "a job of the user games, partition nope, under" in said
    assert "Slurm refuses it: invalid partition specified: nope" in said
    assert 'partition = "nope": see [slurm] in the controller\'s settings' in said


def test_without_sbatch_there_is_no_run_but_a_word_about_that(site: IpuSite, start: Start) -> None:
    before = runs(site)
    usual = os.environ["PATH"]
    without = ":".join(folder for folder in usual.split(":") if not (Path(folder) / "sbatch").exists())
    with controller_with(site, path=without):
        code, _, said = finish(start("--ipus", "1", "--", "true"))
    assert code == 1
    assert "error: sbatch cannot be run on" in said
    assert "(slurm.missing)" in said
    assert "hint: install Slurm's client commands there, or set PATH" in said
    assert runs(site) == before


def test_a_folder_that_is_not_there_is_why_a_run_waits(site: IpuSite, start: Start) -> None:
    before = runs(site)
    with controller_with(site, folder="away"):
        code, _, said = finish(start("--ipus", "1", "--", "true"))
        assert code == ExitCode.UNREACHABLE
        assert "the variables of run" in said, "no other place is private to all controllers"
        process = start("--export", "NONE", "--ipus", "1", "--", "true")
        run = one_more(site, before, lambda run: run.get("reason"))
        assert run["state"] == "WAITING"
        assert run["reason"]["message"].startswith("engine slurm cannot be used now: ")
        assert f"{site.cluster.work}/away" in run["reason"]["message"]
    assert finish(process)[0] == 0  # it continues when the folder is right


def test_a_run_whose_engine_is_not_set_up_any_more_says_so(site: IpuSite, start: Start) -> None:
    before = runs(site)
    assert finish(start("--ipus", "1", "--", "echo", "kept"))[0] == 0
    ended = one_more(site, before)
    blocker = site.cluster.sbatch("sleep 300", "--ipus=16")
    site.cluster.wait_job(blocker, "RUNNING")
    waiting = start("--ipus", "1", "--", "echo", "ran")
    run = one_more(site, [*before, ended], lambda run: run.get("reference"))
    site.controller.stop()
    (site.cluster.folder / "controller.toml").write_text("")
    site.controller.start()
    try:
        reason = next(one for one in runs(site) if one["id"] == run["id"])["reason"]
        assert reason["code"] == "engine.unknown"
        status, told = site.controller.ask("GET", f"/v1/runs/{ended['id']}/logs")
        assert (status, told["code"]) == (422, "engine.unknown")
        code, _, said = finish(start("--ipus", "1", "--", "true"))
        assert code == 2
        assert "hint: engines here: local; a table [slurm] in the controller's settings adds this one" in said
    finally:
        configure(site)
        site.controller.stop()
        site.controller.start()
    site.cluster.check("scancel", str(blocker))
    code, output, said = finish(waiting)
    assert (code, output) == (0, "ran\n"), said


def test_neither_command_nor_variables_are_to_be_seen_by_others(site: IpuSite, start: Start) -> None:
    before = runs(site)
    script = 'echo ready; read -r line < "$FIFO"; echo "$SECRET"'
    fifo = site.cluster.work / "fifo"
    os.mkfifo(fifo)
    process = start("--ipus", "1", "--env", "SECRET=tell-nobody", "--env", f"FIFO={fifo}", "--", "sh", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    run = one_more(site, before)
    job = run["reference"]
    batch = site.cluster.check("scontrol", "write", "batch_script", job, "-")
    shown = site.cluster.check("scontrol", "show", "job", "-dd", job)
    words = b"".join(line for pid, line in every_process("cmdline") if pid != process.pid).decode(errors="replace")
    fifo.write_text("\n")
    code, output, said = finish(process)
    assert (code, output) == (0, "tell-nobody\n"), said
    assert "tell-nobody" not in batch + shown + words
    folder = site.cluster.work / "runs" / run["id"]
    assert "tell-nobody" in (folder / "0" / "environment").read_text()
    assert folder.stat().st_mode & 0o777 == 0o700


def _holds(folder: Path, files: int) -> bool:
    return len(list(folder.iterdir())) >= files
