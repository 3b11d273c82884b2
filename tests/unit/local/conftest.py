import pytest

from tests.unit.local.local_rig import LocalRig


@pytest.fixture
def rig(tmp_path):
    rig = LocalRig(tmp_path / "machine")
    yield rig
    rig.end()


@pytest.fixture
async def engine(rig):
    engine = await rig.open()
    yield engine
    await engine.close()
