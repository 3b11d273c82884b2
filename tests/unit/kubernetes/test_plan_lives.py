"""Whole lives of jobs, by chance: plans are carried out, or half of them; Pods, partitions and people do as they like.

The world here is small and strict: it refuses what the API server, a controller or a law would refuse.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.timestamps import add_seconds
from moorings.kubernetes.ipujob import names
from moorings.kubernetes.ipujob.pods import FAILED, PENDING, RUNNING, SUCCEEDED, Pod
from moorings.kubernetes.ipujob.types import ENDED, CleanPodPolicy, InstanceOutcome, IPUJob, JobKind, RestartType
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
from moorings.kubernetes.operator.node_health import NotReadyNode
from moorings.kubernetes.operator.plan import JobPartitions, PartitionPause, plan
from moorings.kubernetes.operator.status import build_status
from moorings.kubernetes.proxy_api import shapes
from moorings.kubernetes.proxy_api.shapes import PartitionBody
from moorings.wire.codec import format_time
from tests.unit.kubernetes.jobs import START, build_job, build_partition

FINALIZER_GONE = DropFinalizer()
STEPS = 120
SETTLE = 400
NODES = ("node1", "node2")


class World:
    """One job, its Pods, its partitions, and chance."""

    def __init__(self, job: IPUJob, seed: int) -> None:
        self.job = job
        self.chance = Random(seed)
        self.now = START
        self.pods: dict[str, Pod] = {}
        self.partitions: dict[int, PartitionBody] = {}
        self.attempts = 0
        self.made = 0
        self.used: set[str] = set()  # partitions on which something ran
        self.cleaned: set[str] = set()
        self.fresh: set[int] = set()  # what the operator knows for sure, until it is killed
        self.gone = False
        self.failures = 0  # that really happened
        self.silent: dict[str, NotReadyNode] = {}

    # -- the operator ------------------------------------------------------------------------------------------------

    def reconcile(self, breaks: bool) -> None:
        if self.gone:
            return
        current = not breaks or self.chance.random() < 0.8
        partitions = JobPartitions(dict(self.partitions), current, True, frozenset(self.fresh))
        pods = sorted(self.pods.values(), key=lambda pod: pod.name)
        paused = self._paused() if breaks else None
        found = plan(self.job, pods, partitions, self.now, paused=paused, silent=dict(self.silent))
        status = build_status(self.job, found, pods, partitions, self.now)
        if found.save_status_first:
            self._save(status)
        failed: set[int] = set()
        for act in found.acts:
            instance = self._instance_of(act)
            if breaks and self.chance.random() < 0.15:
                self.fresh.clear()
                return  # killed
            if breaks and self.chance.random() < 0.1:
                if isinstance(act, AddFinalizer):
                    break  # what is about the whole job comes first
                failed.add(instance)  # refused, or its answer lost: nothing more of that instance
            if instance not in failed:
                self._do(act)
        written = not breaks or self.chance.random() < 0.8
        if written and not found.save_status_first and FINALIZER_GONE not in found.acts:
            self._save(status)

    def _save(self, status: object) -> None:
        assert not self.gone
        before = self.job.status
        self.job = replace(self.job, status=status)  # type: ignore[arg-type]
        for number, record in before.instances.items():
            later = self.job.status.instances.get(number)
            if later is not None and number < self.job.instances and record.outcome is not None:
                assert later.outcome is record.outcome, "an outcome is for good"

    def _instance_of(self, act: JobAction) -> int:
        match act:
            case (
                AcquirePartition(instance)
                | ReleasePartition(instance)
                | CleanPartition(instance)
                | YieldPartition(instance)
                | CreateLauncher(instance, _, _)
            ):
                return instance
            case FencePartition(instance, _):
                return instance
            case CreateWorker(number, _):
                return number // self.job.workers
            case _:
                return -1

    def _do(self, act: JobAction) -> None:
        job = self.job
        match act:
            case AddFinalizer():
                self.job = replace(job, finalizers=("ipu.finalizers.graphcore.ai",))
            case DropFinalizer():
                assert not self.pods, "a job goes after its Pods"
                assert all(one.state == shapes.RELEASING for one in self.partitions.values()), "nothing leaks"
                self.gone = True
            case AcquirePartition(instance):
                assert job.finalizers, "nothing is held for a job that may vanish"
                if instance not in self.partitions:
                    self.partitions[instance] = self._partition(instance, shapes.WAITING)
                    self.fresh.add(instance)
            case ReleasePartition(instance):
                self._release(instance)
            case FencePartition(instance, nodes):
                assert all(self._is_lost(node) for node in nodes), "nothing is fenced off that answers"
                self._release(instance, nodes)
            case CleanPartition(instance):
                assert not [pod for pod in self._of(instance) if not pod.has_ended], "nothing is reset under a program"
                self.cleaned.add(self.partitions[instance].name)
            case CreateWorker(number, restart):
                self._create(names.worker_name(job.name, number), number // job.workers, number, restart)
            case CreateLauncher(instance, restart, reset):
                if reset:
                    self.cleaned.add(self.partitions[instance].name)
                self._create(names.launcher_name(job.name, instance), instance, -1, restart)
            case YieldPartition(instance):
                assert not self._of(instance), "nothing is given back under Pods"
                assert self.partitions[instance].state == shapes.RECLAIMING
                self.partitions[instance] = self._partition(instance, shapes.WAITING)
                self.fresh.discard(instance)
            case DeletePod(name, uid, 0):
                pod = self.pods[name]
                assert self._is_lost(pod.node), "by force goes only what nobody can end otherwise"
                assert all(one.name != pod.partition for one in self.partitions.values()), "it has no partition then"
                if pod.uid == uid:
                    del self.pods[name]
            case DeletePod(name, uid, _):
                if name in self.pods and self.pods[name].uid == uid:
                    self.pods[name] = replace(self.pods[name], deleting=True)
            case EnsureJobObjects():
                pass
            case DeleteJob():
                assert job.status.state in ENDED, "only what has ended is deleted"
                self.job = replace(job, deleted=True)

    def _paused(self) -> dict[int, PartitionPause]:
        """Instances of which the API server has long refused a Pod: any that lack one."""
        whole = self.job.workers + self.job.has_launcher
        lacking = [number for number in range(self.job.instances) if len(self._of(number)) < whole]
        refused = [number for number in lacking if self.chance.random() < 0.05]
        return {number: PartitionPause("a quota", starting=not self._used_by(number)) for number in refused}

    def _used_by(self, instance: int) -> bool:
        """Whether a program may have run in an instance's Pods that are there."""
        return any(pod.phase != PENDING for pod in self._of(instance) if self._decides(pod))

    def _of(self, instance: int) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.instance == instance]

    def _decides(self, pod: Pod) -> bool:
        return pod.is_launcher or not self.job.has_launcher

    def _is_lost(self, node: str) -> bool:
        lost_s = self.job.node_lost_s
        return lost_s > 0 and node in self.silent and add_seconds(self.silent[node].since, lost_s) <= self.now

    def _release(self, instance: int, lost: frozenset[str] = frozenset()) -> None:
        body = self.partitions.get(instance)
        if body is None:
            return
        live = [
            pod
            for pod in self._of(instance)
            if self._decides(pod) and not pod.has_ended and pod.partition == body.name and pod.node not in lost
        ]
        assert not live, "law 3: a live job never loses its partition because of us"
        self.partitions[instance] = replace(body, state=shapes.RELEASING, binding=None)

    def _create(self, name: str, instance: int, worker: int, restart: int) -> None:
        if name in self.pods:
            return  # AlreadyExists
        body = self.partitions.get(instance)
        assert body is not None, "law 4: a partition before its Pods"
        assert body.state == shapes.READY, "law 4: a partition before its Pods"
        if self.job.has_launcher == (worker < 0) and body.name in self.used:
            others = [pod for pod in self._of(instance) if self._decides(pod)]
            assert others or body.name in self.cleaned, "what starts anew starts on a clean partition"
        self.made += 1
        self.fresh.discard(instance)
        pod = Pod(name, f"uid-{self.made}", instance, worker, restart, body.name, PENDING, False, False)
        ready = [node for node in NODES if node not in self.silent]
        self.pods[name] = replace(pod, node=self.chance.choice(ready) if ready else "")

    # -- everybody else ----------------------------------------------------------------------------------------------

    def _partition(self, instance: int, state: str) -> PartitionBody:
        self.attempts += 1
        return build_partition(self.job, instance, state, name=f"sample-{instance}-{self.attempts}")

    def live(self, *, trouble: bool) -> None:
        """Something happens that nobody of us does."""
        self.now = add_seconds(self.now, self.chance.choice([0.0, 1.0, 30.0]))
        self._nodes_live(trouble)
        for name, pod in list(self.pods.items()):
            if self.chance.random() < 0.4:
                self._pod_lives(name, pod, trouble)
        for instance, body in list(self.partitions.items()):
            self._partition_lives(instance, body, trouble)

    def _nodes_live(self, trouble: bool) -> None:
        for node in NODES:
            if node in self.silent:
                if not trouble or self.chance.random() < 0.1:
                    del self.silent[node]
            elif trouble and self.chance.random() < 0.03:
                self.silent[node] = NotReadyNode(self.now)
                self.failures += sum(pod.node == node for pod in self.pods.values())

    def _pod_lives(self, name: str, pod: Pod, trouble: bool) -> None:
        if pod.node in self.silent:
            if trouble and self.chance.random() < 0.1:
                self.pods[name] = replace(pod, deleting=True)  # by Kubernetes
        elif pod.deleting:
            del self.pods[name]
        elif pod.phase == PENDING and trouble and self.chance.random() < 0.5:
            pass  # its image is slow
        elif pod.phase == PENDING:
            workers = [one for one in self._of(pod.instance) if not one.is_launcher]
            if not pod.is_launcher or (workers and all(one.phase == RUNNING for one in workers)):
                self.pods[name] = replace(pod, phase=RUNNING, ready=True)
                if self._decides(pod):
                    self.used.add(pod.partition)
                    self.cleaned.discard(pod.partition)
        elif pod.phase == RUNNING:
            if self._decides(pod) and self.chance.random() < 0.5:
                fails = trouble and self.chance.random() < 0.5
                self.failures += fails
                code = self.chance.choice([1, 137]) if fails else 0
                ended = replace(pod, phase=FAILED if fails else SUCCEEDED, exit_code=code, ended_at=self.now)
                self.pods[name] = ended
            elif trouble and self.chance.random() < 0.05:
                self.failures += 1
                self.pods[name] = replace(pod, phase=FAILED, exit_code=137, ended_at=self.now)
            elif trouble and self.chance.random() < 0.05:
                self.pods[name] = replace(pod, deleting=True)  # by hand

    def _partition_lives(self, instance: int, body: PartitionBody, trouble: bool) -> None:
        if body.state == shapes.RELEASING:
            del self.partitions[instance]
        elif body.state in (shapes.WAITING, shapes.PREPARING):
            ready = self._partition(instance, shapes.READY)
            self.partitions[instance] = replace(ready, name=body.name)
        elif body.state == shapes.READY and trouble and self.chance.random() < 0.03:
            self.failures += 1
            self.partitions[instance] = replace(body, state=shapes.LOST, binding=None)
        elif body.state == shapes.READY and trouble and self.chance.random() < 0.05:
            until = format_time(add_seconds(self.now, self.chance.choice([0.0, 20.0, 100.0])))
            self.partitions[instance] = replace(body, state=shapes.RECLAIMING, binding=None, until=until)

    def people(self) -> None:
        if self.chance.random() < 0.05:
            self.job = replace(self.job, suspended=not self.job.suspended, generation=self.job.generation + 1)
        if self.chance.random() < 0.05 and not self.job.has_launcher:
            self.job = replace(self.job, instances=self.chance.randrange(4), generation=self.job.generation + 1)


@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(list(JobKind)),
    restart=st.sampled_from(list(RestartType)),
    clean=st.sampled_from(list(CleanPodPolicy)),
    instances=st.integers(1, 3),
    workers=st.integers(1, 2),
    limit=st.integers(0, 3),
    deleted_at=st.one_of(st.none(), st.integers(0, STEPS)),
    deadline_s=st.sampled_from([0, 20, 200]),
    lost_s=st.sampled_from([0, 20, 200]),
    active_s=st.sampled_from([None, 30, 300]),
    kept_s=st.sampled_from([None, 0, 100]),
)
def test_whatever_happens_the_laws_hold_and_it_ends(
    seed: int,
    kind: JobKind,
    restart: RestartType,
    clean: CleanPodPolicy,
    instances: int,
    workers: int,
    limit: int,
    deleted_at: int | None,
    deadline_s: int,
    lost_s: int,
    active_s: int | None,
    kept_s: int | None,
) -> None:
    job = build_job(
        kind,
        restart_policy=restart,
        clean_pod_policy=clean,
        instances=instances,
        workers=workers,
        ipus=workers,
        backoff_limit=limit,
        start_deadline_s=deadline_s,
        node_lost_s=lost_s,
        active_deadline_s=active_s,
        ttl_s_after_finished=kept_s,
        finalizers=(),
    )
    world = World(job, seed)
    for number in range(STEPS):
        if number == deleted_at:
            if not world.job.finalizers:
                break  # the API server removes it at once
            world.job = replace(world.job, deleted=True)
        world.people()
        world.live(trouble=True)
        if world.chance.random() < 0.7:
            world.reconcile(breaks=True)
    if not world.job.finalizers:
        assert not world.pods
        assert not world.partitions
        return
    world.job = replace(world.job, suspended=True)
    for _ in range(SETTLE // 4):
        world.live(trouble=False)
        world.reconcile(breaks=False)
    if not world.gone and world.job.status.state == "Suspended":
        live = [number for number, one in world.job.status.instances.items() if one.outcome is None]
        assert not [pod for pod in world.pods.values() if pod.instance in live], "what is suspended has no Pods"
        assert not world.partitions, "what is suspended holds nothing"
    world.job = replace(world.job, suspended=False)
    world.job = replace(world.job, start_deadline_s=0)  # else it may pause for an hour
    for _ in range(SETTLE):
        world.live(trouble=False)
        world.reconcile(breaks=False)
    assert sum(one.failures for one in world.job.status.instances.values()) <= world.failures
    assert all(one.failures <= limit for one in world.job.status.instances.values())
    if world.job.deleted:
        assert world.gone
        assert not world.pods
        assert not world.partitions
    elif restart is not RestartType.ALWAYS or clean is CleanPodPolicy.ALL:
        status = world.job.status
        assert not world.partitions, "what has ended holds nothing"
        if world.job.instances:
            assert status.state in ("Completed", "Failed")
            any_failed = any(one.outcome is InstanceOutcome.FAILED for one in status.instances.values())
            assert status.state == "Failed" or not any_failed
        if clean is CleanPodPolicy.ALL or not world.job.instances:
            assert not world.pods
