"""The terminal and what stands in its place: live lines, plain lines, colours, signs."""

import contextlib
import fcntl
import io
import os
import pty
import select
import struct
import sys
import termios

import pytest

from moorings.core.model.errors import MooringsError
from moorings.terminal.console import Console
from moorings.terminal.durations import Deadline, parse_since
from moorings.terminal.progress import Progress
from moorings.terminal.text import escape_controls
from moorings.wire.codec import parse_time
from tests.cases import cases


@contextlib.contextmanager
def terminal(monkeypatch):
    """A real pseudo-terminal as stdout and stderr; gives what has arrived. (A fixture comes before pytest's own.)"""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        yield lambda: everything_at(ours)
    os.close(ours)


def everything_at(descriptor: int) -> str:
    """What has been written to the other end; a terminal may hand it over in pieces."""
    arrived = b""
    while select.select([descriptor], [], [], 0.2)[0]:
        arrived += os.read(descriptor, 65536)
    return arrived.decode()


def test_on_a_terminal_one_line_lives_and_goes(monkeypatch):
    with terminal(monkeypatch) as arrived:
        progress = Progress(Console({"TERM": "xterm"}))
        progress.show_waiting("waits for 16 devices")
        progress.show_waiting("waits for 8 devices")
        progress.report("GRANTED")
        text = arrived()
    assert text == "\r\x1b[Kwaits for 16 devices\r\x1b[Kwaits for 8 devices\r\x1b[KGRANTED\r\n"


def test_a_live_line_never_wraps_and_its_beginning_stays(monkeypatch):
    with terminal(monkeypatch) as arrived:
        fcntl.ioctl(sys.stderr, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
        Progress(Console({"TERM": "xterm"})).show_waiting(f"run-x: position 12: {'waits ' * 20}")
        text = arrived()
    assert text == "\r\x1b[Krun-x: position 12: waits waits waits …"
    assert len(text.removeprefix("\r\x1b[K")) < 40


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"NO_COLOR": "1"}, {"MOORINGS_NO_COLOR": "1"}])
def test_no_colour_where_it_is_refused(monkeypatch, environment):
    with terminal(monkeypatch):
        usual, forced = Console(environment), Console(environment, colour="always")
    assert usual.paint("ACTIVE", "green") == "ACTIVE"
    assert forced.paint("ACTIVE", "green") == "\x1b[32mACTIVE\x1b[0m"


def test_colour_on_a_terminal(monkeypatch):
    with terminal(monkeypatch):
        usual, never = Console({"TERM": "xterm"}), Console({"TERM": "xterm"}, colour="never")
    assert usual.paint("ACTIVE", "green") == "\x1b[32mACTIVE\x1b[0m"
    assert never.paint("ACTIVE", "green") == "ACTIVE"


def test_no_colour_and_no_cutting_in_a_pipe(capsys):
    console = Console({"TERM": "xterm"})
    assert console.paint("ACTIVE", "green") == "ACTIVE"
    assert console.columns is None


def test_a_dumb_terminal_gets_plain_lines(monkeypatch):
    with terminal(monkeypatch) as arrived:
        Progress(Console({"TERM": "dumb"})).show_waiting("waits")
        text = arrived()
    assert text == "waits\r\n"


def test_in_a_log_a_reason_is_said_when_it_changes(capsys):
    progress = Progress(Console({}), repeat_s=1e9)
    for text in ("a", "a", "b", "b", "a"):
        progress.show_waiting(text)
    assert capsys.readouterr().err == "a\nb\na\n"


def test_in_a_log_an_old_reason_is_said_again_when_it_is_time(capsys):
    progress = Progress(Console({}), repeat_s=0)
    progress.show_waiting("a")
    progress.show_waiting("a")
    assert capsys.readouterr().err == "a\na\n"


def test_quiet_says_only_errors(capsys):
    console = Console({}, quiet=True)
    progress = Progress(console)
    progress.show_waiting("a")
    progress.report("b")
    console.info("c")
    console.warn("d")
    console.error("error: e")
    assert capsys.readouterr().err == "warning: d\nerror: e\n"


def test_signs_are_ascii_where_the_locale_has_no_others(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stderr", stream)
    Console({}).error("cut… → café")
    stream.flush()
    assert stream.buffer.getvalue() == b"cut... -> caf\\xe9\n"


def test_control_characters_are_made_visible():
    assert escape_controls("a\x1b[2J\nb\u202e") == "a\\x1b[2J\\nb\\u202e"
    assert escape_controls("übrig") == "übrig"


def test_a_limit():
    assert Deadline(None).remaining_s(5) == 5
    assert not Deadline(None).is_over
    assert Deadline(0).is_over
    assert Deadline(0).remaining_s(5) > 0
    assert Deadline(1e9).remaining_s(5) == 5


@cases(
    ("text", "at"),
    [
        ("10m", "2026-01-31T11:50:00.000000Z"),
        ("1-00:00", "2026-01-30T12:00:00.000000Z"),
        ("2026-01-31T11:00:00Z", "2026-01-31T11:00:00.000000Z"),
        ("2026-01-31T12:00:00+02:00", "2026-01-31T10:00:00.000000Z"),
    ],
)
def test_a_time_or_how_long_ago_says_since_when(text, at):
    assert parse_since(text, parse_time("2026-01-31T12:00:00Z")) == at


@cases("text", ["10", "soon", "", "2026-13-01", "9999999w", "-5m"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(MooringsError) as caught:
        parse_since(text, parse_time("2026-01-31T12:00:00Z"))
    assert caught.value.code == "duration.invalid"
