"""A job's output is cut at its limit, while it continues; nothing else is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from moorings.local.output_limit import CHECK_NEAR_LIMIT_S, CHECK_S, TASK_BYTES_MIN, OutputLimiter

LIMIT = 2 * TASK_BYTES_MIN


def write(path: Path, count: int) -> None:
    with path.open("ab") as file:
        file.write(b"y" * count)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "0.log"


def test_what_is_beyond_the_limit_is_cut_and_a_line_says_so(log: Path) -> None:
    output = OutputLimiter([log], LIMIT)
    assert output.enforce() == CHECK_S, "it is not there yet"
    write(log, LIMIT)
    output.enforce()
    assert log.stat().st_size == LIMIT
    write(log, 1)
    assert output.enforce() == CHECK_NEAR_LIMIT_S
    text = log.read_bytes()
    assert text.startswith(b"y" * LIMIT + b"\n[moorings: the output is cut here, at 8192;")
    assert text.endswith(b"runs on]\n")
    for _ in range(3):
        write(log, 100_000)
        assert output.enforce() == CHECK_NEAR_LIMIT_S
        assert log.read_bytes() == text, "nothing is added any more"


def test_each_task_has_the_same_part(tmp_path: Path) -> None:
    logs = [tmp_path / f"{rank}.log" for rank in range(2)]
    output = OutputLimiter(logs, LIMIT)
    for path in logs:
        write(path, LIMIT)
    output.enforce()
    assert {path.stat().st_size // TASK_BYTES_MIN for path in logs} == {1}


def test_without_a_limit_nothing_is_cut(log: Path) -> None:
    output = OutputLimiter([log], 0)
    write(log, 10 * LIMIT)
    assert output.enforce() == CHECK_S
    assert log.stat().st_size == 10 * LIMIT


def test_what_the_job_puts_in_its_log_s_place_is_left_alone(tmp_path: Path, log: Path) -> None:
    """A link would have us cut a file of somebody else's."""
    victim = tmp_path / "victim"
    write(victim, 10 * LIMIT)
    log.symlink_to(victim)
    output = OutputLimiter([log, tmp_path / "1.log"], LIMIT)
    os.mkfifo(tmp_path / "1.log")
    output.enforce()
    assert victim.stat().st_size == 10 * LIMIT


def test_a_log_that_grows_quickly_is_looked_at_often(log: Path) -> None:
    output = OutputLimiter([log], 100 * LIMIT)
    write(log, 45 * LIMIT)
    assert output.enforce() == CHECK_NEAR_LIMIT_S
