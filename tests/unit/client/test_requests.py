"""Requests as values, and answers read: no network here."""

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from moorings.client.client import Client
from moorings.client.requests import (
    ApiCall,
    ApiError,
    ApplianceFilter,
    ClaimFilter,
    EventFilter,
    RunFilter,
    build_target,
    is_transient,
    parse_problem,
)
from moorings.client.transport import RetryPolicy, Transport
from moorings.core.model.errors import MooringsError
from moorings.wire import operations
from moorings.wire.forecasts import DefragmentRequest
from moorings.wire.operations import ListPage
from moorings.wire.shapes import (
    ClaimRequest,
    EstimateRequest,
    JobShape,
    KeyRequest,
    ProjectRequest,
    RotateRequest,
    RunRequest,
    ShareShape,
)
from tests.cases import cases


def test_targets_are_quoted_and_empty_values_left_out():
    assert build_target("/v1/claims/{id}", "a b/ü?") == "/v1/claims/a%20b%2F%C3%BC%3F"
    assert build_target("/v1/devices/{id}/drain", "pod64:17") == "/v1/devices/pod64:17/drain"
    assert build_target("/v1/x", continue_="a=&", all=True, no=False, none=None, empty="", many=("a", "b")) == (
        "/v1/x?continue=a%3D%26&all=true&many=a&many=b"
    )


class RecordedCalls:
    """A transport that answers each call with an empty list, and keeps it."""

    patience = RetryPolicy()

    def __init__(self) -> None:
        self.calls: list[ApiCall[Any]] = []

    def send(self, call: ApiCall[Any]) -> ListPage[Any]:
        self.calls.append(call)
        return ListPage(())

    @contextlib.contextmanager
    def open_stream(self, call: ApiCall[Any], **_: object) -> Iterator[Iterator[bytes]]:
        self.calls.append(call)
        yield iter(())


def call_of(use: Callable[[Client], object]) -> ApiCall[Any]:
    """The call that a method of the client makes."""
    transport = RecordedCalls()
    use(Client(cast(Transport, transport)))
    (call,) = transport.calls
    return call


@cases(
    ("use", "method", "target"),
    [
        (lambda client: client.version(), "GET", "/version"),
        (lambda client: client.capacity("pod64", 16), "GET", "/v1/pools/pod64/capacity?size=16"),
        (lambda client: client.list_devices("pod64"), "GET", "/v1/devices?pool=pod64&limit=1000"),
        (
            lambda client: client.list_claims(ClaimFilter("PENDING", "user/ann", "pod64", all=True)),
            "GET",
            "/v1/claims?state=PENDING&ownerPrefix=user%2Fann&pool=pod64&all=true&limit=1000",
        ),
        (lambda client: client.get_claim("c", wait_s=30, until="READY"), "GET", "/v1/claims/c?wait=30s&for=READY"),
        (lambda client: client.get_claim("c"), "GET", "/v1/claims/c"),
        (lambda client: client.delete_claim("c", wait_s=2.5), "DELETE", "/v1/claims/c?wait=2.5s"),
        (lambda client: client.delete_claim("c", only_waiting=True), "DELETE", "/v1/claims/c?onlyWaiting=true"),
        (lambda client: client.explain_claim("c"), "GET", "/v1/claims/c/explain"),
        (lambda client: client.explain_claim("c", when=True), "GET", "/v1/claims/c/explain?when=true"),
        (lambda client: client.yield_claim("c", "done"), "POST", "/v1/claims/c/yield"),
        (lambda client: client.checkpoint_claim("c"), "POST", "/v1/claims/c/checkpoint"),
        (lambda client: client.estimate(EstimateRequest(size=4)), "POST", "/v1/estimate"),
        (lambda client: client.defragment(DefragmentRequest(size=8)), "POST", "/v1/defragment"),
        (lambda client: client.compare_policies("reserve = false"), "POST", "/v1/whatif"),
        (lambda client: client.project("lab/vision"), "GET", "/v1/projects/lab%2Fvision"),
        (lambda client: client.set_project("lab", ProjectRequest()), "PUT", "/v1/projects/lab"),
        (lambda client: client.delete_project("lab"), "DELETE", "/v1/projects/lab"),
        (lambda client: client.list_quotas(), "GET", "/v1/quotas?limit=1000"),
        (lambda client: client.binding("c"), "GET", "/v1/claims/c/binding"),
        (lambda client: client.binding("c", wait_s=5), "GET", "/v1/claims/c/binding?wait=5s"),
        (lambda client: client.renew_claim("c"), "POST", "/v1/claims/c/renew"),
        (lambda client: client.queue("slurm/a b", version="3"), "GET", "/v1/queues/slurm/a%20b?version=3"),
        (lambda client: client.reset_partition("p"), "POST", "/v1/partitions/p/reset"),
        (lambda client: client.list_runs(RunFilter(subject="ann")), "GET", "/v1/runs?subject=ann&limit=1000"),
        (lambda client: client.cancel_run("r", wait_s=0.0512346), "POST", "/v1/runs/r/cancel?wait=0.051s"),
        (lambda client: client.cancel_run("r", wait_s=5), "POST", "/v1/runs/r/cancel?wait=5s"),
        (lambda client: list(client.logs("r", task=0, follow=True)), "GET", "/v1/runs/r/logs?task=0&follow=true"),
        (
            lambda client: client.appliance_jobs(ApplianceFilter(labels=(("a", "b"),))),
            "GET",
            "/v1/appliance/jobs?label=a%3Db&limit=1000",
        ),
        (lambda client: client.list_keys(), "GET", "/v1/keys?limit=1000"),
        (lambda client: client.who_am_i(), "GET", "/v1/whoami"),
        (lambda client: client.delete_key("k"), "DELETE", "/v1/keys/k"),
        (
            lambda client: client.list_events(EventFilter("c", "r", ("claim.*", "run.ended")), after=7, limit=5),
            "GET",
            "/v1/events?after=7&limit=5&claim=c&run=r&name=claim.%2A&name=run.ended",
        ),
        (lambda client: next(client.watch_events()), "GET", "/v1/events?watch=1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_call_asks_for_its_address(use, method, target):
    call = call_of(use)
    assert (call.method, call.target) == (method, target)


def test_all_pages_of_a_list_are_read():
    """Also of access keys: a controller has more of them than one page holds."""
    pages: list[ListPage[Any]] = [ListPage((1, 2), "a="), ListPage((3,))]
    transport = RecordedCalls()

    def send(call: ApiCall[Any]) -> ListPage[Any]:
        transport.calls.append(call)
        return pages[len(transport.calls) - 1]

    transport.send = send  # type: ignore[method-assign]
    listed: tuple[Any, ...] = Client(cast(Transport, transport)).list_keys()
    assert listed == (1, 2, 3)
    assert [call.target for call in transport.calls] == ["/v1/keys?limit=1000", "/v1/keys?limit=1000&continue=a%3D"]


@cases(
    ("use", "repeatable"),
    [
        (lambda client: client.create_claim(ClaimRequest(size=1)), False),
        (lambda client: client.create_claim(ClaimRequest(size=1), "k"), True),
        (lambda client: client.create_run(RunRequest(job=JobShape(name="j", command=("true",), workdir="/"))), False),
        (lambda client: client.create_key(KeyRequest(subject="ann")), False),
        (lambda client: client.rotate_key("k", RotateRequest()), False),
        (lambda client: client.reset_partition("p"), False),
        (lambda client: client.resume_device("d"), False),
        (lambda client: client.yield_claim("c"), False),
        (lambda client: client.checkpoint_claim("c"), False),
        (lambda client: client.checkpoint_claim("c", "2026-01-31T12:00:00Z"), True),
        (lambda client: client.set_project("p", ProjectRequest()), False),
        (lambda client: client.delete_project("p"), False),
        (lambda client: client.estimate(EstimateRequest(size=1)), True),
        (lambda client: client.defragment(DefragmentRequest(size=8, dry_run=True)), True),
        (lambda client: client.defragment(DefragmentRequest(size=8)), False),
        (lambda client: client.drain_device("d", "why"), True),
        (lambda client: client.cancel_run("r"), True),
    ],
)
def test_a_call_that_does_harm_twice_is_not_repeatable(use, repeatable):
    assert call_of(use).is_retryable is repeatable


def body_of(use: Callable[[Client], object]) -> Any:
    body = call_of(use).body
    assert body is not None
    return json.loads(body)


def test_bodies_are_json_with_rest_names():
    request = ClaimRequest(size=4, replicas_per_gcd=2, time_limit_s=60.0)
    body = body_of(lambda client: client.create_claim(request, "k"))
    assert body["replicasPerGcd"] == 2
    assert body["timeLimitS"] == 60.0
    assert "leaseS" not in body


def test_a_project_s_body_says_which_version_is_changed_or_none():
    shares = (ShareShape(pool="pod64", blocks={"16": 2}),)
    request = ProjectRequest(shares=shares, user_devices_max=8, version=3)
    assert body_of(lambda client: client.set_project("lab", request)) == {
        "shares": [{"pool": "pod64", "blocks": {"16": 2}}],
        "weight": 1.0,
        "userDevicesMax": 8,
        "members": [],
        "aliases": [],
        "version": 3,
    }
    assert "version" not in body_of(lambda client: client.set_project("lab", ProjectRequest()))


def test_a_list_that_is_none_is_refused():
    with pytest.raises(MooringsError) as caught:
        operations.LIST_POOLS.response.parse({"items": "no"})
    assert caught.value.code == "body.invalid"


def test_a_problem_keeps_what_the_controller_said():
    body = {"title": "t", "status": 409, "code": "claim.no_room", "detail": "full", "hint": "wait", "requestId": "r1"}
    error = parse_problem(409, {"content-type": "application/problem+json"}, json.dumps(body).encode(), server="s")
    assert (error.code, error.detail, error.hint, error.request_id) == ("claim.no_room", "full", "wait", "r1")
    assert not is_transient(error)


@pytest.mark.parametrize(("status", "passes"), [(502, True), (503, True), (404, False), (200, False)])
def test_an_answer_of_no_controller_is_unreachable(status, passes):
    error = parse_problem(status, {"content-type": "text/html"}, b"<html>", server="http://proxy")
    assert error.code == "controller.unreachable"
    assert "http://proxy" in error.detail
    assert is_transient(error) is passes


def test_a_broken_problem_is_unreachable_too():
    error = parse_problem(500, {"content-type": "application/json"}, b"{", server="s")
    assert isinstance(error, ApiError)
    assert error.code == "controller.unreachable"


def test_retry_after_is_read():
    error = parse_problem(503, {"retry-after": "3"}, b"", server="s")
    assert error.retry_after_s == 3.0
