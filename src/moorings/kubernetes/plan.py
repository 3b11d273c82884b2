"""The actions for one IPUJob: a function of the job, the observed objects and ``now``.

Level-triggered: it may run again at any moment, after any crash, and continues from what it finds. Two things make that
safe. Counts (restarts, outcomes) are saved in the status before any action depends on them, and Pods carry the count at
their creation, so that each failure is counted once. And a partition is released only when none of its instance's Pods
runs any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from moorings.core.instants import Timestamp, add_seconds, seconds_between
from moorings.kubernetes import estimates, lifetimes, names
from moorings.kubernetes.acts import (
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
from moorings.kubernetes.ipujob import (
    FINALIZER,
    CleanPodPolicy,
    InstanceOutcome,
    InstanceStatus,
    IPUJob,
    RestartType,
    StartAttempts,
)
from moorings.kubernetes.nodes import (
    NotReadyNode,
    choose_lost,
    describe_not_ready,
    format_clock_time,
    lost_at,
    on_not_ready_nodes,
)
from moorings.kubernetes.pods import FAILED as POD_FAILED
from moorings.kubernetes.pods import RUNNING, SUCCEEDED, Pod
from moorings.kubernetes.proxy import shapes
from moorings.kubernetes.proxy.shapes import PartitionBody
from moorings.kubernetes.starting import next_check_at, observe_start, update_start
from moorings.wire.codec import format_time, parse_time

DELAY_S, DELAY_S_MAX = 5.0, 300.0  # before a restart: none before the first, then this, doubled
WORKERS_S = 5  # part of the grace period of a reclaim: for workers to end after their launcher
MARGIN_S = 3.0  # between the end of the Pods and the time by which a partition must be released
REQUEUE_S = 2.0  # between two looks at a state that sends no event when it changes
HOLDS_NOTHING = "it has no Pods and no IPUs until spec.suspend is false"
YIELDING = "making room"  # start of a message while the Pods of a reclaimed partition end
COMPLETED, FAILED = "Completed", "Failed"  # the final values of STATUS
ENDED = frozenset({COMPLETED, FAILED})
EXIT_CODE_RETRYABLE = 128  # from this exit code on a failure may not happen again


@dataclass(frozen=True, slots=True)
class JobPartitions:
    """The partitions of a job, as the proxy reports them.

    Attributes:
        known: by instance.
        current: whether the list is complete: only then does a missing partition mean anything.
        standing: whether the known partitions are up to date, though there may be more.
        fresh: instances whose partitions certainly were never used; others are reset first.
    """

    known: Mapping[int, PartitionBody] = field(default_factory=dict)
    current: bool = False
    standing: bool = False
    fresh: frozenset[int] = frozenset()


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
        acts: its actions, in this order.
        standing: it has its Pods, and none of them has ended.
        running: its program runs.
        waits: a sentence about what it waits for; may be empty.
        code: stable code of ``waits``.
        again_at: when to plan again, even if nothing has changed.
        restarting: it waits for a restart.
    """

    record: InstanceStatus
    acts: tuple[JobAction, ...] = ()
    standing: bool = False
    running: bool = False
    waits: str = ""
    code: str = ""
    again_at: Timestamp | None = None
    restarting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """The plan of a job.

    Attributes:
        acts: in this order; those of one instance stop at the first failure.
        records: of the instances, to be saved with the status; before the actions if ``save_first``.
        instances: the planned instances, by number.
        save_first: a count has changed, and the actions depend on it.
        again_s: plan again after so many seconds.
        deleting: the job is being deleted; a sentence about what it waits for.
    """

    acts: tuple[JobAction, ...] = ()
    records: Mapping[int, InstanceStatus] = field(default_factory=dict)
    instances: Mapping[int, PlannedInstance] = field(default_factory=dict)
    save_first: bool = False
    again_s: float | None = None
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
    kept_until = lifetimes.ttl_expires_at(job)
    if kept_until is not None and now >= kept_until:
        return JobPlan(acts=(DeleteJob(),), deleting="")
    acts: list[JobAction] = [] if FINALIZER in job.finalizers else [AddFinalizer()]
    found: dict[int, PlannedInstance] = {}
    for number in _wanted(job):
        mine = by_instance.get(number, [])
        judge = _InstancePlanner(job, number, mine, partitions, now, silent)
        judged = found[number] = judge.judge((refused or {}).get(number, ""), (paused or {}).get(number))
        acts += judged.acts
    ends = [lifetimes.active_until(job, one.record) for one in found.values()]
    times = [at for at in (kept_until, *ends) if at is not None and at > now]
    times += [one.again_at for one in found.values() if one.again_at is not None]
    for number in sorted({*by_instance, *partitions.known} - found.keys()):
        mine = by_instance.get(number, [])
        lost = choose_lost(mine, silent, job.node_lost_s, now)
        acts += (
            _evict_from_lost_nodes(number, lost, mine, partitions)
            if lost
            else _scale_down(mine, partitions.known.get(number))
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
        save_first=any(_counts(records.get(i)) != _counts(job.status.instances.get(i)) for i in found),
        again_s=_again_s(times, now),
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
            again_s=_again_s([then] if then is not None else [], now),
        )
    held = [one.instance for one in partitions.known.values() if not shapes.is_given_back(one)]
    if held:
        return JobPlan(
            acts=tuple(ReleasePartition(number) for number in sorted(held)),
            deleting="deleted; giving its partitions back",
        )
    if not partitions.standing:  # partitions at a controller that is away now are released when it returns
        return JobPlan(deleting="deleted; waiting for the proxy to tell which partitions are left", again_s=REQUEUE_S)
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
    partition = partitions.known.get(number)
    others = [pod for pod in pods if pod not in lost]
    if any(not pod.ended for pod in others):
        return _delete(others)
    if partition is not None and not shapes.is_given_back(partition):
        return [FencePartition(number, frozenset(pod.node for pod in lost))]
    if partition is None and partitions.current:
        return [DeletePod(pod.name, pod.uid, 0) for pod in lost]
    return []


@dataclass(frozen=True, slots=True)
class _PodsEnd:
    """How an instance's Pods have ended."""

    failed: bool
    why: str
    exit_code: int | None = None
    ended_at: Timestamp | None = None


class _InstancePlanner:
    """Plans one instance; ``judge`` is called once."""

    def __init__(
        self,
        job: IPUJob,
        number: int,
        pods: Sequence[Pod],
        partitions: JobPartitions,
        now: Timestamp,
        silent: Mapping[str, NotReadyNode],
    ) -> None:
        self._job = job
        self._number = number
        self._record = job.status.instances.get(number, InstanceStatus())
        self._pods = list(pods)
        self._partitions = partitions
        self._partition = partitions.known.get(number)
        self._silent = silent
        self._lost_pods = choose_lost(pods, silent, job.node_lost_s, now)
        self._current = partitions.current
        self._fresh = number in partitions.fresh
        self._now = now

    def judge(self, refused: str, paused: PartitionPause | None) -> PlannedInstance:
        found = self._judge(refused, paused)
        over = found.record.outcome is not None
        # An instance that has ended waits only for a program that still runs, for it keeps the partition.
        quiet = on_not_ready_nodes([pod for pod in self._pods if not over or self._decides(pod)], self._silent)
        lost_s, start = self._job.node_lost_s, found.record.start
        times = [found.again_at, None if over else next_check_at(start, self._deadline_s, self._now)]
        if quiet:
            words = describe_not_ready(quiet, self._silent)
            times.append(then := lost_at(quiet, self._silent, lost_s, self._now))
            if words not in (f"{found.record.detail}; {found.waits}" if over else found.waits):
                if then is not None:
                    words += f"; it is given up at {format_clock_time(then)}"
                waits = f"{found.waits}; {words}" if found.waits else words
                found = replace(found, waits=waits, code=found.code or "node")
        return replace(found, again_at=min((at for at in times if at is not None), default=None))

    def _judge(self, refused: str, paused: PartitionPause | None) -> PlannedInstance:
        record = self._record
        fresh = [pod for pod in self._pods if pod.restart >= record.restarts]
        if record.outcome is None:
            record = self._note_activity(record)
            if (ending := self._ending(fresh)) is not None:
                record = self._count(record, ending)
        if left := self._left_behind(record):
            return self._give_up(record, left)
        if record.outcome is not None:
            return self._finish(record)
        if (stopped := self._stop(record)) is not None:
            return stopped
        if self._partition is not None and self._partition.state == shapes.RECLAIMING:
            return self._make_room(record, self._partition)
        stale = [pod for pod in self._pods if pod.restart < record.restarts]
        if refused:
            return self._end_with(record, refused, [pod for pod in self._pods if pod not in stale])
        record = self._follow_start(record)
        if record.start.until is not None:
            waits = f"without a partition until {format_clock_time(record.start.until)}: {record.start.why}"
            return self._give_back(record, waits, "start")
        if stale:
            return self._sweep(record, stale)
        if paused is not None and (paused.starting or not self._uses()):
            waits = f"without a partition for now, because its Pods are refused: {paused.why}"
            return self._give_back(record, waits, "refused")
        if self._partition is None or self._partition.state != shapes.READY:
            return self._await_partition(record)
        return self._fill(record, fresh, self._partition)

    def _stop(self, record: InstanceStatus) -> PlannedInstance | None:
        """The plan of an instance that must stop, whatever its Pods do; None: it may continue."""
        if self._job.suspended:
            return self._suspend(record)
        until = lifetimes.active_until(self._job, record)
        if until is not None and self._now >= until:
            return self._finish(lifetimes.end_at_deadline(self._job, record))
        return None

    def _note_activity(self, record: InstanceStatus) -> InstanceStatus:
        if self._partition is None and not self._current:
            return record
        runs = any(not pod.ended for pod in self._pods)
        return lifetimes.update_active_time(self._job, record, self._partition, self._now, runs=runs)

    @property
    def _deadline_s(self) -> int:
        return self._job.start_deadline_s or 0

    def _follow_start(self, record: InstanceStatus) -> InstanceStatus:
        """The record with its start attempts; while a node is silent their state is unknown."""
        has_partition: bool | None = self._partition is not None and self._partition.state == shapes.READY
        if (self._partition is None and not self._current) or on_not_ready_nodes(self._pods, self._silent):
            has_partition = None
        programs = [pod for pod in self._pods if self._decides(pod)]
        seen = observe_start(has_partition, programs, record.restarts, self._programs)
        fresh = [pod for pod in self._pods if pod.restart >= record.restarts]
        start = update_start(record.start, seen, self._deadline_s, self._now, fresh, record.detail)
        return replace(record, start=start)

    # -- how it ended ------------------------------------------------------------------------------------------------

    def _ending(self, fresh: Sequence[Pod]) -> _PodsEnd | None:
        job, partition = self._job, self._partition
        if partition is not None and partition.state == shapes.FAILED and not fresh:
            return _PodsEnd(True, partition.message or "its partition cannot be made", exit_code=1)
        if not fresh:
            return None
        launchers = [pod for pod in fresh if pod.is_launcher]
        workers = [pod for pod in fresh if not pod.is_launcher]
        deciding = launchers if job.has_launcher else workers
        # A program that exits with 0 when its Pod is deleted (by a reclaim or a drain) has saved, and is not done.
        done = [pod for pod in deciding if pod.phase == SUCCEEDED and not pod.deleting]
        if len(done) == self._programs:
            return _PodsEnd(False, "", ended_at=max(pod.ended_at or self._now for pod in done))
        # An ended Pod that is being deleted belongs to an instance that was scaled away and then back.
        if (lost := self._lost([pod for pod in fresh if not (pod.ended and pod.deleting)])) is not None:
            return lost
        if any(pod in self._lost_pods for pod in fresh):
            return _PodsEnd(True, describe_not_ready(self._lost_pods, self._silent))
        # Some Pods end because of a reclaim: a failure of the others without them is no failure of the job.
        asked = partition is not None and partition.state == shapes.RECLAIMING and any(pod.deleting for pod in fresh)
        failed = [pod for pod in deciding if pod.phase == POD_FAILED and not pod.deleting and not asked]
        if failed:
            return _ended(failed[0])
        if job.has_launcher:
            # They idle until they are deleted.
            idle = [pod for pod in workers if pod.ended and not pod.deleting and not asked]
            if idle:
                return _ended(idle[0])
        return None

    def _lost(self, pods: Sequence[Pod]) -> _PodsEnd | None:
        """Whether the partition of these Pods was lost under them."""
        partition = self._partition
        made_for = {pod.partition for pod in pods} - {""}
        if partition is None:
            if not self._current or not made_for:
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

    def _count(self, record: InstanceStatus, ending: _PodsEnd) -> InstanceStatus:
        job = self._job
        if self._partition is not None and self._partition.state == shapes.FAILED and not self._pods:
            return replace(record, outcome=InstanceOutcome.FAILED, detail=ending.why)
        if not ending.failed:
            if job.restart is RestartType.ALWAYS and job.clean is not CleanPodPolicy.ALL:
                return replace(record, restarts=self._next(), detail="")
            return replace(record, outcome=InstanceOutcome.DONE, detail="")
        again = {
            RestartType.ALWAYS: True,
            RestartType.ON_FAILURE: True,
            RestartType.NEVER: False,
            RestartType.EXIT_CODE: ending.exit_code is None or ending.exit_code >= EXIT_CODE_RETRYABLE,
        }[job.restart]
        if not again or job.clean is CleanPodPolicy.ALL:
            return replace(record, outcome=InstanceOutcome.FAILED, detail=ending.why)
        if record.failures >= job.backoff_limit:
            why = f"{ending.why}; started anew {_times(record.failures)}, which is the back-off limit"
            return replace(record, outcome=InstanceOutcome.FAILED, detail=why if record.failures else ending.why)
        return replace(record, restarts=self._next(), failures=record.failures + 1, detail=ending.why)

    def _next(self) -> int:
        """The number of the next attempt: above every Pod's, also of an instance that was scaled away and back."""
        return max([self._record.restarts, *(pod.restart for pod in self._pods)]) + 1

    # -- what follows ------------------------------------------------------------------------------------------------

    def _finish(self, record: InstanceStatus) -> PlannedInstance:
        """The plan of an instance that has ended: clean up its Pods, then release its partition."""
        clean = self._job.clean
        acts: list[JobAction] = []
        for pod in self._pods:
            goes = clean is CleanPodPolicy.ALL or (clean is CleanPodPolicy.WORKERS and not pod.is_launcher)
            # A program that still runs does so in vain: another one has failed, or its partition is gone.
            if (goes or (self._decides(pod) and not pod.ended)) and not pod.deleting:
                acts.append(DeletePod(pod.name, pod.uid))
        held = self._partition is not None and not shapes.is_given_back(self._partition)
        until = lifetimes.claim_expires_at(self._job, record) if held and not self._releases(record) else None
        if held and self._releases(record) and not self._uses():
            acts.append(ReleasePartition(self._number))
        return PlannedInstance(record=record, acts=tuple(acts), again_at=until)

    def _releases(self, record: InstanceStatus) -> bool:
        """Whether an ended instance releases its partition: in any case at its claim's time limit."""
        until = lifetimes.claim_expires_at(self._job, record)
        over = until is not None and self._now >= until
        return over or self._job.release_on_finish or self._job.clean is CleanPodPolicy.ALL

    @property
    def _programs(self) -> int:
        """How many Pods run the job's program."""
        return 1 if self._job.has_launcher else self._job.workers

    def _left_behind(self, record: InstanceStatus) -> list[Pod]:
        """The Pods on lost nodes that must go: of a failed attempt, or of an instance that has ended."""
        if record.outcome is None:
            return [pod for pod in self._lost_pods if pod.restart < record.restarts]
        return [pod for pod in self._lost_pods if self._decides(pod)] if self._releases(record) else []

    def _give_up(self, record: InstanceStatus, lost: Sequence[Pod]) -> PlannedInstance:
        """Remove the partition under Pods on lost nodes, then their objects, so that the next attempt can start."""
        goes = [pod for pod in self._pods if pod in lost or record.outcome is None or self._decides(pod)]
        acts = tuple(_evict_from_lost_nodes(self._number, lost, goes, self._partitions))
        waits = "its partition is removed" if record.outcome else "its partition is removed before anything starts anew"
        if record.detail and record.outcome is None:
            waits += f": {record.detail}"
        return PlannedInstance(record=record, acts=acts, waits=waits, code="node", restarting=record.outcome is None)

    def _uses(self) -> bool:
        """Whether a program may still use the partition: idle workers do not, once their launcher has ended."""
        return any(not pod.ended for pod in self._pods if self._decides(pod))

    def _runs(self) -> bool:
        """Whether its program runs. A worker that is done and waits for the others counts as running."""
        deciding = [pod for pod in self._pods if self._decides(pod)]
        goes_on = all(pod.phase in (RUNNING, SUCCEEDED) and not pod.deleting for pod in deciding)
        return len(deciding) == self._programs and goes_on

    def _decides(self, pod: Pod) -> bool:
        """Whether a Pod runs the job's program: a launcher, or a worker of a job without launchers."""
        return pod.is_launcher or not self._job.has_launcher

    def _sweep(self, record: InstanceStatus, stale: Sequence[Pod]) -> PlannedInstance:
        """Delete the previous attempt's Pods: running ones at once, ended ones when the next attempt is due."""
        times = [pod.ended_at for pod in stale if pod.ended_at is not None]
        due = add_seconds(max(times), backoff_s(record.failures) if record.detail else DELAY_S) if times else self._now
        gone = [pod for pod in stale if not pod.deleting and (not pod.ended or self._now >= due)]
        acts = tuple(DeletePod(pod.name, pod.uid) for pod in gone)
        waits = f"started anew after: {record.detail}" if record.detail else "started anew"
        again_at = due if self._now < due else None
        return PlannedInstance(
            record=record, acts=acts, waits=waits, code="restart", again_at=again_at, restarting=True
        )

    def _end_with(self, record: InstanceStatus, refused: str, current: Sequence[Pod]) -> PlannedInstance:
        """Create no more Pods: running Pods of this attempt continue; if there are none, the instance has failed."""
        deciding = [pod for pod in current if self._decides(pod)]
        if any(not pod.ended for pod in deciding):
            runs = any(pod.phase == RUNNING for pod in deciding)
            return PlannedInstance(record=record, standing=True, running=runs, waits=refused, code="refused")
        why = f"{record.detail}; it cannot be started anew: {refused}" if record.detail else refused
        return self._finish(replace(record, outcome=InstanceOutcome.FAILED, detail=why))

    def _suspend(self, record: InstanceStatus) -> PlannedInstance:
        """Hold nothing until it is resumed. This attempt is over, whatever its Pods do: a new one starts then."""
        if any(pod.restart >= record.restarts for pod in self._pods):
            record = replace(record, restarts=self._next(), detail="")
        record = replace(lifetimes.without_activity(record), start=StartAttempts())
        acts = tuple(_scale_down(self._pods, self._partition))
        waits = HOLDS_NOTHING
        if self._pods:
            waits = f"waiting for {_named(self._pods)} to end"
        elif acts:
            waits = "giving its partition back"
        return PlannedInstance(record=record, acts=acts, waits=waits, code="suspended")

    def _give_back(self, record: InstanceStatus, waits: str, code: str) -> PlannedInstance:
        """It cannot have all its Pods: the existing ones end, for they are useless alone, and its IPUs are released."""
        record = replace(record, start=replace(record.start, since=None))
        acts = tuple(_scale_down(self._pods, self._partition))
        return PlannedInstance(record=record, acts=acts, waits=waits, code=code)

    def _make_room(self, record: InstanceStatus, partition: PartitionBody) -> PlannedInstance:
        """Its partition is reclaimed: its Pods end, the launcher first, then the partition is released."""
        by = parse_time(partition.until) if partition.until else self._now
        left_s = max(int(seconds_between(self._now, by) - MARGIN_S), 1)
        launchers = [pod for pod in self._pods if pod.is_launcher and not pod.ended]
        # The launcher ends first, so workers can save while their Pods live. After ``by`` a lost launcher delays none.
        first = self._pods
        if launchers and self._now < by:
            first, left_s = launchers, max(left_s - WORKERS_S, (left_s + 1) // 2)
        late = add_seconds(self._now, left_s + 1)
        acts: tuple[JobAction, ...] = tuple(
            DeletePod(pod.name, pod.uid, min(pod.grace_s, left_s))
            for pod in first
            if not pod.deleting or (pod.gone_by is not None and pod.gone_by > late)
        )
        if not self._pods:
            acts = (YieldPartition(self._number),)
        waits = f"{YIELDING} until {format_time(by)[11:19]} UTC: {partition.message}"
        again_at = by if self._pods and self._now < by else None
        return PlannedInstance(record=record, acts=acts, waits=waits, code="claim.reclaiming", again_at=again_at)

    def _await_partition(self, record: InstanceStatus) -> PlannedInstance:
        partition = self._partition
        ipus = f"{self._job.ipus} IPU" + ("s" if self._job.ipus != 1 else "")
        standing = bool(self._pods)
        if partition is None:
            if not self._current:
                message = "waiting for the proxy, which does not answer for all controllers"
                if self._runs():  # it does not wait: an absent or restarting proxy stops no program
                    return PlannedInstance(record=record, standing=True, running=True)
                acts: tuple[JobAction, ...] = () if standing else (AcquirePartition(self._number),)
                return PlannedInstance(record=record, acts=acts, waits=message, code="proxy", standing=standing)
            message = f"waiting for a partition of {ipus}"
            return PlannedInstance(record=record, acts=(AcquirePartition(self._number),), waits=message, code="claim")
        if partition.state in (shapes.LOST, shapes.FAILED) and not standing:
            return PlannedInstance(
                record=record, acts=(ReleasePartition(self._number),), waits=partition.message, code="lost"
            )
        if partition.state == shapes.RELEASING:
            message = f"waiting for its earlier partition {partition.name} to be removed"
        elif partition.state == shapes.PREPARING:
            message = f"waiting for partition {partition.name} of {ipus} to become ready"
        else:
            told = "; ".join(filter(None, (partition.message, estimates.describe_start(partition))))
            message = f"waiting for a partition of {ipus}" + (f": {told}" if told else "")
        return PlannedInstance(record=record, waits=message, code=partition.code or "partition", standing=standing)

    def _fill(self, record: InstanceStatus, pods: Sequence[Pod], partition: PartitionBody) -> PlannedInstance:
        """It has its partition: create its missing Pods, and see whether all run."""
        job, first = self._job, self._number * self._job.workers
        there = {pod.name: pod for pod in pods}
        if outdated := [pod for pod in pods if pod.outdated]:  # its program has not begun: no failure of the job's
            gone = tuple(DeletePod(pod.name, pod.uid) for pod in outdated if not pod.deleting)
            waits = "its launcher is made anew, for it could not reach the proxy as it is now"
            return PlannedInstance(record=record, acts=gone, waits=waits, code="restart")
        acts: list[JobAction] = []
        if not job.has_launcher and not there and not self._fresh:
            acts.append(CleanPartition(self._number))
        numbers = range(first, first + job.workers)
        missing = [number for number in numbers if names.worker_name(job.name, number) not in there]
        acts += [CreateWorker(number, record.restarts) for number in missing]
        if job.has_launcher and names.launcher_name(job.name, self._number) not in there:
            acts.append(CreateLauncher(self._number, record.restarts, reset=not self._fresh))
            if any(pod.phase == RUNNING for pod in pods):  # programs of the last launcher may still run in the workers
                gone = tuple(DeletePod(pod.name, pod.uid) for pod in pods if not pod.deleting)
                waits = "its launcher is gone; the workers start anew with another one"
                return PlannedInstance(record=record, acts=gone, waits=waits, code="restart")
        if acts:
            waits = f"making {len([act for act in acts if not isinstance(act, CleanPartition)])} Pods"
            return PlannedInstance(record=record, acts=tuple(acts), waits=waits)
        running = self._runs()
        waits, known = ("", False) if running else _blocking_pod(pods)
        return PlannedInstance(record=record, standing=True, running=running, waits=waits, code="pods" if known else "")


def _named(pods: Sequence[Pod]) -> str:
    return pods[0].name + (f" and {len(pods) - 1} more Pods" if len(pods) > 1 else "")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _ended(pod: Pod) -> _PodsEnd:
    why = f"{pod.name} {'failed' if pod.phase == POD_FAILED else 'ended'}: {pod.why or 'no reason is known'}"
    return _PodsEnd(True, why, exit_code=pod.exit_code, ended_at=pod.ended_at)


def _blocking_pod(pods: Sequence[Pod]) -> tuple[str, bool]:
    """What the Pods wait for, a Pod with a reason first; and whether a reason is known."""
    late = [pod for pod in pods if pod.phase not in (RUNNING, SUCCEEDED) or pod.deleting]
    if not late:
        return "", False
    worst = max(late, key=lambda pod: (pod.deleting, pod.why != "", pod.worker))
    if worst.deleting:
        return f"waiting for {worst.name}, which is being deleted, to be gone", True
    return f"waiting for {worst.name}" + (f": {worst.why}" if worst.why else " to start"), worst.why != ""
