"""The controller as a process: known by its start time, told by its last words."""

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from moorings.cli import processes
from moorings.cli.processes import ControllerLaunch, ControllerProcess
from moorings.core.model.errors import MooringsError


def ticks_of(pid):
    return processes.parse_start_ticks(Path(f"/proc/{pid}/stat").read_text())


def test_start_ticks_are_read_behind_a_name_with_brackets():
    stat = "42 (a) b) (c) S 1 42 42 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 1 0 777 1000 1"
    assert processes.parse_start_ticks(stat) == 777


def test_a_process_is_known_by_its_start_time():
    me = ControllerProcess(os.getpid(), ticks_of("self"), "", "")
    assert processes.is_alive(me)
    assert not processes.is_alive(ControllerProcess(me.pid, me.start_ticks + 1, "", ""))
    assert not processes.is_alive(ControllerProcess(2**22 + 1, me.start_ticks, "", ""))


def test_a_zombie_does_not_live():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    record = ControllerProcess(child.pid, ticks_of(child.pid), "", "")
    assert processes.is_alive(record)
    assert child.stdin is not None
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not processes.is_alive(record)
    child.wait()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": "x", "startTicks": 1, "url": "u", "version": "v"}'])
def test_a_record_that_cannot_be_read_is_none(text):
    assert processes.parse_record(text) is None


def test_no_record_is_no_controller(tmp_path):
    assert processes.find_running(tmp_path) is None


def test_a_record_of_a_dead_process_is_no_controller(tmp_path):
    (tmp_path / "controller.json").write_text('{"pid": 4194305, "startTicks": 1, "url": "u", "version": "v"}')
    assert processes.find_running(tmp_path) is None


def test_the_command_line_holds_no_secret():
    launch = ControllerLaunch(Path("/d"), "127.0.0.1", 8090, Path("/p.toml"), Path("/c.toml"))
    assert processes.build_argv(launch)[1:] == [
        *("-m", "moorings.app.controller", "--data", "/d", "--host", "127.0.0.1", "--port", "8090"),
        *("--credentials", "/c.toml", "--log-file", "/d/controller.log", "--pools", "/p.toml"),
    ]


def test_last_words_are_its_own_error_and_hint(tmp_path):
    (tmp_path / "controller.log").write_text("msg=x\nerror: port 8090 is taken (config.invalid)\nhint: use another\n")
    error = processes.exit_error(tmp_path, 2)
    assert error.code == "config.invalid"
    assert error.detail == "the controller ended with exit code 2: port 8090 is taken"
    assert error.hint.startswith("use another; all of its log: ")


def test_last_words_of_an_earlier_start_are_not_this_ones(tmp_path):
    log = tmp_path / "controller.log"
    log.write_text("error: old (config.invalid)\nhint: stale\n")
    before = log.stat().st_size
    with log.open("a") as file:
        file.write("killed\n")
    error = processes.exit_error(tmp_path, -9, before)
    assert (error.code, "old" in error.detail, "killed" in error.detail) == ("internal.error", False, True)
    assert "stale" not in error.hint


def test_the_port_of_one_that_was_killed_is_known(tmp_path):
    assert processes.last_port(tmp_path) is None
    record = tmp_path / "controller.json"
    record.write_text('{"pid": 4194305, "startTicks": 1, "url": "http://127.0.0.1:8123", "version": "v"}')
    assert processes.last_port(tmp_path) == 8123
    record.write_text('{"pid": 4194305, "startTicks": 1, "url": "http://127.0.0.1:x", "version": "v"}')
    assert processes.last_port(tmp_path) is None


def test_a_record_behind_a_link_is_nobodys(tmp_path):
    real = tmp_path / "real.json"
    real.write_text(f'{{"pid": {os.getpid()}, "startTicks": {ticks_of("self")}, "url": "u", "version": "v"}}')
    (tmp_path / "controller.json").symlink_to(real)
    assert processes.find_running(tmp_path) is None
    (tmp_path / "controller.json").unlink()
    real.rename(tmp_path / "controller.json")
    assert processes.find_running(tmp_path) is not None


def test_a_folder_of_another_user_is_not_believed_nor_through_a_link(tmp_path):
    theirs = Path("/")  # root's
    if os.geteuid() == 0:
        theirs = tmp_path / "theirs"
        theirs.mkdir()
        os.chown(theirs, 4242, -1)
    link = tmp_path / "link"
    link.symlink_to(theirs)
    launch = ControllerLaunch(link, "127.0.0.1", 0, None, tmp_path / "c.toml")
    for ask in (
        lambda: processes.find_running(theirs),
        lambda: processes.find_running(link),
        lambda: processes.last_port(link),
        lambda: processes.start_controller(launch),
    ):
        with pytest.raises(MooringsError, match="not to you") as caught:
            ask()
        assert caught.value.code == "config.invalid"


def test_root_is_told_to_work_as_the_owner(tmp_path):
    hint = processes.owner_hint(1)
    assert hint == (f"work as that user: sudo -u {pwd.getpwuid(1).pw_name} moor ..." if os.geteuid() == 0 else "")
    if os.geteuid() == 0:
        assert "sudo -u '#4242' moor" in processes.owner_hint(4242)
        os.chown(tmp_path, 4242, -1)
        with pytest.raises(MooringsError) as caught:
            processes.find_running(tmp_path)
        assert caught.value.hint == processes.owner_hint(4242)


@pytest.mark.parametrize("what", ["link", "fifo"])
def test_a_log_that_is_no_file_of_ours_is_refused(tmp_path, what):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    data = tmp_path / "data"
    data.mkdir()
    if what == "link":
        (data / "controller.log").symlink_to(victim)
    else:
        os.mkfifo(data / "controller.log")
    launch = ControllerLaunch(data, "127.0.0.1", 0, None, tmp_path / "c.toml")
    with pytest.raises(MooringsError, match="cannot be used") as caught:
        processes.start_controller(launch)
    assert "[Errno" not in caught.value.detail
    assert victim.read_text() == "mine"


def test_last_words_of_one_that_said_no_error(tmp_path):
    assert "by signal 9" in processes.exit_error(tmp_path, -9).detail
    assert processes.exit_error(tmp_path, -9).code == "internal.error"
    (tmp_path / "controller.log").write_text("".join(f"line {number}\n" for number in range(99)))
    detail = processes.exit_error(tmp_path, -9).detail
    assert "line 98" in detail
    assert "line 80" not in detail
