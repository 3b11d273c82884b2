from collections.abc import Iterator

import pytest

from moorings.api.limits import ApiLimits
from moorings.core.model.access import Role
from tests.hostile.harbour import Harbour, harbour
from tests.unit.api.pretend import PretendController


@pytest.fixture
async def controller() -> PretendController:
    return PretendController()


@pytest.fixture(scope="module")
def port_of_call(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harbour]:
    """One real controller for the tests of a file: what one request leaves behind is what the next one meets."""
    with harbour(tmp_path_factory.mktemp("harbour"), ApiLimits(heartbeat_s=0.5)) as found:
        yield found
        found.give_everything_back()


@pytest.fixture(params=[Role.ADMIN, Role.USER])
def role(request: pytest.FixtureRequest) -> Role:
    found = request.param
    assert isinstance(found, Role)
    return found
