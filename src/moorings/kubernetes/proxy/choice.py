"""Decides the actions for one instance from its known claims on every controller. Pure.

Controllers do not know each other. That at most one partition of an instance is ever used rests on one rule: *a binding
is given out only when no other claim of its owner is left, or can be granted.* After a claim is granted, the proxy
lists the owner's claims on all other controllers; of two granted claims, the list after the second one shows the first.
So the claim that was granted first wins, in every process and with data of any age (if the controllers' clocks differ
by less than the lists take).

A controller that does not respond could hold a claim that is unknown here. That is excluded if this process has seen
all its claims before, or if the job is younger than this process and no request to that controller went unanswered.
(Only here it matters that a cluster has one proxy at a time; two that overlap for a moment are safe while all respond.)

A claim's id is unique over all controllers. If one is known twice, its controller is known under two names: it is one
claim, and neither entry is released in favour of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from moorings.kubernetes.proxy.known import ClaimPhase, ObservedClaim, merge_observed
from moorings.kubernetes.proxy.shapes import PartitionRequest


class DesiredState(StrEnum):
    """The operator's last wish; unknown if it came before this process began."""

    NOTHING = "nothing"
    WANTED = "wanted"
    OVER = "over"


class ActionType(StrEnum):
    """What can be done at a controller."""

    TRY = "try"  # request it, to be refused if no block is free now
    QUEUE = "queue"  # request it, and wait there
    WITHDRAW = "withdraw"  # release a claim, if it still waits
    RELEASE = "release"
    LOOK = "look"  # list the owner's claims


@dataclass(frozen=True, slots=True)
class ClaimAction:
    """One action: its controller and its claim (the id; empty for none)."""

    do: ActionType
    controller: str
    claim: str = ""


@dataclass(frozen=True, slots=True)
class ObservedController:
    """The state of a controller, the same for all owners.

    Attributes:
        name: ``host:port``; they are tried in the order of the list.
        answers: whether it responds now.
        gone: whether it has not responded for so long that no request can still be on its way to it.
        asked: whether it gets new requests; one that was taken out of the list does not.
        seen: whether this process has ever seen all its claims.
    """

    name: str
    answers: bool = True
    gone: bool = False
    asked: bool = True
    seen: bool = True


@dataclass(slots=True)
class InstanceClaims:
    """All known claims of one instance.

    Attributes:
        wish: what the operator wants.
        request: the request, as far as it is known.
        young: whether no earlier process can have seen its job.
        claims: those that have not ended, by controller and id.
        learned: when each was first known, by our clock.
        held_at: when one of them was first known to be held; None: none is.
        looked: by controller, when the last list of all the owner's claims began.
        doubts: controllers with a request for a claim and no response.
        full: controllers that had no free block when they were tried.
        refused: controllers that can never serve it: code and message.
        given: the claim whose binding was given out.
        had: whether this process knows that there ever was a claim.
        settled: claims that were READY long before this process began: an earlier process has given out their bindings.
    """

    wish: DesiredState = DesiredState.NOTHING
    request: PartitionRequest | None = None
    young: bool = False
    claims: dict[tuple[str, str], ObservedClaim] = field(default_factory=dict)
    learned: dict[tuple[str, str], float] = field(default_factory=dict)
    held_at: float | None = None
    looked: dict[str, float] = field(default_factory=dict)
    doubts: set[str] = field(default_factory=set)
    full: set[str] = field(default_factory=set)
    refused: dict[str, tuple[str, str]] = field(default_factory=dict)
    given: tuple[str, str] | None = None
    had: bool = False
    settled: set[tuple[str, str]] = field(default_factory=set)

    def note(self, known: ObservedClaim, now: float) -> None:
        """Apply the observed state of one claim."""
        key = (known.controller, known.id)
        before = self.claims.get(key)
        found = known if before is None else merge_observed(before, known)
        if found.phase is ClaimPhase.ENDED:
            self._end(found)
            return
        if before is None:
            self.learned[key] = now
        self.had = True
        self.claims[key] = found
        if before is not None and found.attempt > before.attempt:  # it released its partition, and waits for another
            self.settled.discard(key)
            if self.given == key:
                self.given = None
        if not any(one.held for one in self.claims.values()):
            self.held_at = None
        elif self.held_at is None:
            self.held_at = now

    def look(self, controller: str, began: float, found: Sequence[ObservedClaim], now: float) -> None:
        """Apply a list of all the owner's claims on a controller that have not ended."""
        there = {known.id for known in found}
        for key, known in list(self.claims.items()):
            if key[0] == controller and key[1] not in there and self.learned[key] < began:
                self._end(known)
        for known in found:
            self.note(known, now)
        self.looked[controller] = max(began, self.looked.get(controller, began))
        self.doubts.discard(controller)

    def forget(self, controller: str) -> None:
        """Drop a controller that is gone permanently, and its claims."""
        for key, known in list(self.claims.items()):
            if key[0] == controller:
                self._end(known)
        self.doubts.discard(controller)

    def rename(self, old: str, new: str) -> None:
        """Join a controller's old name with its new name, including all that was learned under the old one."""
        for (at, ident), known in list(self.claims.items()):
            if at == old:
                del self.claims[at, ident]
                moved, there = replace(known, controller=new), self.claims.get((new, ident))
                learned = self.learned.pop((at, ident))
                self.claims[new, ident] = moved if there is None else merge_observed(there, moved)
                self.learned[new, ident] = min(learned, self.learned.get((new, ident), learned))
        if self.given is not None and self.given[0] == old:
            self.given = (new, self.given[1])
        self.settled = {(new if at == old else at, ident) for at, ident in self.settled}
        self.doubts = {new if at == old else at for at in self.doubts}
        looked = self.looked.pop(old, None)
        if looked is not None:
            self.looked[new] = max(looked, self.looked.get(new, looked))
        self.full.discard(old)
        self.refused.pop(old, None)

    def find(self, known: ObservedClaim) -> ObservedClaim | None:
        """The present state of the same claim, under any name of its controller; None: it has ended."""
        found = self.claims.get((known.controller, known.id))
        return found or next((one for one in self.claims.values() if one.id == known.id), None)

    def _end(self, known: ObservedClaim) -> None:
        key = (known.controller, known.id)
        self.claims.pop(key, None)
        self.learned.pop(key, None)
        if known.failed:
            self.refused[known.controller] = (known.code or "claim.failed", known.message)
        if self.given == key:  # a claim that is known twice stays under its controller's other name
            other = next((one for one in self.claims if one[1] == known.id), None)
            self.given = other
        if not any(one.held for one in self.claims.values()):
            self.held_at = None


@dataclass(frozen=True, slots=True)
class InstancePlan:
    """The plan of one instance.

    Attributes:
        winner: the claim that is, or will be, the instance's partition; None: no claim holds a block.
        give: whether its binding may be given out.
        deeds: the actions, all concurrent.
        why: why a winner that is ready is not given out.
        over: whether nothing of it is left, and nothing is wanted.
        failed: no controller can ever serve it: code and message.
    """

    winner: ObservedClaim | None = None
    give: bool = False
    deeds: tuple[ClaimAction, ...] = ()
    why: str = ""
    over: bool = False
    failed: tuple[str, str] | None = None


def plan_instance(book: InstanceClaims, standings: Sequence[ObservedController]) -> InstancePlan:
    """The plan of one instance."""
    if book.wish is DesiredState.OVER:
        return _end_all(book, standings)
    order = {standing.name: number for number, standing in enumerate(standings)}
    winner = _winner(book, order)
    if winner is not None:
        return _keep_one(book, standings, winner)
    waiting = [known for known in book.claims.values() if known.phase is ClaimPhase.WAITING]
    if waiting:
        return InstancePlan(deeds=_queue_everywhere(book, standings))
    if book.claims:
        return InstancePlan()  # first the released claims must be gone
    if book.had and not book.refused:
        return InstancePlan(over=not book.doubts, deeds=_list_actions(book.doubts, standings))
    if book.wish is not DesiredState.WANTED:
        return InstancePlan(over=not book.doubts, deeds=_list_actions(book.doubts, standings))
    return _begin(book, standings)


def is_exclusive(book: InstanceClaims, standing: ObservedController) -> bool:
    """Whether a controller has no unknown claim of the owner."""
    if book.looked.get(standing.name, -1.0) > (book.held_at if book.held_at is not None else 0.0):
        return True
    return standing.gone and standing.name not in book.doubts and (standing.seen or book.young)


def _winner(book: InstanceClaims, order: dict[str, int]) -> ObservedClaim | None:
    held = [known for known in book.claims.values() if known.held]
    if book.given is not None:
        return next((known for known in held if (known.controller, known.id) == book.given), None)
    last = len(order)
    return min(
        held,
        key=lambda k: (k.phase is ClaimPhase.LOST, k.granted_at or "~", order.get(k.controller, last), k.id),
        default=None,
    )


def _keep_one(book: InstanceClaims, standings: Sequence[ObservedController], winner: ObservedClaim) -> InstancePlan:
    by_name = {standing.name: standing for standing in standings}
    deeds, why = [], ""
    for known in book.claims.values():
        if known.id == winner.id or known.phase is ClaimPhase.RELEASING:  # a RELEASING claim can never be used again
            continue
        standing = by_name.get(known.controller)
        why = f"another claim of it, on {known.controller}, is not gone yet"
        if standing is not None and standing.answers:
            deeds.append(
                ClaimAction(ActionType.RELEASE if known.held else ActionType.WITHDRAW, known.controller, known.id)
            )
        else:
            why = f"{known.controller} has another claim of it, and does not answer"
    if book.given is None:  # once it is given out, other claims are released, and no more lists are needed
        for standing in standings:
            if standing.name == winner.controller or is_exclusive(book, standing):
                continue
            if standing.answers:
                deeds.append(ClaimAction(ActionType.LOOK, standing.name))
                why = why or f"{standing.name} is asked whether it has another claim of it"
            elif (winner.controller, winner.id) not in book.settled:
                why = f"{standing.name}, which does not answer, may have another claim of it"
    give = winner.phase in (ClaimPhase.READY, ClaimPhase.RECLAIMING) and (not why or book.given is not None)
    return InstancePlan(winner=winner, give=give, deeds=tuple(deeds), why=why)


def _queue_everywhere(book: InstanceClaims, standings: Sequence[ObservedController]) -> tuple[ClaimAction, ...]:
    taken = {controller for controller, _ in book.claims}
    return tuple(
        ClaimAction(ActionType.QUEUE, one.name)
        for one in _candidates(book, standings)
        if one.answers and one.name not in taken
    )


def _begin(book: InstanceClaims, standings: Sequence[ObservedController]) -> InstancePlan:
    able = _candidates(book, standings)
    if not able and book.refused:
        return InstancePlan(failed=list(book.refused.values())[-1])
    ready = [standing for standing in able if standing.answers]
    if len(able) == 1:
        return InstancePlan(deeds=tuple(ClaimAction(ActionType.QUEUE, one.name) for one in ready))
    first = next((standing for standing in ready if standing.name not in book.full), None)
    if first is not None:
        return InstancePlan(deeds=(ClaimAction(ActionType.TRY, first.name),))
    return InstancePlan(deeds=_queue_everywhere(book, standings))


def _candidates(book: InstanceClaims, standings: Sequence[ObservedController]) -> list[ObservedController]:
    return [standing for standing in standings if standing.asked and standing.name not in book.refused]


def _end_all(book: InstanceClaims, standings: Sequence[ObservedController]) -> InstancePlan:
    answering = {standing.name for standing in standings if standing.answers}
    deeds = [
        ClaimAction(ActionType.RELEASE, known.controller, known.id)
        for known in book.claims.values()
        if known.phase is not ClaimPhase.RELEASING and known.controller in answering
    ]
    deeds += _list_actions(book.doubts, standings)
    return InstancePlan(deeds=tuple(deeds), over=not book.claims and not book.doubts)


def _list_actions(controllers: set[str], standings: Sequence[ObservedController]) -> tuple[ClaimAction, ...]:
    return tuple(ClaimAction(ActionType.LOOK, one.name) for one in standings if one.answers and one.name in controllers)
