"""What the keeper keeps of one instance, and what follows from that alone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from moorings.core.errors import MooringsError
from moorings.kubernetes.proxy.asking import InstanceKey
from moorings.kubernetes.proxy.choice import InstanceClaims, InstancePlan
from moorings.kubernetes.proxy.known import ClaimPhase, ObservedClaim
from moorings.kubernetes.proxy.shapes import PartitionBody, PartitionRequest
from moorings.wire.shapes import BindingBody

PAUSE_S = 0.1  # after the first failure


@dataclass(frozen=True, slots=True)
class EstimatedStart:
    """When a claim would start, as its controller reckons.

    Attributes:
        starts_at: at the latest, as things stand (RFC 3339); empty: that is not known.
        why: why the controller cannot say, in a sentence.
        asked_at: when it was asked last (``time.monotonic``).
    """

    starts_at: str = ""
    why: str = ""
    asked_at: float = 0.0

    def asked_again(self, at: float) -> EstimatedStart:
        """The same, asked later."""
        return replace(self, asked_at=at)


@dataclass(slots=True)
class ManagedInstance:
    """One instance: what is known, what is published of it, and who works on it.

    Attributes:
        shown: what was published last, and ``shown_s`` when (``time.monotonic``).
        telling: publishes what is held back.
    """

    place: InstanceKey
    owner: str
    book: InstanceClaims = field(default_factory=InstanceClaims)
    binding: BindingBody | None = None
    resetting: asyncio.Task[None] | None = None
    shown: PartitionBody | None = None
    shown_s: float = 0.0
    telling: asyncio.TimerHandle | None = None
    choice: InstancePlan = InstancePlan()
    worker: asyncio.Task[None] | None = None
    again: bool = False
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    trouble: str = ""
    pause_s: float = PAUSE_S
    keys: set[tuple[str, str]] = field(default_factory=set)
    estimates: dict[tuple[str, str], EstimatedStart] = field(default_factory=dict)

    def has_ready(self, winner: ObservedClaim) -> bool:
        """Whether a claim that was READY still is."""
        known = self.book.find(winner)
        return (
            known is not None
            and known.phase in (ClaimPhase.READY, ClaimPhase.RECLAIMING)
            and known.attempt == winner.attempt
        )


def check_unchanged(book: InstanceClaims, request: PartitionRequest) -> None:
    """Raises ``key.conflict`` if something else was asked for this instance before."""
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
        book.full.clear()


def rebuild_request(record: ManagedInstance) -> PartitionRequest | None:
    """What was asked for before this process began, as a claim of it says."""
    known = next(iter(record.book.claims.values()), None)
    if known is None:
        return None
    place = record.place
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
