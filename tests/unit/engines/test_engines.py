"""What engines share: files that are whole, first words that stay, schedulers that are asked seldom."""

from __future__ import annotations

import asyncio
import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.core.reconcile import MISSING_S_MIN
from moorings.engines.launch import log_files_of_tasks, parse_signal
from moorings.engines.polling import MissedListings, rate_limited, wait_for_change
from moorings.engines.run_folder import AttemptFolder, ScheduledRunFolder
from moorings.workloads.runs import EndRecord, RunId
from tests.waiting import patient

RUN = RunId("run-a")


@dataclass(frozen=True, slots=True)
class OneState:
    end: EndRecord | None = None
    is_submitted: bool = False


class OneAttemptFolder(AttemptFolder):
    def read_state(self) -> OneState:
        return OneState()


class OneRunFolder(ScheduledRunFolder[OneAttemptFolder]):
    id_pattern = re.compile(r"[a-z-]+")

    def attempt(self, number: int) -> OneAttemptFolder:
        return OneAttemptFolder(self.path / str(number), number)

    def keep_idle(self) -> AbstractContextManager[bool]:
        return nullcontext(enter_result=True)


@dataclass
class Clock:
    """Time continues when it is told to, and when somebody waits."""

    seconds: float = 0.0

    def now(self) -> Timestamp:
        return Timestamp(round(self.seconds * SECOND))

    async def sleep(self, delay_s: float) -> None:
        self.seconds += delay_s


def at(seconds: float) -> Timestamp:
    return Timestamp(round(seconds * SECOND))


# -- a run's folder ----------------------------------------------------------------------------------------------------


def an_attempt(folder: Path) -> AttemptFolder:
    folder.mkdir(parents=True)
    return OneAttemptFolder(folder, int(folder.name))


def test_the_first_word_stays_and_another_is_replaced(tmp_path: Path) -> None:
    attempt = an_attempt(tmp_path / "0")
    for word in (b"first", b"second"):
        attempt.write_once("once", word)
        attempt.write("often", word)
    assert (attempt.path / "once").read_bytes() == b"first"
    assert (attempt.path / "often").read_bytes() == b"second"
    assert sorted(path.name for path in attempt.path.iterdir()) == ["often", "once"]  # and no drafts
    assert {path.stat().st_mode & 0o777 for path in attempt.path.iterdir()} == {0o600}


def test_the_newest_attempt_is_the_highest_that_was_ordered(tmp_path: Path) -> None:
    run = OneRunFolder(tmp_path / "run-a")
    assert run.newest_attempt() is None
    for number in (2, 10):
        an_attempt(run.path / str(number)).write("order.json", b"{}")
    an_attempt(run.path / "11")  # its order was never written
    (run.path / "door").touch()
    newest = run.newest_attempt()
    assert newest is not None
    assert newest.number == 10


@pytest.mark.parametrize("ident", ["", ".", "..", "../run-a", "run/a", "run-a\n"])
def test_what_would_leave_the_folder_is_no_run(tmp_path: Path, ident: str) -> None:
    assert OneRunFolder.find(tmp_path, RunId(ident)) is None


def test_a_run_is_below_its_folder(tmp_path: Path) -> None:
    found = OneRunFolder.find(tmp_path, RUN)
    assert isinstance(found, OneRunFolder)
    assert found.path == tmp_path / "run-a"


# -- orders ------------------------------------------------------------------------------------------------------------


def test_output_is_chosen_by_task(tmp_path: Path) -> None:
    def log(rank: int) -> Path:
        return tmp_path / str(rank)

    assert log_files_of_tasks(RUN, 1, None, log) == [(tmp_path / "0", b"")]
    assert log_files_of_tasks(RUN, 2, None, log) == [(tmp_path / "0", b"[0] "), (tmp_path / "1", b"[1] ")]
    assert log_files_of_tasks(RUN, 2, 1, log) == [(tmp_path / "1", b"")]
    for task in (-1, 2):
        with pytest.raises(MooringsError, match=f"no task {task}") as refused:
            log_files_of_tasks(RUN, 2, task, log)
        assert refused.value.code == "engine.rejected"


def test_a_signal_may_be_too_high_for_an_engine() -> None:
    assert parse_signal("SIGSYS").value == 31
    with pytest.raises(MooringsError, match="no signal 'SYS'"):
        parse_signal("SYS", 30)


# -- looks -------------------------------------------------------------------------------------------------------------


def test_news_ends_a_wait_and_is_news_once() -> None:
    async def play() -> tuple[bool, bool]:
        news = asyncio.Event()

        class Asleep(Clock):
            async def sleep(self, delay_s: float) -> None:
                await asyncio.Event().wait()

        news.set()
        async with asyncio.timeout(patient(10)):
            await wait_for_change(news, Asleep(), 1.0)
        told = news.is_set()
        clock = Clock()
        async with asyncio.timeout(patient(10)):
            await wait_for_change(news, clock, 1.0)
        return told, clock.seconds == 1.0

    assert asyncio.run(play()) == (False, True)


def test_a_scheduler_is_asked_seldom() -> None:
    clock, asked = Clock(), []

    async def ask() -> bool:
        asked.append(clock.seconds)
        return True

    async def play() -> list[bool]:
        question, answers = rate_limited(ask, clock, 1.0), []
        for seconds in (0.0, 0.9, 1.0, 1.5, 2.0, 0.5):  # at the end the clock was put back
            clock.seconds = seconds
            answers.append(await question())
        return answers

    assert asyncio.run(play()) == [False, False, True, False, True, True]
    assert asked == [1.0, 2.0, 0.5]


def test_one_listing_without_a_job_ends_nothing() -> None:
    missing = MissedListings()
    assert not any(missing.record_miss(RUN, at(0.1 * look)) for look in range(10))  # often, but not for long
    assert missing.record_miss(RUN, at(MISSING_S_MIN + 1))
    missing.clear(RUN)
    assert not missing.record_miss(RUN, at(MISSING_S_MIN + 2))
    assert not missing.record_miss(RUN, at(3 * MISSING_S_MIN))  # for long, but not often
    assert missing.record_miss(RUN, at(3 * MISSING_S_MIN + 1))
