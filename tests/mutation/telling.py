"""A plugin of the pytest that ``zygote`` runs: writes which package was tested, and how each test failed."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from tests.cases import CasesFailedError
from tests.sampling import examples

# The first example that fails is enough, and it is to be the same every time.
settings.register_profile(
    "mutation",
    deadline=None,
    derandomize=True,
    max_examples=examples(100),  # of `make test`, where a sample is asked for
    phases=[Phase.explicit, Phase.generate],
)

_failures: list[dict[str, object]] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.excinfo is not None:
        error = call.excinfo.value
        if isinstance(error, CasesFailedError) and error.__cause__ is not None:
            error = error.__cause__  # that a loop fails says nothing: why its case does is the question
        kinds = [kind.__name__ for kind in type(error).__mro__]
        _failures.append({"test": item.nodeid, "when": call.when, "kinds": kinds})
    return report


def pytest_sessionfinish(exitstatus: int) -> None:
    try:
        import moorings  # not above: it is to be imported as the tests import it
    except Exception:  # the change broke it; that no test ran says so
        where = ""
    else:
        where = moorings.__file__
    told = {"package": where, "status": int(exitstatus), "failures": _failures}
    Path(os.environ["MUTATION_TOLD"]).write_text(json.dumps(told), "utf-8")
