"""The agent's process has room for the connections that its door allows, or says that it has not."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from moorings.app.slurm_agent import OWN_FILES
from moorings.slurm.host.bind_server import CONNECTIONS_MAX
from tests.waiting import patient

ENOUGH = CONNECTIONS_MAX + OWN_FILES
CODE = """
import resource
from moorings.app.logs import configure
from moorings.app.slurm_agent import raise_open_files
configure("info", "logfmt")
print(raise_open_files(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def limited(soft: int, hard: int) -> tuple[list[int], str]:
    """What a process that begins with these limits has afterwards: connections, both limits; and what it logged."""
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),
        capture_output=True,
        text=True,
        check=True,
        timeout=patient(60),
    )
    return [int(word) for word in done.stdout.split()], done.stderr


@pytest.mark.parametrize("hard", [ENOUGH, ENOUGH + 1000])
def test_files_are_raised_to_what_the_door_needs(hard: int) -> None:
    assert limited(256, hard) == ([CONNECTIONS_MAX, ENOUGH, hard], "")


def test_a_higher_limit_stays() -> None:
    assert limited(ENOUGH + 7, ENOUGH + 1000) == ([CONNECTIONS_MAX, ENOUGH + 7, ENOUGH + 1000], "")


def test_with_too_few_the_door_is_narrower_and_it_is_said() -> None:
    found, logged = limited(256, 1024)
    assert found == [1024 - OWN_FILES, 1024, 1024]
    assert "agent.few_files" in logged
    assert "files=1024" in logged
    assert limited(128, 128)[0][0] > 0
