"""A current copy of all objects of a kind: a list, then a watch, and a new list whenever the watch cannot continue.

It passes on keys, never events: the receiver reads the object's present state. So a dropped watch, a list after an hour
without contact and a hundred changes at once have the same effect, and nothing depends on seeing each change.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from moorings.kubernetes.kube.api import KubeApi, KubeError, KubeObject, ObjectList, ResourceType, WatchEvent

log = logging.getLogger("moorings.kubernetes.informer")

PAUSE_FIRST_S = 0.25
PAUSE_MAX_S = 5.0  # nothing announces that a server is back: jobs wait up to this long
HEALTHY_WATCH_S = 5.0  # a watch that lasted so long worked
WARN_AFTER_FAILURES = 2  # failures in a row; a single one is normal


class ObjectKey(NamedTuple):
    """The key of an object among those of its kind."""

    namespace: str  # empty: the kind is not namespaced
    name: str


def without_managed_fields(found: KubeObject) -> KubeObject:
    """The default trim: drops who wrote which field, often half of an object."""
    found["metadata"].pop("managedFields", None)
    return found


def _no_index(found: KubeObject) -> Iterable[str]:
    del found
    return ()


class ObjectStore:
    """Objects by key and by index; returns what changed. No IO.

    Args:
        index: the index values of an object, such as its owner's key.
    """

    def __init__(self, index: Callable[[KubeObject], Iterable[str]]) -> None:
        self._index = index
        self._objects: dict[ObjectKey, KubeObject] = {}
        self._indexed: dict[str, dict[ObjectKey, KubeObject]] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[KubeObject]:
        return iter(self._objects.values())

    def get(self, key: ObjectKey) -> KubeObject | None:
        """One object."""
        return self._objects.get(key)

    def indexed(self, value: str) -> Sequence[KubeObject]:
        """The objects with an index value, in no order."""
        return tuple(self._indexed.get(value, {}).values())

    def apply_event(self, event: WatchEvent) -> tuple[ObjectKey, set[str]]:
        """Apply an event; the object's key, and the index values that it had or has."""
        key = key_of(event.object)
        touched = self._drop(key)
        if event.type != "DELETED":
            touched |= self._put(key, event.object)
        return key, touched

    def replace(self, listed: Sequence[KubeObject]) -> list[tuple[ObjectKey, set[str]]]:
        """Apply a whole list; the keys and index values of objects that are new, changed or gone."""
        found = {key_of(one): one for one in listed}
        changes = [(key, self._drop(key)) for key in [key for key in self._objects if key not in found]]
        for key, one in found.items():
            old = self._objects.get(key)
            if old is None or _version_of(old) != _version_of(one):
                touched = self._drop(key)
                changes.append((key, touched | self._put(key, one)))
        return changes

    def _put(self, key: ObjectKey, found: KubeObject) -> set[str]:
        self._objects[key] = found
        values = set(self._index(found))
        for value in values:
            self._indexed.setdefault(value, {})[key] = found
        return values

    def _drop(self, key: ObjectKey) -> set[str]:
        old = self._objects.pop(key, None)
        if old is None:
            return set()
        values = set(self._index(old))
        for value in values:
            there = self._indexed[value]
            del there[key]
            if not there:
                del self._indexed[value]
        return values


def key_of(found: KubeObject) -> ObjectKey:
    """The key of an object."""
    metadata = found["metadata"]
    return ObjectKey(metadata.get("namespace", ""), metadata["name"])


def _version_of(found: KubeObject) -> tuple[str, str]:
    metadata = found["metadata"]
    return metadata.get("uid", ""), metadata["resourceVersion"]


def retry_delay_s(failures: int, retry_after_s: float, chance: float) -> float:
    """Seconds until the next try after so many failures in a row; 0 without a failure.

    Args:
        failures: in a row.
        retry_after_s: what the server asked for.
        chance: from 0 to 1; spreads the retries of many clients.
    """
    if not failures:
        return 0.0
    wanted = max(retry_after_s, min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0 ** min(failures - 1, 16)))
    return wanted * (1 + chance)


class Informer:
    """The objects of a kind that match ``labels`` and ``fields``; ``serve`` keeps them current.

    Args:
        kube: the API server.
        kind: of the objects.
        on_change: gets the key of each object that is new, changed or gone.
        on_index: gets every index value that such an object had or has.
        namespace: None: all.
        labels: a label selector.
        fields: a field selector.
        trim: drops unused fields of an object, which it may change; ``metadata`` keeps namespace, name, uid and
            resourceVersion. Without it the objects of a large cluster do not fit into memory.
        index: the index values of an object.
        jitter: returns a random number from 0 to 1.
    """

    def __init__(
        self,
        kube: KubeApi,
        kind: ResourceType,
        *,
        on_change: Callable[[ObjectKey], None] | None = None,
        on_index: Callable[[str], None] | None = None,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        trim: Callable[[KubeObject], KubeObject] = without_managed_fields,
        index: Callable[[KubeObject], Iterable[str]] = _no_index,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.synced = asyncio.Event()  # a first whole list has arrived
        self._kube = kube
        self._kind = kind
        self._on_change = on_change
        self._on_index = on_index
        self._namespace = namespace
        self._selection: Mapping[str, str] = {"labels": labels, "fields": fields}
        self._trim = trim
        self._cache = ObjectStore(index)
        self._chance = jitter
        self._resource_version = ""  # where the watch resumes; empty: a list is needed
        self._failures = 0
        self._expired = False  # the last failure was a 410
        self._last_contact_at: float | None = None

    # -- the copy ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._cache)

    def __iter__(self) -> Iterator[KubeObject]:
        """All objects; do not change them, nor iterate across an ``await``."""
        return iter(self._cache)

    def get(self, namespace: str, name: str) -> KubeObject | None:
        """One object; do not change it."""
        return self._cache.get(ObjectKey(namespace, name))

    def indexed(self, value: str) -> Sequence[KubeObject]:
        """The objects with this index value, in no order; do not change them."""
        return self._cache.indexed(value)

    @property
    def age_s(self) -> float:
        """Seconds since the last contact with the server; infinite: never."""
        return float("inf") if self._last_contact_at is None else _now() - self._last_contact_at

    # -- list and watch ------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """List and watch until cancelled."""
        while True:
            begun = _now()
            try:
                if not self._resource_version:
                    self._take_list(
                        await self._kube.list(self._kind, self._namespace, **self._selection, trim=self._trim)
                    )
                    begun = _now()
                await self._watch()
            except KubeError as error:
                await self._recover(error, _now() - begun)
            else:
                self._failures = 0 if _now() - begun >= HEALTHY_WATCH_S else self._failures + 1
                await asyncio.sleep(retry_delay_s(self._failures, 0.0, self._chance()))

    async def _recover(self, error: KubeError, lived_s: float) -> None:
        if self._resource_version and lived_s >= HEALTHY_WATCH_S:
            self._failures = 0
        expired, self._expired = self._expired, error.status == 410
        if error.status == 410:  # our copy is older than the server's history
            self._resource_version = ""
        self._failures += 1
        level = logging.WARNING if self._failures == WARN_AFTER_FAILURES else logging.DEBUG
        fields = {"kind": self._kind.plural, "status": error.status, "reason": error.reason, "detail": error.detail}
        if error.status == 404 and self._kind.group:
            if self._failures == 1:
                detail = f"the definition of {self._kind.name}s is missing: kubectl apply -f CRDs/"
                log.warning("informer.undefined", extra={"kind": self._kind.plural, "detail": detail})
        else:
            log.log(level, "informer.failed", extra=fields)
        # The first 410 is no failure of the server, whatever came before: it responds, and we list at once.
        failures = 0 if self._expired and not expired else self._failures
        await asyncio.sleep(retry_delay_s(failures, error.retry_after_s, self._chance()))

    async def _watch(self) -> None:
        events = self._kube.watch(self._kind, self._namespace, since=self._resource_version, **self._selection)
        try:
            async for event in events:
                self._mark_contact()
                version = event.object["metadata"]["resourceVersion"]
                if event.type != "BOOKMARK":
                    self._notify(*self._cache.apply_event(WatchEvent(event.type, self._trim(event.object))))
                    if self._failures:
                        self._reset_failures()
                self._resource_version = version
        finally:
            if isinstance(events, AsyncGenerator):
                await events.aclose()  # now, not at garbage collection: it holds a connection

    def _take_list(self, listed: ObjectList) -> None:
        self._mark_contact()
        for key, touched in self._cache.replace(listed.items):
            self._notify(key, touched)
        self._resource_version = listed.resource_version
        self.synced.set()

    def _notify(self, key: ObjectKey, touched: Iterable[str]) -> None:
        if self._on_change is not None:
            self._on_change(key)
        if self._on_index is not None:
            for value in touched:
                self._on_index(value)

    def _mark_contact(self) -> None:
        self._last_contact_at = _now()

    def _reset_failures(self) -> None:
        if self._failures >= WARN_AFTER_FAILURES:
            log.info("informer.recovered", extra={"kind": self._kind.plural})
        self._failures = 0


class MultiNamespaceInformer:
    """The objects of a kind in several namespaces, as one set; each namespace has its own informer.

    Args:
        informers: of these namespaces, or a single one of all namespaces.
    """

    def __init__(self, informers: Sequence[Informer]) -> None:
        self._informers = tuple(informers)

    def __iter__(self) -> Iterator[KubeObject]:
        """All objects; do not change them, nor iterate across an ``await``."""
        return chain.from_iterable(self._informers)

    def get(self, namespace: str, name: str) -> KubeObject | None:
        """One object; do not change it."""
        return next((found for one in self._informers if (found := one.get(namespace, name)) is not None), None)

    def indexed(self, value: str) -> Sequence[KubeObject]:
        """The objects with this index value, in no order; do not change them."""
        return [found for one in self._informers for found in one.indexed(value)]

    async def synced(self) -> None:
        """Return once the first whole list of each informer has arrived."""
        for one in self._informers:
            await one.synced.wait()

    async def serve(self) -> None:
        """List and watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for one in self._informers:
                group.create_task(one.serve())


def _now() -> float:
    return asyncio.get_running_loop().time()
