"""Ageing: no higher priority passes a claim that has waited too long (law 7).

An aged claim counts with the highest priority pending for its kind of devices, if a claim of that priority can be
served; fair share and arrival then decide between the two. All other ranks stay as they are: a claim that cannot be
served changes no order.

Refused: a priority that grows while a claim waits (a user with thousands of pending claims would pass every later user,
whatever they have used); to serve the oldest claim first (likewise); to ignore higher priorities while an aged claim
waits (an urgent claim would stand behind all earlier ones, and one old claim would do that to a whole pool).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from moorings.core.model.claims import Claim
from moorings.core.model.policy import Policy
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.core.placement.fleet import PoolState
from moorings.core.placement.pending_classes import ClassKey, PendingClassReader

ClassHead = tuple[Claim, ClassKey, PendingClassReader, list[PoolState]]
"""The first claim of a pending class, the class's key and reader, and the pools that could serve it."""


def ageing_cutoff(policy: Policy, now: Timestamp) -> Timestamp | None:
    """Claims that arrived by then have aged: no higher priority passes them; None: ageing is off.

    Args:
        policy: gives the time after which a claim has aged.
        now: the turn's time.
    """
    return None if policy.ageing_s is None else add_seconds(now, -policy.ageing_s)


def find_aged_classes(
    heads: Sequence[ClassHead],
    policy: Policy,
    now: Timestamp,
    is_servable: Callable[[Claim, Sequence[PoolState]], bool],
) -> Iterator[tuple[Claim, ClassKey, PendingClassReader, list[PoolState], int]]:
    """The pending classes with aged claims: the oldest claim of each, and last the priority it counts with.

    The cost depends on the number of classes, not on the number of claims in them.

    Args:
        heads: all pending classes.
        policy: gives the time after which a claim has aged.
        now: the turn's time.
        is_servable: whether a claim can be served some day, in the present situation.
    """
    by = ageing_cutoff(policy, now)
    if by is None:
        return
    highest: dict[str, int] = {}
    for claim, *_ in heads:
        kind, priority = claim.spec.kind, claim.spec.priority
        highest[kind] = max(priority, highest.get(kind, priority))
    found = [
        (key, aged, able)
        for claim, key, line, able in heads
        if (aged := line.aged(by, highest[claim.spec.kind])) is not None
    ]
    pools = {claim.id: able for claim, _, _, able in heads}
    every = (claim for claim, *_ in heads)
    counts_as = highest_priorities(every, lambda one: is_servable(one, pools[one.id])) if found else {}
    for key, aged, able in found:
        oldest = aged.first()
        if oldest is not None and oldest.spec.kind in counts_as:
            yield oldest, key, aged, able, counts_as[oldest.spec.kind]


def highest_priorities(claims: Iterable[Claim], may_be_served: Callable[[Claim], bool]) -> dict[str, int]:
    """For each kind of devices, the highest priority of these claims that may be served."""
    found: dict[str, int] = {}
    for claim in sorted(claims, key=lambda one: -one.spec.priority):
        kind = claim.spec.kind
        if kind not in found and may_be_served(claim):
            found[kind] = claim.spec.priority
    return found
