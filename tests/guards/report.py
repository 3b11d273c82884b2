"""Says at the end of a run of tests how many of the guards it has taken out."""

from __future__ import annotations

import pytest

from tests.sampling import tree


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    from tests.guards import selection  # not above: most runs of tests have to do with no guard
    from tests.guards.guards import GUARDS

    reports = (one for state in ("passed", "failed") for one in terminalreporter.getreports(state))
    n_run = sum(report.when == "call" and report.nodeid.startswith(selection.TEST) for report in reports)
    if n_run == 0:
        return
    changed = selection.load_changed()
    n_near = sum(selection.is_near(guard, changed) for guard in GUARDS)
    words = selection.describe(n_run, len(GUARDS), n_near, selection.count_commits(), tree())
    terminalreporter.write_line(words)
