"""What is seen of a run, and how it ended."""

from __future__ import annotations

from typing import Any

import pytest

from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.kubernetes.engine.run_folder import StopRecord, SubmittedIPUJob, TaskStatus
from moorings.kubernetes.engine.run_status import (
    build_end_record,
    have_all_ended,
    have_all_started,
    merge_task,
    parse_task,
)
from moorings.kubernetes.ipujob.types import InstanceOutcome, InstanceStatus, IPUJobStatus
from moorings.kubernetes.kube.api import KubeObject
from moorings.wire.codec import format_time
from moorings.workloads.runs import EndReason, EndRecord

BEGAN, NOW = Timestamp(1_800_000_000 * SECOND), Timestamp(1_800_000_100 * SECOND)
TWO = SubmittedIPUJob("runs", "run-1", 2, 30.0, time_limit_s=60.0)


def at(seconds: float) -> Timestamp:
    return Timestamp(BEGAN + round(seconds * SECOND))


def text(seconds: float) -> str:
    return format_time(at(seconds))[:19] + "Z"


def a_pod(state: KubeObject | None, *, asked_s: float | None = None, rank: int = 0, **status: Any) -> KubeObject:
    meta: KubeObject = {"name": f"run-1-worker-{rank}", "uid": f"u{rank}"}
    meta["labels"] = {"graphcore.ai/worker": str(rank), "graphcore.ai/restart": "0"}
    if asked_s is not None:
        meta |= {"deletionTimestamp": text(asked_s + 30), "deletionGracePeriodSeconds": 30}
    found = {"containerStatuses": [{"name": "task", "state": state}]} if state is not None else {}
    return {"metadata": meta, "status": {**found, **status}}


def ended(code: int, *, ended_s: float = 5, **more: Any) -> KubeObject:
    return {"terminated": {"exitCode": code, "startedAt": text(0), "finishedAt": text(ended_s), **more}}


def task_of(pod: KubeObject) -> TaskStatus:
    seen = parse_task(pod)
    assert seen is not None
    return seen.task


def verdict(
    *tasks: TaskStatus | None, stop: StopRecord | None = None, status: IPUJobStatus | None = None, gone: bool = False
) -> EndRecord:
    known = {rank: task for rank, task in enumerate(tasks) if task is not None}
    return build_end_record(TWO, known, stop, status, gone, NOW)


FINE = task_of(a_pod(ended(0)))


def test_a_pod_that_is_called_failed_while_its_container_runs_is_not_over() -> None:
    """Kubelets before 1.22 do so while the container has its grace period."""
    task = task_of(a_pod({"running": {"startedAt": text(0)}}, phase="Failed", reason="DeadlineExceeded"))
    assert not task.over
    assert task.began_at == BEGAN


def test_one_that_waits_has_neither_begun_nor_ended() -> None:
    for pod in (a_pod({"waiting": {"reason": "ErrImagePull"}}, phase="Pending"), a_pod(None, phase="Pending")):
        assert task_of(pod) == TaskStatus(uid="u0")


def test_a_pod_of_somebody_else_is_none() -> None:
    assert parse_task({"metadata": {"name": "x", "uid": "u"}}) is None


def test_a_program_that_is_not_there_was_never_begun() -> None:
    why = 'exec: "nope": executable file not found in $PATH'
    task = task_of(a_pod(ended(128, reason="StartError", message=why, startedAt="1970-01-01T00:00:00Z")))
    end = verdict(task, FINE)
    assert (end.ending, end.exit_code) == (EndReason.NOT_STARTED, 127)
    assert why in end.detail
    denied = task_of(a_pod(ended(128, reason="StartError", message='exec: "/etc": permission denied')))
    assert verdict(denied, FINE).exit_code == 126


def test_all_that_end_with_zero_have_succeeded() -> None:
    end = verdict(FINE, FINE, status=IPUJobStatus(state="Completed"))
    assert (end.ending, end.exit_code, end.task_codes, end.detail) == (EndReason.EXITED, 0, (0, 0), "")
    assert (end.started_at, end.ended_at) == (BEGAN, at(5))


def test_the_task_that_failed_by_itself_counts_and_not_those_that_were_stopped() -> None:
    """In the same second, which is all that Kubernetes tells."""
    stopped = task_of(a_pod(ended(143), asked_s=5))
    failed = task_of(a_pod(ended(9), rank=1))
    assert (stopped.stopped, failed.stopped) == (True, False)
    end = verdict(stopped, failed, status=IPUJobStatus(state="Failed"))
    assert (end.ending, end.exit_code, end.task_codes) == (EndReason.EXITED, 9, (143, 9))
    assert end.detail == "task 1 ended with exit code 9"


def test_one_that_ended_before_anybody_asked_it_to_was_not_stopped() -> None:
    assert not task_of(a_pod(ended(1, ended_s=3), asked_s=5)).stopped


def test_out_of_memory_is_told() -> None:
    end = verdict(task_of(a_pod(ended(137, reason="OOMKilled"))), FINE, status=IPUJobStatus(state="Failed"))
    assert end.detail == "task 0 ended with exit code 137 (OOMKilled)"


@pytest.mark.parametrize(
    ("why", "ending", "detail"),
    [
        ("asked", EndReason.CANCELLED, "alice asked for it"),
        ("limit", EndReason.TIMED_OUT, "stopped at its time limit of 1:00"),
    ],
)
def test_a_stopped_one_says_why_and_never_succeeds(why: str, ending: EndReason, detail: str) -> None:
    stop = StopRecord(why, "alice asked for it", at(4))
    end = verdict(FINE, FINE, stop=stop)
    assert (end.ending, end.task_codes) == (ending, (0, 0))
    assert end.exit_code != 0
    assert end.detail == detail


def test_one_that_was_stopped_before_it_began_has_no_codes() -> None:
    end = verdict(stop=StopRecord("asked", "enough", at(0)))
    assert (end.exit_code, end.task_codes, end.started_at, end.ended_at) == (143, (None, None), None, NOW)


def test_an_end_that_nobody_saw_was_a_kill() -> None:
    end = verdict(FINE, TaskStatus(began_at=BEGAN), gone=True)
    assert (end.ending, end.exit_code, end.task_codes) == (EndReason.CANCELLED, 137, (0, 137))
    assert end.detail == "IPUJob runs/run-1 was deleted in Kubernetes"


def test_an_evicted_one_is_lost_with_kubernetes_reason() -> None:
    task = task_of(a_pod(None, phase="Failed", reason="Evicted", message="The node was low on memory"))
    assert task.over
    end = verdict(task, FINE, status=IPUJobStatus(state="Failed", message="worker failed"))
    assert (end.ending, end.detail) == (EndReason.LOST, "Kubernetes ended it: Evicted: The node was low on memory")


@pytest.mark.parametrize(("code", "reason"), [(255, "Unknown"), (137, "ContainerStatusUnknown")])
def test_a_container_that_nobody_saw_end_is_lost_whatever_code_is_made_up_for_it(code: int, reason: str) -> None:
    end = verdict(task_of(a_pod(ended(code, reason=reason), phase="Failed")), FINE, status=IPUJobStatus(state="Failed"))
    assert (end.ending, end.task_codes) == (EndReason.LOST, (137, 0))
    assert "its node was down" in end.detail


def test_one_that_failed_before_it_had_pods_was_not_started_for_the_operators_reason() -> None:
    end = verdict(status=IPUJobStatus(state="Failed", message="no pool has 1024 IPUs"))
    assert (end.ending, end.exit_code, end.detail) == (EndReason.NOT_STARTED, 126, "no pool has 1024 IPUs")


def test_one_of_which_nobody_knows_anything_is_lost() -> None:
    end = verdict()
    assert (end.ending, end.detail) == (EndReason.LOST, "Kubernetes knows nothing of IPUJob runs/run-1 any more")


def test_what_was_seen_of_an_end_stays() -> None:
    seen = task_of(a_pod(ended(9)))
    assert merge_task(seen, TaskStatus(over=True)) == seen
    assert merge_task(TaskStatus(began_at=BEGAN), seen) == seen


def test_it_runs_when_all_have_begun_and_is_over_when_all_have_ended() -> None:
    running = TaskStatus(began_at=BEGAN)
    assert not have_all_started(TWO, {0: running})
    assert have_all_started(TWO, {0: running, 1: FINE})
    assert not have_all_ended(TWO, {0: running, 1: FINE})
    assert not have_all_ended(TWO, {0: FINE})
    assert have_all_ended(TWO, {0: FINE, 1: FINE})


def test_a_program_that_fails_since_another_node_was_lost_is_lost_with_it() -> None:
    away = task_of(a_pod(ended(137, reason="ContainerStatusUnknown"), phase="Failed", rank=1))
    end = verdict(task_of(a_pod(ended(1))), away, status=IPUJobStatus(state="Failed"))
    assert end.ending is EndReason.LOST
    assert "its node was down" in end.detail
    assert "task 0 then ended with exit code 1" in end.detail


def test_the_deadline_of_the_ipujob_is_a_time_limit() -> None:
    failed = InstanceStatus(outcome=InstanceOutcome.FAILED, reason="DeadlineExceeded")
    stopped = task_of(a_pod(ended(143), asked_s=1))
    end = verdict(stopped, stopped, status=IPUJobStatus(state="Failed", message="too long", instances={0: failed}))
    assert (end.ending, end.detail) == (EndReason.TIMED_OUT, "too long")
