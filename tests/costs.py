"""What tests cost: measured by a plugin of pytest (``-p tests.costs --costs FILE``), and shown against the budgets.

CPU is that of the process and of everything below it, daemons that serve many tests too. Collection is in the lane's
total alone (``tests.lanes``), and so is what has left the tests' tree of processes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from tests import procfs
from tests.processes import descendants
from tests.sampling import Row

GOOD_MS = 9.0  # of CPU for `python -c pass`, on a good hour
DEAREST = 20

_CPU, _SMOKE = "cpu_s", "smoke"


@dataclass(slots=True)
class Cost:
    """What one test cost, with what it set up and took down; ``smoke``: whether it must always run."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    outcome: str = "passed"
    smoke: bool = False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", default=None, help="write there what each test cost, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Measuring(config), "moorings-costs")
    if config.getoption("costs") and not hasattr(config, "workerinput"):
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # told to stop, tests take down what they have set up


class _Measuring:
    """Measures in the processes that run tests; writes in the one that was started by hand."""

    def __init__(self, config: pytest.Config) -> None:
        path = config.getoption("costs")
        self._path = Path(path) if path and not hasattr(config, "workerinput") else None
        self._since = _cpu_s()
        self._tests: dict[str, Cost] = {}
        self._collected = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collected = max(self._collected, len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._collected = len(ids)  # by each worker the same: xdist sees to that

    def pytest_runtest_logstart(self) -> None:
        self._since = _cpu_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = _cpu_s()
        smoke = item.get_closest_marker("smoke") is not None
        report.user_properties = [*report.user_properties, (_CPU, max(0.0, now - self._since)), (_SMOKE, smoke)]
        self._since = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        one = self._tests.setdefault(report.nodeid, Cost())
        one.cpu_s += float(str(dict(report.user_properties).get(_CPU, 0)))
        one.wall_s += report.duration
        one.smoke = bool(dict(report.user_properties).get(_SMOKE))
        if report.outcome != "passed" and one.outcome != "failed":
            one.outcome = report.outcome

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        if self._path is not None:
            told = {name: asdict(one) for name, one in self._tests.items()}
            self._path.write_text(json.dumps({"collected": self._collected, "tests": told}, indent=0), "utf-8")


def _cpu_s() -> float:
    """What this process has used, and all below it, those that still run too: it is charged to whatever runs meanwhile.

    A child that its parent did not wait for takes its share along when it ends.
    """
    used = os.times()
    living = sum(procfs.cpu_s(pid) for pid in descendants(os.getpid()))
    return used.user + used.system + used.children_user + used.children_system + living


def python_ms() -> float:
    """The CPU of `python -c pass`, in ms: how good the machine's hour is."""
    best_s = float("inf")
    for _ in range(5):
        process = subprocess.Popen([sys.executable, "-c", "pass"])
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        best_s = min(best_s, used.ru_utime + used.ru_stime)
    return best_s * 1000


# -- tables ------------------------------------------------------------------------------------------------------------


def folder_of(test: str) -> str:
    """The folder of a test, as the table of budgets has them: those of ``unit`` are told apart."""
    parts = test.partition("::")[0].removeprefix("tests/").split("/")[:-1]
    return "/".join(parts[: 2 if parts[0] == "unit" else 1])


def by_folder(tests: Mapping[str, Cost]) -> dict[str, list[Cost]]:
    """The costs of each folder's tests."""
    found: dict[str, list[Cost]] = {}
    for name in sorted(tests):
        found.setdefault(folder_of(name), []).append(tests[name])
    return found


def folders(tests: Mapping[str, Cost], rows: Mapping[str, Row]) -> str:
    """A table of what each folder cost."""
    lines = [f"{'folder':22} {'tests':>6} {'CPU s':>6} {'budget':>6} {'wall s':>6}"]
    for folder, costs in by_folder(tests).items():
        budget_s = rows.get(folder, Row()).cpu_s
        cpu_s, wall_s = sum(one.cpu_s for one in costs), sum(one.wall_s for one in costs)
        shown = "none" if budget_s is None else f"{budget_s:.0f}"
        lines.append(f"{folder:22} {len(costs):6} {cpu_s:6.0f} {shown:>6} {wall_s:6.0f}")
    return "\n".join(lines)


def dearest(tests: Mapping[str, Cost]) -> str:
    """A table of the tests that cost most."""
    lines = [f"the {DEAREST} dearest tests", f"{'CPU s':>6} {'wall s':>6}"]
    for name, one in sorted(tests.items(), key=lambda pair: -pair[1].cpu_s)[:DEAREST]:
        lines.append(f"{one.cpu_s:6.1f} {one.wall_s:6.1f}  {name.removeprefix('tests/')}")
    return "\n".join(lines)


def idle(tests: Mapping[str, Cost], rows: Mapping[str, Row]) -> list[str]:
    """A line for each folder of the table of which no test has run: its share may be too small, or its name wrong."""
    ran = by_folder(tests)
    return [f"tests/{folder}: no test has run" for folder, row in rows.items() if row.cpu_s and folder not in ran]


def over_budget(tests: Mapping[str, Cost], rows: Mapping[str, Row], slow: float) -> list[str]:
    """A line for each folder that cost more than twice its budget, or has none; ``slow``: how slow the machine is."""
    found = []
    for folder, costs in by_folder(tests).items():
        cpu_s, budget_s = sum(one.cpu_s for one in costs), rows.get(folder, Row()).cpu_s
        if budget_s is None:
            found.append(f"tests/{folder} has no budget in tests/gates.toml: it took {cpu_s:.0f} s of CPU")
        elif cpu_s > 2 * budget_s * slow:
            found.append(
                f"tests/{folder} took {cpu_s:.0f} s of CPU, more than twice its budget of {budget_s:.0f} s in "
                f"tests/gates.toml (on a machine {slow:.1f} times slower than on a good hour)"
            )
    return found
