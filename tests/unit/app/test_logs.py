"""Logs: one line an event, what everybody looks for first, no secret in any of them, and a file that is bounded."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from moorings.app import logs
from moorings.app.logs import OLDER_KEPT, without_secrets
from tests.waiting import patient

KEY = "moor_abcdefghij_" + "0f" * 32
LOOP = """
import logging, sys
from pathlib import Path
from moorings.app.logs import configure
configure("info", sys.argv[1], Path(sys.argv[2]) if sys.argv[2] else None, int(sys.argv[3]))
exec(sys.stdin.read())
"""


def logged(code: str, style: str = "logfmt", file: Path | None = None, bytes_max: int = 0) -> str:
    """What a process of its own writes: standard error is led elsewhere, which no test's own should be."""
    done = subprocess.run(
        [sys.executable, "-c", LOOP, style, str(file or ""), str(bytes_max)],
        input=code,
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(30),
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_a_line_begins_with_time_level_and_event():
    line = logged(
        'logging.getLogger("moorings.x").info("claim.granted", extra={"claim": "c1", "size": 4, "run": "r1"})'
    )
    words = line.split()
    assert [word.split("=")[0] for word in words] == ["ts", "level", "msg", "logger", "claim", "run", "size"]
    assert words[1:3] == ["level=info", "msg=claim.granted"]


def test_as_json_too():
    line = logged('logging.getLogger("moorings.x").warning("a.b", extra={"user": "ann", "size": 4})', "json")
    told = json.loads(line)
    assert list(told) == ["ts", "level", "msg", "logger", "user", "size"]
    assert told["size"] == 4


def test_one_event_is_one_line_whatever_stands_in_it():
    code = 'logging.getLogger("m").info("a.b", extra={"detail": "x\\nts=1 level=info msg=forged"})'
    for style in ("logfmt", "json"):
        assert logged(code, style).count("\n") == 1


@pytest.mark.parametrize("style", ["logfmt", "json"])
def test_no_access_key_gets_through(style):
    code = f"""
log = logging.getLogger("m")
log.info("a.b", extra={{"detail": "key {KEY}", "thing": ["{KEY}"]}})
log.info("said {KEY}")
try:
    raise ValueError("{KEY}")
except ValueError:
    log.exception("failed")
"""
    text = logged(code, style)
    assert "0f0f" not in text
    assert text.count("moor_abcdefghij_***") >= 4


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (KEY, "moor_abcdefghij_***"),
        ("Authorization: Bearer s3cret.token", "Authorization: Bearer ***"),
        ("postgresql://ann:hunter2@db/moorings", "postgresql://ann:***@db/moorings"),
        ("http://127.0.0.1:8090/v1", "http://127.0.0.1:8090/v1"),
        ("moor_ is no key", "moor_ is no key"),
    ],
)
def test_what_is_taken_out_and_what_stays(given, left):
    assert without_secrets(given) == left


def test_a_log_file_is_put_aside_when_it_is_full_and_never_grows_without_bound(tmp_path):
    file = tmp_path / "controller.log"
    code = 'for n in range(5000): logging.getLogger("m").info("a.b", extra={"number": n})'
    logged(code, file=file, bytes_max=20_000)
    older = sorted(path.name for path in tmp_path.iterdir())
    assert older == ["controller.log", *(f"controller.log.{number}" for number in range(1, OLDER_KEPT + 1))]
    assert max(path.stat().st_size for path in tmp_path.iterdir()) < 40_000
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert "number=4999" in file.read_text()
    newest_first = [file, *(tmp_path / name for name in older[1:])]
    numbers = [int(line.rsplit("=", 1)[1]) for path in reversed(newest_first) for line in path.read_text().splitlines()]
    assert numbers == list(range(numbers[0], 5000)), "no line is lost between two files"


def test_what_is_not_logged_lands_in_the_file_too(tmp_path):
    file = tmp_path / "controller.log"
    assert logged('print("printed", flush=True); sys.stderr.write("complained\\n")', file=file) == ""
    assert file.read_text() == "printed\ncomplained\n"


def test_it_goes_on_in_a_new_file_when_somebody_else_rotates(tmp_path):
    file = tmp_path / "controller.log"
    code = f"""
from moorings.app.logs import reopen
logging.getLogger("m").info("before")
Path({str(file)!r}).rename({str(tmp_path / "old")!r})
reopen()
logging.getLogger("m").info("behind")
"""
    logged(code, file=file)
    assert "msg=before" in (tmp_path / "old").read_text()
    assert "msg=behind" in file.read_text()
    assert "behind" not in (tmp_path / "old").read_text()


def test_a_log_is_never_written_through_a_link(tmp_path):
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    done = subprocess.run(
        [sys.executable, "-c", LOOP, "logfmt", str(tmp_path / "log"), "0"],
        input="",
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(30),
    )
    assert "cannot be written" in done.stderr
    assert not (tmp_path / "elsewhere").exists()


def test_the_state_is_told_whatever_the_level_is():
    text = logged(f'logging.getLogger().setLevel("ERROR"); logging.getLogger("{logs.STATE}").info("state.pool")')
    assert "msg=state.pool" in text
    assert logging.getLogger(logs.STATE).level in (logging.NOTSET, logging.INFO)


def test_what_the_http_client_tells_of_each_request_is_left_out():
    code = """
for name in ("httpx2", "httpcore2.connection"):
    logging.getLogger(name).info("HTTP Request: GET http://one/v1/claims")
    logging.getLogger(name).warning("it.fails")
"""
    assert [line.split()[2] for line in logged(code).splitlines()] == ["msg=it.fails", "msg=it.fails"]
