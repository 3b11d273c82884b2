"""One machine, three people, no scheduler: ``moor up --system`` and what they do with it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.shared_machine import PEOPLE, PYTHON, SharedMachineRig, cannot_be_here
from tests.pseudoterminal import Pseudoterminal
from tests.waiting import patient, until

pytestmark = [pytest.mark.skipif(bool(cannot_be_here()), reason=cannot_be_here()), pytest.mark.timeout(patient(120))]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedMachineRig]:
    made = SharedMachineRig(tmp_path_factory.mktemp("machine"))
    try:
        made.up()
        yield made
        made.down()
        assert made.cgroups() == []
    finally:
        made.close()


def test_people_run_jobs_as_themselves_side_by_side_and_need_no_key(machine: SharedMachineRig) -> None:
    script = 'id -u; echo "$MOORINGS_DEVICES" > devices; sleep 1; touch done'
    started = {name: machine.start(name, "run", "--ipus", "2", "--", "sh", "-c", script) for name in PEOPLE}
    for name, process in started.items():
        output, said = process.communicate(timeout=patient(60))
        assert (process.returncode, output) == (0, f"{PEOPLE[name]}\n"), said + machine.logs()
    devices = [(machine.root / "home" / name / "devices").read_text() for name in PEOPLE]
    assert len(set(devices)) == len(PEOPLE), devices
    for name in PEOPLE:
        assert (machine.root / "home" / name / "done").stat().st_uid == PEOPLE[name]


def test_a_command_starts_and_stops_the_machine_and_jobs_go_on(machine: SharedMachineRig) -> None:
    done = machine.moor("ann", "run", "--detach", "--ipus", "1", "--", "sh", "-c", "sleep 3; echo after")
    ident = done.stdout.strip()
    until(lambda: machine.ask("ann", "get", "run", ident)["state"] == "RUNNING")
    said = machine.down()
    assert ("root daemon stopped" in said, "controller stopped" in said) == (True, True)
    assert machine.processes_of("ann") != []
    machine.up()
    ended = machine.moor("ann", "wait", ident)
    assert ended.returncode == 0, ended.stderr
    assert machine.moor("ann", "logs", ident).stdout == "after\n"


def test_a_person_who_takes_its_port_keeps_it_from_nothing(machine: SharedMachineRig) -> None:
    listen = "import socket, time; on = socket.create_server(('127.0.0.1', 0)); print(on.getsockname()[1], flush=True)"
    machine.down()
    taker = machine.start_program("eve", "-c", f"{listen}; time.sleep(600)")
    assert taker.stdout is not None
    port = taker.stdout.readline().strip()
    done = machine.moor("root", "up", "--system", "--port", port, "--timeout", f"{patient(30):g}s")
    assert (done.returncode, "another program has its port" in done.stderr) == (0, True), done.stderr + machine.logs()
    ran = machine.moor("ann", "run", "--ipus", "1", "--", "id", "-un")
    assert (ran.returncode, ran.stdout) == (0, "ann\n"), ran.stderr + machine.logs()
    (found,) = until(lambda: [one for one in doctor(machine, "root", "host.controller") if one["verdict"] != "SKIP"])
    assert (found["verdict"], "takes no access keys" in found["evidence"]) == ("WARN", True), found
    machine.down()
    taker.kill()
    taker.communicate()
    machine.up()


def test_nobody_but_root_and_its_person_stops_a_job(machine: SharedMachineRig) -> None:
    ident = machine.moor("ann", "run", "--detach", "--ipus", "1", "--", "sleep", "300").stdout.strip()
    until(lambda: machine.ask("ann", "get", "run", ident)["state"] == "RUNNING")
    (name,) = [name for name in machine.cgroups() if name.startswith("61001-")]
    entry = name.partition(".")[0]
    refused = machine.moor("eve", "cancel", ident)
    assert refused.returncode != 0
    assert machine.ask("ann", "get", "run", ident)["state"] == "RUNNING"
    for op in ("kill", "ask", "withdraw"):  # at root's own sockets
        code = (
            "import json, socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
            f" s.sendall(json.dumps({{'op': '{op}', 'entry': '{entry}', 'attempt': 0, 'signal': 15}}).encode());"
            " s.shutdown(1); print(s.recv(1000).decode())"
        )
        for socket_name in ("control", "submit"):
            said = machine.command("eve", "/opt/moorings/bin/python", "-c", code, f"/run/moorings/{socket_name}")
            assert "PermissionError" in said.stderr or '"error"' in said.stdout, (op, socket_name, said)
    assert machine.ask("ann", "get", "run", ident)["state"] == "RUNNING"
    assert machine.moor("root", "cancel", ident).returncode == 0
    until(lambda: machine.ask("ann", "get", "run", ident)["state"] == "CANCELLED")
    until(lambda: machine.processes_of("ann") == [])


def test_root_and_those_without_an_account_have_no_jobs(machine: SharedMachineRig) -> None:
    refused = machine.moor("root", "run", "--ipus", "1", "--", "id")
    assert (refused.returncode, "root's jobs are not started here" in refused.stderr) == (4, True), refused.stderr


@pytest.mark.slow
def test_root_writes_a_file_with_quotas_for_each_person(machine: SharedMachineRig) -> None:
    file = machine.root / "etc/moorings/quotas.toml"

    def limits() -> str:
        return machine.moor("root", "get", "projects", "-o", "csv").stdout

    def attempt(name: str, size: int) -> int:
        return machine.moor(name, "run", "--ipus", str(size), "--", "true").returncode

    try:
        file.write_text('[devices]\neveryone = 1\nann = 2\n"@eve" = 0\n')
        until(lambda: "ann=2,eve=0" in limits(), 60, what=machine.logs)
        assert [attempt("ann", 2), attempt("bob", 1)] == [0, 0]
        assert 0 not in [attempt("ann", 4), attempt("bob", 2), attempt("eve", 1)]
        file.write_text("[devices]\neveryone = 64\nanna = 2\n")
        said = ["doctor", "--only", "quotas"]
        where = "/etc/moorings/quotas.toml:3: there is no account 'anna'"
        until(lambda: where in machine.moor("root", *said).stdout, 60, what=machine.logs)
        assert "ann=2,eve=0" in limits()
    finally:
        file.unlink()
    until(lambda: "ann=2" not in limits(), 60, what=machine.logs)
    assert attempt("eve", 4) == 0


def test_the_values_of_variables_are_in_roots_spool_and_the_persons_folder_alone(machine: SharedMachineRig) -> None:
    home = machine.root / "home/ann"
    (home / "secrets.env").write_text("TOKEN=hunter2\n")
    os.chown(home / "secrets.env", PEOPLE["ann"], PEOPLE["ann"])
    (home / "secrets.env").chmod(0o600)
    words = ["--env-file", "secrets.env", "--setup", "cd $HOME/work", "--setup", "export TWICE=$TOKEN$TOKEN"]
    (home / "work").mkdir()
    done = machine.moor("ann", "run", "--ipus", "1", *words, "--", "sh", "-c", "echo $TWICE $USER; pwd; sleep 1")
    assert (done.returncode, done.stdout) == (0, "hunter2hunter2 ann\n/home/ann/work\n"), done.stderr
    assert "warning" not in done.stderr
    for path in (machine.root / "var/lib/moorings").rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes(), path
    shown = machine.moor("ann", "get", "runs", "--all", "-o", "json").stdout
    assert '"TOKEN": ""' in shown


def test_what_cannot_start_is_not_even_handed_in(machine: SharedMachineRig) -> None:
    spool = machine.root / "var/lib/moorings-jobs/spool" / str(PEOPLE["bob"])
    before = set(spool.iterdir()) if spool.exists() else set()
    for words, why in (
        (["--", "nosuch"], "the program nosuch was not found"),
        (["--chdir", "/home/ann", "--", "sh", "-c", "exit"], "you may not enter the working folder /home/ann"),
        (["--chdir", "/nosuch", "--", "id"], "the working folder /nosuch cannot be used"),
    ):
        done = machine.moor("bob", "run", "--ipus", "1", *words)
        assert (done.returncode, why in done.stderr) == (2, True), done.stderr
    assert (set(spool.iterdir()) if spool.exists() else set()) == before


def test_a_job_that_the_controller_refuses_is_taken_back(machine: SharedMachineRig) -> None:
    spool = machine.root / "var/lib/moorings-jobs/spool" / str(PEOPLE["eve"])
    before = set(spool.iterdir()) if spool.exists() else set()
    for words in (["--pool", "nosuch"], ["--detach", "--ipus", "100000"]):
        assert machine.moor("eve", "run", *words, "--", "id").returncode != 0
    assert set(spool.iterdir()) == before


def test_a_job_without_devices_has_its_limits(machine: SharedMachineRig) -> None:
    done = machine.moor("bob", "run", "--size", "0", "-n", "2", "--", "id", "-u")
    assert sorted(done.stdout.splitlines()) == ["[0] 61002", "[1] 61002"], done
    hog = "import sys; x = bytearray(200 << 20); print('too far')"
    done = machine.moor("bob", "run", "--size", "0", "--memory", "64M", "--", "/usr/bin/python3", "-c", hog)
    assert (done.returncode, "it used more memory than it has" in done.stderr) == (137, True), done.stderr


_SUBMITS = """
import os, moorings
run = moorings.submit(lambda word: (word, os.getuid(), os.environ["MOORINGS_DEVICES"]), "hello", ipus=2)
print(run.result())
found = moorings.find_run(run.id)
print(found.result() == run.result(), found.logs() == "")
print([run.result() for run in moorings.map_array(lambda x: x + 1, range(3), size=0)])
"""


def test_output_since_a_time_is_read_of_its_person_alone(machine: SharedMachineRig) -> None:
    done = machine.moor("ann", "run", "--size", "0", "--name", "spoke", "--", "echo", "spoken")
    assert done.returncode == 0, done.stderr
    (run,) = [each for each in machine.ask("ann", "get", "runs", "--all")["items"] if each["name"] == "spoke"]
    assert machine.moor("ann", "logs", run["id"], "--since", "10m").stdout == "spoken\n"
    assert machine.moor("ann", "logs", run["id"], "--since", "2100-01-01").stdout == ""


def test_a_function_of_a_program_runs_as_its_person(machine: SharedMachineRig) -> None:
    program = machine.root / "home/ann/submits.py"
    program.write_text(_SUBMITS)
    done = machine.command("ann", PYTHON, "submits.py")
    assert done.returncode == 0, done.stderr + machine.logs()
    value, again, array = done.stdout.splitlines()
    assert value.startswith(f"('hello', {PEOPLE['ann']}, 'pod64:")
    assert (again, array) == ("True True", "[1, 2, 3]")
    files = list((machine.root / "home/ann/.local/state/moorings/functions").rglob("*"))
    assert {path.lstat().st_uid for path in files} == {PEOPLE["ann"]}
    assert {path.stat().st_mode & 0o077 for path in files if not path.is_symlink()} == {0}


def test_what_is_left_of_a_job_ends_with_it(machine: SharedMachineRig) -> None:
    script = "setsid sh -c 'sleep 300 & sleep 300' & (setsid sleep 300 &) ; sleep 0.2; exit 3"
    done = machine.moor("bob", "run", "--ipus", "1", "--", "sh", "-c", script)
    assert done.returncode == 3, done.stderr
    until(lambda: machine.processes_of("bob") == [])


def test_a_closed_terminal_cancels_nothing(machine: SharedMachineRig) -> None:
    process = machine.start("ann", "run", "--ipus", "1", "--", "sh", "-c", "echo begun; sleep 2; touch later")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    with process:
        process.send_signal(signal.SIGKILL)
    until(lambda: (machine.root / "home/ann/later").exists())


def test_terminal_and_commands_are_of_the_person_in_the_jobs_cgroup(machine: SharedMachineRig) -> None:
    words = [PYTHON, "-m", "moorings.cli.main"]
    argv = machine.argv("ann", [*words, "run", "-i", "--keep", "1s", "--ipus", "2", "--", "bash", "--norc"])
    with Pseudoterminal(argv, os.environ) as terminal:
        terminal.wait_for("detaches")
        terminal.type("echo uid=$(id -u) $(stty size) $MOORINGS_DEVICES; cat /proc/self/cgroup > mine\n")
        terminal.wait_for("uid=61001 24 80 pod64:")
        (run,) = machine.ask("ann", "get", "runs")["items"]
        done = machine.moor("ann", "exec", run["id"], "--", "sh", "-c", "id -u; cat /proc/self/cgroup > theirs; exit 4")
        assert (done.returncode, done.stdout) == (4, "61001\n"), done.stderr
        home = machine.root / "home/ann"
        assert (home / "theirs").read_text() == (home / "mine").read_text()
        assert "61001-" in (home / "mine").read_text()
        refused = machine.moor("bob", "exec", run["id"], "--", "id")
        assert (refused.returncode, refused.stdout) == (3, ""), refused.stderr  # it is not even seen
        assert machine.moor("root", "exec", run["id"], "--", "id", "-u").stdout == "61001\n"  # beside it, as its person
        terminal.close()
    until(lambda: machine.ask("ann", "get", "run", run["id"])["state"] == "CANCELLED")
    until(lambda: machine.processes_of("ann") == [])


def test_a_jobs_variables_make_its_supervisor_nothing_else(machine: SharedMachineRig) -> None:
    """PYTHONPATH, BASH_ENV and LD_PRELOAD of a job are the job's: what root executes has an environment of its own."""
    home = machine.root / "home/eve"
    for name in ("sitecustomize.py", "usercustomize.py"):
        (home / name).write_text("open('/home/eve/trapped', 'w')\n")
    (home / "trap.sh").write_text("echo > /home/eve/trapped\n")
    for trap in home.iterdir():
        os.chown(trap, PEOPLE["eve"], PEOPLE["eve"])
    words = ["--env", "PYTHONPATH=/home/eve", "--env", "PYTHONHOME=/home/eve", "--env", "LD_PRELOAD=/home/eve/x.so"]
    words += ["--env", "BASH_ENV=/home/eve/trap.sh", "--env", "ENV=/home/eve/trap.sh"]
    done = machine.moor("eve", "run", "--ipus", "1", *words, "--", "/bin/sh", "-c", "echo $PYTHONPATH")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "/home/eve"), done.stderr
    assert not (home / "trapped").exists()
    daemon = Path(f"/proc/{machine.daemon_pid()}/environ").read_bytes()
    assert daemon == b"PATH=/usr/local/bin:/usr/bin:/bin\0"


def test_a_job_opens_its_own_devices_only(machine: SharedMachineRig) -> None:
    """The device files are stand-ins without a driver: the kernel says ENXIO where a job may open one, else EPERM."""
    script = """
import errno, os
for number in [*range(64), "ctl"]:
    try:
        os.open(f"/dev/nvidia{number}", os.O_RDWR)
    except OSError as error:
        print(number, errno.errorcode[error.errno])
print("own", os.environ["MOORINGS_DEVICES"])
open("/dev/null", "w")
"""
    done = machine.moor("ann", "run", "--ipus", "2", "--", "/usr/bin/python3", "-c", script)
    assert done.returncode == 0, done
    found = dict(line.split() for line in done.stdout.splitlines())
    own = {name.partition(":")[2] for name in found.pop("own").split(",")}
    assert len(own) == 2
    assert {number for number, said in found.items() if said == "ENXIO"} == {*own, "ctl"}
    assert {said for number, said in found.items() if number not in own} == {"EPERM", "ENXIO"}
    done = machine.moor("bob", "run", "--size", "0", "--", "/usr/bin/python3", "-c", "open('/dev/nvidia0')")
    assert "PermissionError" in done.stdout + done.stderr, done


# -- a crowd -----------------------------------------------------------------------------------------------------------

# Jobs of one person: each holds a lock of every device that it has, some leave a process behind, a third is cancelled.
_SUBMIT = """
import random, secrets, sys, time
from pathlib import Path
from moorings.client import spool
from moorings.client.client import Client
from moorings.client.jobs import job_shape
from moorings.client.transport import Endpoint, RetryPolicy, Transport
from moorings.core.model.errors import MooringsError
from moorings.core.model.serialization import to_plain
from moorings.wire.shapes import RunRequest
from moorings.workloads.jobs import Accelerators, JobSpec, check_job

SCRIPT = '''
IFS=,
for device in $MOORINGS_DEVICES; do
    exec {fd}<"/home/devices/$device"
    flock -n $fd || echo "$device" >> ~/used-twice
done
mktemp ~/marks/"$1".XXXXXX > /dev/null
[ $(($1 % 4)) != 1 ] || (setsid sleep 300 &)
sleep 0.$(($1 % 7))
'''

def insist(call):
    for _ in range(2000):
        try:
            return call()
        except MooringsError as error:
            if not error.retryable:
                raise
            time.sleep(0.1)
    raise AssertionError("nobody answers")

home, n, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chosen = random.Random(seed)
client = Client(Transport(Endpoint("unix:///run/moorings/controller/api"), RetryPolicy(0)))
Path(home, "marks").mkdir(exist_ok=True)
made = []
for number in range(n):
    job = check_job(JobSpec(
        name=f"j{number}", command=("/bin/bash", "-c", SCRIPT, "job", str(number)), workdir=home,
        environment={"PATH": "/usr/bin:/bin", "HOME": home},
        accelerators=Accelerators(kind="ipu", size=chosen.choice((1, 1, 2, 4))),
    ))
    entry = insist(lambda: spool.hand_in(Path("/run/moorings/submit"), to_plain(job)))
    key = secrets.token_hex(16)
    request = RunRequest(job=job_shape(job), spool_entry=entry)
    made.append(insist(lambda: client.create_run(request, key)).id)
    if number % 3 == 2:
        insist(lambda: client.cancel_run(chosen.choice(made)))
for ident in made:
    while not insist(lambda: client.get_run(ident, wait_s=2)).ended_at:
        pass
    run = insist(lambda: client.get_run(ident))
    print(run.id, run.job.name, run.state, run.detail, run.attempt)
"""


@pytest.mark.parametrize(
    ("jobs", "kills"),
    [
        pytest.param(10, 2, id="few"),
        pytest.param(67, 20, id="200", marks=[pytest.mark.heavy, pytest.mark.timeout(1200)]),
    ],
)
def test_a_crowd_and_kills_leave_nothing_and_run_nothing_twice(
    machine: SharedMachineRig, jobs: int, kills: int
) -> None:
    """Each person starts so many jobs; the daemon and the controller are each killed so often meanwhile."""
    devices = machine.root / "home/devices"
    devices.mkdir(exist_ok=True)
    for number in range(64):
        (devices / f"pod64:{number}").touch(mode=0o644)
    for name in PEOPLE:
        shutil.rmtree(machine.root / "home" / name / "marks", ignore_errors=True)  # of the crowd before this one
    before = {path for name in PEOPLE for path in (machine.root / "home" / name).rglob("*")}  # a test's own files
    started = {
        name: machine.start_program(name, "-c", _SUBMIT, f"/home/{name}", str(jobs), str(PEOPLE[name]))
        for name in PEOPLE
    }
    for number in range(2 * kills):
        machine.kill(machine.daemon_pid() if number % 2 else machine.controller_pid())
        machine.up()
    for name, process in started.items():
        output, said = process.communicate(timeout=patient(300))
        assert process.returncode == 0, said[-3000:] + machine.logs()
        states = {line.split()[1].removeprefix("j"): line.split()[2] for line in output.splitlines()}
        assert len(states) == jobs
        assert set(states.values()) <= {"SUCCEEDED", "CANCELLED"}, output + machine.story() + machine.logs()
        home = machine.root / "home" / name
        marks = [path.name.partition(".")[0] for path in (home / "marks").iterdir()]
        assert len(marks) == len(set(marks)), f"run twice: {sorted(marks)}"
        assert {number for number, state in states.items() if state == "SUCCEEDED"} <= set(marks)
        made = [path for path in home.rglob("*") if path not in before]
        assert {path.lstat().st_uid for path in made} <= {PEOPLE[name]}, "files of somebody else"
        assert not (home / "used-twice").exists(), (home / "used-twice").read_text()
    until(lambda: machine.cgroups() == [], what=lambda: machine.cgroups())
    assert {name: machine.processes_of(name) for name in PEOPLE} == {name: [] for name in PEOPLE}
    for attempt in (machine.root / "var/lib/moorings-jobs/jobs").glob("*/*/run"):
        person = int(attempt.parent.parent.name.partition("-")[0])
        assert {path.lstat().st_uid for path in (attempt, *attempt.rglob("*"))} == {person}


def test_the_arrays_of_two_people_are_handed_in_run_by_run(machine: SharedMachineRig) -> None:
    script = 'id -u; echo "$MOORINGS_ARRAY_ID $SLURM_ARRAY_TASK_ID of $MOORINGS_ARRAY_SIZE"'
    script += "; test $MOORINGS_ARRAY_INDEX -lt 5"
    words = ("run", "--array", "3-5%2", "--size", "0", "--name", "sweep", "--", "sh", "-c", script)
    started = {name: machine.start(name, *words) for name in ("ann", "bob")}
    for name, process in started.items():
        _, said = process.communicate(timeout=patient(90))
        assert process.returncode == 1, said + machine.logs()
        array = said.split(":")[0]
        assert said.splitlines()[-1] == f"{array}: 1 FAILED (5), 2 SUCCEEDED"
        runs = machine.ask(name, "get", "run", array)["items"]
        assert [run["id"] for run in runs] == [f"{array}-{index}" for index in (3, 4, 5)]
        output = machine.moor(name, "logs", array, "--index", "4").stdout
        assert output == f"{PEOPLE[name]}\n{array} 4 of 3\n"


def test_an_array_that_the_controller_refuses_is_taken_back(machine: SharedMachineRig) -> None:
    spool = machine.root / "var/lib/moorings-jobs/spool" / str(PEOPLE["eve"])
    before = set(spool.iterdir()) if spool.exists() else set()
    refused = machine.moor("eve", "run", "--array", "0-3", "--ipus", "4096", "--", "true")
    assert refused.returncode != 0
    assert set(spool.iterdir()) == before


def test_people_see_who_runs_and_who_waits(machine: SharedMachineRig) -> None:
    (pool,) = machine.ask("ann", "get", "pools")["items"]
    size = str(pool["devices"])
    first = machine.moor(
        "ann", "run", "--detach", "--name", "first", "--ipus", size, "--", "sleep", "300"
    ).stdout.strip()
    until(lambda: machine.ask("ann", "get", "run", first)["state"] == "RUNNING")
    then = machine.moor("bob", "run", "--detach", "--name", "then", "--ipus", size, "--", "true").stdout.strip()
    until(lambda: machine.ask("bob", "get", "run", then)["state"] == "WAITING")
    for person in ("ann", "bob", "root"):
        entries = machine.ask(person, "get", "queue")["items"]
        assert [(each["user"], each["state"], each["size"], each.get("position")) for each in entries] == [
            ("ann", "RUNNING", pool["devices"], None),
            ("bob", "WAITING", pool["devices"], 1),
        ]
    assert machine.moor("bob", "get", "queue", "--mine", "-o", "name").stdout == f"run/{then}\n"
    frame = machine.moor("bob", "top", "--once")
    assert (frame.returncode, "   1 running, 1 waiting\n" in frame.stdout) == (0, True), frame
    # A busy machine may need longer for it than a login waits: then it says nothing.
    lines = until(lambda: machine.moor("bob", "motd").stdout.splitlines())
    assert lines == [
        f"Free: {pool['name']} 0 of {size} {pool['accelerator']}",
        "Waiting: 1 person with 1 job",
        "Yours: 0 running, 1 waiting",
        "  then waits at position 1: its block in use",
    ]
    assert until(lambda: machine.moor("root", "motd").stdout.splitlines()) == lines[:2]
    assert machine.moor("ann", "cancel", first).returncode == 0
    until(lambda: machine.ask("bob", "get", "run", then)["state"] == "SUCCEEDED")
    assert machine.ask("ann", "get", "queue")["items"] == []


def doctor(machine: SharedMachineRig, person: str, only: str) -> list[dict[str, str]]:
    """What ``moor doctor`` finds."""
    items: list[dict[str, str]] = json.loads(machine.moor(person, "doctor", "--only", only, "-o", "json").stdout)[
        "items"
    ]
    return items


def test_a_restored_machine_knows_what_was_started_since(machine: SharedMachineRig) -> None:
    """Laws 1 and 3: what the backup has waiting is not started again, and what it does not have keeps its devices."""
    script = "echo >> begun; while [ ! -e end ]; do sleep 0.1; done"
    held = machine.moor("bob", "run", "--detach", "--ipus", "64", "--", "sleep", "300").stdout.strip()
    until(lambda: machine.ask("bob", "get", "run", held)["state"] == "RUNNING")
    waits = machine.moor("ann", "run", "--detach", "--ipus", "2", "--", "sh", "-c", script).stdout.strip()
    until(lambda: machine.ask("ann", "get", "run", waits)["state"] == "WAITING")
    saved = machine.moor("root", "backup", "--system", "/var/lib/moorings/saved.tar.gz")
    assert saved.returncode == 0, saved.stderr
    assert machine.moor("bob", "cancel", held, "--wait").returncode == 0
    since = machine.moor("eve", "run", "--detach", "--ipus", "2", "--", "sh", "-c", script).stdout.strip()
    until(lambda: machine.ask("ann", "get", "run", waits)["state"] == "RUNNING")
    until(lambda: machine.ask("eve", "get", "run", since)["state"] == "RUNNING")
    machine.down()
    restored = machine.moor("root", "restore", "--system", "-y", "/var/lib/moorings/saved.tar.gz")
    assert restored.returncode == 0, restored.stderr
    assert f"{waits} started since: they are not started again" in restored.stdout
    assert f"jobs run on {', '.join(sorted((waits, since)))};" in restored.stdout
    machine.up()
    until(lambda: machine.ask("ann", "get", "run", waits)["state"] == "RUNNING", what=machine.logs)
    assert machine.moor("eve", "get", "run", since).returncode == 3, "no record has it"
    # A busy machine may need longer than the doctor waits.
    (found,) = until(lambda: [one for one in doctor(machine, "root", "host.runs") if one["verdict"] != "SKIP"])
    assert (found["verdict"], since in found["evidence"]) == ("WARN", True), found
    assert machine.moor("ann", "cancel", waits, "--wait").returncode == 0
    (machine.root / "home/eve/end").touch()
    until(lambda: machine.cgroups() == [])
    assert machine.moor("root", "restore", "--system", "--finish", "-y").returncode == 0
    until(lambda: machine.ask("root", "get", "partitions")["items"] == [], what=machine.logs)
    for person in ("ann", "eve"):
        assert (machine.root / "home" / person / "begun").read_text() == "\n", "it began once"


def test_the_doctor_says_that_a_login_opens_what_belongs_to_jobs(machine: SharedMachineRig) -> None:
    """Nothing closes device files to logins here."""
    for person in ("root", "eve"):
        (found,) = doctor(machine, person, "devices.logins")
        assert (found["verdict"], "/dev/nvidia0" in found["evidence"]) == ("FAIL", True), found
    (found,) = until(lambda: [one for one in doctor(machine, "root", "host.folder") if one["verdict"] != "SKIP"])
    assert found["verdict"] == "PASS", "looked at as the controller's user"
