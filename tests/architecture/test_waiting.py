"""How the tests wait and start processes: ``tests.waiting``, ``tests.processes`` and ``tests.once``, and their use."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import waiting
from tests.once import made_once
from tests.processes import descendants, killed_on_failure, launch
from tests.procfs import every_process
from tests.waiting import until, until_async, within

TESTS = Path(__file__).parents[1]
# A figure of one's own for how long something may take, and a loop of one's own that waits for it.
OWN_FIGURE = re.compile(r"assert [^\n]*(monotonic|perf_counter)\(\) - \w+(\[0\])?\)? *<|\b(took|elapsed)_s <=? \d")
OWN_LOOP = re.compile(r"while (time\.)?monotonic\(\) <|assert time\.monotonic\(\) <")
OWN_LIMIT = re.compile(r"--timeout=\d{2,}s|settimeout\(\d{2}|\.wait_for\([^)]*, \d{2,}\)")
OTHERS = ("guards", "mutation")  # which run the tests, and time them
ALLOWED = {
    "slurm/test_two_of_one_name.py",  # it looks on for some time: something must not happen
    "unit/kubernetes/cluster_stand_in.py",  # a server, whose watches end
}


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound of a second is over at once."""
    monkeypatch.setattr(waiting, "PATIENCE", 0.01)


def test_the_first_true_value_comes_back_at_once() -> None:
    values = iter([0, None, "", "here", "later"])
    assert until(lambda: next(values)) == "here"


@pytest.mark.usefixtures("hasty")
def test_what_does_not_come_is_told_with_the_last_look() -> None:
    with pytest.raises(AssertionError, match=r"not within 0\.01 s: a ship \(the last look: 0\)"):
        until(lambda: 0, 1, what="a ship")
    with pytest.raises(AssertionError, match=r"the log \(the last look: OSError\('no'\)\)"):
        until(_fail, 1, what=lambda: "the log", not_yet=OSError)


def _fail() -> bool:
    raise OSError("no")


def test_an_error_that_is_none_of_waiting_ends_it() -> None:
    with pytest.raises(OSError, match="no"):
        until(_fail)


@pytest.mark.usefixtures("hasty")
def test_it_looks_once_more_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process may have stood still meanwhile, and what it waits for has come."""
    came = iter([False, True])

    def stand_still(_pause_s: float) -> None:
        time.sleep(0.1)

    monkeypatch.setattr(waiting, "sleep", stand_still)
    assert until(lambda: next(came), 1)


async def test_an_event_loop_goes_on_while_it_waits() -> None:
    come = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, come.set)
    assert await until_async(come.is_set)
    assert await until_async(lambda: asyncio.sleep(0, "done")) == "done"


@pytest.mark.usefixtures("hasty")
async def test_what_hangs_is_given_up() -> None:
    with pytest.raises(AssertionError, match="last look: TimeoutError"):
        await until_async(asyncio.Event().wait, 1)


@pytest.mark.usefixtures("hasty")
def test_a_block_that_takes_too_long_fails() -> None:
    with within(100):
        pass
    with pytest.raises(AssertionError, match=r"should not take 0\.01 s"), within(1):
        time.sleep(0.02)


def test_no_test_has_a_clock_of_its_own() -> None:
    """Else it is red when the machine is busy."""
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        place = path.relative_to(TESTS)
        if place.parts[0] in OTHERS or path == Path(__file__) or str(place) in ALLOWED:
            continue
        text = path.read_text()
        for each in (OWN_FIGURE, OWN_LOOP, OWN_LIMIT):
            found += [f"{place}:{text.count(chr(10), 0, match.start()) + 1}" for match in each.finditer(text)]
    assert found == [], "see tests/waiting.py"


TREE = "import subprocess, sys; subprocess.Popen(['sh', '-c', 'sleep 1000 & wait']); print('up', flush=True); input()"


def test_what_does_not_come_up_is_killed_with_its_children() -> None:
    process = launch([sys.executable, "-c", TREE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        below = until(lambda: found if len(found := descendants(process.pid)) == 2 else None)
        with pytest.raises(AssertionError, match="never"), killed_on_failure(process):
            raise AssertionError("never")
        assert process.returncode == -9
        until(lambda: not {*below} & {pid for pid, stat in every_process("stat") if b") Z" not in stat})


def test_what_a_test_started_dies_with_the_tests() -> None:
    code = "import sys; from tests.processes import launch; print(launch(['sleep', '1000']).pid, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=TESTS.parent
    ) as tests:
        assert tests.stdout is not None
        started = int(tests.stdout.readline())
        until(lambda: dict(every_process("cmdline")).get(started, b"").startswith(b"sleep"))  # the kernel was asked
        tests.kill()
    until(lambda: started not in {pid for pid, stat in every_process("stat") if b") Z" not in stat})


def test_what_is_dear_is_made_once_and_again_after_a_failure(tmp_path_factory: pytest.TempPathFactory) -> None:
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "file").touch()
        if len(made) == 1:
            raise OSError("no")

    with pytest.raises(OSError, match="no"):
        made_once(tmp_path_factory, "dear", make)
    with ThreadPoolExecutor(4) as pool:
        found = {*pool.map(lambda _: made_once(tmp_path_factory, "dear", make), range(4))}
    assert len(made) == 2
    assert [path.name for folder in found for path in folder.iterdir()] == ["file"]
