"""What tests over a changed package leave behind is ended, however they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guards.guards import GUARDS
from tests.mutation import keeper
from tests.mutation.copies import ROOT, Copy
from tests.procfs import lives
from tests.waiting import patient, until

DEADLINE_S = patient(60)

# As a supervisor does it: a session of its own, and a parent that is gone.
LEAVES_ONE = """
import os, time
from pathlib import Path

def test_it():
    file = Path(__file__).with_name("pid")
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            file.with_suffix(".new").write_text(str(os.getpid()))
            file.with_suffix(".new").rename(file)
            time.sleep(3600)
        os._exit(0)
    os.wait()
    while not file.exists():
        time.sleep(0.01)
"""
AND_WAITS = "    time.sleep(3600)\n"
AND_WORKS = "    while True:\n        pass\n"


@pytest.fixture(scope="module")
def runner() -> Iterator[subprocess.Popen[str]]:
    with start() as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        (sys.executable, "-m", "tests.mutation.zygote", "--bare"),
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(folder: Path, code: str, *, limit_s: float = DEADLINE_S, cpu_s: float = DEADLINE_S) -> str:
    """The line that has that test run."""
    (folder / "test_left.py").write_text(code)
    asked = {"tests": [str(folder / "test_left.py")], "limit_s": limit_s, "cpu_s": cpu_s, "folder": str(folder)}
    return json.dumps(asked) + "\n"


def run(runner: subprocess.Popen[str], line: str) -> int:
    """Have a test run; the exit status."""
    assert runner.stdin is not None
    assert runner.stdout is not None
    runner.stdin.write(line)
    runner.stdin.flush()
    return int(json.loads(runner.stdout.readline())["status"])


def ended(folder: Path) -> list[str]:
    return [line for line in (folder / "output").read_text().splitlines() if line.startswith(keeper.ENDED)]


def pid_in(file: Path) -> int:
    until(file.exists)
    return int(file.read_text())


@pytest.mark.parametrize("status", [0, 1])
def test_what_outlives_a_test_is_ended(runner: subprocess.Popen[str], tmp_path: Path, status: int) -> None:
    assert run(runner, ask(tmp_path, LEAVES_ONE + f"    assert not {status}\n")) == status
    pid = pid_in(tmp_path / "pid")
    assert not lives(pid)
    assert [line.removeprefix(keeper.ENDED).split()[0] for line in ended(tmp_path)] == [str(pid)]


@pytest.mark.parametrize(("more", "limits"), [(AND_WAITS, {"limit_s": 8.0}), (AND_WORKS, {"cpu_s": 3.0})])
def test_a_test_that_takes_too_long_is_ended_with_all_it_started(
    runner: subprocess.Popen[str], tmp_path: Path, more: str, limits: dict[str, float]
) -> None:
    for longer in (1, 3, 10):  # on a busy machine it may have started nothing when its time is over
        limited = {name: longer * limit for name, limit in limits.items()}
        assert run(runner, ask(tmp_path, LEAVES_ONE + more, **limited)) == keeper.TOO_LONG
        if (tmp_path / "pid").exists():
            break
    assert not lives(pid_in(tmp_path / "pid"))
    assert run(runner, ask(tmp_path, "def test_it(): pass\n")) == 0, "the next test is not concerned"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_it_is_told_to_stop(tmp_path: Path, number: signal.Signals) -> None:
    with start() as runner:
        assert runner.stdin is not None
        runner.stdin.write(ask(tmp_path, LEAVES_ONE + AND_WAITS))
        runner.stdin.flush()
        pid = pid_in(tmp_path / "pid")
        runner.send_signal(number)
        runner.wait(DEADLINE_S)
    assert not lives(pid)


def test_nothing_is_left_when_whoever_waits_is_killed(tmp_path: Path) -> None:
    line = ask(tmp_path, LEAVES_ONE + AND_WAITS)
    waits = f"from tests.mutation import test_keeper as t; t.run(t.start(), {line!r})"
    waiting = subprocess.Popen([sys.executable, "-c", waits], cwd=ROOT, stderr=subprocess.DEVNULL)
    pid = pid_in(tmp_path / "pid")
    waiting.send_signal(signal.SIGKILL)
    waiting.wait(DEADLINE_S)
    until(lambda: not lives(pid))


def test_a_supervisor_that_a_failed_test_leaves_is_ended(tmp_path: Path) -> None:
    """A guard without which a test fails before it has cancelled its run."""
    guard = next(guard for guard in GUARDS if guard.what == "a partition that a run uses is not reset by hand")
    left: list[str] = []
    with Copy(tmp_path) as copy, copy.changed(guard.change):
        for _ in range(5):  # on a busy machine it may fail before its run has a supervisor
            outcome = copy.test(*guard.tests)
            assert outcome.misses(guard.tests[0])
            left = [line for line in outcome.ended if "moorings.local.supervisor" in line]
            if left:
                break
    assert left, "it leaves none any more: name another guard here, or take this test away"
    for line in left:
        assert not lives(int(line.removeprefix(keeper.ENDED).split()[0]))


def test_strangers_are_left_alone(runner: subprocess.Popen[str], tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "3600"])
    try:
        assert run(runner, ask(tmp_path, LEAVES_ONE)) == 0
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
