"""Decides when the state of an instance's partition is published, and publishes it.

States are published at once. Messages may change with every grant to others, so they are published at most once in
``WORDS_S``: the first change at once, and the message at the end of that time then. No change is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from moorings.core.model.timestamps import Timestamp
from moorings.kubernetes.proxy.controllers import ControllerConnection
from moorings.kubernetes.proxy.instances import ManagedInstance
from moorings.kubernetes.proxy.observed import HELD, ClaimPhase
from moorings.kubernetes.proxy.status_text import build_body
from moorings.kubernetes.proxy.usage import IpuUsage
from moorings.kubernetes.proxy.watch_cache import WatchCache
from moorings.kubernetes.proxy_api.shapes import WAITING, ChangeBody, PartitionBody
from moorings.wire.codec import format_time

WORDS_S = 0.5  # the operator's pause before it writes a status is as long: both together are a second


@dataclass(frozen=True, slots=True)
class PublishDecision:
    """What to publish.

    Attributes:
        body: to publish now; None: nothing.
        requeue_after_s: decide again after so many seconds; None: nothing is held back.
    """

    body: PartitionBody | None = None
    requeue_after_s: float | None = None


def decide_publish(body: PartitionBody, shown: PartitionBody | None, shown_s: float, now_s: float) -> PublishDecision:
    """What to publish of a partition. Pure.

    Args:
        body: its present state.
        shown: its last published state.
        shown_s: when that was published.
        now_s: the time, of the same monotonic clock.
    """
    if shown is None:
        return PublishDecision(body)
    body = replace(body, since=shown.since if body.state == shown.state else body.since)
    if body == shown:
        return PublishDecision()
    same = replace(body, message=shown.message, code=shown.code, starts_at=shown.starts_at, unsure=shown.unsure)
    only_words = body.state == WAITING and same == shown
    left_s = shown_s + WORDS_S - now_s
    if only_words and shown.message and left_s > 0:  # the first message is published at once
        return PublishDecision(requeue_after_s=left_s)
    return PublishDecision(body)


class StatusPublisher:
    """Publishes the states of instances in the journal, and their IPUs in the usage.

    Args:
        journal: gets the changes.
        usage: gets the number of held IPUs.
        links: returns the controllers; called each time.
        look: plans again an instance with a change that was held back, and publishes it.
        now: the wall clock, microseconds since 1970.
    """

    def __init__(
        self,
        journal: WatchCache,
        usage: IpuUsage,
        links: Callable[[], Mapping[str, ControllerConnection]],
        look: Callable[[ManagedInstance], None],
        now: Callable[[], int],
    ) -> None:
        self._journal = journal
        self._usage = usage
        self._links = links
        self._look = look
        self._now = now

    def publish(self, record: ManagedInstance) -> None:
        """Publish the state of an instance if it has changed, now or when its message is due."""
        held = sum(
            known.size for known in record.claims.claims.values() if known.phase in (*HELD, ClaimPhase.RELEASING)
        )
        now_s = time.monotonic()
        self._usage.set_held(record.owner, record.key.namespace, held, now_s)
        report = decide_publish(self.body(record), record.published, record.shown_s, now_s)
        self.forget(record)
        if report.body is not None:
            record.published, record.shown_s = replace(report.body, version=self._journal.next_version), now_s
            self._journal.add(ChangeBody(partition=record.published))
        elif report.requeue_after_s is not None:
            self.publish_soon(record, report.requeue_after_s)

    def publish_soon(self, record: ManagedInstance, pause_s: float = WORDS_S) -> None:
        """Publish the state of an instance after a pause, unless it is published before."""
        if record.publish_timer is None:
            record.publish_timer = asyncio.get_running_loop().call_later(pause_s, self._due, record)

    def withdraw(self, record: ManagedInstance) -> None:
        """Publish that nothing is left of an instance's partition."""
        self.forget(record)
        self._usage.set_held(record.owner, record.key.namespace, 0, time.monotonic())
        if record.published is not None:
            self._journal.add(ChangeBody(partition=replace(record.published, binding=None), gone=True))

    def body(self, record: ManagedInstance) -> PartitionBody:
        """The present state of an instance, published or not."""
        return build_body(record, self._links(), format_time(Timestamp(self._now())))

    def forget(self, record: ManagedInstance) -> None:
        """Drop the change that is held back."""
        if record.publish_timer is not None:
            record.publish_timer.cancel()
            record.publish_timer = None

    def _due(self, record: ManagedInstance) -> None:
        record.publish_timer = None
        self._look(record)
