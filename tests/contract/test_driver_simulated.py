"""The simulated driver keeps the contract of every driver: at once and slowly, with IPUs, GPUs and others."""

import pytest

from moorings.drivers.simulated.settings import SimulatedSettings
from moorings.testing.driver_suite import DriverSuite
from tests.unit.drivers.simulated_rig import AT_ONCE, SimulatedRig


class TestSlowIpus(DriverSuite):
    @pytest.fixture
    def rig(self, tmp_path):
        rig = SimulatedRig(tmp_path / "machine", SimulatedSettings())
        yield rig
        rig.kill()


class TestInstantIpus(DriverSuite):
    @pytest.fixture
    def rig(self, tmp_path):
        rig = SimulatedRig(tmp_path / "machine", AT_ONCE)
        yield rig
        rig.kill()


class TestGpus(DriverSuite):
    @pytest.fixture
    def rig(self, tmp_path):
        rig = SimulatedRig(tmp_path / "machine", SimulatedSettings(), kind="gpu")
        yield rig
        rig.kill()


class TestWafers(DriverSuite):
    @pytest.fixture
    def rig(self, tmp_path):
        rig = SimulatedRig(tmp_path / "machine", SimulatedSettings(), kind="wafer")
        yield rig
        rig.kill()
