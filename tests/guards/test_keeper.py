"""What tests over a changed package leave behind is ended, however they end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guards import keeper
from tests.guards.guards import GUARDS
from tests.guards.mutants import Copy

DEADLINE_S = 20.0

# As a supervisor does it: a session of its own, and a parent that is gone.
LEAVES_ONE = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
        os.rename(sys.argv[1] + ".new", sys.argv[1])
        time.sleep(3600)
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""


def kept(limit_s: float, code: str, file: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, "-I", "-S", keeper.__file__, str(limit_s), sys.executable, "-I", "-c", code, str(file)]
    return subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)


def pid_in(file: Path) -> int:
    until(file.exists)
    return int(file.read_text())


def until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def is_over(pid: int) -> bool:
    """Whether a process has ended (what is left of one that nobody has reaped yet counts as ended)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return text.rpartition(") ")[2][0] in "ZX"


@pytest.mark.parametrize("status", [0, 3])
def test_what_outlives_a_command_is_ended(tmp_path: Path, status: int) -> None:
    process = kept(DEADLINE_S, f"{LEAVES_ONE}\nsys.exit({status})", tmp_path / "pid")
    _, told = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == status
    pid = pid_in(tmp_path / "pid")
    assert is_over(pid)
    assert told.startswith(f"{keeper.ENDED}{pid} ")


def test_a_command_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    process = kept(5.0, f"{LEAVES_ONE}\ntime.sleep(3600)", tmp_path / "pid")
    _, told = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == keeper.TOO_LONG
    assert is_over(pid_in(tmp_path / "pid"))
    assert len(told.splitlines()) == 2, "the command, and what it left"


def test_nothing_is_left_when_it_is_told_to_stop(tmp_path: Path) -> None:
    process = kept(DEADLINE_S, f"{LEAVES_ONE}\ntime.sleep(3600)", tmp_path / "pid")
    pid = pid_in(tmp_path / "pid")
    process.terminate()
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == keeper.STOPPED
    assert is_over(pid)


def test_nothing_is_left_when_whoever_waits_is_killed(tmp_path: Path) -> None:
    words = [keeper.__file__, "3600", sys.executable, "-I", "-c", f"{LEAVES_ONE}\ntime.sleep(3600)"]
    waits = f"import subprocess, sys; subprocess.run([sys.executable, '-I', '-S', *{words!r}, sys.argv[1]])"
    waiting = subprocess.Popen([sys.executable, "-I", "-c", waits, str(tmp_path / "pid")], stderr=subprocess.DEVNULL)
    pid = pid_in(tmp_path / "pid")
    waiting.send_signal(signal.SIGKILL)
    waiting.wait(DEADLINE_S)
    until(lambda: is_over(pid))


def test_a_supervisor_that_a_failed_test_leaves_is_ended(tmp_path: Path) -> None:
    """A guard without which a test fails before it has cancelled its run."""
    guard = next(guard for guard in GUARDS if guard.what == "a partition that a run uses is not reset by hand")
    copy = Copy(tmp_path)
    left: list[str] = []
    with copy.without(guard):
        for _ in range(5):  # on a busy machine it may fail before its run has a supervisor
            outcome = copy.test(*guard.tests)
            assert outcome.misses(guard.tests[0])
            left = [line for line in outcome.ended if "moorings.local.supervisor" in line]
            if left:
                break
    assert left, "it leaves none any more: name another guard here, or take this test away"
    for line in left:
        assert is_over(int(line.removeprefix(keeper.ENDED).split()[0]))


def test_strangers_are_left_alone(tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "3600"])
    try:
        process = kept(DEADLINE_S, LEAVES_ONE, tmp_path / "pid")
        process.communicate(timeout=DEADLINE_S)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
