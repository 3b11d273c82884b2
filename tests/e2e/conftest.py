from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import ControllerProcess


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[ControllerProcess]:
    """A controller of its own, which stops in order unless the test has ended it."""
    made = ControllerProcess(tmp_path)
    made.start()
    yield made
    if made.process is not None and made.process.poll() is None:
        assert made.stop() == 0
