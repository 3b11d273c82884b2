"""Running commands: real processes that hang, flood, fail and complain, and what each is called."""

from __future__ import annotations

import asyncio
import os

import pytest

from moorings.core.model.errors import MooringsError
from moorings.slurm.commands import (
    CONCURRENT_MAX,
    OUTPUT_BYTES_MAX,
    CommandResult,
    SlurmCommands,
    build_environment,
    parse_error,
)
from tests.cases import cases
from tests.procfs import lives
from tests.waiting import until_async


@pytest.fixture
def commands() -> SlurmCommands:
    return SlurmCommands(os.environ, timeout_s=20.0)


def sh(script: str) -> list[str]:
    return ["sh", "-c", script]


async def test_what_it_writes_is_the_answer(commands):
    assert await commands.run_checked(sh("printf 'a\\0b'; echo noise >&2")) == b"a\0b"
    assert (await commands.run(sh("echo no >&2; exit 3"))) == CommandResult(b"", "no", 3)


async def test_a_command_that_is_not_there(commands):
    with pytest.raises(MooringsError) as told:
        await commands.run_checked(["no-such-command"])
    assert told.value.code == "slurm.missing"


def test_what_is_not_installed_is_told_before_it_is_needed(tmp_path):
    program = tmp_path / "sbatch"
    commands = SlurmCommands({"PATH": str(tmp_path)})
    with pytest.raises(MooringsError) as told:
        commands.check_installed("sbatch")
    assert told.value.code == "slurm.missing"
    assert told.value.hint
    program.write_text("#!/bin/sh")
    program.chmod(0o755)
    commands.check_installed("sbatch")


async def test_a_command_that_hangs_is_ended_with_all_it_started(tmp_path):
    pids = tmp_path / "pids"
    quick = SlurmCommands(os.environ, timeout_s=3.0)
    with pytest.raises(MooringsError) as told:
        await quick.run_checked(sh(f"sleep 300 & echo $! $$ > {pids}; trap '' TERM; wait"))
    assert told.value.code == "slurm.unavailable"
    assert told.value.retryable
    left = pids.read_text().split()
    await until_async(lambda: not any(map(lives, left)), 10)


async def test_one_that_is_given_up_is_ended(commands, tmp_path):
    pids = tmp_path / "pids"
    waiting = asyncio.create_task(commands.run_checked(sh(f"echo $$ > {pids}; exec sleep 300")))
    await until_async(lambda: pids.exists() and pids.read_text(), 10)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not lives(pids.read_text().strip())


async def test_a_flood_is_cut_off(commands):
    with pytest.raises(MooringsError) as told:
        await commands.run_checked(["head", "-c", str(2 * OUTPUT_BYTES_MAX), "/dev/zero"])
    assert told.value.code == "slurm.unreadable"


async def test_a_flood_of_complaints_does_not_stop_an_answer(commands):
    answer = await commands.run(sh("head -c 9000000 /dev/zero | tr '\\0' x >&2; echo done"))
    assert answer.output == b"done\n"
    assert len(answer.stderr) < 200_000


async def test_few_run_at_once(commands, tmp_path):
    script = f"touch {tmp_path}/$$; ls {tmp_path} | wc -l; sleep 0.1; rm {tmp_path}/$$"
    seen = await asyncio.gather(*(commands.run_checked(sh(script)) for _ in range(3 * CONCURRENT_MAX)))
    assert max(int(count) for count in seen) <= CONCURRENT_MAX


def test_nothing_of_a_users_taste_reaches_a_command():
    taste = {
        "SQUEUE_FORMAT": "%j",
        "SLURM_TIME_FORMAT": "relative",
        "TZ": "Asia/Tokyo",
        "LC_ALL": "fr_FR",
        "SLURM_CLUSTERS": "x",
    }
    found = build_environment({**taste, "SLURM_CONF": "/a", "PATH": "/b"})
    assert found == {
        "SLURM_CONF": "/a",
        "PATH": "/b",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "SLURM_TIME_FORMAT": "standard",
        "SLURM_BITSTR_LEN": "64",
    }


@cases(
    ("complaint", "code"),
    [
        # As 22.05, 24.11 and 26.05 write them.
        ("slurm_load_jobs error: Invalid job id specified", "slurm.job_unknown"),
        ("Invalid job id specified for job 4242", "slurm.job_unknown"),
        ("scancel: error: Kill job error on job id 7: Access/permission denied", "slurm.denied"),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", "slurm.unavailable"),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", "slurm.unavailable"),
        ("slurm_load_jobs error: Zero Bytes were transmitted or received", "slurm.unavailable"),
        ("squeue: fatal: Could not establish a configuration source", "slurm.unavailable"),
        ("Error updating the reservation: Requested reservation is invalid", "slurm.refused"),
        ("Slurm accounting storage is disabled", "slurm.refused"),
        ("", "slurm.refused"),
    ],
)
def test_what_a_complaint_means(complaint, code):
    error = parse_error(["scontrol", "show"], CommandResult(b"", complaint, 1))
    assert error.code == code
    assert error.retryable is (code == "slurm.unavailable")
    assert error.detail.startswith("scontrol show: ")
    assert len(parse_error(["x", "y"], CommandResult(b"", "a\x1b[2J" * 1000, 1)).detail) < 400
