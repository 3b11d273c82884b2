"""Query parameters: the meaning, the bounds and the parsing of each; used by the routes and by the document.

Every invalid value is refused, and so is an unknown name: a misspelt ``?wiat=30s`` that is silently ignored is a bug
that takes an hour to find.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, NoReturn, TypeVar
from urllib.parse import parse_qsl

from moorings.api.limits import WAIT_S_MAX
from moorings.controller.service import WAIT_TARGETS
from moorings.core.model.claims import ENDED as CLAIM_ENDED
from moorings.core.model.claims import SIZE_MAX, ClaimState
from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import parse_duration_s
from moorings.core.model.queue_reports import INSTANCE_ID_CHARS
from moorings.core.model.timestamps import Timestamp
from moorings.ports.store import Seq
from moorings.wire.codec import parse_time
from moorings.workloads.appliance import ApplianceJobType
from moorings.workloads.jobs import TASKS_MAX
from moorings.workloads.runs import ENDED as RUN_ENDED
from moorings.workloads.runs import RunState

T = TypeVar("T")
D = TypeVar("D")
StateT = TypeVar("StateT", bound=StrEnum)

VALUE_CHARS_MAX = 500
VALUES_MAX = 50
LIMIT_MAX = 1000
SEQ_MAX = (1 << 63) - 1

_SECONDS = re.compile(r"\d{1,6}(\.\d{1,6})?")
_NUMBER = re.compile(r"\d{1,19}")
_EVENT_NAME = re.compile(r"[a-z_]{1,40}\.([a-z_]{1,40}|\*)")
_TEXT = "^[ -~]+$"  # no resource has a name beyond ASCII, and look-alikes need not be searched for
_BASE64 = "^[A-Za-z0-9_-]+$"
# As ``parse_wait_s`` reads it, but for the largest one, which no pattern can express.
_WAIT = "|".join(
    rf"^ *{form} *$"
    for form in (
        r"[0-9]{1,12}(\.[0-9]{1,6})?(ms|s|m|h|d|w)",
        r"([0-9]{1,6}-)?[0-9]{1,9}(:[0-9]{1,6}){0,2}",
        r"[0-9]{1,6}\.[0-9]{1,6}",
    )
)
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Parameter(Generic[T]):
    """One query parameter.

    Attributes:
        name: as in the address.
        description: one sentence, for the document.
        schema: JSON Schema of one value.
        parse: parses the values sent under that name (none: the default).
        repeated: whether it may be given several times.
        required: whether it must be given.
    """

    name: str
    description: str
    schema: Mapping[str, object]
    parse: Callable[[Sequence[str]], T]
    repeated: bool = False
    required: bool = False


def read_query(query: bytes, known: Sequence[Parameter[Any]]) -> dict[str, list[str]]:
    """The values of a query by name.

    Raises:
        MooringsError: ``page.invalid`` (malformed, a name not in ``known``, or given twice).
    """
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=VALUES_MAX,
        )
    except ValueError:
        raise MooringsError(
            "page.invalid", "the query cannot be read", hint="write NAME=VALUE&NAME=VALUE, in UTF-8"
        ) from None
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        parameter = next((item for item in known if item.name == name), None)
        if parameter is None:
            allowed = ", ".join(item.name for item in known) or "none"
            raise MooringsError(
                "page.invalid", f"{name[:40]!r} is no query value of this address", hint=f"allowed: {allowed}"
            )
        if name in found and not parameter.repeated:
            raise MooringsError("page.invalid", f"{name} is given twice", hint="give it once")
        if len(value) > VALUE_CHARS_MAX or not value.isprintable():
            _refuse(name, f"be printable and at most {VALUE_CHARS_MAX} characters long", value)
        found.setdefault(name, []).append(value)
    return found


def _refuse(name: str, wanted: str, value: str) -> NoReturn:
    raise MooringsError("page.invalid", f"{name} must {wanted}, not {value[:40]!r}")


def _one(read: Callable[[str], T], default: D) -> Callable[[Sequence[str]], T | D]:
    return lambda values: read(values[0]) if values else default


def _number(name: str, low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not _NUMBER.fullmatch(text) or not text.isascii() or not low <= int(text) <= high:
            _refuse(name, f"be a whole number from {low} to {high}", text)
        return int(text)

    return read


def _time(name: str) -> Callable[[str], Timestamp]:
    def read(text: str) -> Timestamp:
        try:
            return parse_time(text)
        except MooringsError:
            _refuse(name, "be a time with its zone, as 2026-01-31T12:00:00Z", text)

    return read


def _choice(name: str, allowed: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in allowed:
            _refuse(name, f"be one of {', '.join(allowed)}", text)
        return text

    return read


def _flag(name: str, description: str) -> Parameter[bool]:
    def read(text: str) -> bool:
        if text not in _FLAGS:
            _refuse(name, "be true or false", text)
        return _FLAGS[text]

    return Parameter(name, description, {"type": "boolean", "default": False}, _one(read, False))


def _text(name: str, description: str, pattern: str = _TEXT) -> Parameter[str | None]:
    def read(text: str) -> str:
        if not text or not text.isascii():
            _refuse(name, "be ASCII and not be empty", text)
        return text

    schema = {"type": "string", "minLength": 1, "maxLength": VALUE_CHARS_MAX, "pattern": pattern}
    return Parameter(name, description, schema, _one(read, None))


def _states(kind: type[StateT], what: str) -> Parameter[frozenset[StateT] | None]:
    allowed = tuple(kind)

    def take(values: Sequence[str]) -> frozenset[StateT] | None:
        read = _choice("state", allowed)
        return frozenset(kind(read(value)) for value in values) or None

    schema = {"type": "string", "enum": list(allowed)}
    return Parameter("state", f"Only {what} in this state.", schema, take, repeated=True)


def parse_wait_s(text: str) -> float:
    """Seconds in a wait: ``30s``, ``5m``, or a plain number of seconds.

    Raises:
        MooringsError: ``duration.invalid``.
    """
    hint = "write 30s, 5m or a number of seconds; at most 10m"
    if not text.isascii():
        raise MooringsError("duration.invalid", f"{text[:40]!r} is not a duration", hint=hint)
    text = text.strip()
    seconds = float(text) if _SECONDS.fullmatch(text) else parse_duration_s(text, bare_s=1.0)
    if seconds > WAIT_S_MAX:
        raise MooringsError("duration.invalid", f"a wait of {text[:40]} is too long", hint=hint)
    return seconds


def _labels(values: Sequence[str]) -> tuple[tuple[str, str], ...]:
    pairs = [tuple(value.partition("=")) for value in values]
    for value, (key, equals, _) in zip(values, pairs, strict=True):
        if not equals or not key or not value.isascii():
            _refuse("label", "be KEY=VALUE", value)
    return tuple((key, value) for key, _, value in pairs)


def _event_names(values: Sequence[str]) -> tuple[str, ...]:
    for value in values:
        if not _EVENT_NAME.fullmatch(value):
            _refuse("name", "be an event's name, as claim.ready or claim.*", value)
    return tuple(values)


WAIT = Parameter(
    "wait",
    "How long the answer may be held until what is waited for is there (`30s`, `5m` or seconds; at most 10 minutes). "
    "When the time is up the answer tells how things stand.",
    {"type": "string", "default": "0s", "examples": ["30s"], "maxLength": VALUE_CHARS_MAX, "pattern": _WAIT},
    _one(parse_wait_s, 0.0),
)
FOR = Parameter(
    "for",
    "What `wait` waits for: a partition is being made, it may be used, or the claim has ended.",
    {"type": "string", "enum": list(WAIT_TARGETS), "default": "READY"},
    _one(_choice("for", tuple(WAIT_TARGETS)), "READY"),
)
LIMIT = Parameter(
    "limit",
    "How many items at most.",
    {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": 100},
    _one(_number("limit", 1, LIMIT_MAX), 100),
)
CONTINUE = _text("continue", "What the page before gave as `continue`.", _BASE64)
PAGING: tuple[Parameter[Any], ...] = (LIMIT, CONTINUE)

CLAIM_STATES = _states(ClaimState, "claims")
CLAIMS_UNENDED = frozenset(ClaimState) - CLAIM_ENDED
RUN_STATES = _states(RunState, "runs")
RUNS_UNENDED = frozenset(RunState) - RUN_ENDED
ALL = _flag("all", "Also those that have ended.")
APPLIANCE_KIND = Parameter(
    "kind",
    "Only jobs that compile, or only jobs that execute.",
    {"type": "string", "enum": list(ApplianceJobType)},
    _one(lambda text: ApplianceJobType(_choice("kind", tuple(ApplianceJobType))(text)), None),
)
WORKFLOW = _text("workflow", "Only jobs of this workflow.")
LABELS = Parameter(
    "label",
    "Only jobs with this label, `KEY=VALUE`; with all of them, if several are given.",
    {"type": "string", "maxLength": VALUE_CHARS_MAX, "pattern": "^[ -<>-~]+=[ -~]*$"},
    _labels,
    repeated=True,
)
OWNER_PREFIX = _text("ownerPrefix", "Only of owners that begin with this.")
ONLY_WAITING = _flag(
    "onlyWaiting", "Release it only if it holds nothing yet; else nothing changes, and the answer is `claim.held`."
)
WHEN = _flag("when", "Also when it would start, which takes a moment; only of a claim that waits.")
SUBJECT = _text("subject", "Only those this subject made.")
ARRAY = _text("array", "Only the elements of this array.")
POOL = _text("pool", "Only of this pool.")

VERSION = _text("version", "The version that is known already: `wait` waits for another one.")
INSTANCE = _text(
    "instance",
    "As which instance of that scheduler the caller acts: while the list of another one is believed, it is refused.",
    f"^[0-9a-f]{{{INSTANCE_ID_CHARS}}}$",
)

SIZE = Parameter(
    "size",
    "Devices of a partition.",
    {"type": "integer", "minimum": 1, "maximum": SIZE_MAX},
    _one(_number("size", 1, SIZE_MAX), None),
    required=True,
)
TASK = Parameter(
    "task",
    "Only the output of the task with this rank.",
    {"type": "integer", "minimum": 0, "maximum": TASKS_MAX},
    _one(_number("task", 0, TASKS_MAX), None),
)
ATTENDED = _flag("attended", "Somebody is at its terminal, as the caller sees it.")
SINCE = Parameter(
    "since",
    "Only what was written after this time, and up to a few seconds before it.",
    {"type": "string", "format": "date-time"},
    _one(_time("since"), None),
)
FOLLOW = _flag("follow", "Go on until the run has ended.")

AFTER = Parameter(
    "after",
    "Only events with a greater sequence number.",
    {"type": "integer", "minimum": 0, "maximum": SEQ_MAX},
    _one(lambda text: Seq(_number("after", 0, SEQ_MAX)(text)), None),
)
WATCH = _flag(
    "watch", "Answer with server-sent events: those after `after` (default: from now on), then each as it happens."
)
CLAIM = _text("claim", "Only events of this claim.")
RUN = _text("run", "Only events of this run.")
EVENT_NAMES = Parameter(
    "name",
    "Only events of this name; `claim.*` for all of a noun.",
    {"type": "string", "pattern": f"^{_EVENT_NAME.pattern}$"},
    _event_names,
    repeated=True,
)
