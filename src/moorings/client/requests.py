"""Every request of the API as a value, with the parser of its response. No IO: all tests compare values.

An ``ApiCall`` says whether it may be sent twice, so the transport can retry without knowing routes. A client generated
from the OpenAPI document was refused: it would bring pydantic, and with it a fifth of a second of start-up for every
``moor``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import quote, urlencode

from moorings.core.errors import MooringsError
from moorings.wire.codec import decode, encode
from moorings.wire.forecasts import DefragmentBody, DefragmentRequest, WhatIfBody, WhatIfRequest
from moorings.wire.shapes import (
    ApplianceJobBody,
    BindingBody,
    CapacityBody,
    CheckpointRequest,
    ClaimBody,
    ClaimRequest,
    DeviceBody,
    DrainRequest,
    EstimateBody,
    EstimateRequest,
    EventBody,
    ExplanationBody,
    FindingsBody,
    KeyBody,
    KeyRequest,
    LabelsRequest,
    PartitionBody,
    PartitionRequest,
    PoolBody,
    PriorityRequest,
    ProblemBody,
    ProjectBody,
    ProjectRequest,
    QueueBody,
    QueueRequest,
    QuotaBody,
    RotateRequest,
    RunBody,
    RunRequest,
    VersionBody,
    YieldRequest,
)

T = TypeVar("T")
BodyT = TypeVar("BodyT")

NOT_A_CONTROLLER_HINT = "is this the address of a controller?"
_RETRY_AFTER = re.compile(r"[0-9]{1,6}")  # seconds
PAGE_ITEMS = 1000  # the API's largest page: fewer round trips for a pool of many devices


class ApiError(MooringsError):
    """An error response of the controller.

    Args:
        problem: its body.
        retry_after_s: the requested wait before the next try; 0 if there was none.
    """

    def __init__(self, problem: ProblemBody, *, retry_after_s: float = 0.0) -> None:
        super().__init__(problem.code, problem.detail, hint=problem.hint, retryable=problem.retryable)
        self.status = problem.status
        self.request_id = problem.request_id
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """One page of a list; ``after`` continues it, None at its end."""

    items: tuple[T, ...]
    after: str | None = None


@dataclass(frozen=True, slots=True)
class ApiCall(Generic[T]):
    """One request, complete.

    Attributes:
        method: GET, POST, PUT or DELETE.
        target: path and query, encoded.
        parse: parses the JSON of a success response.
        body: the JSON to send; None for nothing.
        key: idempotency key; for one key the controller acts once.
        repeatable: whether sending it again after a lost response does no harm.
        wait_s: how long the controller may hold its response.
    """

    method: str
    target: str
    parse: Callable[[object], T]
    body: bytes | None = None
    key: str | None = None
    repeatable: bool = True
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ClaimFilter:
    """A filter for claims: those that have not ended, unless a state or ``all`` is given."""

    state: str | None = None
    owner_prefix: str | None = None
    pool: str | None = None
    all: bool = False


@dataclass(frozen=True, slots=True)
class RunFilter:
    """A filter for runs: those that have not ended, unless a state or ``all`` is given."""

    state: str | None = None
    subject: str | None = None
    all: bool = False


@dataclass(frozen=True, slots=True)
class ApplianceFilter:
    """A filter for jobs of appliances: those that have not ended, unless a state or ``all`` is given."""

    state: str | None = None
    subject: str | None = None
    kind: str | None = None
    workflow: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    all: bool = False


@dataclass(frozen=True, slots=True)
class EventFilter:
    """A filter for events; ``names`` may end in ``.*``."""

    claim: str | None = None
    run: str | None = None
    names: tuple[str, ...] = ()


UNENDED_CLAIMS = ClaimFilter()
UNENDED_RUNS = RunFilter()
ALL_EVENTS = EventFilter()


# ------------------------------------------------------------------------------------------ building and reading


def build_target(path: str, *parts: str, **query: object) -> str:
    """``path`` with its ``{}`` filled by quoted ``parts``, and the query values that are not None, False or empty."""
    filled = path.format(*(quote(part, safe=":@") for part in parts))
    pairs: list[tuple[str, str]] = []
    for name, value in query.items():
        if value is None or value is False or value in ("", ()):
            continue
        values = value if isinstance(value, tuple) else (value,)
        pairs += [(name.rstrip("_"), "true" if item is True else str(item)) for item in values]
    return f"{filled}?{urlencode(pairs)}" if pairs else filled


def build_body(request: object) -> bytes:
    """A request shape as JSON bytes."""
    return json.dumps(encode(request), separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogateescape")


def wait_text(seconds: float) -> str | None:
    """A wait in the API's form (``30s``); None for no wait."""
    return f"{seconds:g}s" if seconds > 0 else None


def parse_body(kind: type[BodyT]) -> Callable[[object], BodyT]:
    """A parser for one object."""
    return lambda data: decode(kind, data)


def parse_listing(kind: type[BodyT]) -> Callable[[object], ListPage[BodyT]]:
    """A parser for one page of a list."""

    def parse(data: object) -> ListPage[BodyT]:
        if not isinstance(data, dict) or not isinstance(data.get("items"), list):
            raise MooringsError("body.invalid", "the answer is not a list", hint=NOT_A_CONTROLLER_HINT)
        items = tuple(decode(kind, item, where=f"items[{index}]") for index, item in enumerate(data["items"]))
        return ListPage(items, data.get("continue") or None)

    return parse


def parse_nothing(_data: object) -> None:
    """A parser for responses without a body."""


def parse_problem(status: int, headers: Mapping[str, str], body: bytes, *, server: str) -> ApiError:
    """The error for a response of that status; also from proxies and other servers."""
    retry_after = headers.get("retry-after", "")
    retry_after_s = float(retry_after) if _RETRY_AFTER.fullmatch(retry_after) else 0.0
    if "json" in headers.get("content-type", ""):
        try:
            problem = decode(ProblemBody, json.loads(body))
        except (ValueError, RecursionError, MooringsError):
            pass
        else:
            return ApiError(problem, retry_after_s=retry_after_s)
    gateway = status in (429, 502, 503, 504)
    return ApiError(
        ProblemBody(
            title="",
            status=status,
            code="controller.unreachable",
            detail=f"{server} answered {status}, and not as a controller does",
            hint="a proxy in between cannot reach the controller" if gateway else NOT_A_CONTROLLER_HINT,
            retryable=gateway,
            request_id=headers.get("x-request-id", ""),
        ),
        retry_after_s=retry_after_s,
    )


def is_transient(error: MooringsError) -> bool:
    """Whether ``error`` comes from the network or a busy controller: the same call may succeed soon."""
    if isinstance(error, ApiError):
        return error.retryable and error.status in (429, 502, 503, 504)
    return error.retryable


# --------------------------------------------------------------------------------------------------------- calls


def get_version() -> ApiCall[VersionBody]:
    """``GET /version``."""
    return ApiCall("GET", "/version", parse_body(VersionBody))


def get_ready() -> ApiCall[Mapping[str, object]]:
    """``GET /readyz``: the controller's health."""

    def parse(data: object) -> Mapping[str, object]:
        return data if isinstance(data, dict) else {}

    return ApiCall("GET", "/readyz", parse)


def get_findings() -> ApiCall[FindingsBody]:
    """``GET /v1/doctor``: the controller's checks of itself."""
    return ApiCall("GET", "/v1/doctor", parse_body(FindingsBody))


def get_metrics() -> ApiCall[None]:
    """``GET /metrics``: numbers, as text."""
    return ApiCall("GET", "/metrics", parse_nothing)


def list_pools(after: str | None = None) -> ApiCall[ListPage[PoolBody]]:
    """``GET /v1/pools``."""
    return ApiCall("GET", build_target("/v1/pools", limit=PAGE_ITEMS, continue_=after), parse_listing(PoolBody))


def get_pool(name: str) -> ApiCall[PoolBody]:
    """``GET /v1/pools/{name}``."""
    return ApiCall("GET", build_target("/v1/pools/{}", name), parse_body(PoolBody))


def get_capacity(pool: str, size: int) -> ApiCall[CapacityBody]:
    """``GET /v1/pools/{pool}/capacity``: the number of partitions of ``size`` devices that could be formed now."""
    return ApiCall("GET", build_target("/v1/pools/{}/capacity", pool, size=size), parse_body(CapacityBody))


def list_devices(pool: str | None = None, after: str | None = None) -> ApiCall[ListPage[DeviceBody]]:
    """``GET /v1/devices``."""
    return ApiCall(
        "GET", build_target("/v1/devices", pool=pool, limit=PAGE_ITEMS, continue_=after), parse_listing(DeviceBody)
    )


def get_device(ident: str) -> ApiCall[DeviceBody]:
    """``GET /v1/devices/{id}``."""
    return ApiCall("GET", build_target("/v1/devices/{}", ident), parse_body(DeviceBody))


def drain_device(ident: str, reason: str) -> ApiCall[DeviceBody]:
    """``POST /v1/devices/{id}/drain``; draining twice keeps the first reason."""
    target = build_target("/v1/devices/{}/drain", ident)
    return ApiCall("POST", target, parse_body(DeviceBody), build_body(DrainRequest(reason=reason)))


def resume_device(ident: str) -> ApiCall[DeviceBody]:
    """``POST /v1/devices/{id}/resume``; not repeatable: a second one is refused."""
    return ApiCall("POST", build_target("/v1/devices/{}/resume", ident), parse_body(DeviceBody), repeatable=False)


def list_claims(where: ClaimFilter = UNENDED_CLAIMS, after: str | None = None) -> ApiCall[ListPage[ClaimBody]]:
    """``GET /v1/claims``."""
    target = build_target(
        "/v1/claims",
        state=where.state,
        ownerPrefix=where.owner_prefix,
        pool=where.pool,
        all=where.all,
        limit=PAGE_ITEMS,
        continue_=after,
    )
    return ApiCall("GET", target, parse_listing(ClaimBody))


def create_claim(request: ClaimRequest, key: str | None = None, *, wait_s: float = 0.0) -> ApiCall[ClaimBody]:
    """``POST /v1/claims``; repeatable with a key; the response waits until it is READY, at most ``wait_s``."""
    target = build_target("/v1/claims", wait=wait_text(wait_s))
    again = key is not None
    return ApiCall("POST", target, parse_body(ClaimBody), build_body(request), key, repeatable=again, wait_s=wait_s)


def report_queue(request: QueueRequest) -> ApiCall[QueueBody]:
    """``POST /v1/queues``; repeatable: a list replaces the one before."""
    return ApiCall("POST", "/v1/queues", parse_body(QueueBody), build_body(request))


def list_queues(after: str | None = None) -> ApiCall[ListPage[QueueBody]]:
    """``GET /v1/queues``."""
    return ApiCall("GET", build_target("/v1/queues", limit=PAGE_ITEMS, continue_=after), parse_listing(QueueBody))


def get_queue(
    queue: str, *, wait_s: float = 0.0, version: str | None = None, instance: str | None = None
) -> ApiCall[QueueBody]:
    """``GET /v1/queues/{kind}/{cluster}``; the response waits for an offer of another version, at most ``wait_s``."""
    kind, _, cluster = queue.partition("/")
    target = build_target("/v1/queues/{}/{}", kind, cluster, wait=wait_text(wait_s), version=version, instance=instance)
    return ApiCall("GET", target, parse_body(QueueBody), wait_s=wait_s)


def get_claim(ident: str, *, wait_s: float = 0.0, until: str | None = None) -> ApiCall[ClaimBody]:
    """``GET /v1/claims/{id}``; with ``until`` (GRANTED, READY, ENDED) the response waits for it, at most ``wait_s``."""
    target = build_target("/v1/claims/{}", ident, wait=wait_text(wait_s), for_=until)
    return ApiCall("GET", target, parse_body(ClaimBody), wait_s=wait_s)


def delete_claim(ident: str, *, wait_s: float = 0.0, only_waiting: bool = False) -> ApiCall[ClaimBody]:
    """``DELETE /v1/claims/{id}``: its partition is removed, the claim ends; the response waits for that."""
    target = build_target("/v1/claims/{}", ident, wait=wait_text(wait_s), onlyWaiting=only_waiting)
    return ApiCall("DELETE", target, parse_body(ClaimBody), wait_s=wait_s)


def renew_claim(ident: str) -> ApiCall[ClaimBody]:
    """``POST /v1/claims/{id}/renew``: the lease restarts from now."""
    return ApiCall("POST", build_target("/v1/claims/{}/renew", ident), parse_body(ClaimBody))


def yield_claim(ident: str, why: str = "") -> ApiCall[ClaimBody]:
    """``POST /v1/claims/{id}/yield``; not repeatable: a second one is refused, or meets a later request to yield."""
    target = build_target("/v1/claims/{}/yield", ident)
    return ApiCall("POST", target, parse_body(ClaimBody), build_body(YieldRequest(why=why)), repeatable=False)


def checkpoint_claim(ident: str, at: str | None = None) -> ApiCall[ClaimBody]:
    """``POST /v1/claims/{id}/checkpoint``; without a time repeatable only where a later time does no harm."""
    target = build_target("/v1/claims/{}/checkpoint", ident)
    body = build_body(CheckpointRequest(at=at))
    return ApiCall("POST", target, parse_body(ClaimBody), body, repeatable=at is not None)


def explain_claim(ident: str, *, when: bool = False) -> ApiCall[ExplanationBody]:
    """``GET /v1/claims/{id}/explain``; with ``when`` also when it would start."""
    return ApiCall("GET", build_target("/v1/claims/{}/explain", ident, when=when), parse_body(ExplanationBody))


def estimate(request: EstimateRequest) -> ApiCall[EstimateBody]:
    """``POST /v1/estimate``: nothing changes."""
    return ApiCall("POST", "/v1/estimate", parse_body(EstimateBody), build_body(request))


def what_if(policy: str) -> ApiCall[WhatIfBody]:
    """``POST /v1/whatif``: nothing changes."""
    return ApiCall("POST", "/v1/whatif", parse_body(WhatIfBody), build_body(WhatIfRequest(policy=policy)))


def defragment(request: DefragmentRequest) -> ApiCall[DefragmentBody]:
    """``POST /v1/defragment``; a dry run changes nothing."""
    body = build_body(request)
    return ApiCall("POST", "/v1/defragment", parse_body(DefragmentBody), body, repeatable=request.dry_run)


def list_projects(after: str | None = None) -> ApiCall[ListPage[ProjectBody]]:
    """``GET /v1/projects``."""
    return ApiCall("GET", build_target("/v1/projects", limit=PAGE_ITEMS, continue_=after), parse_listing(ProjectBody))


def get_project(name: str) -> ApiCall[ProjectBody]:
    """``GET /v1/projects/{project}``."""
    return ApiCall("GET", build_target("/v1/projects/{}", name), parse_body(ProjectBody))


def set_project(name: str, request: ProjectRequest) -> ApiCall[ProjectBody]:
    """``PUT /v1/projects/{project}``; not repeatable: the second one would find the result of the first."""
    target = build_target("/v1/projects/{}", name)
    return ApiCall("PUT", target, parse_body(ProjectBody), build_body(request), repeatable=False)


def delete_project(name: str) -> ApiCall[None]:
    """``DELETE /v1/projects/{project}``; not repeatable: the second one would find nothing."""
    return ApiCall("DELETE", build_target("/v1/projects/{}", name), parse_nothing, repeatable=False)


def list_quotas(after: str | None = None) -> ApiCall[ListPage[QuotaBody]]:
    """``GET /v1/quotas``."""
    return ApiCall("GET", build_target("/v1/quotas", limit=PAGE_ITEMS, continue_=after), parse_listing(QuotaBody))


def get_binding(ident: str, *, wait_s: float = 0.0) -> ApiCall[BindingBody]:
    """``GET /v1/claims/{id}/binding``; the response waits until the claim is READY, at most ``wait_s``."""
    target = build_target("/v1/claims/{}/binding", ident, wait=wait_text(wait_s))
    return ApiCall("GET", target, parse_body(BindingBody), wait_s=wait_s)


def list_partitions(pool: str | None = None, after: str | None = None) -> ApiCall[ListPage[PartitionBody]]:
    """``GET /v1/partitions``."""
    return ApiCall(
        "GET",
        build_target("/v1/partitions", pool=pool, limit=PAGE_ITEMS, continue_=after),
        parse_listing(PartitionBody),
    )


def create_partition(request: PartitionRequest, key: str | None = None) -> ApiCall[ClaimBody]:
    """``POST /v1/partitions``: the claim that holds the partition; repeatable with an idempotency key."""
    return ApiCall(
        "POST", "/v1/partitions", parse_body(ClaimBody), build_body(request), key, repeatable=key is not None
    )


def get_partition(ident: str) -> ApiCall[PartitionBody]:
    """``GET /v1/partitions/{id}``."""
    return ApiCall("GET", build_target("/v1/partitions/{}", ident), parse_body(PartitionBody))


def delete_partition(ident: str, *, wait_s: float = 0.0) -> ApiCall[ClaimBody]:
    """``DELETE /v1/partitions/{id}``: the claim that held it, released; the response waits for its end."""
    target = build_target("/v1/partitions/{}", ident, wait=wait_text(wait_s))
    return ApiCall("DELETE", target, parse_body(ClaimBody), wait_s=wait_s)


def reset_partition(ident: str) -> ApiCall[PartitionBody]:
    """``POST /v1/partitions/{id}/reset``; not repeatable: a second reset could hit a job that has begun since."""
    return ApiCall("POST", build_target("/v1/partitions/{}/reset", ident), parse_body(PartitionBody), repeatable=False)


def list_runs(where: RunFilter = UNENDED_RUNS, after: str | None = None) -> ApiCall[ListPage[RunBody]]:
    """``GET /v1/runs``."""
    target = build_target(
        "/v1/runs", state=where.state, subject=where.subject, all=where.all, limit=PAGE_ITEMS, continue_=after
    )
    return ApiCall("GET", target, parse_listing(RunBody))


def create_run(request: RunRequest, key: str | None = None) -> ApiCall[RunBody]:
    """``POST /v1/runs``; repeatable with an idempotency key."""
    return ApiCall("POST", "/v1/runs", parse_body(RunBody), build_body(request), key, repeatable=key is not None)


def get_run(ident: str, *, wait_s: float = 0.0) -> ApiCall[RunBody]:
    """``GET /v1/runs/{id}``; with ``wait_s`` the response waits for the run's end."""
    return ApiCall(
        "GET", build_target("/v1/runs/{}", ident, wait=wait_text(wait_s)), parse_body(RunBody), wait_s=wait_s
    )


def cancel_run(ident: str, *, wait_s: float = 0.0) -> ApiCall[RunBody]:
    """``POST /v1/runs/{id}/cancel``; idempotent."""
    target = build_target("/v1/runs/{}/cancel", ident, wait=wait_text(wait_s))
    return ApiCall("POST", target, parse_body(RunBody), wait_s=wait_s)


def label_run(ident: str, request: LabelsRequest) -> ApiCall[RunBody]:
    """``POST /v1/runs/{id}/labels``; idempotent."""
    return ApiCall("POST", build_target("/v1/runs/{}/labels", ident), parse_body(RunBody), build_body(request))


def prioritise_run(ident: str, priority: int) -> ApiCall[RunBody]:
    """``POST /v1/runs/{id}/priority``; idempotent."""
    body = build_body(PriorityRequest(priority=priority))
    return ApiCall("POST", build_target("/v1/runs/{}/priority", ident), parse_body(RunBody), body)


def list_appliance_jobs(where: ApplianceFilter, after: str | None = None) -> ApiCall[ListPage[ApplianceJobBody]]:
    """``GET /v1/appliance/jobs``."""
    target = build_target(
        "/v1/appliance/jobs",
        state=where.state,
        subject=where.subject,
        kind=where.kind,
        workflow=where.workflow,
        label=tuple(f"{key}={value}" for key, value in where.labels),
        all=where.all,
        limit=PAGE_ITEMS,
        continue_=after,
    )
    return ApiCall("GET", target, parse_listing(ApplianceJobBody))


def get_logs(ident: str, *, task: int | None = None, follow: bool = False) -> ApiCall[None]:
    """``GET /v1/runs/{id}/logs``: a stream of bytes."""
    return ApiCall("GET", build_target("/v1/runs/{}/logs", ident, task=task, follow=follow), parse_nothing)


def list_keys() -> ApiCall[ListPage[KeyBody]]:
    """``GET /v1/keys``."""
    return ApiCall("GET", "/v1/keys", parse_listing(KeyBody))


def create_key(request: KeyRequest) -> ApiCall[KeyBody]:
    """``POST /v1/keys``; not repeatable: the secret of a lost response is lost with it."""
    return ApiCall("POST", "/v1/keys", parse_body(KeyBody), build_body(request), repeatable=False)


def rotate_key(ident: str, request: RotateRequest) -> ApiCall[KeyBody]:
    """``POST /v1/keys/{id}/rotate``; not repeatable: the secret of a lost response is lost with it."""
    target = build_target("/v1/keys/{}/rotate", ident)
    return ApiCall("POST", target, parse_body(KeyBody), build_body(request), repeatable=False)


def delete_key(ident: str) -> ApiCall[None]:
    """``DELETE /v1/keys/{id}``: revokes it at once."""
    return ApiCall("DELETE", build_target("/v1/keys/{}", ident), parse_nothing)


def list_events(
    where: EventFilter = ALL_EVENTS, *, after: int = 0, limit: int | None = None
) -> ApiCall[ListPage[EventBody]]:
    """``GET /v1/events``: events with a greater sequence number, in order."""
    target = build_target("/v1/events", after=after or None, limit=limit, **_event_query(where))
    return ApiCall("GET", target, parse_listing(EventBody))


def watch_events(where: EventFilter = ALL_EVENTS) -> ApiCall[None]:
    """``GET /v1/events?watch=1``: a stream of server-sent events, from now on (or after the ``Last-Event-ID`` sent)."""
    return ApiCall("GET", build_target("/v1/events", watch=1, **_event_query(where)), parse_nothing)


def _event_query(where: EventFilter) -> dict[str, object]:
    return {"claim": where.claim, "run": where.run, "name": where.names}
