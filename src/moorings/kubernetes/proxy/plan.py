"""Decides the actions for one instance from its known claims on every controller, and which controllers are used. Pure.

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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.proxy.observed import ClaimPhase, ObservedClaim, merge_observed
from moorings.kubernetes.proxy_api.shapes import PartitionRequest

RETIRED_S = 60.0  # after it a controller that left the list and never responded is taken not to exist


class DesiredState(StrEnum):
    """The operator's last wish; unknown if it came before this process began."""

    UNKNOWN = "nothing"
    WANTED = "wanted"
    RELEASED = "over"


class ActionType(StrEnum):
    """What can be done at a controller."""

    CLAIM_NOW = "try"  # request it, to be refused if no block is free now
    CLAIM_QUEUED = "queue"  # request it, and wait there
    RELEASE_IF_WAITING = "withdraw"  # release a claim, if it still waits
    RELEASE = "release"
    LIST_CLAIMS = "look"  # list the owner's claims
    FETCH = "fetch"  # fetch the binding, which is then given out


@dataclass(frozen=True, slots=True)
class ClaimAction:
    """One action: its controller and its claim (the id; empty for none)."""

    type: ActionType
    controller: str
    claim: str = ""


@dataclass(frozen=True, slots=True)
class ObservedController:
    """The state of a controller, the same for all owners.

    Attributes:
        name: ``host:port``; they are tried in the order of the list.
        is_reachable: whether it responds now.
        is_quiet: whether it has not responded for so long that no request can still be on its way to it.
        is_configured: whether it gets new requests; one that was taken out of the list does not.
        was_listed: whether this process has ever seen all its claims.
        installation: the installation that last responded there; empty: none did.
    """

    name: str
    is_reachable: bool = True
    is_quiet: bool = False
    is_configured: bool = True
    was_listed: bool = True
    installation: str = ""


@dataclass(slots=True)
class InstanceClaims:
    """All known claims of one instance.

    Attributes:
        desired: what the operator wants.
        request: the request, as far as it is known.
        is_new_job: whether no earlier process can have seen its job.
        claims: those that have not ended, by controller and id.
        first_seen_at: when each was first known, by our clock.
        held_at: when one of them was first known to be held; None: none is.
        listed_at: by controller, when the last list of all the owner's claims began.
        uncertain_controllers: controllers with a request for a claim and no response.
        full_controllers: controllers that had no free block when they were tried.
        refused: controllers that can never serve it: code and message.
        published_claim: the claim whose binding was given out.
        had_claim: whether this process knows that there ever was a claim.
        settled: claims that were READY long before this process began: an earlier process has given out their bindings.
    """

    desired: DesiredState = DesiredState.UNKNOWN
    request: PartitionRequest | None = None
    is_new_job: bool = False
    claims: dict[tuple[str, str], ObservedClaim] = field(default_factory=dict)
    first_seen_at: dict[tuple[str, str], float] = field(default_factory=dict)
    held_at: float | None = None
    listed_at: dict[str, float] = field(default_factory=dict)
    uncertain_controllers: set[str] = field(default_factory=set)
    full_controllers: set[str] = field(default_factory=set)
    refused: dict[str, tuple[str, str]] = field(default_factory=dict)
    published_claim: tuple[str, str] | None = None
    had_claim: bool = False
    settled: set[tuple[str, str]] = field(default_factory=set)

    def observe(self, known: ObservedClaim, now: float) -> None:
        """Apply the observed state of one claim."""
        key = (known.controller, known.id)
        before = self.claims.get(key)
        found = known if before is None else merge_observed(before, known)
        if found.phase is ClaimPhase.ENDED:
            self._end(found)
            return
        if before is None:
            self.first_seen_at[key] = now
        self.had_claim = True
        self.claims[key] = found
        if before is not None and found.attempt > before.attempt:  # it released its partition, and waits for another
            self.settled.discard(key)
            if self.published_claim == key:
                self.published_claim = None
        if not any(one.held for one in self.claims.values()):
            self.held_at = None
        elif self.held_at is None:
            self.held_at = now

    def apply_listing(self, controller: str, began: float, found: Sequence[ObservedClaim], now: float) -> None:
        """Apply a list of all the owner's claims on a controller that have not ended."""
        there = {known.id for known in found}
        for key, known in list(self.claims.items()):
            if key[0] == controller and key[1] not in there and self.first_seen_at[key] < began:
                self._end(known)
        for known in found:
            self.observe(known, now)
        self.listed_at[controller] = max(began, self.listed_at.get(controller, began))
        self.uncertain_controllers.discard(controller)

    def drop_controller(self, controller: str) -> None:
        """Drop a controller that is gone permanently, and its claims."""
        for key, known in list(self.claims.items()):
            if key[0] == controller:
                self._end(known)
        self.uncertain_controllers.discard(controller)

    def rename_controller(self, old: str, new: str) -> None:
        """Join a controller's old name with its new name, including all that was learned under the old one."""
        for (at, ident), known in list(self.claims.items()):
            if at == old:
                del self.claims[at, ident]
                moved, there = replace(known, controller=new), self.claims.get((new, ident))
                learned = self.first_seen_at.pop((at, ident))
                self.claims[new, ident] = moved if there is None else merge_observed(there, moved)
                self.first_seen_at[new, ident] = min(learned, self.first_seen_at.get((new, ident), learned))
        if self.published_claim is not None and self.published_claim[0] == old:
            self.published_claim = (new, self.published_claim[1])
        self.settled = {(new if at == old else at, ident) for at, ident in self.settled}
        self.uncertain_controllers = {new if at == old else at for at in self.uncertain_controllers}
        looked = self.listed_at.pop(old, None)
        if looked is not None:
            self.listed_at[new] = max(looked, self.listed_at.get(new, looked))
        self.full_controllers.discard(old)
        self.refused.pop(old, None)

    def find(self, known: ObservedClaim) -> ObservedClaim | None:
        """The present state of the same claim, under any name of its controller; None: it has ended."""
        found = self.claims.get((known.controller, known.id))
        return found or next((one for one in self.claims.values() if one.id == known.id), None)

    def has_ready(self, winner: ObservedClaim) -> bool:
        """Whether a claim that was READY still is."""
        known = self.find(winner)
        return (
            known is not None
            and known.phase in (ClaimPhase.READY, ClaimPhase.RECLAIMING)
            and known.attempt == winner.attempt
        )

    def mark_published(self, winner: ObservedClaim) -> bool:
        """Record that a claim's binding is given out; False: it may not be any more."""
        known = self.find(winner)
        if known is None or not self.has_ready(winner) or self.desired is DesiredState.RELEASED:
            return False
        self.published_claim = (known.controller, known.id)
        return True

    def apply_refusal(self, controller: str, error: MooringsError) -> bool:
        """Apply a controller's refusal of a new claim; False: it may accept the same request later."""
        self.uncertain_controllers.discard(controller)
        if error.code == "claim.no_room":
            self.full_controllers.add(controller)
            return True
        if not error.retryable:
            self.refused[controller] = (error.code, f"{controller}: {error.detail}")
        return not error.retryable

    def _end(self, known: ObservedClaim) -> None:
        key = (known.controller, known.id)
        self.claims.pop(key, None)
        self.first_seen_at.pop(key, None)
        if known.failed:
            self.refused[known.controller] = (known.code or "claim.failed", known.message)
        if self.published_claim == key:  # a claim that is known twice stays under its controller's other name
            other = next((one for one in self.claims if one[1] == known.id), None)
            self.published_claim = other
        if not any(one.held for one in self.claims.values()):
            self.held_at = None


@dataclass(frozen=True, slots=True)
class InstancePlan:
    """The plan of one instance.

    Attributes:
        winner: the claim that is, or will be, the instance's partition; None: no claim holds a block.
        may_publish_binding: whether its binding may be given out.
        actions: the actions, all concurrent.
        why: why a winner that is ready is not given out.
        is_finished: whether nothing of it is left, and nothing is wanted.
        failed: no controller can ever serve it: code and message.
    """

    winner: ObservedClaim | None = None
    may_publish_binding: bool = False
    actions: tuple[ClaimAction, ...] = ()
    why: str = ""
    is_finished: bool = False
    failed: tuple[str, str] | None = None


def plan_instance(book: InstanceClaims, standings: Sequence[ObservedController]) -> InstancePlan:
    """The plan of one instance."""
    if book.desired is DesiredState.RELEASED:
        return _end_all(book, standings)
    order = {standing.name: number for number, standing in enumerate(standings)}
    winner = _winner(book, order)
    if winner is not None:
        return _keep_one(book, standings, winner)
    waiting = [known for known in book.claims.values() if known.phase is ClaimPhase.WAITING]
    if waiting:
        return InstancePlan(actions=_queue_everywhere(book, standings))
    if book.claims:
        return InstancePlan()  # first the released claims must be gone
    if (
        book.had_claim and not book.refused
    ) or book.desired is not DesiredState.WANTED:  # what has ended is not made again
        return InstancePlan(
            is_finished=not book.uncertain_controllers, actions=_list_actions(book.uncertain_controllers, standings)
        )
    return _begin(book, standings)


def is_exclusive(book: InstanceClaims, standing: ObservedController) -> bool:
    """Whether a controller has no unknown claim of the owner."""
    if book.listed_at.get(standing.name, -1.0) > (book.held_at if book.held_at is not None else 0.0):
        return True
    return (
        standing.is_quiet
        and standing.name not in book.uncertain_controllers
        and (standing.was_listed or book.is_new_job)
    )


def _winner(book: InstanceClaims, order: dict[str, int]) -> ObservedClaim | None:
    held = [known for known in book.claims.values() if known.held]
    if book.published_claim is not None:
        return next((known for known in held if (known.controller, known.id) == book.published_claim), None)
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
        if standing is not None and standing.is_reachable:
            deeds.append(
                ClaimAction(
                    ActionType.RELEASE if known.held else ActionType.RELEASE_IF_WAITING, known.controller, known.id
                )
            )
        else:
            why = f"{known.controller} has another claim of it, and does not answer"
    if book.published_claim is None:  # once it is given out, other claims are released, and no more lists are needed
        for standing in standings:
            if standing.name == winner.controller or is_exclusive(book, standing):
                continue
            if standing.is_reachable:
                deeds.append(ClaimAction(ActionType.LIST_CLAIMS, standing.name))
                why = why or f"{standing.name} is asked whether it has another claim of it"
            elif (winner.controller, winner.id) not in book.settled:
                why = f"{standing.name}, which does not answer, may have another claim of it"
    give = winner.phase in (ClaimPhase.READY, ClaimPhase.RECLAIMING) and (not why or book.published_claim is not None)
    if give and book.published_claim is None:
        deeds.append(ClaimAction(ActionType.FETCH, winner.controller, winner.id))
    return InstancePlan(winner=winner, may_publish_binding=give, actions=tuple(deeds), why=why)


def _queue_everywhere(book: InstanceClaims, standings: Sequence[ObservedController]) -> tuple[ClaimAction, ...]:
    taken = {controller for controller, _ in book.claims}
    return tuple(
        ClaimAction(ActionType.CLAIM_QUEUED, one.name)
        for one in _candidates(book, standings)
        if one.is_reachable and one.name not in taken
    )


def _begin(book: InstanceClaims, standings: Sequence[ObservedController]) -> InstancePlan:
    able = _candidates(book, standings)
    if not able and book.refused:
        return InstancePlan(failed=list(book.refused.values())[-1])
    ready = [standing for standing in able if standing.is_reachable]
    if len(able) == 1:
        return InstancePlan(actions=tuple(ClaimAction(ActionType.CLAIM_QUEUED, one.name) for one in ready))
    first = next((standing for standing in ready if standing.name not in book.full_controllers), None)
    if first is not None:
        return InstancePlan(actions=(ClaimAction(ActionType.CLAIM_NOW, first.name),))
    return InstancePlan(actions=_queue_everywhere(book, standings))


def _candidates(book: InstanceClaims, standings: Sequence[ObservedController]) -> list[ObservedController]:
    return [standing for standing in standings if standing.is_configured and standing.name not in book.refused]


def _end_all(book: InstanceClaims, standings: Sequence[ObservedController]) -> InstancePlan:
    answering = {standing.name for standing in standings if standing.is_reachable}
    deeds = [
        ClaimAction(ActionType.RELEASE, known.controller, known.id)
        for known in book.claims.values()
        if known.phase is not ClaimPhase.RELEASING and known.controller in answering
    ]
    deeds += _list_actions(book.uncertain_controllers, standings)
    return InstancePlan(actions=tuple(deeds), is_finished=not book.claims and not book.uncertain_controllers)


def _list_actions(controllers: set[str], standings: Sequence[ObservedController]) -> tuple[ClaimAction, ...]:
    return tuple(
        ClaimAction(ActionType.LIST_CLAIMS, one.name)
        for one in standings
        if one.is_reachable and one.name in controllers
    )


# -- controllers -------------------------------------------------------------------------------------------------------


def find_aliases(controllers: Iterable[ObservedController]) -> dict[str, str]:
    """By controller the name under which its installation is used: another one's, or empty for its own.

    The first entry of an installation is used; one that is in the list comes before one that left it.
    """
    first: dict[str, str] = {}
    found = {}
    for one in sorted(controllers, key=lambda one: not one.is_configured):
        name = first.setdefault(one.installation, one.name) if one.installation else one.name
        found[one.name] = name if name != one.name else ""
    return found


def is_complete(controllers: Iterable[ObservedController]) -> bool:
    """Whether all claims are known: each controller responds, or gets no new ones and has listed its own before."""
    return all(one.was_listed and (one.is_reachable or (not one.is_configured and one.is_quiet)) for one in controllers)


def is_retired(controller: ObservedController, away_s: float, *, has_claims: bool, disowned: bool) -> bool:
    """Whether a controller that left the list is needed no more.

    A silent one may return: its known claims stay, unless the list marks it as gone permanently.

    Args:
        controller: the controller.
        away_s: how long it has not responded, if it does not.
        has_claims: whether it has, or may have, claims of this cluster.
        disowned: whether the list marks it as gone permanently.
    """
    if disowned and not controller.is_reachable:
        return True
    never_existed = not controller.was_listed and not controller.is_reachable and away_s > RETIRED_S
    return (controller.was_listed or never_existed) and not has_claims


def check_installation(controller: ObservedController, installation: str, *, has_claims: bool) -> str:
    """Why an installation is refused that responds at a controller's address; empty: it is accepted."""
    if controller.installation in ("", installation) or not has_claims:
        return ""
    return (
        f"the installation {installation} answers at {controller.name}, where {controller.installation} has partitions "
        f"of this cluster; if that one is gone for good, put !{controller.name} into the list"
    )
