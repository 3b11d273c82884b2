"""Ageing: no higher priority passes a claim that has waited too long (law 7).

An aged claim counts with the highest priority pending for its kind of devices, if a claim of that priority can be
served; fair share and arrival then decide between the two. All other ranks stay as they are: a claim that cannot be
served changes no order.

Refused: a priority that grows while a claim waits (a user with thousands of pending claims would pass every later user,
whatever they have used); to serve the oldest claim first (likewise); to ignore higher priorities while an aged claim
waits (an urgent claim would stand behind all earlier ones, and one old claim would do that to a whole pool).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from moorings.core.claims import Claim
from moorings.core.fleet import PoolState
from moorings.core.instants import Timestamp, add_seconds
from moorings.core.lines import ClassKey, PendingClassReader
from moorings.core.policy import Policy

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
    lines: Sequence[ClassHead],
    policy: Policy,
    now: Timestamp,
    may_be_served: Callable[[Claim, Sequence[PoolState]], bool],
) -> Iterator[tuple[Claim, ClassKey, PendingClassReader, list[PoolState], int]]:
    """The pending classes with aged claims: the oldest claim of each, and last the priority it counts with.

    The cost depends on the number of classes, not on the number of claims in them.

    Args:
        lines: all pending classes.
        policy: gives the time after which a claim has aged.
        now: the turn's time.
        may_be_served: whether a claim can be served some day, in the present situation.
    """
    by = ageing_cutoff(policy, now)
    if by is None:
        return
    highest: dict[str, int] = {}
    for claim, *_ in lines:
        kind, priority = claim.spec.kind, claim.spec.priority
        highest[kind] = max(priority, highest.get(kind, priority))
    found = [
        (key, aged, able)
        for claim, key, line, able in lines
        if (aged := line.aged(by, highest[claim.spec.kind])) is not None
    ]
    counts_as = _highest_priorities(lines, may_be_served) if found else {}
    for key, aged, able in found:
        oldest = aged.first()
        if oldest is not None and oldest.spec.kind in counts_as:
            yield oldest, key, aged, able, counts_as[oldest.spec.kind]


def _highest_priorities(
    lines: Sequence[ClassHead], may_be_served: Callable[[Claim, Sequence[PoolState]], bool]
) -> dict[str, int]:
    """For each kind of devices, the highest pending priority that may be served."""
    found: dict[str, int] = {}
    for claim, _, _, able in sorted(lines, key=lambda line: -line[0].spec.priority):
        kind = claim.spec.kind
        if kind not in found and may_be_served(claim, able):
            found[kind] = claim.spec.priority
    return found
