"""The published state of one instance's partition: its state, the reason, and its controller. Pure.

A controller's text about waiting claims names other users' jobs and changes with each grant; the text here is a
sentence that changes only with its code. The controller has all of it (``moor explain``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moorings.kubernetes.proxy.controllers import ControllerConnection
from moorings.kubernetes.proxy.instances import ManagedInstance
from moorings.kubernetes.proxy.observed import ClaimPhase
from moorings.kubernetes.proxy.plan import DesiredState
from moorings.kubernetes.proxy_api.shapes import (
    FAILED,
    GIVEN_BACK,
    LOST,
    PREPARING,
    READY,
    RECLAIMING,
    RELEASING,
    WAITING,
    PartitionBody,
)

_NO_BLOCK = "no block of {} IPUs is free"
_WAITS = {
    "pool.full": _NO_BLOCK,
    "pool.fragmented": _NO_BLOCK,
    "pool.resource_short": "the hosts of a block of {} IPUs are too busy",
    "pool.unreachable": "the IPUs' controller does not answer",
    "queue.reserved": "a block of {} IPUs is kept for it",
    "queue.kept_for_other": "what is free is kept for one that came first",
    "queue.aged": "one that has waited for long comes first, whatever the priority",
    "queue.next_turn": "it fits and is granted in the next turn",
    "claim.broken": "its block of {} IPUs broke; it gets another one",
    "claim.requeued": "its {} IPUs were lent and had to go back; it waits in its old place",
    "project.limit": "its project may hold no more IPUs now",
    "project.guaranteed": "what is free is guaranteed to others, and only lent to jobs that can be asked to yield",
}
_WAITS_ANYHOW = "it is in the queue"


def build_body(record: ManagedInstance, links: Mapping[str, ControllerConnection], now: str) -> PartitionBody:
    """The present state of an instance's partition; ``now`` (RFC 3339) is its ``since`` if its beginning is unknown."""
    state, code, message = _state(record, links)
    book, winner = record.claims, record.plan.winner
    known = winner or next(iter(book.claims.values()), None)
    size = known.size if known is not None else book.request.ipus if book.request is not None else 0
    if winner is None and book.desired is DesiredState.RELEASED and len(book.claims) == 1:
        winner = known
    controller = winner.controller if winner is not None else ""
    link = links.get(controller)
    at = known.since if known is not None and state not in (WAITING, RELEASING) else ""
    starts_at, unsure = _estimate(record) if state == WAITING else (None, "")
    return PartitionBody(
        namespace=record.key.namespace,
        job=record.key.job,
        uid=record.key.uid,
        instance=record.key.instance,
        state=state,
        ipus=size,
        name=winner.partition if winner is not None else "",
        claim=winner.id if winner is not None else "",
        controller=controller,
        node_selector=link.reach.entry.labels if link is not None else {},
        code=code,
        message=message,
        since=at or now,
        binding=record.binding if state == READY else None,
        until=winner.until or None if winner is not None and state == RECLAIMING else None,
        fresh=winner is not None and winner.fresh,
        starts_at=starts_at,
        unsure=unsure,
    )


def _estimate(record: ManagedInstance) -> tuple[str | None, str]:
    """By when it starts, on the controller with the earliest estimate; or why there is none."""
    estimates = [found for key, found in record.estimates.items() if key in record.claims.claims]
    starts = min((found.starts_at for found in estimates if found.starts_at), default=None)  # as text they are in order
    return starts, "" if starts else next((found.why for found in estimates if found.why), "")


def _state(record: ManagedInstance, links: Mapping[str, ControllerConnection]) -> tuple[str, str, str]:
    """State, code and message."""
    book, choice = record.claims, record.plan
    winner = choice.winner
    if book.desired is DesiredState.RELEASED:
        away = sorted({at for at, _ in book.claims} | book.uncertain_controllers)
        silent = [name for name in away if name in links and not links[name].is_reachable]
        unreachable = f"; {_describe_unreachable(silent, links)}" if silent else ""
        return RELEASING, GIVEN_BACK, f"the partition is being removed{unreachable}"
    if choice.failed is not None:
        return FAILED, *choice.failed
    if winner is None:
        return _waiting_state(record, links)
    if winner.phase is ClaimPhase.LOST:
        return LOST, winner.code or "claim.lost", winner.message or "the partition was lost"
    if winner.phase is ClaimPhase.GRANTED:
        return PREPARING, winner.code or "partition.preparing", winner.message or "the partition is being made"
    if winner.phase is ClaimPhase.RECLAIMING:
        return (
            RECLAIMING,
            "claim.reclaiming",
            "its IPUs were lent, and are needed; it keeps its place and goes on later",
        )
    if record.resetting is not None:
        return PREPARING, "partition.resetting", "the partition is being reset"
    if book.published_claim == (winner.controller, winner.id) and record.binding is not None:
        return READY, "", "the partition is ready"
    return PREPARING, "partition.preparing", choice.why or record.last_error or "the partition is almost ready"


def _describe_unreachable(silent: Sequence[str], links: Mapping[str, ControllerConnection]) -> str:
    """Which controllers do not respond, and whether the proxy's own access key is the reason."""
    denied = [name for name in silent if links[name].denies_access]
    away = [name for name in silent if not links[name].denies_access]
    refusals = [f"{', '.join(denied)} refuses the proxy's access key"] if denied else []
    return "; ".join([*refusals, f"{', '.join(away)} does not answer"] if away else refusals)


def _waiting_state(record: ManagedInstance, links: Mapping[str, ControllerConnection]) -> tuple[str, str, str]:
    """Why it has no block: the queue of a controller that responds comes before the silence of others."""
    claims, refused = record.claims.claims.values(), record.claims.refused
    if claims and all(known.phase is ClaimPhase.RELEASING for known in claims):
        return RELEASING, "partition.removing", "the partition is being removed"
    order = {name: number for number, name in enumerate(links)}
    for known in sorted(claims, key=lambda known: order.get(known.controller, -1)):
        link = links.get(known.controller)
        if known.phase is ClaimPhase.WAITING and known.code and (link is None or link.is_reachable):
            return WAITING, known.code, _WAITS.get(known.code, _WAITS_ANYHOW).format(known.size)
    asked = {name: link for name, link in links.items() if link.is_configured and not link.alias_of}
    if not asked:
        return WAITING, "controller.none", "no controller is configured"
    able = [name for name in asked if name not in refused]
    if able and not any(asked[name].is_reachable for name in able):
        return WAITING, "controller.unreachable", _describe_unreachable(able, links)
    return WAITING, "partition.waiting", record.last_error
