"""Looks at one job by the operator as a whole, on an API server and a proxy that are kept in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from moorings.core.model.timestamps import SECOND
from moorings.kubernetes.ipujob.parsing import parse_ipujob
from moorings.kubernetes.ipujob.types import FINALIZER, IPU_JOB
from moorings.kubernetes.kube.api import POD, KubeObject, ResourceType
from moorings.kubernetes.kube.informer import MultiNamespaceInformer
from moorings.kubernetes.operator.metrics import OperatorMetrics
from moorings.kubernetes.operator.orphans import OrphanSweeper
from moorings.kubernetes.operator.pod_builder import PodOptions
from moorings.kubernetes.operator.reconciler import JobReconciler
from moorings.kubernetes.operator.status import JobEvent
from moorings.kubernetes.proxy_api.client import PartitionInformer
from moorings.kubernetes.proxy_api.shapes import PartitionBody, PartitionRequest
from tests.unit.kubernetes.ipujobs import a_spec, an_object
from tests.unit.kubernetes.jobs import START, build_partition
from tests.unit.kubernetes.objects_kept import KeptObjects, SetClock

KEY = "default/sample"
BEGUN = datetime.fromtimestamp(START / SECOND, UTC)


class Api(KeptObjects):
    """An API server that drops from a status what its definition does not know."""

    def __init__(self, keeps: Callable[[KubeObject], KubeObject]) -> None:
        super().__init__()
        self.keeps = keeps
        self.statuses: list[KubeObject] = []

    async def patch(
        self,
        kind: ResourceType,
        name: str,
        body: KubeObject | Sequence[KubeObject],
        namespace: str | None = None,
        *,
        subresource: str = "",
    ) -> KubeObject:
        assert (kind, subresource) == (IPU_JOB, "status")
        assert not isinstance(body, dict)
        self.statuses.append(dict(body[1]["value"]))
        found = await self.get(kind, name, namespace)
        return self.put(kind, {**found, "status": self.keeps(body[1]["value"])}, namespace)

    async def create(self, kind: ResourceType, body: KubeObject, namespace: str | None = None) -> KubeObject:
        made = deepcopy(body)
        made["metadata"]["uid"] = f"uid-{made['metadata']['name']}"
        return await super().create(kind, made, namespace)

    async def delete(self, kind: ResourceType, name: str, namespace: str | None = None, **_how: Any) -> None:
        self.objects.pop((kind.name, namespace, name), None)


class Seen:
    """What is watched: at once what there is."""

    def __init__(self, api: Api, kind: ResourceType) -> None:
        self._api, self._kind = api, kind

    def get(self, namespace: str, name: str) -> KubeObject | None:
        return self._api.objects.get((self._kind.name, namespace, name))

    def indexed(self, _key: str) -> Sequence[KubeObject]:
        return [one for (kind, _, _), one in self._api.objects.items() if kind == self._kind.name]


class View:
    """Partitions, all of them known."""

    is_synced = is_watching = True

    def __init__(self, *bodies: PartitionBody) -> None:
        self.bodies = list(bodies)

    def get(self, _namespace: str, _job: str, _uid: str = "") -> Mapping[int, PartitionBody]:
        return {one.instance: one for one in self.bodies}

    def by_job_name(self, _namespace: str, _job: str) -> list[PartitionBody]:
        return self.bodies

    def all(self) -> list[PartitionBody]:
        return self.bodies

    def observe(self, body: PartitionBody) -> None:
        self.bodies = [body]

    def observe_gone(self, _before: PartitionBody) -> None:
        self.bodies = []


class Proxy:
    """Cleans a partition, and gives it back."""

    def __init__(self, partition: PartitionBody) -> None:
        self.partition = partition
        self.released: list[int] = []

    async def create(self, _request: PartitionRequest) -> PartitionBody:
        raise NotImplementedError

    async def release(self, _namespace: str, _job: str, _uid: str, instance: int) -> PartitionBody | None:
        self.released.append(instance)
        return None

    async def yield_partition(self, _namespace: str, _job: str, _uid: str, _instance: int) -> PartitionBody:
        raise NotImplementedError

    async def reset(self, _namespace: str, _job: str, _uid: str, _instance: int) -> PartitionBody:
        return self.partition


class Site:
    """An operator, the objects that it looks at, and the time."""

    def __init__(self, keeps: Callable[[KubeObject], KubeObject] = deepcopy, **spec: Any) -> None:
        self.clock = SetClock(BEGUN)
        self.api, self.stories = Api(keeps), list[JobEvent]()
        self.time_s = 0.0
        meta = {"name": "sample", "namespace": "default", "uid": "uid-1", "generation": 1, "finalizers": [FINALIZER]}
        found = an_object(a_spec(**spec))
        found["metadata"] |= meta
        self.api.put(IPU_JOB, found, "default")
        partition = build_partition(parse_ipujob(found))
        self.proxy = Proxy(partition)
        jobs = cast("MultiNamespaceInformer", Seen(self.api, IPU_JOB))
        view = cast("PartitionInformer", View(partition))
        self.operator = JobReconciler(
            kube=self.api,
            proxy=self.proxy,
            orphans=OrphanSweeper(self.api, self.proxy, jobs, view, (), lambda: True),
            options=PodOptions(start_deadline_s=60),
            jobs=jobs,
            pods=cast("MultiNamespaceInformer", Seen(self.api, POD)),
            view=view,
            not_ready_nodes={},
            is_leading=lambda: True,
            record_event=lambda _found, story: self.stories.append(story),
            value_of_class=lambda _name: None,
            measures=OperatorMetrics(jobs=dict, partitions=list, waiting=lambda: 0, leads=lambda: True),
            clock=self.clock,
            monotonic=lambda: self.time_s,
        )

    async def look(self, after_s: float = 1.0) -> float | None:
        self.time_s += after_s
        self.clock.at = BEGUN + timedelta(seconds=self.time_s)
        return await self.operator.reconcile(KEY)

    @property
    def job(self) -> KubeObject:
        """The job as it is stored."""
        return self.api.objects["IPUJob", "default", "sample"]

    @property
    def pods(self) -> list[str]:
        """The names of the Pods that there are."""
        return [name for kind, _, name in self.api.objects if kind == "Pod"]


def without_starts(status: KubeObject) -> KubeObject:
    """A status as a definition keeps it that knows nothing of start deadlines."""
    kept = deepcopy(status)
    for record in kept.get("instances", {}).values():
        record.pop("start", None)
    return kept


async def test_with_an_earlier_definition_a_status_is_not_written_again_and_again_and_deadlines_hold() -> None:
    site = Site(without_starts)
    for _ in range(30):
        await site.look()
        site.api.put(IPU_JOB, site.job, "default")  # somebody else writes it, too
    assert len(site.api.statuses) <= 3
    for _ in range(40):
        await site.look()
        site.api.put(IPU_JOB, site.job, "default")
    assert site.pods == []
    assert site.proxy.released == [0]
    assert "it did not start in 60 s" in site.job["status"]["lastMessage"]


async def test_a_job_that_is_handed_to_another_controller_while_it_has_a_partition_is_still_looked_after() -> None:
    site = Site()
    for _ in range(3):
        await site.look()
    found = deepcopy(site.job)
    found["spec"]["managedBy"] = "a.example/x"
    found["metadata"]["generation"] = 2
    site.api.put(IPU_JOB, found, "default")
    for _ in range(3):
        await site.look()
    assert site.job["status"]["lastMessage"].startswith("spec.managedBy was changed to a.example/x")
    assert site.pods == ["sample-worker-0"]
