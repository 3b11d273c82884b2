"""Every bad input has its code, and every error its shape."""

import asyncio
import json
import logging
from typing import cast

import httpx2
import pytest

from moorings.api.application import Application, make_application
from moorings.api.limits import BODY_BYTES_MAX, ApiLimits
from moorings.controller.service import Controller
from moorings.core.model.errors import MooringsError
from moorings.wire.codec import decode
from moorings.wire.errors import ERRORS
from moorings.wire.shapes import ProblemBody
from tests.unit.api.pretend import ADMIN, USER, PretendController

GOOD_JOB = {"name": "n", "command": ["true"], "workdir": "/"}


def told(answer: httpx2.Response, code: str) -> ProblemBody:
    """The problem an answer tells of, which must be whole and have that code."""
    assert answer.headers["content-type"] == "application/problem+json"
    body = decode(ProblemBody, answer.json())
    assert body.code == code, body
    assert (body.status, body.title) == (answer.status_code, ERRORS[code].title)
    assert body.status == ERRORS[code].status
    assert body.request_id == answer.headers["x-request-id"] != ""
    assert body.detail
    return body


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"", "body.not_json", "EOF"),
        (b"size=4", "body.not_json", "line 1"),
        (b'{"size": 4', "body.not_json", "line 1"),
        (b'{"size": 4} {}', "body.not_json", "trailing"),
        (b'{"size": 4, "name": "\\ud800"}', "body.not_json", "hex"),
        (b"[" * 100_000, "body.not_json", "recursion"),
        (b'{"size": ' + b"9" * 5000 + b"}", "body.not_json", "out of range"),
        (b'{"size": 4, "name": "\xff"}', "body.not_utf8", "byte 21"),
        (b"\xff\xfe", "body.not_utf8", "byte 0"),
        (b"[]", "body.invalid", "must be an object"),
        (b"null", "body.invalid", "must be an object"),
        (b"{}", "body.invalid", "body.size is missing"),
        (b'{"size": "4"}', "body.invalid", "body.size must be a valid integer"),
        (b'{"size": 4.0}', "body.invalid", "body.size must be a valid integer"),
        (b'{"size": true}', "body.invalid", "body.size must be a valid integer"),
        (b'{"size": NaN}', "body.invalid", "body.size must be a valid integer"),
        (b'{"size": 4, "timeLimitS": NaN}', "body.invalid", "body.timeLimitS must be a finite number"),
        (b'{"size": 4, "timeLimitS": -Infinity}', "body.invalid", "body.timeLimitS must be a finite number"),
        (b'{"size": 4, "timeLimitS": 1e999}', "body.invalid", "body.timeLimitS must be a finite number"),
        (b'{"size": 4, "timeLimitS": -1}', "body.invalid", "body.timeLimitS must be greater than or equal to 0"),
        (b'{"size": 99999999999999999999}', "body.invalid", "body.size must be less than or equal to"),
        (b'{"size": 4, "colour": 1}', "body.invalid", "body.colour is not a known field"),
        (b'{"size": 4, "time_limit_s": 1}', "body.invalid", "body.time_limit_s is not a known field"),
        (b'{"size": 4, "checkpoint": {"warn": 1}}', "body.invalid", "body.checkpoint.warn is not a known field"),
        (b'{"size": 4, "checkpoint": {"warnS": "1"}}', "body.invalid", "body.checkpoint.warnS must be a valid number"),
        (b'{"size": 4, "queue": "maybe"}', "body.invalid", "'wait' or 'never'"),
        (b'{"size": 4, "name": 7}', "body.invalid", "body.name must be a valid string"),
        (b'{"size": 4, "project": "' + b"x" * 201 + b'"}', "body.invalid", "at most 200 characters"),
        (b'{"size": 4, "project": "a\\u0000b"}', "body.invalid", "body.project"),
        (b'{"size": 4, "resources": {"memory": 1.5}}', "body.invalid", "body.resources.memory must be"),
        (b'{"size": 4, "resources": {' + b",".join(b'"r%d": 1' % n for n in range(65)) + b"}}", "body.invalid", "64"),
    ],
)
async def test_a_claim_that_is_not_one(api: httpx2.AsyncClient, body: bytes, code: str, words: str) -> None:
    answer = await api.post("/v1/claims", content=body)
    assert words in told(answer, code).detail


async def test_an_unknown_field_is_answered_with_those_there_are(api: httpx2.AsyncClient) -> None:
    problem = told(await api.post("/v1/claims", json={"size": 4, "checkpoint": {"warn": 1}}), "body.invalid")
    assert problem.hint == "allowed: graceS, resumable, warnS, warnSignal"
    part = {"kind": "compile", "workflow": "wflow-" + "a" * 22, "system": 1}
    job = {"name": "x", "command": ["true"], "workdir": "/", "appliance": part}
    problem = told(await api.post("/v1/runs", json={"job": job}), "body.invalid")
    assert problem.hint == "allowed: kind, workflow"


async def test_a_part_that_may_be_left_out_is_checked_where_it_is_not(api: httpx2.AsyncClient) -> None:
    for part in ({"kind": "", "workflow": "x"}, {"kind": "compile", "workflow": "x" * 10_000}):
        job = {"name": "x", "command": ["true"], "workdir": "/", "appliance": part}
        problem = told(await api.post("/v1/runs", json={"job": job}), "body.invalid")
        assert "body.job.appliance" in problem.detail


async def test_several_faults_are_told_at_once_but_not_all_of_a_thousand(api: httpx2.AsyncClient) -> None:
    body = {"size": "x", **{f"a{number}": 1 for number in range(1000)}}
    problem = told(await api.post("/v1/claims", json=body), "body.invalid")
    assert problem.detail.count("body.") == 3
    assert "998 more" in problem.detail


async def test_what_was_sent_is_not_told_back(api: httpx2.AsyncClient) -> None:
    job = {**GOOD_JOB, "environment": {"TOKEN": 12345678}, "command": "hunter2"}
    answer = await api.post("/v1/runs", json={"job": job})
    assert told(answer, "body.invalid").detail.startswith("body.job.command must be")
    assert "hunter2" not in answer.text
    assert "12345678" not in answer.text


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"command": []}, "body.job.command"),
        ({"command": ["x"] * 4097}, "body.job.command"),
        ({"command": "true"}, "body.job.command"),
        ({"environment": {"A": 1}}, "body.job.environment.A"),
        ({"environment": {f"A{n}": "" for n in range(4097)}}, "body.job.environment"),
        ({"workdir": "/" * 5000}, "body.job.workdir"),
        ({"tasks": 1.5}, "body.job.tasks"),
        ({"accelerators": {"size": "4"}}, "body.job.accelerators.size"),
        ({"accelerators": {"ipus": 4}}, "body.job.accelerators.ipus"),
        ({"resources": None}, "body.job.resources"),
    ],
)
async def test_a_job_that_is_not_one(api: httpx2.AsyncClient, change: dict[str, object], field: str) -> None:
    answer = await api.post("/v1/runs", json={"job": {**GOOD_JOB, **change}})
    assert field in told(answer, "body.invalid").detail


async def test_a_body_that_is_too_large(api: httpx2.AsyncClient) -> None:
    answer = await api.post("/v1/claims", content=b" " * (BODY_BYTES_MAX + 1))
    told(answer, "body.too_large")
    answer = await api.post("/v1/claims", content=b" " * (BODY_BYTES_MAX - 10) + b'{"size":4}')
    assert answer.status_code == 201, "a body of just the limit is none"


async def test_a_length_that_is_none(api: httpx2.AsyncClient) -> None:
    answer = await api.post("/v1/claims", content=b"{}", headers={"Content-Length": "9" * 30})
    told(answer, "body.too_large")


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("limit=0", "page.invalid"),
        ("limit=-1", "page.invalid"),
        ("limit=1001", "page.invalid"),
        ("limit=ten", "page.invalid"),
        ("limit=1e1", "page.invalid"),
        ("limit=", "page.invalid"),
        ("limit=%D9%A1", "page.invalid"),
        ("limit=" + "1" * 400, "page.invalid"),
        ("limit=1&limit=2", "page.invalid"),
        ("continue=", "page.invalid"),
        ("continue=abc", "page.invalid"),
        ("continue=W10", "page.invalid"),
        ("continue=%FF", "page.invalid"),
        ("continue=" + "A" * 501, "page.invalid"),
        ("state=SLEEPING", "page.invalid"),
        ("state=pending", "page.invalid"),
        ("ownerPrefix=", "page.invalid"),
        ("ownerPrefix=%00", "page.invalid"),
        ("pool=" + "p" * 501, "page.invalid"),
        ("all=yes", "page.invalid"),
        ("state=PENDING&all=yes", "page.invalid"),  # nobody has to know it, and is told all the same
        ("colour=red", "page.invalid"),
        ("limit", "page.invalid"),
        ("&".join(["state=READY"] * 51), "page.invalid"),
    ],
)
async def test_a_list_that_cannot_be_given(api: httpx2.AsyncClient, query: str, code: str) -> None:
    told(await api.get(f"/v1/claims?{query}"), code)


@pytest.mark.parametrize("wait", ["soon", "-1s", "601", "11m", "nan", "inf", "1e3", "", "%D9%A1s", "9" * 100])
async def test_a_wait_that_is_none(api: httpx2.AsyncClient, wait: str) -> None:
    told(await api.get(f"/v1/claims/x?wait={wait}"), "duration.invalid")


async def test_a_wait_for_nothing_known(api: httpx2.AsyncClient) -> None:
    problem = told(await api.get("/v1/claims/x?wait=1s&for=LUNCH"), "page.invalid")
    assert "GRANTED, READY, ENDED" in problem.detail


@pytest.mark.parametrize("query", ["after=-1", "after=x", "after=" + "9" * 19, "name=claim", "name=*", "name=a.b.c"])
async def test_events_that_cannot_be_named(api: httpx2.AsyncClient, query: str) -> None:
    told(await api.get(f"/v1/events?{query}"), "page.invalid")


async def test_a_last_event_that_is_no_number(api: httpx2.AsyncClient) -> None:
    told(await api.get("/v1/events?watch=1", headers={"Last-Event-ID": "x7"}), "page.invalid")


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/claims/", "/v1/claim", "/v2/claims", "/docs", "/redoc", "/v1/claims/a/b"]
)
async def test_an_address_that_is_none(api: httpx2.AsyncClient, path: str) -> None:
    told(await api.get(path), "path.unknown")


@pytest.mark.parametrize("name", ["%00", "a%0Ab", "%C3%A9", "x" * 201])
async def test_a_name_nothing_can_have(api: httpx2.AsyncClient, name: str) -> None:
    told(await api.get(f"/v1/claims/{name}"), "path.unknown")


@pytest.mark.parametrize(
    "path", ["/v1%2fkeys", "/v1%2Fkeys", "/v1/claims%2fx", "%2fv1/keys", "/v1%2f%00keys", "/v1%2500keys"]
)
async def test_a_slash_that_is_coded_parts_nothing(api: httpx2.AsyncClient, path: str) -> None:
    """Another spelling of a path would bypass a guard in front of us."""
    told(await api.get(path), "path.unknown")


async def test_a_slash_in_a_name_is_part_of_it(api: httpx2.AsyncClient) -> None:
    told(await api.get("/v1/claims/a%2Fb"), "claim.unknown")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/v1/claims", "GET, POST"),
        ("DELETE", "/v1/claims", "GET, POST"),
        ("POST", "/v1/claims/x", "DELETE, GET"),
        ("HEAD", "/v1/pools", "GET"),
        ("OPTIONS", "/healthz", "GET"),
    ],
)
async def test_a_method_the_address_does_not_take(api: httpx2.AsyncClient, method: str, path: str, allow: str) -> None:
    answer = await api.request(method, path)
    assert answer.headers["allow"] == allow
    if method != "HEAD":
        told(answer, "method.not_allowed")


async def test_a_fault_of_ours_says_nothing_of_our_insides(
    api: httpx2.AsyncClient, controller: PretendController, caplog: pytest.LogCaptureFixture
) -> None:
    controller.claims = None  # type: ignore[assignment]
    with caplog.at_level(logging.ERROR, logger="moorings.api"):
        answer = await api.get("/v1/claims/x?wait=1s", headers={"X-Request-Id": "req-7"})
    problem = told(answer, "internal.error")
    assert "NoneType" not in answer.text
    assert problem.request_id == "req-7"
    [record] = caplog.records
    assert record.getMessage() == "request.failed"
    assert record.__dict__["request_id"] == "req-7"
    assert record.exc_info is not None


async def test_what_may_pass_says_when_to_come_back(api: httpx2.AsyncClient, controller: PretendController) -> None:
    controller.failing = MooringsError("store.unavailable", "the disk is full", retryable=True)
    answer = await api.get("/v1/events")
    assert told(answer, "store.unavailable").retryable
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize("sent", ["", "a b", "x" * 65, "é", "a\tb"])
async def test_a_request_id_that_is_not_sane_is_replaced(api: httpx2.AsyncClient, sent: str) -> None:
    answer = await api.get("/healthz", headers=[(b"x-request-id", sent.encode())])
    assert answer.headers["x-request-id"] not in ("", sent)


async def test_a_sane_request_id_is_kept(api: httpx2.AsyncClient) -> None:
    answer = await api.get("/nope", headers={"X-Request-Id": "A.b_c-9"})
    assert answer.headers["x-request-id"] == answer.json()["requestId"] == "A.b_c-9"


async def test_too_many_requests_at_once_are_told_to_come_back(controller: PretendController) -> None:
    app: Application = make_application(cast("Controller", controller), limits=ApiLimits(requests_max=1))
    headers = {"Authorization": f"Bearer {USER}"}
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=app), base_url="http://m", headers=headers
    ) as client:
        ident = (await client.post("/v1/claims", json={"size": 4})).json()["id"]
        waiting = asyncio.create_task(client.get(f"/v1/claims/{ident}?wait=10m"))
        await controller.waits_begun.wait()
        assert told(await client.get("/v1/pools"), "controller.busy").retryable
        assert (await client.get("/healthz")).status_code == 200, "a busy controller is not a dead one"
        controller.grant(ident)
        assert (await waiting).status_code == 200
        assert (await client.get("/v1/pools")).status_code == 200


async def test_too_many_waits_of_one_key_are_told_to_come_back(controller: PretendController) -> None:
    limits = ApiLimits(waits_max=3, waits_per_key_max=1)
    app: Application = make_application(cast("Controller", controller), limits=limits)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://m") as client:
        user, admin = ({"Authorization": f"Bearer {key}"} for key in (USER, ADMIN))
        ident = (await client.post("/v1/claims", json={"size": 4}, headers=user)).json()["id"]
        waiting = asyncio.create_task(client.get(f"/v1/claims/{ident}?wait=10m", headers=user))
        await controller.waits_begun.wait()
        refused = await client.get(f"/v1/claims/{ident}?wait=1ms", headers=user)
        assert told(refused, "controller.busy").retryable
        assert (await client.get(f"/v1/claims/{ident}?wait=1ms", headers=admin)).status_code == 200
        assert (await client.get(f"/v1/claims/{ident}", headers=user)).status_code == 200
        controller.grant(ident)
        assert (await waiting).status_code == 200
        assert (await client.get(f"/v1/claims/{ident}?wait=1ms", headers=user)).status_code == 200


async def test_the_problem_is_json_of_its_own_media_type(api: httpx2.AsyncClient) -> None:
    answer = await api.get("/nope")
    assert set(json.loads(answer.content)) == {
        "type",
        "title",
        "status",
        "code",
        "detail",
        "hint",
        "retryable",
        "requestId",
    }
