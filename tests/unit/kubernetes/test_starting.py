"""An instance that has its IPUs and does not start gives them back for a while."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.kubernetes.ipujob.pods import FAILED, PENDING, RUNNING, Pod
from moorings.kubernetes.ipujob.types import InstanceStatus, IPUJob, IPUJobStatus, JobKind, RestartType, StartAttempts
from moorings.kubernetes.operator.actions import AcquirePartition, CreateWorker, DeletePod, ReleasePartition
from moorings.kubernetes.operator.executor import build_partition_request
from moorings.kubernetes.operator.plan import JobPartitions, JobPlan, plan
from moorings.kubernetes.operator.start_deadline import PAUSE_S_MAX, backoff_s, explain_pods
from moorings.kubernetes.operator.status import build_events, build_status
from moorings.kubernetes.proxy_api import shapes
from moorings.wire.codec import format_time
from tests.unit.kubernetes.jobs import START, build_job, build_partition

INFERENCE = JobKind.INFERENCE
DEADLINE_S = 60


def server(**changes: Any) -> IPUJob:
    return build_job(INFERENCE, **{"start_deadline_s": DEADLINE_S, **changes})


def worker(job: IPUJob, number: int = 0, phase: str = PENDING, **changes: Any) -> Pod:
    name = f"{job.name}-worker-{number}"
    found = Pod(name, f"uid-{name}", 0, number, 0, f"{job.name}-0", phase, phase == RUNNING, False, node="node1")
    return replace(found, **changes)


def held(job: IPUJob, state: str = shapes.READY) -> JobPartitions:
    return JobPartitions(
        {0: build_partition(job, state=state)}, is_complete=True, is_watched=True, unused=frozenset({0})
    )


def follow(
    job: IPUJob, pods: list[Pod], now: Timestamp, partitions: JobPartitions | None = None
) -> tuple[IPUJob, JobPlan, IPUJobStatus]:
    """One look; the job with the status that is saved then, as JSON has it: nothing else is remembered."""
    partitions = held(job) if partitions is None else partitions
    found = plan(job, pods, partitions, now)
    status = build_status(job, found, pods, partitions, now)
    return replace(job, status=status), found, status


FULL = "0/2 nodes are available: 2 Insufficient cpu."
STUCK: dict[str, Any] = {"waiting_reason": "Unschedulable", "reason_text": f"Unschedulable: {FULL}"}


def test_it_gives_its_partition_back_says_why_and_asks_again_later_each_time() -> None:
    job, now, pauses, status = server(), START, [], IPUJobStatus()
    for _ in range(8):
        job, found, _ = follow(job, [], now)
        assert CreateWorker(0, 0) in found.acts
        assert found.requeue_after_s == DEADLINE_S
        stuck = worker(job, **STUCK)
        now = add_seconds(now, DEADLINE_S)
        job, found, status = follow(job, [stuck], now)
        assert found.acts == (DeletePod(stuck.name, stuck.uid),)
        assert found.save_status_first, "an operator that dies now does not ask again at once"
        assert (status.state, status.current) == ("Pending", 0)
        job, found, _ = follow(job, [replace(stuck, deleting=True)], now)
        assert found.acts == (), "the partition stays until the Pods are gone"
        job, found, _ = follow(job, [], now)
        assert found.acts == (ReleasePartition(0),)
        none = JobPartitions(is_complete=True, is_watched=True)
        job, found, status = follow(job, [], now, none)
        assert found.acts == (), "others have the IPUs meanwhile"
        assert found.requeue_after_s is not None
        pauses.append(found.requeue_after_s)
        now = add_seconds(now, found.requeue_after_s)
        job, found, _ = follow(job, [], now, none)
        assert found.acts == (AcquirePartition(0),)
    assert pauses == [60, 120, 240, 480, 960, 1920, PAUSE_S_MAX, PAUSE_S_MAX]
    assert status.message == (
        "without a partition until 2026-09-21 17:24:20 UTC: it did not start in 60 s: "
        "sample-worker-0 cannot be scheduled: 0/2 nodes are available: 2 Insufficient cpu."
    )


def test_who_missed_a_start_asks_again_at_the_place_that_its_job_has() -> None:
    job = server()
    assert build_partition_request(job, 0, 0).waiting_since is None
    missed = replace(job, status=IPUJobStatus(instances={0: InstanceStatus(start=StartAttempts(missed=1))}))
    assert build_partition_request(missed, 0, 0).waiting_since == format_time(job.created_at)


def test_a_start_that_succeeds_forgets_the_deadlines_that_were_missed() -> None:
    missed = {0: InstanceStatus(start=StartAttempts(since=START, missed=3))}
    _, found, status = follow(server(status=IPUJobStatus(instances=missed)), [worker(server(), phase=RUNNING)], START)
    assert status.state == "Running"
    assert found.records == {}


def test_a_program_that_runs_is_not_stopped_however_long_it_takes_to_be_ready() -> None:
    job, _, _ = follow(server(), [], START)
    loading = worker(job, phase=RUNNING, ready=False)
    job, found, status = follow(job, [loading], add_seconds(START, 10 * DEADLINE_S))
    assert found.acts == ()
    assert status.state == "Running"


def test_a_program_that_ends_before_it_is_ready_again_and_again_misses_the_deadline() -> None:
    job, _, _ = follow(server(restart_policy=RestartType.ON_FAILURE, backoff_limit=1000), [], START)
    now, status = START, IPUJobStatus()
    for attempt in range(3):
        now = add_seconds(now, 25)
        crashed = worker(job, phase=FAILED, exit_code=1, reason_text="exit code 1", ended_at=now, restart=attempt)
        job, _, status = follow(job, [crashed], now)
        if status.instances[0].start.until is not None:
            break
        job, _, _ = follow(job, [], now)
    assert now == add_seconds(START, 75), "the restarts do not begin the time anew"
    assert "it crashes at start: sample-worker-0 failed: exit code 1" in status.message


def test_what_has_started_once_and_lacks_a_pod_now_is_not_at_its_start() -> None:
    job = server(workers=2, ipus=2)
    pods = [worker(job, number, RUNNING) for number in range(2)]
    job, _, _ = follow(job, pods, START)
    job, found, _ = follow(job, pods[:1], add_seconds(START, 10))
    assert CreateWorker(1, 0) in found.acts
    job, found, _ = follow(job, [pods[0], worker(job, 1, **STUCK)], add_seconds(START, 10 * DEADLINE_S))
    assert found.acts == ()


@pytest.mark.parametrize("deadline", [0, None])
def test_without_a_deadline_it_waits_and_one_taken_away_ends_a_pause(deadline: int | None) -> None:
    record = InstanceStatus(start=StartAttempts(missed=1, until=add_seconds(START, 500), why="x"))
    job = server(start_deadline_s=deadline, status=IPUJobStatus(instances={0: record}))
    job, found, _ = follow(job, [], START, JobPartitions(is_complete=True, is_watched=True))
    assert found.acts == (AcquirePartition(0),)
    job, found, _ = follow(job, [worker(job, **STUCK)], add_seconds(START, 1e6))
    assert found.acts == ()


def test_a_pause_is_no_longer_than_from_now_when_the_clock_was_set_back_or_the_deadline_shortened() -> None:
    year_s = 365 * 86_400
    record = InstanceStatus(start=StartAttempts(missed=2, until=add_seconds(START, year_s), why="x"))
    none = JobPartitions(is_complete=True, is_watched=True)
    job, found, _ = follow(server(status=IPUJobStatus(instances={0: record})), [], START, none)
    assert found.requeue_after_s == 2 * DEADLINE_S
    job, found, _ = follow(replace(job, start_deadline_s=10), [], START, none)
    assert found.requeue_after_s == 20
    _, found, _ = follow(job, [], add_seconds(START, 2 * DEADLINE_S), none)
    assert found.acts == (AcquirePartition(0),)


def test_a_start_that_began_in_the_future_begins_now() -> None:
    record = InstanceStatus(start=StartAttempts(since=add_seconds(START, 1e6)))
    _, found, _ = follow(server(status=IPUJobStatus(instances={0: record})), [worker(server(), **STUCK)], START)
    assert found.requeue_after_s == DEADLINE_S


@pytest.mark.parametrize("state", [shapes.WAITING, shapes.PREPARING, shapes.RECLAIMING])
def test_the_time_counts_from_when_it_has_its_partition(state: str) -> None:
    job, _, _ = follow(server(), [], START)
    job, _, _ = follow(job, [], add_seconds(START, 50), held(job, state))
    job, _, _ = follow(job, [], add_seconds(START, 100), held(job, shapes.WAITING))
    job, found, _ = follow(job, [], add_seconds(START, 110))
    assert CreateWorker(0, 0) in found.acts
    assert found.requeue_after_s == DEADLINE_S


def test_it_goes_on_counting_while_the_proxy_is_away() -> None:
    job, _, _ = follow(server(), [], START)
    job, _, _ = follow(job, [worker(job)], add_seconds(START, 50), JobPartitions())
    job, found, _ = follow(job, [worker(job)], add_seconds(START, DEADLINE_S))
    assert found.acts == (DeletePod("sample-worker-0", "uid-sample-worker-0"),)


def test_an_event_tells_of_it() -> None:
    job, _, before = follow(server(), [], START)
    _, _, after_ = follow(job, [worker(job, **STUCK)], add_seconds(START, DEADLINE_S))
    (story,) = build_events(before, after_)
    assert (story.type, story.reason) == ("Warning", "StartDeadlineExceeded")
    assert story.message.startswith("instance 0 gives its partition back: it did not start in 60 s: sample-worker-0")


@pytest.mark.parametrize(
    ("reason", "words", "told"),
    [
        ("Unschedulable", "0/1 nodes are available", "w cannot be scheduled: 0/1 nodes are available"),
        ("ImagePullBackOff", 'Back-off "x"', 'w cannot pull its image: ImagePullBackOff: Back-off "x"'),
        ("InvalidImageName", "no reference", "w cannot pull its image: InvalidImageName: no reference"),
        ("CrashLoopBackOff", "back-off 10s", "w crashes at start: CrashLoopBackOff: back-off 10s"),
        ("CreateContainerConfigError", "no secret", "w cannot start: CreateContainerConfigError: no secret"),
        ("", "", "w waits, and its node names no reason: an image is being pulled, or a volume is missing"),
    ],
)
def test_what_keeps_it_from_starting_is_told_apart(reason: str, words: str, told: str) -> None:
    job = build_job()
    why = f"{reason}: {words}" if reason else ""
    launcher = (
        worker(job, name="l", number=-1, waiting_reason="PodInitializing")
        if reason
        else worker(job, name="z", number=1)
    )
    assert explain_pods([launcher, worker(job, name="w", waiting_reason=reason, reason_text=why)], "it failed") == told
    assert explain_pods([], "it failed") == "it crashes at start: it failed"


@pytest.mark.parametrize(("deadline", "pause"), [(600, 3600), (7200, 7200), (1, 3600)])
def test_a_pause_is_bounded_and_never_shorter_than_the_time_its_ipus_were_idle(deadline: int, pause: int) -> None:
    assert backoff_s(deadline, 1) == deadline
    assert backoff_s(deadline, 1000) == pause
