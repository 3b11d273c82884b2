"""``moor top``: the frame at each size, and the screen through a restart of the controller."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from moorings.cli.output import TableStyle
from moorings.cli.people import UserQuota, find_devices_left, summarize_users
from moorings.cli.queue_entries import QueueEntry
from moorings.cli.top_frame import QueueSnapshot, build_frame
from moorings.core.model.timestamps import add_seconds
from moorings.wire.codec import encode
from moorings.wire.shapes import ProjectBody
from tests.cases import cases
from tests.unit.cli import samples
from tests.unit.cli.test_output import check_golden
from tests.unit.cli.test_run import hear_signals
from tests.unit.client.recorded import RecordedServer, listing, problem, recorded
from tests.waiting import patient

SHOWN = QueueSnapshot(samples.NOW, samples.POOLS, samples.QUEUE, ())
LAB = ProjectBody(name="lab", shares=(), weight=1.0, version=1, user_devices_max=8)


def entry(user: str, size: int = 4, **more: object) -> QueueEntry:
    usual = {
        "name": "n",
        "user": user,
        "state": "RUNNING",
        "is_waiting": False,
        "size": size,
        "accelerator": "ipu",
        "project": "default",
        "priority": 0,
        "run": f"run-{user}",
    }
    return QueueEntry(**{**usual, **more})  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------------------------- people


def test_those_who_hold_most_come_first_by_their_dominant_share():
    pools = (samples.pool(devices=256), samples.pool("wse", accelerator="csx", devices=2))
    found = summarize_users(
        [entry("ann", 64), entry("bob", 1, accelerator="csx"), entry("bob", 8), entry("eve", is_waiting=True)],
        pools,
        (),
    )
    assert [(user.user, user.share, dict(user.held)) for user in found] == [
        ("bob", 0.5, {"csx": 1, "ipu": 8}),
        ("ann", 0.25, {"ipu": 64}),
        ("eve", 0.0, {}),
    ]
    assert [(user.running, user.waiting) for user in found] == [(2, 0), (1, 0), (0, 1)]


def test_devices_of_a_pool_that_is_gone_are_no_share():
    (found,) = summarize_users([entry("ann")], (), ())
    assert (found.share, dict(found.held)) == (0.0, {"ipu": 4})


def test_a_users_quota_counts_what_is_held_in_the_project_and_below_it():
    entries = [entry("ann", 2, project="lab/vision"), entry("ann", 3, project="lab"), entry("ann", 5), entry("bob")]
    waiting = entry("ann", 7, project="lab", is_waiting=True)
    by_user = {user.user: user for user in summarize_users([*entries, waiting], (), [LAB])}
    assert by_user["ann"].user_quotas == (UserQuota("lab", 5, 8),)
    assert by_user["bob"].user_quotas == ()


def test_a_users_quota_is_its_own_limit_if_it_has_one():
    own = replace(LAB, user_limits={"bob": 0, "eve": 12})
    entries = [entry(user, project="lab") for user in ("ann", "bob", "eve")]
    by_user = {user.user: user for user in summarize_users(entries, (), [own])}
    assert [by_user[name].user_quotas[0].most for name in ("ann", "bob", "eve")] == [8, 0, 12]
    left = find_devices_left("lab", "eve", entries[2:], [own], ())
    assert left is not None
    assert (left.left, left.most) == (8, 12)
    seen = replace(own, user_limits={"ann": 8}, user_limits_hidden=True)
    by_user = {user.user: user for user in summarize_users(entries, (), [seen])}
    assert [len(by_user[name].user_quotas) for name in ("ann", "bob", "eve")] == [1, 0, 0], "those of others are hidden"


def test_the_tightest_limit_says_what_is_left():
    own = [entry("ann", 5, project="lab/vision")]
    whole = replace(LAB, name="lab/vision", user_devices_max=None, devices_max=10)
    quotas = [replace(samples.QUOTAS[0], project="lab/vision", held=6, borrowed=3)]
    left = find_devices_left("lab/vision", "ann", own, [LAB, whole], quotas)
    assert left is not None
    assert (left.project, left.left, left.most) == ("lab/vision", 1, 10)
    left = find_devices_left("lab", "ann", own, [LAB, whole], quotas)
    assert left is not None
    assert (left.project, left.left, left.most) == ("lab", 3, 8)
    assert find_devices_left("label", "ann", own, [LAB, whole], quotas) is None
    over = find_devices_left("lab", "ann", [entry("ann", 20, project="lab")], [LAB], ())
    assert over is not None
    assert over.left == 0


# -------------------------------------------------------------------------------------------------------------- frames


@cases("columns", [80, 100, 200])
def test_the_frame(columns):
    text = build_frame(SHOWN, samples.NOW, look=TableStyle(width=columns), lines_max=24)
    check_golden(f"top.{columns}.txt", text)
    assert max(map(len, text.splitlines())) <= columns


@cases("lines", [1, 5, 10, 15, 24, 60])
def test_the_frame_never_has_more_lines_than_the_terminal(lines):
    text = build_frame(SHOWN, samples.NOW, look=TableStyle(width=80), lines_max=lines)
    assert len(text.splitlines()) <= lines


def test_what_there_is_no_room_for_is_counted():
    users = [entry(f"user-{number:02}") for number in range(30)]
    lines = build_frame(
        replace(SHOWN, entries=users), samples.NOW, look=TableStyle(width=80), lines_max=24
    ).splitlines()
    assert len(lines) == 24
    assert "... and 24 more people" in lines
    shown = sum(line.startswith("- ") for line in lines)
    assert lines[-1] == f"... and {30 - shown} more"


def test_without_a_terminal_all_rows_are_there():
    users = [entry(f"user-{number:02}") for number in range(300)]
    text = build_frame(replace(SHOWN, entries=users), samples.NOW, look=TableStyle())
    assert "..." not in text
    assert text.count("user-299") == 2


def test_each_idle_holder_has_one_line_with_all_their_idle_devices():
    long, short = samples.IDLE, replace(samples.IDLE, shown_to_admins=False)
    older = replace(long, since="2026-01-31T02:00:00.000000Z")
    entries = [
        *(entry("ann", size, name=f"n{size}", idle=idle) for size, idle in ((2, older), (4, long), (8, short))),
        entry("bob", 1, accelerator="csx", name="train\x1b", idle=older),
        entry("eve", idle=short),
    ]
    text = build_frame(replace(SHOWN, entries=entries), samples.NOW, look=TableStyle(width=80), lines_max=24)
    assert [line for line in text.splitlines() if line.startswith("Idle")] == [
        "Idle: bob holds 1 csx and has used no CPU for 10h: train\\x1b",
        "Idle: ann holds 6 ipu and has used no CPU for 28m: 2 jobs",
    ]
    assert [line.split()[-2:] for line in text.splitlines() if line.startswith("-")][2] == ["idle", "28m"]


def test_idle_holders_leave_room_for_the_queue():
    many = [entry(f"user-{number}", idle=samples.IDLE) for number in range(30)]
    lines = build_frame(replace(SHOWN, entries=many), samples.NOW, look=TableStyle(width=80), lines_max=24).splitlines()
    assert "... and 27 more idle holders" in lines
    assert any(line.startswith("-  ") for line in lines)
    text = build_frame(replace(SHOWN, entries=many), samples.NOW, look=TableStyle())
    assert text.count("Idle: ") == 30


def test_an_empty_machine():
    text = build_frame(QueueSnapshot(samples.NOW, (), (), ()), samples.NOW, look=TableStyle(width=80), lines_max=24)
    assert text.splitlines()[-1] == "Nothing runs or waits."
    assert "USER" not in text


def test_a_quota_is_shown_where_there_is_one():
    text = build_frame(
        QueueSnapshot(samples.NOW, (), [entry("ann", project="lab"), entry("bob")], [LAB]),
        samples.NOW,
        look=TableStyle(width=80),
    )
    rows = [line.split("   ")[-1] for line in text.splitlines() if line.startswith(("USER", "ann", "bob"))]
    assert rows == ["QUOTA", "4 of 8 in lab", "-"]


def test_an_old_frame_says_that_it_is_old_and_why():
    now = add_seconds(samples.NOW, 61)
    text = build_frame(SHOWN, now, look=TableStyle(width=80), lines_max=24, problem="nothing\x1b[2J listens")
    assert text.splitlines()[:2] == [
        "moor top   12:01:01Z   as of 12:00:00Z: 5 running, 3 waiting",
        "No answer, trying again: nothing\\x1b[2J listens",
    ]


# ---------------------------------------------------------------------------------------------------------- the command


def record(server: RecordedServer) -> None:
    server.on("GET", "/v1/pools", listing("Pool", [encode(pool) for pool in samples.POOLS]))
    server.on("GET", "/v1/claims", listing("Claim", [encode(claim) for claim in samples.QUEUED_CLAIMS]))
    server.on("GET", "/v1/runs", listing("Run", [encode(run) for run in samples.QUEUED_RUNS]))
    server.on("GET", "/v1/projects", listing("Project", []))


@pytest.mark.parametrize("words", [(), ("--once",), ("-i", "5", "--once")])
def test_without_a_terminal_one_frame_is_printed(server, moor, words):
    record(server)
    code, out, err = moor("top", *words)
    assert (code, err) == (0, "")
    assert out.startswith("moor top   ")
    assert out.count("bartholomew") == 2
    assert "\x1b" not in out
    assert len(server.seen) == 4


def test_one_frame_without_a_controller_is_the_usual_error(moor, monkeypatch):
    monkeypatch.setenv("MOORINGS_SERVER", "http://127.0.0.1:1")
    assert moor("top", "--once")[0] == 7


@pytest.mark.parametrize("interval", ["0", "-1", "often", "1e9"])
def test_an_interval_that_is_none(moor, interval):
    assert moor("top", "-i", interval)[0] == 2


class Terminal:
    """``moor top`` on a terminal of 80 columns and 24 lines."""

    def __init__(self, url: str) -> None:
        self.shown = ""
        environment = {**os.environ, "MOORINGS_SERVER": url, "LANG": "C.UTF-8", "TERM": "xterm"}
        argv = [sys.executable, "-m", "moorings.cli.main", "top", "-i", "0.1"]
        self.process, self._end = pty.fork()
        if self.process == 0:  # in the child
            hear_signals()
            os.execve(argv[0], argv, environment)
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def read_until(self, mark: str) -> None:
        """Read on until it comes."""
        begin, deadline = len(self.shown), time.monotonic() + patient(30)
        while mark not in self.shown[begin:]:
            ready, _, _ = select.select([self._end], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, self.shown[-2000:]
            self.shown += os.read(self._end, 1 << 16).decode("utf-8", "replace")

    def end(self, number: signal.Signals) -> int:
        """Send it a signal; its exit code."""
        os.kill(self.process, number)
        with contextlib.suppress(OSError):  # a terminal without a process
            while chunk := os.read(self._end, 1 << 16):
                self.shown += chunk.decode("utf-8", "replace")
        _, status = os.waitpid(self.process, 0)
        self.process = 0
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        if self.process:
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
        os.close(self._end)


@pytest.fixture
def terminal(server) -> Iterator[Terminal]:
    record(server)
    made = Terminal(server.url)
    yield made
    made.close()


def test_the_screen_survives_a_restart_of_the_controller_and_ctrl_c_ends_it_well(terminal, server):
    terminal.read_until("bartholomew")
    port = server.port
    server.close()
    terminal.read_until("No answer, trying again")
    with recorded(port) as again:
        record(again)
        terminal.read_until(" 5 running, 3 waiting\r\n\x1b[K\r\n\x1b[KPOOL")
        assert terminal.end(signal.SIGINT) == 130
    assert terminal.shown.endswith("\x1b[?25h\x1b[?1049l")


def test_a_refusal_ends_the_screen_and_is_told_below_it(terminal, server):
    terminal.read_until("bartholomew")
    server.on("GET", "/v1/runs", problem("auth.expired", "the key has expired", 401))
    terminal.read_until("the key has expired (auth.expired)")
    assert "\x1b[?1049l" in terminal.shown.partition("the key has expired")[0]


def test_a_closed_terminal_ends_it(terminal):
    terminal.read_until("bartholomew")
    assert terminal.end(signal.SIGHUP) == 129
