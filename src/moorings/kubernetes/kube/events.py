"""Events of Kubernetes (core/v1): ``kubectl describe`` shows them with their object. They inform people, no decision.

So they never delay a reconcile: ``record`` only queues, ``serve`` sends, and events over a limit or with a failure are
dropped and counted. The limits are those of client-go's recorder, which clusters are used to.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from moorings.core.model.timestamps import SECOND, Timestamp, seconds_between
from moorings.kubernetes.kube.api import EVENT, ExpectedErrors, KubeApi, KubeError, KubeObject
from moorings.wire.codec import format_time

log = logging.getLogger("moorings.kubernetes.events")

BURST = 25  # events of one object and reason at once: a repeated refusal hides no other event
REFILL_S = 300.0  # and then one in so many seconds
KNOWN_MAX = 4096  # objects and events remembered
PENDING_MAX = 1000  # events not sent yet
MESSAGE_MAX = 1024  # characters; the API server takes no more
NAME_MAX = 200  # of an event's name, before what makes it unique
SIMILAR_MAX = 10  # of one reason, with different words,
SIMILAR_S = 600.0  # in so many seconds; further ones are combined into one event
COMBINED = "(combined from similar events): "
TRIES = 3
PAUSE_S = 1.0
PAUSE_MAX_S = 10.0

Level = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class EventKey:
    """The identity of an event: two events with equal keys are the same."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    level: Level
    reason: str
    message: str

    @property
    def object(self) -> str:
        """The object of the event."""
        return self.uid or f"{self.kind}/{self.namespace}/{self.name}"


@dataclass(slots=True)
class _Series:
    """One Event of the API server, which counts its repetitions.

    Attributes:
        message: the last message; that of combined events changes.
    """

    name: str
    message: str
    count: int
    first: Timestamp
    last: Timestamp
    exists: bool = False


class EventRateLimit:
    """How many events of a key may be sent: a token bucket for each, up to a limit of keys. Pure."""

    def __init__(self, burst: int = BURST, known_max: int = KNOWN_MAX) -> None:
        self._burst, self._known_max = burst, known_max
        self._left: OrderedDict[str, tuple[float, Timestamp]] = OrderedDict()

    def allow(self, key: str, now: Timestamp) -> bool:
        """Whether one more may be sent; counts it if so."""
        left, since = self._left.pop(key, (float(self._burst), now))
        left = min(float(self._burst), left + max(0.0, seconds_between(since, now)) / REFILL_S)
        allowed = left >= 1
        self._left[key] = (left - 1 if allowed else left, now)
        if len(self._left) > self._known_max:
            self._left.popitem(last=False)
        return allowed


class EventAggregator:
    """Combines events of one reason and one object whose messages differ too often, as client-go does. Pure."""

    def __init__(self) -> None:
        self._seen: OrderedDict[EventKey, tuple[set[int], Timestamp]] = OrderedDict()

    def combine(self, about: EventKey, now: Timestamp) -> EventKey:
        """The event that counts this one: itself, or the combined event of its reason."""
        key = replace(about, message="")
        known, last = self._seen.pop(key, (set[int](), now))  # hashes: the messages themselves may be long
        if seconds_between(last, now) > SIMILAR_S:
            known = set()
        words = hash(about.message)
        full = len(known) >= SIMILAR_MAX and words not in known
        if not full:
            known.add(words)
        self._seen[key] = (known, now)
        if len(self._seen) > KNOWN_MAX:
            self._seen.popitem(last=False)
        return replace(about, message=COMBINED) if full else about


class EventRecorder:
    """Queues events and sends them, one after the other, while ``serve`` runs.

    Args:
        kube: the API server.
        component: the reporting program, such as ``ipu-operator``.
        instance: its replica.
        wall: the time.
    """

    def __init__(self, kube: KubeApi, component: str, instance: str, wall: Callable[[], Timestamp]) -> None:
        self.dropped = 0  # events that are dropped
        self._kube = kube
        self._component, self._instance = component, instance
        self._wall = wall
        self._spam = EventRateLimit()
        self._similar = EventAggregator()
        self._known: OrderedDict[EventKey, _Series] = OrderedDict()
        self._pending: OrderedDict[EventKey, None] = OrderedDict()
        self._news = asyncio.Event()
        self._numbers = itertools.count()

    def record(self, found: KubeObject, level: Level, reason: str, message: str) -> None:
        """Queue an event about an object.

        Args:
            found: has ``apiVersion``, ``kind`` and ``metadata``.
            level: Normal or Warning.
            reason: one word in CamelCase.
            message: a sentence for people.
        """
        now = self._wall()
        event = _about(found, level, reason, message)
        about = self._similar.combine(event, now)
        words = event.message if about == event else _cut(COMBINED + event.message)
        full = len(self._pending) >= PENDING_MAX and about not in self._pending
        if full or not self._spam.allow(f"{about.object}/{reason}", now):
            self.dropped += 1
            return
        series = self._known.pop(about, None)
        if series is None:
            series = _Series(f"{about.name[:NAME_MAX]}.{now:x}{next(self._numbers) % 4096:03x}", words, 0, now, now)
        series.count += 1
        series.last = now
        series.message = words
        self._known[about] = series
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        self._pending[about] = None
        self._news.set()

    async def serve(self) -> None:
        """Send until cancelled."""
        while True:
            await self._news.wait()
            while self._pending:
                about, _ = self._pending.popitem(last=False)
                await self._send(about)
            self._news.clear()

    async def _send(self, about: EventKey) -> None:
        series = self._known.get(about)
        if series is None:  # dropped because of too many other events since
            self.dropped += 1
            return
        for left in reversed(range(TRIES)):
            try:
                await self._write(about, series)
                return
            except KubeError as error:
                if not left or not error.retryable:
                    self.dropped += 1
                    fields = {"about": about.object, "reason": about.reason, "detail": error.detail}
                    log.debug("event.lost", extra=fields)
                    return
                pause_s = min(PAUSE_MAX_S, max(PAUSE_S, error.retry_after_s))
            await asyncio.sleep(pause_s)

    async def _write(self, about: EventKey, series: _Series) -> None:
        namespace = about.namespace or "default"  # where tools look for events of objects without a namespace
        if series.exists:
            body = {"count": series.count, "lastTimestamp": _second(series.last), "message": series.message}
            with ExpectedErrors(404):  # the server forgets events after an hour
                await self._kube.patch(EVENT, series.name, body, namespace)
                return
        with ExpectedErrors("AlreadyExists"):  # ours: the response to the previous try was lost
            await self._kube.create(EVENT, self._build(about, series, namespace), namespace)
        series.exists = True

    def _build(self, about: EventKey, series: _Series, namespace: str) -> KubeObject:
        return {
            "metadata": {"name": series.name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": about.api_version,
                "kind": about.kind,
                "name": about.name,
                **({"namespace": about.namespace} if about.namespace else {}),
                **({"uid": about.uid} if about.uid else {}),
            },
            "type": about.level,
            "reason": about.reason,
            "message": series.message,
            "source": {"component": self._component, "host": self._instance},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
            "firstTimestamp": _second(series.first),
            "lastTimestamp": _second(series.last),
            "count": series.count,
        }


def _about(found: KubeObject, level: Level, reason: str, message: str) -> EventKey:
    metadata = found["metadata"]
    return EventKey(
        found["apiVersion"],
        found["kind"],
        metadata.get("namespace", ""),
        metadata["name"],
        metadata.get("uid", ""),
        level,
        reason,
        _cut(message),
    )


def _cut(message: str) -> str:
    return message if len(message) <= MESSAGE_MAX else message[: MESSAGE_MAX - 3] + "..."


def _second(at: Timestamp) -> str:
    """``metav1.Time`` has whole seconds."""
    return format_time(Timestamp(at // SECOND * SECOND)).replace(".000000", "")
