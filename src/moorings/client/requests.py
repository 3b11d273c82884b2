"""A request of the API as a value, built from its row in ``wire.operations``, and its errors. No IO.

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

from moorings.core.model.errors import MooringsError
from moorings.wire.codec import decode, encode
from moorings.wire.operations import NOT_A_CONTROLLER_HINT, Operation
from moorings.wire.shapes import ProblemBody

T = TypeVar("T")

_PATH_VALUE = re.compile(r"\{\w*\}")
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
class ApiCall(Generic[T]):
    """One request, complete.

    Attributes:
        method: GET, POST, PUT or DELETE.
        target: path and query, encoded.
        parse: parses the JSON of a success response.
        body: the JSON to send; None for nothing.
        key: idempotency key; for one key the controller acts once.
        is_retryable: whether sending it again after a lost response does no harm.
        wait_s: how long the controller may hold its response.
    """

    method: str
    target: str
    parse: Callable[[object], T]
    body: bytes | None = None
    key: str | None = None
    is_retryable: bool = True
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
    array: str | None = None


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


def build_call(
    operation: Operation[T],
    *parts: str,
    body: object = None,
    key: str | None = None,
    wait_s: float = 0.0,
    is_repeatable: bool | None = None,
    **query: object,
) -> ApiCall[T]:
    """A request for an operation.

    Args:
        operation: its row in the table.
        parts: the values of its path, in order.
        body: the shape of its body.
        key: idempotency key.
        wait_s: how long the response may wait for what is asked for; sent as ``wait``.
        is_repeatable: whether a repetition does no harm, where that depends on the body.
        query: the values of its query, as ``build_target`` takes them.
    """
    again = operation.is_repeatable if is_repeatable is None else is_repeatable
    wait = f"{max(round(wait_s, 3), 0.001):g}s" if wait_s > 0 else None  # a controller takes six decimals at most
    return ApiCall(
        operation.method,
        build_target(operation.path, *parts, wait=wait, **query),
        operation.response.parse,
        None if body is None else build_body(body),
        key,
        is_retryable=again or key is not None,
        wait_s=wait_s,
    )


def build_target(path: str, *parts: str, **query: object) -> str:
    """``path`` with its ``{names}`` filled by quoted ``parts``, and the query values that are not None, False or empty.

    A name that is no Python name has ``_`` at its end: ``for_``.
    """
    values = iter(parts)
    filled = _PATH_VALUE.sub(lambda _: quote(next(values), safe=":@"), path)
    pairs: list[tuple[str, str]] = []
    for name, value in query.items():
        if value is None or value is False or value in ("", ()):
            continue
        items = value if isinstance(value, tuple) else (value,)
        pairs += [(name.rstrip("_"), "true" if item is True else str(item)) for item in items]
    return f"{filled}?{urlencode(pairs)}" if pairs else filled


def build_body(request: object) -> bytes:
    """A request shape as JSON bytes."""
    return json.dumps(encode(request), separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogateescape")


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
