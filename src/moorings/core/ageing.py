"""Ageing: who has waited for long is passed by no higher priority any more (law 7).

It counts as of the highest priority that waits for its kind of devices, if that one could be served; between the two
fair share and arrival decide. The ranks of all others stay as they are: who waits in vain changes nobody's order.

Refused: a priority that grows while a claim waits (who has thousands waiting would pass whoever comes later, whatever
they have used); to serve the oldest first (likewise); to let no higher priority count while it waits (an urgent claim
would stand behind all that came before it, and one that waits for long would do that to a whole pool).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from moorings.core.claims import Claim
from moorings.core.fleet import PoolState
from moorings.core.instants import Timestamp, add_seconds
from moorings.core.lines import ClassKey, PendingClassReader
from moorings.core.policy import Policy

ClassHead = tuple[Claim, ClassKey, PendingClassReader, list[PoolState]]
"""Who is first in a line, the line, and the pools that could serve it."""


def ageing_cutoff(policy: Policy, now: Timestamp) -> Timestamp | None:
    """Who came by then has waited so long that no higher priority passes it; None: nobody ever has.

    Args:
        policy: says how long.
        now: the turn's time.
    """
    return None if policy.ageing_s is None else add_seconds(now, -policy.ageing_s)


def find_aged_classes(
    lines: Sequence[ClassHead],
    policy: Policy,
    now: Timestamp,
    may_be_served: Callable[[Claim, Sequence[PoolState]], bool],
) -> Iterator[tuple[Claim, ClassKey, PendingClassReader, list[PoolState], int]]:
    """The lines in which somebody has waited for long: of these the first to come, and last what each counts as.

    What it costs is a matter of the lines, not of those who wait in them.

    Args:
        lines: all that wait.
        policy: says how long.
        now: the turn's time.
        may_be_served: whether a claim may be served some day, as things stand.
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
    """Of each kind of devices the highest priority that waits for it and may be served."""
    found: dict[str, int] = {}
    for claim, _, _, able in sorted(lines, key=lambda line: -line[0].spec.priority):
        kind = claim.spec.kind
        if kind not in found and may_be_served(claim, able):
            found[kind] = claim.spec.priority
    return found
