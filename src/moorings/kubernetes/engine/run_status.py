"""A run's observed state, and how it ended, from its IPUJob and its Pods. Pure.

A task's own end comes first. A Pod's phase alone proves nothing: kubelets before 1.22 set it to Failed while its
containers are still in their grace period.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import duration_text
from moorings.core.model.timestamps import SECOND, Timestamp, add_seconds, seconds_between
from moorings.engines.node_program import parse_record
from moorings.kubernetes.engine.checkpoint_containers import BEFORE, CHECKPOINTS
from moorings.kubernetes.engine.run_folder import StopRecord, SubmittedIPUJob, TaskStatus
from moorings.kubernetes.engine.submission import ATTENDED_S, CONTAINER
from moorings.kubernetes.ipujob import names
from moorings.kubernetes.ipujob.pods import ENDED as PHASES_ENDED
from moorings.kubernetes.ipujob.pods import UNSEEN
from moorings.kubernetes.ipujob.types import COMPLETED, DEADLINE_EXCEEDED, ENDED, IPUJobStatus
from moorings.kubernetes.kube.api import KubeObject
from moorings.wire.codec import parse_time
from moorings.workloads.checkpoints import RunCheckpoint
from moorings.workloads.runs import CANNOT_START, NOT_FOUND, SIGKILL_EXIT_CODE, EndReason, EndRecord, exit_code

STOP_REQUESTED, LIMIT = "asked", "limit"

# How containerd, CRI-O and Docker report that there is no such program.
_NO_PROGRAM = re.compile(r"not found|no such file", re.IGNORECASE)
_UNSTARTED = frozenset({"StartError", "ContainerCannotRun"})


@dataclass(frozen=True, slots=True)
class ObservedTask:
    """A task, as its Pod shows it.

    Attributes:
        rank: of the task.
        restart: number of its job's restarts when the Pod was made.
        deleting: whether the Pod is being deleted.
        resumed_from: what this start of it was given.
        sees_checkpoints: whether the container beside the task that looks at its checkpoints has begun.
    """

    name: str
    uid: str
    rank: int
    restart: int
    deleting: bool
    task: TaskStatus
    resumed_from: RunCheckpoint | None
    sees_checkpoints: bool


def parse_task(pod: KubeObject) -> ObservedTask | None:
    """The task of a Pod; None: the Pod is no worker of a job."""
    meta, status = pod["metadata"], pod.get("status") or {}
    labels = meta.get("labels") or {}
    rank, restart = labels.get(names.WORKER, ""), labels.get(names.RESTART, "")
    if not rank.isdecimal():
        return None
    asked_at = _deletion(meta)
    states = {one.get("name"): one.get("state") or {} for one in status.get("containerStatuses") or ()}
    beside = states.get(CHECKPOINTS, {})
    task = replace(_task(states.get(CONTAINER, {}), status, asked_at), uid=meta["uid"])
    number = int(restart) if restart.isdecimal() else 0
    looks = "running" in beside or "terminated" in beside
    given = _resumed_from(status)
    return ObservedTask(meta["name"], meta["uid"], int(rank), number, asked_at is not None, task, given, looks)


def _resumed_from(status: KubeObject) -> RunCheckpoint | None:
    """What the init container has chosen."""
    for one in status.get("initContainerStatuses") or ():
        ended = (one.get("state") or {}).get("terminated")
        if one.get("name") == BEFORE and ended is not None:
            record = parse_record(str(ended.get("message") or "").encode("utf-8", "replace"))
            return record.resumed_from if record is not None else None
    return None


def _task(state: KubeObject, status: KubeObject, asked_at: Timestamp | None) -> TaskStatus:
    if ended := state.get("terminated"):
        began_at, ended_at = _time(ended.get("startedAt")), _time(ended.get("finishedAt"))
        if ended.get("reason") in UNSEEN:  # its exit code is made up
            why = "its node was down, and nobody saw its container end"
            return TaskStatus(
                began_at=began_at or ended_at, ended_at=ended_at, over=True, why=why, cause=ended["reason"]
            )
        unstarted = ended.get("reason") in _UNSTARTED
        code = ended.get("exitCode")
        words = [ended.get("reason") or "", ended.get("message") or ""]
        why = ": ".join(" ".join(word.split()) for word in words if word and word not in ("Completed", "Error"))
        return TaskStatus(
            began_at=None if unstarted else began_at or ended_at,
            ended_at=ended_at,
            code=_refused_code(why) if unstarted else code if isinstance(code, int) else None,
            over=True,
            stopped=asked_at is not None and ended_at is not None and ended_at >= asked_at,
            unstarted=unstarted,
            why=why,
            cause=status.get("reason") or "",
        )
    if running := state.get("running"):
        return TaskStatus(began_at=_time(running.get("startedAt")))
    over = status.get("phase") in PHASES_ENDED
    why = " ".join(str(status.get("message") or "").split())
    return TaskStatus(over=over, stopped=over and asked_at is not None, why=why, cause=status.get("reason") or "")


def _refused_code(why: str) -> int:
    return NOT_FOUND if _NO_PROGRAM.search(why) else CANNOT_START


def _deletion(meta: KubeObject) -> Timestamp | None:
    """When the deletion of a Pod was requested, to the second; None: it was not."""
    until = _time(meta.get("deletionTimestamp"))
    if until is None:
        return None
    return add_seconds(until, -float(meta.get("deletionGracePeriodSeconds") or 0))


def _time(text: object) -> Timestamp | None:
    if not isinstance(text, str):
        return None
    try:
        at = parse_time(text)
    except MooringsError:
        return None
    return at if at > SECOND else None  # 1970 stands for never


def is_pod_over(pod: KubeObject) -> bool:
    """Whether nothing of a Pod runs."""
    seen = parse_task(pod)
    return seen is None or seen.task.over


def is_pod_running(pod: KubeObject) -> bool:
    """Whether the task of a Pod runs."""
    seen = parse_task(pod)
    return seen is not None and not seen.task.over and seen.task.began_at is not None


def first_running(pods: Iterable[KubeObject]) -> str | None:
    """The name of the Pod of task 0, if that runs and is not being stopped."""
    for pod in pods:
        seen = parse_task(pod)
        if seen is not None and seen.rank == 0 and not seen.deleting and is_pod_running(pod):
            return seen.name
    return None


def merge_task(old: TaskStatus | None, new: TaskStatus) -> TaskStatus:
    """The state of a task after another observation of its Pod: a known end stays."""
    return old if old is not None and old.over and old.code is not None else new


def is_unattended(asked: SubmittedIPUJob, attended_at: Timestamp, now: Timestamp) -> bool:
    """Whether its terminal is unattended for longer than it may be, if it has one."""
    return asked.keep_s is not None and seconds_between(attended_at, now) >= max(asked.keep_s, ATTENDED_S)


def began_at(tasks: Mapping[int, TaskStatus]) -> Timestamp | None:
    """When the first task began."""
    return min((task.began_at for task in tasks.values() if task.began_at is not None), default=None)


def have_all_started(asked: SubmittedIPUJob, tasks: Mapping[int, TaskStatus]) -> bool:
    """Whether every task runs, or has run."""
    return all(rank in tasks and tasks[rank].began_at is not None for rank in range(asked.tasks))


def have_all_ended(asked: SubmittedIPUJob, tasks: Mapping[int, TaskStatus]) -> bool:
    """Whether nothing of any task runs any more."""
    return all(rank in tasks and tasks[rank].over for rank in range(asked.tasks))


def were_all_stopped(asked: SubmittedIPUJob, tasks: Mapping[int, TaskStatus]) -> bool:
    """Whether nothing runs because Pods were deleted: they are made again, unless the IPUJob has ended."""
    return have_all_ended(asked, tasks) and any(task.stopped for task in tasks.values())


def build_end_record(
    asked: SubmittedIPUJob,
    tasks: Mapping[int, TaskStatus],
    stop: StopRecord | None,
    status: IPUJobStatus | None,
    gone: bool,
    now: Timestamp,
) -> EndRecord:
    """How a run ended.

    Args:
        asked: its order.
        tasks: their observed states, by rank.
        stop: why it was to stop; None: it was not.
        status: of its IPUJob, if it is known.
        gone: somebody else has deleted the IPUJob.
        now: the end, if no time of it is recorded.
    """
    began = began_at(tasks)
    codes = tuple(_code(tasks.get(rank)) for rank in range(asked.tasks))
    failed = [(rank, task) for rank, task in tasks.items() if task.code not in (None, 0)]
    failed.sort(key=lambda one: (one[1].stopped, one[1].ended_at or now, one[0]))
    first = failed[0] if failed else None
    caused = next((task for _, task in sorted(tasks.items()) if task.cause), None)
    ending, detail = _ending(asked, tasks, first, caused, stop, status, gone=gone, began=began is not None, codes=codes)
    ends = [task.ended_at for task in tasks.values() if task.ended_at is not None]
    ended = max(ends) if len(ends) == asked.tasks else _completed(status) or max(ends, default=now)
    return EndRecord(
        ending=ending,
        exit_code=exit_code(
            ending, first[1].code if first is not None else SIGKILL_EXIT_CODE if SIGKILL_EXIT_CODE in codes else None
        ),
        task_codes=codes,
        started_at=began,
        ended_at=max(ended, began) if began is not None else ended,
        detail=detail,
    )


def _ending(
    asked: SubmittedIPUJob,
    tasks: Mapping[int, TaskStatus],
    first: tuple[int, TaskStatus] | None,
    caused: TaskStatus | None,
    stop: StopRecord | None,
    status: IPUJobStatus | None,
    *,
    gone: bool,
    began: bool,
    codes: Sequence[int | None],
) -> tuple[EndReason, str]:
    where = f"IPUJob {asked.reference}"
    if stop is not None:
        if stop.why == LIMIT:
            return EndReason.TIMED_OUT, f"stopped at its time limit of {duration_text(asked.time_limit_s or 0)}"
        return EndReason.CANCELLED, stop.detail
    if first is not None and not first[1].stopped:
        rank, task = first
        if task.unstarted:
            return EndReason.NOT_STARTED, task.why
        away = next((one for one in tasks.values() if one.cause in UNSEEN), None)
        if away is not None and task.code is not None:  # that made it fail
            return EndReason.LOST, f"{away.why}; task {rank} then ended with exit code {task.code}"
        if not task.cause:
            return EndReason.EXITED, f"task {rank} ended with exit code {task.code}" + (
                f" ({task.why})" if task.why else ""
            )
    if status is not None and any(one.reason == DEADLINE_EXCEEDED for one in status.instances.values()):
        return EndReason.TIMED_OUT, status.message
    if caused is not None:
        return EndReason.LOST, f"Kubernetes ended it: {caused.cause}" + (f": {caused.why}" if caused.why else "")
    if (status is not None and status.state == COMPLETED) or all(code == 0 for code in codes):
        return EndReason.EXITED, ""
    if gone:
        return EndReason.CANCELLED, f"{where} was deleted in Kubernetes"
    if status is not None and status.state in ENDED:
        return (EndReason.LOST if began else EndReason.NOT_STARTED), status.message
    return EndReason.LOST, f"Kubernetes knows nothing of {where} any more"


def _code(task: TaskStatus | None) -> int | None:
    """Its exit code; None: it never began. A task whose end was not observed counts as killed."""
    if task is None or task.began_at is None:
        return task.code if task is not None else None
    return SIGKILL_EXIT_CODE if task.code is None else task.code


def _completed(status: IPUJobStatus | None) -> Timestamp | None:
    return status.completed_at if status is not None else None
