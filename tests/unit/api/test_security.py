from collections.abc import AsyncIterator

import httpx2
import pytest

from moorings.api.application import Application
from moorings.api.request_body import parse_bearer
from moorings.core.model.errors import MooringsError
from moorings.wire.operations import OPERATIONS
from tests.unit.api.pretend import USER, PretendController

GUARDED = [
    (operation.method, operation.path.replace("{id}", "x").replace("{pool}", "x"))
    for operation in OPERATIONS
    if not operation.is_open
]


@pytest.fixture
def stranger(app: Application) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://moorings")


@pytest.mark.parametrize(("method", "path"), GUARDED)
async def test_nothing_of_the_api_is_open(stranger: httpx2.AsyncClient, method: str, path: str) -> None:
    answer = await stranger.request(method, path)
    assert (answer.status_code, answer.json()["code"]) == (401, "auth.missing")
    assert answer.headers["www-authenticate"] == 'Bearer realm="moorings"'


async def test_only_what_carries_no_knowledge_is_open() -> None:
    assert {operation.path for operation in OPERATIONS if operation.is_open} == {
        "/healthz",
        "/livez",
        "/metrics",
        "/readyz",
        "/version",
        "/openapi.json",
    }


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("", "auth.missing"),
        ("Basic YTpi", "auth.missing"),
        (USER, "auth.missing"),
        ("Bearer", "auth.invalid"),
        ("Bearer  ", "auth.invalid"),
        ("Bearer moor_ann_guess", "auth.invalid"),
        ("Bearer " + "x" * 201, "auth.invalid"),
        ("Bearer moor_é", "auth.invalid"),
    ],
)
async def test_a_header_that_holds_no_key_of_ours(stranger: httpx2.AsyncClient, header: str, code: str) -> None:
    answer = await stranger.get("/v1/claims", headers=[(b"authorization", header.encode())])
    assert (answer.status_code, answer.json()["code"]) == (401, code)
    if code == "auth.invalid":
        assert 'error="invalid_token"' in answer.headers["www-authenticate"]
    assert "guess" not in answer.text


def test_what_cannot_be_a_key_is_not_even_asked_about() -> None:
    with pytest.raises(MooringsError) as refused:
        parse_bearer({b"authorization": b"Bearer " + b"x" * 201})
    assert refused.value.code == "auth.invalid"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_scheme_is_read_in_any_case(stranger: httpx2.AsyncClient, scheme: str) -> None:
    answer = await stranger.get("/v1/claims", headers={"Authorization": f"{scheme} {USER}"})
    assert answer.status_code == 200


async def test_a_stranger_learns_nothing_of_the_body_or_query(stranger: httpx2.AsyncClient) -> None:
    answer = await stranger.post("/v1/claims", content=b"not json")
    assert answer.json()["code"] == "auth.missing"
    answer = await stranger.get("/v1/claims?limit=-1")
    assert answer.json()["code"] == "auth.missing"


async def test_with_an_expired_key_leases_are_renewed_and_nothing_else(
    api: httpx2.AsyncClient, controller: PretendController
) -> None:
    made = (await api.post("/v1/claims", json={"size": 1, "leaseS": 60})).json()
    controller.expired.add(USER)
    for method, path in GUARDED:
        answer = await api.request(method, path.replace("/x/", f"/{made['id']}/"))
        if path == "/v1/claims/x/renew":
            assert answer.status_code == 200
            continue
        assert answer.status_code == 401, path
        assert answer.json()["code"] == "auth.expired"
        assert 'error="invalid_token"' in answer.headers["www-authenticate"]


@pytest.mark.parametrize("code", ["auth.invalid", "auth.expired"])
async def test_a_key_that_ends_while_the_body_comes_does_nothing(
    api: httpx2.AsyncClient, controller: PretendController, code: str
) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b'{"size":'
        if code == "auth.expired":
            controller.expired.add(USER)
        else:
            controller.keys.clear()
        yield b" 1}"

    headers = {"Content-Type": "application/json"}
    answer = await api.post("/v1/claims", content=body(), headers=headers)
    assert (answer.status_code, answer.json().get("code")) == (401, code)
    assert not controller.claims
