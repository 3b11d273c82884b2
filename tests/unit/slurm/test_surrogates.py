from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.ports.mirror import Mirror, NoMirror
from moorings.slurm.surrogate.detection import NotInJob, find_job
from moorings.slurm.surrogate.mirror import SlurmMirror, _Lifeline, find_mirror, time_left_s
from moorings.slurm.surrogate.step import (
    BEAT,
    COMPLETED,
    FAILED,
    Begun,
    Signalled,
    build_name,
    build_remove,
    build_step,
    check_name,
    load_placeholder,
    parse_line,
)
from tests.cases import cases

# -- where we are ------------------------------------------------------------------------------------------------------
from tests.procfs import HEARING
from tests.waiting import patient, until


@cases(
    ("environment", "ancestors"),
    [
        ({"SLURM_JOB_ID": "65"}, []),
        ({"SLURM_JOB_ID": "65", "SLURM_STEP_ID": "4294967290"}, []),  # salloc's interactive step
        ({"SLURM_JOB_ID": "65", "SLURM_STEP_ID": "4294967291"}, []),  # the batch script
        ({"SLURM_JOB_ID": "65"}, ["/bin/bash ", "slurmstepd: [65.batch] "]),
        ({"SLURM_JOB_ID": "65", "SLURM_STEP_ID": "0"}, ["slurmstepd: [65.batch]"]),  # a step has submitted the job
        ({"SLURM_JOB_ID": "65", "SLURM_STEP_ID": "0"}, ["slurmstepd: [65.4294967290]"]),
        ({"SLURM_JOB_ID": "65", "SLURM_STEP_ID": "0"}, ["salloc ", "bash ", "slurmstepd: [64.0]"]),  # salloc in a step
    ],
)
def test_a_batch_script_and_a_shell_of_salloc_are_places_for_steps(environment, ancestors):
    assert find_job(environment, ancestors) == 65


@cases(
    ("environment", "ancestors", "why"),
    [
        ({}, [], "no Slurm job"),
        ({"SLURM_JOB_ID": ""}, [], "no Slurm job"),
        ({"SLURM_JOB_ID": "65; rm -rf"}, [], "no job's id"),
        ({"SLURM_JOB_ID": "٦٥"}, [], "no job's id"),
        ({"SLURM_JOB_ID": "65", "SLURM_STEP_ID": "0"}, [], "under srun"),
        ({"SLURM_JOB_ID": "65", "SLURM_STEP_ID": "4294967289"}, [], "under srun"),
        ({"SLURM_JOB_ID": "65"}, ["sh ", "slurmstepd: [65.3]"], "under srun"),
        ({"SLURM_JOB_ID": "65"}, ["slurmstepd: [65+1.0]"], "under srun"),
    ],
)
def test_elsewhere_is_none_and_why(environment, ancestors, why):
    place = find_job(environment, ancestors)
    assert isinstance(place, NotInJob)
    assert why in place.why
    assert place.hint


def test_ancestors_begin_with_whoever_started_us():
    script = "from moorings.slurm.surrogate.detection import load_ancestors as a; print(next(iter(a())))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=patient(30)
    )
    ours = Path("/proc/self/cmdline").read_bytes().replace(b"\0", b" ").decode()
    assert done.stdout.strip() == ours.strip()


# -- what srun is told -------------------------------------------------------------------------------------------------


def test_a_step_takes_nothing_and_waits_for_nothing():
    argv = build_step(65, "wsjob-z3pbtbl8sgmfqtivpazrtn-csx1", "script")
    assert argv[0] == "srun"
    assert {"--jobid=65", "--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--gres=none"} <= set(argv)
    assert "--job-name=wsjob-z3pbtbl8sgmfqtivpazrtn-csx1" in argv
    assert argv[-4:] == ["/bin/sh", "-c", "script", "moorings-surrogate"]


def test_a_step_is_removed_by_its_number():
    assert build_remove(65, 1) == ["scancel", "65.1"]


@cases("name", ["", "-x", "a b", "a\nb", "x" * 129, "ä", "a;b", "a$b", "%j"])
def test_a_name_that_no_listing_could_show_is_refused(name):
    with pytest.raises(MooringsError) as refused:
        check_name(name)
    assert refused.value.code == "name.invalid"
    with pytest.raises(MooringsError):
        SlurmMirror({}, 65, pytest.fail).begin(name, pytest.fail)


@pytest.mark.parametrize(
    ("command", "name"),
    [("sleep", "sleep"), ("./train.sh", "train.sh"), ("/opt/a b/c d", "c_d"), ("...", "surrogate"), ("/", "surrogate")],
)
def test_a_command_gives_a_name_that_fits(command, name):
    assert check_name(build_name(command)) == name


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("moorings:begun:3", Begun(3)),
        ("moorings:TERM\n", Signalled("TERM")),
        ("srun: error: n1: task 0: Killed", None),
        ("the site's prolog says moorings:TERM", None),
        ("", None),
    ],
)
def test_only_the_placeholders_own_lines_count(line, word):
    assert parse_line(line) == word


# -- the placeholder ---------------------------------------------------------------------------------------------------

SHELLS = [[path] for name in ("dash", "bash") if (path := shutil.which(name))] + [["bash", "--posix"]]


@pytest.fixture(params=SHELLS, ids=" ".join)
def placeholder(request) -> Iterator[subprocess.Popen[bytes]]:
    argv = [*HEARING, *request.param, "-c", load_placeholder(), "moorings-surrogate"]
    environment = {**os.environ, "SLURM_STEP_ID": "7"}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment) as process:
        assert hear(process) == "moorings:begun:7"
        yield process
        process.kill()


def hear(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], patient(10))[0], "the placeholder says nothing"
    return process.stdout.readline().decode().strip()


def say(process: subprocess.Popen[bytes], word: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(word)


def unread(process: subprocess.Popen[bytes]) -> int:
    """How many bytes of what was said it has not read yet."""
    assert process.stdin is not None
    (count,) = struct.unpack("i", fcntl.ioctl(process.stdin, termios.FIONREAD, bytes(4)))
    return int(count)


@pytest.mark.parametrize(("word", "code"), [(COMPLETED, 0), (FAILED, 1), (b"00\n", 1), (b"yes\n", 1)])
def test_the_placeholder_ends_as_it_is_told(placeholder, word, code):
    say(placeholder, word)
    assert placeholder.wait(patient(10)) == code


@pytest.mark.parametrize("word", [b"", b"0", b"\n"])
def test_it_fails_when_its_client_is_gone(placeholder, word):
    say(placeholder, word)
    placeholder.stdin.close()
    assert placeholder.wait(patient(10)) == 1


@pytest.mark.parametrize("name", ["HUP", "INT", "QUIT", "USR1", "USR2", "TERM"])
def test_it_tells_of_signals_and_goes_on(placeholder, name):
    for _ in range(2):
        placeholder.send_signal(signal.Signals[f"SIG{name}"])
        say(placeholder, BEAT)  # it may come just before its read
        assert hear(placeholder) == f"moorings:{name}"
        say(placeholder, BEAT)  # read when the trap is over: bash forgets a signal that comes during its own
        until(lambda: not unread(placeholder))
    assert placeholder.poll() is None
    say(placeholder, COMPLETED)
    assert placeholder.wait(patient(10)) == 0


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_signal_in_the_middle_of_the_word_changes_nothing_of_it(placeholder, at):
    say(placeholder, COMPLETED[:at])
    placeholder.send_signal(signal.SIGTERM)
    with contextlib.suppress(BrokenPipeError):
        say(placeholder, COMPLETED[at:])
    assert placeholder.wait(patient(10)) == 0


# -- lifeline, limit, nothing ------------------------------------------------------------------------------------------


def test_a_forked_child_does_not_hold_the_lifeline():
    lifeline = _Lifeline()
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    try:
        lifeline.cut()
        os.set_blocking(lifeline.reading, True)
        reader = subprocess.Popen(["cat"], stdin=lifeline.reading)
        assert reader.wait(patient(10)) == 0  # the end of the input is seen while the child lives
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(lifeline.reading)


def test_work_ends_so_long_before_the_job():
    assert time_left_s(Timestamp(1000 * SECOND), 30, 900.5) == 69.5
    assert time_left_s(Timestamp(1000 * SECOND), 30, 990) == -20
    assert time_left_s(None, 30, 1e12) == float("inf")


def test_where_there_is_no_slurm_nothing_happens():
    mirror: Mirror = find_mirror({}, pytest.fail)
    assert isinstance(mirror, NoMirror)
    mirror.begin("any name", pytest.fail).end(True)
    mirror.watch_limit(pytest.fail, 30).stop()
