import pytest

from tests.unit.drivers.simulated_rig import AT_ONCE, SimulatedRig


@pytest.fixture
def rig(tmp_path):
    """A machine with the usual times, driven by an open driver."""
    rig = SimulatedRig(tmp_path / "machine")
    rig.restart()
    yield rig
    rig.kill()


@pytest.fixture
def instant(tmp_path):
    """A machine that does everything at once, driven by an open driver."""
    rig = SimulatedRig(tmp_path / "instant", AT_ONCE)
    rig.restart()
    yield rig
    rig.kill()
