"""Requests as values, and answers read: no network here."""

import json

import pytest

from moorings.client import requests
from moorings.client.requests import ApiError, ClaimFilter, EventFilter, RunFilter, build_target, parse_problem
from moorings.core.errors import MooringsError
from moorings.wire.forecasts import DefragmentRequest
from moorings.wire.shapes import ClaimRequest, EstimateRequest, KeyRequest, PoolBody, ProjectRequest, ShareShape
from tests.cases import cases


def test_targets_are_quoted_and_empty_values_left_out():
    assert build_target("/v1/claims/{}", "a b/ü?") == "/v1/claims/a%20b%2F%C3%BC%3F"
    assert build_target("/v1/devices/{}/drain", "pod64:17") == "/v1/devices/pod64:17/drain"
    assert build_target("/v1/x", continue_="a=&", all=True, no=False, none=None, empty="", many=("a", "b")) == (
        "/v1/x?continue=a%3D%26&all=true&many=a&many=b"
    )


@cases(
    ("call", "method", "target"),
    [
        (requests.get_version(), "GET", "/version"),
        (requests.get_capacity("pod64", 16), "GET", "/v1/pools/pod64/capacity?size=16"),
        (requests.list_devices("pod64"), "GET", "/v1/devices?pool=pod64&limit=1000"),
        (
            requests.list_claims(ClaimFilter("PENDING", "user/ann", "pod64", all=True), "tok"),
            "GET",
            "/v1/claims?state=PENDING&ownerPrefix=user%2Fann&pool=pod64&all=true&limit=1000&continue=tok",
        ),
        (requests.get_claim("c", wait_s=30, until="READY"), "GET", "/v1/claims/c?wait=30s&for=READY"),
        (requests.get_claim("c"), "GET", "/v1/claims/c"),
        (requests.delete_claim("c", wait_s=2.5), "DELETE", "/v1/claims/c?wait=2.5s"),
        (requests.delete_claim("c", only_waiting=True), "DELETE", "/v1/claims/c?onlyWaiting=true"),
        (requests.explain_claim("c"), "GET", "/v1/claims/c/explain"),
        (requests.explain_claim("c", when=True), "GET", "/v1/claims/c/explain?when=true"),
        (requests.yield_claim("c", "done"), "POST", "/v1/claims/c/yield"),
        (requests.checkpoint_claim("c"), "POST", "/v1/claims/c/checkpoint"),
        (requests.estimate(EstimateRequest(size=4)), "POST", "/v1/estimate"),
        (requests.defragment(DefragmentRequest(size=8)), "POST", "/v1/defragment"),
        (requests.what_if("reserve = false"), "POST", "/v1/whatif"),
        (requests.list_projects("tok"), "GET", "/v1/projects?limit=1000&continue=tok"),
        (requests.get_project("lab/vision"), "GET", "/v1/projects/lab%2Fvision"),
        (requests.set_project("lab", ProjectRequest()), "PUT", "/v1/projects/lab"),
        (requests.delete_project("lab"), "DELETE", "/v1/projects/lab"),
        (requests.list_quotas(), "GET", "/v1/quotas?limit=1000"),
        (requests.get_binding("c"), "GET", "/v1/claims/c/binding"),
        (requests.get_binding("c", wait_s=5), "GET", "/v1/claims/c/binding?wait=5s"),
        (requests.renew_claim("c"), "POST", "/v1/claims/c/renew"),
        (requests.reset_partition("p"), "POST", "/v1/partitions/p/reset"),
        (requests.list_runs(RunFilter(subject="ann")), "GET", "/v1/runs?subject=ann&limit=1000"),
        (requests.cancel_run("r", wait_s=5), "POST", "/v1/runs/r/cancel?wait=5s"),
        (requests.get_logs("r", task=0, follow=True), "GET", "/v1/runs/r/logs?task=0&follow=true"),
        (requests.delete_key("k"), "DELETE", "/v1/keys/k"),
        (
            requests.list_events(EventFilter("c", "r", ("claim.*", "run.ended")), after=7, limit=5),
            "GET",
            "/v1/events?after=7&limit=5&claim=c&run=r&name=claim.%2A&name=run.ended",
        ),
        (requests.watch_events(), "GET", "/v1/events?watch=1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_call_asks_for_its_address(call, method, target):
    assert (call.method, call.target) == (method, target)


def test_what_would_do_harm_twice_is_not_repeatable():
    claim = ClaimRequest(size=1)
    assert not requests.create_claim(claim).repeatable
    assert requests.create_claim(claim, "k").repeatable
    assert not requests.create_key(KeyRequest(subject="ann")).repeatable
    assert not requests.reset_partition("p").repeatable
    assert not requests.resume_device("d").repeatable
    assert not requests.yield_claim("c").repeatable
    assert not requests.checkpoint_claim("c").repeatable
    assert requests.checkpoint_claim("c", "2026-01-31T12:00:00Z").repeatable
    assert not requests.set_project("p", ProjectRequest()).repeatable
    assert not requests.delete_project("p").repeatable
    assert requests.estimate(EstimateRequest(size=1)).repeatable
    assert requests.defragment(DefragmentRequest(size=8, dry_run=True)).repeatable
    assert not requests.defragment(DefragmentRequest(size=8)).repeatable
    assert requests.drain_device("d", "why").repeatable
    assert requests.cancel_run("r").repeatable


def test_bodies_are_json_with_rest_names():
    call = requests.create_claim(ClaimRequest(size=4, replicas_per_gcd=2, time_limit_s=60.0), "k")
    assert call.body is not None
    body = json.loads(call.body)
    assert body["replicasPerGcd"] == 2
    assert body["timeLimitS"] == 60.0
    assert "leaseS" not in body


def test_a_project_s_body_says_which_version_is_changed_or_none():
    shares = (ShareShape(pool="pod64", blocks={"16": 2}),)
    body = requests.set_project("lab", ProjectRequest(shares=shares, user_devices_max=8, version=3)).body
    assert body is not None
    assert json.loads(body) == {
        "shares": [{"pool": "pod64", "blocks": {"16": 2}}],
        "weight": 1.0,
        "userDevicesMax": 8,
        "members": [],
        "aliases": [],
        "version": 3,
    }
    assert b"version" not in (requests.set_project("lab", ProjectRequest()).body or b"version")


def test_a_list_that_is_none_is_refused():
    with pytest.raises(MooringsError) as caught:
        requests.parse_listing(PoolBody)({"items": "no"})
    assert caught.value.code == "body.invalid"


def test_a_problem_keeps_what_the_controller_said():
    body = {"title": "t", "status": 409, "code": "claim.no_room", "detail": "full", "hint": "wait", "requestId": "r1"}
    error = parse_problem(409, {"content-type": "application/problem+json"}, json.dumps(body).encode(), server="s")
    assert (error.code, error.detail, error.hint, error.request_id) == ("claim.no_room", "full", "wait", "r1")
    assert not requests.is_transient(error)


@pytest.mark.parametrize(("status", "passes"), [(502, True), (503, True), (404, False), (200, False)])
def test_an_answer_of_no_controller_is_unreachable(status, passes):
    error = parse_problem(status, {"content-type": "text/html"}, b"<html>", server="http://proxy")
    assert error.code == "controller.unreachable"
    assert "http://proxy" in error.detail
    assert requests.is_transient(error) is passes


def test_a_broken_problem_is_unreachable_too():
    error = parse_problem(500, {"content-type": "application/json"}, b"{", server="s")
    assert isinstance(error, ApiError)
    assert error.code == "controller.unreachable"


def test_retry_after_is_read():
    error = parse_problem(503, {"retry-after": "3"}, b"", server="s")
    assert error.retry_after_s == 3.0
