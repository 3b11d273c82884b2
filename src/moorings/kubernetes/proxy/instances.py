"""The proxy's record of one instance, and functions of that record alone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.proxy.claims import InstanceKey
from moorings.kubernetes.proxy.plan import InstanceClaims, InstancePlan
from moorings.kubernetes.proxy_api.shapes import PartitionBody, PartitionRequest
from moorings.wire.shapes import BindingBody

PAUSE_S = 0.1  # after the first failure


@dataclass(frozen=True, slots=True)
class EstimatedStart:
    """A controller's estimate of when a claim starts.

    Attributes:
        starts_at: the latest time, as things stand (RFC 3339); empty: unknown.
        why: why the controller has no estimate, as a sentence.
        asked_at: time of the last request (``time.monotonic``).
    """

    starts_at: str = ""
    why: str = ""
    asked_at: float = 0.0

    def asked_again(self, at: float) -> EstimatedStart:
        """The same estimate with the time of a later request."""
        return replace(self, asked_at=at)


@dataclass(slots=True)
class ManagedInstance:
    """One instance: its known claims, its published state, and the task that works on it.

    Attributes:
        published: the last published state, and ``shown_s`` its time (``time.monotonic``).
        publish_timer: timer that publishes a change that is held back.
    """

    key: InstanceKey
    owner: str
    claims: InstanceClaims = field(default_factory=InstanceClaims)
    binding: BindingBody | None = None
    resetting: asyncio.Task[None] | None = None
    published: PartitionBody | None = None
    shown_s: float = 0.0
    publish_timer: asyncio.TimerHandle | None = None
    plan: InstancePlan = InstancePlan()
    worker: asyncio.Task[None] | None = None
    is_dirty: bool = False
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    last_error: str = ""
    pause_s: float = PAUSE_S
    keys: set[tuple[str, str]] = field(default_factory=set)
    estimates: dict[tuple[str, str], EstimatedStart] = field(default_factory=dict)


def check_unchanged(book: InstanceClaims, request: PartitionRequest) -> None:
    """Raise ``key.conflict`` if this instance was requested with other values before."""
    for known in book.claims.values():
        if (known.size, known.gcds, known.replicas_per_gcd) != (
            request.ipus,
            request.gcds,
            request.replicas_per_gcd,
        ):
            raise MooringsError(
                "key.conflict",
                f"the instance has, or waits for, a partition of {known.size} IPUs in {known.gcds} GCDs",
                hint="release that one first",
            )
    if book.request is not None and book.request.ipus != request.ipus:
        book.refused.clear()
        book.full_controllers.clear()


def rebuild_request(record: ManagedInstance) -> PartitionRequest | None:
    """The request from before this process began, as one of its claims shows it."""
    known = next(iter(record.claims.claims.values()), None)
    if known is None:
        return None
    place = record.key
    return PartitionRequest(
        namespace=place.namespace,
        job=place.job,
        uid=place.uid,
        instance=place.instance,
        ipus=known.size,
        gcds=known.gcds,
        replicas_per_gcd=known.replicas_per_gcd,
        priority=known.priority,
        preemptible=known.preemptible,
        resumable=known.resumable,
        time_limit_s=known.time_limit_s,
    )
