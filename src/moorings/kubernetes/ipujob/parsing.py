"""An IPUJob read from its JSON, and its status written as JSON.

All programs share this reader: an unreadable value becomes the default, and a ``FieldError`` is recorded. The operator
continues with the default (an object may have passed an older, laxer schema, or come while no webhook listened);
``validation`` refuses the object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from moorings.core.model.claims import PRIORITY_MAX, SIZE_MAX
from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp
from moorings.kubernetes.ipujob import names
from moorings.kubernetes.ipujob.fields import (
    BACK_OFF_LIMIT,
    BACK_OFF_LIMIT_MAX,
    CLASS_CHARS_MAX,
    DEADLINE_S_MAX,
    DIGITS,
    KEPT_S_MAX,
    MANAGED_BY_CHARS_MAX,
    PODS_MAX,
    TTL_S,
    TTL_S_MAX,
    WAIT_S_MAX,
)
from moorings.kubernetes.ipujob.suspension import MANAGED_BY
from moorings.kubernetes.ipujob.types import (
    MANAGER,
    CleanPodPolicy,
    Condition,
    InstanceOutcome,
    InstanceStatus,
    IPUJob,
    IPUJobStatus,
    JobKind,
    RestartType,
    StartAttempts,
)
from moorings.kubernetes.kube.api import KubeObject
from moorings.wire.codec import format_time, parse_time

E = TypeVar("E", bound=StrEnum)

SHOWN_CHARS_MAX = 60  # of a wrong value, in a message

_NUMBER = re.compile(rf"0|[1-9][0-9]{{0,{DIGITS - 1}}}")
_NOTHING: Mapping[str, Any] = {}
_HOLDS: Mapping[str, bool | None] = {"True": True, "False": False, "Unknown": None}


@dataclass(frozen=True, slots=True)
class FieldError:
    """An error in an object: the field (``spec.launcher.command``), the problem, and a hint."""

    path: str
    problem: str
    hint: str = ""


def parse_ipujob(obj: KubeObject) -> IPUJob:
    """The job of an object; never fails. Unknown fields are ignored."""
    return read_ipujob(obj)[0]


def read_ipujob(obj: KubeObject) -> tuple[IPUJob, tuple[FieldError, ...]]:
    """The job of an object, and the unreadable parts of its spec; ``validation`` finds the other errors."""
    meta = _mapping(obj.get("metadata"))
    top = _FieldReader("", obj)
    spec = top.inside("spec")
    workers = spec.inside("workers")
    ipus, worker_count, replicas = _sizes(spec, workers)
    launcher, interactive, restart = spec.inside("launcher"), spec.inside("interactive"), spec.inside("restartPolicy")
    job = IPUJob(
        namespace=_text(meta.get("namespace")),
        name=_text(meta.get("name")),
        uid=_text(meta.get("uid")),
        generation=_count(meta.get("generation")),
        resource_version=_text(meta.get("resourceVersion")),
        created_at=_time(meta.get("creationTimestamp")) or Timestamp(0),
        deleted=meta.get("deletionTimestamp") is not None,
        finalizers=tuple(_texts(meta.get("finalizers"))),
        kind=_kind(launcher, interactive),
        command=launcher.texts("command"),
        args=launcher.texts("args"),
        launcher={key: value for key, value in launcher.data.items() if key not in ("command", "args")},
        ttl_s=interactive.number("ttl", TTL_S, 1, TTL_S_MAX) if interactive.given else None,
        instances=spec.number("jobInstances", 1, 0, PODS_MAX),
        ipus=ipus,
        workers=worker_count,
        replicas=replicas,
        template=workers.inside("template").data,
        restart_policy=restart.word("type", RestartType.NEVER),
        backoff_limit=restart.number("backOffLimit", BACK_OFF_LIMIT, 0, BACK_OFF_LIMIT_MAX),
        clean_pod_policy=spec.word("cleanPodPolicy", CleanPodPolicy.NONE),
        release_on_finish=spec.flag("releaseOnFinish", True),
        priority=spec.number("priority", 0, -PRIORITY_MAX, PRIORITY_MAX),
        status=parse_status(obj.get("status")),
        active_deadline_s=spec.optional("activeDeadlineSeconds", 1, DEADLINE_S_MAX),
        ttl_s_after_finished=spec.optional("ttlSecondsAfterFinished", 0, KEPT_S_MAX),
        priority_class=_priority_class(spec),
        suspended=spec.flag("suspend", False),
        managed_by=_managed_by(spec),
        preemptible=_is_annotated_true(top, meta, names.PREEMPTIBLE),
        resumable=_is_annotated_true(top, meta, names.RESUMABLE),
        start_deadline_s=spec.optional("startDeadlineSeconds", 0, WAIT_S_MAX),
        node_lost_s=spec.number("nodeLostSeconds", 0, 0, WAIT_S_MAX),
    )
    return job, tuple(top.faults)


def _is_annotated_true(top: _FieldReader, meta: Mapping[str, Any], name: str) -> bool:
    """Whether an annotation is "true"; a missing one is "false"."""
    given = _mapping(meta.get("annotations")).get(name)
    if given not in (None, "true", "false"):
        top.add_error(f"metadata.annotations[{name}]", f'must be "true" or "false", not {abbreviate(given)}')
    return given == "true"


def _priority_class(spec: _FieldReader) -> str:
    given = spec.data.get("priorityClassName", "")
    if not isinstance(given, str) or len(given) > CLASS_CHARS_MAX:
        spec.add_error("priorityClassName", f"must be the name of a PriorityClass, not {abbreviate(given)}")
        return ""
    return given


def _managed_by(spec: _FieldReader) -> str:
    given = spec.data.get("managedBy")
    if given is None:
        return ""
    if not isinstance(given, str) or len(given) > MANAGED_BY_CHARS_MAX or not MANAGED_BY.fullmatch(given):
        spec.add_error("managedBy", f"must be a domain, a slash and a name, such as {MANAGER}, not {abbreviate(given)}")
        return ""
    return given


def _kind(launcher: _FieldReader, interactive: _FieldReader) -> JobKind:
    if interactive.given:
        return JobKind.INTERACTIVE
    return JobKind.TRAINING if launcher.given else JobKind.INFERENCE


def _sizes(spec: _FieldReader, workers: _FieldReader) -> tuple[int, int, int]:
    """IPUs and workers of an instance, and model replicas of a worker, in any of their spellings."""
    count = spec.agreed(
        ("spec.workerPerJobInstance", spec.size("workerPerJobInstance", PODS_MAX)),
        ("spec.workers.replicas", workers.size("replicas", PODS_MAX)),
    )
    count = 1 if count is None else count
    replicas, each = spec.size("modelReplicas"), spec.size("ipusPerModelReplica")
    older = None if replicas is None and each is None else (replicas or 1) * (each or 1)
    ipus = spec.agreed(
        ("spec.ipusPerJobInstance", spec.size("ipusPerJobInstance")),
        ("modelReplicas times ipusPerModelReplica", older),
    )
    if ipus is None and not spec.faults:
        spec.add_error("ipusPerJobInstance", "is missing", 'say how many IPUs each instance gets, such as "4"')
    if replicas is not None and replicas % count:
        spec.add_error(
            "modelReplicas",
            f"{replicas} model replicas cannot be divided among {count} workers",
            "make it a multiple of workerPerJobInstance",
        )
    a_worker = spec.agreed(
        ("spec.modelReplicasPerWorker", spec.size("modelReplicasPerWorker")),
        ("modelReplicas divided by the workers", None if replicas is None else max(replicas // count, 1)),
    )
    return 1 if ipus is None else ipus, count, 1 if a_worker is None else a_worker


class _FieldReader:
    """Reads values from an object; records each error, and returns the default instead.

    ``given`` distinguishes a missing object from an empty one. All readers of one job share their errors.
    """

    def __init__(self, path: str, data: object, faults: list[FieldError] | None = None) -> None:
        self.path = path
        self.given = isinstance(data, Mapping)
        self.data = _mapping(data)
        self.faults: list[FieldError] = [] if faults is None else faults

    def add_error(self, name: str, problem: str, hint: str = "") -> None:
        """Record an error of a field."""
        self.faults.append(FieldError(f"{self.path}.{name}".lstrip("."), problem, hint))

    def inside(self, name: str) -> _FieldReader:
        """The reader of an object inside this one."""
        found = self.data.get(name)
        if found is not None and not isinstance(found, Mapping):
            self.add_error(name, f"must be an object, not {abbreviate(found)}")
        return _FieldReader(f"{self.path}.{name}".lstrip("."), found, self.faults)

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number between bounds."""
        found = self._whole(name, least, most)
        return default if found is None else found

    def optional(self, name: str, least: int, most: int) -> int | None:
        """A whole number between bounds; None if it is missing."""
        return self._whole(name, least, most)

    def size(self, name: str, most: int = SIZE_MAX) -> int | None:
        """A positive whole number, in quotes or not; None if it is missing."""
        return self._whole(name, 1, most, quoted=True)

    def _whole(self, name: str, least: int, most: int, *, quoted: bool = False) -> int | None:
        given = self.data.get(name)
        if given is None:
            return None
        found = None
        if isinstance(given, int | float) and not isinstance(given, bool):
            found = int(given) if abs(given) < 1 << 53 and given == int(given) else None
        elif quoted and isinstance(given, str) and _NUMBER.fullmatch(given):
            found = int(given)
        if found is None or not least <= found <= most:
            self.add_error(name, f"must be a whole number from {least} to {most}, not {abbreviate(given)}")
            return None
        return found

    def agreed(self, *spellings: tuple[str, int | None]) -> int | None:
        """The number that one or both of two spellings give; records an error if they differ."""
        (one, first), (other, second) = spellings
        if first is not None and second is not None and first != second:
            meaning = "mean the same, and one of them is enough"
            self.faults.append(
                FieldError(one, f"is {first}, but {other.removeprefix('spec.')} is {second}", f"they {meaning}")
            )
        return second if first is None else first

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        given = self.data.get(name)
        if given is None:
            return ()
        if not isinstance(given, list) or not all(isinstance(item, str) for item in given):
            self.add_error(name, f"must be a list of strings, not {abbreviate(given)}", "put numbers in quotes")
            return ()
        return tuple(given)

    def word(self, name: str, default: E) -> E:
        """One of an enum's values."""
        given = self.data.get(name)
        if given is None:
            return default
        for known in type(default):
            if given == known.value:
                return known
        known_words = ", ".join(each.value for each in type(default))
        self.add_error(name, f"must be one of {known_words}, not {abbreviate(given)}")
        return default

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        given = self.data.get(name)
        if given is not None and not isinstance(given, bool):
            self.add_error(name, f"must be true or false, not {abbreviate(given)}")
        return given if isinstance(given, bool) else default


def abbreviate(value: object) -> str:
    """A wrong value, shortened for a message."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}..."


# -- the status --------------------------------------------------------------------------------------------------------


def parse_status(found: object) -> IPUJobStatus:
    """The status as last written; never fails."""
    status = _mapping(found)
    workers = _mapping(status.get("workersStatus"))
    conditions = status.get("conditions")
    return IPUJobStatus(
        state=_text(status.get("status")),
        current=_count(status.get("currentInstances")),
        desired=_count(status.get("desiredInstances")),
        message=_text(status.get("lastMessage")),
        conditions=tuple(
            _condition(each)
            for each in (conditions if isinstance(conditions, list) else ())
            if isinstance(each, Mapping)
        ),
        partition_created=status.get("iPUPartitionCreated") is True,
        launcher=_text(status.get("launcherStatus")),
        restart_count=_count(status.get("restartCount")),
        starts_at=_time(status.get("estimatedStartTime")),
        certainty=_text(status.get("estimatedStartCertainty")),
        started_at=_time(status.get("startTime")),
        completed_at=_time(status.get("completionTime")),
        active=_count(status.get("active")),
        ready=_count(status.get("ready")),
        workers_active=_count(workers.get("active")),
        workers_succeeded=_count(workers.get("succeeded")),
        workers_failed=_count(workers.get("failed")),
        observed_generation=_count(status.get("observedGeneration")),
        instances=dict(_records(_mapping(status.get("instances")))),
    )


def _condition(found: Mapping[str, Any]) -> Condition:
    return Condition(
        type=_text(found.get("type")),
        status=_HOLDS.get(_text(found.get("status")), False),
        reason=_text(found.get("reason")),
        message=_text(found.get("message")),
        changed_at=_time(found.get("lastTransitionTime")) or Timestamp(0),
        updated_at=_time(found.get("lastUpdateTime")) or Timestamp(0),
        observed_generation=_count(found.get("observedGeneration")),
    )


def _records(found: Mapping[str, Any]) -> Iterator[tuple[int, InstanceStatus]]:
    for key, each in found.items():
        if _NUMBER.fullmatch(str(key)):
            record = _mapping(each)
            outcome = record.get("outcome")
            yield (
                int(key),
                InstanceStatus(
                    restarts=_count(record.get("restarts")),
                    failures=_count(record.get("failures")),
                    outcome=next((known for known in InstanceOutcome if known.value == outcome), None),
                    detail=_text(record.get("detail")),
                    start=_start(_mapping(record.get("start"))),
                    reason=_text(record.get("reason")),
                    started_at=_time(record.get("startedAt")),
                    active_seconds=_count(record.get("activeSeconds")),
                ),
            )


def _start(found: Mapping[str, Any]) -> StartAttempts:
    return StartAttempts(
        since=_time(found.get("since")),
        missed=_count(found.get("missed")),
        until=_time(found.get("until")),
        why=_text(found.get("why")),
    )


def status_object(status: IPUJobStatus) -> KubeObject:
    """A status as JSON, times in whole seconds; all of it but the scale subresource's ``selector``.

    A missing field means none or, in ``workersStatus``, 0: write it whole (a JSON patch that adds ``/status``), since a
    merge patch would keep the previous values.
    """
    written: KubeObject = {
        "status": status.state,
        "currentInstances": status.current,
        "desiredInstances": status.desired,
        "lastMessage": status.message,
        "conditions": [_condition_object(each) for each in status.conditions],
        "iPUPartitionCreated": status.partition_created,
        "launcherStatus": status.launcher,
        "estimatedStartCertainty": status.certainty,
        "restartCount": status.restart_count,
        "workersStatus": _present(
            {
                "active": status.workers_active,
                "succeeded": status.workers_succeeded,
                "failed": status.workers_failed,
            }
        ),
        "observedGeneration": status.observed_generation,
        "instances": {str(number): _record_object(each) for number, each in sorted(status.instances.items())},
    }
    written |= _present({"active": status.active, "ready": status.ready})
    times = {
        "estimatedStartTime": status.starts_at,
        "startTime": status.started_at,
        "completionTime": status.completed_at,
    }
    written |= {name: _second(at) for name, at in times.items() if at is not None}
    return {name: value for name, value in written.items() if value not in ("", [], {})}


def _condition_object(condition: Condition) -> KubeObject:
    written: KubeObject = {
        "type": condition.type,
        "status": next(word for word, holds in _HOLDS.items() if holds is condition.status),
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": _second(condition.changed_at),
    }
    if condition.updated_at:
        written["lastUpdateTime"] = _second(condition.updated_at)
    if condition.observed_generation:
        written["observedGeneration"] = condition.observed_generation
    return written


def _record_object(record: InstanceStatus) -> KubeObject:
    more = {
        "outcome": record.outcome.value if record.outcome is not None else "",
        "detail": record.detail,
        "start": _start_object(record.start),
        "reason": record.reason,
        "startedAt": _second(record.started_at) if record.started_at is not None else "",
        "activeSeconds": record.active_seconds,
    }
    return {"restarts": record.restarts, "failures": record.failures, **_present(more)}


def _start_object(start: StartAttempts) -> KubeObject:
    times = {"since": start.since, "until": start.until}
    seconds = {name: _second(at) for name, at in times.items() if at is not None}
    return seconds | _present({"missed": start.missed, "why": start.why})


def _present(found: Mapping[str, Any]) -> KubeObject:
    return {name: value for name, value in found.items() if value}


def _second(at: Timestamp) -> str:
    return f"{format_time(at)[:19]}Z"


def _mapping(found: object) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else _NOTHING


def _text(found: object) -> str:
    return found if isinstance(found, str) else ""


def _texts(found: object) -> list[str]:
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def _count(found: object) -> int:
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else 0


def _time(found: object) -> Timestamp | None:
    try:
        return parse_time(found) if isinstance(found, str) else None
    except MooringsError:
        return None
