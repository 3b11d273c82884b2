"""The embedded engine keeps the contract of every engine, with real processes."""

import pytest

from moorings.testing.engine_suite import EngineSuite
from tests.unit.local.local_rig import LocalRig


class TestLocalEngine(EngineSuite):
    @pytest.fixture
    def rig(self, tmp_path):
        rig = LocalRig(tmp_path / "machine")
        yield rig
        rig.end()
