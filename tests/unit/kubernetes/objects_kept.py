"""A Kube that keeps objects in memory, with versions as the API server has them; and a clock that is set by hand."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from copy import deepcopy
from datetime import datetime

from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.kubernetes.kube.api import KubeError, KubeObject, ObjectList, ResourceType, WatchEvent


class KeptObjects:
    """The calls that certificates need; ``calls`` counts them, ``fail`` is raised once by the next of them."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str | None, str], KubeObject] = {}
        self.calls: Counter[str] = Counter()
        self.fail: list[KubeError] = []
        self._version = 0

    def put(self, kind: ResourceType, body: KubeObject, namespace: str | None = None) -> KubeObject:
        self._version += 1
        kept = deepcopy(body)
        kept["metadata"]["resourceVersion"] = str(self._version)
        self.objects[kind.name, namespace, body["metadata"]["name"]] = kept
        return deepcopy(kept)

    async def get(self, kind: ResourceType, name: str, namespace: str | None = None) -> KubeObject:
        await self._met("get", kind)
        found = self.objects.get((kind.name, namespace, name))
        if found is None:
            raise KubeError(404, "NotFound", f"{kind.plural} {name!r} not found")
        return deepcopy(found)

    async def create(self, kind: ResourceType, body: KubeObject, namespace: str | None = None) -> KubeObject:
        await self._met("create", kind)
        name = body["metadata"]["name"]
        if (kind.name, namespace, name) in self.objects:
            raise KubeError(409, "AlreadyExists", f"{kind.plural} {name!r} already exists")
        return self.put(kind, body, namespace)

    async def replace(self, kind: ResourceType, body: KubeObject, namespace: str | None = None) -> KubeObject:
        await self._met("replace", kind)
        kept = self.objects[kind.name, namespace, body["metadata"]["name"]]
        if body["metadata"].get("resourceVersion") not in (None, kept["metadata"]["resourceVersion"]):
            raise KubeError(409, "Conflict", "the object has been modified")
        return self.put(kind, body, namespace)

    async def _met(self, call: str, kind: ResourceType) -> None:
        self.calls[f"{call} {kind.name}"] += 1
        await asyncio.sleep(0)  # others get their turn between a reading and a writing
        if self.fail:
            raise self.fail.pop(0)

    async def list(
        self,
        kind: ResourceType,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        trim: Callable[[KubeObject], KubeObject] | None = None,
    ) -> ObjectList:
        raise NotImplementedError

    def watch(
        self, kind: ResourceType, namespace: str | None = None, *, since: str, labels: str = "", fields: str = ""
    ) -> AsyncIterator[WatchEvent]:
        raise NotImplementedError

    async def patch(
        self,
        kind: ResourceType,
        name: str,
        body: KubeObject | Sequence[KubeObject],
        namespace: str | None = None,
        *,
        subresource: str = "",
    ) -> KubeObject:
        await self._met("patch", kind)
        assert isinstance(body, dict)
        assert body.keys() == {"data"}, "the only patch that is needed"
        kept = self.objects[kind.name, namespace, name]
        return self.put(kind, {**kept, "data": {**(kept.get("data") or {}), **body["data"]}}, namespace)

    async def delete(
        self,
        kind: ResourceType,
        name: str,
        namespace: str | None = None,
        *,
        uid: str = "",
        version: str = "",
        grace_s: int | None = None,
    ) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        pass


class SetClock:
    """Stands still until it is set; sleeping sets it forward."""

    def __init__(self, at: datetime) -> None:
        self.at = at
        self.slept_s: list[float] = []

    def now(self) -> Timestamp:
        return Timestamp(round(self.at.timestamp() * SECOND))

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        await asyncio.sleep(0)
