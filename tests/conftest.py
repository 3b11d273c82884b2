"""What every test may rely on: no settings of the person who runs them, and Hypothesis profiles."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.errors import StopTest

from tests.guards.report import pytest_terminal_summary
from tests.postgresql import database_name, database_url, postgresql
from tests.sampling import examples, pytest_configure
from tests.waiting import patient

# fixtures for every test, and hooks
__all__ = ["database_name", "database_url", "postgresql", "pytest_configure", "pytest_terminal_summary"]

# Properties explore: examples are not derandomised, though Hypothesis itself would do that wherever CI is set. In the
# gates (``tests.lanes``) the seed is the tree's name: the same on every machine, another one with each commit.
settings.register_profile("default", deadline=None, derandomize=False)
settings.register_profile(
    "gate",
    deadline=None,
    derandomize=False,
    database=None,
    max_examples=examples(100),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine is no fault of a test
)
settings.register_profile("fuzz", deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
settings.load_profile("default")

_homes = count()


def _no_stopped_example(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], StopTest))


# Hypothesis stops an example by StopTest, which anyio's runner leaves in a task that nobody asks. asyncio logs that
# when the task is collected, which may be within ast.parse(). Formatting the traceback parses too, and CPython 3.11
# fails then with "AST constructor recursion depth mismatch".
logging.getLogger("asyncio").addFilter(_no_stopped_example)


@pytest.hookimpl(trylast=True)  # after a folder's conftest has given its tests a limit
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each test the time limit of a busy machine; ``--timeout`` on the command line is meant as it is."""
    if config.getoption("timeout") is not None:
        return
    usual = float(config.getini("timeout"))
    for item in items:
        mark = item.get_closest_marker("timeout")
        item.add_marker(pytest.mark.timeout(patient(mark.args[0] if mark else usual)), append=False)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"  # not uvloop: it swallows what pytest-timeout raises in a test that hangs


@pytest.fixture(autouse=True)
def _own_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test sees, or touches, the configuration of whoever runs it."""
    for name in list(os.environ):
        if name.startswith(("MOORINGS_", "IPUOF_", "XDG_", "SLURM_", "VIPU_")):
            monkeypatch.delenv(name)
    home = tmp_path_factory.getbasetemp() / "homes" / str(next(_homes))  # one folder of thousands is slow to number
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))


@pytest.fixture(autouse=True)
def _same_signals() -> Iterator[None]:
    """No test leaves a signal blocked: every process of a later test would begin with it blocked, and hear nothing."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    left = signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert left == before, f"the test leaves these signals blocked, or open: {left ^ before}"
