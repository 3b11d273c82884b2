"""A machine that people share, under systemd: its units on a real boot, on each kind of cgroups."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from moorings.app.folders import DEFAULT_POOLS
from moorings.privileged.daemon import STOPPED
from tests.e2e.systemd_machine import HIERARCHIES, SystemdMachineRig, cannot_be_virtual
from tests.waiting import patient, until

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.slow,
    pytest.mark.skipif(bool(cannot_be_virtual()), reason=cannot_be_virtual()),
    pytest.mark.timeout(patient(400)),  # the processor is emulated
]
SCOPE = "system.slice/moorings-jobs.scope"
INSTALL = """
cd /opt/checkout/deploy
cp systemd/moorings-jobs.service systemd/moorings-controller.service /etc/systemd/system/
mkdir /etc/systemd/system/moorings-controller.service.d
cp systemd/no-local-jobs.conf systemd/shared-machine.conf /etc/systemd/system/moorings-controller.service.d/
printf '[Service]\\nTimeoutStartSec=infinity\\nWatchdogSec=0\\n' > /tmp/slow.conf
cp /tmp/slow.conf /etc/systemd/system/moorings-controller.service.d/
cp dbus/moorings-jobs.conf /etc/dbus-1/system.d/
systemctl reload dbus
systemctl daemon-reload
for number in $(seq 0 15); do mknod -m 666 /dev/nvidia$number c 195 $number; done # without a driver
mknod -m 666 /dev/nvidiactl c 195 255
useradd --system --home-dir /var/lib/moorings --shell /usr/sbin/nologin moorings
useradd --create-home --shell /bin/bash ann
install --directory --owner moorings --mode 700 /var/lib/moorings
printf %s "$1" > /var/lib/moorings/pools.toml
systemctl enable moorings-jobs moorings-controller
systemctl start --no-block moorings-controller
"""
ATTACH = (
    *("busctl", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"),
    *("AttachProcessesToUnit", "ssau"),
)
CLOSE = """
cd /etc/systemd/system
mkdir user.slice.d cron.service.d
cp /opt/checkout/deploy/systemd/closed-devices.conf user.slice.d/
sed 's/\\[Slice\\]/[Service]/' user.slice.d/closed-devices.conf > cron.service.d/closed-devices.conf
printf '[Service]\\nType=oneshot\\nUser=ann\\nExecStart=/bin/cat /dev/nvidia0\\n' > cron.service
systemctl daemon-reload
"""
# Both in one transaction and in their order; "systemctl stop" of two units asks for one, and then for the other.
SHUT_DOWN = """
units='moorings-jobs.service moorings-jobs.scope'
printf '[Unit]\\nConflicts=%s\\nAfter=%s\\n' "$units" "$units" > /run/systemd/system/closing.target
systemctl daemon-reload
systemctl start closing.target
"""
LOOK = "cat /dev/nvidia0; cat /dev/nvidiactl; cat /dev/null"
OPENS, CLOSED = "No such device or address", "Operation not permitted"  # without a driver; of the cgroup
JOB = "setsid sleep 1000 & echo $$; while [ ! -e go ]; do sleep 0.2; done; echo after"


@pytest.fixture(scope="module", params=sorted(HIERARCHIES))
def machine(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[SystemdMachineRig]:
    booted = SystemdMachineRig(tmp_path_factory.mktemp("machine"), request.param)
    try:
        yield booted
    finally:
        booted.close()


def limits_of_job(machine: SystemdMachineRig) -> list[str]:
    """Memory, CPU and tasks of the only job, wherever their controllers are."""
    names = ("memory.max", "memory.limit_in_bytes", "cpu.max", "cpu.cfs_quota_us", "pids.max")
    tests = " -o ".join(f"-name {name}" for name in names)
    find = f"find /sys/fs/cgroup -path '*/{SCOPE}/jobs/*/*' \\( {tests} \\) -exec cat {{}} +"
    return sorted(machine.output("sh", "-c", find).splitlines())


def test_jobs_are_in_a_scope_that_outlives_the_service(machine: SystemdMachineRig) -> None:
    pools = f'{DEFAULT_POOLS}[pool.simulated]\ndevice_files = "/dev/nvidia{{}}"\n'
    machine.output("sh", "-ec", INSTALL, "sh", pools)
    until(lambda: machine.command("systemctl", "is-active", "moorings-controller").returncode == 0, 200)
    assert machine.output("systemctl", "show", "--value", "--property=Delegate", "moorings-jobs.scope") == "yes\n"

    words = ("--detach", "--size", "0", "--memory", "64M", "--cpus", "1", "--", "sh", "-c", JOB)
    done = machine.as_person("ann", "moor", "run", *words)
    assert done.returncode == 0, done.stderr + machine.journal()
    ident = done.stdout.strip()
    pid = until(lambda: machine.as_person("ann", "moor", "logs", ident).stdout.strip(), 100)
    places = [line for line in machine.output("cat", f"/proc/{pid}/cgroup").splitlines() if not line.endswith(":/")]
    known = [line for line in places if line.startswith("0::") or ":name=systemd:" in line]  # to systemd
    assert known, places
    assert [line for line in known if f"/{SCOPE}/jobs/" not in line] == [], "systemd would take it for the service's"
    assert limits_of_job(machine) in (["10000", "100000", "67108864"], ["10000", "100000 100000", "67108864"])

    machine.output("systemctl", "restart", "moorings-jobs")
    machine.output("systemctl", "kill", "--signal=KILL", "moorings-jobs")
    until(lambda: machine.command("systemctl", "is-active", "moorings-jobs").returncode == 0, 100)
    machine.output("systemctl", "stop", "moorings-jobs")
    machine.output("systemctl", "start", "moorings-jobs")
    for verb, instead in (("up", "enable --now"), ("down", "stop")):
        said = machine.command("moor", verb, "--system").stderr
        assert f"systemctl {instead} moorings-jobs.service moorings-controller.service" in said
    refused = machine.as_person("ann", *ATTACH, "user@1001.service", "/", "0")
    assert "Access denied" in refused.stderr

    machine.output("su", "ann", "-c", "touch ~/go")
    until(lambda: machine.ask("ann", "get", "run", ident)["state"] == "SUCCEEDED", 100)
    assert machine.as_person("ann", "moor", "logs", ident).stdout == f"{pid}\nafter\n"
    until(lambda: machine.command("pgrep", "-u", "ann", "-x", "sleep").returncode == 1)


def test_a_job_ends_at_its_memory_and_alone(machine: SystemdMachineRig) -> None:
    words = ("--detach", "--name", "other", "--size", "0", "--", "sleep", "1000")
    assert machine.as_person("ann", "moor", "run", *words).returncode == 0
    hog = ("/opt/moorings/bin/python", "-c", "x = bytearray(200 << 20)")
    done = machine.as_person("ann", "moor", "run", "--size", "0", "--memory", "64M", "--", *hog)
    said = done.stderr + machine.journal()
    assert (done.returncode, "it used more memory than it has" in done.stderr) == (137, True), said
    assert machine.as_person("ann", "moor", "run", "--size", "0", "--", "true").returncode == 0, machine.journal()
    assert machine.ask("ann", "get", "run", "other")["state"] == "RUNNING", machine.journal()


def test_the_controller_has_no_powers(machine: SystemdMachineRig) -> None:
    pid = machine.output("systemctl", "show", "--value", "--property=MainPID", "moorings-controller").strip()
    lines = machine.output("cat", f"/proc/{pid}/status").splitlines()
    found = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    assert (found["CapBnd"], found["CapEff"], found["NoNewPrivs"]) == (["0" * 16], ["0" * 16], ["1"])
    assert found["Uid"] == [machine.output("id", "-u", "moorings").strip()] * 4


def test_devices_are_closed_to_jobs_that_were_not_given_them(machine: SystemdMachineRig) -> None:
    script = "echo $MOORINGS_DEVICES; for n in $(seq 0 15) ctl; do cat /dev/nvidia$n; done; exec cat /dev/null"
    done = machine.as_person("ann", "moor", "run", "--ipus", "2", "--", "sh", "-c", f"{{ {script}; }} 2>&1")
    assert done.returncode == 0, done.stderr + machine.journal()
    devices, *said = done.stdout.splitlines()
    opened = {line.split()[1].removeprefix("/dev/nvidia").rstrip(":") for line in said if line.endswith(OPENS)}
    assert opened == {*(device.partition(":")[2] for device in devices.split(",")), "ctl"}
    assert sum(line.endswith(CLOSED) for line in said) == 14


def test_a_drop_in_closes_devices_to_logins_also_to_those_that_are_there(machine: SystemdMachineRig) -> None:
    assert machine.as_person("ann", "sh", "-c", LOOK).stderr.count(OPENS) == 2
    session = "echo $$ > there; while [ ! -e look ]; do sleep 0.2; done; cat /dev/nvidia0 2> said; touch looked"
    machine.output("sh", "-c", f"setsid su - ann -c {shlex.quote(session)} < /dev/null > /dev/null 2>&1 &")
    until(lambda: machine.command("test", "-e", "/home/ann/there").returncode == 0, 50)
    machine.output("sh", "-ec", CLOSE)
    machine.output("touch", "/home/ann/look")
    until(lambda: machine.command("test", "-e", "/home/ann/looked").returncode == 0, 50)
    assert CLOSED in machine.output("cat", "/home/ann/said")
    assert machine.as_person("ann", "sh", "-c", LOOK).stderr.count(CLOSED) == 2
    login = ("systemd-run", "--pipe", "--wait", "--quiet", "--property=PAMName=login", "--property=User=ann")
    assert machine.command(*login, "sh", "-c", LOOK).stderr.count(CLOSED) == 2
    assert machine.as_person("root", "sh", "-c", LOOK).stderr.count(CLOSED) == 2
    assert machine.command("systemd-run", "--pipe", "--wait", "--quiet", "sh", "-c", LOOK).stderr.count(OPENS) == 2
    assert machine.command("systemctl", "start", "cron.service").returncode == 1
    assert CLOSED in machine.output("journalctl", "--unit=cron.service", "--output=cat")
    terminal = machine.as_person("ann", "script", "--quiet", "--command", "echo a line > /dev/tty", "/dev/null")
    assert (terminal.returncode, terminal.stdout) == (0, "a line\n"), terminal.stderr
    test_devices_are_closed_to_jobs_that_were_not_given_them(machine)


def test_root_ends_all_jobs_with_the_scope_and_the_next_is_made(machine: SystemdMachineRig) -> None:
    machine.output("systemctl", "stop", "moorings-jobs.scope")
    assert machine.command("pgrep", "-u", "ann", "-x", "sleep").returncode == 1
    assert_stopped(machine, "other")
    until(lambda: machine.command("systemctl", "is-active", "moorings-jobs.scope").returncode == 0, 100)
    until(lambda: machine.as_person("ann", "moor", "run", "--size", "0", "--", "true").returncode == 0, 100)


def test_as_the_machine_stops_the_end_of_each_job_is_seen(machine: SystemdMachineRig) -> None:
    words = ("--detach", "--name", "last", "--size", "0", "--", "sleep", "1000")
    assert machine.as_person("ann", "moor", "run", *words).returncode == 0
    until(lambda: machine.ask("ann", "get", "run", "last")["state"] == "RUNNING", 100)
    machine.output("sh", "-euc", SHUT_DOWN)
    machine.output("systemctl", "start", "moorings-jobs")
    assert_stopped(machine, "last")
    find = "cat $(ls -t /var/lib/moorings-jobs/jobs/*/0/end.json | head -n 1)"
    end = json.loads(machine.output("sh", "-c", find))
    assert (end["code"], end["stopped"]) == (0, True), "the daemon has seen it, before it ended itself"


def assert_stopped(machine: SystemdMachineRig, name: str) -> None:
    def run() -> Any:
        return machine.ask("ann", "get", "run", name)

    until(lambda: run()["state"] not in ("RUNNING", "STOPPING"), 50, what=lambda: f"{run()}{machine.journal()}")
    assert (run()["state"], STOPPED in run()["detail"]) == ("LOST", True), run()


def test_nothing_is_left(machine: SystemdMachineRig) -> None:
    machine.output("systemctl", "stop", "moorings-controller", "moorings-jobs", "moorings-jobs.scope")
    refused = machine.command("moor", "restore", "--system", "-y", "--finish")
    assert (refused.returncode, "systemd starts and stops the root daemon" in refused.stderr) == (2, True), refused
    assert machine.output("sh", "-c", "find /sys/fs/cgroup -path '*moorings*' -name cgroup.procs -exec cat {} +") == ""
    assert machine.command("pgrep", "--list-full", "--full", r"^(\S*python\S* .*-m moorings|sleep )").stdout == ""
