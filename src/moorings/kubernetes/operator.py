"""The operator: brings the cluster in step with IPUJobs, job by job.

Level-triggered: it watches jobs, Pods and partitions; each change names a job, and ``plan`` decides from the job's
present state. It stores nothing that it could not read again, so it may be killed at any moment.
"""

from __future__ import annotations

import logging
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from moorings.core.claims import PRIORITY_MAX
from moorings.core.errors import MooringsError
from moorings.core.instants import SECOND, Timestamp
from moorings.kubernetes import names
from moorings.kubernetes.acts import AcquirePartition, CleanPartition, CreateLauncher, CreateWorker, DeletePod
from moorings.kubernetes.admission import check_ipujob
from moorings.kubernetes.doing import (
    EXPECTATION_S,
    JobExecutor,
    PartitionApi,
    UnobservedPods,
    is_owned,
    may_use_partition,
)
from moorings.kubernetes.informer import MultiNamespaceInformer
from moorings.kubernetes.ipujob import MANAGER, IPUJob, IPUJobStatus, KubeObject
from moorings.kubernetes.kube import IPU_JOB, POD, KubeApi, KubeError
from moorings.kubernetes.last_read import ParsedJob
from moorings.kubernetes.measures import OperatorMetrics
from moorings.kubernetes.nodes import NotReadyNode
from moorings.kubernetes.objects import PodOptions
from moorings.kubernetes.plan import ENDED, FAILED, YIELDING, JobPartitions, JobPlan, plan
from moorings.kubernetes.pods import Pod, parse_pod
from moorings.kubernetes.priorities import ValueOf, needs_class_value, resolve_priority
from moorings.kubernetes.proxy import shapes
from moorings.kubernetes.proxy.client import PartitionInformer
from moorings.kubernetes.proxy.shapes import PartitionBody
from moorings.kubernetes.reading import parse_status, status_object
from moorings.kubernetes.refusals import CreateFailures
from moorings.kubernetes.status import JobEvent, build_events, build_status
from moorings.kubernetes.warning_events import WarnedEvents, failed_create
from moorings.kubernetes.write_times import write_delay_s
from moorings.ports.clock import Clock

log = logging.getLogger("moorings.kubernetes.operator")

ABSENT_S = 10.0  # after it a partition that the proxy does not list, under living Pods, counts as gone
FAILED_S = 1.0  # least pause between two reconciles of a job with a failure
PRIORITY_CLASS_RETRY_S = 5.0  # between two reads of a missing PriorityClass
SWEEP_S = 30.0  # between two searches for partitions without a job

_UNDO = "change it back, or delete the job and create it anew"

# Errors that pass by themselves and do not concern the job's owner.
_QUIET = frozenset({"kubernetes.not_leading", "kubernetes.unreachable"})


@dataclass(slots=True)
class ReconcileState:
    """The memory of one job between two reconciles."""

    made: UnobservedPods = field(default_factory=UnobservedPods)
    written: KubeObject | None = None  # as we wrote it, until the watch has caught up
    written_at: float = -1e9
    read: ParsedJob = field(default_factory=ParsedJob)
    cut: tuple[IPUJobStatus, IPUJobStatus] | None = None  # what the API server stored of a status, and what we sent
    differs_since: float | None = None
    absent_since: dict[int, float] = field(default_factory=dict)
    asked: dict[int, str] = field(default_factory=dict)  # instances requested, without Pods since; of the job's uid
    clean: dict[int, str] = field(default_factory=dict)  # instances whose partition is new or was reset
    checked: tuple[str, int, str] = ("", -1, "")  # uid, generation, its errors
    refusals: CreateFailures = field(default_factory=CreateFailures)
    warned: WarnedEvents = field(default_factory=WarnedEvents)
    again_s: float | None = None


class JobReconciler:
    """Reconciles jobs, one reconcile at a time for each key; the caller of ``reconcile`` retries when it raises.

    Args:
        kube: the API server.
        proxy: in front of the controllers.
        options: how Pods are made.
        jobs: the watched IPUJobs.
        pods: their watched Pods.
        view: their watched partitions.
        silent: nodes that are not Ready, by name; it may change.
        may: whether this operator leads.
        story: records a job's Events.
        value_of_class: the value of a PriorityClass, if there is one of that name.
        measures: its metrics.
        clock: the time.
    """

    def __init__(
        self,
        *,
        kube: KubeApi,
        proxy: PartitionApi,
        options: PodOptions,
        jobs: MultiNamespaceInformer,
        pods: MultiNamespaceInformer,
        view: PartitionInformer,
        silent: Mapping[str, NotReadyNode],
        may: Callable[[], bool],
        story: Callable[[KubeObject, JobEvent], None],
        value_of_class: ValueOf,
        measures: OperatorMetrics,
        clock: Clock,
        monotonic: Callable[[], float],
    ) -> None:
        self._kube = kube
        self._proxy = proxy
        self._options = options
        self._jobs = jobs
        self._pods = pods
        self._view = view
        self._silent = silent
        self._may = may
        self._story = story
        self._value_of_class = value_of_class
        self._measures = measures
        self._clock = clock
        self._monotonic = monotonic
        self._memory: dict[str, ReconcileState] = {}
        self._told_outdated = False
        self._doer = JobExecutor(kube, proxy, options, may, view.note, view.note_gone, monotonic)

    async def reconcile(self, key: str) -> float | None:
        """Reconcile one job (``namespace/name``); the seconds until the next reconcile, if one is due.

        Raises:
            MooringsError: an action failed; reconcile the job again, with a growing delay.
        """
        memory = self._memory.setdefault(key, ReconcileState())
        memory.again_s = None
        found = self._job(key, memory)
        if found is None:
            self._forget(key)
            await self.sweep(*key.split("/"))
            return None
        found = resolve_priority(found, self._value_of_class) or found
        job = memory.read.read(found, self._options.start_deadline_s)
        if memory.cut is not None and job.status == memory.cut[0]:
            job = replace(job, status=memory.cut[1])
        if job.managed_elsewhere and not job.deleted:
            return None
        now = self._monotonic()
        raw = [pod for pod in memory.made.beside(self._pods.indexed(key), now) if is_owned(pod, job.uid)]
        pods = sorted(filter(None, map(self._parse_pod, raw)), key=lambda pod: pod.name)
        partitions, absent_s = self._partitions(job, pods, memory, now)
        wrong = (self._check(job, found, memory) or _immutable_change(job, partitions)) if not job.deleted else ""
        self._tell(found, memory.warned.of(job, pods, wrong))
        held_s = await self._hold_back(job, found, wrong, memory, idle=not pods and not partitions.known)
        if held_s is not None:
            return held_s or None
        paused, paused_s = memory.refusals.paused(now, zlib.crc32(job.uid.encode()) / 2**32)
        refused = memory.refusals.invalid
        if wrong:  # as after an unchecked scaling: it continues as before
            job = replace(job, instances=job.status.desired)
            if _immutable_change(job, partitions) or self._is_wrong(_scaled(found, job.instances)):
                refused = dict.fromkeys(range(job.instances), wrong)  # running Pods stay; no new ones are made
        planned = plan(job, pods, partitions, self._now(), refused, paused, self._silent)
        if planned.save_first:
            status = build_status(job, planned, pods, partitions, self._now())
            job = await self._write(job, found, status, memory)
        self._tell(found, _making_room(planned))  # a status is written later, when it may be over
        failed = await self._do(job, found, planned, partitions, memory)
        problem = wrong or _problem(failed)
        status = build_status(job, planned, pods, partitions, self._now(), problem)
        due_s = self._due_s(job.status, status, memory, now, hurry=bool(problem))
        if due_s == 0.0 and not _is_over(job, planned):
            await self._write(job, found, status, memory)
        waits = [one for one in (planned.again_s, due_s, absent_s, paused_s) if one]
        if failed:
            memory.again_s = max(min(waits), FAILED_S) if waits else None
            raise next((error for error in failed if error.code not in _QUIET), failed[0])
        if any(one.uid != job.uid for one in self._view.named(job.namespace, job.name)):
            await self.sweep(job.namespace, job.name)  # partitions of an earlier job of this name
        if not memory.made.empty:
            waits.append(EXPECTATION_S)
        return min(waits) if waits else None

    async def _hold_back(
        self, job: IPUJob, found: KubeObject, wrong: str, memory: ReconcileState, *, idle: bool
    ) -> float | None:
        """Write why a job is held back; seconds until the next look (0: at its next change), None: it is not."""
        if wrong and not job.status.observed_generation:
            await self._write(job, found, _refused(job, wrong, self._now()), memory)
            return 0.0
        served = job.deleted or job.suspended or job.status.state in ENDED or not idle
        if served or not needs_class_value(found):
            return None
        told = f"there is no PriorityClass {job.priority_class} with a priority that a job may have; it waits for one"
        await self._write(job, found, build_status(job, JobPlan(), (), JobPartitions(), self._now(), told), memory)
        return PRIORITY_CLASS_RETRY_S

    def again_s(self, key: str) -> float | None:
        """Seconds until a reconcile that is due even after ``reconcile`` raised, since not all of it had failed."""
        memory = self._memory.get(key)
        return memory.again_s if memory is not None else None

    def trust(self, authorities: str) -> None:
        """Give these authorities of the proxy (PEM) to launchers made from now on."""
        self._options = self._doer.options = replace(self._options, proxy_ca=authorities)

    def begin(self) -> None:
        """Begin a term of leadership: forget the memory of an earlier one."""
        self._memory.clear()
        self._doer.ensured.clear()
        self._doer.granted.clear()

    async def sweep(self, namespace: str = "", name: str = "") -> int:
        """Release partitions whose job is gone, of one name or of all; how many.

        A job may vanish despite our finalizer: a user removes it, or an API server that is about to remove the job does
        not see the new finalizer.

        Raises:
            MooringsError: the API server or the proxy did not respond.
        """
        if not self._view.standing:
            return 0
        swept = 0
        for seen in self._view.named(namespace, name) if name else self._view.all():
            body = self._view.get(seen.namespace, seen.job, seen.uid).get(seen.instance)  # earlier calls took time
            if body is None or shapes.is_given_back(body) or self._is_known(body) or not self._looks_at(body.namespace):
                continue
            if await self._lives(body) or not self._may():
                continue
            log.warning(
                "partition.orphan",
                extra={"job": f"{body.namespace}/{body.job}", "uid": body.uid, "partition": body.name},
            )
            await self._proxy.release(body.namespace, body.job, body.uid, body.instance)
            swept += 1
        return swept

    async def _do(
        self, job: IPUJob, found: KubeObject, planned: JobPlan, partitions: JobPartitions, memory: ReconcileState
    ) -> list[MooringsError]:
        if not planned.acts:
            return []
        claimed = [act.instance for act in planned.acts if isinstance(act, AcquirePartition)]
        memory.asked |= dict.fromkeys(claimed, job.uid)
        made = [_created(job, act) for act in planned.acts if isinstance(act, CreateWorker | CreateLauncher)]
        clean = partitions.fresh | {act.instance for act in planned.acts if isinstance(act, CleanPartition)}
        for instance in (*claimed, *made):
            memory.clean.pop(instance, None)
        for instance in made:
            memory.asked.pop(instance, None)
        failures = await self._doer.do(job, planned.acts, partitions.known, memory.made)
        whole = job.workers + job.has_launcher
        tried = {number: count == whole for number, count in Counter(made).items()}
        memory.refusals.note(tried, failures, self._monotonic())
        if (story := failed_create(tried, failures)) is not None:
            self._story(found, story)
        failed = [failure.error for failure in failures]
        if failed and all(map(_is_refusal, failed)):
            # Pods were refused: a partition without Pods stays clean, and needs no reset for every try.
            used = {pod["metadata"]["labels"][names.INSTANCE] for _, pod in memory.made.created.values()}
            memory.clean |= {number: job.uid for number in clean if str(number) not in used}
        return failed

    # -- observed state ----------------------------------------------------------------------------------------------

    def _parse_pod(self, found: KubeObject) -> Pod | None:
        return parse_pod(found, self._options.proxy_mark)

    def _job(self, key: str, memory: ReconcileState) -> KubeObject | None:
        """The job as last seen, or as we wrote it since."""
        seen, mine = self._jobs.get(*key.split("/")), memory.written
        if seen is None:
            return None
        if (
            mine is not None
            and mine["metadata"]["uid"] == seen["metadata"]["uid"]
            and _resource_version(mine) > _resource_version(seen)
        ):
            return mine
        memory.written = None
        return seen

    def _partitions(
        self, job: IPUJob, pods: Sequence[Pod], memory: ReconcileState, now: float
    ) -> tuple[JobPartitions, float | None]:
        """The job's partitions, and when to look again for a partition that is missing under its Pods."""
        known = self._view.get(job.namespace, job.name, job.uid)
        with_pods = {pod.instance for pod in pods}
        for kept in (memory.asked, memory.clean):
            for instance in [one for one, uid in kept.items() if uid != job.uid or one in with_pods]:
                del kept[instance]
        missing = with_pods - known.keys()
        current, again_s = self._view.current, None
        for instance in memory.absent_since.keys() - missing:
            del memory.absent_since[instance]
        if missing and current:
            since = min(memory.absent_since.setdefault(instance, now) for instance in missing)
            if now - since < ABSENT_S:
                current, again_s = False, ABSENT_S
        # A partition that this operator requested and whose creation the proxy saw was never used, even if not all
        # controllers respond.
        fresh = frozenset(one for one in memory.asked if one in known and known[one].fresh) | memory.clean.keys()
        return JobPartitions(known, current, self._view.standing, fresh), again_s

    def _check(self, job: IPUJob, found: KubeObject, memory: ReconcileState) -> str:
        """The errors of a job that passed the webhook; empty: none."""
        uid, generation, wrong = memory.checked
        if (uid, generation) != (job.uid, job.generation):
            wrong = self._is_wrong(found)
            memory.checked = (job.uid, job.generation, wrong)
            memory.refusals.clear()
        return wrong

    def _is_wrong(self, found: KubeObject) -> str:
        limits = self._options.limits
        if _was_accepted(found):  # it keeps waiting; the doer lowers the priority of its new requests
            limits = replace(limits, max_priority=PRIORITY_MAX)
        try:
            check_ipujob(found, limits)
        except MooringsError as error:
            return error.detail
        return ""

    def _looks_at(self, namespace: str) -> bool:
        """Whether we may read the jobs of a namespace: about others nothing is concluded."""
        return not self._options.namespaces or namespace in self._options.namespaces

    def _is_known(self, body: PartitionBody) -> bool:
        seen = self._jobs.get(body.namespace, body.job)
        return seen is not None and seen["metadata"]["uid"] == body.uid

    async def _lives(self, body: PartitionBody) -> bool:
        """Whether a partition's job, or a Pod of it, exists after all: asks the API server itself."""
        try:
            found = await self._kube.get(IPU_JOB, body.job, body.namespace)
            if found["metadata"]["uid"] == body.uid:
                return True
        except KubeError as error:
            if error.status != 404:
                raise
        listed = await self._kube.list(POD, body.namespace, labels=f"{names.JOB}={body.job}")
        return any(may_use_partition(pod, body.uid, body.name) for pod in listed.items)

    def _forget(self, key: str) -> None:
        memory = self._memory.pop(key, None)
        if memory is not None:
            self._doer.ensured.pop(memory.checked[0], None)

    # -- reporting ---------------------------------------------------------------------------------------------------

    def _tell(self, found: KubeObject, stories: Iterable[JobEvent]) -> None:
        for story in stories:
            self._story(found, story)

    async def _write(self, job: IPUJob, found: KubeObject, status: IPUJobStatus, memory: ReconcileState) -> IPUJob:
        """Save a status; returns the job with it."""
        memory.differs_since = None
        if status == job.status:
            return job
        if not self._may():
            raise MooringsError("kubernetes.not_leading", "another operator may lead by now", retryable=True)
        value = {**status_object(status), "selector": worker_selector(job.name)}
        body: list[KubeObject] = [
            {"op": "test", "path": "/metadata/uid", "value": job.uid},
            {"op": "add", "path": "/status", "value": value},
        ]
        try:
            memory.written = await self._kube.patch(IPU_JOB, job.name, body, job.namespace, subresource="status")
        except KubeError as error:
            if error.status == 404:
                return job  # it was removed in between
            raise
        memory.written_at = self._monotonic()
        memory.cut = self._find_cut(memory.written, status, value)
        self._measures.status_written(job, status, self._now())
        self._tell(found, build_events(job.status, status))
        job = replace(job, status=status, resource_version=memory.written["metadata"]["resourceVersion"])
        memory.read.note(found, memory.written, job)
        return job

    def _find_cut(
        self, written: KubeObject, status: IPUJobStatus, value: KubeObject
    ) -> tuple[IPUJobStatus, IPUJobStatus] | None:
        """What an earlier definition of IPUJobs stored of a status: else the dropped part would be written for ever."""
        if written.get("status") == value:
            return None
        if not self._told_outdated:
            self._told_outdated = True
            hint = "kubectl apply the one of this release; until then a restart of the operator forgets what is dropped"
            log.warning("definition.outdated", extra={"hint": hint})
        return parse_status(written.get("status")), status

    def _due_s(
        self, before: IPUJobStatus, after: IPUJobStatus, memory: ReconcileState, now: float, *, hurry: bool
    ) -> float | None:
        """When to write a status: 0: now, else after so many seconds; None: it is unchanged."""
        since = memory.differs_since
        found = write_delay_s(before, after, written_s=memory.written_at, differs_s=since, now_s=now, hurry=hurry)
        if found is None:
            memory.differs_since = None
        elif since is None:
            memory.differs_since = now
        return found

    def _now(self) -> Timestamp:
        """The time in whole seconds, as the API server keeps times."""
        return Timestamp(self._clock.now() // SECOND * SECOND)


def _was_accepted(found: KubeObject) -> bool:
    """Whether a job once passed the check: a job that was refused at first has no instances in its status."""
    status = found.get("status") or {}
    return bool(status.get("observedGeneration")) and bool(status.get("status") != FAILED or status.get("instances"))


def _refused(job: IPUJob, wrong: str, now: Timestamp) -> IPUJobStatus:
    """The status of a job that can never run."""
    planned = JobPlan()
    failed = replace(job.status, state=FAILED, desired=job.instances)
    return build_status(replace(job, status=failed), planned, (), JobPartitions(), now, wrong)


def _created(job: IPUJob, act: CreateWorker | CreateLauncher) -> int:
    """The instance whose Pod it makes."""
    return act.number // job.workers if isinstance(act, CreateWorker) else act.instance


def _making_room(planned: JobPlan) -> list[JobEvent]:
    """Events for instances whose Pods end now to free their partition for other claims."""
    return [
        JobEvent("Normal", "MakingRoom", f"instance {number} is {one.waits}")
        for number, one in planned.instances.items()
        if one.waits.startswith(YIELDING) and any(isinstance(act, DeletePod) for act in one.acts)
    ]


def _scaled(found: KubeObject, instances: int) -> KubeObject:
    return {**found, "spec": {**found["spec"], "jobInstances": instances}}


def _immutable_change(job: IPUJob, partitions: JobPartitions) -> str:
    """A change that is not allowed while the job holds partitions; a webhook would have refused it."""
    if job.managed_by not in ("", MANAGER):
        return f"spec.managedBy was changed to {job.managed_by} after this operator had taken up the job: {_UNDO}"
    for body in partitions.known.values():
        if body.ipus and body.ipus != job.ipus:
            return f"spec.ipusPerJobInstance was changed to {job.ipus}, and its partition has {body.ipus} IPUs: {_UNDO}"
        if body.binding is not None and len(body.binding.gcds) != job.workers:
            held = len(body.binding.gcds)
            return f"spec.workerPerJobInstance was changed to {job.workers}, and its partition has {held} GCDs: {_UNDO}"
    return ""


def _is_refusal(error: MooringsError) -> bool:
    """Whether nothing was created; after a lost response an object may have been."""
    return error.code == "ipujob.name_taken" or (isinstance(error, KubeError) and error.status not in (0, 504))


def _problem(failed: Sequence[MooringsError]) -> str:
    """What failed, for the job's owner."""
    for error in failed:
        if error.code not in _QUIET and not (isinstance(error, KubeError) and error.status == 409):
            return error.detail + (f"; {error.hint}" if error.hint else "")
    return ""


def _is_over(job: IPUJob, planned: JobPlan) -> bool:
    """Whether its last finalizer may just have been removed, and the job with it."""
    return job.deleted and not planned.acts and planned.deleting == ""


def _resource_version(found: KubeObject) -> int:
    """Later versions have larger numbers, as the API server promises now and has always done."""
    return int(found["metadata"]["resourceVersion"])


def worker_selector(job: str) -> str:
    """The label selector of a job's workers, for the scale subresource."""
    return f"{names.JOB}={job},{names.ROLE}={names.WORKER_ROLE}"
