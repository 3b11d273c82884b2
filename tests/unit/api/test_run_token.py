"""The token of a run, which lies on the nodes of its job, reports on that run and opens nothing else."""

from __future__ import annotations

import re

import httpx2
import pytest

from moorings.core.model.access import Caller, Role
from moorings.wire import operations
from tests.unit.api.pretend import PretendController

pytestmark = pytest.mark.anyio

TOKEN = {"Authorization": "Bearer moorrun_run-1_secret"}
OTHERS = [one for one in operations.OPERATIONS if not one.is_open and one is not operations.REPORT_RUN]


@pytest.fixture(autouse=True)
def _token(controller: PretendController) -> None:
    controller.keys["moorrun_run-1_secret"] = Caller("ann", Role.USER, "", "runs-of:ann", run="run-1")


async def code_of(api: httpx2.AsyncClient, method: str, path: str) -> str:
    answer = await api.request(method, path, headers=TOKEN, json={})
    return str(answer.json().get("code", answer.status_code))


async def test_a_runs_token_serves_for_nothing_but_its_report(api: httpx2.AsyncClient) -> None:
    codes = {one.name: await code_of(api, one.method, re.sub(r"\{\w+\}", "run-1", one.path)) for one in OTHERS}
    assert len(codes) > 40
    assert {name: code for name, code in codes.items() if code != "auth.denied"} == {}


async def test_a_runs_token_serves_for_no_other_run(api: httpx2.AsyncClient) -> None:
    assert await code_of(api, "POST", "/v1/runs/run-2/report") == "auth.denied"
    assert await code_of(api, "POST", "/v1/runs/run-1/report") == "body.invalid", "it got as far as its empty body"
