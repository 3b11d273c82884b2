"""Pending classes: pending claims that are alike, in the queue's order, so that a turn need not walk over all of them.

A class holds the claims for the same devices, of the same project and subject. If the first of them gets nothing, the
later ones get nothing either, unless they end sooner. So a class can also return its next claim that ends within some
time (backfill); it finds that by the shortest time limit of each of its chunks.

A class has two orders: the queue's, and arrival alone, for claims that have waited so long that priority no longer
counts (ageing). Separate classes for each priority were refused: a user could create as many as there are priorities,
and a limit of a project bars a class, so an old log would be decided otherwise.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

from moorings.core.model.access import USER_OWNER_PREFIX
from moorings.core.model.claims import Claim, ClaimId, QueueMode
from moorings.core.model.devices import PoolName
from moorings.core.model.projects import Projects
from moorings.core.model.timestamps import Timestamp

QueueKey = tuple[int, Timestamp, ClaimId]
AccountKey = tuple[str, str, bool]  # project, subject, whether it is preemptible
DeviceKey = tuple[str, PoolName | None, int, int, QueueMode]
ClassKey = tuple[DeviceKey, AccountKey, tuple[tuple[str, int], ...]]

NO_LIMIT_S: Final = float("inf")
CHUNK_MAX: Final = 128
QUEUE_START: Final[QueueKey] = (-(1 << 62), Timestamp(0), ClaimId(""))


_NO_ACCOUNT: Final[AccountKey] = ("", "", False)


def class_key(claim: Claim, projects: Projects) -> ClassKey:
    """The pending class of a claim; project and subject matter only if projects are defined."""
    spec = claim.spec
    payer = _NO_ACCOUNT
    if projects:
        subject = claim.user if projects.has_user_limit(spec.project) else ""
        payer = (spec.project, subject, spec.preemptible)
    resources = tuple(sorted(spec.resources.items())) if spec.resources else ()
    if spec.machine:
        resources += tuple((f"machine {name}", amount) for name, amount in sorted(spec.machine.items()))
    return (spec.kind, spec.pool, spec.size, spec.gcds, spec.queue), payer, resources


def backfill_limit_s(claim: Claim) -> float:
    """The time after which its job is ended, in seconds; infinite: never.

    A claim made by a user ends when the user releases it, whatever its time limit.
    """
    limit_s = claim.spec.time_limit_s
    return limit_s if limit_s is not None and not claim.owner.startswith(USER_OWNER_PREFIX) else NO_LIMIT_S


class PendingClass:
    """The queue keys and time limits of a class's claims, first to last.

    Attributes:
        by_arrival: the same claims by arrival, whatever their priority; None: this is itself the one by arrival.
    """

    __slots__ = ("_chunks", "_count", "_firsts", "_shortest", "by_arrival")

    def __init__(self, *, by_arrival: bool = True) -> None:
        self.by_arrival = PendingClass(by_arrival=False) if by_arrival else None
        self._chunks: list[list[tuple[QueueKey, float]]] = []
        self._firsts: list[QueueKey] = []  # of each chunk
        self._shortest: list[float] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[QueueKey]:
        return (order for chunk in self._chunks for order, _ in chunk)

    def first_key(self) -> QueueKey | None:
        """The first claim."""
        return self._firsts[0] if self._firsts else None

    def last_key(self) -> QueueKey | None:
        """The last claim: none in the class has a lower priority."""
        return self._chunks[-1][-1][0] if self._chunks else None

    def add(self, order: QueueKey, limit_s: float) -> None:
        """Add a claim."""
        if self.by_arrival is not None:
            self.by_arrival.add(_by_arrival(order), limit_s)
        self._count += 1
        if not self._chunks:
            self._chunks.append([(order, limit_s)])
            self._firsts.append(order)
            self._shortest.append(limit_s)
            return
        at = self._chunk_of(order)
        chunk = self._chunks[at]
        insort(chunk, (order, limit_s))
        self._firsts[at] = chunk[0][0]
        self._shortest[at] = min(self._shortest[at], limit_s)
        if len(chunk) > CHUNK_MAX:
            half = len(chunk) // 2
            self._chunks[at : at + 1] = [chunk[:half], chunk[half:]]
            self._firsts[at : at + 1] = [chunk[0][0], chunk[half][0]]
            self._shortest[at : at + 1] = [_shortest(chunk[:half]), _shortest(chunk[half:])]

    def remove(self, order: QueueKey) -> None:
        """Remove a claim, which must be in the class."""
        if self.by_arrival is not None:
            self.by_arrival.remove(_by_arrival(order))
        at = self._chunk_of(order)
        chunk = self._chunks[at]
        place = bisect_left(chunk, (order, -1.0))
        assert place < len(chunk), f"{order} stands in no line"
        assert chunk[place][0] == order, f"{order} stands in no line"
        _, limit_s = chunk.pop(place)
        self._count -= 1
        if not chunk:
            del self._chunks[at], self._firsts[at], self._shortest[at]
            return
        self._firsts[at] = chunk[0][0]
        if limit_s == self._shortest[at]:
            self._shortest[at] = _shortest(chunk)

    def next_within(self, after: QueueKey, limit_s: float = NO_LIMIT_S) -> QueueKey | None:
        """The first after ``after`` whose time limit is at most ``limit_s``."""
        if not self._chunks:
            return None
        at = self._chunk_of(after)
        if self._shortest[at] <= limit_s:
            chunk = self._chunks[at]
            for place in range(bisect_left(chunk, (after, -1.0)), len(chunk)):
                order, limit = chunk[place]
                if limit <= limit_s and order > after:
                    return order
        for index in range(at + 1, len(self._chunks)):
            if self._shortest[index] <= limit_s:
                return next(order for order, limit in self._chunks[index] if limit <= limit_s)
        return None

    def _chunk_of(self, order: QueueKey) -> int:
        at = bisect_left(self._firsts, order)
        if at < len(self._firsts) and self._firsts[at] == order:
            return at
        return max(at - 1, 0)


def _by_arrival(order: QueueKey) -> QueueKey:
    _, arrival, ident = order
    return (0, arrival, ident)


def _shortest(chunk: list[tuple[QueueKey, float]]) -> float:
    return min(limit for _, limit in chunk)


class PendingClassReader(Protocol):
    """A pending class as a turn sees it."""

    def first(self) -> Claim | None:
        """The first claim."""
        ...

    def next(self, after: QueueKey, limit_s: float = NO_LIMIT_S) -> Claim | None:
        """The first after ``after`` whose time limit, in seconds, is at most ``limit_s``."""
        ...

    def aged(self, by: Timestamp, below: int) -> PendingClassReader | None:
        """The claims that arrived by then, by arrival; None: there are none, or none here has a priority below that."""
        ...


class PendingClassView:
    """A pending class of the fleet without the claims that a turn has changed, and with those that it has added.

    ``by``: only the claims that arrived by then, by arrival.
    """

    __slots__ = ("_added", "_by", "_claims", "_line", "_removed")

    def __init__(
        self,
        line: PendingClass | None,
        claims: Mapping[ClaimId, Claim],
        gone: Mapping[ClaimId, object],
        added: Iterable[Claim] = (),
        by: Timestamp | None = None,
    ) -> None:
        self._line = line
        self._claims = claims
        self._removed = gone
        self._by = by
        self._added = sorted(((self._place(claim), claim) for claim in added), key=lambda pair: pair[0])

    def first(self) -> Claim | None:
        """The first claim."""
        return self.next(QUEUE_START)

    def next(self, after: QueueKey, limit_s: float = NO_LIMIT_S) -> Claim | None:
        """The first after ``after`` whose time limit, in seconds, is at most ``limit_s``."""
        after = after if self._by is None else _by_arrival(after)
        order = self._line.next_within(after, limit_s) if self._line is not None else None
        while order is not None and order[2] in self._removed:
            assert self._line is not None
            order = self._line.next_within(order, limit_s)
        found = self._claims[order[2]] if order is not None else None
        for place, claim in self._added:
            if order is not None and place > order:
                break
            if place > after and backfill_limit_s(claim) <= limit_s:
                found = claim
                break
        return found if found is None or self._by is None or found.arrival <= self._by else None

    def aged(self, by: Timestamp, below: int) -> PendingClassView | None:
        """The claims that arrived by then, by arrival; None: there are none, or none here has a priority below that."""
        added = [claim for _, claim in self._added]
        line = self._line
        by_arrival = line.by_arrival if line is not None else None
        oldest = by_arrival.first_key() if by_arrival is not None else None
        last = line.last_key() if line is not None else None
        is_old = (oldest is not None and oldest[1] <= by) or any(claim.arrival <= by for claim in added)
        is_low = (last is not None and -last[0] < below) or any(claim.spec.priority < below for claim in added)
        return PendingClassView(by_arrival, self._claims, self._removed, added, by) if is_old and is_low else None

    def _place(self, claim: Claim) -> QueueKey:
        return claim.queue_key if self._by is None else _by_arrival(claim.queue_key)
