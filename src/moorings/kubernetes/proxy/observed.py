"""The observed state of one claim on one controller: from lists, responses and events, in any order.

A claim's phases are ordered within an attempt, so of two observations the further one is the newer one, whichever came
last; no observation needs a request to confirm it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum

from moorings.core.model.timestamps import Timestamp
from moorings.wire.codec import format_time
from moorings.wire.shapes import ClaimBody, EventBody


class ClaimPhase(IntEnum):
    """The phase of a claim within its attempt."""

    WAITING = 0
    GRANTED = 1
    READY = 2
    RECLAIMING = 3  # READY, and asked to yield
    LOST = 4
    RELEASING = 5  # then it ends, or waits again
    ENDED = 6


HELD = (ClaimPhase.GRANTED, ClaimPhase.READY, ClaimPhase.RECLAIMING, ClaimPhase.LOST)

_PHASES = {
    "ANNOUNCED": ClaimPhase.WAITING,
    "PENDING": ClaimPhase.WAITING,
    "GRANTED": ClaimPhase.GRANTED,
    "READY": ClaimPhase.READY,
    "RECLAIMING": ClaimPhase.RECLAIMING,
    "YIELDING": ClaimPhase.RELEASING,
    "LOST": ClaimPhase.LOST,
    "RELEASING": ClaimPhase.RELEASING,
    "RELEASED": ClaimPhase.ENDED,
    "CANCELLED": ClaimPhase.ENDED,
    "FAILED": ClaimPhase.ENDED,
}
_EVENTS = {
    "claim.granted": ClaimPhase.GRANTED,
    "claim.ready": ClaimPhase.READY,
    "claim.reclaiming": ClaimPhase.RECLAIMING,
    "claim.yielding": ClaimPhase.RELEASING,
    "claim.lost": ClaimPhase.LOST,
    "claim.releasing": ClaimPhase.RELEASING,
    "claim.released": ClaimPhase.ENDED,
    "claim.cancelled": ClaimPhase.ENDED,
    "claim.failed": ClaimPhase.ENDED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedClaim:
    """One claim.

    Attributes:
        controller: ``host:port`` of its controller.
        id: its id there.
        owner: its holder.
        preemptible: it may be reclaimed; ``resumable``: its job resumes from a checkpoint.
        time_limit_s: how long it holds its partition at most; None: no limit is known.
        phase: its phase, within its ``attempt``.
        failed: whether it ended because it could not be served.
        partition: the vendor's name of its partition; ``partition_id`` is the controller's.
        granted_at: when it was granted, by the controller's clock; as text, which sorts by time.
        since: when its phase began.
        code: the reason of its phase; ``message`` describes it.
        until: if it was asked to yield: by when.
        fresh: whether it was known before its attempt was READY, so that its partition cannot have been used before.
    """

    controller: str
    id: str
    owner: str
    size: int
    gcds: int = 1
    replicas_per_gcd: int = 1
    priority: int = 0
    preemptible: bool = False
    resumable: bool = False
    time_limit_s: float | None = None
    attempt: int = 0
    phase: ClaimPhase = ClaimPhase.WAITING
    failed: bool = False
    partition: str = ""
    partition_id: str = ""
    granted_at: str = ""
    since: str = ""
    code: str = ""
    message: str = ""
    until: str = ""
    fresh: bool = field(default=False, compare=False)  # it says how the claim became known, not its state

    @property
    def held(self) -> bool:
        """Whether it holds devices, and was not released."""
        return self.phase in HELD


def observe_body(controller: str, body: ClaimBody) -> ObservedClaim:
    """A claim as a controller returned it."""
    phase = _PHASES.get(body.state, ClaimPhase.WAITING)  # an unknown state of a newer controller: no binding for it
    times = {ClaimPhase.GRANTED: body.granted_at, ClaimPhase.READY: body.ready_at, ClaimPhase.ENDED: body.ended_at}
    return ObservedClaim(
        controller=controller,
        id=body.id,
        owner=body.owner,
        size=body.size,
        gcds=body.gcds,
        replicas_per_gcd=body.replicas_per_gcd,
        priority=body.priority,
        preemptible=body.preemptible,
        resumable=body.checkpoint.resumable,
        time_limit_s=body.time_limit_s,
        attempt=body.attempt,
        phase=phase,
        failed=body.state == "FAILED",
        partition=body.partition or "",
        partition_id=body.partition_id or "",
        granted_at=body.granted_at or "",
        since=times.get(phase) or body.ready_at or body.granted_at or body.created_at,
        code=body.reason.code if body.reason is not None else "",
        message=body.reason.sentence if body.reason is not None else "",
        until=body.asked_until or "",
        fresh=_PHASES.get(body.state, ClaimPhase.ENDED) < ClaimPhase.READY,
    )


def observe_created(controller: str, event: EventBody) -> ObservedClaim | None:
    """The claim of a ``claim.created`` event; None: the event has another form than we know."""
    data = event.data
    owner, size = data.get("owner"), data.get("size")
    if event.claim is None or not isinstance(owner, str) or not isinstance(size, int):
        return None
    return ObservedClaim(
        controller=controller,
        id=event.claim,
        owner=owner,
        size=size,
        gcds=_number(data.get("gcds"), 1),
        replicas_per_gcd=_number(data.get("replicas_per_gcd"), 1),
        priority=_number(data.get("priority"), 0),
        preemptible=data.get("preemptible") is True,
        resumable=_first(data.get("checkpoint")) is True,
        time_limit_s=_limit(data.get("time_limit_s")),
        since=event.at,
        fresh=True,
    )


def apply_event(known: ObservedClaim, event: EventBody) -> ObservedClaim:
    """The claim after an event of the controller's log."""
    attempt = _attempt(event, known.attempt)
    if event.name in ("claim.broken", "claim.requeued"):  # it keeps its place, and gets another block
        again = replace(
            known,
            attempt=_number(event.data.get("attempt"), attempt + 1),
            phase=ClaimPhase.WAITING,
            partition="",
            partition_id="",
            granted_at="",
            since=event.at,
            code=event.name,
            message=_text(event, "why"),
            until="",
            fresh=True,
        )
        return merge_observed(known, again)
    phase = _EVENTS.get(event.name)
    if phase is None:
        return known
    fresh = phase < ClaimPhase.READY or (known.fresh and known.attempt == attempt)
    found = replace(
        known, attempt=attempt, phase=phase, since=event.at, failed=event.name == "claim.failed", fresh=fresh
    )
    if phase is ClaimPhase.GRANTED:
        found = replace(
            found,
            partition=_text(event, "name"),
            partition_id=event.partition or "",
            granted_at=event.at,
            code="",
            message="",
        )
    elif phase is ClaimPhase.RECLAIMING:
        until = event.data.get("until")
        by = format_time(Timestamp(until)) if isinstance(until, int) else ""
        found = replace(found, code=event.name, message="", until=by)
    elif event.name == "claim.ready":
        found = replace(found, code="", message="")
    else:
        found = replace(found, code=event.name, message=_text(event, "why"))
    return merge_observed(known, found)


def merge_observed(old: ObservedClaim, new: ObservedClaim) -> ObservedClaim:
    """The state of a claim after two observations, whichever came first."""
    if (new.attempt, new.phase) < (old.attempt, old.phase):
        return old
    if new.attempt > old.attempt:
        return new
    return replace(  # a response may lack a field that an event has, and the reverse
        new,
        partition=new.partition or old.partition,
        partition_id=new.partition_id or old.partition_id,
        granted_at=new.granted_at or old.granted_at,
        since=old.since if new.phase == old.phase else new.since,
        code=new.code or (old.code if new.phase == old.phase else ""),
        message=new.message or (old.message if new.phase == old.phase else ""),
        until=new.until or old.until,
        fresh=old.fresh,
    )


def _attempt(event: EventBody, known: int) -> int:
    """A partition's id ends with its claim's attempt."""
    _, _, tail = (event.partition or "").rpartition("-")
    return int(tail) if tail.isdecimal() else known


def _text(event: EventBody, name: str) -> str:
    found = event.data.get(name)
    return found if isinstance(found, str) else ""


def _first(found: object) -> object:
    return found[0] if isinstance(found, list | tuple) and found else None


def _limit(found: object) -> float | None:
    return float(found) if isinstance(found, int | float) else None


def _number(found: object, default: int) -> int:
    return found if isinstance(found, int) else default
