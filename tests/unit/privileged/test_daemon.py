"""The root daemon with real processes, users and cgroups."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from ast import literal_eval
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moorings.privileged import connections, daemon, peers, records
from moorings.privileged import trash as trash_module
from moorings.privileged.attempts import boot_id, start_ticks
from moorings.privileged.cgroups import CgroupTree, JobLimits
from moorings.privileged.daemon import STOPPED
from moorings.privileged.records import read_record
from moorings.privileged.spool import Spool
from tests.lingering import send_lingering
from tests.unit.privileged.rig import ANN, BOB, CONTROLLER, NEEDS_ROOT, PYTHON, RootRig, remove_base
from tests.waiting import patient, until

pytestmark = NEEDS_ROOT
NO_OPTION = 9999  # of any socket
SUPERVISOR = """
import json, os, signal, subprocess, sys, time
folder, given = sys.argv[1], json.load(sys.stdin)
os.chdir(f"{folder}/run")
def say(name, text):
    with open(f".{name}", "w") as file: file.write(str(text))
    os.rename(f".{name}", name)
asked = lambda *_: say("asked", open(f"{folder}/cancel.json").read())
signal.signal(signal.SIGRTMIN, asked)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
say("began", json.dumps({"ids": os.getresuid() + os.getresgid(), "groups": os.getgroups(), "given": given,
    "environment": dict(os.environ), "descriptors": sorted(os.listdir("/proc/self/fd")), "umask": os.umask(0o77)}))
exec(given["job"]["does"])
"""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[RootRig]:
    made = new_rig(tmp_path)
    yield made
    made.end()


def new_rig(folder: Path) -> RootRig:
    script = folder / "supervisor.py"
    script.write_text(SUPERVISOR)
    made = RootRig(folder, f"moorings-test-{os.getpid()}", (str(PYTHON), "-I", "-S", str(script)))
    made.start()
    return made


def test_a_job_is_the_persons_and_nothing_of_root_is_left_in_it(rig: RootRig) -> None:
    entry = rig.spool(ANN, "sys.exit(7)")
    assert rig.begin(entry)["state"] in ("RUNNING", "ENDING", "ENDED")
    seen = json.loads(rig.run_file(entry, "began"))
    assert seen["ids"] == [ANN] * 6
    assert seen["groups"] == [ANN]
    assert seen["given"] == {"job": {"does": "sys.exit(7)"}, "order": {"run": "run-1"}, "attempt": 0}
    assert seen["environment"] == {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": "/nonexistent",
        "USER": "ann-x",
        "LOGNAME": "ann-x",
        "SHELL": "/bin/sh",
    } | ({"LC_CTYPE": "C.UTF-8"} if "LC_CTYPE" in seen["environment"] else {})
    assert seen["descriptors"] == ["0", "1", "2", "3"], "the fourth is that of the list itself"
    assert seen["umask"] == 0o77
    run = (rig.folder / "jobs" / entry / "0" / "run").stat()
    assert (run.st_uid, run.st_gid, run.st_mode & 0o7777) == (ANN, CONTROLLER, 0o2750)
    end = rig.ended(entry)
    assert (end["code"], end["why"], end["oomKills"]) == (7, "", 0)


def test_what_a_job_leaves_behind_ends_with_it(rig: RootRig) -> None:
    daemonises = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say("left", os.getpid())
        time.sleep(3600)
    os._exit(0)
while not os.path.exists("left"): time.sleep(0.01)
"""
    entry = rig.spool(ANN, daemonises)
    rig.begin(entry)
    left = int(rig.run_file(entry, "left"))
    assert rig.ended(entry)["code"] == 0
    assert start_ticks(left) == -1 or Path(f"/proc/{left}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    assert rig.tree().names() == set()


def test_a_fork_bomb_ends_at_its_limit_and_with_its_job(rig: RootRig) -> None:
    bomb = """
made = 0
try:
    while made < 500:
        if os.fork() == 0:
            time.sleep(3600)
        made += 1
except BlockingIOError:
    pass
say("made", made)
"""
    if "pids" not in rig.tree().limited:
        pytest.skip("no cgroup limits processes here")
    entry = rig.spool(ANN, bomb)
    rig.begin(entry, tasks=20)
    assert rig.run_file(entry, "made") == "19"
    assert rig.ended(entry)["code"] == 0


def test_a_job_over_its_memory_ends_with_that_reason(rig: RootRig) -> None:
    if "memory" not in rig.tree().limited:
        pytest.skip("no cgroup limits memory here")
    entry = rig.spool(ANN, "x = bytearray(300 << 20); say('has', 1)")
    rig.begin(entry, memoryBytes=100 << 20)
    end = rig.ended(entry)
    assert (end["code"], end["oomKills"]) == (128 + signal.SIGKILL, 1)


def test_a_job_with_less_memory_than_its_start_needs_has_ended(rig: RootRig) -> None:
    if "memory" not in rig.tree().limited:
        pytest.skip("no cgroup limits memory here")
    entry = rig.spool(ANN, "pass")
    rig.begin(entry, memoryBytes=1)
    assert rig.ended(entry)["oomKills"] > 0


def test_a_daemon_that_gets_no_process_goes_on(rig: RootRig, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = rig.spool(ANN, "pass")
    rig.begin(ended)
    rig.ended(ended)
    rig.kill()
    none_left = rig.folder.parent / "none-left"

    def fork(fork: Callable[[], int] = os.fork) -> int:
        if none_left.exists():
            raise BlockingIOError
        return fork()

    monkeypatch.setattr(os, "fork", fork)
    rig.start()
    none_left.touch()
    assert rig.ask(ANN, "submit", {"op": "spool", "job": {}})["error"] == "daemon.busy"
    trash = forget(rig, ended)
    assert list(trash.iterdir()) != []
    none_left.unlink()
    rig.spool(ANN, "pass")
    until(lambda: not list(trash.iterdir()), 30)


def test_a_job_has_nothing_of_the_login_that_started_the_daemon(rig: RootRig) -> None:
    Path(f"/proc/{rig.pid}/oom_score_adj").write_text("500")  # a lower one is not for every root
    entry = rig.spool(ANN, "say('has', [open(f'/proc/self/{name}').read() for name in ('oom_score_adj', 'loginuid')])")
    rig.begin(entry)
    score, login = literal_eval(rig.run_file(entry, "has"))
    assert (int(score), int(login)) == (0, ANN)


def test_a_limit_that_cannot_be_set_is_refused(rig: RootRig, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = rig.tree().limited
    assert rig.control("status", "", entries=[])["limits"] == sorted(limited)
    rig.kill()
    prepare = CgroupTree.prepare

    def prepare_less(tree: CgroupTree) -> None:
        prepare(tree)
        tree.limited = frozenset({"pids"})

    monkeypatch.setattr(CgroupTree, "prepare", prepare_less)
    rig.start()
    assert rig.control("status", "", entries=[])["limits"] == ["pids"]
    entry = rig.spool(ANN, "pass")
    refused = rig.begin(entry, cpus=1, memoryBytes=1 << 30, tasks=10)
    assert (refused["error"], refused["detail"]) == (
        "limit.unavailable",
        "this machine cannot limit a job's use of cpu, memory",
    )
    assert rig.state(entry)["state"] == "ABSENT"
    rig.begin(entry)
    assert rig.ended(entry)["code"] == 0


def test_a_request_reaches_the_supervisor_and_no_one_else_can_make_one(rig: RootRig) -> None:
    entry = rig.spool(ANN, "while not os.path.exists('asked'): time.sleep(0.01)")
    rig.begin(entry)
    rig.run_file(entry, "began")
    assert "error" in rig.ask(ANN, "control", {"op": "kill", "entry": entry, "attempt": 0})
    asked: dict[str, Any] = {"name": "cancel", "record": {"reason": "enough"}, "signal": signal.SIGRTMIN}
    for wrong in ({"signal": signal.SIGKILL}, {"name": "../x"}, {"name": "started"}, {"record": "x"}):
        assert rig.control("ask", entry, **(asked | wrong))["error"] == "request.invalid"
    rig.control("ask", entry, **asked)
    assert json.loads(rig.run_file(entry, "asked")) == {"reason": "enough"}
    assert rig.ended(entry)["code"] == 0
    request = (rig.folder / "jobs" / entry / "0" / "cancel.json").stat()
    assert (request.st_uid, stat.S_IMODE(request.st_mode)) == (ANN, 0o600), "others know the folder, of its process"


def test_a_request_waits_for_a_supervisor_that_does_not_listen_yet(rig: RootRig, tmp_path: Path) -> None:
    """As one does that Python is still starting: the signal would kill it, and the run would be lost."""
    script = tmp_path / "supervisor.py"
    script.write_text(SUPERVISOR.replace("signal.signal(", "time.sleep(1)\nsignal.signal(", 1))
    entry = rig.spool(ANN, "while not os.path.exists('asked'): time.sleep(0.01)")
    rig.begin(entry)
    rig.control("ask", entry, name="cancel", record={"reason": "enough"}, signal=signal.SIGRTMIN)
    assert json.loads(rig.run_file(entry, "asked")) == {"reason": "enough"}
    assert rig.ended(entry)["code"] == 0


def test_nothing_is_taken_in_for_a_daemon_that_was_killed(rig: RootRig) -> None:
    """The next one removes drafts: a process of the last one that still wrote one would fail, and so its person."""
    rig.slow.touch()
    answers: list[dict[str, Any]] = []
    job = {"op": "spool", "job": {"does": ""}}
    asks = threading.Thread(target=lambda: answers.append(rig.ask(ANN, "submit", job)))
    asks.start()
    children = Path(f"/proc/{rig.pid}/task/{rig.pid}/children")
    until(lambda: bool(children.read_text().split()), 30)
    rig.kill()
    rig.slow.unlink()
    asks.join()
    assert "entry" not in answers[0]
    assert [path for path in (rig.folder / "spool").rglob("*") if path.is_file()] == []


def test_the_first_reason_for_a_cancel_stays(rig: RootRig) -> None:
    """Also when the second comes before the supervisor has read it."""
    entry = rig.spool(ANN, "signal.signal(signal.SIGRTMIN, signal.SIG_IGN); say('deaf', ''); time.sleep(3600)")
    rig.begin(entry)
    rig.run_file(entry, "deaf")
    for name, why in (("cancel", "Ann"), ("cancel", "Bob"), ("yield", "first"), ("yield", "sooner")):
        rig.control("ask", entry, name=name, record={"reason": why}, signal=signal.SIGRTMIN)
    attempt = rig.folder / "jobs" / entry / "0"
    said = [json.loads((attempt / f"{name}.json").read_text()) for name in ("cancel", "yield")]
    assert said == [{"reason": "Ann"}, {"reason": "sooner"}]
    rig.control("kill", entry)
    rig.ended(entry)


def test_a_killed_job_has_ended_when_nothing_is_left(rig: RootRig) -> None:
    entry = rig.spool(ANN, "time.sleep(3600)")
    rig.begin(entry)
    rig.run_file(entry, "began")
    rig.control("kill", entry)
    end = rig.ended(entry)
    assert (end["code"], rig.tree().names()) == (128 + signal.SIGKILL, set())


def test_an_attempt_is_started_once_and_the_next_one_after_its_end(rig: RootRig) -> None:
    entry = rig.spool(ANN, "while not os.path.exists('go-on'): time.sleep(0.01)")
    answers: list[dict[str, Any]] = []
    threads = [threading.Thread(target=lambda: answers.append(rig.begin(entry))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {(each.get("attempt"), each.get("state")) for each in answers} == {(0, "RUNNING")}
    assert rig.begin(entry, 1)["error"] == "attempt.live"
    rig.run_file(entry, "began")
    Path(rig.state(entry)["folder"], "run", "go-on").touch()
    rig.ended(entry)
    assert rig.begin(entry, 0)["state"] == "ENDED", "an old order starts nothing"
    assert rig.begin(entry, 1)["attempt"] == 1
    rig.run_file(entry, "began", 1)
    rig.control("kill", entry, 1)
    rig.ended(entry)


def test_an_entry_belongs_to_one_run(rig: RootRig) -> None:
    """A second run of it would follow the processes of the first, with other devices."""
    entry = rig.spool(ANN, "sys.exit(3)")
    rig.begin(entry)
    rig.ended(entry)
    for attempt in (0, 1):
        answer = rig.control("start", entry, attempt, limits={}, order={"run": "run-2"})
        assert answer["error"] == "entry.used"
    assert rig.begin(entry)["state"] == "ENDED"


def test_a_daemon_that_was_killed_finds_its_jobs_and_their_ends(rig: RootRig) -> None:
    lives, ends = (rig.spool(ANN, "while not os.path.exists('go-on'): time.sleep(0.01)") for _ in range(2))
    for entry in (lives, ends):
        rig.begin(entry)
        rig.run_file(entry, "began")
    rig.kill()
    for entry in (ends,):
        (rig.folder / "jobs" / entry / "0" / "run" / "go-on").touch()
    rig.start()
    end = rig.ended(ends)
    assert (end["code"], end["why"], end["stopped"]) == (None, "its end was not seen", False)
    assert rig.state(lives)["state"] == "RUNNING"
    assert rig.begin(lives)["state"] == "RUNNING", "it is not started a second time"
    (rig.folder / "jobs" / lives / "0" / "run" / "go-on").touch()
    rig.ended(lives)


WAITS = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\nsay('waits', os.getpid())\ntime.sleep(3600)"


def test_the_daemon_of_a_scope_that_is_stopped_stays_until_it_has_recorded_the_ends(rig: RootRig) -> None:
    stopped, cancelled = rig.spool(ANN, WAITS), rig.spool(ANN, WAITS)
    for entry in (stopped, cancelled):
        rig.begin(entry)
        rig.run_file(entry, "waits")
    rig.control("ask", cancelled, signal=signal.SIGRTMIN, name="cancel", record={"reason": "asked"})
    rig.sleeping.write_text("")
    rig.asked.touch()
    assert rig.begin(rig.spool(ANN, WAITS))["error"] == "daemon.stopping"
    for entry in (stopped, cancelled):
        os.kill(int(rig.run_file(entry, "waits")), signal.SIGTERM)
    rig.wait()
    end, other = (read_record(rig.folder / "jobs" / entry / "0" / "end.json") or {} for entry in (stopped, cancelled))
    assert (end["code"], end["stopped"], end["why"]) == (9, True, STOPPED)
    assert (other["code"], other["stopped"], other["why"]) == (9, False, "")


def test_what_a_stopped_scope_leaves_is_killed(rig: RootRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """On v1 systemd does not wait for what ignores TERM."""
    monkeypatch.setattr(daemon, "STOP_S_MAX", 0.1)
    rig.kill()
    rig.start()
    entry = rig.spool(ANN, "time.sleep(3600)")
    rig.begin(entry)
    rig.run_file(entry, "began")
    rig.sleeping.write_text("")
    rig.wait()
    end = read_record(rig.folder / "jobs" / entry / "0" / "end.json") or {}
    assert (end["code"], end["stopped"]) == (128 + signal.SIGKILL, True)


@pytest.mark.parametrize("runs", [False, True], ids=["while no daemon runs", "and the daemon ends"])
def test_jobs_of_a_scope_that_is_gone_were_stopped(rig: RootRig, runs: bool) -> None:
    entry = rig.spool(ANN, WAITS)
    rig.begin(entry)
    rig.run_file(entry, "waits")
    if not runs:
        rig.kill()
    rig.sleeping.unlink()
    cgroup = rig.tree().job(f"{entry}.0")
    until(cgroup.kill, 30)
    until(cgroup.remove, 30)
    if runs:
        remove_base(rig.base)
        rig.wait()
    rig.sleeping.write_text("2\n")  # the next scope
    rig.start()
    end = rig.ended(entry)
    assert (end["stopped"], end["why"]) == (True, STOPPED)


@pytest.mark.parametrize("recorded", [False, True])
def test_a_start_that_was_cut_off_began_nothing_and_can_be_made_again(rig: RootRig, recorded: bool) -> None:
    entry = rig.spool(ANN, "sys.exit(3)")
    rig.kill()
    attempt = rig.folder / "jobs" / entry / "0"  # as the daemon leaves it that dies before it lets the process begin
    (attempt / "run").mkdir(parents=True)
    (attempt / "attempt.json").write_text("{}")
    if recorded:
        (attempt / "started.json").write_text(json.dumps({"pid": 1 << 22, "ticks": 1, "boot": boot_id()}))
    rig.start()
    until(lambda: rig.state(entry)["state"] == "ABSENT", 30)
    rig.begin(entry)
    assert rig.ended(entry)["code"] == 3


def test_a_cgroup_that_a_killed_daemon_left_empty_is_removed_by_the_next(rig: RootRig) -> None:
    rig.kill()
    rig.tree().job("left").create(JobLimits())
    rig.start()
    until(lambda: rig.tree().names() == set(), 30)


def test_nobody_starts_what_was_not_handed_in(rig: RootRig) -> None:
    for entry in (f"{ANN}-{'0' * 32}", "../../etc/passwd", f"{ANN}-../x", None, 7):
        assert rig.begin(entry)["error"] in ("entry.unknown", "entry.invalid")  # type: ignore[arg-type]
    mine = rig.spool(ANN, "pass")
    assert "error" in rig.ask(ANN, "control", {"op": "start", "entry": mine, "attempt": 0, "limits": {}, "order": {}})
    assert rig.ask(BOB, "submit", {"op": "withdraw", "entry": mine})["error"] == "entry.unknown"
    assert rig.ask(ANN, "submit", {"op": "start", "entry": mine, "attempt": 0})["error"] == "request.invalid"
    assert rig.ask(ANN, "submit", {"op": "withdraw", "entry": mine})["state"] == "ABSENT"
    assert rig.begin(mine)["error"] == "entry.unknown"


@pytest.mark.parametrize(
    "sent",
    [b"", b"{", b"[]", b"null", b"{}", b'{"op": []}', b'{"op": "spool"}', b'{"op": "spool", "job": 3}', b"[" * 100_000],
    ids=repr,
)
def test_what_is_no_request_is_refused(rig: RootRig, sent: bytes) -> None:
    assert rig.ask(ANN, "submit", sent)["error"] == "request.invalid"
    assert "entry" in rig.ask(ANN, "submit", {"op": "spool", "job": {}})


def test_a_person_who_says_nothing_holds_nobody_up(rig: RootRig) -> None:
    silent = [rig.connect("submit") for _ in range(50)]
    for each in silent[::2]:
        with contextlib.suppress(BrokenPipeError):
            each.sendall(b'{"op": "spool", ')
    entry = rig.spool(ANN, "pass")  # the silent ones are root's
    assert rig.begin(entry)["attempt"] == 0
    assert rig.ended(entry)["code"] == 0
    for each in silent:
        each.close()


@pytest.mark.parametrize("number", [peers.PASS_RIGHTS, NO_OPTION], ids=["refused", "an older kernel"])
def test_a_descriptor_that_is_slow_to_close_holds_nobody_up(
    rig: RootRig, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    rig.kill()
    monkeypatch.setattr(peers, "PASS_RIGHTS", number)
    rig.start()
    read, closed = rig.connect("submit"), rig.connect("submit")
    with send_lingering(read, b"{") as passes, send_lingering(closed, b"{"):
        assert passes or number != NO_OPTION
        closed.close()
        entry = rig.spool(ANN, "pass")
        assert rig.begin(entry)["attempt"] == 0
        assert rig.ended(entry)["code"] == 0
        assert rig.ask(ANN, "submit", {"op": "withdraw", "entry": entry})["error"] == "attempt.live"
    read.close()


def test_the_fifth_request_of_one_person_is_told_so(rig: RootRig) -> None:
    silent = [rig.connect("submit") for _ in range(5)]
    assert json.loads(silent[-1].recv(1 << 16))["error"] == "daemon.busy"
    entry = rig.spool(ANN, "pass")
    assert rig.ask(ANN, "submit", {"op": "withdraw", "entry": entry})["state"] == "ABSENT"
    for each in silent:
        each.close()


HOLDS_PLACES = """
import os, socket, sys
held = []
for uid in range(70_000, 70_100):  # as newuidmap gives somebody
    os.setresuid(uid, uid, 0)
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].connect(sys.argv[1])
    os.setresuid(0, 0, 0)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_newcomer_has_a_place_among_one_persons_many_users(rig: RootRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.kill()
    monkeypatch.setattr(connections, "RECEIVE_S_MAX", 3600.0)  # so that no place is free by itself
    rig.start()
    words = [sys.executable, "-I", "-S", "-c", HOLDS_PLACES, str(rig.sockets / "submit")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        rig.spool(ANN, "pass")


def test_what_is_withdrawn_is_not_started_at_the_same_time(rig: RootRig, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = rig.spool(ANN, "pass")
    rig.kill()
    remove, removing, goes_on = Spool.remove, rig.folder.parent / "removing", rig.folder.parent / "go-on"

    def remove_late(spool: Spool, which: str) -> None:
        removing.write_text(f"{os.getpid()}\n")
        until(goes_on.exists)
        remove(spool, which)

    monkeypatch.setattr(Spool, "remove", remove_late)
    rig.start()
    answers: dict[str, dict[str, Any]] = {}
    withdraws = threading.Thread(
        target=lambda: answers.update(withdraw=rig.ask(ANN, "submit", {"op": "withdraw", "entry": entry}))
    )
    starts = threading.Thread(target=lambda: answers.update(start=rig.begin(entry)))
    withdraws.start()
    by = int(until(lambda: removing.read_text().strip(), not_yet=FileNotFoundError))
    starts.start()
    if by != rig.pid:  # else it cannot be answered yet
        starts.join()
    goes_on.touch()
    withdraws.join()
    starts.join()
    assert answers["withdraw"]["state"] == "ABSENT"
    assert answers["start"]["error"] == "entry.unknown"


def test_a_person_whose_account_is_closed_meanwhile_gets_no_process(rig: RootRig) -> None:
    entry = rig.spool(ANN, "pass")
    rig.closed.touch()
    rig.begin(entry)
    end = rig.ended(entry)
    assert (end["code"], end["why"]) == (126, "ann-x is locked")
    assert rig.ask(ANN, "submit", {"op": "spool", "job": {}})["error"] == "account.refused"


def test_a_uid_that_was_given_to_somebody_else_starts_nothing(rig: RootRig) -> None:
    entry = rig.spool(ANN, "pass")
    path = rig.folder / "spool" / str(ANN) / entry
    path.write_text(path.read_text().replace("ann-x", "old-ann"))
    rig.begin(entry)
    assert "no longer old-ann's" in rig.ended(entry)["why"]


def forget(rig: RootRig, entry: str) -> Path:
    """Forget a job that has ended; returns the folder of what is removed."""
    rig.ended(entry)
    assert rig.control("forget", entry)["state"] == "ABSENT"
    assert rig.state(entry) == {"entry": entry, "state": "ABSENT"}
    assert not (rig.folder / "jobs" / entry).exists()
    return rig.folder / "trash"


def test_a_forgotten_job_leaves_nothing_whatever_lies_in_its_folder(rig: RootRig, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o777)
    (kept / "file").touch()
    litters = f"""
os.makedirs("deep/er")
os.symlink({str(kept)!r}, "deep/link")
os.symlink("/etc/passwd", "passwd")
os.mkfifo("pipe")
os.makedirs("read/only")
open("read/only/file", "w").close()
for each in ("read/only", "read", "deep/er", "."): os.chmod(each, 0)
"""
    entry = rig.spool(ANN, litters)
    rig.begin(entry)
    assert rig.ended(entry)["code"] == 0
    trash = forget(rig, entry)
    until(lambda: not list(trash.iterdir()), 30)
    assert (kept / "file").exists()
    assert rig.begin(entry)["error"] == "entry.unknown"


def test_a_tree_of_any_depth_is_removed(rig: RootRig) -> None:
    digs = """
for _ in range(3000):
    os.mkdir("d" * 100)
    os.chdir("d" * 100)
"""
    entry = rig.spool(ANN, digs)
    rig.begin(entry)
    trash = forget(rig, entry)
    until(lambda: not list(trash.iterdir()), 30)


def test_what_cannot_be_removed_is_in_nobodys_way(rig: RootRig) -> None:
    stuck = rig.spool(ANN, "os.mkdir('theirs')")
    rig.begin(stuck)
    rig.ended(stuck)
    theirs = rig.folder / "jobs" / stuck / "0" / "run" / "theirs"
    theirs.chmod(0o755)
    (theirs / "file").touch()
    os.chown(theirs, BOB, BOB)  # as of a subordinate user
    trash = forget(rig, stuck)
    other = rig.spool(BOB, "pass")
    rig.begin(other)
    forget(rig, other)
    until(lambda: [path.name.partition(".")[0] for path in trash.iterdir()] == [stuck], 30)
    os.chown(next(trash.glob("*/run/theirs")), ANN, ANN)
    rig.kill()
    rig.start()
    until(lambda: not list(trash.iterdir()), 30)


def test_a_remover_that_its_person_has_stopped_is_killed(rig: RootRig, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [rig.spool(ANN, "pass") for _ in range(2)]
    for entry in entries:
        rig.begin(entry)
        rig.ended(entry)
    rig.kill()
    monkeypatch.setattr(trash_module, "REMOVE_S_MAX", 1)
    first = rig.folder.parent / "stopped"

    def stop_once(folder: Path, uid: int, remove: Callable[[Path, int], None] = trash_module._remove) -> None:
        if not first.exists():
            first.touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        remove(folder, uid)

    monkeypatch.setattr(trash_module, "_remove", stop_once)
    rig.start()
    for entry in entries:
        forget(rig, entry)
    until(lambda: len(list((rig.folder / "trash").iterdir())) == 1, 30)


def test_a_remover_that_cannot_be_killed_is_in_nobodys_way(rig: RootRig, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [rig.spool(ANN, "pass") for _ in range(2)]
    for entry in entries:
        rig.begin(entry)
        rig.ended(entry)
    rig.kill()
    hangs = rig.folder.parent / "hangs"

    def hang_once(folder: Path, uid: int, remove: Callable[[Path, int], None] = trash_module._remove) -> None:
        if hangs.exists():
            remove(folder, uid)
        else:
            hangs.write_text(str(os.getpid()))
            time.sleep(patient(60))

    monkeypatch.setattr(trash_module, "REMOVE_S_MAX", 3)
    monkeypatch.setattr(trash_module, "KILL_WAIT_S", 0)
    monkeypatch.setattr(trash_module, "_remove", hang_once)
    monkeypatch.setattr(signal, "SIGKILL", 0)  # as if the kernel kept it
    rig.start()
    monkeypatch.undo()
    for entry in entries:
        forget(rig, entry)
    until(lambda: len(list((rig.folder / "trash").iterdir())) == 1, 30)
    os.kill(int(hangs.read_text()), signal.SIGKILL)


def test_a_job_that_was_being_forgotten_is_forgotten_by_the_next_daemon(rig: RootRig) -> None:
    entry = rig.spool(ANN, "say('left', 1)")
    rig.begin(entry)
    rig.ended(entry)
    rig.kill()
    (rig.folder / "spool" / str(ANN) / entry).unlink()  # as the daemon leaves it that dies then
    rig.start()
    until(lambda: not (rig.folder / "jobs" / entry).exists(), 30)


def test_a_supervisor_that_its_person_traces_holds_nobody_up(rig: RootRig) -> None:
    traces = """
import ctypes
supervisor = os.getpid()
if os.fork() == 0:
    libc = ctypes.CDLL(None)
    if libc.ptrace(0x4206, supervisor, None, None) == 0:  # PTRACE_SEIZE
        say("seized", 1)
        os.kill(supervisor, signal.SIGKILL)
    else:
        say("seized", 0)
    time.sleep(3600)
time.sleep(3600)
"""
    entry = rig.spool(ANN, traces)
    rig.begin(entry)
    if rig.run_file(entry, "seized") == "0":
        pytest.skip("this machine lets nobody trace a parent")
    other = rig.spool(ANN, "pass")
    rig.begin(other)
    assert rig.ended(other)["code"] == 0
    assert rig.ended(entry)["code"] == 128 + signal.SIGKILL, "its tracer is gone by then"


TRACES = """
import ctypes, os, sys
uid = int(sys.argv[2])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
print(ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), None, None), flush=True)  # PTRACE_SEIZE
sys.stdin.read()
"""


def zombies_of(pid: int) -> int:
    """How many children of a process have ended, and have not been waited for."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            found += state == "Z" and int(parent) == pid
    return found


def test_a_supervisor_that_is_traced_from_outside_has_ended_without_a_code(rig: RootRig) -> None:
    entry = rig.spool(ANN, "time.sleep(3600)")
    rig.begin(entry)
    rig.run_file(entry, "began")
    pid = json.loads((rig.folder / "jobs" / entry / "0" / "started.json").read_text())["pid"]
    words = [str(PYTHON), "-I", "-c", TRACES, str(pid), str(ANN)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as tracer:
        assert tracer.stdout is not None
        if tracer.stdout.readline() != b"0\n":
            pytest.skip("this machine lets nobody trace another process")
        rig.control("ask", entry, signal=signal.SIGTERM)
        os.kill(pid, signal.SIGKILL)
        end = rig.ended(entry)
        assert (end["code"], end["why"]) == (None, "its exit code was not seen")
    until(lambda: zombies_of(rig.pid) == 0, 30)


def test_no_job_has_the_keyring_of_the_daemon_or_of_another(rig: RootRig) -> None:
    shows = "import ctypes; say('ring', ctypes.CDLL(None).syscall(250, 0, -3, 0))"  # KEYCTL_GET_KEYRING_ID
    if os.uname().machine != "x86_64":
        pytest.skip("keyctl(2) has another number here")
    rings = set()
    for uid in (ANN, BOB):
        entry = rig.spool(uid, shows)
        rig.begin(entry)
        rings.add(rig.run_file(entry, "ring"))
        rig.ended(entry)
    assert len(rings) == 2 or rings == {"-1"}


INFINITE = [b'"attempt": Infinity', b'"attempt": 1e999', b'"attempt": 1, "limits": {"memoryBytes": 1e999}']


@pytest.mark.parametrize("wrong", INFINITE, ids=repr)
def test_a_controller_that_sends_what_is_no_number_ends_nothing(rig: RootRig, wrong: bytes) -> None:
    entry = rig.spool(ANN, "pass")
    sent = b'{"op": "start", "entry": "%b", "order": {}, "limits": {}, %b}' % (entry.encode(), wrong)
    assert rig.ask(CONTROLLER, "control", sent)["error"] == "request.invalid"
    rig.begin(entry)
    assert rig.ended(entry)["code"] == 0


def test_a_start_that_fails_was_never_made(rig: RootRig) -> None:
    entry = rig.spool(ANN, "pass")
    in_the_way = rig.folder / "jobs" / entry
    in_the_way.touch()
    assert rig.begin(entry)["error"] == "daemon.failed"
    in_the_way.unlink()
    rig.begin(entry)
    assert rig.ended(entry)["code"] == 0


def test_a_disk_that_is_nearly_full_starts_nothing(rig: RootRig, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = rig.spool(ANN, "pass")
    rig.kill()
    monkeypatch.setattr(records, "FREE_BYTES_MIN", 1 << 62)
    rig.start()
    assert rig.begin(entry)["error"] == "disk.full"
    assert rig.state(entry)["state"] == "ABSENT"
    assert rig.ask(ANN, "submit", {"op": "withdraw", "entry": entry})["state"] == "ABSENT"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few megabytes, of which root keeps nothing for itself."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=755", "none", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_job_that_fills_the_disk_ends_with_its_code(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fills = """
with open("much", "wb", buffering=0) as file:
    try:
        while True: file.write(bytes(1024))
    except OSError: pass
sys.exit(9)
"""
    monkeypatch.setattr(records, "FREE_BYTES_MIN", 1)
    rig = new_rig(small_disk)
    try:
        entry = rig.spool(ANN, fills)
        rig.begin(entry)
        assert rig.ended(entry)["code"] == 9
        disk = os.statvfs(small_disk)
        assert disk.f_bavail == 0, "else it shows nothing"
    finally:
        rig.end()
