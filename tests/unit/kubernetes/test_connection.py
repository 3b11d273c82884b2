"""What is sent and read on the way to the API server, without one."""

from __future__ import annotations

import json

import pytest

from moorings.kubernetes.ipujob.types import IPU_JOB
from moorings.kubernetes.kube.api import CONFIG_MAP, NAMESPACE, POD, SECRET, KubeError
from moorings.kubernetes.kube.client import build_path, parse_event, parse_status_error
from tests.cases import cases


def status(code: int, reason: str, message: str, **details) -> bytes:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }
    return json.dumps({**body, "details": details}).encode()


@pytest.mark.parametrize(
    ("kind", "namespace", "name", "subresource", "path"),
    [
        (POD, "n", "p", "", "/api/v1/namespaces/n/pods/p"),
        (POD, None, "", "", "/api/v1/pods"),
        (IPU_JOB, "n", "j", "status", "/apis/graphcore.ai/v1alpha1/namespaces/n/ipujobs/j/status"),
        (NAMESPACE, None, "n", "", "/api/v1/namespaces/n"),
        (POD, "n", "../../secrets", "", "/api/v1/namespaces/n/pods/..%2F..%2Fsecrets"),
    ],
)
def test_a_path_is_where_the_api_server_has_it(kind, namespace, name, subresource, path):
    assert build_path(kind, namespace, name, subresource) == path


def test_an_object_in_no_namespace_is_a_mistake_of_ours():
    with pytest.raises(AssertionError):
        build_path(POD, None, "p")


def test_a_refusal_has_the_servers_words():
    error = parse_status_error(409, {}, status(409, "AlreadyExists", 'configmaps "x" already exists'), CONFIG_MAP)
    assert (error.status, error.reason, error.detail) == (409, "AlreadyExists", 'configmaps "x" already exists')
    assert (error.code, error.retryable) == ("kubernetes.refused", True)


def test_how_long_the_server_wants_to_be_left_alone_is_read():
    assert parse_status_error(429, {"retry-after": "7"}, b"Too many requests", POD).retry_after_s == 7
    assert (
        parse_status_error(429, {}, status(429, "TooManyRequests", "no", retryAfterSeconds=3), POD).retry_after_s == 3
    )
    assert parse_status_error(503, {"retry-after": "Fri, 31 Dec 2027 23:59:59 GMT"}, b"", POD).retry_after_s == 0
    assert parse_status_error(429, {"retry-after": "99999999"}, b"", POD).retry_after_s == 300


@cases("content", [b"", b"<html>", b"[]", b'"x"', b"{}", b"\xff\xfe", b'{"kind":"Status","details":7}'])
def test_what_stands_in_front_of_a_server_may_answer_anything(content):
    error = parse_status_error(502, {}, content, POD)
    assert (error.status, error.code) == (502, "kubernetes.unreachable")
    assert error.detail


def test_a_secrets_value_is_in_no_message():
    quoted = status(422, "Invalid", 'Secret "s" is invalid: data[key]: Invalid value: "hunter2"')
    assert "hunter2" not in str(parse_status_error(422, {}, quoted, SECRET))


def test_a_watch_that_is_too_old_says_so():
    line = json.dumps({"type": "ERROR", "object": json.loads(status(410, "Expired", "too old resource version"))})
    with pytest.raises(KubeError) as caught:
        parse_event(line.encode(), POD)
    assert (caught.value.status, caught.value.reason) == (410, "Expired")


@pytest.mark.parametrize("line", [b"{", b"7", b"\xff"])
def test_a_broken_line_of_a_watch_is_an_error_that_passes(line):
    with pytest.raises(KubeError) as caught:
        parse_event(line, POD)
    assert caught.value.retryable
