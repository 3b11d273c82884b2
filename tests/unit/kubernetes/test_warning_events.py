"""Which refusals are told as Warning Events, and how often."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.ipujob.pods import PENDING, UNSCHEDULABLE
from moorings.kubernetes.ipujob.types import IPUJobStatus, JobKind
from moorings.kubernetes.kube.api import KubeError
from moorings.kubernetes.operator.create_failures import ActionFailure
from moorings.kubernetes.operator.status import JobEvent
from moorings.kubernetes.operator.warning_events import WarnedEvents, failed_create
from tests.unit.kubernetes.jobs import build_job
from tests.unit.kubernetes.test_plan import pod

QUOTA = KubeError(403, "Forbidden", 'pods "a-worker-0" is forbidden: exceeded quota: few')


@pytest.mark.parametrize(
    "error",
    [
        QUOTA,
        KubeError(422, "Invalid", 'Pod "a" is invalid: x'),
        KubeError(500, "InternalError", "failed calling webhook"),
        MooringsError("ipujob.name_taken", "there is a Pod a already"),
    ],
)
def test_a_refused_pod_is_told_in_the_api_server_s_words(error: MooringsError) -> None:
    assert failed_create({0: True}, [ActionFailure(0, error)]) == JobEvent(
        "Warning", "FailedCreate", f"Error creating: {error.detail}"
    )


def test_of_several_instances_the_first_is_told() -> None:
    story = failed_create({0: True, 1: True}, [ActionFailure(0, QUOTA), ActionFailure(1, QUOTA)])
    assert story is not None
    assert story.message == f"Error creating: {QUOTA.detail} (and of 1 more instances)"


@pytest.mark.parametrize(
    "error",
    [
        KubeError(0, "", "not reached"),
        KubeError(409, "Conflict", "try again"),
        KubeError(504, "Timeout", "who knows"),
        MooringsError("controller.unreachable", "no"),
    ],
)
def test_what_says_nothing_about_the_pod_is_not_told(error: MooringsError) -> None:
    assert failed_create({0: True}, [ActionFailure(0, error)]) is None


def test_what_was_not_a_pod_is_not_told() -> None:
    assert failed_create({}, [ActionFailure(0, QUOTA)]) is None
    assert failed_create({1: True}, [ActionFailure(0, QUOTA)]) is None


def test_a_pod_without_a_node_is_told_once() -> None:
    job, warned = build_job(JobKind.INFERENCE, workers=2), WarnedEvents()
    words = {"reason_text": "Unschedulable: 0/2 nodes are available", "waiting_reason": UNSCHEDULABLE}
    late = [pod(job, number, PENDING, **words) for number in range(2)]
    story = JobEvent(
        "Warning", "FailedScheduling", "sample-worker-0: Unschedulable: 0/2 nodes are available (and 1 more Pods)"
    )
    assert warned.new_warnings(job, late, "") == [story]
    assert warned.new_warnings(job, late, "") == []
    assert warned.new_warnings(job, late[:1], "") == [], "the others were scheduled"
    assert warned.new_warnings(job, [replace(late[0], uid="another")], "") != []
    assert warned.new_warnings(job, [pod(job, 0, PENDING, reason_text="ImagePullBackOff: x")], "") == []


def test_a_job_that_cannot_be_is_told_once_a_generation_and_not_after_a_restart_of_the_operator() -> None:
    job, warned = build_job(), WarnedEvents()
    assert warned.new_warnings(job, [], "too long") == [JobEvent("Warning", "InvalidSpec", "too long")]
    assert warned.new_warnings(job, [], "too long") == []
    assert warned.new_warnings(replace(job, generation=2), [], "too large") != []
    assert WarnedEvents().new_warnings(replace(job, status=IPUJobStatus(observed_generation=1)), [], "too long") == []
