from collections.abc import AsyncIterator
from typing import cast

import httpx2
import pytest

from moorings.api.application import Application, make_application
from moorings.controller.service import Controller
from tests.unit.api.pretend import USER, PretendController


@pytest.fixture
async def controller() -> PretendController:
    return PretendController()


@pytest.fixture
def app(controller: PretendController) -> Application:
    return make_application(cast("Controller", controller))


@pytest.fixture
async def api(app: Application) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=app),
        base_url="http://moorings",
        headers={"Authorization": f"Bearer {USER}"},
    ) as client:
        yield client
