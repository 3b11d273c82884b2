"""The value of an IPUJob's PriorityClass, as its priority in the queue for partitions. Pure.

The webhook writes the value into `spec.priority`, as Kubernetes does with Pods, so that a job keeps its initial
value. A job that was created past the webhook has no value: then the operator looks it up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from moorings.core.model.claims import PRIORITY_MAX
from moorings.core.model.errors import MooringsError
from moorings.kubernetes.ipujob.parsing import FieldError, abbreviate
from moorings.kubernetes.kube.api import KubeObject
from moorings.kubernetes.kube.informer import Informer

ValueOf = Callable[[str], int | None]  # value of a PriorityClass; None: there is none of that name


def get_class_value(classes: Informer, name: str) -> int | None:
    """The value of a PriorityClass; None: there is none of that name.

    Raises:
        MooringsError: ``kubernetes.unreachable``: the classes are not listed yet.
    """
    if not classes.synced.is_set():
        raise MooringsError(
            "kubernetes.unreachable",
            "the operator does not know the PriorityClasses yet",
            hint="try again in a moment; if that stays so, its account may not list priorityclasses",
            retryable=True,
        )
    found = classes.get("", name)
    return int(found["value"]) if found is not None else None


def find_priority_faults(obj: KubeObject, value_of: ValueOf | None) -> Iterator[FieldError]:
    """Errors about the PriorityClass of a job; without ``value_of`` the classes are unknown, and there are none."""
    name, given = class_of(obj), _spec(obj).get("priority")
    if not name or value_of is None:
        return
    value = value_of(name)
    if value is None:
        yield FieldError(
            "spec.priorityClassName",
            f"there is no PriorityClass {abbreviate(name)}",
            "kubectl get priorityclasses lists those that there are",
        )
    elif abs(value) > PRIORITY_MAX:
        yield FieldError(
            "spec.priorityClassName",
            f"the PriorityClass {abbreviate(name)} has {value}; priorities go from -{PRIORITY_MAX} to {PRIORITY_MAX}",
            "name another one",
        )
    elif given is not None and given != value:
        yield FieldError(
            "spec.priority",
            f"is {abbreviate(given)}, and the PriorityClass {abbreviate(name)} has {value}",
            "leave one of them out",
        )


def class_of(obj: KubeObject) -> str:
    """The name of a job's PriorityClass; empty: none."""
    name = _spec(obj).get("priorityClassName")
    return name if isinstance(name, str) else ""


def needs_class_value(obj: KubeObject) -> bool:
    """Whether a job names a PriorityClass but has no priority yet."""
    return bool(class_of(obj)) and _spec(obj).get("priority") is None


def resolve_priority(obj: KubeObject, value_of: ValueOf) -> KubeObject | None:
    """The job with its PriorityClass's value as its priority; None: no such class, or a value that is not allowed."""
    if not needs_class_value(obj):
        return obj
    value = value_of(class_of(obj))
    return None if value is None or abs(value) > PRIORITY_MAX else {**obj, "spec": {**obj["spec"], "priority": value}}


def _spec(obj: KubeObject) -> Mapping[str, Any]:
    spec = obj.get("spec")
    return spec if isinstance(spec, Mapping) else {}
