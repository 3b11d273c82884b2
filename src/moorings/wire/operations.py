"""The API's operations, one row each: method, path, shapes, callers, errors.

The routes (``api.routes``), the client, the OpenAPI document and the reference pages are made from these rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from moorings.core.model.errors import MooringsError
from moorings.wire.codec import decode
from moorings.wire.forecasts import DefragmentBody, DefragmentRequest, WhatIfBody, WhatIfRequest
from moorings.wire.shapes import (
    ApplianceJobBody,
    BindingBody,
    CallerBody,
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
    PauseRequest,
    PoolBody,
    PriorityRequest,
    ProjectBody,
    ProjectRequest,
    QueueBody,
    QueueRequest,
    QuotaBody,
    ResumeRequest,
    RotateRequest,
    RunBody,
    RunReportBody,
    RunReportRequest,
    RunRequest,
    SubmittedJobsBody,
    SubmittedJobsRequest,
    TerminalBody,
    VersionBody,
    YieldRequest,
)

T = TypeVar("T")
ShapeT = TypeVar("ShapeT")

KEY_HEADER = "Idempotency-Key"
NOT_A_CONTROLLER_HINT = "is this the address of a controller?"


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """One page of a list; ``after`` continues it, None at its end."""

    items: tuple[T, ...]
    after: str | None = None


@dataclass(frozen=True, slots=True)
class ResponseSpec(Generic[T]):
    """A success response.

    Attributes:
        description: what it is, in a few words.
        parse: parses its JSON; for a stream or an empty response never called.
        status: HTTP status.
        kind: ``Claim`` or ``ClaimList``, in the response; empty if it has none.
        shape: the wire shape in it; None: it has none.
    """

    description: str
    parse: Callable[[object], T]
    status: int = 200
    kind: str = ""
    shape: type | None = None

    @property
    def is_list(self) -> bool:
        """Whether it is one page of a list."""
        return self.kind.endswith("List")


def parse_body(shape: type[ShapeT]) -> Callable[[object], ShapeT]:
    """A parser for one object."""
    return lambda data: decode(shape, data)


def _parse_page(shape: type[ShapeT]) -> Callable[[object], ListPage[ShapeT]]:
    def parse(data: object) -> ListPage[ShapeT]:
        if not isinstance(data, dict) or not isinstance(data.get("items"), list):
            raise MooringsError("body.invalid", "the answer is not a list", hint=NOT_A_CONTROLLER_HINT)
        items = tuple(decode(shape, item, where=f"items[{index}]") for index, item in enumerate(data["items"]))
        return ListPage(items, data.get("continue") or None)

    return parse


def _parse_object(data: object) -> Mapping[str, object]:
    return data if isinstance(data, dict) else {}


def _parse_nothing(_data: object) -> None:
    pass


def object_response(kind: str, shape: type[ShapeT], *, status: int = 200) -> ResponseSpec[ShapeT]:
    """A response with one ``shape``, and ``apiVersion`` and ``kind`` beside its fields."""
    return ResponseSpec(f"the {kind.lower()}", parse_body(shape), status, kind, shape)


def list_response(
    kind: str, shape: type[ShapeT], description: str = "one page of the list"
) -> ResponseSpec[ListPage[ShapeT]]:
    """A response with one page of a list of ``shape``."""
    return ResponseSpec(description, _parse_page(shape), kind=f"{kind}List", shape=shape)


def json_response(description: str) -> ResponseSpec[Mapping[str, object]]:
    """A response with a JSON object that has no shape."""
    return ResponseSpec(description, _parse_object)


def text_response(description: str) -> ResponseSpec[None]:
    """A response that is text, as long as it comes."""
    return ResponseSpec(description, _parse_nothing)


NO_CONTENT = ResponseSpec("done; there is nothing to say", _parse_nothing, 204)


@dataclass(frozen=True, slots=True)
class Operation(Generic[T]):
    """One method of one path.

    Attributes:
        name: OpenAPI's ``operationId``, and the name of the serving function.
        method: GET, POST, PUT or DELETE.
        path: with ``{names}``.
        response: the success response.
        callers: who may call it, in words.
        errors: the codes of its own errors, with spaces between.
        body: the shape of the request's body; None: it has none.
        is_repeatable: whether sending it again after a lost response does no harm, also without an idempotency key.
        takes_idempotency_key: whether it takes an idempotency key.
        is_open: whether it is served without an access key.
        after_expiry: whether it accepts an access key that has expired.
        takes_run_token: whether it accepts the token of the run in its path.
    """

    name: str
    method: str
    path: str
    response: ResponseSpec[T]
    callers: str
    errors: str = ""
    body: type | None = None
    is_repeatable: bool = True
    takes_idempotency_key: bool = False
    is_open: bool = False
    after_expiry: bool = False
    takes_run_token: bool = False

    @property
    def tag(self) -> str:
        """The resource it belongs to."""
        parts = self.path.split("/")
        return parts[2] if parts[1] == "v1" else "controller"


EVERYBODY = "everybody, without a key"
READERS = "every key"
LISTERS = "every key, for what it sees"
SEERS = "the keys that see it"
LOOKERS = "the keys that see it; viewers, without names"
AGENTS = "the agent whose key acts for that queue, and admins"
HOLDERS = "whoever may act for its owner; admins"
STARTERS = "the subject that started it; admins"
MANAGERS = "the subject that started it; admins of its project; admins"
ADMINS = "admins"


# ------------------------------------------------------------------------------------------------------------- claims

CREATE_CLAIM = Operation(
    "create_claim",
    "POST",
    "/v1/claims",
    object_response("Claim", ClaimBody, status=201),
    "admins, users and agents, for owners that their key may act for",
    "owner.denied owner.invalid name.invalid claim.name_taken claim.no_room claim.too_large "
    "claim.size_not_allowed claim.gcds_invalid kind.unknown pool.unknown key.conflict claim.archived "
    "priority.denied project.unknown project.not_member project.limit quota.waiting",
    body=ClaimRequest,
    is_repeatable=False,
    takes_idempotency_key=True,
)
RELEASE_CLAIM = Operation(
    "release_claim",
    "DELETE",
    "/v1/claims/{id}",
    object_response("Claim", ClaimBody),
    f"{HOLDERS}; admins of its project",
    "claim.unknown claim.held claim.held_by_run owner.denied",
)
GET_CLAIM = Operation(
    "get_claim", "GET", "/v1/claims/{id}", object_response("Claim", ClaimBody), LOOKERS, "claim.unknown"
)
LIST_CLAIMS = Operation(
    "list_claims", "GET", "/v1/claims", list_response("Claim", ClaimBody), LISTERS, "page.invalid pool.unknown"
)
# Also by an expired key: it only says that its holder is alive, and an expired lease would end a job.
RENEW_CLAIM = Operation(
    "renew_claim",
    "POST",
    "/v1/claims/{id}/renew",
    object_response("Claim", ClaimBody),
    HOLDERS,
    "claim.unknown claim.no_lease owner.denied",
    after_expiry=True,
)
YIELD_CLAIM = Operation(
    "yield_claim",
    "POST",
    "/v1/claims/{id}/yield",
    object_response("Claim", ClaimBody),
    HOLDERS,
    "claim.unknown claim.ended claim.not_asked claim.held_by_run owner.denied",
    body=YieldRequest,
    is_repeatable=False,  # a second one is refused, or meets a later request to yield
)
CHECKPOINT_CLAIM = Operation(
    "checkpoint_claim",
    "POST",
    "/v1/claims/{id}/checkpoint",
    object_response("Claim", ClaimBody),
    HOLDERS,
    "claim.unknown claim.invalid owner.denied",
    body=CheckpointRequest,
    is_repeatable=False,  # a second one without a time reports a later one
)
EXPLAIN_CLAIM = Operation(
    "explain_claim",
    "GET",
    "/v1/claims/{id}/explain",
    object_response("Explanation", ExplanationBody),
    LOOKERS,
    "claim.unknown forecast.busy",
)
GET_BINDING = Operation(
    "get_binding",
    "GET",
    "/v1/claims/{id}/binding",
    object_response("Binding", BindingBody),
    HOLDERS,
    "claim.unknown claim.not_ready owner.denied driver.unavailable",
)

# --------------------------------------------------------------------------------------------------------------- runs

CREATE_RUN = Operation(
    "create_run",
    "POST",
    "/v1/runs",
    object_response("Run", RunBody, status=201),
    "admins and users",
    "auth.denied checkpoint.invalid run.unknown "
    "job.invalid engine.unknown engine.rejected claim.too_large key.conflict label.invalid "
    "priority.denied claim.other_shape claim.held_by_run run.archived project.unknown project.not_member "
    "project.limit quota.waiting owner.denied run.ended run.never_starts",
    body=RunRequest,
    is_repeatable=False,
    takes_idempotency_key=True,
)
GET_RUN = Operation("get_run", "GET", "/v1/runs/{id}", object_response("Run", RunBody), SEERS, "run.unknown")
LIST_RUNS = Operation("list_runs", "GET", "/v1/runs", list_response("Run", RunBody), LISTERS, "page.invalid")
CANCEL_RUN = Operation(
    "cancel_run", "POST", "/v1/runs/{id}/cancel", object_response("Run", RunBody), MANAGERS, "run.unknown owner.denied"
)
PAUSE_RUN = Operation(
    "pause_run",
    "POST",
    "/v1/runs/{id}/pause",
    object_response("Run", RunBody),
    MANAGERS,
    "run.unknown run.ended run.not_pausable owner.denied",
    body=PauseRequest,
)
RESUME_RUN = Operation(
    "resume_run",
    "POST",
    "/v1/runs/{id}/resume",
    object_response("Run", RunBody),
    MANAGERS,
    "run.unknown run.ended run.not_paused checkpoint.invalid owner.denied project.unknown project.not_member "
    "project.limit claim.too_large quota.waiting",
    body=ResumeRequest,
    is_repeatable=False,
)
LABEL_RUN = Operation(
    "label_run",
    "POST",
    "/v1/runs/{id}/labels",
    object_response("Run", RunBody),
    STARTERS,
    "run.unknown run.ended label.invalid owner.denied",
    body=LabelsRequest,
)
PRIORITISE_RUN = Operation(
    "prioritise_run",
    "POST",
    "/v1/runs/{id}/priority",
    object_response("Run", RunBody),
    f"{MANAGERS}; P0 of an appliance only admins",
    "run.unknown run.ended run.queued_elsewhere priority.denied owner.denied",
    body=PriorityRequest,
)
REPORT_RUN = Operation(
    "report_run",
    "POST",
    "/v1/runs/{id}/report",
    object_response("RunReport", RunReportBody),
    "the holder of the run's token; the subject that started it; admins",
    "run.unknown run.ended report.invalid owner.denied",
    body=RunReportRequest,
    takes_run_token=True,
)
GET_LOGS = Operation(
    "get_logs",
    "GET",
    "/v1/runs/{id}/logs",
    text_response("the output, as it is"),
    SEERS,
    "run.unknown run.not_running engine.rejected",
)
GET_TERMINAL = Operation(
    "get_terminal",
    "GET",
    "/v1/runs/{id}/terminal",
    object_response("Terminal", TerminalBody),
    MANAGERS,
    "run.unknown run.not_running engine.rejected engine.unavailable owner.denied",
)

# --------------------------------------------------------------------------------------------------------- partitions

LIST_PARTITIONS = Operation(
    "list_partitions",
    "GET",
    "/v1/partitions",
    list_response("Partition", PartitionBody),
    LISTERS,
    "page.invalid pool.unknown",
)
CREATE_PARTITION = Operation(
    "create_partition",
    "POST",
    "/v1/partitions",
    object_response("Claim", ClaimBody, status=201),
    "admins and users, for themselves",
    "owner.denied name.invalid claim.name_taken claim.too_large key.conflict",
    body=PartitionRequest,
    is_repeatable=False,
    takes_idempotency_key=True,
)
GET_PARTITION = Operation(
    "get_partition",
    "GET",
    "/v1/partitions/{id}",
    object_response("Partition", PartitionBody),
    LOOKERS,
    "partition.unknown",
)
DELETE_PARTITION = Operation(
    "delete_partition",
    "DELETE",
    "/v1/partitions/{id}",
    object_response("Claim", ClaimBody),
    HOLDERS,
    "partition.unknown claim.held_by_run owner.denied",
)
RESET_PARTITION = Operation(
    "reset_partition",
    "POST",
    "/v1/partitions/{id}/reset",
    object_response("Partition", PartitionBody),
    HOLDERS,
    "partition.unknown partition.not_active owner.denied",
    is_repeatable=False,  # a second reset could hit a job that has begun since
)

# ------------------------------------------------------------------------------------------------------------- events

LIST_EVENTS = Operation(
    "list_events",
    "GET",
    "/v1/events",
    list_response("Event", EventBody, "one page of the log, or the stream"),
    LISTERS,
    "page.invalid events.gone controller.busy",
)

# -------------------------------------------------------------------------------------------------------------- pools

LIST_POOLS = Operation("list_pools", "GET", "/v1/pools", list_response("Pool", PoolBody), READERS, "page.invalid")
GET_POOL = Operation("get_pool", "GET", "/v1/pools/{pool}", object_response("Pool", PoolBody), READERS, "pool.unknown")
GET_CAPACITY = Operation(
    "get_capacity",
    "GET",
    "/v1/pools/{pool}/capacity",
    object_response("Capacity", CapacityBody),
    READERS,
    "pool.unknown page.invalid",
)

# ------------------------------------------------------------------------------------------------------------ devices

LIST_DEVICES = Operation(
    "list_devices", "GET", "/v1/devices", list_response("Device", DeviceBody), LISTERS, "page.invalid pool.unknown"
)
GET_DEVICE = Operation(
    "get_device", "GET", "/v1/devices/{id}", object_response("Device", DeviceBody), LISTERS, "device.unknown"
)
DRAIN_DEVICE = Operation(
    "drain_device",
    "POST",
    "/v1/devices/{id}/drain",
    object_response("Device", DeviceBody),
    ADMINS,
    "device.unknown auth.denied",
    body=DrainRequest,
)
RESUME_DEVICE = Operation(
    "resume_device",
    "POST",
    "/v1/devices/{id}/resume",
    object_response("Device", DeviceBody),
    ADMINS,
    "device.unknown auth.denied state.illegal_move",
    is_repeatable=False,  # a second one is refused
)

# --------------------------------------------------------------------------------------------------------------- keys

LIST_KEYS = Operation("list_keys", "GET", "/v1/keys", list_response("Key", KeyBody), ADMINS, "auth.denied")
CREATE_KEY = Operation(
    "create_key",
    "POST",
    "/v1/keys",
    object_response("Key", KeyBody, status=201),
    ADMINS,
    "auth.denied key.invalid owner.invalid",
    body=KeyRequest,
    is_repeatable=False,  # the secret of a lost response is lost with it
)
ROTATE_KEY = Operation(
    "rotate_key",
    "POST",
    "/v1/keys/{id}/rotate",
    object_response("Key", KeyBody),
    f"{ADMINS}; everybody the key that is shown",
    "auth.denied key.invalid key.unknown key.replaced",
    body=RotateRequest,
    is_repeatable=False,  # the secret of a lost response is lost with it
)
REVOKE_KEY = Operation("revoke_key", "DELETE", "/v1/keys/{id}", NO_CONTENT, ADMINS, "auth.denied key.unknown")

# ------------------------------------------------------------------------------------------------------------- queues

LIST_QUEUES = Operation("list_queues", "GET", "/v1/queues", list_response("Queue", QueueBody), LISTERS, "page.invalid")
TELL_QUEUE = Operation(
    "tell_queue",
    "POST",
    "/v1/queues",
    object_response("Queue", QueueBody),
    AGENTS,
    "queue.invalid queue.taken owner.invalid owner.denied",
    body=QueueRequest,
)
GET_QUEUE = Operation(
    "get_queue",
    "GET",
    "/v1/queues/{kind}/{cluster}",
    object_response("Queue", QueueBody),
    AGENTS,
    "queue.unknown queue.taken owner.denied",
)

REPORT_JOBS = Operation(
    "report_jobs",
    "POST",
    "/v1/queues/{kind}/{cluster}/jobs",
    object_response("SubmittedJobs", SubmittedJobsBody),
    AGENTS,
    "report.invalid queue.invalid owner.invalid owner.denied",
    body=SubmittedJobsRequest,
)

# ----------------------------------------------------------------------------------------------------------- projects

LIST_PROJECTS = Operation(
    "list_projects",
    "GET",
    "/v1/projects",
    list_response("Project", ProjectBody),
    f"{LISTERS}; who the members are only admins and they themselves",
    "page.invalid",
)
GET_PROJECT = Operation(
    "get_project",
    "GET",
    "/v1/projects/{project}",
    object_response("Project", ProjectBody),
    f"{LISTERS}; who the members are only admins and they themselves",
    "project.unknown",
)
SET_PROJECT = Operation(
    "set_project",
    "PUT",
    "/v1/projects/{project}",
    object_response("Project", ProjectBody),
    f"{ADMINS}; its members also the admins of the project",
    "auth.denied project.invalid project.unknown project.not_feasible project.exists project.changed pool.unknown",
    body=ProjectRequest,
    is_repeatable=False,  # the second one would find the result of the first
)
DELETE_PROJECT = Operation(
    "delete_project",
    "DELETE",
    "/v1/projects/{project}",
    NO_CONTENT,
    ADMINS,
    "auth.denied project.unknown project.has_children project.in_use",
    is_repeatable=False,  # the second one would find nothing
)

# ------------------------------------------------------------------------------------------------------------- quotas

LIST_QUOTAS = Operation("list_quotas", "GET", "/v1/quotas", list_response("Quota", QuotaBody), LISTERS, "page.invalid")

# ----------------------------------------------------------------------------------------------------------- estimate

ESTIMATE = Operation(
    "estimate",
    "POST",
    "/v1/estimate",
    object_response("Estimate", EstimateBody),
    READERS,
    "claim.size_not_allowed claim.too_large kind.unknown pool.unknown project.unknown forecast.busy",
    body=EstimateRequest,
)

# ------------------------------------------------------------------------------------------------------------- whatif

WHAT_IF = Operation(
    "what_if",
    "POST",
    "/v1/whatif",
    object_response("WhatIf", WhatIfBody),
    READERS,
    "policy.invalid forecast.busy",
    body=WhatIfRequest,
)

# --------------------------------------------------------------------------------------------------------- defragment

DEFRAGMENT = Operation(
    "defragment",
    "POST",
    "/v1/defragment",
    object_response("Defragment", DefragmentBody),
    f"{ADMINS}; with `dryRun` also users, agents and viewers",
    "auth.denied claim.unknown claim.held claim.size_not_allowed pool.unknown room.is_free room.not_found "
    "room.too_costly",
    body=DefragmentRequest,
    is_repeatable=False,
)

# ---------------------------------------------------------------------------------------------------------- appliance

LIST_APPLIANCE_JOBS = Operation(
    "list_appliance_jobs",
    "GET",
    "/v1/appliance/jobs",
    list_response("ApplianceJob", ApplianceJobBody),
    LISTERS,
    "page.invalid",
)

# ------------------------------------------------------------------------------------------------------------- doctor

GET_FINDINGS = Operation(
    "get_findings", "GET", "/v1/doctor", object_response("Findings", FindingsBody), ADMINS, "auth.denied"
)

# ------------------------------------------------------------------------------------------------------------- whoami

WHO_AM_I = Operation("who_am_i", "GET", "/v1/whoami", object_response("Caller", CallerBody), READERS)

# ----------------------------------------------------------------------------------------------------- the controller

GET_HEALTH = Operation("get_health", "GET", "/healthz", json_response("it lives"), EVERYBODY, is_open=True)
GET_LIVENESS = Operation("get_liveness", "GET", "/livez", json_response("it lives"), EVERYBODY, is_open=True)
GET_READINESS = Operation(
    "get_readiness",
    "GET",
    "/readyz",
    json_response("it is ready"),
    EVERYBODY,
    "store.unavailable driver.unavailable",
    is_open=True,
)
GET_VERSION = Operation(
    "get_version", "GET", "/version", object_response("Version", VersionBody), EVERYBODY, is_open=True
)
GET_DOCUMENT = Operation("get_document", "GET", "/openapi.json", json_response("the document"), EVERYBODY, is_open=True)
GET_METRICS = Operation("get_metrics", "GET", "/metrics", text_response("the numbers"), EVERYBODY, is_open=True)


OPERATIONS: tuple[Operation[Any], ...] = (
    CREATE_CLAIM,
    RELEASE_CLAIM,
    GET_CLAIM,
    LIST_CLAIMS,
    RENEW_CLAIM,
    YIELD_CLAIM,
    CHECKPOINT_CLAIM,
    EXPLAIN_CLAIM,
    GET_BINDING,
    CREATE_RUN,
    GET_RUN,
    LIST_RUNS,
    CANCEL_RUN,
    PAUSE_RUN,
    RESUME_RUN,
    LABEL_RUN,
    PRIORITISE_RUN,
    REPORT_RUN,
    GET_LOGS,
    GET_TERMINAL,
    LIST_PARTITIONS,
    CREATE_PARTITION,
    GET_PARTITION,
    DELETE_PARTITION,
    RESET_PARTITION,
    LIST_EVENTS,
    LIST_POOLS,
    GET_POOL,
    GET_CAPACITY,
    LIST_DEVICES,
    GET_DEVICE,
    DRAIN_DEVICE,
    RESUME_DEVICE,
    LIST_KEYS,
    CREATE_KEY,
    ROTATE_KEY,
    REVOKE_KEY,
    LIST_QUEUES,
    TELL_QUEUE,
    GET_QUEUE,
    REPORT_JOBS,
    LIST_PROJECTS,
    GET_PROJECT,
    SET_PROJECT,
    DELETE_PROJECT,
    LIST_QUOTAS,
    ESTIMATE,
    WHAT_IF,
    DEFRAGMENT,
    LIST_APPLIANCE_JOBS,
    GET_FINDINGS,
    WHO_AM_I,
    GET_HEALTH,
    GET_LIVENESS,
    GET_READINESS,
    GET_VERSION,
    GET_DOCUMENT,
    GET_METRICS,
)
