"""The actions for one IPUJob: a function of the job, the observed objects and ``now``.

Level-triggered: it may run again at any moment, after any crash, and continues from what it finds. Two things make that
safe. Counts (restarts, outcomes) are saved in the status before any action depends on them, and Pods carry the count at
their creation, so that each failure is counted once. And a partition is released only when none of its instance's Pods
runs any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from moorings.core.model.timestamps import Timestamp, add_seconds, seconds_between
from moorings.kubernetes.ipujob import names
from moorings.kubernetes.ipujob.pods import FAILED as POD_FAILED
from moorings.kubernetes.ipujob.pods import RUNNING, SUCCEEDED, Pod
from moorings.kubernetes.ipujob.types import (
    ENDED,
    FINALIZER,
    CleanPodPolicy,
    InstanceOutcome,
    InstanceStatus,
    IPUJob,
    RestartType,
    StartAttempts,
)
from moorings.kubernetes.operator import deadlines, estimates
from moorings.kubernetes.operator.actions import (
    AcquirePartition,
    AddFinalizer,
    CleanPartition,
    CreateLauncher,
    CreateWorker,
    DeleteJob,
    DeletePod,
    DropFinalizer,
    EnsureJobObjects,
    FencePartition,
    JobAction,
    ReleasePartition,
    YieldPartition,
)
from moorings.kubernetes.operator.node_health import (
    NotReadyNode,
    choose_lost,
    describe_not_ready,
    format_clock_time,
    lost_at,
    on_not_ready_nodes,
)
from moorings.kubernetes.operator.start_deadline import next_check_at, observe_start, update_start
from moorings.kubernetes.proxy_api import shapes
from moorings.kubernetes.proxy_api.shapes import PartitionBody
from moorings.wire.codec import format_time, parse_time

DELAY_S, DELAY_S_MAX = 5.0, 300.0  # before a restart: none before the first, then this, doubled
WORKERS_S = 5  # part of the grace period of a reclaim: for workers to end after their launcher
MARGIN_S = 3.0  # between the end of the Pods and the time by which a partition must be released
REQUEUE_S = 2.0  # between two looks at a state that sends no event when it changes
HOLDS_NOTHING = "it has no Pods and no IPUs until spec.suspend is false"
YIELDING = "making room"  # start of a message while the Pods of a reclaimed partition end
EXIT_CODE_RETRYABLE = 128  # from this exit code on a failure may not happen again


@dataclass(frozen=True, slots=True)
class JobPartitions:
    """The partitions of a job, as the proxy reports them.

    Attributes:
        by_instance: by instance.
        is_complete: whether the list is complete: only then does a missing partition mean anything.
        is_watched: whether the known partitions are up to date, though there may be more.
        unused: instances whose partitions certainly were never used; others are reset first.
    """

    by_instance: Mapping[int, PartitionBody] = field(default_factory=dict)
    is_complete: bool = False
    is_watched: bool = False
    unused: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class PartitionPause:
    """An instance's Pods have been refused for long: other claims may use its IPUs.

    Attributes:
        why: the API server's message.
        starting: it never had all its Pods; the existing ones do nothing without the others.
    """

    why: str
    starting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedInstance:
    """The plan of one instance.

    Attributes:
        record: the state to store.
        actions: its actions, in this order.
        has_pods: it has its Pods, and none of them has ended.
        is_running: its program runs.
        message: a sentence about what it waits for; may be empty.
        code: stable code of ``message``.
        requeue_at: when to plan again, even if nothing has changed.
        restarting: it waits for a restart.
    """

    record: InstanceStatus
    actions: tuple[JobAction, ...] = ()
    has_pods: bool = False
    is_running: bool = False
    message: str = ""
    code: str = ""
    requeue_at: Timestamp | None = None
    restarting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """The plan of a job.

    Attributes:
        acts: in this order; those of one instance stop at the first failure.
        records: of the instances, to be saved with the status; before the actions if ``save_status_first``.
        instances: the planned instances, by number.
        save_status_first: a count has changed, and the actions depend on it.
        requeue_after_s: plan again after so many seconds.
        deleting: the job is being deleted; a sentence about what it waits for.
    """

    acts: tuple[JobAction, ...] = ()
    records: Mapping[int, InstanceStatus] = field(default_factory=dict)
    instances: Mapping[int, PlannedInstance] = field(default_factory=dict)
    save_status_first: bool = False
    requeue_after_s: float | None = None
    deleting: str | None = None


def plan(
    job: IPUJob,
    pods: Sequence[Pod],
    partitions: JobPartitions,
    now: Timestamp,
    refused: Mapping[int, str] | None = None,
    paused: Mapping[int, PartitionPause] | None = None,
    silent: Mapping[str, NotReadyNode] | None = None,
) -> JobPlan:
    """The plan of a job.

    Args:
        job: with its last saved status.
        pods: those that it owns, no others.
        partitions: of the job.
        now: the time.
        refused: instances whose Pods can never be created, and the API server's reason.
        paused: instances whose Pods are refused at present.
        silent: nodes that are not Ready, by name.
    """
    silent = silent or {}
    by_instance: dict[int, list[Pod]] = {}
    for pod in pods:
        by_instance.setdefault(pod.instance, []).append(pod)
    if job.deleted:
        return _plan_deletion(job, by_instance, partitions, silent, now)
    kept_until = deadlines.ttl_expires_at(job)
    if kept_until is not None and now >= kept_until:
        return JobPlan(acts=(DeleteJob(),), deleting="")
    acts: list[JobAction] = [] if FINALIZER in job.finalizers else [AddFinalizer()]
    found: dict[int, PlannedInstance] = {}
    for number in _wanted(job):
        mine = by_instance.get(number, [])
        view = _InstanceView(
            job=job,
            number=number,
            record=job.status.instances.get(number, InstanceStatus()),
            pods=mine,
            lost_pods=choose_lost(mine, silent, job.node_lost_s, now),
            partitions=partitions,
            silent=silent,
            refused=(refused or {}).get(number, ""),
            paused=(paused or {}).get(number),
            now=now,
        )
        found[number] = _plan_instance(view)
        acts += found[number].actions
    ends = [deadlines.active_until(job, one.record) for one in found.values()]
    times = [at for at in (kept_until, *ends) if at is not None and at > now]
    times += [one.requeue_at for one in found.values() if one.requeue_at is not None]
    for number in sorted({*by_instance, *partitions.by_instance} - found.keys()):
        mine = by_instance.get(number, [])
        lost = choose_lost(mine, silent, job.node_lost_s, now)
        acts += (
            _evict_from_lost_nodes(number, lost, mine, partitions)
            if lost
            else _scale_down(mine, partitions.by_instance.get(number))
        )
        if (lost_then := lost_at(mine, silent, job.node_lost_s, now)) is not None:
            times.append(lost_then)
    if any(isinstance(act, CreateWorker | CreateLauncher) for act in acts):
        acts.insert(0, EnsureJobObjects())
    records = {number: one.record for number, one in found.items() if one.record != InstanceStatus()}
    return JobPlan(
        acts=tuple(acts),
        records=records,
        instances=found,
        save_status_first=any(_counts(records.get(i)) != _counts(job.status.instances.get(i)) for i in found),
        requeue_after_s=_again_s(times, now),
    )


def _again_s(times: Sequence[Timestamp], now: Timestamp) -> float | None:
    return max(seconds_between(now, min(times)), 0.05) if times else None


def _wanted(job: IPUJob) -> range | list[int]:
    """The instances to have: if the job has ended, those that it ended with, less those that are scaled away."""
    if job.status.state in ENDED:
        return [number for number in sorted(job.status.instances) if number < job.instances]
    return range(job.instances)


def backoff_s(failures: int) -> float:
    """How long the restart after the ``failures``-th failure waits; the first restart is immediate."""
    return 0.0 if failures <= 1 else min(DELAY_S * 2.0 ** min(failures - 2, 20), DELAY_S_MAX)


def _counts(record: InstanceStatus | None) -> tuple[object, ...]:
    record = record or InstanceStatus()
    return (record.restarts, record.failures, record.outcome, record.start.missed, record.start.until)


def _plan_deletion(
    job: IPUJob,
    by_instance: Mapping[int, Sequence[Pod]],
    partitions: JobPartitions,
    silent: Mapping[str, NotReadyNode],
    now: Timestamp,
) -> JobPlan:
    """The plan of a job that is being deleted: first its Pods go, then its partitions, then the job itself."""
    if FINALIZER not in job.finalizers:
        return JobPlan(deleting="")
    if by_instance:
        pods = sorted((pod for mine in by_instance.values() for pod in mine), key=lambda pod: pod.name)
        quiet = on_not_ready_nodes(pods, silent)
        acts: list[JobAction] = []
        for number, mine in by_instance.items():
            lost = choose_lost(mine, silent, job.node_lost_s, now)
            acts += _evict_from_lost_nodes(number, lost, mine, partitions) if lost else _delete(mine)
        then = lost_at(quiet, silent, job.node_lost_s, now)
        why = f": {describe_not_ready(quiet, silent)}" if quiet else ""
        return JobPlan(
            acts=tuple(acts),
            deleting=f"deleted; waiting for {_named(pods)} to end{why}",
            requeue_after_s=_again_s([then] if then is not None else [], now),
        )
    held = [one.instance for one in partitions.by_instance.values() if not shapes.is_given_back(one)]
    if held:
        return JobPlan(
            acts=tuple(ReleasePartition(number) for number in sorted(held)),
            deleting="deleted; giving its partitions back",
        )
    if not partitions.is_watched:  # partitions at a controller that is away now are released when it returns
        return JobPlan(
            deleting="deleted; waiting for the proxy to tell which partitions are left", requeue_after_s=REQUEUE_S
        )
    return JobPlan(acts=(DropFinalizer(),), deleting="deleted")


def _scale_down(pods: Sequence[Pod], partition: PartitionBody | None) -> list[JobAction]:
    """The actions for an instance that was scaled away."""
    if pods:
        return _delete(pods)
    if partition is not None and not shapes.is_given_back(partition):
        return [ReleasePartition(partition.instance)]
    return []


def _delete(pods: Sequence[Pod]) -> list[JobAction]:
    return [DeletePod(pod.name, pod.uid) for pod in pods if not pod.deleting]


def _evict_from_lost_nodes(
    number: int, lost: Sequence[Pod], pods: Sequence[Pod], partitions: JobPartitions
) -> list[JobAction]:
    """End Pods on lost nodes: first the other Pods end, then the partition is removed, then the Pods' objects.

    Args:
        number: of the instance.
        lost: its Pods on lost nodes.
        pods: all of its Pods that must be removed.
        partitions: of the job.
    """
    partition = partitions.by_instance.get(number)
    others = [pod for pod in pods if pod not in lost]
    if any(not pod.has_ended for pod in others):
        return _delete(others)
    if partition is not None and not shapes.is_given_back(partition):
        return [FencePartition(number, frozenset(pod.node for pod in lost))]
    if partition is None and partitions.is_complete:
        return [DeletePod(pod.name, pod.uid, 0) for pod in lost]
    return []


@dataclass(frozen=True, slots=True)
class _PodsEnd:
    """How an instance's Pods have ended."""

    failed: bool
    why: str
    exit_code: int | None = None
    ended_at: Timestamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _InstanceView:
    """What is known of one instance.

    Attributes:
        job: its job, with the last saved status.
        number: its number.
        record: its state to store; a stage of the plan may change it for the next ones.
        pods: all its Pods.
        lost_pods: those of them on lost nodes.
        partitions: of the job.
        silent: nodes that are not Ready, by name.
        refused: why its Pods can never be created; empty: they can.
        paused: its Pods are refused at present.
        now: the time.
    """

    job: IPUJob
    number: int
    record: InstanceStatus
    pods: Sequence[Pod]
    lost_pods: Sequence[Pod]
    partitions: JobPartitions
    silent: Mapping[str, NotReadyNode]
    refused: str
    paused: PartitionPause | None
    now: Timestamp

    @property
    def partition(self) -> PartitionBody | None:
        """Its partition, if the proxy names one."""
        return self.partitions.by_instance.get(self.number)

    @property
    def fresh(self) -> list[Pod]:
        """The Pods of this attempt."""
        return [pod for pod in self.pods if pod.restart >= self.record.restarts]

    @property
    def stale(self) -> list[Pod]:
        """The Pods of earlier attempts."""
        return [pod for pod in self.pods if pod.restart < self.record.restarts]

    @property
    def deciding(self) -> list[Pod]:
        """The Pods that run the job's program."""
        return [pod for pod in self.pods if self.decides(pod)]

    def decides(self, pod: Pod) -> bool:
        """Whether a Pod runs the job's program: a launcher, or a worker of a job without launchers."""
        return pod.is_launcher or not self.job.has_launcher

    @property
    def n_programs(self) -> int:
        """How many Pods run the job's program."""
        return 1 if self.job.has_launcher else self.job.workers

    @property
    def in_use(self) -> bool:
        """Whether a program may still use the partition: idle workers do not, once their launcher has ended."""
        return any(not pod.has_ended for pod in self.deciding)

    @property
    def is_running(self) -> bool:
        """Whether its program runs. A worker that is done and waits for the others counts as running."""
        deciding = self.deciding
        all_run = all(pod.phase in (RUNNING, SUCCEEDED) and not pod.deleting for pod in deciding)
        return len(deciding) == self.n_programs and all_run

    @property
    def next_restart(self) -> int:
        """The number of the next attempt: above every Pod's, also of an instance that was scaled away and back."""
        return max([self.record.restarts, *(pod.restart for pod in self.pods)]) + 1

    @property
    def must_release(self) -> bool:
        """Whether an instance releases its partition when it has ended: in any case at its claim's time limit."""
        until = deadlines.claim_expires_at(self.job, self.record)
        over = until is not None and self.now >= until
        return over or self.job.release_on_finish or self.job.clean_pod_policy is CleanPodPolicy.ALL


def _plan_instance(view: _InstanceView) -> PlannedInstance:
    """The plan of the first stage that decides, with what is known of silent nodes."""
    for stage in _STAGES:
        found = stage(view)
        if isinstance(found, PlannedInstance):
            return _add_silent_nodes(view, found)
        if found is not None and found is not view.record:
            view = replace(view, record=found)
    raise AssertionError("the last stage decides")


def _add_silent_nodes(view: _InstanceView, found: PlannedInstance) -> PlannedInstance:
    over = found.record.outcome is not None
    # An instance that has ended waits only for a program that still runs, for it keeps the partition.
    quiet = on_not_ready_nodes(view.deciding if over else view.pods, view.silent)
    start = found.record.start
    times = [found.requeue_at, None if over else next_check_at(start, view.job.start_deadline_s or 0, view.now)]
    if quiet:
        words = describe_not_ready(quiet, view.silent)
        times.append(then := lost_at(quiet, view.silent, view.job.node_lost_s, view.now))
        if words not in (f"{found.record.detail}; {found.message}" if over else found.message):
            if then is not None:
                words += f"; it is given up at {format_clock_time(then)}"
            waits = f"{found.message}; {words}" if found.message else words
            found = replace(found, message=waits, code=found.code or "node")
    return replace(found, requeue_at=min((at for at in times if at is not None), default=None))


# -- how it ended ------------------------------------------------------------------------------------------------------


def _count_end(view: _InstanceView) -> InstanceStatus | None:
    """Its active time, and the end of its Pods, if they have ended."""
    record = view.record
    if record.outcome is not None:
        return None
    if view.partition is not None or view.partitions.is_complete:
        runs = any(not pod.has_ended for pod in view.pods)
        record = deadlines.update_active_time(view.job, record, view.partition, view.now, runs=runs)
    ending = _find_end(view)
    return record if ending is None else _count(replace(view, record=record), ending)


def _find_end(view: _InstanceView) -> _PodsEnd | None:
    job, partition, fresh = view.job, view.partition, view.fresh
    if partition is not None and partition.state == shapes.FAILED and not fresh:
        return _PodsEnd(True, partition.message or "its partition cannot be made", exit_code=1)
    if not fresh:
        return None
    workers = [pod for pod in fresh if not pod.is_launcher]
    deciding = [pod for pod in fresh if pod.is_launcher] if job.has_launcher else workers
    # A program that exits with 0 when its Pod is deleted (by a reclaim or a drain) has saved, and is not done.
    done = [pod for pod in deciding if pod.phase == SUCCEEDED and not pod.deleting]
    if len(done) == view.n_programs:
        return _PodsEnd(False, "", ended_at=max(pod.ended_at or view.now for pod in done))
    # An ended Pod that is being deleted belongs to an instance that was scaled away and then back.
    if (lost := _find_lost_partition(view, [pod for pod in fresh if not (pod.has_ended and pod.deleting)])) is not None:
        return lost
    if any(pod in view.lost_pods for pod in fresh):
        return _PodsEnd(True, describe_not_ready(view.lost_pods, view.silent))
    # Some Pods end because of a reclaim: a failure of the others without them is no failure of the job.
    asked = partition is not None and partition.state == shapes.RECLAIMING and any(pod.deleting for pod in fresh)
    failed = [pod for pod in deciding if pod.phase == POD_FAILED and not pod.deleting and not asked]
    if failed:
        return _ended(failed[0])
    if job.has_launcher:
        # They idle until they are deleted.
        idle = [pod for pod in workers if pod.has_ended and not pod.deleting and not asked]
        if idle:
            return _ended(idle[0])
    return None


def _find_lost_partition(view: _InstanceView, pods: Sequence[Pod]) -> _PodsEnd | None:
    """Whether the partition of these Pods was lost under them."""
    partition = view.partition
    made_for = {pod.partition for pod in pods} - {""}
    if partition is None:
        if not view.partitions.is_complete or not made_for:
            return None
        why = f"its partition {min(made_for)} is not held any more"
    elif partition.state in (shapes.LOST, shapes.FAILED):
        why = f"its partition {min(made_for, default=partition.name)} vanished"
    elif made_for and partition.name and made_for != {partition.name}:
        why = f"its partition {min(made_for - {partition.name})} was replaced by {partition.name}"
    else:
        return None
    more = f": {partition.message}" if partition is not None and partition.message else ""
    return _PodsEnd(True, why + more)


def _count(view: _InstanceView, ending: _PodsEnd) -> InstanceStatus:
    job, record = view.job, view.record
    if view.partition is not None and view.partition.state == shapes.FAILED and not view.pods:
        return replace(record, outcome=InstanceOutcome.FAILED, detail=ending.why)
    if not ending.failed:
        if job.restart_policy is RestartType.ALWAYS and job.clean_pod_policy is not CleanPodPolicy.ALL:
            return replace(record, restarts=view.next_restart, detail="")
        return replace(record, outcome=InstanceOutcome.DONE, detail="")
    again = {
        RestartType.ALWAYS: True,
        RestartType.ON_FAILURE: True,
        RestartType.NEVER: False,
        RestartType.EXIT_CODE: ending.exit_code is None or ending.exit_code >= EXIT_CODE_RETRYABLE,
    }[job.restart_policy]
    if not again or job.clean_pod_policy is CleanPodPolicy.ALL:
        return replace(record, outcome=InstanceOutcome.FAILED, detail=ending.why)
    if record.failures >= job.backoff_limit:
        why = f"{ending.why}; started anew {_times(record.failures)}, which is the back-off limit"
        return replace(record, outcome=InstanceOutcome.FAILED, detail=why if record.failures else ending.why)
    return replace(record, restarts=view.next_restart, failures=record.failures + 1, detail=ending.why)


# -- what follows ------------------------------------------------------------------------------------------------------


def _leave_lost_nodes(view: _InstanceView) -> PlannedInstance | None:
    """Remove the partition under Pods on lost nodes, then their objects, so that the next attempt can start.

    They are the Pods of a failed attempt, or of an instance that has ended.
    """
    record = view.record
    if record.outcome is None:
        left = [pod for pod in view.lost_pods if pod.restart < record.restarts]
    else:
        left = [pod for pod in view.lost_pods if view.decides(pod)] if view.must_release else []
    if not left:
        return None
    evicted = [pod for pod in view.pods if pod in left or record.outcome is None or view.decides(pod)]
    acts = tuple(_evict_from_lost_nodes(view.number, left, evicted, view.partitions))
    waits = "its partition is removed" if record.outcome else "its partition is removed before anything starts anew"
    if record.detail and record.outcome is None:
        waits += f": {record.detail}"
    return PlannedInstance(record=record, actions=acts, message=waits, code="node", restarting=record.outcome is None)


def _finish_ended(view: _InstanceView) -> PlannedInstance | None:
    return _finish(view, view.record) if view.record.outcome is not None else None


def _finish(view: _InstanceView, record: InstanceStatus) -> PlannedInstance:
    """The plan of an instance that has ended with ``record``: clean up its Pods, then release its partition."""
    view = replace(view, record=record)
    clean = view.job.clean_pod_policy
    acts: list[JobAction] = []
    for pod in view.pods:
        removable = clean is CleanPodPolicy.ALL or (clean is CleanPodPolicy.WORKERS and not pod.is_launcher)
        # A program that still runs is useless: another one has failed, or its partition is gone.
        if (removable or (view.decides(pod) and not pod.has_ended)) and not pod.deleting:
            acts.append(DeletePod(pod.name, pod.uid))
    held = view.partition is not None and not shapes.is_given_back(view.partition)
    until = deadlines.claim_expires_at(view.job, record) if held and not view.must_release else None
    if held and view.must_release and not view.in_use:
        acts.append(ReleasePartition(view.number))
    return PlannedInstance(record=record, actions=tuple(acts), requeue_at=until)


def _suspend(view: _InstanceView) -> PlannedInstance | None:
    """Hold nothing until it is resumed. This attempt is over, whatever its Pods do: a new one starts then."""
    if not view.job.suspended:
        return None
    record = view.record
    if any(pod.restart >= record.restarts for pod in view.pods):
        record = replace(record, restarts=view.next_restart, detail="")
    record = replace(deadlines.without_activity(record), start=StartAttempts())
    acts = tuple(_scale_down(view.pods, view.partition))
    waits = HOLDS_NOTHING
    if view.pods:
        waits = f"waiting for {_named(view.pods)} to end"
    elif acts:
        waits = "giving its partition back"
    return PlannedInstance(record=record, actions=acts, message=waits, code="suspended")


def _stop_at_deadline(view: _InstanceView) -> PlannedInstance | None:
    """The active deadline ends it, whatever its Pods do."""
    until = deadlines.active_until(view.job, view.record)
    if until is None or view.now < until:
        return None
    return _finish(view, deadlines.end_at_deadline(view.job, view.record))


def _yield_partition(view: _InstanceView) -> PlannedInstance | None:
    """Its partition is reclaimed: its Pods end, the launcher first, then the partition is released."""
    partition = view.partition
    if partition is None or partition.state != shapes.RECLAIMING:
        return None
    by = parse_time(partition.until) if partition.until else view.now
    left_s = max(int(seconds_between(view.now, by) - MARGIN_S), 1)
    launchers = [pod for pod in view.pods if pod.is_launcher and not pod.has_ended]
    # The launcher ends first, so workers can save while their Pods live. After ``by`` a lost launcher delays none.
    first = view.pods
    if launchers and view.now < by:
        first, left_s = launchers, max(left_s - WORKERS_S, (left_s + 1) // 2)
    late = add_seconds(view.now, left_s + 1)
    acts: tuple[JobAction, ...] = tuple(
        DeletePod(pod.name, pod.uid, min(pod.grace_s, left_s))
        for pod in first
        if not pod.deleting or (pod.killed_at is not None and pod.killed_at > late)
    )
    if not view.pods:
        acts = (YieldPartition(view.number),)
    waits = f"{YIELDING} until {format_time(by)[11:19]} UTC: {partition.message}"
    again_at = by if view.pods and view.now < by else None
    return PlannedInstance(
        record=view.record, actions=acts, message=waits, code="claim.reclaiming", requeue_at=again_at
    )


def _end_refused(view: _InstanceView) -> PlannedInstance | None:
    """Create no more Pods: running Pods of this attempt continue; if there are none, the instance has failed."""
    record, refused = view.record, view.refused
    if not refused:
        return None
    deciding = [pod for pod in view.fresh if view.decides(pod)]
    if any(not pod.has_ended for pod in deciding):
        runs = any(pod.phase == RUNNING for pod in deciding)
        return PlannedInstance(record=record, has_pods=True, is_running=runs, message=refused, code="refused")
    why = f"{record.detail}; it cannot be started anew: {refused}" if record.detail else refused
    return _finish(view, replace(record, outcome=InstanceOutcome.FAILED, detail=why))


def _follow_start(view: _InstanceView) -> InstanceStatus:
    """The record with its start attempts; while a node is silent their state is unknown."""
    has_partition: bool | None = view.partition is not None and view.partition.state == shapes.READY
    if (view.partition is None and not view.partitions.is_complete) or on_not_ready_nodes(view.pods, view.silent):
        has_partition = None
    record = view.record
    seen = observe_start(has_partition, view.deciding, record.restarts, view.n_programs)
    start = update_start(record.start, seen, view.job.start_deadline_s or 0, view.now, view.fresh, record.detail)
    return replace(record, start=start)


def _release_unstarted(view: _InstanceView) -> PlannedInstance | None:
    """It did not start in time: others may claim its IPUs for a while."""
    start = view.record.start
    if start.until is None:
        return None
    return _give_back(view, f"without a partition until {format_clock_time(start.until)}: {start.why}", "start")


def _sweep(view: _InstanceView) -> PlannedInstance | None:
    """Delete the previous attempt's Pods: running ones at once, ended ones when the next attempt is due."""
    record, stale = view.record, view.stale
    if not stale:
        return None
    times = [pod.ended_at for pod in stale if pod.ended_at is not None]
    due = add_seconds(max(times), backoff_s(record.failures) if record.detail else DELAY_S) if times else view.now
    gone = [pod for pod in stale if not pod.deleting and (not pod.has_ended or view.now >= due)]
    acts = tuple(DeletePod(pod.name, pod.uid) for pod in gone)
    waits = f"started anew after: {record.detail}" if record.detail else "started anew"
    again_at = due if view.now < due else None
    return PlannedInstance(
        record=record, actions=acts, message=waits, code="restart", requeue_at=again_at, restarting=True
    )


def _pause(view: _InstanceView) -> PlannedInstance | None:
    """Its Pods are refused at present: others may claim its IPUs, unless its program runs."""
    paused = view.paused
    if paused is None or not (paused.starting or not view.in_use):
        return None
    waits = f"without a partition for now, because its Pods are refused: {paused.why}"
    return _give_back(view, waits, "refused")


def _give_back(view: _InstanceView, waits: str, code: str) -> PlannedInstance:
    """It cannot have all its Pods: the existing ones end, for they are useless alone, and its IPUs are released."""
    record = replace(view.record, start=replace(view.record.start, since=None))
    acts = tuple(_scale_down(view.pods, view.partition))
    return PlannedInstance(record=record, actions=acts, message=waits, code=code)


def _await_partition(view: _InstanceView) -> PlannedInstance | None:
    record, partition = view.record, view.partition
    if partition is not None and partition.state == shapes.READY:
        return None
    ipus = f"{view.job.ipus} IPU" + ("s" if view.job.ipus != 1 else "")
    standing = bool(view.pods)
    if partition is None:
        if not view.partitions.is_complete:
            message = "waiting for the proxy, which does not answer for all controllers"
            if view.is_running:  # it does not wait: an absent or restarting proxy stops no program
                return PlannedInstance(record=record, has_pods=True, is_running=True)
            acts: tuple[JobAction, ...] = () if standing else (AcquirePartition(view.number),)
            return PlannedInstance(record=record, actions=acts, message=message, code="proxy", has_pods=standing)
        message = f"waiting for a partition of {ipus}"
        return PlannedInstance(record=record, actions=(AcquirePartition(view.number),), message=message, code="claim")
    if partition.state in (shapes.LOST, shapes.FAILED) and not standing:
        acts = (ReleasePartition(view.number),)
        return PlannedInstance(record=record, actions=acts, message=partition.message, code="lost")
    if partition.state == shapes.RELEASING:
        message = f"waiting for its earlier partition {partition.name} to be removed"
    elif partition.state == shapes.PREPARING:
        message = f"waiting for partition {partition.name} of {ipus} to become ready"
    else:
        reason = "; ".join(filter(None, (partition.message, estimates.describe_start(partition))))
        message = f"waiting for a partition of {ipus}" + (f": {reason}" if reason else "")
    return PlannedInstance(record=record, message=message, code=partition.code or "partition", has_pods=standing)


def _create_pods(view: _InstanceView) -> PlannedInstance:
    """It has its partition: create its missing Pods, and see whether all run."""
    job, record, pods, first = view.job, view.record, view.fresh, view.number * view.job.workers
    there = {pod.name for pod in pods}
    is_new = view.number in view.partitions.unused
    if outdated := [pod for pod in pods if pod.has_stale_proxy]:  # its program has not begun: no failure of the job's
        waits = "its launcher is made anew, for it could not reach the proxy as it is now"
        return PlannedInstance(record=record, actions=tuple(_delete(outdated)), message=waits, code="restart")
    acts: list[JobAction] = []
    if not job.has_launcher and not there and not is_new:
        acts.append(CleanPartition(view.number))
    numbers = range(first, first + job.workers)
    missing = [number for number in numbers if names.worker_name(job.name, number) not in there]
    acts += [CreateWorker(number, record.restarts) for number in missing]
    if job.has_launcher and names.launcher_name(job.name, view.number) not in there:
        acts.append(CreateLauncher(view.number, record.restarts, reset=not is_new))
        if any(pod.phase == RUNNING for pod in pods):  # programs of the last launcher may still run in the workers
            waits = "its launcher is gone; the workers start anew with another one"
            return PlannedInstance(record=record, actions=tuple(_delete(pods)), message=waits, code="restart")
    if acts:
        waits = f"making {len([act for act in acts if not isinstance(act, CleanPartition)])} Pods"
        return PlannedInstance(record=record, actions=tuple(acts), message=waits)
    running = view.is_running
    waits, known = ("", False) if running else _blocking_pod(pods)
    return PlannedInstance(
        record=record, has_pods=True, is_running=running, message=waits, code="pods" if known else ""
    )


# In this order. A stage returns the plan, or the record for the next stages, or nothing.
_STAGES: tuple[Callable[[_InstanceView], PlannedInstance | InstanceStatus | None], ...] = (
    _count_end,
    _leave_lost_nodes,
    _finish_ended,
    _suspend,
    _stop_at_deadline,
    _yield_partition,
    _end_refused,
    _follow_start,
    _release_unstarted,
    _sweep,
    _pause,
    _await_partition,
    _create_pods,
)


def _named(pods: Sequence[Pod]) -> str:
    return pods[0].name + (f" and {len(pods) - 1} more Pods" if len(pods) > 1 else "")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _ended(pod: Pod) -> _PodsEnd:
    why = f"{pod.name} {'failed' if pod.phase == POD_FAILED else 'ended'}: {pod.reason_text or 'no reason is known'}"
    return _PodsEnd(True, why, exit_code=pod.exit_code, ended_at=pod.ended_at)


def _blocking_pod(pods: Sequence[Pod]) -> tuple[str, bool]:
    """What the Pods wait for, a Pod with a reason first; and whether a reason is known."""
    late = [pod for pod in pods if pod.phase not in (RUNNING, SUCCEEDED) or pod.deleting]
    if not late:
        return "", False
    worst = max(late, key=lambda pod: (pod.deleting, pod.reason_text != "", pod.worker))
    if worst.deleting:
        return f"waiting for {worst.name}, which is being deleted, to be gone", True
    return f"waiting for {worst.name}" + (
        f": {worst.reason_text}" if worst.reason_text else " to start"
    ), worst.reason_text != ""
