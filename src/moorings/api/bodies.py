"""The wire shapes with pydantic's checks: strict types, no unknown fields, and a bound on everything.

The shapes are written once, in ``wire``, as plain dataclasses. Here each is wrapped in a subclass of itself whose
fields carry the bounds, so a body that passes *is* a ``wire`` shape, and the OpenAPI document gives the same limits.
Bounds keep hostile sizes away from the rest of the program; ``core`` decides what makes sense, with better error texts.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import ErrorDetails

from moorings.controller.personal_runs import LISTED_JOBS_MAX, UIDS_MAX
from moorings.core.model.access import Role
from moorings.core.model.claims import QueueMode
from moorings.core.model.errors import MooringsError
from moorings.core.model.projects import ALIASES_MAX, MEMBER_CHARS_MAX, MEMBERS_MAX, USER_LIMITS_MAX, WEIGHT_MAX
from moorings.core.model.topology import DEVICES_MAX
from moorings.wire.codec import to_camel_case
from moorings.workloads.appliance import ApplianceJobType
from moorings.workloads.arrays import ELEMENTS_MAX
from moorings.workloads.commands import COMMAND_ARGS_MAX, COMMAND_CHARS_MAX
from moorings.workloads.dependencies import AFTER_MAX
from moorings.workloads.environment import ENVIRONMENT_CHARS_MAX, SETUP_CHARS_MAX, SETUP_LINES_MAX
from moorings.workloads.labels import LABELS_MAX

T = TypeVar("T")

ERRORS_SHOWN_MAX = 3
NUMBER_MAX = (1 << 53) - 1  # the range that JSON carries exactly everywhere; it fits SQL's BIGINT
SECONDS_MAX = 1e9
ENTRIES_MAX = 4096
POLICY_CHARS_MAX = 65_536
FILE_CHARS_MAX = 262_144  # of one file in a report of a run
OUTPUT_CHARS_MAX = 524_288  # of one part of a task's output, in Base64
REPORTED_FILES_MAX = 65_536

_NO_NUL = r"^[^\x00]*$"
_Short = Annotated[str, Field(max_length=200, pattern=_NO_NUL)]
_Path = Annotated[str, Field(max_length=4096, pattern=_NO_NUL)]
_Whole = Annotated[int, Field(ge=-NUMBER_MAX, le=NUMBER_MAX)]
_Labels = Annotated[Mapping[_Short, _Short], Field(max_length=LABELS_MAX)]
_Amounts = Annotated[Mapping[_Short, _Whole], Field(max_length=64)]
_SizeText = Annotated[str, Field(pattern="^[1-9][0-9]{0,6}$")]
_Seconds = Annotated[float, Field(ge=0, le=SECONDS_MAX)]

# Fields with a bound that does not follow from their names. core and workloads check theirs again.
_Subject = Annotated[str, Field(max_length=MEMBER_CHARS_MAX, pattern=_NO_NUL)]
_Subjects: Any = Annotated[tuple[_Subject, ...], Field(max_length=MEMBERS_MAX)]
_BOUNDS: Mapping[tuple[str, str], object] = {
    ("AcceleratorsShape", "resources"): _Amounts | None,
    ("ApplianceShape", "kind"): Literal[tuple(kind.value for kind in ApplianceJobType)],
    ("ClaimRequest", "queue"): Literal[tuple(mode.value for mode in QueueMode)],
    ("ClaimRequest", "resources"): _Amounts,
    ("DrainRequest", "reason"): Annotated[str, Field(min_length=1, max_length=500, pattern=_NO_NUL)],
    ("JobShape", "command"): Annotated[
        tuple[Annotated[str, Field(max_length=COMMAND_CHARS_MAX)], ...],
        Field(min_length=1, max_length=COMMAND_ARGS_MAX),
    ],
    ("JobShape", "resume_args"): Annotated[
        tuple[Annotated[str, Field(max_length=COMMAND_CHARS_MAX)], ...], Field(max_length=COMMAND_ARGS_MAX)
    ]
    | None,
    ("JobShape", "setup"): Annotated[
        tuple[Annotated[str, Field(max_length=SETUP_CHARS_MAX)], ...], Field(max_length=SETUP_LINES_MAX)
    ]
    | None,
    ("JobShape", "after"): Annotated[tuple[_Short, ...], Field(max_length=AFTER_MAX)] | None,
    ("JobShape", "environment"): Annotated[
        Mapping[_Path, Annotated[str, Field(max_length=ENVIRONMENT_CHARS_MAX)]], Field(max_length=ENTRIES_MAX)
    ],
    ("JobShape", "labels"): _Labels | None,
    ("JobShape", "workdir"): _Path,
    ("JobShape", "checkpoint_directory"): _Path | None,
    ("JobShape", "image"): _Path | None,
    ("KeyRequest", "role"): Literal[tuple(role.value for role in Role)],
    ("LabelsRequest", "labels"): _Labels,
    ("LabelsRequest", "remove"): Annotated[tuple[_Short, ...], Field(max_length=LABELS_MAX)],
    ("ProjectRequest", "aliases"): Annotated[tuple[_Short, ...], Field(max_length=ALIASES_MAX)],
    ("ProjectRequest", "admins"): _Subjects | None,
    ("ProjectRequest", "members"): _Subjects,
    ("ProjectRequest", "user_limits"): Annotated[Mapping[_Subject, _Whole], Field(max_length=USER_LIMITS_MAX)] | None,
    ("ProjectRequest", "weight"): Annotated[float, Field(gt=0, le=WEIGHT_MAX)],
    ("ReportedFileShape", "text"): Annotated[str, Field(max_length=FILE_CHARS_MAX)],
    ("ReportedOutputShape", "data"): Annotated[str, Field(max_length=OUTPUT_CHARS_MAX)],
    ("RunReportRequest", "present"): Annotated[tuple[_Short, ...], Field(max_length=REPORTED_FILES_MAX)] | None,
    ("RunRequest", "spool_entries"): Annotated[tuple[_Short, ...], Field(max_length=ELEMENTS_MAX)] | None,
    ("SubmitterShape", "token_digests"): Annotated[tuple[_Short, ...], Field(max_length=ELEMENTS_MAX)] | None,
    ("SubmittedJobsRequest", "uids"): Annotated[tuple[_Whole, ...], Field(max_length=UIDS_MAX)],
    ("ShareShape", "blocks"): Annotated[
        Mapping[_SizeText, Annotated[int, Field(ge=1, le=DEVICES_MAX)]], Field(min_length=1, max_length=ENTRIES_MAX)
    ],
    ("WhatIfRequest", "policy"): Annotated[str, Field(max_length=POLICY_CHARS_MAX)],
    ("TopologyShape", "blocks"): Annotated[tuple[_Path, ...], Field(max_length=ENTRIES_MAX)],
}
_NO_NULL: Any = Annotated[None, SkipJsonSchema()]  # type: ignore[type-arg] # generic for checkers only
_SCALARS: Mapping[object, object] = {str: _Short, int: _Whole, float: _Seconds}

_CONFIG = ConfigDict(
    strict=True,
    extra="forbid",
    alias_generator=to_camel_case,
    validate_by_alias=True,
    validate_by_name=False,
    allow_inf_nan=False,
    hide_input_in_errors=True,  # otherwise a job's environment could reach a log
)


@cache
def _wrapped(shape: type) -> type:
    """``shape`` with pydantic's rules; responses (``...Body``) are only described, so they carry no bounds."""
    hints = get_type_hints(shape)
    answer = shape.__name__.endswith("Body")
    columns = []
    for item in dataclasses.fields(cast("Any", shape)):
        kind = _response_type(hints[item.name]) if answer else _bounded(shape.__name__, item.name, hints[item.name])
        columns.append((item.name, kind, _defaults(item)))
    return dataclasses.make_dataclass(
        shape.__name__,
        columns,
        bases=(shape,),
        namespace={"__doc__": shape.__doc__, "__module__": shape.__module__, "__pydantic_config__": _CONFIG},
        frozen=True,
        slots=True,
        kw_only=True,
    )


def _defaults(item: dataclasses.Field[Any]) -> Any:  # noqa: ANN401 - what dataclasses.field gives is typed so
    if item.default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=item.default_factory)
    return dataclasses.field(default=item.default) if item.default is not dataclasses.MISSING else dataclasses.field()


def _bounded(shape: str, name: str, hint: Any) -> Any:  # noqa: ANN401 - type expressions
    if (shape, name) in _BOUNDS:
        return _BOUNDS[shape, name]
    if dataclasses.is_dataclass(hint):
        return _wrapped(cast("type", hint))
    if get_origin(hint) is tuple and dataclasses.is_dataclass(get_args(hint)[0]):
        kind = _wrapped(get_args(hint)[0])
        most = LISTED_JOBS_MAX if shape == "SubmittedJobsRequest" else ENTRIES_MAX
        return Annotated[tuple[kind, ...], Field(max_length=most)]  # type: ignore[valid-type] # computed
    if get_origin(hint) in (Union, UnionType):
        options = (option if option is NoneType else _bounded(shape, name, option) for option in get_args(hint))
        return Union[tuple(options)]  # noqa: UP007 - computed
    assert hint in _SCALARS or hint is bool, f"{shape}.{name} needs a bound"
    return _SCALARS.get(hint, hint)


def _response_type(hint: Any) -> Any:  # noqa: ANN401 - type expressions
    """The type in the document: our responses leave absent fields out, they never say null."""
    if dataclasses.is_dataclass(hint):
        return _wrapped(cast("type", hint))
    if get_origin(hint) in (Union, UnionType):
        kinds = tuple(_response_type(option) for option in get_args(hint) if option is not NoneType)
        return Union[(*kinds, _NO_NULL)]
    if get_origin(hint) is tuple and dataclasses.is_dataclass(get_args(hint)[0]):
        return tuple[_wrapped(get_args(hint)[0]), ...]  # type: ignore[misc] # computed
    return hint


@cache
def type_adapter(shape: type) -> TypeAdapter[Any]:
    """The validator and description of ``shape``."""
    return TypeAdapter(_wrapped(shape))


def parse_body(shape: type[T], body: bytes) -> T:
    """The ``shape`` in a request's body.

    Raises:
        MooringsError: ``body.not_utf8``, ``body.not_json``, ``body.invalid``.
    """
    try:
        found = cast("T", type_adapter(cast("type", shape)).validate_json(body))
        json.loads(body, object_pairs_hook=_unique)
        return found
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
    try:
        body.decode()
    except UnicodeDecodeError as wrong:
        raise MooringsError("body.not_utf8", f"byte {wrong.start} of the body is not UTF-8") from None
    if details[0]["type"] == "json_invalid":
        message = details[0]["msg"].removeprefix("Invalid JSON: ")
        raise MooringsError("body.not_json", f"the body is not JSON: {message}", hint="send one JSON object")
    text = "; ".join(_describe_error(detail) for detail in details[:ERRORS_SHOWN_MAX])
    rest = len(details) - ERRORS_SHOWN_MAX
    raise MooringsError(
        "body.invalid", f"{text}; and {rest} more" if rest > 0 else text, hint=_hint(shape, details[0])
    ) from None


def _unique(pairs: list[tuple[str, object]]) -> None:
    """Refuse an object with a duplicate field: a program that checked it before us may have used the other one."""
    if len(dict(pairs)) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise MooringsError("body.invalid", f"the field {twice[:60]!r} is given twice", hint="give it once")


_WORDS = {
    "unexpected_keyword_argument": "is not a known field",
    "missing": "is missing",
    "dataclass_type": "must be an object",
}


def _describe_error(detail: ErrorDetails) -> str:
    where = "body"
    for part in detail["loc"]:
        where += f"[{part}]" if isinstance(part, int) else f".{part[:60]}"
    message = detail["msg"]
    return f"{where} {_WORDS.get(detail['type'], message.replace('Input should', 'must').replace('should', 'must'))}"


def _hint(shape: type, detail: ErrorDetails) -> str:
    if detail["type"] != "unexpected_keyword_argument":
        return "the fields and their limits stand in /openapi.json"
    known = dataclasses.fields(cast("Any", _inner(shape, detail["loc"])))
    return "allowed: " + ", ".join(sorted(to_camel_case(item.name) for item in known))


def _inner(shape: type, where: Sequence[int | str]) -> type:
    """The shape that has the field at the end of ``where``."""
    for part in where[:-1]:
        if isinstance(part, int):  # an item of the current list
            continue
        hints = get_type_hints(shape)
        shape = next(
            hints[item.name] for item in dataclasses.fields(cast("Any", shape)) if to_camel_case(item.name) == part
        )
        inside = (one for one in get_args(shape) if isinstance(one, type) and dataclasses.is_dataclass(one))
        shape = next(inside, shape)  # of a list, or of a nullable field
    return shape
