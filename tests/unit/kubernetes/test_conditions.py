"""Ready, Admitted and Finished: what they say of a job, when they change, and what an earlier release left."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.kubernetes.ipujob.parsing import parse_status, status_object
from moorings.kubernetes.ipujob.pods import FAILED, PENDING, SUCCEEDED, Pod
from moorings.kubernetes.ipujob.types import Condition, IPUJob, IPUJobStatus, JobKind, RestartType
from moorings.kubernetes.operator.plan import JobPartitions, PartitionPause, plan
from moorings.kubernetes.operator.status import (
    ADMITTED,
    FINISHED,
    READY,
    TYPES,
    JobEvent,
    build_events,
    build_status,
    find_condition,
    reason_of,
)
from moorings.kubernetes.proxy_api import shapes
from moorings.kubernetes.proxy_api.shapes import PartitionBody
from tests.unit.kubernetes.jobs import START, build_job, build_partition
from tests.unit.kubernetes.test_plan import held, pod

INFERENCE = JobKind.INFERENCE


def look(
    job: IPUJob, pods: Sequence[Pod] = (), partitions: JobPartitions | None = None, now: Timestamp = START, **more: Any
) -> IPUJob:
    """The job with the status that it gets."""
    partitions = held(build_partition(job)) if partitions is None else partitions
    found = plan(job, pods, partitions, now, **more)
    return replace(job, status=build_status(job, found, pods, partitions, now))


def said(job: IPUJob, kind: str) -> tuple[bool | None, str, str]:
    found = find_condition(job.status.conditions, kind)
    assert found is not None
    assert found.observed_generation == job.generation
    assert re.fullmatch(r"[A-Z][A-Za-z]*", found.reason)
    return found.status, found.reason, found.message


def waiting(job: IPUJob, code: str, message: str = "x", instance: int = 0) -> PartitionBody:
    return build_partition(job, instance, shapes.WAITING, code=code, message=message)


def test_a_job_s_whole_life() -> None:
    job = look(build_job(INFERENCE), partitions=held())
    assert said(job, ADMITTED) == (False, "Requested", "waiting for a partition of 1 IPU")
    assert said(job, READY) == (False, "NotAdmitted", "waiting for a partition of 1 IPU")
    assert said(job, FINISHED) == (False, "NotFinished", "0 of 1 instances have ended")
    job = look(job, partitions=held(waiting(job, "queue.reserved")), now=add_seconds(START, 1))
    assert said(job, ADMITTED) == (False, "Queued", "waiting for a partition of 1 IPU: x")
    preparing = build_partition(job, state=shapes.PREPARING, code="partition.preparing")
    job = look(job, partitions=held(preparing), now=add_seconds(START, 2))
    assert said(job, ADMITTED) == (True, "Granted", "every instance was granted its partition")
    assert said(job, READY)[:2] == (False, "PartitionPreparing")
    job = look(job, [pod(job, 0, PENDING)], now=add_seconds(START, 3))
    assert said(job, READY) == (False, "PodsStarting", "waiting for sample-worker-0 to start")
    job = look(job, [pod(job, 0, ready=False)], now=add_seconds(START, 4))
    assert said(job, READY) == (False, "PodsNotReady", "waiting for sample-worker-0 to be ready")
    job = look(job, [pod(job, 0)], now=add_seconds(START, 5))
    assert said(job, READY) == (True, "Running", "every instance runs")
    job = look(job, [pod(job, 0, SUCCEEDED, ended_at=START)], now=add_seconds(START, 6))
    assert said(job, READY) == (False, "Completed", "All instances done")
    assert said(job, ADMITTED)[:2] == (True, "Granted"), "it was"
    assert said(job, FINISHED) == (True, "Completed", "All instances done")
    times = {one.type: one.changed_at for one in job.status.conditions if one.type in TYPES}
    assert times == {READY: add_seconds(START, 6), ADMITTED: add_seconds(START, 2), FINISHED: add_seconds(START, 6)}


def test_a_failure_is_finished_too() -> None:
    job = build_job(INFERENCE)
    job = look(job, [pod(job, 0, FAILED, exit_code=3, reason_text="exit code 3")])
    assert said(job, FINISHED) == (True, "Failed", "sample-worker-0 failed: exit code 3")
    assert find_condition(job.status.conditions, "Failed") is not None, "the state has its own condition beside it"


def test_a_restart_is_not_ready_and_stays_admitted() -> None:
    job = build_job(INFERENCE, restart_policy=RestartType.ON_FAILURE)
    job = look(job, [pod(job, 0, FAILED, exit_code=3, reason_text="exit code 3", ended_at=START)])
    assert said(job, READY)[:2] == (False, "Restarting")
    assert said(job, ADMITTED)[:2] == (True, "Granted")


def test_of_several_instances_all_count() -> None:
    job = build_job(INFERENCE, instances=2)
    job = look(job, [pod(job, 0)], held(build_partition(job), waiting(job, "pool.full", "none is free", 1)))
    words = "waiting for a partition of 1 IPU: none is free; 1 of 2 instances have theirs"
    assert said(job, ADMITTED) == (False, "Queued", words)
    assert said(job, READY)[:2] == (False, "NotAdmitted")
    job = look(replace(job, instances=0), (), held())
    assert said(job, READY)[:2] == (False, "ScaledToZero")


def test_a_proxy_that_is_away_leaves_open_what_is_not_known_and_takes_nothing_from_what_runs() -> None:
    job = build_job(INFERENCE)
    assert said(look(job, (), JobPartitions()), ADMITTED)[:2] == (None, "ProxyUnreachable")
    running = look(job, [pod(job, 0)])
    assert (
        look(running, [pod(job, 0)], JobPartitions(), add_seconds(START, 9)).status.conditions
        == running.status.conditions
    )


def test_what_is_refused_has_no_partition() -> None:
    job = look(build_job(INFERENCE), (), held(), paused={0: PartitionPause("exceeded quota", starting=True)})
    assert said(job, ADMITTED)[:2] == (False, "PodsRefused")


def test_a_job_that_is_deleted_is_not_ready() -> None:
    job = build_job(INFERENCE)
    job = look(job, [pod(job, 0)])
    gone = look(replace(job, deleted=True), [pod(job, 0)], now=add_seconds(START, 5))
    assert said(gone, READY) == (False, "Deleting", "deleted; waiting for sample-worker-0 to end")
    assert said(gone, ADMITTED)[0] is True
    done = look(job, [pod(job, 0, SUCCEEDED, ended_at=START)])
    assert look(replace(done, deleted=True), ()).status.conditions == done.status.conditions


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("pool.full", "Queued"),
        ("claim.requeued", "Queued"),
        ("project.limit", "ProjectLimit"),
        ("controller.unreachable", "ControllerUnreachable"),
        ("start.deadline_passed", "StartDeadlinePassed"),
        ("suspended", "Suspended"),
    ],
)
def test_a_code_is_a_reason_in_camel_case(code: str, reason: str) -> None:
    assert reason_of(code) == reason


def test_words_alone_change_no_time_and_a_generation_does_not_either() -> None:
    job = look(build_job(INFERENCE), (), held(waiting(build_job(INFERENCE), "pool.full", "one")))
    later = look(replace(job, generation=2), (), held(waiting(job, "queue.aged", "two")), add_seconds(START, 60))
    before, now = (find_condition(one.status.conditions, ADMITTED) for one in (job, later))
    assert before is not None
    assert now == replace(before, message="waiting for a partition of 1 IPU: two", observed_generation=2)


def test_a_definition_that_drops_the_generation_is_not_written_to_for_ever() -> None:
    """The operator was upgraded, the definition was not."""
    job = look(build_job(INFERENCE), [pod(build_job(INFERENCE), 0)])
    pruned = tuple(replace(one, observed_generation=0) for one in job.status.conditions)
    stored = replace(job, status=replace(job.status, conditions=pruned))
    assert look(stored, [pod(job, 0)], now=add_seconds(START, 9)).status == stored.status


@pytest.mark.parametrize(("state", "admitted"), [("Completed", True), ("Failed", True), ("Pending", False)])
def test_a_status_of_an_earlier_release_is_taken_up_and_keeps_what_it_had(state: str, admitted: bool) -> None:
    ended = state in ("Completed", "Failed")
    at = "2026-01-01T00:00:00Z"
    former = [("Pending", state == "Pending"), *([("Running", False), (state, True)] if ended else [])]
    told = [
        {
            "type": name,
            "status": str(holds),
            "reason": f"IPUJob{name}",
            "message": "IPUJob default/sample is waiting for resources to be ready." if name == "Pending" else "x",
            "lastTransitionTime": at,
            "lastUpdateTime": at,
        }
        for name, holds in former
    ]
    stored = {"status": state, "conditions": told, "observedGeneration": 1, "startTime": at, "lastMessage": "x"}
    if ended:
        stored |= {"completionTime": at, "instances": {"0": {"restarts": 0, "failures": 0, "outcome": "Done"}}}
    job = look(build_job(INFERENCE, status=parse_status(stored)), (), held())
    written = status_object(job.status)["conditions"]
    assert [one["type"] for one in written] == [*(name for name, _ in former), READY, ADMITTED, FINISHED]
    assert [one for one in written if one["type"] != state and one["type"] not in TYPES] == [
        one for one in told if one["type"] != state
    ]
    assert written[-2]["status"] == str(admitted)
    assert written[-1]["status"] == str(ended)
    if ended:
        assert written[-1]["lastTransitionTime"] == at, "it ended then"
    assert look(job, (), held(), add_seconds(START, 99)).status == job.status, "once is enough"


def test_unknown_is_read_and_written() -> None:
    one = Condition(type=ADMITTED, status=None, reason="x", message="y", changed_at=START, observed_generation=3)
    written = status_object(IPUJobStatus(conditions=(one,)))
    assert written["conditions"][0].keys() == {
        *("type", "status", "reason", "message", "lastTransitionTime", "observedGeneration")
    }
    assert written["conditions"][0]["status"] == "Unknown"
    assert parse_status(written).conditions == (one,)


def test_a_project_s_limit_is_told_once() -> None:
    job = build_job(INFERENCE)
    first = look(job, (), held(waiting(job, "project.limit", "no more")))
    warning = JobEvent("Warning", "ProjectLimit", "waiting for a partition of 1 IPU: no more")
    assert build_events(job.status, first.status) == [warning]
    assert build_events(first.status, look(first, (), held(waiting(job, "project.limit", "still"))).status) == []


def test_a_job_that_was_refused_and_mended_does_not_say_that_it_is_scaled_to_zero() -> None:
    refused = IPUJobStatus(state="Failed", message="spec.priority: 5 is above 0", observed_generation=1)
    job = look(build_job(INFERENCE, generation=2, status=refused), (), held())
    assert job.status.message == (
        "it was refused when it was first looked at, and stays so: delete the job and create it again"
    )
