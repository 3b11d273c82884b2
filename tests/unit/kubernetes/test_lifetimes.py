"""How long an instance may be active, and how long a job that has ended is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.kubernetes.ipujob.parsing import parse_status, status_object
from moorings.kubernetes.ipujob.pods import FAILED, RUNNING, SUCCEEDED, Pod
from moorings.kubernetes.ipujob.types import (
    CleanPodPolicy,
    InstanceOutcome,
    InstanceStatus,
    IPUJob,
    IPUJobStatus,
    JobKind,
    RestartType,
)
from moorings.kubernetes.operator.actions import (
    AcquirePartition,
    CreateLauncher,
    DeleteJob,
    DeletePod,
    ReleasePartition,
)
from moorings.kubernetes.operator.executor import build_partition_request
from moorings.kubernetes.operator.plan import HOLDS_NOTHING, JobPartitions, JobPlan, plan
from moorings.kubernetes.operator.status import build_events, build_status
from moorings.kubernetes.proxy_api import shapes
from moorings.kubernetes.proxy_api.shapes import PartitionBody
from moorings.wire.codec import format_time
from tests.unit.kubernetes.jobs import START, build_job, build_partition
from tests.unit.kubernetes.test_plan import held, pod

LIMIT_S = 60
KEPT_S = 100


def limited(restart: RestartType = RestartType.NEVER) -> IPUJob:
    return build_job(active_deadline_s=LIMIT_S, restart_policy=restart)


def ready(job: IPUJob, at: Timestamp = START) -> PartitionBody:
    return build_partition(job, since=format_time(at))


def look(job: IPUJob, pods: list[Pod], partitions: JobPartitions, now: Timestamp) -> tuple[JobPlan, IPUJob]:
    """One look: the plan, and the job with the status that comes of it."""
    found = plan(job, pods, partitions, now)
    return found, replace(job, status=build_status(job, found, pods, partitions, now))


def running(job: IPUJob, restart: int = 0) -> list[Pod]:
    return [pod(job, 0, restart=restart), pod(job, -1, restart=restart)]


def test_an_instance_that_is_active_for_too_long_fails_with_a_jobs_reason() -> None:
    job = limited(restart=RestartType.ALWAYS)
    found, job = look(job, running(job), held(ready(job)), START)
    assert found.requeue_after_s == LIMIT_S, "it looks again when the time is over"
    before = job.status
    found, job = look(job, running(job), held(ready(job)), add_seconds(START, LIMIT_S - 1))
    assert (found.acts, found.requeue_after_s) == ((), 1)
    found, job = look(job, running(job), held(ready(job)), add_seconds(START, LIMIT_S))
    assert found.acts == (DeletePod("sample-launcher", "uid-sample-launcher"),), "whatever restarts it"
    assert found.save_status_first
    assert job.status.state == "Failed"
    assert job.status.message == "it was active for longer than the 60 s of spec.activeDeadlineSeconds"
    assert [one.reason for one in job.status.conditions if one.type == "Failed"] == ["DeadlineExceeded"]
    assert [story.reason for story in build_events(before, job.status)] == ["DeadlineExceeded"]
    found, job = look(job, [pod(job, 0), pod(job, -1, FAILED)], held(ready(job)), add_seconds(START, LIMIT_S + 1))
    assert found.acts == (ReleasePartition(0),)


def test_the_wait_for_a_partition_does_not_count() -> None:
    job = limited()
    _, job = look(job, [], held(build_partition(job, state=shapes.WAITING)), add_seconds(START, 5 * LIMIT_S))
    begun = add_seconds(START, 6 * LIMIT_S)
    found, job = look(job, [], held(ready(job, begun)), add_seconds(begun, 10))
    assert any(isinstance(act, CreateLauncher) for act in found.acts)
    assert found.requeue_after_s == LIMIT_S - 10, "as its claim counts, from when the partition was ready"


def test_it_counts_over_restarts() -> None:
    job = limited(restart=RestartType.ON_FAILURE)
    _, job = look(job, running(job), held(ready(job)), START)
    failed = [pod(job, 0), pod(job, -1, FAILED, exit_code=1, ended_at=add_seconds(START, 50))]
    _, job = look(job, failed, held(ready(job)), add_seconds(START, 50))
    assert job.status.instances[0].restarts == 1
    _, job = look(job, running(job, 1), held(ready(job)), add_seconds(START, LIMIT_S))
    assert job.status.instances[0].reason == "DeadlineExceeded"


def test_it_counts_over_partitions_without_the_time_between_them() -> None:
    job = limited(restart=RestartType.ON_FAILURE)
    _, job = look(job, running(job), held(ready(job)), START)
    lost = build_partition(job, state=shapes.LOST)
    _, job = look(job, running(job), held(lost), add_seconds(START, 20))
    found, job = look(job, [], held(lost), add_seconds(START, 25))
    assert found.acts == (ReleasePartition(0),)
    assert job.status.instances[0].active_seconds == 25
    found, job = look(job, [], held(), add_seconds(START, 1000))
    assert found.acts == (AcquirePartition(0),)
    assert build_partition_request(job, 0, 0).time_limit_s == LIMIT_S - 25, (
        "what is left of it is the new claim's limit"
    )
    found, job = look(job, [], held(ready(job, add_seconds(START, 2000))), add_seconds(START, 2000))
    assert found.requeue_after_s == LIMIT_S - 25


def test_a_program_that_ended_by_itself_has_not_exceeded_its_deadline() -> None:
    job = limited()
    _, job = look(job, running(job), held(ready(job)), START)
    done = [pod(job, 0), pod(job, -1, SUCCEEDED, ended_at=add_seconds(START, LIMIT_S))]
    _, job = look(job, done, held(ready(job)), add_seconds(START, LIMIT_S + 5))
    assert job.status.instances[0].outcome is InstanceOutcome.DONE


@pytest.mark.parametrize("ended_s", [10, LIMIT_S], ids=["by-itself", "at-its-limit"])
def test_a_partition_that_is_kept_after_the_end_goes_at_its_claims_time_limit(ended_s: int) -> None:
    job = replace(limited(), release_on_finish=False)
    _, job = look(job, running(job), held(ready(job)), START)
    if ended_s == LIMIT_S:
        _, job = look(job, running(job), held(ready(job)), add_seconds(START, LIMIT_S))
    ended = [pod(job, 0), pod(job, -1, SUCCEEDED, ended_at=add_seconds(START, ended_s))]
    if ended_s < LIMIT_S:
        found, job = look(job, ended, held(ready(job)), add_seconds(START, ended_s))
        assert (found.acts, found.requeue_after_s) == ((), LIMIT_S - ended_s)
    found, _ = look(job, ended, held(ready(job)), add_seconds(START, LIMIT_S))
    assert found.acts == (ReleasePartition(0),), "others were promised its IPUs"


def test_what_is_remembered_of_it_is_read_as_it_was_written() -> None:
    record = InstanceStatus(restarts=1, reason="DeadlineExceeded", started_at=START, active_seconds=7)
    status = IPUJobStatus(state="Running", instances={0: record})
    assert parse_status(status_object(status)).instances == {0: record}


def test_without_a_deadline_nothing_is_remembered() -> None:
    job = build_job()
    _, job = look(job, running(job), held(ready(job)), START)
    assert job.status.instances == {}
    assert build_partition_request(job, 0, 0).time_limit_s is None


def test_a_finished_job_is_deleted_when_its_time_is_over() -> None:
    job = build_job(ttl_s_after_finished=KEPT_S, clean_pod_policy=CleanPodPolicy.NONE)
    done = [pod(job, 0), pod(job, -1, SUCCEEDED, ended_at=START)]
    _, job = look(job, done, held(ready(job)), START)
    found, _ = look(job, done, held(), add_seconds(START, 1))
    assert (found.acts, found.requeue_after_s) == ((), KEPT_S - 1)
    found, kept = look(job, done, held(), add_seconds(START, KEPT_S))
    assert found.acts == (DeleteJob(),)
    assert kept.status == job.status


@pytest.mark.parametrize("state", ["Running", "Pending"])
def test_a_job_that_has_not_ended_is_not_deleted(state: str) -> None:
    job = build_job(ttl_s_after_finished=0, status=IPUJobStatus(state=state, started_at=START))
    found, _ = look(
        job, [pod(job, 0, RUNNING), pod(job, -1, RUNNING)], held(ready(job)), add_seconds(START, 10 * KEPT_S)
    )
    assert DeleteJob() not in found.acts


# -- estimated ---------------------------------------------------------------------------------------------------------


def test_by_when_it_starts_is_told_with_how_sure_that_is() -> None:
    job = build_job(JobKind.INFERENCE, instances=2)
    at = add_seconds(START, 600.4)
    first, second = (
        build_partition(job, number, shapes.WAITING, message="no block of 1 IPUs is free") for number in (0, 1)
    )
    _, job = look(job, [], held(replace(first, starts_at=format_time(at)), second), START)
    assert (job.status.starts_at, job.status.certainty) == (None, ""), "not all were asked yet"
    told = held(
        replace(first, starts_at=format_time(at)), replace(second, starts_at=format_time(add_seconds(START, 60)))
    )
    _, job = look(job, [], told, START)
    assert (job.status.starts_at, job.status.certainty) == (add_seconds(START, 601), "AtLatest")
    clock = format_time(add_seconds(at, 60))[:16].replace("T", " ")
    expected = f"no block of 1 IPUs is free; it starts by {clock} UTC, unless others come first"
    assert job.status.message.startswith(f"waiting for a partition of 1 IPU: {expected}")
    assert parse_status(status_object(job.status)) == job.status, "or it would be written at each look"
    _, job = look(job, [], held(ready(job), build_partition(job, 1)), START)
    assert (job.status.starts_at, job.status.certainty) == (None, ""), "it does not wait any more"


def test_why_nobody_knows_when_it_starts_is_told() -> None:
    job = build_job()
    waiting = build_partition(job, state=shapes.WAITING, unsure="1 claim that holds devices has no time limit")
    _, job = look(job, [], held(waiting), START)
    assert (job.status.starts_at, job.status.certainty) == (None, "Unknown")
    assert job.status.message.endswith("when it starts is unknown: 1 claim that holds devices has no time limit")


# -- suspended ---------------------------------------------------------------------------------------------------------


def test_a_suspended_job_asks_for_nothing() -> None:
    found, job = look(build_job(suspended=True), [], held(), START)
    assert found.acts == ()
    assert (job.status.state, job.status.message) == ("Suspended", HOLDS_NOTHING)
    assert [one.type for one in job.status.conditions if one.status] == ["Suspended"]


def test_what_runs_is_stopped_before_its_partition_is_given_back() -> None:
    job = limited()
    _, job = look(job, running(job), held(ready(job)), START)
    assert (job.status.active, job.status.ready) == (2, 2)
    job = replace(job, suspended=True)
    found, job = look(job, running(job), held(ready(job)), add_seconds(START, 10))
    assert {act.name for act in found.acts if isinstance(act, DeletePod)} == {"sample-worker-0", "sample-launcher"}
    assert found.save_status_first, "that it starts anew rests on it"
    assert job.status.state == "Suspended"
    ending = [replace(one, deleting=True) for one in running(job)]
    found, job = look(job, ending, held(ready(job)), add_seconds(START, 11))
    assert found.acts == ()
    assert (job.status.active, job.status.ready, job.status.workers_active) == (2, 0, 0)
    assert job.status.message == "waiting for sample-worker-0 and 1 more Pods to end"
    found, job = look(job, [], held(ready(job)), add_seconds(START, 12))
    assert found.acts == (ReleasePartition(0),)
    assert job.status.active == 0
    assert job.status.instances[0].started_at is None, "its time begins anew, as a Job's"


def test_a_program_that_was_stopped_is_not_done_though_it_ends_well_and_after_it_was_resumed() -> None:
    job = build_job()
    _, job = look(job, running(job), held(ready(job)), START)
    _, job = look(replace(job, suspended=True), running(job), held(ready(job)), START)
    left = [pod(job, 0, deleting=True), pod(job, -1, SUCCEEDED, deleting=True, ended_at=START)]
    for suspended in (True, False):
        _, job = look(replace(job, suspended=suspended), left, held(ready(job)), add_seconds(START, 1))
        assert job.status.instances.get(0, InstanceStatus()).outcome is None
    assert job.status.state == "Restarting"
    found, job = look(job, [], held(), add_seconds(START, 2))
    assert found.acts == (AcquirePartition(0),)


def test_events_tell_that_it_was_suspended_and_resumed() -> None:
    job = build_job()
    _, job = look(job, running(job), held(ready(job)), START)
    before = job.status
    _, job = look(replace(job, suspended=True), running(job), held(ready(job)), START)
    assert [story.reason for story in build_events(before, job.status)] == ["Suspended"]
    before = job.status
    _, job = look(replace(job, suspended=False), [], held(), START)
    assert [story.reason for story in build_events(before, job.status)] == ["Resumed"]


def test_a_job_that_has_ended_stays_as_it_ended() -> None:
    job = build_job()
    done = [pod(job, 0), pod(job, -1, SUCCEEDED, ended_at=START)]
    _, job = look(job, done, held(ready(job)), START)
    _, job = look(replace(job, suspended=True), done, held(), START)
    assert job.status.state == "Completed"
