"""What the PriorityClass that a job names means."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.ipujob.pod_security import AdmissionLimits
from moorings.kubernetes.ipujob.priority_class import get_class_value, resolve_priority
from moorings.kubernetes.ipujob.validation import check_ipujob, check_update, default_ipujob
from moorings.kubernetes.kube.api import PRIORITY_CLASS, KubeObject
from moorings.kubernetes.kube.informer import Informer
from tests.unit.kubernetes.ipujobs import a_spec, an_object
from tests.unit.kubernetes.objects_kept import KeptObjects

CLASSES = {"low": -10, "high": 5, "system-node-critical": 2_000_001_000}
LIMITS = AdmissionLimits(max_priority=5, value_of_class=CLASSES.get)


def job(**spec: Any) -> KubeObject:
    return an_object(a_spec(**spec))


def priorities(given: KubeObject, limits: AdmissionLimits = LIMITS) -> list[int]:
    return [one["value"] for one in default_ipujob(given, limits) if one["path"] == "/spec/priority"]


@pytest.mark.parametrize(
    ("spec", "added"),
    [
        ({}, [0]),
        ({"priority": 3}, []),
        ({"priorityClassName": "low"}, [-10]),
        ({"priorityClassName": "high", "priority": 5}, []),
        ({"priorityClassName": "none-such"}, []),
        ({"priorityClassName": "system-node-critical"}, []),
    ],
)
def test_its_value_is_written_into_a_new_job(spec: KubeObject, added: list[int]) -> None:
    assert priorities(job(**spec)) == added


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"priorityClassName": "none-such"}, "spec.priorityClassName: there is no PriorityClass 'none-such'"),
        ({"priorityClassName": "high", "priority": 4}, "spec.priority: is 4, and the PriorityClass 'high' has 5"),
        ({"priorityClassName": "system-node-critical"}, "spec.priorityClassName: .* has 2000001000; priorities go"),
        ({"priorityClassName": 5}, "spec.priorityClassName: must be the name"),
    ],
)
def test_what_cannot_be_is_refused(spec: KubeObject, told: str) -> None:
    with pytest.raises(MooringsError, match=told):
        check_ipujob(job(**spec), LIMITS)


async def test_before_the_classes_are_known_none_is_said_to_be_missing() -> None:
    classes = Informer(KeptObjects(), PRIORITY_CLASS)
    limits = AdmissionLimits(value_of_class=partial(get_class_value, classes))
    with pytest.raises(MooringsError) as caught:
        check_ipujob(job(priorityClassName="low"), limits)
    assert (caught.value.code, caught.value.retryable) == ("kubernetes.unreachable", True)
    check_ipujob(job(), limits)
    classes.synced.set()
    with pytest.raises(MooringsError, match="there is no PriorityClass 'low'"):
        check_ipujob(job(priorityClassName="low"), limits)


def test_the_highest_priority_that_is_allowed_holds_for_classes_too() -> None:
    high = resolve_priority(job(priorityClassName="high"), CLASSES.get)
    assert high is not None
    assert check_ipujob(high, LIMITS).priority == 5
    with pytest.raises(MooringsError, match=r"spec.priority: 5 is above 4"):
        check_ipujob(high, AdmissionLimits(max_priority=4, value_of_class=CLASSES.get))


def test_a_job_that_is_replaced_by_the_file_it_was_made_of_is_the_same() -> None:
    made = job(priorityClassName="high", priority=5, jobInstances=1)
    check_update(made, job(priorityClassName="high", jobInstances=2), LIMITS)
    with pytest.raises(MooringsError, match=r"spec.priorityClassName: cannot be changed"):
        check_update(made, job(priorityClassName="low", jobInstances=2), LIMITS)


def test_a_class_that_has_gone_holds_up_no_change_of_a_job() -> None:
    made = job(priorityClassName="gone", priority=5, jobInstances=1)
    check_update(made, job(priorityClassName="gone", priority=5, jobInstances=2), LIMITS)


def test_a_job_without_the_value_waits_while_there_is_no_such_class() -> None:
    assert resolve_priority(job(priorityClassName="none-such"), CLASSES.get) is None
    plain = job()
    assert resolve_priority(plain, CLASSES.get) is plain
