"""One decision at a time: what a plan says about a job in a given state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.kubernetes.ipujob.pods import FAILED, PENDING, RUNNING, SUCCEEDED, Pod
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
    AddFinalizer,
    CleanPartition,
    CreateLauncher,
    CreateWorker,
    DeletePod,
    DropFinalizer,
    EnsureJobObjects,
    ReleasePartition,
    YieldPartition,
)
from moorings.kubernetes.operator.plan import JobPartitions, JobPlan, PartitionPause, backoff_s, plan
from moorings.kubernetes.operator.status import build_status
from moorings.kubernetes.proxy_api import shapes
from moorings.kubernetes.proxy_api.shapes import PartitionBody
from moorings.wire.codec import format_time
from tests.cases import cases
from tests.unit.kubernetes.jobs import START, build_job, build_partition

INFERENCE = JobKind.INFERENCE
DONE = InstanceStatus(outcome=InstanceOutcome.DONE)


def pod(job: IPUJob, number: int, phase: str = RUNNING, **changes: Any) -> Pod:
    """A worker's Pod; the launcher's with a negative number."""
    instance = number // job.workers if number >= 0 else 0
    name = f"{job.name}-worker-{number}" if number >= 0 else f"{job.name}-launcher"
    found = Pod(name, f"uid-{name}", instance, number, 0, f"{job.name}-{instance}", phase, phase == RUNNING, False)
    return replace(found, **changes)


def held(*bodies: PartitionBody) -> JobPartitions:
    known = {body.instance: body for body in bodies}
    return JobPartitions(known, is_complete=True, is_watched=True, unused=frozenset(known))


def decide(
    job: IPUJob, pods: list[Pod], partitions: JobPartitions, now: Timestamp = START
) -> tuple[JobPlan, IPUJobStatus]:
    found = plan(job, pods, partitions, now)
    return found, build_status(job, found, pods, partitions, now)


def test_a_new_job_asks_for_its_partition_before_it_makes_any_pod() -> None:
    job = build_job(finalizers=())
    found, status = decide(job, [], held())
    assert found.acts == (AddFinalizer(), AcquirePartition(0))
    assert (status.state, status.current, status.desired) == ("Pending", 0, 1)
    assert status.message == "waiting for a partition of 1 IPU"


@pytest.mark.parametrize("state", [shapes.WAITING, shapes.PREPARING, shapes.RELEASING, "NEW_WORD"])
def test_no_pod_is_made_before_the_partition_is_ready(state: str) -> None:
    job = build_job(ipus=4)
    found, status = decide(job, [], held(build_partition(job, state=state, message="3 of 4 IPUs are free")))
    assert found.acts == ()
    assert status.state == "Pending"
    assert status.message.startswith("waiting for")


def test_why_it_waits_is_a_sentence() -> None:
    job = build_job(INFERENCE, ipus=4, instances=4)
    pods = [pod(job, number) for number in range(3)]
    waiting = build_partition(job, 3, shapes.WAITING, message="no block of 4 IPUs is free")
    _, status = decide(job, pods, held(*(build_partition(job, i) for i in range(3)), waiting))
    assert status.state == "Pending"
    assert (status.current, status.desired) == (3, 4)
    expected = "waiting for a partition of 4 IPUs: no block of 4 IPUs is free; 3 of 4 instances running"
    assert status.message == expected


def test_with_its_partition_a_training_job_gets_all_its_pods_at_once() -> None:
    job = build_job(workers=2, ipus=2)
    found, status = decide(job, [], held(build_partition(job)))
    launcher = CreateLauncher(0, 0, reset=False)
    assert found.acts == (EnsureJobObjects(), CreateWorker(0, 0), CreateWorker(1, 0), launcher)
    assert status.state == "Pending"
    assert status.current == 0, "it has no Pods yet"
    assert status.partition_created


def test_it_runs_when_its_launcher_does() -> None:
    job = build_job()
    pods = [pod(job, 0), pod(job, -1)]
    found, status = decide(job, pods, held(build_partition(job)))
    assert found.acts == ()
    assert (status.state, status.message) == ("Running", "Successfully reconciled IPUJob")
    assert [one.message for one in status.conditions if one.updated_at] == ["IPUJob default/sample is running."]
    assert (status.launcher, status.workers_active) == ("Running", 1)


def test_a_pod_that_cannot_start_is_named_with_kubelets_reason() -> None:
    job = build_job(INFERENCE)
    pods = [pod(job, 0, PENDING, reason_text="ImagePullBackOff: Back-off pulling image")]
    _, status = decide(job, pods, held(build_partition(job)))
    assert status.message == "waiting for sample-worker-0: ImagePullBackOff: Back-off pulling image"


def test_columns_while_an_inference_job_grows() -> None:
    """The seed's tables: an instance counts from its Pod's making; Pending only while one has none."""
    job = build_job(INFERENCE, instances=2)
    pods = [pod(job, 0), pod(job, 1, PENDING)]
    _, status = decide(job, pods, held(build_partition(job), build_partition(job, 1)))
    assert (status.state, status.current, status.desired) == ("Running", 2, 2)
    assert status.message == "Successfully reconciled IPUJob"
    job = build_job(INFERENCE, instances=4)
    _, status = decide(job, pods, held(build_partition(job), build_partition(job, 1)))
    assert (status.state, status.current, status.desired) == ("Pending", 2, 4)


def test_scaling_down_takes_pods_before_partitions() -> None:
    job = build_job(INFERENCE)
    pods = [pod(job, 0), pod(job, 1)]
    both = held(build_partition(job), build_partition(job, 1))
    assert decide(job, pods, both)[0].acts == (DeletePod("sample-worker-1", "uid-sample-worker-1"),)
    assert decide(job, [pods[0], replace(pods[1], deleting=True)], both)[0].acts == ()
    found, status = decide(job, pods[:1], both)
    assert found.acts == (ReleasePartition(1),)
    assert (status.state, status.current, status.desired) == ("Running", 1, 1)


def test_done_it_gives_its_partition_back_and_keeps_its_pods() -> None:
    job = build_job()
    pods = [pod(job, 0), pod(job, -1, SUCCEEDED, exit_code=0)]
    found, status = decide(job, pods, held(build_partition(job)))
    assert found.save_status_first
    assert found.acts == (ReleasePartition(0),)
    assert (status.state, status.message, status.current) == ("Completed", "All instances done", 0)
    assert status.completed_at == START


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        (CleanPodPolicy.NONE, set()),
        (CleanPodPolicy.WORKERS, {"sample-worker-0"}),
        (CleanPodPolicy.ALL, {"sample-worker-0", "sample-launcher"}),
    ],
)
@pytest.mark.parametrize("phase", [SUCCEEDED, FAILED])
def test_clean_pod_policies(policy: CleanPodPolicy, names: set[str], phase: str) -> None:
    job = build_job(clean_pod_policy=policy)
    pods = [pod(job, 0), pod(job, -1, phase, exit_code=0 if phase == SUCCEEDED else 3)]
    found, _ = decide(job, pods, held(build_partition(job)))
    assert {act.name for act in found.acts if isinstance(act, DeletePod)} == names
    assert ReleasePartition(0) in found.acts


def test_a_job_may_keep_its_partition_when_it_has_ended() -> None:
    job = build_job(release_on_finish=False)
    pods = [pod(job, 0), pod(job, -1, SUCCEEDED)]
    assert decide(job, pods, held(build_partition(job)))[0].acts == ()


RESTARTS = [
    (RestartType.ALWAYS, 0, True),
    (RestartType.ALWAYS, 1, True),
    (RestartType.ON_FAILURE, 0, False),
    (RestartType.ON_FAILURE, 1, True),
    (RestartType.ON_FAILURE, None, True),
    (RestartType.NEVER, 0, False),
    (RestartType.NEVER, 137, False),
    (RestartType.EXIT_CODE, 0, False),
    (RestartType.EXIT_CODE, 1, False),
    (RestartType.EXIT_CODE, 127, False),
    (RestartType.EXIT_CODE, 128, True),
    (RestartType.EXIT_CODE, 255, True),
    (RestartType.EXIT_CODE, None, True),
]


@cases(("policy", "code", "again"), RESTARTS)
@cases("kind", [JobKind.TRAINING, INFERENCE])
def test_restart_policies(policy: RestartType, code: int | None, again: bool, kind: JobKind) -> None:
    job = build_job(kind, restart_policy=policy)
    phase = SUCCEEDED if code == 0 else FAILED
    ended = pod(job, -1 if job.has_launcher else 0, phase, exit_code=code)
    pods = [ended, pod(job, 0)] if job.has_launcher else [ended]
    found, status = decide(job, pods, held(build_partition(job)))
    assert found.save_status_first
    if again:
        assert (status.state, status.restart_count) == ("Restarting", 1)
        assert {act.name for act in found.acts if isinstance(act, DeletePod)} == {one.name for one in pods}
        assert ReleasePartition(0) not in found.acts
    else:
        assert (status.state, status.restart_count) == ("Completed" if code == 0 else "Failed", 0)
        assert ReleasePartition(0) in found.acts


@cases(("policy", "code", "again"), [one for one in RESTARTS if one[2]])
def test_clean_pod_policy_all_overrides_restarts(policy: RestartType, code: int | None, again: bool) -> None:
    job = build_job(restart_policy=policy, clean_pod_policy=CleanPodPolicy.ALL)
    phase = SUCCEEDED if code == 0 else FAILED
    _, status = decide(job, [pod(job, 0), pod(job, -1, phase, exit_code=code)], held(build_partition(job)))
    assert status.state == ("Completed" if code == 0 else "Failed")


def test_failures_count_against_the_limit_and_are_counted_once() -> None:
    job = build_job(restart_policy=RestartType.ON_FAILURE, backoff_limit=1)
    first = pod(job, -1, FAILED, exit_code=1, reason_text="exit code 1")
    _, status = decide(job, [pod(job, 0), first], held(build_partition(job)))
    assert status.instances[0].failures == 1
    # The same Pod again, after its failure was saved: nothing more is counted.
    found, status = decide(replace(job, status=status), [pod(job, 0), first], held(build_partition(job)))
    assert not found.save_status_first
    assert status.restart_count == 1
    second = replace(first, restart=1)
    job = replace(job, status=status)
    _, status = decide(job, [pod(job, 0, restart=1), second], held(build_partition(job)))
    assert status.state == "Failed"
    assert "back-off limit" in status.message
    assert status.restart_count == 1


def test_a_restart_waits_longer_each_time_and_what_has_ended_stays_to_be_read() -> None:
    job = build_job(restart_policy=RestartType.ON_FAILURE, backoff_limit=9)
    record = InstanceStatus(restarts=4, failures=4, detail="exit code 1")
    job = replace(job, status=IPUJobStatus(instances={0: record}))
    ended = pod(job, -1, FAILED, exit_code=1, restart=3, ended_at=START)
    idle = pod(job, 0, restart=3)
    found, _ = decide(job, [idle, ended], held(build_partition(job)), add_seconds(START, 1.0))
    assert found.acts == (DeletePod(idle.name, idle.uid),)
    assert found.requeue_after_s == pytest.approx(backoff_s(4) - 1.0)
    found, _ = decide(job, [ended], held(build_partition(job)), add_seconds(START, backoff_s(4)))
    assert found.acts == (DeletePod(ended.name, ended.uid),)
    assert [backoff_s(number) for number in (1, 2, 3, 4, 99)] == [0.0, 5.0, 10.0, 20.0, 300.0]


def test_a_used_partition_is_cleaned_before_anything_starts_anew() -> None:
    again = IPUJobStatus(instances={0: InstanceStatus(restarts=1, failures=1)})
    job = build_job(INFERENCE, status=again)
    used = JobPartitions({0: build_partition(job)}, is_complete=True)
    found, _ = decide(job, [], used)
    assert found.acts == (EnsureJobObjects(), CleanPartition(0), CreateWorker(0, 1))
    job = build_job(status=again)
    found, _ = decide(job, [], used)
    assert CreateLauncher(0, 1, reset=True) in found.acts


@pytest.mark.parametrize(("phase", "code"), [(FAILED, 143), (SUCCEEDED, 0)])
def test_a_pod_deleted_by_hand_is_made_again_and_not_counted(phase: str, code: int) -> None:
    """Whatever its program makes of the signal: one that saves and leaves well is not done."""
    job = build_job(INFERENCE)
    going = pod(job, 0, phase, deleting=True, exit_code=code)
    found, status = decide(job, [going], held(build_partition(job)))
    assert found.acts == ()
    assert (status.restart_count, status.state) == (0, "Pending")
    found, _ = decide(job, [], held(build_partition(job)))
    assert CreateWorker(0, 0) in found.acts


def test_a_launcher_that_is_gone_takes_its_workers_with_it() -> None:
    """What it had started may still run in them, on a partition that is cleaned for the next one."""
    job = build_job()
    found, status = decide(job, [pod(job, 0)], JobPartitions({0: build_partition(job)}, is_complete=True))
    assert found.acts == (DeletePod("sample-worker-0", "uid-sample-worker-0"),)
    assert status.restart_count == 0
    found, _ = decide(job, [pod(job, 0, PENDING)], held(build_partition(job)))
    assert [type(act) for act in found.acts] == [EnsureJobObjects, CreateLauncher]


def test_a_launcher_that_cannot_reach_the_proxy_any_more_is_made_anew_and_not_counted() -> None:
    job = build_job(JobKind.TRAINING)
    pods = [pod(job, 0), pod(job, -1, PENDING, has_stale_proxy=True)]
    found, status = decide(job, pods, held(build_partition(job)))
    assert found.acts == (DeletePod(pods[1].name, pods[1].uid),)
    assert "could not reach the proxy" in status.message
    assert found.records == {}
    found, _ = decide(job, [pods[0], replace(pods[1], deleting=True)], held(build_partition(job)))
    assert found.acts == ()


def test_always_starts_anew_after_a_pause_also_after_success() -> None:
    job = build_job(INFERENCE, restart_policy=RestartType.ALWAYS)
    done = pod(job, 0, SUCCEEDED, exit_code=0, ended_at=START)
    found, status = decide(job, [done], held(build_partition(job)))
    assert found.acts == ()
    assert found.requeue_after_s == pytest.approx(5.0)
    assert status.restart_count == 1
    found, _ = decide(replace(job, status=status), [done], held(build_partition(job)), add_seconds(START, 5.0))
    assert found.acts == (DeletePod(done.name, done.uid),)


def test_pods_that_the_api_server_never_takes_fail_their_instance() -> None:
    job = build_job(INFERENCE, instances=2, restart_policy=RestartType.ALWAYS)
    partitions = held(build_partition(job), build_partition(job, 1))
    found = plan(job, [pod(job, 0)], partitions, START, {1: "Pod is invalid: volumes[0]"})
    assert found.acts == (ReleasePartition(1),)
    assert found.records[1].outcome is InstanceOutcome.FAILED
    assert plan(job, [pod(job, 0)], partitions, START, {0: "it runs"}).acts[-1] != ReleasePartition(0)


@pytest.mark.parametrize("kind", [INFERENCE, JobKind.TRAINING])
def test_what_is_refused_its_pods_for_long_gives_its_partition_back(kind: JobKind) -> None:
    job = build_job(kind, workers=2, instances=2)
    one, both = pod(job, 2), [pod(job, 0), pod(job, 1)]
    partitions = held(build_partition(job), build_partition(job, 1))
    why = 'pods "sample-worker-3" is forbidden: exceeded quota'
    refused = {1: PartitionPause(why, starting=True)}
    found = plan(job, [*both, one], partitions, START, paused=refused)
    assert [act for act in found.acts if getattr(act, "instance", 1) == 1][-1:] == [DeletePod(one.name, one.uid)]
    assert ReleasePartition(1) not in found.acts, "its Pods go first"
    found = plan(job, [*both, replace(one, deleting=True)], partitions, START, paused=refused)
    assert not {DeletePod(one.name, one.uid), ReleasePartition(1)} & set(found.acts)
    found = plan(job, both, partitions, START, paused=refused)
    assert ReleasePartition(1) in found.acts
    assert why in found.instances[1].message
    assert found.records.get(1) is None, "it has not failed"
    found = plan(job, both, held(build_partition(job)), START, paused=refused)
    assert not [act for act in found.acts if act in (ReleasePartition(1), AcquirePartition(1))]
    assert AcquirePartition(1) in plan(job, both, held(build_partition(job)), START).acts


@pytest.mark.parametrize("starting", [False, True])
def test_a_program_that_runs_is_not_stopped_because_a_pod_of_it_is_refused(starting: bool) -> None:
    job = build_job(workers=2)
    pods = [pod(job, -1), pod(job, 0)]
    found = plan(job, pods, held(build_partition(job)), START, paused={0: PartitionPause("a quota", starting)})
    assert (DeletePod(pods[0].name, pods[0].uid) in found.acts) == starting, "it was never whole, else it runs"
    done = [replace(pods[0], phase=SUCCEEDED, exit_code=0, ended_at=START), pods[1]]
    for refused in ({}, {0: "Pod is invalid: volumes[0]"}):
        found = plan(job, done, held(build_partition(job)), START, refused, {0: PartitionPause("a quota", starting)})
        assert found.records[0].outcome is InstanceOutcome.DONE
    failed = [replace(pods[0], phase=FAILED, exit_code=3, ended_at=START, reason_text="exit code 3"), pods[1]]
    again = replace(job, restart_policy=RestartType.ON_FAILURE)
    found = plan(again, failed, held(build_partition(job)), START, {0: "Pod is invalid: volumes[0]"})
    assert found.records[0].outcome is InstanceOutcome.FAILED
    words = "sample-launcher failed: exit code 3; it cannot be started anew: Pod is invalid: volumes[0]"
    assert found.records[0].detail == words


def test_what_is_left_of_a_failed_attempt_goes_though_no_pod_can_be_made_any_more() -> None:
    job = build_job(INFERENCE, workers=2, restart_policy=RestartType.ON_FAILURE)
    failed, left = pod(job, 0, FAILED, exit_code=3, ended_at=START, reason_text="exit code 3"), pod(job, 1)
    refused = {0: "Pod is invalid: volumes[0]"}
    found = plan(job, [failed, left], held(build_partition(job)), START, refused)
    assert found.records[0].outcome is InstanceOutcome.FAILED
    assert found.acts == (DeletePod(left.name, left.uid),), "its partition is in use until that has ended"
    job = replace(job, status=replace(job.status, instances=found.records))
    assert plan(job, [failed], held(build_partition(job)), START, refused).acts == (ReleasePartition(0),)


def test_a_job_that_has_ended_keeps_its_desired_instances_however_it_is_scaled() -> None:
    job = build_job(INFERENCE, status=IPUJobStatus(state="Completed", desired=1, instances={0: DONE}))
    _, status = decide(replace(job, instances=2), [], held())
    assert (status.state, status.desired) == ("Completed", 1)


def test_a_dead_worker_fails_its_job_though_the_launcher_runs() -> None:
    job = build_job()
    pods = [pod(job, 0, FAILED, exit_code=137, reason_text="exit code 137 (OOMKilled)"), pod(job, -1)]
    found, status = decide(job, pods, held(build_partition(job)))
    assert status.message == "sample-worker-0 failed: exit code 137 (OOMKilled)"
    # The launcher still uses the partition: it goes first, and the partition when it has ended.
    assert found.acts == (DeletePod("sample-launcher", "uid-sample-launcher"),)
    pods[1] = replace(pods[1], phase=FAILED, deleting=True)
    assert decide(replace(job, status=status), pods, held(build_partition(job)))[0].acts == (ReleasePartition(0),)


@pytest.mark.parametrize(
    ("bodies", "message"),
    [
        ([{"state": shapes.LOST, "message": "pod1 does not have it"}], "its partition sample-0 vanished: pod1 does"),
        ([], "its partition sample-0 is not held any more"),
        ([{"name": "other"}], "its partition sample-0 was replaced by other"),
    ],
)
def test_a_partition_that_vanishes_ends_the_attempt(bodies: list[dict[str, Any]], message: str) -> None:
    job = build_job(INFERENCE)
    partitions = held(*(build_partition(job, **body) for body in bodies))
    found, status = decide(job, [pod(job, 0)], partitions)
    assert status.state == "Failed"
    assert status.message.startswith(message)
    assert DeletePod("sample-worker-0", "uid-sample-worker-0") in found.acts
    assert ReleasePartition(0) not in found.acts
    job = replace(job, restart_policy=RestartType.EXIT_CODE)
    assert decide(job, [pod(job, 0)], partitions)[1].state == "Restarting"


@pytest.mark.parametrize("phase", [SUCCEEDED, FAILED])
def test_what_is_left_of_an_instance_that_was_given_up_is_no_failure_when_it_is_wanted_again(phase: str) -> None:
    """It was scaled to nothing, its partition is given back, and its Pod ends while it is scaled up again."""
    job = build_job(INFERENCE, restart_policy=RestartType.ON_FAILURE, preemptible=True)
    left = replace(pod(job, 0, phase=phase), deleting=True)
    found, status = decide(job, [left], held())
    assert found.acts == (AcquirePartition(0),)
    assert (status.state, status.instances.get(0, InstanceStatus()).failures) == ("Pending", 0)


def test_a_program_that_has_done_its_work_is_done_though_its_partition_vanished() -> None:
    job = build_job(JobKind.TRAINING)
    pods = [pod(job, 0), pod(job, -1, phase=SUCCEEDED)]
    assert decide(job, pods, held(build_partition(job, state=shapes.LOST)))[1].state == "Completed"


def test_nothing_is_concluded_while_the_proxy_does_not_tell_all() -> None:
    job = build_job(INFERENCE)
    found, status = decide(job, [pod(job, 0)], JobPartitions({}, is_complete=False))
    assert found.acts == ()
    assert status.state != "Failed"


@pytest.mark.parametrize("kind", [JobKind.INFERENCE, JobKind.TRAINING])
def test_a_program_that_runs_is_said_to_run_while_the_proxy_is_away(kind: JobKind) -> None:
    job = build_job(kind)
    pods = [pod(job, 0), *([pod(job, -1)] if kind is JobKind.TRAINING else [])]
    found, status = decide(job, pods, JobPartitions({}, is_complete=False))
    assert (found.acts, status.state, status.message) == ((), "Running", "Successfully reconciled IPUJob")
    waiting = [*pods[:-1], replace(pods[-1], phase=PENDING)]
    assert decide(job, waiting, JobPartitions({}, is_complete=False))[1].state == "Pending"


def test_a_lost_partition_is_given_back_when_its_pods_are_gone_and_another_is_asked_for() -> None:
    record = InstanceStatus(restarts=1, failures=1)
    job = build_job(INFERENCE, restart_policy=RestartType.ON_FAILURE, status=IPUJobStatus(instances={0: record}))
    assert decide(job, [], held(build_partition(job, state=shapes.LOST)))[0].acts == (ReleasePartition(0),)
    assert decide(job, [], held(build_partition(job, state=shapes.RELEASING)))[0].acts == ()
    assert decide(job, [], held())[0].acts == (AcquirePartition(0),)


def test_a_partition_that_can_never_be_fails_the_job() -> None:
    job = build_job(ipus=128)
    never = build_partition(job, state=shapes.FAILED, message="no pool has partitions of 128")
    found, status = decide(job, [], held(never))
    assert (status.state, status.message) == ("Failed", "no pool has partitions of 128")
    assert found.acts == (ReleasePartition(0),)


def test_one_instance_that_fails_leaves_the_others_alone() -> None:
    job = build_job(INFERENCE, instances=2)
    pods = [pod(job, 0), pod(job, 1, FAILED, exit_code=2, reason_text="exit code 2")]
    found, status = decide(job, pods, held(build_partition(job), build_partition(job, 1)))
    assert found.acts == (ReleasePartition(1),)
    assert (status.state, status.current, status.desired) == ("Running", 1, 2)
    assert status.message == "1 of 2 instances failed: sample-worker-1 failed: exit code 2"
    assert status.instances[1].outcome is InstanceOutcome.FAILED


def test_a_deleted_job_goes_pods_first_then_partitions_then_itself() -> None:
    job = build_job(deleted=True)
    pods = [pod(job, 0), pod(job, -1)]
    body = build_partition(job)
    assert {act.name for act in decide(job, pods, held(body))[0].acts if isinstance(act, DeletePod)} == {
        "sample-worker-0",
        "sample-launcher",
    }
    assert decide(job, [replace(pods[0], deleting=True)], held(body))[0].acts == ()
    assert decide(job, [], held(body))[0].acts == (ReleasePartition(0),)
    assert decide(job, [], JobPartitions({}))[0].acts == ()
    away = JobPartitions({0: body}, is_watched=True)
    assert decide(job, [], away)[0].acts == (ReleasePartition(0),), (
        "a controller that is away holds nothing up elsewhere"
    )
    assert decide(job, [], JobPartitions({}, is_watched=True))[0].acts == (DropFinalizer(),)
    making_room = build_partition(job, state=shapes.RELEASING, code="partition.removing")
    assert decide(job, [], held(making_room))[0].acts == (ReleasePartition(0),), "else it would wait again, for nobody"
    given_back = build_partition(job, state=shapes.RELEASING, code=shapes.GIVEN_BACK)
    assert decide(job, [], held(given_back))[0].acts == (DropFinalizer(),)
    assert decide(job, [], held())[0].acts == (DropFinalizer(),)
    assert decide(replace(job, finalizers=()), [], held())[0].acts == ()


def reclaimed(job: IPUJob, left_s: float = 60.0) -> JobPartitions:
    until = format_time(add_seconds(START, left_s))
    body = build_partition(job, state=shapes.RECLAIMING, until=until, message="its IPUs were lent, and are needed")
    return held(body)


def test_a_partition_that_is_needed_goes_back_when_the_pods_have_ended_the_launcher_first() -> None:
    job = build_job(workers=2, ipus=2)
    workers, launcher = [pod(job, 0), pod(job, 1)], pod(job, -1, grace_s=600)
    found, status = decide(job, [*workers, launcher], reclaimed(job))
    assert found.acts == (DeletePod(launcher.name, launcher.uid, 52),), "it has ended in time, whatever it says"
    told = f"making room until {format_time(add_seconds(START, 60.0))[11:19]} UTC: its IPUs were lent, and are needed"
    assert (status.state, status.message) == ("Pending", told)
    slow = replace(launcher, deleting=True, killed_at=add_seconds(START, 600.0))
    assert decide(job, [*workers, slow], reclaimed(job))[0].acts == found.acts, "somebody gave it more time"
    going = replace(launcher, deleting=True, killed_at=add_seconds(START, 52.0))
    assert decide(job, [*workers, going], reclaimed(job))[0].acts == (), "they may be saving"
    found, _ = decide(job, [replace(workers[0], deleting=True), workers[1]], reclaimed(job))
    assert found.acts == (DeletePod(workers[1].name, workers[1].uid, 30),)
    found, status = decide(job, [], reclaimed(job))
    assert found.acts == (YieldPartition(0),)
    assert found.records == {}, "nothing is charged"


def test_past_its_time_nobody_waits_for_a_launcher_that_does_not_end() -> None:
    job = build_job()
    lost = pod(job, -1, deleting=True)
    late = add_seconds(START, 61.0)
    found, _ = decide(job, [pod(job, 0), lost], reclaimed(job), late)
    assert found.acts == (DeletePod("sample-worker-0", "uid-sample-worker-0", 1),)
    assert decide(job, [lost], reclaimed(job), late)[0].acts == (), "law 3: it may be alive"


@pytest.mark.parametrize("phase", [SUCCEEDED, FAILED])
def test_how_pods_end_that_were_told_to_is_neither_done_nor_a_failure(phase: str) -> None:
    job = build_job(INFERENCE, preemptible=True)
    ended = pod(job, 0, phase, deleting=True, exit_code=0 if phase == SUCCEEDED else 143)
    for partitions in (reclaimed(job), JobPartitions({}, is_complete=False), held(build_partition(job))):
        found, status = decide(job, [ended], partitions)
        assert (status.state != "Completed", found.records) == (True, {}), "also while the proxy is away"


@pytest.mark.parametrize("first", [-1, 0], ids=["launcher", "worker"])
def test_that_a_pod_fails_without_those_that_were_told_to_end_is_no_failure(first: int) -> None:
    job = (
        build_job(workers=2, ipus=2, restart_policy=RestartType.NEVER) if first < 0 else build_job(INFERENCE, workers=2)
    )
    told, failed = pod(job, first, deleting=True), pod(job, 1, FAILED, exit_code=1)
    others = [pod(job, 0)] if first < 0 else []
    found, status = decide(job, [told, *others, failed], reclaimed(job))
    assert (status.state, found.records) == ("Pending", {})
    alone, _ = decide(job, [replace(told, deleting=False), *others, failed], reclaimed(job))
    assert alone.records, "it failed by itself"


def test_what_has_ended_before_it_was_told_to_counts_as_ever() -> None:
    job = build_job(INFERENCE)
    found, status = decide(job, [pod(job, 0, SUCCEEDED, exit_code=0)], reclaimed(job))
    assert status.state == "Completed"
    assert ReleasePartition(0) in found.acts


def test_who_gave_its_partition_back_waits_and_begins_anew_on_a_clean_one() -> None:
    job = build_job(INFERENCE)
    waiting = held(build_partition(job, state=shapes.WAITING, message="it waits in its old place"))
    found, status = decide(job, [], waiting)
    assert (found.acts, status.message) == ((), "waiting for a partition of 1 IPU: it waits in its old place")
    again = replace(held(build_partition(job, name="sample-0-r1")), unused=frozenset())
    assert decide(job, [], again)[0].acts == (EnsureJobObjects(), CleanPartition(0), CreateWorker(0, 0))
