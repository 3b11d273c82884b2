"""The operator: brings the cluster in step with IPUJobs, job by job.

Level-triggered: it watches jobs, Pods and partitions; each change names a job, and ``plan`` decides from the job's
present state. It stores nothing that it could not read again, so it may be killed at any moment.
"""

from __future__ import annotations

import logging
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from moorings.core.model.claims import PRIORITY_MAX
from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.kubernetes.ipujob import names
from moorings.kubernetes.ipujob.parsing import parse_status, status_object
from moorings.kubernetes.ipujob.pods import Pod, parse_pod
from moorings.kubernetes.ipujob.priority_class import ValueOf, needs_class_value, resolve_priority
from moorings.kubernetes.ipujob.types import ENDED, FAILED, IPU_JOB, MANAGER, IPUJob, IPUJobStatus
from moorings.kubernetes.ipujob.validation import check_ipujob
from moorings.kubernetes.kube.api import KubeApi, KubeError, KubeObject
from moorings.kubernetes.kube.informer import MultiNamespaceInformer
from moorings.kubernetes.operator.actions import (
    CleanPartition,
    DeletePod,
)
from moorings.kubernetes.operator.executor import (
    EXPECTATION_S,
    JobExecutor,
    PartitionApi,
    is_owned,
)
from moorings.kubernetes.operator.metrics import OperatorMetrics
from moorings.kubernetes.operator.node_health import NotReadyNode
from moorings.kubernetes.operator.orphans import OrphanSweeper
from moorings.kubernetes.operator.plan import YIELDING, JobPartitions, JobPlan, plan
from moorings.kubernetes.operator.pod_builder import PodOptions
from moorings.kubernetes.operator.reconcile_state import ReconcileState
from moorings.kubernetes.operator.status import JobEvent, build_events, build_status
from moorings.kubernetes.operator.warning_events import failed_create
from moorings.kubernetes.proxy_api.client import PartitionInformer
from moorings.ports.clock import Clock

log = logging.getLogger("moorings.kubernetes.operator")

FAILED_S = 1.0  # least pause between two reconciles of a job with a failure
PRIORITY_CLASS_RETRY_S = 5.0  # between two reads of a missing PriorityClass
SWEEP_S = 30.0  # between two searches for partitions without a job

_UNDO = "change it back, or delete the job and create it anew"

# Errors that pass by themselves and do not concern the job's owner.
_QUIET = frozenset({"kubernetes.not_leading", "kubernetes.unreachable"})


class JobReconciler:
    """Reconciles jobs, one reconcile at a time for each key; the caller of ``reconcile`` retries when it raises.

    Args:
        kube: the API server.
        proxy: in front of the controllers.
        orphans: releases partitions whose job is gone.
        options: how Pods are made.
        jobs: the watched IPUJobs.
        pods: their watched Pods.
        view: their watched partitions.
        not_ready_nodes: nodes that are not Ready, by name; it may change.
        is_leading: whether this operator leads.
        record_event: records a job's Events.
        value_of_class: the value of a PriorityClass, if there is one of that name.
        measures: its metrics.
        clock: the time.
    """

    def __init__(
        self,
        *,
        kube: KubeApi,
        proxy: PartitionApi,
        orphans: OrphanSweeper,
        options: PodOptions,
        jobs: MultiNamespaceInformer,
        pods: MultiNamespaceInformer,
        view: PartitionInformer,
        not_ready_nodes: Mapping[str, NotReadyNode],
        is_leading: Callable[[], bool],
        record_event: Callable[[KubeObject, JobEvent], None],
        value_of_class: ValueOf,
        measures: OperatorMetrics,
        clock: Clock,
        monotonic: Callable[[], float],
    ) -> None:
        self._kube = kube
        self._orphans = orphans
        self._options = options
        self._jobs = jobs
        self._pods = pods
        self._view = view
        self._silent = not_ready_nodes
        self._story = record_event
        self._value_of_class = value_of_class
        self._measures = measures
        self._clock = clock
        self._monotonic = monotonic
        self._memory: dict[str, ReconcileState] = {}
        self._told_outdated = False
        self._doer = JobExecutor(kube, proxy, options, is_leading, view.observe, view.observe_gone, monotonic)

    async def reconcile(self, key: str) -> float | None:
        """Reconcile one job (``namespace/name``); the seconds until the next reconcile, if one is due.

        Raises:
            MooringsError: an action failed; reconcile the job again, with a growing delay.
        """
        memory = self._memory.setdefault(key, ReconcileState())
        memory.requeue_after_s = None
        seen = self._jobs.get(*key.split("/"))
        if seen is None:
            self._forget(key)
            await self._orphans.release_orphans(*key.split("/"))
            return None
        found = memory.latest_version(seen)
        found = resolve_priority(found, self._value_of_class) or found
        job = memory.read.read(found, self._options.start_deadline_s)
        if memory.truncated_status is not None and job.status == memory.truncated_status[0]:
            job = replace(job, status=memory.truncated_status[1])
        if job.managed_elsewhere and not job.deleted:
            return None
        now = self._monotonic()
        raw = [pod for pod in memory.unobserved.merge_observed(self._pods.indexed(key), now) if is_owned(pod, job.uid)]
        pods = sorted(filter(None, map(self._parse_pod, raw)), key=lambda pod: pod.name)
        known = self._view.get(job.namespace, job.name, job.uid)
        partitions, absent_s = memory.partitions.observe(
            job, pods, known, now, is_synced=self._view.is_synced, is_watching=self._view.is_watching
        )
        wrong = (self._check(job, found, memory) or _immutable_change(job, partitions)) if not job.deleted else ""
        self._record_events(found, memory.warned.new_warnings(job, pods, wrong))
        held_s = await self._write_if_held(job, found, wrong, memory, idle=not pods and not partitions.by_instance)
        if held_s is not None:
            return held_s or None
        paused, paused_s = memory.refusals.paused(now, zlib.crc32(job.uid.encode()) / 2**32)
        refused = memory.refusals.invalid
        if wrong:  # as after an unchecked scaling: it continues as before
            job = replace(job, instances=job.status.desired)
            if _immutable_change(job, partitions) or self._is_wrong(_scaled(found, job.instances)):
                refused = dict.fromkeys(range(job.instances), wrong)  # running Pods stay; no new ones are made
        planned = plan(job, pods, partitions, self._now(), refused, paused, self._silent)
        if planned.save_status_first:
            status = build_status(job, planned, pods, partitions, self._now())
            job = await self._write(job, found, status, memory)
        self._record_events(found, _making_room(planned))  # a status is written later, when it may be over
        failed = await self._execute(job, found, planned, partitions, memory)
        problem = wrong or _problem(failed)
        status = build_status(job, planned, pods, partitions, self._now(), problem)
        due_s = memory.write_delay_s(job.status, status, now, is_urgent=bool(problem))
        if due_s == 0.0 and not _is_over(job, planned):
            await self._write(job, found, status, memory)
        waits = [one for one in (planned.requeue_after_s, due_s, absent_s, paused_s) if one]
        if failed:
            memory.requeue_after_s = max(min(waits), FAILED_S) if waits else None
            raise next((error for error in failed if error.code not in _QUIET), failed[0])
        if any(one.uid != job.uid for one in self._view.by_job_name(job.namespace, job.name)):
            await self._orphans.release_orphans(job.namespace, job.name)  # partitions of an earlier job of this name
        if not memory.unobserved.is_empty:
            waits.append(EXPECTATION_S)
        return min(waits) if waits else None

    async def _write_if_held(
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

    def requeue_after_s(self, key: str) -> float | None:
        """Seconds until a reconcile that is due even after ``reconcile`` raised, since not all of it had failed."""
        memory = self._memory.get(key)
        return memory.requeue_after_s if memory is not None else None

    def set_proxy_authorities(self, authorities: str) -> None:
        """Give these authorities of the proxy (PEM) to launchers made from now on."""
        self._options = self._doer.options = replace(self._options, proxy_ca=authorities)

    def reset_term(self) -> None:
        """Begin a term of leadership: forget the memory of an earlier one."""
        self._memory.clear()
        self._doer.objects_ensured_for.clear()
        self._doer.role_bound_since.clear()

    async def _execute(
        self, job: IPUJob, found: KubeObject, planned: JobPlan, partitions: JobPartitions, memory: ReconcileState
    ) -> list[MooringsError]:
        if not planned.acts:
            return []
        made = memory.partitions.record_actions(job, planned.acts)
        failures = await self._doer.do(job, planned.acts, partitions.by_instance, memory.unobserved)
        whole = job.workers + job.has_launcher
        tried = {number: count == whole for number, count in Counter(made).items()}
        memory.refusals.record(tried, failures, self._monotonic())
        if (story := failed_create(tried, failures)) is not None:
            self._story(found, story)
        failed = [failure.error for failure in failures]
        if failed and all(map(_is_refusal, failed)):
            # Pods were refused: a partition without Pods stays clean, and needs no reset for every try.
            used = {pod["metadata"]["labels"][names.INSTANCE] for _, pod in memory.unobserved.created.values()}
            clean = partitions.unused | {act.instance for act in planned.acts if isinstance(act, CleanPartition)}
            memory.partitions.record_unused(job, [number for number in clean if str(number) not in used])
        return failed

    # -- observed state ----------------------------------------------------------------------------------------------

    def _parse_pod(self, found: KubeObject) -> Pod | None:
        return parse_pod(found, self._options.proxy_hash)

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

    def _forget(self, key: str) -> None:
        memory = self._memory.pop(key, None)
        if memory is not None:
            self._doer.objects_ensured_for.pop(memory.checked[0], None)

    # -- reporting ---------------------------------------------------------------------------------------------------

    def _record_events(self, found: KubeObject, stories: Iterable[JobEvent]) -> None:
        for story in stories:
            self._story(found, story)

    async def _write(self, job: IPUJob, found: KubeObject, status: IPUJobStatus, memory: ReconcileState) -> IPUJob:
        """Save a status; returns the job with it."""
        memory.differs_since = None
        if status == job.status:
            return job
        self._doer.check_leading()
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
        memory.truncated_status = self._find_pruned_status(memory.written, status, value)
        self._measures.observe_status_write(job, status, self._now())
        self._record_events(found, build_events(job.status, status))
        job = replace(job, status=status, resource_version=memory.written["metadata"]["resourceVersion"])
        memory.read.record_written(found, memory.written, job)
        return job

    def _find_pruned_status(
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


def _making_room(planned: JobPlan) -> list[JobEvent]:
    """Events for instances whose Pods end now to free their partition for other claims."""
    return [
        JobEvent("Normal", "MakingRoom", f"instance {number} is {one.message}")
        for number, one in planned.instances.items()
        if one.message.startswith(YIELDING) and any(isinstance(act, DeletePod) for act in one.actions)
    ]


def _scaled(found: KubeObject, instances: int) -> KubeObject:
    return {**found, "spec": {**found["spec"], "jobInstances": instances}}


def _immutable_change(job: IPUJob, partitions: JobPartitions) -> str:
    """A change that is not allowed while the job holds partitions; a webhook would have refused it."""
    if job.managed_by not in ("", MANAGER):
        return f"spec.managedBy was changed to {job.managed_by} after this operator had taken up the job: {_UNDO}"
    for body in partitions.by_instance.values():
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


def worker_selector(job: str) -> str:
    """The label selector of a job's workers, for the scale subresource."""
    return f"{names.JOB}={job},{names.ROLE}={names.WORKER_ROLE}"
