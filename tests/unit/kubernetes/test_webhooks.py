"""The webhooks over real HTTPS, asked as the API server asks, and as nobody should."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import http.client
import json
import logging
import socket
import ssl
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.ipujob.types import FINALIZER
from moorings.kubernetes.kube.certificates import make_certificates
from moorings.kubernetes.kube.serving_certificate import load_certificate
from moorings.kubernetes.operator import webhook_server, webhooks
from moorings.kubernetes.operator.webhook_server import HEAD_BYTES_MAX, HEADERS_MAX, listen, make_webhook_server
from moorings.kubernetes.operator.webhooks import (
    BODY_BYTES_MAX,
    JSON_VALUES_MAX,
    MUTATE,
    RULES,
    SMALL_BYTES,
    VALIDATE,
    AdmissionRules,
    make_webhook_app,
)
from moorings.net.limits import ClientLimit
from moorings.net.tls import make_bare_context
from tests.waiting import patient
from tests.waiting import until_async as until

JOB: dict[str, Any] = {
    "apiVersion": "graphcore.ai/v1alpha1",
    "kind": "IPUJob",
    "metadata": {"name": "sample", "namespace": "default"},
    "spec": {
        "ipusPerJobInstance": "1",
        "launcher": {"command": ["mpirun", "true"]},
        "workers": {"replicas": 1, "template": {"spec": {"containers": [{"name": "a", "image": "a:latest"}]}}},
    },
}
LONG = "a-name-that-is-longer-than-thirty-six-characters"


def job(**changes: Any) -> dict[str, Any]:
    """A job with another spec, or another name."""
    made = copy.deepcopy(JOB)
    made["metadata"]["name"] = changes.pop("name", "sample")
    made["spec"].update(changes)
    return made


def review(operation: Any = "CREATE", new: Any = None, old: Any = None, **more: Any) -> dict[str, Any]:
    asked = {"uid": "u-1", "operation": operation, "object": new, "oldObject": old, "name": "x", "namespace": "n"}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {**asked, **more}}


class Asked:
    """A server in a thread of the loop, and a client beside it."""

    def __init__(self, server: Any, port: int, ca: bytes) -> None:
        self.server = server
        self.port = port
        self.ca = ca

    def call(self, method: str, path: str, body: bytes | None = None, headers: Any = ()) -> tuple[int, bytes]:
        context = ssl.create_default_context(cadata=self.ca.decode())
        with contextlib.closing(
            http.client.HTTPSConnection("127.0.0.1", self.port, context=context, timeout=patient(20))
        ) as connection:
            connection.request(method, path, body, dict(headers) or {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()

    async def raw(self, path: str, body: bytes, method: str = "POST") -> tuple[int, bytes]:
        return await asyncio.to_thread(self.call, method, path, body)

    async def review(self, path: str, asked: Any) -> Any:
        status, body = await self.raw(path, json.dumps(asked).encode())
        assert status == 200, body
        told = json.loads(body)
        assert (told["apiVersion"], told["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        assert told["response"]["uid"] == "u-1"
        return told["response"]


@contextlib.asynccontextmanager
async def serving(rules: AdmissionRules = RULES, *, ready: bool = True, room: ClientLimit | None = None):
    held = make_certificates(["127.0.0.1"], datetime.now(UTC))
    context = make_bare_context()
    load_certificate(context, held)
    listening = listen("127.0.0.1", 0)
    server = make_webhook_server(make_webhook_app(is_ready=lambda: ready, rules=rules, room=room), context)
    work = asyncio.create_task(server.serve(sockets=[listening]))
    asked = Asked(server, listening.getsockname()[1], held.ca)
    asked.context = context  # type: ignore[attr-defined]
    asked.connections = server.limit  # type: ignore[attr-defined]
    try:
        yield asked
    finally:
        server.should_exit = True
        async with asyncio.timeout(patient(20)):
            await work
        listening.close()


@pytest.fixture
async def asked():
    async with serving() as made:
        yield made


# -- what is let in ----------------------------------------------------------------------------------------------------


async def test_defaults_come_as_a_patch(asked):
    answer = await asked.review(MUTATE, review(new=job()))
    assert answer["allowed"]
    assert answer["patchType"] == "JSONPatch"
    patch = json.loads(base64.b64decode(answer["patch"]))
    assert {"op": "add", "path": "/metadata/finalizers", "value": [FINALIZER]} in patch
    assert {one["path"] for one in patch} >= {"/spec/jobInstances"}


async def test_a_job_that_has_everything_gets_no_patch(asked):
    answer = await asked.review(MUTATE, review("UPDATE", new=job(), old=job(jobInstances=2)))
    assert answer == {"uid": "u-1", "allowed": True}


async def test_a_good_job_is_let_in(asked):
    assert await asked.review(VALIDATE, review(new=job())) == {"uid": "u-1", "allowed": True}


async def test_a_bad_one_is_denied_with_what_is_wrong_and_what_to_do(asked):
    answer = await asked.review(VALIDATE, review(new=job(name=LONG)))
    assert not answer["allowed"]
    assert answer["status"]["code"] == 422
    assert answer["status"]["reason"] == "Invalid"
    assert answer["status"]["details"]["name"] == "x"
    (cause,) = answer["status"]["details"]["causes"]
    assert cause["field"] == "metadata.name"
    assert cause["message"].startswith("has 48 characters; at most 36 are allowed; longer names")
    assert "has 48 characters; at most 36 are allowed; longer names make the vendor's" in answer["status"]["message"]


async def test_older_names_are_let_in_with_a_warning(asked):
    old = job(modelReplicas=1, ipusPerModelReplica=1)
    del old["spec"]["ipusPerJobInstance"]
    answer = await asked.review(VALIDATE, review(new=old))
    assert answer["allowed"]
    assert answer["warnings"] == [
        "spec.modelReplicas is an older name: use modelReplicasPerWorker and workerPerJobInstance",
        "spec.ipusPerModelReplica is an older name: use ipusPerJobInstance",
    ]


async def test_a_policy_that_another_overrides_is_warned_of(asked):
    odd = job(cleanPodPolicy="All", restartPolicy={"type": "Always"})
    answer = await asked.review(VALIDATE, review(new=odd))
    assert answer["allowed"]
    assert "nothing will be started anew" in answer["warnings"][0]


async def test_a_change_that_may_not_be_is_denied(asked):
    answer = await asked.review(VALIDATE, review("UPDATE", new=job(ipusPerJobInstance="2"), old=job()))
    assert "spec.ipusPerJobInstance: cannot be changed" in answer["status"]["message"]


@pytest.mark.parametrize("path", [MUTATE, VALIDATE])
@pytest.mark.parametrize(
    "asks",
    [
        review("DELETE", old=job(name=LONG)),
        review("CONNECT", new=job(name=LONG)),
        review("UPDATE", new=job(name=LONG), old=job(name=LONG)),
        review("UPDATE", new=job(name=LONG) | {"status": {"state": "Running"}}, old=job(name=LONG)),
        review("UPDATE", new=job(name=LONG), old=job(), subResource="status"),
        review("UPDATE", new={"kind": "Scale", "spec": {"replicas": 4}}, old={}, subResource="scale"),
        review("CREATE", new={"kind": "Pod", "apiVersion": "v1", "metadata": {"name": LONG}, "spec": {}}),
        review("CREATE", new=None),
    ],
)
async def test_what_is_none_of_our_business_passes(asked, path, asks):
    assert await asked.review(path, asks) == {"uid": "u-1", "allowed": True}


async def test_a_job_of_an_older_release_can_be_finished(asked):
    """Its spec would not be let in today, and its finalizer has to go all the same."""
    old = job(name=LONG, ipusPerJobInstance="-3")
    old["metadata"]["finalizers"] = [FINALIZER]
    new = copy.deepcopy(old)
    new["metadata"] |= {"finalizers": [], "deletionTimestamp": "2026-03-01T00:00:00Z"}
    assert not (await asked.review(VALIDATE, review(new=old)))["allowed"]
    for path in (MUTATE, VALIDATE):
        assert (await asked.review(path, review("UPDATE", new=new, old=old)))["allowed"]


@pytest.mark.parametrize(
    "spec", [None, [], "x", 3, {"launcher": 3}, {"workers": {"template": []}}, {"jobInstances": {}}]
)
@pytest.mark.parametrize("path", [MUTATE, VALIDATE])
async def test_a_spec_of_any_form_is_answered(asked, path, spec):
    """The defaulting webhook comes before the schema, so anything may be in it."""
    with_it = job() | {"spec": spec}
    answer = await asked.review(path, review(new=with_it))
    assert answer["allowed"] or answer["status"]["code"] == 422


async def test_a_fault_of_ours_is_a_refusal_with_words_and_a_line_in_the_log(caplog):
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    async with serving(AdmissionRules(broken, broken, broken)) as asked:
        for path in (MUTATE, VALIDATE):
            answer = await asked.review(path, review(new=job()))
            assert not answer["allowed"]
            assert answer["status"]["code"] == 500
            assert "uid u-1" in answer["status"]["message"]
        assert (await asked.review(VALIDATE, review("UPDATE", new=job(), old=job())))["allowed"]
    faults = [record for record in caplog.records if record.message == "webhook.failed"]
    assert len(faults) == 2
    assert all(record.exc_info for record in faults)


# -- what is no review -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [MUTATE, VALIDATE])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nothing",
        b"\xff\xfe",
        b"[" * 100_000,
        b"[]",
        b"{}",
        b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": []}',
        json.dumps(review() | {"apiVersion": "admission.k8s.io/v1beta1"}).encode(),
        json.dumps(review(uid="")).encode(),
        json.dumps(review(uid=3)).encode(),
        json.dumps(review(operation=["CREATE"])).encode(),
    ],
)
async def test_what_is_no_review_is_400(asked, path, body):
    status, told = await asked.raw(path, body)
    assert status == 400
    assert json.loads(told)["code"] in ("body.invalid", "body.not_json")


async def test_a_review_of_another_version_is_told_which_is_meant(asked):
    _, told = await asked.raw(VALIDATE, json.dumps(review() | {"apiVersion": "admission.k8s.io/v1beta1"}).encode())
    assert "admissionReviewVersions must have v1" in json.loads(told)["hint"]


async def test_a_job_and_what_it_was_have_room_and_not_a_byte_more(asked):
    large = json.dumps(review(new=job()))
    large += " " * (BODY_BYTES_MAX - len(large))
    assert (await asked.raw(VALIDATE, large.encode()))[0] == 200
    status, told = await asked.raw(VALIDATE, large.encode() + b" ")
    assert (status, json.loads(told)["code"]) == (413, "body.too_large")


async def test_nor_if_nobody_said_how_many_would_come(asked):
    def send() -> int:
        context = ssl.create_default_context(cadata=asked.ca.decode())
        connection = http.client.HTTPSConnection("127.0.0.1", asked.port, context=context, timeout=patient(20))
        with contextlib.closing(connection):
            body, headers = iter([b" " * 65536] * 100), {"Transfer-Encoding": "chunked"}
            connection.request("POST", VALIDATE, body, headers, encode_chunked=True)
            return connection.getresponse().status

    assert await asyncio.to_thread(send) == 413


async def test_who_goes_in_the_middle_of_it_leaves_nothing_behind(asked, caplog):
    _, writer = await connect(asked)
    writer.write(b"POST " + MUTATE.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n{")
    await writer.drain()
    await until(lambda: asked.server.server_state.tasks)
    writer.close()
    await until(lambda: not asked.server.server_state.connections and not asked.server.server_state.tasks)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_the_rest_of_what_was_refused_does_not_keep_the_connection(monkeypatch):
    monkeypatch.setattr(webhook_server, "ARRIVAL_S", 0.3)
    async with serving() as asked:
        reader, writer = await connect(asked)
        writer.write(b"POST " + MUTATE.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n{")
        async with asyncio.timeout(patient(10)):
            assert b"413" in await reader.readline()
            await reader.read()
        writer.close()


@pytest.mark.parametrize("path", ["/", "/mutate", MUTATE + "/more"])
async def test_other_paths_are_not_there(asked, path):
    assert (await asked.raw(path, b"{}"))[0] == 404


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_webhooks_are_only_posted_to(asked, method):
    assert (await asked.raw(MUTATE, b"{}", method))[0] == 405


async def test_health(asked):
    assert await asked.raw("/healthz", b"", "GET") == (200, b"ok\n")
    assert await asked.raw("/readyz", b"", "GET") == (200, b"ok\n")
    async with serving(ready=False) as other:
        assert (await other.raw("/healthz", b"", "GET"))[0] == 200
        assert (await other.raw("/readyz", b"", "GET"))[0] == 503


# -- the server --------------------------------------------------------------------------------------------------------


async def test_a_renewed_certificate_is_served_at_once_and_no_call_is_lost(asked):
    """Calls continue, on kept connections and on new ones, while the certificate changes under them many times."""
    renewed = [make_certificates(["127.0.0.1"], datetime.now(UTC)) for _ in range(6)]
    asked.ca += b"".join(one.ca for one in renewed)
    over = asyncio.Event()

    async def keep_asking() -> int:
        count = 0
        while not over.is_set():
            assert (await asked.review(VALIDATE, review(new=job())))["allowed"]
            count += 1
        return count

    work = [asyncio.create_task(keep_asking()) for _ in range(3)]
    for one in renewed:
        load_certificate(asked.context, one)
        asked.ca = asked.ca  # callers believe all of them
        only = Asked(asked.server, asked.port, one.ca)
        assert (await only.review(VALIDATE, review(new=job())))["allowed"], "the newest alone is shown"
    over.set()
    assert sum(await asyncio.gather(*work)) >= 6


async def test_a_request_that_never_ends_is_cut_off(monkeypatch):
    monkeypatch.setattr(webhook_server, "ARRIVAL_S", 0.3)
    async with serving() as asked:
        whole = b"POST " + MUTATE.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"
        for start in (b"", whole[:20], whole[:-4], whole):
            reader, writer = await connect(asked)
            writer.write(start)
            async with asyncio.timeout(patient(10)):
                await reader.read()  # until the server has had enough
            writer.close()


async def test_a_head_without_end_is_refused(asked):
    reader, writer = await connect(asked)
    writer.write(b"POST / HTTP/1.1\r\n" + b"".join(b"a%d: %s\r\n" % (n, b"x" * 1000) for n in range(80)))
    assert HEAD_BYTES_MAX < 80_000
    async with asyncio.timeout(patient(10)):
        assert b"400" in (await reader.read())[:40]
    writer.close()


async def connect(asked: Asked, host: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = ssl.create_default_context(cadata=asked.ca.decode())
    return await asyncio.open_connection("127.0.0.1", asked.port, ssl=context, local_addr=(host, 0))


async def test_who_speaks_no_tls_gets_no_answer(asked, caplog):
    caplog.set_level(logging.CRITICAL, "asyncio")
    reader, writer = await asyncio.open_connection("127.0.0.1", asked.port)
    writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(patient(10)):
        assert b"200" not in await reader.read()
    writer.close()
    assert (await asked.raw("/healthz", b"", "GET"))[0] == 200


def test_a_port_that_is_taken_is_told():
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(MooringsError, match=r"cannot listen on 127\.0\.0\.1") as caught,
    ):
        listen("127.0.0.1", taken.getsockname()[1])
    assert caught.value.code == "config.invalid"
    assert "admissionWebhooks.port" in caught.value.hint


def test_warnings_are_short_enough_for_the_api_server():
    assert all(len(text) <= webhooks.WARNING_CHARS_MAX for text in webhooks.list_warnings(job(modelReplicas=1)))


# -- what a stranger may cost ------------------------------------------------------------------------------------------


LOOPS = pytest.mark.parametrize(  # the operator runs on uvloop
    "anyio_backend", [("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"]
)


def begun(length: int, sent: int) -> bytes:
    """A review that is larger than what comes of it."""
    head = f"POST {VALIDATE} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"
    return head.encode() + b" " * sent


@LOOPS
async def test_of_what_half_sent_reviews_hold_one_address_leaves_room_for_others():
    room = ClientLimit(200_000)
    async with serving(room=room) as asked:
        _, one = await connect(asked)
        one.write(begun(90_000, 60_000))
        await until(lambda: room.n_held == 60_000)
        reader, two = await connect(asked)
        two.write(begun(90_000, 60_000))
        async with asyncio.timeout(patient(10)):
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in head.lower()
        assert json.loads(body)["code"] == "controller.busy"
        assert room.n_held == 60_000, "what was refused is not kept"

        reader, three = await connect(asked, "127.0.0.2")
        whole = json.dumps(review(new=job())).encode().ljust(60_000)
        three.write(begun(len(whole), 0) + whole)
        async with asyncio.timeout(patient(10)):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        for writer in (one, two, three):
            writer.close()
        await until(lambda: room.n_held == 0)
        assert (await asked.review(VALIDATE, review(new=job())))["allowed"]


@LOOPS
async def test_an_address_with_too_many_connections_is_hung_up_on_and_others_are_not(monkeypatch):
    monkeypatch.setattr(webhook_server, "CONNECTIONS_MAX", 8)
    async with serving() as asked, contextlib.AsyncExitStack() as stack:
        for _ in range(4):  # which say nothing: no TLS has begun
            _, writer = await asyncio.open_connection("127.0.0.1", asked.port)
            stack.callback(writer.close)
        await until(lambda: len(asked.connections) == 4)
        reader, writer = await asyncio.open_connection("127.0.0.1", asked.port)
        async with asyncio.timeout(patient(10)):
            assert await reader.read() == b""
        writer.close()
        reader, writer = await connect(asked, "127.0.0.2")
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(patient(10)):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        await stack.aclose()
        await until(lambda: len(asked.connections) == 0)
        assert await asked.raw("/healthz", b"", "GET") == (200, b"ok\n")


async def test_a_large_review_does_not_keep_others_waiting():
    over = threading.Event()
    threads = []

    def check(_job: Any) -> None:
        threads.append(threading.current_thread())
        if len(threads) == 1 and not over.wait(patient(10)):
            raise MooringsError("job.invalid", "nobody else was answered meanwhile")

    async with serving(AdmissionRules(lambda _: [], check, lambda *_: None)) as asked:
        large = json.dumps(review(new=job())).encode().ljust(SMALL_BYTES + 1)
        first = asyncio.create_task(asked.raw(VALIDATE, large))
        await until(lambda: bool(threads))
        assert (await asked.review(VALIDATE, review(new=job())))["allowed"]
        over.set()
        assert json.loads((await first)[1])["response"]["allowed"]
    assert [thread is threading.main_thread() for thread in threads] == [False, True]


@pytest.mark.parametrize("part", [b"[],", b"{},", b"0,"])
async def test_what_would_become_a_hundred_times_as_large_is_not_read(asked, part):
    many = b"[" + part * (BODY_BYTES_MAX // len(part) - 2) + b"0]"
    status, told = await asked.raw(VALIDATE, many)
    assert (status, json.loads(told)["code"]) == (413, "body.too_large")
    some = b"[" + part * (JSON_VALUES_MAX // 2 - 1) + b"0]"
    assert json.loads((await asked.raw(VALIDATE, some))[1])["code"] == "body.invalid", "which was read"


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 200,
        b"POST / HTTP/1.1\r\n" + b"a: b\r\n" * (HEADERS_MAX + 2),
    ],
)
async def test_what_no_api_server_sends_ends_the_connection(asked, sent):
    reader, writer = await connect(asked)
    writer.write(sent)
    async with asyncio.timeout(patient(10)):
        told = await reader.read()
    assert b"HTTP/1.1 400 " in told
    assert told.count(b"HTTP/1.1 200 ") <= 1
    writer.close()
