"""Executes the plan of one job: calls to the API server and to the proxy, in the plan's order.

It remembers created and deleted Pods until the watch shows them: the next plan may come before the watch event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.ipujob import names
from moorings.kubernetes.ipujob.pods import has_ended
from moorings.kubernetes.ipujob.types import FINALIZER, IPU_JOB, IPUJob, needs_service
from moorings.kubernetes.kube.api import (
    CLUSTER_ROLE,
    CONFIG_MAP,
    NODE,
    POD,
    ROLE,
    ROLE_BINDING,
    SERVICE,
    SERVICE_ACCOUNT,
    ExpectedErrors,
    KubeApi,
    KubeError,
    KubeObject,
    ResourceType,
    get_or_none,
)
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
from moorings.kubernetes.operator.create_failures import ActionFailure
from moorings.kubernetes.operator.deadlines import time_left_s
from moorings.kubernetes.operator.node_health import parse_not_ready
from moorings.kubernetes.operator.pod_builder import (
    PodOptions,
    build_config,
    build_launcher,
    build_launcher_rbac,
    build_role_binding,
    build_service,
    build_worker,
)
from moorings.kubernetes.proxy_api.shapes import PartitionBody, PartitionRequest
from moorings.wire.codec import format_time

log = logging.getLogger("moorings.kubernetes.operator")

RBAC_PROPAGATION_S = 10.0  # until every API server knows a new right
GRANT_PAUSE_S = 0.1
EXPECTATION_S = 15.0  # a created Pod that no watch shows by then is forgotten


class PartitionApi(Protocol):
    """The calls to the proxy; all raise MooringsError."""

    async def create(self, request: PartitionRequest) -> PartitionBody:
        """Request a partition; idempotent."""
        ...

    async def release(self, namespace: str, job: str, uid: str, instance: int) -> PartitionBody | None:
        """Release a partition; what is left of it."""
        ...

    async def yield_partition(self, namespace: str, job: str, uid: str, instance: int) -> PartitionBody:
        """Release a partition on the scheduler's request; the instance waits again."""
        ...

    async def reset(self, namespace: str, job: str, uid: str, instance: int) -> PartitionBody:
        """Reset a partition; returns when that is done."""
        ...


@dataclass(slots=True)
class UnobservedPods:
    """Pods that were created or deleted but that the watch may not show yet: by uid, with their time."""

    created: dict[str, tuple[float, KubeObject]] = field(default_factory=dict)
    deleted: dict[str, float] = field(default_factory=dict)

    def merge_observed(self, seen: Iterable[KubeObject], now: float) -> list[KubeObject]:
        """All present Pods: those that the watch shows, and those created since."""
        found = []
        for pod in seen:
            uid = pod["metadata"]["uid"]
            self.created.pop(uid, None)
            if uid in self.deleted and pod["metadata"].get("deletionTimestamp") is None:
                if now - self.deleted[uid] < EXPECTATION_S:
                    pod = {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": ""}}
                else:
                    del self.deleted[uid]
            found.append(pod)
        there = {pod["metadata"]["uid"] for pod in found} | self.created.keys()
        for uid in self.deleted.keys() - there:
            del self.deleted[uid]
        for uid, (at, pod) in list(self.created.items()):
            if now - at >= EXPECTATION_S:
                del self.created[uid]
            else:
                found.append(pod)
        return found

    @property
    def is_empty(self) -> bool:
        """Whether nothing is remembered."""
        return not self.created and not self.deleted


@dataclass(slots=True)
class JobExecutor:
    """Executes plans.

    Attributes:
        kube: the API server.
        proxy: in front of the controllers.
        options: how Pods are made.
        is_leading: whether this operator still leads; checked before every action.
        on_partition: takes the proxy's responses, so that the next plan counts with them at once.
        on_partition_gone: takes partitions of which the proxy says that nothing is left.
    """

    kube: KubeApi
    proxy: PartitionApi
    options: PodOptions
    is_leading: Callable[[], bool]
    on_partition: Callable[[PartitionBody], None]
    on_partition_gone: Callable[[PartitionBody], None]
    now: Callable[[], float]
    objects_ensured_for: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    role_bound_since: dict[str, float] = field(
        default_factory=dict
    )  # namespaces where we may make launchers' roles: since when

    async def do(
        self, job: IPUJob, acts: Iterable[JobAction], partitions: Mapping[int, PartitionBody], made: UnobservedPods
    ) -> list[ActionFailure]:
        """Do all actions that can be done; returns the failures of the others.

        Args:
            job: the job of the actions.
            acts: in their order.
            partitions: of the job, by instance.
            made: records the created and deleted Pods.
        """
        first: list[JobAction] = []
        by_instance: dict[int, list[JobAction]] = {}
        for act in acts:
            number = _instance(job, act)
            (first if number is None else by_instance.setdefault(number, [])).append(act)
        errors = await self._each([partial(self._act, job, act, partitions, made) for act in first])
        if failed := [ActionFailure(None, error) for error in errors if error is not None]:
            return failed
        errors = await self._each([partial(self._chain, job, one, partitions, made) for one in by_instance.values()])
        return [
            ActionFailure(number, error) for number, error in zip(by_instance, errors, strict=True) if error is not None
        ]

    async def _chain(
        self, job: IPUJob, acts: list[JobAction], partitions: Mapping[int, PartitionBody], made: UnobservedPods
    ) -> None:
        """The actions of one instance: Pods concurrently, all others one after the other."""
        pods = [act for act in acts if isinstance(act, CreateWorker | CreateLauncher | DeletePod)]
        for act in acts:
            if act not in pods:
                await self._act(job, act, partitions, made)
        await self._all([partial(self._act, job, act, partitions, made) for act in pods])

    async def _all(self, works: Sequence[Callable[[], Awaitable[None]]]) -> None:
        """Do all that can be done, then raise the first error."""
        if failed := list(filter(None, await self._each(works))):
            raise failed[0]

    async def _each(self, works: Sequence[Callable[[], Awaitable[None]]]) -> list[MooringsError | None]:
        """Do all that can be done; returns the error of each."""
        if len(works) == 1:  # the usual case, without a task
            try:
                await works[0]()
            except MooringsError as error:
                return [error]
            return [None]
        found = await asyncio.gather(*(work() for work in works), return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, MooringsError):
                raise one
        return [one if isinstance(one, MooringsError) else None for one in found]

    async def _act(
        self, job: IPUJob, act: JobAction, partitions: Mapping[int, PartitionBody], made: UnobservedPods
    ) -> None:
        self.check_leading()
        match act:
            case AddFinalizer():
                await self._set_finalizers(job, (*job.finalizers, FINALIZER))
            case DropFinalizer():
                await self._drop_finalizer(job)
            case DeleteJob():  # in the version that was planned on: a user may have extended its time
                await self.kube.delete(IPU_JOB, job.name, job.namespace, uid=job.uid, version=job.resource_version)
            case AcquirePartition(instance):
                self.on_partition(
                    await self.proxy.create(build_partition_request(job, instance, self.options.max_priority))
                )
            case ReleasePartition() | FencePartition():
                await self._release(job, act, partitions.get(act.instance))
            case CleanPartition(instance):
                await self._check_unused(job, instance, partitions.get(instance))
                self.check_leading()  # the check took time
                self.on_partition(await self.proxy.reset(job.namespace, job.name, job.uid, instance))
            case YieldPartition(instance):
                await self._check_unused(job, instance, partitions.get(instance), workers_too=True)
                self.check_leading()
                self.on_partition(await self.proxy.yield_partition(job.namespace, job.name, job.uid, instance))
            case EnsureJobObjects():
                await self._ensure_job_objects(job)
            case CreateWorker(number, restart):
                partition = partitions[number // job.workers]
                await self._create_pod(job, build_worker(job, number, restart, partition, self.options), made)
            case CreateLauncher():
                await self._create_launcher(job, act, partitions[act.instance], made)
            case DeletePod(name, uid, grace_s):
                await self.kube.delete(POD, name, job.namespace, uid=uid, grace_s=grace_s)
                made.deleted[uid] = self.now()

    def check_leading(self) -> None:
        """Return if this operator still leads.

        Raises:
            MooringsError: ``kubernetes.not_leading``.
        """
        if not self.is_leading():
            raise MooringsError("kubernetes.not_leading", "another operator may lead by now", retryable=True)

    async def _release(
        self, job: IPUJob, act: ReleasePartition | FencePartition, partition: PartitionBody | None
    ) -> None:
        await self._check_unused(
            job, act.instance, partition, lost=act.nodes if isinstance(act, FencePartition) else ()
        )
        self.check_leading()
        left = await self.proxy.release(job.namespace, job.name, job.uid, act.instance)
        if left is not None:
            self.on_partition(left)
        elif partition is not None:
            self.on_partition_gone(partition)

    async def _check_unused(
        self,
        job: IPUJob,
        instance: int,
        partition: PartitionBody | None,
        *,
        workers_too: bool = False,
        lost: Collection[str] = (),
    ) -> None:
        """Return if no program of an instance runs. Asks the API server, since the watch may be behind.

        Args:
            job: the job.
            instance: its instance.
            partition: of the instance, if it is known.
            workers_too: whether workers under a launcher count: programs that it started may outlive it.
            lost: nodes whose programs may still run, as long as these nodes are not Ready.

        Raises:
            MooringsError: ``ipujob.in_use`` (retryable).
        """
        workers = names.worker_names(job.name, instance, job.workers)
        launchers = [names.launcher_name(job.name, instance)] if job.has_launcher else []
        for name in [*launchers, *(workers if workers_too or not launchers else ())]:
            found = await get_or_none(self.kube, POD, name, job.namespace)
            if found is None or not may_use_partition(found, job.uid, partition.name if partition is not None else ""):
                continue
            node = (found.get("spec") or {}).get("nodeName") or ""
            if node not in lost or not await self._is_node_not_ready(node):
                hint = "" if is_owned(found, job.uid) else "it has lost its owner, so you have to delete that Pod"
                raise MooringsError("ipujob.in_use", f"{name} still uses its partition", hint=hint, retryable=True)

    async def _is_node_not_ready(self, node: str) -> bool:
        found = await get_or_none(self.kube, NODE, node)
        return found is None or parse_not_ready(found) is not None  # None: the node no longer exists

    async def _drop_finalizer(self, job: IPUJob) -> None:
        with ExpectedErrors(404):
            await self._set_finalizers(job, tuple(one for one in job.finalizers if one != FINALIZER))

    async def _set_finalizers(self, job: IPUJob, finalizers: tuple[str, ...]) -> None:
        meta = {"finalizers": list(finalizers), "resourceVersion": job.resource_version}
        await self.kube.patch(IPU_JOB, job.name, {"metadata": meta}, job.namespace)

    async def _create_launcher(
        self, job: IPUJob, act: CreateLauncher, partition: PartitionBody, made: UnobservedPods
    ) -> None:
        if act.instance:  # the first instance's ConfigMap is already among the job's objects
            await self._ensure_object(job, CONFIG_MAP, build_config(job, act.instance))
        pod = build_launcher(job, act.instance, act.restart, partition, self.options, reset=act.reset)
        await self._create_pod(job, pod, made)

    async def _create_pod(self, job: IPUJob, pod: KubeObject, made: UnobservedPods) -> None:
        try:
            found = await self.kube.create(POD, pod, job.namespace)
        except KubeError as error:
            if error.reason != "AlreadyExists":
                self.objects_ensured_for.pop(job.uid, None)  # one of the job's objects may be missing
                raise
            found = await self.kube.get(POD, pod["metadata"]["name"], job.namespace)
            _check_owned(found, job, "Pod")
        made.created[found["metadata"]["uid"]] = (self.now(), found)

    async def _ensure_job_objects(self, job: IPUJob) -> None:
        missed = sum(one.start.missed for one in job.status.instances.values())
        edition = (job.generation, job.status.restart_count, missed)  # the next attempt needs deleted objects again
        if self.objects_ensured_for.get(job.uid) == edition:
            return
        if job.has_launcher:
            await self._bind_launcher_role(job.namespace)
            account, role, binding = build_launcher_rbac(job)
            chains = [
                [(SERVICE_ACCOUNT, account)],
                [(ROLE, role), (ROLE_BINDING, binding)],  # a binding needs an existing role
                [(CONFIG_MAP, build_config(job))],
            ]
        else:
            chains = [[(SERVICE, build_service(job))]] if needs_service(job) else []
        await self._all([partial(self._ensure, job, chain) for chain in chains])
        self.objects_ensured_for[job.uid] = edition

    async def _ensure(self, job: IPUJob, chain: Sequence[tuple[ResourceType, KubeObject]]) -> None:
        """Make sure that these objects exist, one after the other."""
        for kind, body in chain:
            if kind is ROLE:
                await self._ensure_role(job, body)
            else:
                await self._ensure_object(job, kind, body)

    async def _bind_launcher_role(self, namespace: str) -> None:
        """Get the right that launchers' roles pass on, in a namespace: only where such jobs are."""
        role, account = self.options.launcher_role, self.options.account
        if not role or namespace in self.role_bound_since:
            return
        uid = (await self.kube.get(CLUSTER_ROLE, role))["metadata"]["uid"]
        with ExpectedErrors("AlreadyExists"):
            await self.kube.create(ROLE_BINDING, build_role_binding(role, uid, account, namespace), namespace)
        self.role_bound_since[namespace] = self.now()

    async def _ensure_role(self, job: IPUJob, body: KubeObject) -> None:
        """Make sure that a launchers' role exists; right after ``_grant`` the API server may refuse it for a moment."""
        while True:
            try:
                await self._ensure_object(job, ROLE, body)
            except KubeError as error:
                since = self.role_bound_since.get(job.namespace)
                if error.status != 403 or since is None:
                    raise
                if self.now() - since > RBAC_PROPAGATION_S:
                    del self.role_bound_since[job.namespace]  # the right may have been taken away
                    raise
                await asyncio.sleep(GRANT_PAUSE_S)
            else:
                return

    async def _ensure_object(self, job: IPUJob, kind: ResourceType, body: KubeObject) -> None:
        """Make sure that this job's object exists. Only a role changes afterwards, when the job is scaled."""
        with ExpectedErrors("AlreadyExists"):
            await self.kube.create(kind, body, job.namespace)
            return
        found = await self.kube.get(kind, body["metadata"]["name"], job.namespace)
        _check_owned(found, job, kind.name)
        if "rules" in body and found.get("rules") != body["rules"]:
            await self.kube.replace(kind, {**found, "rules": body["rules"]}, job.namespace)


def build_partition_request(job: IPUJob, instance: int, max_priority: int) -> PartitionRequest:
    """The request of an instance; a job older than the priority limit asks with the highest allowed priority."""
    return PartitionRequest(
        namespace=job.namespace,
        job=job.name,
        uid=job.uid,
        instance=instance,
        ipus=job.ipus,
        gcds=job.workers,
        replicas_per_gcd=job.replicas,
        priority=min(job.priority, max_priority),
        job_created_at=format_time(job.created_at),
        preemptible=job.preemptible,
        resumable=job.resumable,
        time_limit_s=time_left_s(job, instance),
        waiting_since=format_time(job.created_at) if _has_missed(job, instance) else None,
    )


def _has_missed(job: IPUJob, instance: int) -> bool:
    """Whether an instance released its partition because it did not start in time, and requests one again."""
    record = job.status.instances.get(instance)
    return record is not None and record.start.missed > 0


def is_owned(found: KubeObject, uid: str) -> bool:
    """Whether an object is controlled by the job of this uid."""
    owners = found["metadata"].get("ownerReferences") or ()
    return any(one.get("uid") == uid and one.get("controller") for one in owners)


def may_use_partition(found: KubeObject, uid: str, partition: str) -> bool:
    """Whether a Pod may run on a partition: it has not ended, and it is the job's, or was made for that partition.

    A deletion with `--cascade=orphan`, say, may have removed its owner and its labels; its program still runs.

    Args:
        found: the Pod.
        uid: of the job.
        partition: its name, which no other job's partition has; empty: not known.
    """
    if has_ended(found.get("status") or {}):
        return False
    made_for = (found["metadata"].get("annotations") or {}).get(names.PARTITION, "")
    return is_owned(found, uid) or (partition != "" and made_for == partition)


def _check_owned(found: KubeObject, job: IPUJob, kind: str) -> None:
    """Raise unless the object is this job's: an object of another owner is neither used nor changed."""
    if is_owned(found, job.uid):
        return
    name = found["metadata"]["name"]
    earlier = any(one.get("kind") == "IPUJob" for one in found["metadata"].get("ownerReferences") or ())
    raise MooringsError(
        "ipujob.name_taken",
        f"there is a {kind} {name} already, which is {'an earlier job' if earlier else 'not this job'}'s",
        hint="it goes with its own job" if earlier else f"rename the job, or remove that {kind}",
        retryable=True,
    )


def _instance(job: IPUJob, act: JobAction) -> int | None:
    """The instance of an action; None: the whole job."""
    match act:
        case (
            AcquirePartition(instance)
            | ReleasePartition(instance)
            | FencePartition(instance, _)
            | CleanPartition(instance)
            | YieldPartition(instance)
        ):
            return instance
        case CreateLauncher(instance, _, _):
            return instance
        case CreateWorker(number, _):
            return number // job.workers
        case DeletePod():
            return -1
        case AddFinalizer() | DropFinalizer() | DeleteJob() | EnsureJobObjects():
            return None
